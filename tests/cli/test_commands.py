"""The commands that show: rules, connectors, namespaces, schemas, records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kvgate.rules.catalogue import dimensions
from kvgate.rules.pack import shipped_pack
from tests.cli.conftest import MakeManifest, Run
from tests.rules.clean import FORGET, data


def test_version(run: Run) -> None:
    import kvgate

    assert run("--version").out == f"kvgate {kvgate.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        ["capture"],
        ["check"],
        ["explain"],
        ["rules", "list"],
        ["connectors", "list"],
        ["connectors", "show"],
        ["namespace"],
        ["fingerprint"],
        ["schema"],
        ["corpus", "list"],
        ["corpus", "show"],
        ["corpus", "snapshot"],
        ["corpus", "compare"],
        ["record", "show"],
        ["record", "verify"],
    ],
)
def test_every_command_explains_itself(run: Run, command: list[str]) -> None:
    ran = run(*command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: kvgate {' '.join(command)} ")
    assert "--debug" in ran.out


@pytest.mark.parametrize("group", [[], ["corpus"], ["canary"], ["record"], ["keys"], ["stores"]])
def test_no_summary_of_a_command_is_cut(run: Run, group: list[str]) -> None:
    commands = run(*group, "--help").out.partition("Commands:\n")[2].splitlines()
    assert len(commands) >= 1
    assert [line for line in commands if "..." in line] == []
    assert commands[-1].endswith(".")


def test_explain_says_all_that_a_rule_says(run: Run) -> None:
    out = run("explain", "adapter-set-changed").out
    for words in (
        "adapters: added, removed",
        "demands       separate",
        "the connector's key holds it",
        "LMCache/LMCache",
    ):
        assert words in out
    assert "lifecycle-audit" in run("explain", "refuted-lifecycle-audit").out
    assert "exit 30" in run("explain", "fault-mutable-weights").out
    assert "kvgate namespace NEW" in run("explain", "kv-dtype-changed").out
    assert "--declare clear" in run("explain", "tenancy-widened").out
    assert "supersedes" in run("explain", "refuted-isolation").out


def test_every_rule_can_be_explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from kvgate.cli.commands.explain import explain

    monkeypatch.setenv("COLUMNS", "80")
    pack = shipped_pack("default")
    for rule in (*pack.rules, *pack.adverse):
        assert explain(rule.id) == 0
        out = capsys.readouterr().out
        assert out.startswith(rule.id)
        assert "settled by" in out


def test_an_unknown_rule_gets_the_nearest_ones(run: Run) -> None:
    ran = run("explain", "kv-dtype")
    assert (ran.code, ran.out) == (2, "")
    assert "kv-dtype-changed" in ran.err


def test_rules_list_has_every_rule(run: Run) -> None:
    pack = shipped_pack("token-keyed")
    ids = [rule.id for rule in (*pack.rules, *pack.adverse)]
    listed = json.loads(run("rules", "list", "-o", "json", "--rules", "token-keyed").out)
    assert [rule["id"] for rule in (*listed["rules"], *listed["adverse"])] == ids
    assert listed["digest"] == pack.digest
    out = run("rules", "list").out
    assert all(f"\n{name} " in out for name in ids)


def test_namespace_prints_the_settings_and_quietly_the_id(run: Run, manifest: MakeManifest) -> None:
    name = manifest("new.yaml")
    derived = run("namespace", name, "--quiet")
    assert derived.code == 0
    assert derived.out.startswith("kvg1-")
    shown = run("namespace", name).out
    assert f"cache.namespace: {derived.out.strip()}" in shown
    moved = manifest("moved.yaml", {"cache.location": "redis://cache-2:6379/1", "release.name": "other"})
    assert run("namespace", moved, "--quiet").out == derived.out


def test_namespace_lists_what_is_missing_most_useful_first(run: Run, manifest: MakeManifest) -> None:
    name = manifest("new.yaml", {"engine.version": FORGET, "weights": FORGET, "roles": FORGET})
    ran = run("namespace", name)
    assert (ran.code, ran.out) == (11, "")
    order = [line.split()[0] for line in ran.err.splitlines()[1:]]
    assert order[:2] == ["weights", "engine.version"]
    assert order[-2:] == ["roles", "weights.served"]
    quiet = run("namespace", name, "--quiet")
    assert (quiet.code, quiet.out, len(quiet.err.splitlines())) == (11, "", 1)
    assert "weights, engine.version" in quiet.err


def test_namespace_without_a_profile_says_that_nothing_puts_it_in_force(run: Run, manifest: MakeManifest) -> None:
    ran = run("namespace", manifest("new.yaml", {"cache.connector": "home-made"}))
    assert ran.code == 0
    assert "No setting is known that puts it in force" in ran.out


def _schema(run: Run, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("schema", name).out)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["$id"].startswith("urn:kvgate:")
    return found


def test_the_schemas_accept_what_kvgate_reads_and_writes(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    run("check", manifest("old.yaml"), manifest("new.yaml", {"precision.kv_cache": "fp8_e4m3"}), "-o", "json=r.json")
    record = json.loads((tmp_path / "r.json").read_text())
    jsonschema.validate(record, _schema(run, "record"))
    schema = _schema(run, "manifest")
    jsonschema.validate(data(), schema)
    jsonschema.validate(yaml.safe_load((tmp_path / "old.yaml").read_text()), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data(), "modle": {}}, schema)
    evidence = {"schema": "kvgate/evidence/v1", "kind": "inventory", "state": "proved", "new": {"sections": {}}}
    jsonschema.validate(evidence, _schema(run, "evidence"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**evidence, "state": "fine"}, _schema(run, "evidence"))
    jsonschema.validate({"schema": "kvgate/waivers/v1", "waivers": []}, _schema(run, "waivers"))


def test_an_unknown_schema(run: Run) -> None:
    ran = run("schema", "verdict")
    assert ran.code == 2
    assert "manifest, record, evidence, waivers, profile, served-weights" in ran.err


def test_a_record_shows_the_same_report_again(run: Run, manifest: MakeManifest) -> None:
    checked = run("check", manifest("old.yaml"), manifest("new.yaml", {"precision.kv_cache": "fp8_e4m3"}))
    run("check", "old.yaml", "new.yaml", "-o", "json=r.json", "-q")
    shown = run("record", "show", "r.json")
    assert (shown.code, shown.out) == (0, checked.out)
    assert run("record", "show", "r.json", "-o", "markdown").out.startswith("## kvgate: new-namespace")
    assert run("record", "show", "r.json", "-o", "github").out.startswith("::error ")
    assert run("record", "show", "r.json", "-o", "json").code == 2


def test_a_record_that_was_made_up_is_refused_in_one_line(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    run("check", manifest("old.yaml"), manifest("new.yaml", {"precision.kv_cache": "fp8_e4m3"}), "-o", "json=r.json")
    record = json.loads((tmp_path / "r.json").read_text())
    record["predicate"]["findings"] = [{"rule": "x"}]
    (tmp_path / "r.json").write_text(json.dumps(record))
    ran = run("record", "show", "r.json")
    assert (ran.code, ran.out) == (3, "")
    assert "is not a record that this version can lay out" in ran.err


def test_a_record_verifies_until_a_byte_changes(
    run: Run, manifest: MakeManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("check", manifest("old.yaml"), manifest("new.yaml", {"precision.kv_cache": "fp8_e4m3"}), "-o", "json=r.json")
    assert run("record", "verify", "r.json").code == 0
    whole = (tmp_path / "r.json").read_text()
    (tmp_path / "r.json").write_text(whole.replace('"accepted":false', '"accepted":true'))
    ran = run("record", "verify", "r.json")
    assert (ran.code, ran.out) == (3, "")
    assert "predicate.accepted" in ran.err
    (tmp_path / "r.json").write_text(whole)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ran = run("record", "verify", "../r.json")
    assert (ran.code, ran.out) == (3, "")
    assert "from the folder that `kvgate check` ran in" in ran.err
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "old.yaml").open("a") as file:
        file.write("\n")
    ran = run("record", "verify", "r.json")
    assert ran.code == 3
    assert "old.yaml: its bytes are not those that the record was made from" in ran.err


def test_the_catalogue_words_that_reports_split_are_still_there() -> None:
    """A report groups by what one capture settles; the data must go on saying it in these words."""
    assert sum(", or --set " in one.settle and one.settle.startswith("capture") for one in dimensions()) > 10
