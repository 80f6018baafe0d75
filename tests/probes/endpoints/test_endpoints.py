"""Rehearsals on servers that run already: what they may be asked, in which order, and what is never proved there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.probes.endpoints.backend import EndpointBackend, Urls
from kvgate.probes.rehearsal.evidence import evidence_of
from kvgate.probes.rehearsal.rehearse import Size, rehearse
from kvgate.probes.rehearsal.seen import Rehearsal
from kvgate.rules.manifest import Manifest
from tests.cli.conftest import in_process
from tests.corpora.engine_server import Answer, Engine, serving
from tests.probes.rehearsal.pairs import BASE, MOVED, ROLLED, SALT_DROPPED, TENANTS, WEIGHTS, deployment
from tests.rules.clean import data

SERVED = {"engine.version": "0.33.0"}
BLOCK = 64


@dataclass
class Server:
    """A deployment in front of a store that it shares with others; its own memory in front of that.

    Attributes:
        weights: what its KV is made of, and its answers.
        store: whose weights each prefix was computed with, by the prefix and its salt.
        tells: whether it tells cached tokens.
        salts: whether its keys hold salts.
        bypasses: whether it has a way round its caches.
        asked: the bodies it was sent.
    """

    weights: int
    store: dict[str, int]
    version: str = "0.33.0"
    tells: bool = True
    salts: bool = True
    bypasses: bool = True
    asked: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: Any) -> Answer:
        if method == "GET":
            told = {"/version": {"version": self.version}, "/v1/models": {"data": [{"id": "m", "parent": None}]}}
            return (200, told[path]) if path in told else (404, {})
        self.asked.append(body)
        ids, salt = body["prompt"], body.get("cache_salt") if self.salts else None
        reads = body.get("prompt_logprobs") is None or not self.bypasses
        cached, weights = 0, {self.weights}
        for end in range(BLOCK, len(ids), BLOCK):
            key = json.dumps([ids[:end], salt])
            found = self.memory.get(key, self.store.get(key))
            if reads and found is not None and cached == end - BLOCK:
                cached = end
                weights.add(found)
            kept = found if reads and found is not None else self.weights
            self.memory[key] = kept
            self.store.setdefault(key, kept)
        first = 1000 + sum(weights) * 10 + sum(ids) % 7
        top = {f"token_id:{first}": -0.1, f"token_id:{first + 1}": -3.0}
        steps = body["max_tokens"]
        logs = {
            "tokens": [f"token_id:{first}"] * steps,
            "token_logprobs": [-0.1] * steps,
            "top_logprobs": [top] * steps,
        }
        usage = {"prompt_tokens_details": {"cached_tokens": cached}} if self.tells else {}
        return 200, {"choices": [{"text": "", "logprobs": logs}], "usage": usage}


@contextmanager
def running(*servers: Server) -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(serving(Engine(server.answer))).url for server in servers]


def rehearsed(old: Manifest, new: Manifest, *servers: Server) -> Rehearsal:
    with running(*servers) as urls:
        backend = EndpointBackend(old, new, Urls(*urls))
        return rehearse(old, new, lambda: backend, size=Size(corpus=2, decidable=0, tokens=4))


def states(seen: Rehearsal) -> tuple[str, ...]:
    return seen.state, seen.control.state, seen.isolation.state, seen.equivalence.state


def pair(*changes: dict[str, Any]) -> tuple[Manifest, Manifest]:
    return deployment(SERVED), deployment(SERVED, *changes)


def test_a_namespace_that_was_rolled_is_proved_by_the_salts_alone() -> None:
    old, new = pair(WEIGHTS, ROLLED)
    store: dict[str, int] = {}
    servers = Server(1, store), Server(2, store)
    seen = rehearsed(old, new, *servers)
    assert states(seen) == ("proved", "held", "held", "held"), seen.reason
    assert {one.get("cache_salt") for one in servers[0].asked} == {"prod-a"}
    assert seen.control.cached
    assert not seen.isolation.cached
    assert seen.equivalence.cached
    isolation, blocks = evidence_of(old, new, seen, backend="endpoint", tools={}, command=None)
    assert (isolation.state, blocks.state) == ("proved", "not-run")
    assert "operator's word" in isolation.coverage.missing["store"]


def test_one_that_was_not_is_refuted_and_named() -> None:
    old, new = pair(WEIGHTS)
    store: dict[str, int] = {}
    seen = rehearsed(old, new, Server(1, store), Server(2, store))
    assert states(seen)[:3] == ("refuted", "held", "failed")
    assert [one.id for one in seen.mistakes] == ["namespace-not-rolled"]


def test_a_second_rehearsal_in_the_same_namespace_is_no_alarm() -> None:
    old, new = pair(WEIGHTS, ROLLED)
    store: dict[str, int] = {}
    for _ in range(2):
        assert rehearsed(old, new, Server(1, store), Server(2, store)).state == "proved"


def test_another_place_takes_a_third_server_for_the_control() -> None:
    old, new = pair(WEIGHTS, MOVED)
    mine: dict[str, int] = {}
    seen = rehearsed(old, new, Server(1, mine), Server(2, {}))
    assert states(seen) == ("inconclusive", "open", "held", "held")
    assert "a control takes a third one" in seen.reason
    seen = rehearsed(old, new, Server(1, mine), Server(2, {}), Server(2, mine))
    assert states(seen) == ("proved", "held", "held", "held")


def test_a_place_that_did_not_really_move_is_refuted() -> None:
    old, new = pair(WEIGHTS, MOVED)
    store: dict[str, int] = {}
    seen = rehearsed(old, new, Server(1, store), Server(2, store), Server(2, store))
    assert states(seen)[:3] == ("refuted", "held", "failed")
    assert [one.id for one in seen.mistakes] == ["namespace-not-rolled"]


def test_reuse_is_seen_and_never_proved_without_a_control() -> None:
    old, new = pair()
    store: dict[str, int] = {}
    seen = rehearsed(old, new, Server(1, store), Server(1, store))
    assert (seen.claim, *states(seen)) == ("reuse", "inconclusive", "open", "held", "held")
    assert seen.isolation.cached
    seen = rehearsed(old, new, Server(1, store), Server(2, store))
    assert (seen.claim, *states(seen)) == ("reuse", "refuted", "open", "failed", "failed")


@pytest.mark.parametrize(("new", "state"), [(TENANTS, "inconclusive"), (SALT_DROPPED, "refuted")])
def test_another_tenant_reads_nothing_unless_its_salt_is_dropped(new: dict[str, Any], state: str) -> None:
    store: dict[str, int] = {}
    first, second = deployment(SERVED, TENANTS), deployment(SERVED, new)
    seen = rehearsed(first, second, Server(1, store), Server(1, store))
    assert seen.state == state, seen.reason
    assert seen.tenants.state == ("failed" if new is SALT_DROPPED else "held")


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        ({"version": "0.32.0"}, "engine.version is 0.33.0 in the manifest, and here it is 0.32.0"),
        ({"tells": False}, "does not say how many tokens came from the store"),
        ({"bypasses": False, "salts": False}, "cached tokens although it is asked not to"),
    ],
)
def test_a_server_that_is_another_or_tells_too_little_proves_nothing(servers: dict[str, Any], why: str) -> None:
    old, new = pair(WEIGHTS, ROLLED)
    store: dict[str, int] = {}
    seen = rehearsed(old, new, Server(1, store), Server(2, store, **servers))
    assert seen.state == "not-run"
    assert why in seen.reason


def test_a_server_that_is_gone_is_named() -> None:
    old, new = pair(WEIGHTS, ROLLED)
    with running(Server(1, {})) as (url,):
        pass
    seen = rehearse(old, new, lambda: EndpointBackend(old, new, Urls(url, url)))
    assert seen.state == "not-run"
    assert "cannot be reached" in seen.reason


def test_the_command_asks_both_servers_and_check_takes_what_it_wrote(tmp_path: Path) -> None:
    sides = []
    for name, changes in (("old", {}), ("new", {**WEIGHTS, **ROLLED})):
        sides.append(tmp_path / f"{name}.yaml")
        sides[-1].write_text(yaml.safe_dump(data({**BASE, **SERVED, **changes})))
    pair_ = [str(side) for side in sides]
    store: dict[str, int] = {}
    with running(Server(1, store), Server(2, store)) as (old, new):
        servers = ("--backend", "endpoint", "--old-endpoint", old, "--new-endpoint", new)
        ran = in_process("rehearse", *pair_, *servers, "-o", str(tmp_path / "seen.json"), "--quiet")
    assert (ran.code, ran.out) == (0, "proved\n"), ran.err
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert (seen["figures"]["backend"], seen["figures"]["model"]) == ("endpoint", "real")
    assert old in seen["command"]
    again = in_process("check", *pair_, "--evidence", str(tmp_path / "seen.json"), "--no-config")
    assert again.code in (0, 10), again.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--backend", "endpoint", "--old-endpoint", "http://127.0.0.1:1"), "needs a server for each side"),
        (("--old-endpoint", "http://127.0.0.1:1"), "only --backend endpoint asks servers"),
        (("--new-launch", "serve.sh"), "only --backend vllm starts launch files"),
        (("--backend", "vllm", "--new-launch", "serve.sh"), "or neither"),
        (("--backend", "imaginary"), "is not one of embedded, vllm, endpoint"),
        (
            ("--backend", "endpoint", "--old-endpoint", "http://a:secret@127.0.0.1:1", "--new-endpoint", "http://h:1"),
            "the URL holds credentials",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused_before_anything_is_written(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    side = tmp_path / "side.yaml"
    side.write_text(yaml.safe_dump(data(BASE)))
    ran = in_process("rehearse", str(side), str(side), *options, "-o", str(tmp_path / "seen.json"))
    assert (ran.code, why in ran.err, "secret" in ran.err) == (2, True, False), ran.err
    assert not (tmp_path / "seen.json").exists()


def test_a_launch_file_of_another_deployment_is_refused(tmp_path: Path) -> None:
    side, script = tmp_path / "side.yaml", tmp_path / "serve.sh"
    side.write_text(yaml.safe_dump(data(BASE)))
    script.write_text("vllm serve acme/support-8b --block-size 64\n")
    both = ("--old-launch", str(script), "--new-launch", str(script))
    ran = in_process("rehearse", str(side), str(side), "--backend", "vllm", *both, "-q")
    assert ran.code == 3, ran.err
    assert "is 64 here, and 16 in" in ran.err
