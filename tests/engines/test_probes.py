"""A real vLLM that comes to serve stale KV: the bypass diff, the probe of its boundary and the gate in front of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.endpoints.client import Client
from tests.cli.conftest import Ran, in_process

from .test_stores import IMAGE, VOCABULARY, transfer, write_model
from .test_vllm_weights import UNPACKED
from .vllm_server import vllm

SETS = ("--set=engine.accelerator=CPU", "--set=cache.tenancy=null", "--set=inputs=null")
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
    (tmp_path / "kv").mkdir()
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
        assert ran.code == 0, ran.out + ran.err
        yield found


def test_a_store_that_outlives_its_weights_is_implicated_and_named(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, since the server takes half a minute to come up."""
    evidence = ("--manifest", "rel", "-o")
    code, healthy = server.bypass(*evidence, "healthy.json")
    assert (code, healthy["verdict"]) == (0, "cache not implicated"), healthy
    assert healthy["counts"] == {"match": 3}
    assert [one["cachedTokens"] for one in healthy["requests"]][:2] == [96, 128]
    assert {one["cachedTokensBypassed"] for one in healthy["requests"]} == {0}

    # The example connector's names hold no salt: it is no way round it, and no boundary in it.
    code, salted = server.bypass("--method", "cache-salt")
    assert (code, salted["counts"]) == (11, {"not bypassed": 3}), salted
    probed = server.run("canary", "probe", "--endpoint", server.url, "--words", "30", "--tries", "1", "-o", "json")
    assert (probed.code, json.loads(probed.out)["byTokens"]) == (10, "leaks")

    verified = server.run("record", "verify", "record.json", "--endpoint", server.url, "-o", "json")
    items = {item["name"]: item for item in json.loads(verified.out)["items"]}
    assert (verified.code, json.loads(verified.out)["state"]) == (0, "ready"), items
    assert "renderings of diagnostic@" in items["tokens"]["why"]

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
    swapped = server.run("record", "verify", "record.json", "--endpoint", server.url, "-o", "json")
    different = [item["name"] for item in json.loads(swapped.out)["items"] if item["state"] == "differs"]
    assert (swapped.code, different) == (10, ["weights"])

    for name, code in (("healthy", 0), ("stale", 10)):
        report = in_process("check", "rel", "rel", "--evidence", f"{name}.json", "--no-config")
        assert (report.code, "refuted-bypass-diff" in report.out) == (code, code == 10), report.out
