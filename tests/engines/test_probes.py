"""A real vLLM that comes to serve stale KV: the bypass diff, the probe of its boundary and the gate in front of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.corpora.endpoints.client import Client
from tests.cli.conftest import Ran, in_process

from .fronts import Deployed, fronts
from .test_stores import IMAGE, VOCABULARY, transfer, write_model
from .test_vllm_weights import UNPACKED
from .vllm_server import vllm

SETS = ("--set=engine.accelerator=CPU", "--set=cache.tenancy=null", "--set=inputs=null")
STORES = ("kv-a", "kv-b", "kv-c")
REQUESTS: tuple[dict[str, Any], ...] = (
    {"prompt": [(7 * number + 3) % VOCABULARY for number in range(100)], "max_tokens": 6},
    {"custom_id": "b", "prompt": [(11 * number + 3) % VOCABULARY for number in range(140)], "max_tokens": 6},
    {"messages": [{"role": "user", "content": "what is the refund policy of the store? " * 5}], "max_tokens": 6},
)


@dataclass(frozen=True)
class Server:
    """A vLLM with a store that outlives what it loads.

    Attributes:
        url: where it answers.
        other: the weights that it is to load in place of its own.
        work: where the release ``rel`` was captured, with the record of its check, and the requests.
    """

    url: str
    other: Path
    work: Path

    def load_other_weights(self) -> None:
        """What a restart with other weights under the same path comes to, in a fraction of the time."""
        with Client(self.url) as client:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(self.other)}}
            assert client.post("/collective_rpc", body).ok
            client.post("/reset_prefix_cache", {})  # the engine's own cache; the store is left as it is

    def bypass(self, *options: str) -> tuple[int, dict[str, Any]]:
        ran = self.run("bypass", "--endpoint", self.url, "--requests", "requests.jsonl", "-o", "json", *options)
        return ran.code, json.loads(ran.out)

    def run(self, *arguments: str) -> Ran:
        return in_process(*arguments, "-q") if arguments[0] in ("capture", "check") else in_process(*arguments)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    served, other = tmp_path / "served", tmp_path / "other"
    for seed, folder in enumerate((served, other)):
        write_model(folder, seed)
    store = transfer("ExampleConnector", {"shared_storage_path": str(tmp_path / "kv")})
    for name in STORES:
        (tmp_path / name).mkdir()
    (tmp_path / "kv").symlink_to(tmp_path / STORES[0])
    flags = ("--max-model-len", "256", "--no-skip-tokenizer-init", "--enable-prompt-tokens-details")
    (tmp_path / "requests.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in REQUESTS))
    with vllm(served, UNPACKED, 1, tmp_path / "log", *flags, "--kv-transfer-config", json.dumps(store)) as url:
        found = Server(url, other, tmp_path)
        line = f"docker run {IMAGE} --model {served} --dtype bfloat16 --max-model-len 256 --block-size 32"
        (tmp_path / "serve.sh").write_text(
            f"{line} --attention-backend CPU_ATTN --kv-transfer-config '{json.dumps(store)}'\n"
        )
        ran = found.run("corpus", "snapshot", "--endpoint", url, "-o", "seen.jsonl")
        assert ran.code == 0, ran.err
        told = ("capture", str(served), "--from", "serve.sh", "--renderer", "seen.jsonl", *SETS, "-o", "rel")
        ran = found.run(*told, "--no-config")
        assert ran.code == 0, ran.err
        ran = found.run("check", "rel", "rel", "-o", "json=record.json", "--accept", "new-namespace", "--no-config")
        assert ran.code == 0, ran.err
        yield found


def test_a_store_that_outlives_its_weights_is_implicated_and_named(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, since the server takes half a minute to come up."""
    evidence = ("--manifest", "rel", "-o")
    code, first = server.bypass()
    assert (code, first["verdict"], first["counts"]) == (11, "cannot tell", {"match": 3}), first
    code, healthy = server.bypass(*evidence, "healthy.json")
    assert (code, healthy["verdict"]) == (0, "cache not implicated"), healthy
    assert healthy["counts"] == {"match": 3}
    assert [one["cachedTokens"] for one in healthy["requests"]][:2] == [96, 128]
    assert {one["cachedTokensBypassed"] for one in healthy["requests"]} == {0}

    # The example connector's names hold no salt: it is no way round it, and no boundary in it.
    code, salted = server.bypass("--method", "cache-salt")
    assert (code, salted["counts"]) == (11, {"not bypassed": 3}), salted
    told = ("--words", "30", "--tries", "1", "--settle", "0")
    probed = server.run("canary", "probe", "--endpoint", server.url, *told, "-o", "json")
    assert (probed.code, json.loads(probed.out)["byTokens"]) == (10, "leaks")

    verify = ("record", "verify", "record.json", "--endpoint", server.url, "-o", "json")
    verified = server.run(*verify, "--unasked", "untold")
    items = {item["name"]: item for item in json.loads(verified.out)["items"]}
    assert (verified.code, json.loads(verified.out)["state"]) == (0, "ready"), items
    assert "renderings of diagnostic@" in items["tokens"]["why"]
    assert [name for name, item in items.items() if item["state"] != "same"] == ["untold"]

    (server.work / "system.txt").write_text("You answer questions about orders and refunds. " * 4)
    monkeypatch.setenv("CANARY_SECRET", "a secret of some length")
    mint = ("canary", "mint", "--secret-env", "CANARY_SECRET", "--tenant", "a", "--tenant", "b", "-o", "canaries.jsonl")
    minted = in_process(*mint, "--endpoint", server.url, "--block-size", "32", "--system", "system.txt")
    assert minted.code == 0, minted.err
    places = [json.loads(line)["position"] for line in (server.work / "canaries.jsonl").read_text().splitlines()]
    assert all(place["cached"] and place["blocks"][1] < place["cached_blocks"] for place in places)
    assert "are cached (blocks of 512)" in in_process(*mint, "--endpoint", server.url, "--block-size", "512").err

    server.load_other_weights()
    code, stale = server.bypass(*evidence, "stale.json")
    assert (code, stale["verdict"], stale["counts"]) == (10, "cache implicated", {"differs": 3})
    assert all(one["cachedTokens"] and not one["cachedTokensBypassed"] for one in stale["requests"])
    swapped = server.run(*verify)
    different = [item["name"] for item in json.loads(swapped.out)["items"] if item["state"] == "differs"]
    assert (swapped.code, different) == (10, ["weights"])

    for name, code in (("healthy", 0), ("stale", 10)):
        report = in_process("check", "rel", "rel", "--evidence", f"{name}.json", "--no-config")
        assert (report.code, "refuted-bypass-diff" in report.out) == (code, code == 10), report.out

    old_entries_are_read_where_the_store_was_not_moved(server)


def old_entries_are_read_where_the_store_was_not_moved(server: Server) -> None:
    """Old, new and a control on servers that run already: each with weights and a store, on the one engine."""
    ran = server.run("capture", str(server.other), "-o", "other", "--no-config")
    assert ran.code == 0, ran.err
    captured = yaml.safe_load((server.work / "rel" / "manifest.yaml").read_text())
    weights = yaml.safe_load((server.work / "other" / "manifest.yaml").read_text())["weights"]
    weights["checkpoint"]["map"] = None
    sides: tuple[tuple[str, str, dict[str, Any]], ...]
    sides = (("old", "/kv-b", {}), ("new", "/kv-c", weights), ("stale", "/kv-b", weights))
    for name, location, held in sides:
        side = {**captured, "cache": {**captured["cache"], "location": location}}
        side["weights"] = {**captured["weights"], **held}
        (server.work / "rel" / f"{name}.yaml").write_text(yaml.safe_dump(side))
    mine, moved = (server.work / name for name in STORES[1:])
    old, control = Deployed(server.work / "served", mine), Deployed(server.other, mine)
    for new, place, code, state in (("new", moved, 0, "proved"), ("stale", mine, 10, "refuted")):
        with fronts(server.url, server.work / "kv", [old, Deployed(server.other, place), control]) as urls:
            named = [f"--{side}-endpoint={url}" for side, url in zip(("old", "new", "control"), urls, strict=True)]
            asked = ("rehearse", "rel/old.yaml", f"rel/{new}.yaml", "--backend", "endpoint", *named, "--evaluate", "1")
            ran = server.run(*asked, "--settle", "0", "-o", f"{new}-rehearsed.json")
        evidence = json.loads((server.work / f"{new}-rehearsed.json").read_text())
        assert (ran.code, evidence["state"]) == (code, state), ran.err
        figures = evidence["figures"]
        assert figures["control"]["cached_tokens"] > 0 < figures["control"]["wrong"]
        assert bool(figures["isolation"]["cached_tokens"]) is (state == "refuted")
        assert [one["id"] for one in figures["mistakes"]] == (["namespace-not-rolled"] if code else [])
        assert (figures["procedure"], figures["model"]) == ("running servers", "real")
