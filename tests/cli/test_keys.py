"""``kvgate keys``: names taken apart and foretold, and nobody's salt in the output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rules.clean import FORGET

from .conftest import MakeManifest, Run

HASH = "5" * 64
DERIVED = f"kvg1-{'a' * 32}"
SALTED = f"acme/support-8b@02010201@0@{HASH}@tenant-7"
NAMES = [f"acme/support-8b@02010201@0@{HASH}", SALTED, "acme/support-8b@2@1@-4cfc@half@ns%tenant-8kv_bytes"]


def test_what_a_name_says_is_printed(run: Run) -> None:
    ran = run("keys", "parse", *NAMES, "--show-keys")
    assert ran.code == 0
    for words in ("model: acme/support-8b", "namespace: none", "namespace: tenant-7", "worker: 1", f"hash: {HASH}"):
        assert words in ran.out
    assert "not in the name: adapters" in ran.out


def test_the_same_as_data(run: Run) -> None:
    ran = run("keys", "parse", SALTED, "-o", "json", "--show-keys")
    (row,) = json.loads(ran.out)
    assert row["name"] == SALTED
    (reading,) = row["readings"]
    assert (reading["connector"], reading["model"], reading["namespace"]) == (
        "lmcache-mp",
        "acme/support-8b",
        "tenant-7",
    )
    assert (reading["hash"], reading["fields"]["world_size"]) == (HASH, 2)
    assert "weights.checkpoint" in reading["unsaid"]


@pytest.mark.parametrize("output", ["text", "json"])
def test_salts_and_tags_are_left_out_unless_asked_for(run: Run, output: str) -> None:
    file = "acme-SEP-8b@2@1@4cfc@half@ns%tenant-9/x.data".replace("/", "-SEP-")
    ran = run("keys", "parse", *NAMES, NAMES[1], file, "-o", output)
    assert ran.code == 0
    assert "tenant" not in ran.out + ran.err
    assert {f"(redacted {number})" in ran.out for number in (1, 2, 3)} == {True}
    assert "(redacted 4)" not in ran.out  # the same salt, the same number


def test_an_id_that_kvgate_derived_is_nobodys_secret(run: Run) -> None:
    names = [f"acme@02010201@0@{HASH}@{DERIVED}", f"acme@02010201@0@{HASH}@{DERIVED}.tenant-7"]
    ran = run("keys", "parse", *names)
    assert f"namespace: {DERIVED}\n" in ran.out
    assert f"namespace: {DERIVED} (redacted 1)" in ran.out
    assert "tenant" not in ran.out


def test_a_name_of_no_known_scheme_is_said_to_be_one(run: Run) -> None:
    ran = run("keys", "parse", NAMES[0], "something\x1b[2Jelse")
    assert ran.code == 11
    assert "of no known scheme: something\\x1b[2Jelse" in ran.out
    data = json.loads(run("keys", "parse", "else", "-o", "json").out)
    assert data == [{"name": "else", "readings": []}]


def test_names_come_from_standard_input_too(run: Run) -> None:
    ran = run("keys", "parse", "-", "-o", "json", stdin="\n".join(NAMES).encode() + b"\n\n\xff\n")
    assert ran.code == 11
    assert [len(row["readings"]) for row in json.loads(ran.out)] == [1, 1, 1, 0]


def test_only_one_connectors_names(run: Run) -> None:
    assert run("keys", "parse", NAMES[0], "--connector", "lmcache").code == 11
    ran = run("keys", "parse", NAMES[0], "--connector", "lmcache-pm")
    assert (ran.code, "lmcache-mp" in ran.err) == (2, True)


def prompt(tokens: object) -> str:
    Path("prompt.json").write_text(json.dumps(tokens))
    return "prompt.json"


def test_names_are_foretold_one_a_line(run: Run, manifest: MakeManifest) -> None:
    given = manifest("new.yaml")
    ran = run("keys", "predict", given, "--tokens", prompt(list(range(600))), "--show-keys")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("acme/support-8b@02") and line.endswith("@prod-a") for line in lines)
    assert "assumed: every request carries cache.namespace as its cache_salt" in ran.err
    told = json.loads(
        run(
            *("keys", "predict", given, "--tokens", prompt({"token_ids": list(range(600))}), "-o", "json"),
            "--show-keys",
        ).out
    )
    assert (told["names"], told["connector"], told["tokens"], told["unknown"]) == (lines, "lmcache-mp", 600, [])


def test_a_salt_that_is_given_is_not_shown_unless_asked_for(run: Run, manifest: MakeManifest) -> None:
    given = [manifest("new.yaml"), "--tokens", prompt(list(range(300))), "--salt", "tenant-7"]
    ran = run("keys", "predict", *given)
    assert (ran.code, "tenant-7" in ran.out + ran.err, "@(redacted 1)" in ran.out) == (0, False, True)
    assert "(--show-keys shows them)" in ran.err
    ran = run("keys", "predict", *given, "--show-keys", "-q")
    assert ("@tenant-7" in ran.out, ran.err) == (True, "")


@pytest.mark.parametrize("salt", ["a", "5", "02", "acme", "support-8b", "acme/support-8b", "0", "x", "-", "@"])
def test_only_the_salt_is_left_out_whatever_else_reads_like_it(run: Run, salt: str) -> None:
    name = f"acme/support-8b@02010201@0@{HASH}"
    for connector, form in (("lmcache-mp", f"{name}@{salt}"), ("lmcache", f"acme/8b@2@1@4cfc@half@t%{salt}")):
        if salt == "@" or ("/" in salt and connector == "lmcache-mp"):
            continue
        ran = run("keys", "parse", form, "--connector", connector, "-o", "json")
        shown = f"{name}@(redacted 1)" if connector == "lmcache-mp" else "acme/8b@2@1@4cfc@half@(redacted 1)"
        assert json.loads(ran.out)[0]["name"] == shown


def test_a_salt_that_enters_no_name_is_said_to_enter_none(run: Run, manifest: MakeManifest) -> None:
    changes = {"cache.connector": "vllm-example", "cache.version": None, "cache.namespace": None}
    given = [manifest("new.yaml", changes), "--tokens", prompt(list(range(300))), "--salt", "a"]
    ran = run("keys", "predict", *given)
    assert (ran.code, "redacted" in ran.out) == (0, False)
    assert "the salt is in none of these names" in ran.err


def test_the_manifests_own_namespace_is_not_shown_either(run: Run, manifest: MakeManifest) -> None:
    given = [manifest("new.yaml", {"cache.namespace": "a"}), "--tokens", prompt(list(range(300)))]
    for form in ("text", "json"):
        ran = run("keys", "predict", *given, "-o", form)
        assert "acme/support-8b@" in ran.out  # no letter of it is replaced
        assert "@(redacted 1)" in ran.out


def test_what_is_not_known_is_said_and_nothing_is_foretold(run: Run, manifest: MakeManifest) -> None:
    given = manifest("new.yaml", {"cache.chunk_size": FORGET, "parallelism.tensor": FORGET})
    ran = run("keys", "predict", given, "--tokens", prompt([1, 2]))
    assert (ran.code, ran.out) == (11, "")
    assert "not known: cache.chunk_size: not known: capture with --set cache.chunk_size=VALUE" in ran.err
    assert "not known: parallelism: " in ran.err
    ran = run("keys", "predict", given, "--tokens", prompt([1, 2]), "-o", "json")
    assert (ran.code, json.loads(ran.out)["names"]) == (11, None)


def test_a_version_that_is_not_known_is_asked_for(run: Run, manifest: MakeManifest) -> None:
    given = manifest("new.yaml", {"cache.version": FORGET})
    ran = run("keys", "predict", given, "--tokens", prompt([1, 2]))
    assert (ran.code, "capture with --set cache.version=VALUE" in ran.err) == (11, True)


def test_a_connector_whose_names_are_not_known(run: Run, manifest: MakeManifest) -> None:
    given = manifest("new.yaml", {"cache.connector": "flexkv"})
    ran = run("keys", "predict", given, "--tokens", prompt([1]))
    assert (ran.code, ran.out, "flexkv" in ran.err) == (11, "", True)


def test_a_prompt_of_less_than_one_chunk(run: Run, manifest: MakeManifest) -> None:
    ran = run("keys", "predict", manifest("new.yaml"), "--tokens", prompt([1, 2]))
    assert (ran.code, ran.out, "shorter than one chunk" in ran.err) == (0, "", True)


@pytest.mark.parametrize(
    "text", ["{", "[1, -1]", "[true]", "[1.5]", '"a"', '{"ids": []}', "[4294967296]", "[NaN]", "\xff"]
)
def test_what_is_no_list_of_token_ids(run: Run, manifest: MakeManifest, text: str) -> None:
    Path("prompt.json").write_bytes(text.encode("latin-1"))
    ran = run("keys", "predict", manifest("new.yaml"), "--tokens", "prompt.json")
    assert (ran.code, ran.out, "prompt.json" in ran.err) == (3, "", True)


@pytest.mark.parametrize("options", [[], ["--tokens", "prompt.json", "--snapshot", "a"]])
def test_one_prompt_is_to_be_given(run: Run, manifest: MakeManifest, options: list[str]) -> None:
    ran = run("keys", "predict", manifest("new.yaml"), *options)
    assert (ran.code, "--snapshot" in ran.err) == (2, True)


def test_a_manifest_without_a_snapshot(run: Run, manifest: MakeManifest) -> None:
    ran = run("keys", "predict", manifest("new.yaml"), "--snapshot", "greeting")
    assert (ran.code, "names no snapshot" in ran.err) == (3, True)
