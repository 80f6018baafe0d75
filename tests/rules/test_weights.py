"""Weights by what the hub publishes, and as files that nobody looked into."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.rules.decide import Decision
from kvgate.rules.finding import Finding
from kvgate.rules.namespace import derive
from tests.rules.clean import FORGET, clean, digest
from tests.rules.deciding import NAMESPACE, REUSE, decided

SHARD, OTHER, INDEX = (
    "model-00001-of-00001.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
)
FILES = {SHARD: f"sha256:{'1' * 64}", INDEX: f"git-blob:{'2' * 40}", "config.json": f"git-blob:{'3' * 40}"}


def _side(letter: str, files: Any = FILES, **more: Any) -> dict[str, Any]:
    hub = {"repo": "org/m", "commit": letter * 40, **({} if files is None else {"files": files})}
    return {"model.revision": letter * 40, "weights.checkpoint": None, "weights.hub": hub, **more}


def _finding(decision: Decision) -> Finding:
    (finding,) = (finding for finding in decision.findings if finding.change.dimension == "weights")
    return finding


def test_one_commit_counts_only_where_launch_lines_name_it() -> None:
    declared = {"provenance.weights": "declared"}
    assert decided(_side("a", None), _side("a", None)).verdict == REUSE
    for old, new in ((_side("a"), _side("a", **declared)), (_side("a", **declared), _side("a"))):
        decision = decided(old, new)
        assert decision.exit_code == 11
        assert "only declared" in _finding(decision).change.detail


def test_equal_published_digests_of_two_commits_are_equal_weights() -> None:
    readme = {**FILES, "README.md": f"git-blob:{'4' * 40}"}
    assert decided(_side("a"), _side("b", readme)).verdict == REUSE
    assert decided(_side("a", None), _side("b", None)).verdict == NAMESPACE, "by the commits alone they are not"
    declared = {"provenance.weights": "declared"}
    assert decided(_side("a"), _side("b", **declared)).exit_code == 11


@pytest.mark.parametrize("files", [FILES, None])
@pytest.mark.parametrize("names", [("org/m:Q4_K_M", "org/m:Q8_0"), ("org/m", "org/m:Q8_0"), ("/m/a.gguf", "/m/b.gguf")])
def test_one_commit_holds_several_sets_of_weights(names: tuple[str, str], files: Any) -> None:
    old, new = (_side("a", files, **{"model.id": name}) for name in names)
    decision = decided(old, new)
    assert (decision.verdict, _finding(decision).rule) == (NAMESPACE, "weights-changed")
    assert decided(old, old).verdict == REUSE
    moved = decided(_side("a", files), _side("a", files, **{"model.id": "/models/m"}))
    assert [finding.rule for finding in moved.findings] == ["model-name-moved"]


GGUF = {"m-Q4_K_M.gguf": f"sha256:{'5' * 64}"}
BIN = {"pytorch_model.bin": f"sha256:{'5' * 64}"}
NOT_SAFETENSORS: list[tuple[dict[str, str], dict[str, Any]]] = [
    (GGUF, {"model.id": "org/m:Q4_K_M"}),
    (GGUF, {"model.id": "org/m/m-Q4_K_M.gguf"}),
    (BIN, {"engine.args": {"load-format": "pt"}}),
    (GGUF, {"engine.args": {"load-format": "gguf"}}),
]


@pytest.mark.parametrize(("beside", "loads"), NOT_SAFETENSORS)
def test_equal_safetensors_say_nothing_of_what_else_is_loaded(beside: dict[str, str], loads: dict[str, Any]) -> None:
    others = dict.fromkeys(beside, f"sha256:{'6' * 64}")
    old, new = _side("a", FILES | beside, **loads), _side("b", FILES | others, **loads)
    decision = decided(old, new)
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11)
    assert _finding(decision).unverified
    assert decided(old, old).verdict == REUSE, "one commit is one content"
    assert _finding(decided(_side("a"), _side("b", **{"engine.args": FORGET}))).unverified


@pytest.mark.parametrize("named", [None, "auto", "safetensors", "runai_streamer"])
def test_equal_safetensors_are_enough_where_they_are_loaded(named: str | None) -> None:
    old = _side("a", FILES | BIN, **{"engine.args": {} if named is None else {"load-format": named}})
    new = {**old, **_side("b", FILES)}
    assert decided(old, new).verdict == REUSE


def test_one_commit_read_in_two_formats() -> None:
    decision = decided(_side("a"), _side("a", **{"engine.args": {"load-format": "pt"}}))
    assert _finding(decision).unverified


def test_a_pin_is_no_id_of_one_part_of_it() -> None:
    assert derive(clean(_side("a"))).id is not None
    for name in ("org/m:Q4_K_M", "/models/m-Q4_K_M.GGUF"):
        assert derive(clean(_side("a", **{"model.id": name}))).id is None
    assert derive(clean(_side("a", **{"model.id": "s3://bucket/m"}))).id is not None


@pytest.mark.parametrize("letter", ["a", "b"])
def test_they_do_not_stand_for_a_digest_that_one_side_took(letter: str) -> None:
    """Its bytes may have been damaged or replaced after they were fetched: nobody held them against the hub's."""
    with_digest = _side("a")
    del with_digest["weights.checkpoint"]
    for old, new in ((with_digest, _side(letter)), (_side(letter), with_digest)):
        decision = decided(old, new)
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11)
        assert "a digest was taken on one side only" in _finding(decision).change.detail
    assert decided(with_digest, with_digest).verdict == REUSE


@pytest.mark.parametrize(
    "files",
    [
        {**FILES, SHARD: f"sha256:{'9' * 64}"},
        {**FILES, INDEX: f"git-blob:{'9' * 40}"},
        {**FILES, OTHER: f"sha256:{'9' * 64}"},
        {name: value for name, value in FILES.items() if name != SHARD} | {OTHER: FILES[SHARD]},
        {name: value for name, value in FILES.items() if name != INDEX},
    ],
)
def test_other_files_prove_nothing_either_way(files: dict[str, str]) -> None:
    decision = decided(_side("a"), _side("b", files))
    assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11)
    assert _finding(decision).unverified
    assert "only the tensors in them say what that means" in _finding(decision).change.detail


@pytest.mark.parametrize(
    "files",
    [
        {"pytorch_model.bin": f"sha256:{'1' * 64}"},
        {"model.Q4_K_M.gguf": f"sha256:{'1' * 64}"},
        {SHARD: f"git-blob:{'1' * 40}"},
        {"config.json": f"git-blob:{'3' * 40}"},
        {},
    ],
)
def test_what_is_no_sha256_of_safetensors_does_not_count(files: dict[str, str]) -> None:
    assert decided(_side("a", files), _side("b", files)).verdict == NAMESPACE


def test_opaque_files_compare_only_with_opaque_files() -> None:
    def opaque(letter: str) -> dict[str, Any]:
        own = {name: digest(letter) for name in ("digest", "kv_digest", "layout")}
        return {"weights.checkpoint": {**own, "kv_rule": "opaque", "tensors": 2, "bytes": 10, "map": None}}

    assert decided(opaque("1"), opaque("1")).verdict == REUSE
    for old, new in ((opaque("1"), opaque("2")), ({}, opaque("1")), (opaque("1"), {})):
        decision = decided(old, new)
        assert (decision.verdict, decision.exit_code) == (NAMESPACE, 11)
        assert "other files may hold the same ones" in _finding(decision).change.detail
