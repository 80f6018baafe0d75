"""``kvgate fingerprint --endpoint``: what it prints of a running engine, and what its exit code says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.corpora.engine_server import Engine, serving
from tests.deployments.serving_engine import ZERO, answering, replies
from tests.weights.builders import Tensor, write

from .conftest import Run

NAMES = [f"model.layers.{number}.mlp.up_proj.weight" for number in range(25)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "checkpoint", {name: Tensor("U8", (len(name),), name.encode()) for name in NAMES})


@pytest.fixture
def engine() -> Iterator[Engine]:
    with serving(Engine(answering([]))) as found:
        yield found


def test_an_engine_that_holds_the_checkpoint(run: Run, engine: Engine, folder: Path) -> None:
    given = replies(folder, 2)
    engine.answer = answering(given)
    ran = run("fingerprint", "--endpoint", engine.url, "--compare", "checkpoint")
    assert (ran.code, ran.err) == (0, "")
    first, rank0, rank1, outcome = ran.out.splitlines()
    assert first == "engine: vllm 0.33.0, LlamaForCausalLM, served form"
    assert rank0.startswith("rank 0: blake3:")
    assert rank0.endswith(" (tensor 0 of 2)")
    assert rank1.endswith(" (tensor 1 of 2)")
    assert outcome == "compared with checkpoint: equal"
    digests = run("fingerprint", "--endpoint", engine.url, "-q").out.splitlines()
    assert digests == [line.split()[2] for line in (rank0, rank1)]
    schema = json.loads(run("schema", "served-weights").out)
    for reply in given:
        jsonschema.validate(reply, schema)


def test_an_engine_that_holds_others(run: Run, engine: Engine, folder: Path) -> None:
    given = replies(folder)
    for part in given[0]["parts"][:23]:
        part["content"] = ZERO
    engine.answer = answering(given)
    ran = run("fingerprint", "--endpoint", engine.url, "--compare", "checkpoint")
    assert ran.code == 10
    lines = ran.out.splitlines()
    assert lines[2:4] == ["compared with checkpoint: different", f"  different: {sorted(NAMES)[0]} (rank 0)"]
    assert lines[-1] == "  different: and 3 more"
    assert len(lines) == 24
    assert run("fingerprint", "--endpoint", engine.url, "--compare", "checkpoint", "-q").out == "different\n"


def _beside(given: list[dict[str, Any]]) -> None:
    del given[0]["parts"][0]


def _hidden(given: list[dict[str, Any]]) -> None:
    given[0]["unreadable"] = ["model.layers.0.mlp\x1b[31m"]


@pytest.mark.parametrize(("hide", "named"), [(_beside, sorted(NAMES)[0]), (_hidden, "model.layers.0.mlp\\x1b[31m")])
def test_what_could_not_be_compared_is_not_equal(run: Run, engine: Engine, folder: Path, hide: Any, named: str) -> None:
    given = replies(folder)
    hide(given)
    engine.answer = answering(given)
    ran = run("fingerprint", "--endpoint", engine.url, "--compare", "checkpoint")
    assert ran.code == 11
    assert "compared with checkpoint: undecided\n" in ran.out
    assert f"  unknown: {named}\n" in ran.out


def test_a_rank_without_a_digest_is_no_answer(run: Run, engine: Engine, folder: Path) -> None:
    given = replies(folder)
    _hidden(given)
    engine.answer = answering(given)
    ran = run("fingerprint", "--endpoint", engine.url)
    assert ran.code == 11
    said = "rank 0: unreadable: the engine keeps the weights of 1 layers where nobody can read them"
    assert said in ran.out
    assert (run("fingerprint", "--endpoint", engine.url, "-q").out) == "unreadable\n"
    found = json.loads(run("fingerprint", "--endpoint", engine.url, "-o", "json").out)
    assert (found["ranks"][0]["digest"], "compared" in found) == (None, False)


def test_as_json(run: Run, engine: Engine, folder: Path) -> None:
    given = replies(folder)
    given[0]["parts"][0]["content"] = ZERO
    engine.answer = answering(given)
    ran = run("fingerprint", "--endpoint", engine.url, "--compare", "checkpoint", "-o", "json")
    found = json.loads(ran.out)
    assert (ran.code, found["form"], found["engine_version"]) == (10, "served", "0.33.0")
    assert found["ranks"][0]["tensor_parallel"] == {"rank": 0, "size": 1}
    assert found["compared"] == {
        "with": "checkpoint",
        "state": "different",
        "different": [{"rank": 0, "tensor": sorted(NAMES)[0]}],
        "unknown": [],
        "own": ["model.layers.0.self_attn.attn._k_scale"],
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "give a folder or a server"),
        (["checkpoint", "--endpoint", "http://127.0.0.1:1"], 2, "an engine says itself what it holds"),
        (["--endpoint", "http://127.0.0.1:1", "-o", "map=x.jsonl"], 2, "an engine says itself what it holds"),
        (["--endpoint", "http://127.0.0.1:1", "--api-key-env", "KVGATE_NO_SUCH"], 2, "holds no key"),
        (["--endpoint", "ftp://x"], 2, "not a URL of a server"),
        (["--endpoint", "http://u:p@h"], 2, "holds credentials"),
        (["--endpoint", "http://127.0.0.1:1", "--compare", "nowhere"], 3, "nowhere: "),
    ],
)
def test_a_wrong_call_is_one_line(run: Run, folder: Path, arguments: list[str], code: int, said: str) -> None:  # noqa: ARG001
    ran = run("fingerprint", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_checkpoint_that_cannot_be_read_asks_nobody(run: Run, engine: Engine) -> None:
    assert run("fingerprint", "--endpoint", engine.url, "--compare", "nowhere").code == 3
    assert engine.requests == []


def test_a_map_or_a_release_tells_of_whole_tensors(run: Run, engine: Engine, folder: Path, tmp_path: Path) -> None:
    run("fingerprint", "checkpoint", "-o", "map=m.jsonl")
    given = replies(folder)
    engine.answer = answering(given)
    assert run("fingerprint", "--endpoint", engine.url, "--compare", "m.jsonl").code == 0
    part = given[0]["parts"][0]
    size = part["shape"][0]
    part.update(shape=[size], stretch={"dimension": 0, "begin": 0, "end": size, "of": size}, content=ZERO)
    ran = run("fingerprint", "--endpoint", engine.url, "--compare", "m.jsonl")
    assert (ran.code, f"  unknown: {part['name']}\n" in ran.out) == (11, True), "its bytes are not at hand"
    assert run("fingerprint", "--endpoint", engine.url, "--compare", "checkpoint").code == 10
    (tmp_path / "release").mkdir()
    ran = run("fingerprint", "--endpoint", engine.url, "--compare", "release")
    assert (ran.code, "a captured release is expected" in ran.err) == (3, True)
