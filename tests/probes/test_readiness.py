"""Whether the worker that came up is the one that was approved: every item, asked and not asked."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from kvgate.corpora.conversations.corpus import load_corpus
from kvgate.corpora.endpoints.asking import snapshot_endpoint
from kvgate.corpora.endpoints.client import Client
from kvgate.probes.readiness.items import Item, Readiness
from tests.cli.conftest import MakeManifest, Ran, Run
from tests.corpora.engine_server import RECORDED, Engine, recorded, serving
from tests.deployments.running_server import ROPE, VLLM_LINE, Answers, telling, vllm_answers

APPROVED: dict[str, Any] = {
    "model.id": "/models/support",
    "model.served_name": "support",
    "model.config.rope_parameters": ROPE["rope_parameters"],
    "model.revision": None,
    "engine.name": "vllm",
    "engine.version": "0.33.0",
    "engine.block_size": 16,
    "engine.max_model_len": 512,
    "engine.prefix_hash": {"algorithm": "sha256_cbor", "seed": "0"},
    "precision.compute": "bfloat16",
    "precision.kv_cache": "fp8_e4m3",
    "parallelism": {"tensor": 2, "pipeline": 1, "data": 1, "expert": 1, "decode_context": 1, "prefill_context": 1},
    "adapters": [
        {"name": "billing", "path": "/adapters/billing", "digest": "blake3:" + "e" * 64, "rank": 8, "alpha": 16}
    ],
    "cache.connector": "vllm-offload-fs",
    "cache.namespace": "/kv/support",
    "cache.location": "/kv/support",
}
CORPUS = str(RECORDED / "conversations.jsonl")
OPEN = ("weights", "tokens", "process", "untold", "adapters", "model.config")
UNASKED = tuple(word for name in OPEN for word in ("--unasked", name))


@pytest.fixture
def approved(run: Run, manifest: MakeManifest, tmp_path: Path) -> Callable[..., str]:
    def make(changes: dict[str, Any] | None = None, *options: str) -> str:
        named = manifest("new.yaml", {**APPROVED, **(changes or {})})
        ran = run("check", named, named, "-o", "json=record.json", "--no-config", "-q", *options)
        assert (tmp_path / "record.json").exists(), ran.err
        return "record.json"

    return make


Approved = Callable[..., str]


def up(answers: Answers) -> AbstractContextManager[Engine]:
    return serving(Engine(telling(answers)))


def verified(run: Run, record: str, answers: Answers, *options: str) -> tuple[Ran, dict[str, dict[str, str]]]:
    with up(answers) as engine:
        ran = run("record", "verify", record, "--endpoint", engine.url, "-o", "json", *options)
    data = json.loads(ran.out) if ran.out else {"items": []}
    return ran, {item["name"]: item for item in data["items"]}


def test_a_worker_that_is_what_was_approved(run: Run, approved: Approved) -> None:
    assert VLLM_LINE  # what starts it
    ran, items = verified(run, approved(), vllm_answers(), *UNASKED)
    left = {name: item["state"] for name, item in items.items() if item["state"] != "same"}
    assert left == dict.fromkeys(OPEN, "not asked")
    assert (ran.code, json.loads(ran.out)["state"]) == (0, "ready")
    assert items["cache.namespace"]["found"] == "/kv/support"


def test_what_cannot_be_asked_is_listed_and_never_passes(run: Run, approved: Approved) -> None:
    record = approved()
    ran, _ = verified(run, record, vllm_answers())
    assert (ran.code, json.loads(ran.out)["state"]) == (11, "cannot tell")
    with up(vllm_answers()) as engine:
        text = run("record", "verify", record, "--endpoint", engine.url, *UNASKED).out
    assert "COULD NOT BE ASKED (6)" in text
    assert "accepted without an answer" in text
    answers = vllm_answers()
    del answers["/server_info?config_format=json"]  # a production server
    ran, items = verified(run, record, answers, *UNASKED)
    assert ran.code == 11
    left = {name for name, item in items.items() if item["state"] == "not asked"}
    assert {"parallelism.tensor", "precision.compute", "cache.connector", "cache.namespace"} <= left
    assert "/server_info" in items["cache.connector"]["why"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.id", "/models/other"),
        ("model.served_name", "other"),
        ("model.config.rope_parameters", {**ROPE["rope_parameters"], "factor": 8.0}),
        ("engine.version", "0.32.0"),
        ("engine.block_size", 48),
        ("engine.block_size", 8),
        ("engine.max_model_len", 1024),
        ("engine.prefix_hash", {"algorithm": "sha256", "seed": "0"}),
        ("precision.compute", "float16"),
        ("precision.kv_cache", "bfloat16"),
        ("parallelism", {**APPROVED["parallelism"], "tensor": 4}),
        ("parallelism", {**APPROVED["parallelism"], "pipeline": 2}),
        ("adapters", []),
        ("cache.connector", "vllm-example"),
        ("cache.namespace", "/kv/kvg1-" + "a" * 32),
        ("cache.location", "/kv/kvg1-" + "a" * 32),  # not rolled: it stores where the old one did
        ("cache.location", "redis://cache-1:6379/0"),
    ],
)
def test_every_difference_fails_and_is_named(run: Run, approved: Approved, path: str, value: Any) -> None:
    ran, items = verified(run, approved({path: value}), vllm_answers(), *UNASKED)
    assert (ran.code, json.loads(ran.out)["state"]) == (10, "not ready")
    different = {name for name, item in items.items() if item["state"] == "differs"} - {"record"}
    assert len(different) == 1
    assert different.pop().startswith(path.removesuffix(".rope_parameters"))


@pytest.mark.parametrize("path", ["engine.block_size", "precision.kv_cache", "cache.namespace", "engine.version"])
def test_what_was_not_known_when_it_was_approved_is_not_confirmed(run: Run, approved: Approved, path: str) -> None:
    name = approved()
    data = yaml.safe_load(Path("new.yaml").read_text())
    section, leaf = path.split(".")
    del data[section][leaf]
    Path("new.yaml").write_text(yaml.safe_dump(data))
    run("check", "new.yaml", "new.yaml", "-o", "json=record.json", "--no-config", "-q", "--accept", "new-namespace")
    _, items = verified(run, name, vllm_answers(), *UNASKED)
    assert (items[path]["state"], items[path]["why"]) == ("not asked", "the approved manifest does not know it")


CHECKPOINT = {"model_type": "nobody-knows", "hidden_size": 8, "architectures": ["X"]}


@pytest.mark.parametrize(
    ("laid_over", "own", "state"),
    [
        ({"factor": 4}, {}, "same"),
        ({}, {"factor": 4}, "same"),
        ({}, {}, "differs"),  # an override that was forgotten
        ({"factor": 8}, {}, "differs"),
        ({"factor": 4}, {"hidden_size": 16}, "differs"),  # a file that was edited
        ({"factor": 4}, None, "not asked"),
        ({}, None, "not asked"),
        (None, {"factor": 4}, "not asked"),
    ],
)
def test_the_configuration_is_compared_with_what_is_laid_over_it(
    run: Run,
    approved: Approved,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    laid_over: Any,
    own: dict[str, Any] | None,
    state: str,
) -> None:
    """That nothing is laid over a configuration says nothing of the configuration."""
    answers = vllm_answers()
    if (laid_over, own) != ({"factor": 4}, {}):  # the child process takes a second; once is enough
        fields = "kvgate.deployments.config.effective_config"
        monkeypatch.setattr(fields, lambda raw, over: mock.Mock(config={**raw, **over}))
    if own is not None:
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "config.json").write_text(json.dumps({**CHECKPOINT, **own}))
        answers["/v1/models"]["data"][0]["root"] = str(tmp_path / "checkpoint")
    answers["/server_info?config_format=json"]["vllm_config"]["model_config"]["hf_overrides"] = laid_over
    place = {} if own is None else {"model.id": str(tmp_path / "checkpoint")}
    record = approved({"model.config": {**CHECKPOINT, "factor": 4}, **place})
    assert verified(run, record, answers, *UNASKED)[1]["model.config"]["state"] == state


@pytest.mark.parametrize(("started", "state"), [((1.5,), "same"), ((1.5, 2.5), "not asked"), ((), "not asked")])
def test_one_process_gives_all_the_answers(
    run: Run, approved: Approved, started: tuple[float, ...], state: str
) -> None:
    answers, turns = vllm_answers(), itertools.count()
    text = answers.pop("/metrics")

    def answer(method: str, path: str, body: Any) -> Any:
        if path != "/metrics":
            return telling(answers)(method, path, body)
        line = f"process_start_time_seconds {started[next(turns) % len(started)]}\n" if started else ""
        return 200, text + line

    with serving(Engine(answer)) as engine:
        ran = run("record", "verify", approved(), "--endpoint", engine.url, "-o", "json", *UNASKED)
    item = next(one for one in json.loads(ran.out)["items"] if one["name"] == "process")
    assert item["state"] == state, item
    assert ("several processes" in item["why"]) is (len(started) > 1)


def test_a_kv_type_that_follows_the_compute_type_is_told_by_it(run: Run, approved: Approved) -> None:
    answers = vllm_answers()
    answers["/server_info?config_format=json"]["vllm_config"]["cache_config"]["cache_dtype"] = "auto"
    answers["/metrics"] = answers["/metrics"].replace("fp8_e4m3", "auto")
    record = approved({"precision.kv_cache": "bfloat16"})
    assert verified(run, record, answers, *UNASKED)[1]["precision.kv_cache"]["state"] == "same"
    record = approved({"precision.kv_cache": "float16"})
    assert verified(run, record, answers, *UNASKED)[1]["precision.kv_cache"]["state"] == "differs"
    record = approved({"precision.kv_cache": "bfloat16", "model.quantization": "fp8"})
    assert verified(run, record, answers, *UNASKED)[1]["precision.kv_cache"]["state"] == "not asked"


def test_defaults_of_the_engine(run: Run, approved: Approved) -> None:
    answers = vllm_answers()
    record = approved({"engine.prefix_hash": {"algorithm": None, "seed": "0"}})
    item = verified(run, record, answers, *UNASKED)[1]["engine.prefix_hash.algorithm"]
    assert (item["state"], "sha256_cbor" in item["why"]) == ("not asked", True)
    answers = json.loads(json.dumps(answers).replace("sha256_cbor", "sha256"))
    assert verified(run, record, answers, *UNASKED)[1]["engine.prefix_hash.algorithm"]["state"] == "same"


def test_quietly_only_what_differs_is_said(run: Run, approved: Approved) -> None:
    record = approved({"engine.block_size": 48})
    with up(vllm_answers()) as engine:
        ran = run("record", "verify", record, "--endpoint", f"{engine.url}/", "-q", *UNASKED)
        text = run("record", "verify", record, "--endpoint", engine.url, *UNASKED).out
    assert (ran.code, ran.out, ran.err.count("\n")) == (10, "not ready\n", 1)
    assert "engine.block_size: 48 was approved, 16 is here (/" in ran.err  # the address stands in front
    assert text.count(engine.url) == 1


BF16 = {"precision.kv_cache": "bfloat16", "cache.namespace": "/kv/a", "cache.location": "/kv/a"}
FP8 = {"precision.kv_cache": "fp8_e4m3", "cache.namespace": "/kv/support", "cache.location": "/kv/support"}
OTHERS = {**BF16, "cache.namespace": "/kv/b", "cache.location": "/kv/b"}


def pooled(**pools: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the first pool as those of all, as a capture has them, and what each pool sets."""
    first = next(iter(pools.values()))
    return {**first, "roles": [{"name": name, "set": dict(sets)} for name, sets in pools.items()]}


@pytest.mark.parametrize(
    ("changes", "options", "state", "pool"),
    [
        (pooled(decode=BF16, prefill=FP8), (), "ready", "prefill"),
        (pooled(decode=FP8, prefill=BF16), (), "ready", "decode"),
        (
            {**pooled(decode=BF16, prefill=OTHERS), **FP8},
            (),
            "not ready",
            None,
        ),  # what they have in common is no worker
        (
            pooled(decode={**FP8, "engine.attention_backend": "FLASHINFER"}, prefill=FP8),
            (),
            "ready",
            "decode or prefill",
        ),
        (pooled(decode=BF16, prefill=FP8), ("--pool", "prefill"), "ready", ""),
        (pooled(decode=BF16, prefill=FP8), ("--pool", "decode"), "not ready", ""),
    ],
)
def test_a_worker_is_of_one_of_the_pools(
    run: Run, approved: Approved, changes: dict[str, Any], options: tuple[str, ...], state: str, pool: str | None
) -> None:
    ran, items = verified(run, approved(changes, "--advisory"), vllm_answers(), *UNASKED, *options)
    items.pop("record")  # several of them share keys
    assert ran.out, ran.err
    different = {name for name, item in items.items() if item["state"] == "differs"}
    assert ("ready" if not different else "not ready") == state
    if pool is None:
        assert different >= {"pool", "precision.kv_cache"}
        assert items["pool"]["found"] == "none of them"
    else:
        assert items.get("pool", {"approved": ""})["approved"] == pool


def test_a_right_worker_of_one_pool_is_ready(run: Run, approved: Approved) -> None:
    record = approved(pooled(decode=BF16, prefill=FP8))
    ran, items = verified(run, record, vllm_answers(), *UNASKED)
    assert (ran.code, items["pool"]["state"], items["precision.kv_cache"]["approved"]) == (0, "same", "fp8_e4m3")
    with up(vllm_answers()) as engine:
        call = ("record", "verify", record, "--endpoint", engine.url, *UNASKED)
        assert "pool: prefill (no other fits)" in run(*call).out
        ran = run(*call, "--pool", "decode", "-q")
        assert (ran.code, "precision.kv_cache: bfloat16 was approved" in ran.err) == (10, True)
        ran = run(*call, "--pool", "canary")
        assert (ran.code, "pools: decode or prefill" in ran.err) == (2, True)
        assert run("record", "verify", record, "--pool", "decode").code == 2
        ran = run("record", "verify", approved(), "--endpoint", engine.url, "--pool", "decode")
    assert (ran.code, "has no pools" in ran.err) == (2, True)


def test_quietly_it_is_said_that_no_pool_is_such_a_worker(run: Run, approved: Approved) -> None:
    record = approved({**pooled(decode=BF16, prefill=OTHERS), **FP8})
    with up(vllm_answers()) as engine:
        ran = run("record", "verify", record, "--endpoint", engine.url, "-q", *UNASKED)
    assert (ran.code, ran.out) == (10, "not ready\n")
    assert "pool: decode or prefill was approved, none of them is here" in ran.err
    assert "precision.kv_cache: bfloat16 was approved, fp8_e4m3 is here" in ran.err


def test_a_record_that_accepts_nothing_approves_nothing(run: Run, approved: Approved) -> None:
    record = approved({"cache.tenancy": {"boundary": "tenant", "carried_by": None}}, "--advisory")
    ran, items = verified(run, record, vllm_answers(), *UNASKED)
    assert (ran.code, items["record"]["state"]) == (10, "differs")


def test_another_manifest_is_refused(run: Run, approved: Approved, tmp_path: Path) -> None:
    record = approved()
    (tmp_path / "new.yaml").write_text((tmp_path / "new.yaml").read_text() + "\n")
    ran, _ = verified(run, record, vllm_answers())
    assert (ran.code, "its bytes are others" in ran.err) == (3, True)


def test_usage_and_servers_that_are_none(run: Run, approved: Approved) -> None:
    record = approved()
    ran, _ = verified(run, record, vllm_answers(), "--unasked", "weigths")
    assert (ran.code, "there is no item 'weigths'" in ran.err) == (2, True)
    assert run("record", "verify", record, "--unasked", "weights").code == 2
    with up({}) as engine:
        ran = run("record", "verify", record, "--endpoint", engine.url)
    assert (ran.code, "neither vLLM nor SGLang" in ran.err) == (3, True)
    assert run("record", "verify", record).code == 0


def test_nothing_confirmed_is_not_ready() -> None:
    item = Item("weights", "not asked", "")
    assert Readiness((item,), frozenset({"weights"})).state == "cannot tell"
    assert Readiness((item, Item("tokens", "same", "")), frozenset({"weights"})).state == "ready"
    assert Readiness((item, Item("tokens", "differs", "")), frozenset({"weights", "tokens"})).state == "not ready"


RANKS = [{"rank": rank, "digest": f"blake3:{str(rank) * 64}"} for rank in range(2)]


@pytest.mark.parametrize(
    ("digests", "state"),
    [
        (["0", "1"], "same"),
        (["0", "2"], "differs"),
        (["0"], "differs"),
        (["0", None], "not asked"),  # kept where nobody can read it
    ],
)
def test_what_its_workers_hold_is_compared_rank_by_rank(
    run: Run, approved: Approved, monkeypatch: pytest.MonkeyPatch, digests: list[str | None], state: str
) -> None:
    served = [
        {**one, "engine": "vllm", "engine_version": "0.33.0", "architecture": "X", "tensor": {"rank": 0, "size": 2}}
        | {"pipeline": {"rank": 0, "size": 1}, "checkpoint": None}
        for one in RANKS
    ]
    record = approved({"weights.served": served}, "--accept", "new-namespace")
    ranks = [
        mock.Mock(
            unreadable=() if digit else ("layer",),
            **{"world.rank": rank, "digest.return_value": f"blake3:{(digit or '') * 64}"},
        )
        for rank, digit in enumerate(digests)
    ]
    monkeypatch.setattr("kvgate.deployments.served.ask_served", lambda *_: tuple(ranks))
    ran, items = verified(run, record, vllm_answers(), "--unasked", "tokens")
    assert ran.out, ran.err
    assert items["weights"]["state"] == state


@pytest.mark.parametrize(("held", "pool"), [("0", "decode"), ("1", "prefill or third"), ("2", None)])
def test_what_a_worker_holds_says_which_pool_it_is_of(
    run: Run, approved: Approved, monkeypatch: pytest.MonkeyPatch, held: str, pool: str | None
) -> None:
    sets = [
        {
            "weights.checkpoint.digest": f"blake3:{digit * 64}",
            "weights.checkpoint.kv_digest": f"blake3:{digit * 64}",
            "cache.location": f"/kv/{digit}",
        }
        for digit in "01"
    ]
    calls = []

    def compared_with(manifest: Any, *_: Any) -> Item:
        calls.append(manifest)
        digest = manifest.value("weights.checkpoint.digest")
        return Item("weights", "same" if digest == f"blake3:{held * 64}" else "differs", "its workers")

    monkeypatch.setattr("kvgate.readiness._weights", compared_with)
    changes = pooled(decode=sets[0], prefill=sets[1], third=sets[1])
    answers = vllm_answers()
    unasked = (*UNASKED, "--unasked", "cache.location")
    ran, items = verified(run, approved(changes, "--advisory"), answers, *unasked)
    assert ran.out, ran.err
    assert items["weights"]["state"] == ("differs" if pool is None else "same")
    named = items["pool"]["approved"] if items["pool"]["state"] == "same" else None
    assert named == pool
    assert len(calls) == 2  # once for the two that have the same


@pytest.mark.parametrize(
    ("options", "shift", "refuses", "made", "state"),
    [
        ((CORPUS,), 0, 0, "endpoint", "same"),
        ((CORPUS,), 1, 0, "endpoint", "differs"),
        ((CORPUS,), 0, 1, "endpoint", "differs"),  # another template, that raises
        ((CORPUS,), 1, 0, "here", "not asked"),  # libraries rendered it, and an engine may render in its own way
        ((), 0, 0, "endpoint", "not asked"),
    ],
)
def test_what_it_makes_of_the_corpus_is_compared(
    run: Run,
    approved: Approved,
    tmp_path: Path,
    options: tuple[str, ...],
    shift: int,
    refuses: int,
    made: str,
    state: str,
) -> None:
    _, answer = recorded("vllm-0.32.0.json")
    asked = itertools.count()

    def shifted(method: str, path: str, body: Any) -> Any:
        if path == "/collective_rpc":
            return 404, {"detail": "Not Found"}
        status, data = answer(method, path, body)
        if isinstance(data, dict) and "tokens" in data and next(asked) < refuses:
            return 400, {"error": {"message": "no system messages here"}}
        if isinstance(data, dict) and "tokens" in data:
            data = {**data, "tokens": [token + shift for token in data["tokens"]]}
        return status, data

    with serving(Engine(answer)) as engine, Client(engine.url) as client:
        taken = snapshot_endpoint(client, load_corpus(CORPUS), tmp_path / "tokens.jsonl")
    saved = (tmp_path / "tokens.jsonl").read_text().replace('"made":"endpoint"', f'"made":"{made}"')
    (tmp_path / "tokens.jsonl").write_text(saved)
    named = {
        "file": "tokens.jsonl",
        "sha256": f"sha256:{hashlib.sha256(saved.encode()).hexdigest()}",
        "corpus": taken.header.corpus,
    }
    record = approved({"tokenizer.snapshot": {**named, "renderer": {"vllm": "0.32.0"}}}, "--accept", "new-namespace")
    with serving(Engine(shifted)) as engine:
        corpora = [word for one in options for word in ("--corpus", one)]
        ran = run("record", "verify", record, "--endpoint", engine.url, "-o", "json", *corpora)
    assert ran.out, ran.err
    item = next(one for one in json.loads(ran.out)["items"] if one["name"] == "tokens")
    assert item["state"] == state, item
