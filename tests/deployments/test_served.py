"""Asking a running engine what it holds: over real HTTP, and what becomes of it in a manifest."""

from __future__ import annotations

import copy
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.endpoints import client as client_module
from kvgate.deployments.capture import Captured, capture
from kvgate.deployments.served import ask_served, served_section
from kvgate.deployments.write import write
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.manifest import Manifest, parse_manifest
from kvgate.weights.served.report import read_ranks
from kvgate.weights.tensor_map import read_map
from tests.corpora.engine_server import Engine, dribbling, serving, sglang

from .conftest import MakeCheckpoint
from .serving_engine import ZERO, answering, replies
from .test_capture import launched

pytestmark = pytest.mark.usefixtures("quick")

Serve = Callable[..., str]
EXTENSION = "--worker-extension-cls kvgate.weights.served.vllm_worker.FingerprintExtension"
MISSING = {
    "error": {
        "message": "Call to collective_rpc method failed: Worker failed with error ''CPUWorker' object has no "
        "attribute 'kvgate_weights'', please check the stack trace above for the root cause",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
}
ASLEEP = {"error": {"message": "Worker failed with error 'CUDA error'", "code": 500}}


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda answer, **how: stack.enter_context(serving(Engine(answer, **how))).url


def test_every_rank_is_asked_once(make_checkpoint: MakeCheckpoint) -> None:
    engine = Engine(answering(replies(make_checkpoint(), 2)[::-1]))
    with serving(engine):
        ranks = ask_served(f"{engine.url}/v1", "sk-secret")
    assert [rank.world.rank for rank in ranks] == [0, 1]
    assert engine.requests[-1] == ("POST", "/collective_rpc", {"method": "kvgate_weights"})
    assert [path for _, path, _ in engine.requests].count("/collective_rpc") == 1
    assert all(headers["Authorization"] == "Bearer sk-secret" for headers in engine.headers)


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"detail": "Not Found"}, 404, r"development mode is off \(start vLLM with VLLM_SERVER_DEV_MODE=1"),
        (MISSING, 500, rf"do not have kvgate's extension \(.*{EXTENSION}; kvgate must be installed where"),
        (ASLEEP, 500, r"answers with HTTP 500: Worker failed with error 'CUDA error'"),
        ({}, 401, r"refuses to answer \(HTTP 401\) \(name the variable of a key: --api-key-env\)"),
        ({}, 200, "answers with what is no report"),
        ({"results": {}}, 200, "answers with what is no report"),
        (b"<html>", 200, "answers with what is no report"),
        ([], 200, "every rank must report once; reported: none"),
        ([None], 200, r"not a kvgate/served-weights/v1 document: : Input should be"),
        (["None"], 200, "not a kvgate/served-weights/v1 document"),
        ([{"schema": "kvgate/served-weights/v2"}], 200, "document: schema: Input should be 'kvgate/served-weights/v1'"),
    ],
)
def test_what_is_no_report_is_one_clear_line(serve: Serve, given: Any, status: int, said: str) -> None:
    with pytest.raises(InputError, match=rf"^http://127\.0\.0\.1:\d+/collective_rpc: .*{said}") as caught:
        ask_served(serve(answering(given, status)))
    assert "\n" not in str(caught.value)


def test_a_rank_that_is_missing_is_no_report(serve: Serve, make_checkpoint: MakeCheckpoint) -> None:
    with pytest.raises(InputError, match="every rank must report once; reported: 1"):
        ask_served(serve(answering(replies(make_checkpoint(), 2)[1:])))


def test_what_is_no_engine(serve: Serve) -> None:
    with pytest.raises(InputError, match="neither vLLM nor SGLang answers here"):
        ask_served(serve(lambda *_: (404, {})))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match="cannot be reached"):
            ask_served(f"http://127.0.0.1:{free.getsockname()[1]}")


def _sglang(given: Any, status: int = 200) -> Callable[[str, str, Any], Any]:
    """Answer as SGLang does (srt/entrypoints/http_server.py, 0.5.23, /weights_checker)."""
    other = sglang()
    asked = ("POST", "/weights_checker", {"action": "kvgate_weights", "selector": "target"})
    return lambda *request: (status, given) if request == asked else other(*request)


def _checksums(text: Any) -> dict[str, Any]:
    return {"checksums": {"kvgate_weights": text}, "per_gpu_checksum": "", "parallelism_info": []}


def test_sglang_is_asked_through_its_weight_checker(serve: Serve, make_checkpoint: MakeCheckpoint) -> None:
    given = [{**one, "engine": "sglang"} for one in replies(make_checkpoint(), 2)]
    body = {"success": True, "message": "Success.", "ranks": [_checksums(json.dumps(one)) for one in given]}
    ranks = ask_served(serve(_sglang(body)))
    assert [(rank.engine, rank.world.rank) for rank in ranks] == [("sglang", 0), ("sglang", 1)]


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"detail": "Not Found"}, 404, "has no weight checker"),
        (
            {"success": False, "message": "Unsupported action='kvgate_weights'"},
            400,
            r"does not have kvgate's plugin \(install kvgate where SGLang runs",
        ),
        ({"success": False, "message": "out of memory"}, 400, "answers with HTTP 400: out of memory"),
        ({"success": True, "message": "Success."}, 200, "answers with what is no report: Success"),
        ({"ranks": [7]}, 200, "not a kvgate/served-weights/v1 document"),
        ({"ranks": [_checksums(7)]}, 200, "not a kvgate/served-weights/v1 document"),
        ({"ranks": [_checksums("{")]}, 200, "not JSON|invalid JSON|JSON"),
        ({"ranks": []}, 200, "reported: none"),
    ],
)
def test_what_is_no_report_of_sglangs(serve: Serve, given: Any, status: int, said: str) -> None:
    with pytest.raises(InputError, match=rf"^http://127\.0\.0\.1:\d+/weights_checker.*({said})"):
        ask_served(serve(_sglang(given, status)))


def _slow_to_hash(handler: Any) -> None:
    if handler.path == "/collective_rpc":
        dribbling(handler)
    handler.wfile.write(
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 19\r\n\r\n{"version":"0.9.0"}'
    )


def test_an_engine_that_never_ends_is_left(serve: Serve) -> None:
    with pytest.raises(InputError, match=r"/collective_rpc: did not answer within 0\.3 s"):
        ask_served(serve(lambda *_: (404, {}), raw=_slow_to_hash), patience=0.3)


def test_an_answer_without_end_is_left(
    serve: Serve, make_checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MOST", 1000)
    with pytest.raises(InputError, match="answers with more than 1,000 bytes"):
        ask_served(serve(answering(replies(make_checkpoint()))))


# ---- in a manifest ----


def _written(captured: Captured, folder: Path) -> Manifest:
    path = write(captured, folder)
    return parse_manifest(path.read_bytes(), path.name)


def test_a_manifest_says_what_every_rank_holds(serve: Serve, make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = make_checkpoint()
    captured = capture(str(folder), endpoint=serve(answering(replies(folder, 2))))
    manifest = _written(captured, tmp_path / "out")
    served = manifest.value("weights.served")
    assert manifest.basis("weights.served") == "observed"
    assert list(served) == ["0", "1"]
    for rank in "01":
        entry = served[rank]
        assert entry["checkpoint"] == manifest.value("weights.checkpoint.digest")
        assert (entry["engine"], entry["engine_version"], entry["tensor"]) == (
            *("vllm", "0.33.0"),
            {"rank": int(rank), "size": 2},
        )
        found = read_map(tmp_path / "out" / f"served-{rank}.jsonl", entry["map"]["sha256"])
        assert found.digest == entry["digest"]
        assert entry["own"] not in (None, found.digest)
    assert captured.notes == capture(str(folder)).notes


def test_nobody_who_is_not_asked_answers(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    manifest = _written(capture(str(make_checkpoint())), tmp_path / "out")
    assert manifest.unset("weights.served")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.yaml", "weights.jsonl"]


def test_weights_that_are_others_are_refused(serve: Serve, make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint()
    given = replies(folder, 2)
    given[1]["parts"][3]["content"] = ZERO
    name = given[1]["parts"][3]["name"]
    said = rf"holds other weights than this checkpoint: 1 of its tensors differ \(first: {name}, rank 1\)"
    with pytest.raises(InputError, match=said):
        capture(str(folder), endpoint=serve(answering(given)))


def test_what_is_not_shown_to_be_the_checkpoint_claims_nothing(
    serve: Serve, make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint()
    given = replies(folder)
    del given[0]["parts"][3]
    captured = capture(str(folder), endpoint=serve(answering(given)))
    entry = _written(captured, tmp_path / "out").value("weights.served")["0"]
    assert entry["checkpoint"] is None
    assert "own" not in entry
    assert any("not shown to be the checkpoint (1 tensors" in note for note in captured.notes)


def test_where_no_tensor_of_the_checkpoint_was_read_nothing_is_claimed(make_checkpoint: MakeCheckpoint) -> None:
    """A hub repository whose weights were not fetched."""
    ranks = read_ranks(replies(make_checkpoint()), "the engine")
    (entry,) = served_section(ranks, None, None)
    assert (entry["digest"], entry["checkpoint"], "own" in entry) == (ranks[0].digest(), None, False)


def test_an_engine_that_is_not_equipped_is_asked_for_the_rest(
    serve: Serve, make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    """What weights a production server holds it does not say: no reason to refuse it, and none to keep it quiet."""
    captured = capture(str(make_checkpoint()), endpoint=serve(answering({"detail": "Not Found"}, 404)))
    assert _written(captured, tmp_path / "out").unset("weights.served")
    assert any(
        note.startswith("what weights the running engine holds was not told: this vLLM takes no calls to its workers")
        for note in captured.notes
    )


def test_weights_that_nobody_can_read_are_refused(serve: Serve, make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint()
    given = replies(folder)
    given[0]["unreadable"] = ["model.layers.0.mlp"]
    with pytest.raises(InputError, match="keeps the weights of 1 layers where they cannot be read"):
        capture(str(folder), endpoint=serve(answering(given)))


LINE = "vllm serve m --tensor-parallel-size {ranks}"


@pytest.mark.parametrize(
    ("ranks", "sets", "said"),
    [
        (4, {}, r"parallelism\.tensor is 4 in launch\.sh: --tensor-parallel-size, but 2 at http.*: what its workers"),
        (2, {"engine.version": "0.32.0"}, r"engine\.version is 0\.32\.0 in --set, but 0\.33\.0 at http.*: version"),
        (2, {"engine.name": "sglang"}, r"engine\.name is sglang in --set, but vllm at"),
    ],
)
def test_another_engine_than_the_captured_one_is_refused(
    serve: Serve, make_checkpoint: MakeCheckpoint, ranks: int, sets: dict[str, Any], said: str
) -> None:
    folder = make_checkpoint()
    url = serve(answering(replies(folder, 2)))
    with pytest.raises(InputError, match=said):
        capture(str(folder), launch=launched(LINE.format(ranks=ranks)), sets=sets, endpoint=url)


def test_what_a_builder_adds_to_a_version_is_no_other_version(serve: Serve, make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint()
    url = serve(answering(replies(folder, 2, version="0.33.0+cpu")))
    line = launched(LINE.format(ranks=2))
    assert capture(str(folder), launch=line, sets={"engine.version": "0.33.0"}, endpoint=url).served


@pytest.mark.parametrize("path", ["weights.served", "weights"])
def test_what_is_asked_for_is_not_declared(make_checkpoint: MakeCheckpoint, path: str) -> None:
    with pytest.raises(UsageError, match="is what the endpoint is asked for"):
        capture(str(make_checkpoint()), sets={path: None}, endpoint="http://127.0.0.1:1")


def test_replies_are_not_trusted_to_be_the_ranks_own(serve: Serve, make_checkpoint: MakeCheckpoint) -> None:
    """A rank that reports twice leaves another one out."""
    given = replies(make_checkpoint(), 2)
    with pytest.raises(InputError, match="reported: 0, 0"):
        ask_served(serve(answering([given[0], copy.deepcopy(given[0])])))
