"""Rehearsals on servers that run already: what they may be asked, in which order, and what is never proved there."""

from __future__ import annotations

import json
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
from tests.probes.endpoints.served import Late, Server, running
from tests.probes.rehearsal.pairs import BASE, MOVED, ROLLED, SALT_DROPPED, TENANTS, WEIGHTS, deployment
from tests.rules.clean import data

SERVED = {"engine.version": "0.33.0"}


def rehearsed(old: Manifest, new: Manifest, *servers: Server, tokens: int = 4) -> Rehearsal:
    with running(*servers) as urls:
        backend = EndpointBackend(old, new, Urls(*urls), settles=0)
        return rehearse(old, new, lambda: backend, size=Size(corpus=2, decidable=0, tokens=tokens))


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
    assert "a control takes a third server" in seen.reason
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


@pytest.mark.parametrize("delay", [0, 2, 4, 8, 12, 16, 24, 32, 1000])
def test_entries_that_are_stored_late_are_no_proof_that_none_are_read(delay: int) -> None:
    """Nothing was moved. Asked in the same instant, the new server finds nothing yet, and a control later does."""
    old, new = pair(WEIGHTS, MOVED)
    store = Late(delay)
    seen = rehearsed(old, new, Server(1, store), Server(2, store), Server(2, store))
    assert seen.state in ("refuted", "inconclusive"), (states(seen), seen.reason)
    if delay in (0, 1000):
        assert seen.state == ("inconclusive" if delay else "refuted"), seen.reason


def test_what_was_measured_on_a_server_is_no_old_entry_in_it() -> None:
    """Nothing keeps it apart here: the names of this connector hold no salt, and so requests carry none."""
    example = {"cache.connector": "vllm-example", "cache.version": None, "cache.namespace": None}
    old, new = deployment(SERVED, example), deployment(SERVED, example, WEIGHTS, MOVED)
    mine: dict[str, int] = {}
    seen = rehearsed(old, new, Server(1, mine), Server(2, {}), Server(2, mine))
    assert states(seen) == ("proved", "held", "held", "held"), seen.reason


@pytest.mark.parametrize(
    ("slight", "noise", "new", "state"),
    [
        (0.2, 0.0, "moved", "proved"),  # a light fine-tune: what the server's own entries give tells it
        (0.2, 0.0, "stale", "refuted"),
        (0.005, 0.0, "moved", "inconclusive"),  # less than a step of the format
        (0.2, 0.08, "moved", "inconclusive"),
        (0.2, 0.2, "moved", "inconclusive"),  # further from itself than any server may be
    ],
)
def test_slight_differences_are_held_against_the_servers_own(slight: float, noise: float, new: str, state: str) -> None:
    first, second = pair(WEIGHTS, MOVED)
    mine: dict[str, int] = {}
    store = mine if new == "stale" else {}
    servers = [Server(2, each, slight=slight, noise=noise) for each in (store, mine)]
    seen = rehearsed(first, second, Server(1, mine, slight=slight, noise=noise), *servers, tokens=40)
    assert seen.state == state, seen.reason


@pytest.mark.parametrize("control", [1, 3])
def test_a_control_that_is_another_deployment_shows_nothing(control: int) -> None:
    """Hits alone would do for a control, and answers that are not those of the new one: the old server gives both."""
    old, new = pair(WEIGHTS, MOVED)
    mine: dict[str, int] = {}
    seen = rehearsed(old, new, Server(1, mine), Server(2, {}), Server(control, mine))
    assert states(seen) == ("inconclusive", "open", "held", "held")
    assert "is not the new deployment" in seen.reason


@pytest.mark.parametrize(
    ("old", "new", "control", "why"),
    [
        ((1.5,), (2.5,), (3.5,), None),
        ((1.5,), (1.5,), (3.5,), "is the old server too"),
        ((1.5,), (2.5,), (1.5,), "is the old server too"),
        ((1.5,), (2.5, 4.5), (3.5,), "several processes answer there"),
    ],
)
def test_each_address_leads_to_one_process_of_its_own(
    old: tuple[float, ...], new: tuple[float, ...], control: tuple[float, ...], why: str | None
) -> None:
    first, second = pair(WEIGHTS, MOVED)
    mine: dict[str, int] = {}
    servers = (Server(1, mine, started=old), Server(2, {}, started=new), Server(2, mine, started=control))
    seen = rehearsed(first, second, *servers)
    assert seen.state == ("proved" if why is None else "not-run"), seen.reason
    assert why is None or why in seen.reason
    assert "replicas" not in seen.missing


def test_one_address_for_both_sides_is_refused() -> None:
    old, new = pair(WEIGHTS, ROLLED)
    with running(Server(1, {})) as (url,):
        seen = rehearse(old, new, lambda: EndpointBackend(old, new, Urls(url, url)))
    assert (seen.state, "is the old server too" in seen.reason) == ("not-run", True), seen.reason


def test_a_server_that_reads_and_says_that_it_does_not_proves_nothing() -> None:
    old, new = pair(WEIGHTS, ROLLED)
    store: dict[str, int] = {}
    # Its keys hold no salt, so the namespace keeps nothing apart.
    seen = rehearsed(old, new, Server(1, store, salts=False), Server(2, store, salts=False, lies=True))
    assert seen.state == "not-run"
    assert "says that nothing came from its cache, and without the cache it answers otherwise" in seen.reason


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
        ran = in_process("rehearse", *pair_, *servers, "-o", str(tmp_path / "seen.json"), "--quiet", "--settle", "0")
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
    (tmp_path / "vllm.py").touch()  # where one is looked for
    both = ("--old-launch", str(script), "--new-launch", str(script), "--engine-path", str(tmp_path))
    ran = in_process("rehearse", str(side), str(side), "--backend", "vllm", *both, "-q")
    assert ran.code == 3, ran.err
    assert "is 64 here, and 16 in" in ran.err
