"""``kvgate check``: exit codes, and what goes to which stream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvgate.rules.record import record_bytes
from tests.cli.conftest import MakeManifest, Run
from tests.rules.clean import FORGET

MINIMAL = "schema: kvgate/manifest/v1\nmodel: {id: acme/support-8b}\n"
KV_DTYPE = {"precision.kv_cache": "fp8_e4m3"}
LORA = {"cache.connector": "lmcache", "request_features": ["lora"]}


@pytest.fixture
def pair(manifest: MakeManifest) -> tuple[str, str]:
    """A pair with one change that needs a namespace."""
    return manifest("old.yaml"), manifest("new.yaml", KV_DTYPE)


def test_reuse_is_accepted(run: Run, manifest: MakeManifest) -> None:
    ran = run("check", manifest("old.yaml"), manifest("new.yaml"))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "verified-compatible-reuse"


def test_a_change_is_refused_with_the_settings_that_make_it_green(
    run: Run, pair: tuple[str, str], manifest: MakeManifest
) -> None:
    refused = run("check", *pair)
    assert (refused.code, refused.err) == (10, "")
    derived = run("namespace", "new.yaml", "--quiet").out.strip()
    assert f"cache.namespace: {derived}" in refused.out
    manifest("new.yaml", {**KV_DTYPE, "cache.namespace": derived})
    accepted = run("check", *pair)
    assert accepted.code == 0
    assert accepted.out.splitlines()[-1] == refused.out.splitlines()[-1] == "new-namespace"


def test_missing_evidence_has_its_own_exit_code(run: Run, tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text(MINIMAL)
    ran = run("check", "old.yaml", "old.yaml")
    assert ran.code == 11
    assert ran.out.splitlines()[-1] == "new-namespace"


def test_a_self_fault_has_its_own_exit_code_and_nothing_discharges_it(run: Run, manifest: MakeManifest) -> None:
    names = manifest("old.yaml", {"cache.connector": "lmcache"}), manifest("new.yaml", LORA)
    assert run("check", *names).code == 30
    assert run("check", *names, "--accept", "new-namespace", "--accept", "clear", "--declare", "clear").code == 30
    assert run("check", "--first", "new.yaml").code == 30


def test_clear_has_its_own_exit_code_until_it_is_declared(run: Run, manifest: MakeManifest) -> None:
    salted = {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}, "request_features": ["cache_salt"]}
    names = (
        manifest("old.yaml", salted),
        manifest("new.yaml", {"cache.tenancy": {"boundary": "shared", "carried_by": None}}),
    )
    refused = run("check", *names)
    assert (refused.code, refused.out.splitlines()[-1]) == (20, "clear")
    declared = run("check", *names, "--declare", "clear", "--strategy", "recreate")
    assert declared.out.splitlines()[-1] == "clear"
    assert declared.code == 0


def test_accept_and_advisory_change_the_exit_code_and_not_the_verdict(run: Run, pair: tuple[str, str]) -> None:
    for option in (["--accept", "new-namespace"], ["--advisory"]):
        ran = run("check", *pair, *option)
        assert (ran.code, ran.out.splitlines()[-1]) == (0, "new-namespace")
    assert "not enforced" in run("check", *pair, "--advisory").out
    assert run("check", *pair, "--accept", "clear").code == 10


def test_everything_that_wrote_counts(run: Run, manifest: MakeManifest) -> None:
    same, other, new = manifest("same.yaml"), manifest("other.yaml", KV_DTYPE), manifest("new.yaml")
    assert run("check", same, new).code == 0
    ran = run("check", same, other, new)
    assert ran.code == 10
    assert "against other.yaml" in ran.out


@pytest.mark.parametrize("where", [0, 1])
def test_a_manifest_from_standard_input(run: Run, pair: tuple[str, str], tmp_path: Path, where: int) -> None:
    names = list(pair)
    content = (tmp_path / names[where]).read_bytes()
    names[where] = "-"
    ran = run("check", *names, stdin=content)
    assert ran.code == 10
    assert f"{'old' if where == 0 else 'new'}: -" in ran.out


def test_quiet_prints_the_verdict_alone(run: Run, pair: tuple[str, str]) -> None:
    ran = run("check", *pair, "--quiet")
    assert (ran.code, ran.out, ran.err) == (10, "new-namespace\n", "")


def test_one_decision_many_renderings(run: Run, pair: tuple[str, str], tmp_path: Path) -> None:
    plain = run("check", *pair, "--as-of", "2026-11-29")
    names = ("-o", "json=r.json", "-o", "markdown=r.md", "-o", "text=r.txt", "-o", "github")
    ran = run("check", *pair, "--as-of", "2026-11-29", *names)
    assert ran.code == plain.code == 10
    assert ran.out.startswith("::error title=kvgate%3A new-namespace (exit 10)::")
    assert "::error file=new.yaml,line=" in ran.out
    record = json.loads((tmp_path / "r.json").read_bytes())
    assert (tmp_path / "r.json").read_bytes() == record_bytes(record)
    assert record["predicate"]["exitCode"] == 10
    assert (tmp_path / "r.md").read_text().startswith("## kvgate: new-namespace, refused (exit 10)")
    assert (tmp_path / "r.txt").read_text() == plain.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.yaml", "old.yaml", "r.json", "r.md", "r.txt"]


@pytest.mark.parametrize("format_", ["text", "json", "markdown", "github"])
def test_the_format_never_changes_the_exit_code(run: Run, pair: tuple[str, str], format_: str) -> None:
    assert run("check", *pair, "-o", format_).code == 10
    assert run("check", pair[0], pair[0], "-o", format_).code == 0


def test_a_report_to_a_device_leaves_the_device_alone(run: Run, pair: tuple[str, str]) -> None:
    assert run("check", *pair, "-o", "json=/dev/null").code == 10
    assert Path("/dev/null").is_char_device()


def test_a_link_keeps_pointing_at_the_report(run: Run, pair: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("record.json")
    run("check", *pair, "-o", "json=link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "record.json").read_bytes())["predicate"]["verdict"] == "new-namespace"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["old.yaml"], "nothing to compare it with"),
        (["--first", "old.yaml", "new.yaml"], "--first takes the new manifest alone"),
        (["old.yaml", "new.yaml", "-o", "xml"], "there is no format 'xml'"),
        (["old.yaml", "new.yaml", "-o", "json="], "the path after '=' is empty"),
        (["old.yaml", "new.yaml", "-o", "json", "-o", "github"], "would both go to standard output"),
        (["old.yaml", "new.yaml", "-o", "json=x", "-o", "text=./x"], "named by two outputs"),
        (["old.yaml", "new.yaml", "--quiet", "-o", "json"], "--quiet prints the verdict alone"),
        (["-", "-"], "one manifest only"),
        (["old.yaml", "new.yaml", "--accept", "reuse"], "there is no verdict 'reuse'"),
        (["old.yaml", "new.yaml", "--declare", "namespace"], "cannot be declared"),
        (["old.yaml", "new.yaml", "--strategy", "blue-green"], "there is no strategy 'blue-green'"),
        (["old.yaml", "new.yaml", "--rules", "strict"], "there is no rule pack 'strict'"),
        (["old.yaml", "new.yaml", "--as-of", "tomorrow"], "is not a date"),
        (["old.yaml", "new.yaml", "--config", "x", "--no-config"], "exclude each other"),
    ],
)
def test_usage_errors(run: Run, pair: tuple[str, str], arguments: list[str], message: str) -> None:
    assert pair == ("old.yaml", "new.yaml")
    ran = run("check", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err.splitlines()[0]
    assert ran.err.startswith("error: ")


def test_annotations_stay_on_standard_output(run: Run, pair: tuple[str, str]) -> None:
    assert "-o text=FILE" in run("check", *pair, "-o", "text", "-o", "github").err


@pytest.mark.parametrize("arguments", [["check"], ["check", "a", "b", "--nope"], ["chekc"], ["record"]])
def test_usage_errors_of_the_command_line_itself(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert "Traceback" not in ran.err


def test_an_output_that_cannot_be_written_is_no_verdict(run: Run, pair: tuple[str, str], tmp_path: Path) -> None:
    ran = run("check", *pair, "-o", "json=nowhere/r.json")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == "error: nowhere/r.json: cannot be written: No such file or directory\n"
    ran = run("check", *pair, "-o", f"json={tmp_path}")
    assert (ran.code, ran.out) == (3, "")
    assert "is a folder" in ran.err


def test_waivers_that_cover_nothing_or_end_soon_are_said(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    names = manifest("old.yaml"), manifest("new.yaml", {"precision.compute": "float16"})
    waiver = (
        "- {{rule: compute-dtype-changed, dimension: precision.compute, old: bfloat16, new: {new},\n"
        "   reason: measured, owner: team-serving, expires: '{expires}'}}\n"
    )
    (tmp_path / "w.yaml").write_text(
        "schema: kvgate/waivers/v1\nwaivers:\n"
        + waiver.format(new="float16", expires="2026-12-01")
        + waiver.format(new="float32", expires="2026-01-01")
    )
    ran = run("check", *names, "--waivers", "w.yaml", "--as-of", "2026-11-29")
    assert ran.code == 0
    assert "warning: the waiver of compute-dtype-changed (owner team-serving) ends 2026-12-01" in ran.err
    assert "expired 2026-01-01" in ran.err
    assert run("check", *names, "--waivers", "w.yaml", "--as-of", "2026-12-02").code == 10


def test_evidence_from_files_and_folders(run: Run, pair: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    assert run("check", *pair, "--evidence", "evidence").code == 3
    evidence = {
        "schema": "kvgate/evidence/v1",
        "kind": "lifecycle-audit",
        "state": "refuted",
        "new": {"sections": {}},
        "reason": "3 hits after invalidation",
    }
    (tmp_path / "evidence" / "audit.json").write_text(json.dumps(evidence))
    for given in ("evidence", "evidence/audit.json"):
        ran = run("check", *pair, "--evidence", given)
        assert (ran.code, ran.out.splitlines()[-1]) == (20, "clear")
        assert "lifecycle-audit: refuted (3 hits after invalidation)" in ran.out


def test_a_dropped_field_is_named_with_what_settles_it(run: Run, manifest: MakeManifest) -> None:
    ran = run("check", manifest("old.yaml"), manifest("new.yaml", {"engine.version": FORGET}))
    assert ran.code == 11
    assert "--set engine.version=VERSION" in ran.out
