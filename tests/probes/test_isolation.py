"""The probe of a tenant boundary: by cached tokens, by time, and where neither says anything."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.probes.canary import ranks
from kvgate.probes.canary.evidence import isolation_evidence
from kvgate.probes.canary.probe import LEVEL, POWER, Isolation, Sample, Timing, probe_isolation
from kvgate.probes.canary.ranks import power_of, probability_below
from kvgate.rules.errors import UsageError
from kvgate.rules.pools import pools
from tests.cli.conftest import Run
from tests.corpora.engine_server import Engine, serving
from tests.rules.clean import FORGET, clean

from .toy import Toy, running


@dataclass
class Cache:
    """A server in which time is made up: a hit takes ``fast`` seconds, a miss one."""

    fast: float = 0.2
    shared: bool = False
    tells: bool = True
    keeps: bool = True
    noise: float = 0.05
    preamble: int = 0
    _held: set[tuple[str, str]] = field(default_factory=set)
    _drawn: random.Random = field(default_factory=lambda: random.Random(7))

    def asked(self, tenant: str) -> Callable[[str], tuple[int | None, float]]:
        def ask(prefix: str) -> tuple[int | None, float]:
            key = ("" if self.shared else tenant, prefix)
            hit = self.keeps and key in self._held
            self._held.add(key)
            seconds = (self.fast if hit else 1.0) + self._drawn.gauss(0, self.noise)
            return (self.preamble + 512 * hit if self.tells else None), seconds

        return ask

    def probed(self, tries: int = 20) -> Isolation:
        return probe_isolation(self.asked("a"), self.asked("b"), words=9, tries=tries, seed=3)


@pytest.mark.parametrize(
    ("cache", "tokens", "timed", "state"),
    [
        (Cache(), "isolated", "isolated", "isolated"),
        (Cache(shared=True), "leaks", "leaks", "leaks"),
        (Cache(preamble=16), "isolated", "isolated", "isolated"),  # what every prompt begins with is nobody's
        (Cache(shared=True, preamble=16), "leaks", "leaks", "leaks"),
        (Cache(keeps=False), "cannot tell", "cannot tell", "cannot tell"),
        (Cache(tells=False), None, "isolated", "isolated"),
        (Cache(tells=False, shared=True), None, "leaks", "leaks"),
        (Cache(tells=False, keeps=False), None, "cannot tell", "cannot tell"),
        (Cache(tells=False, fast=0.95, noise=0.5), None, "cannot tell", "cannot tell"),
        (Cache(fast=0.95, noise=0.5), "isolated", "cannot tell", "isolated"),  # tokens are told, times need not
    ],
)
def test_what_is_told_of_a_boundary(cache: Cache, tokens: str | None, timed: str, state: str) -> None:
    found = cache.probed()
    assert found.timing is not None
    assert (found.tokens, found.timing.state, found.state) == (tokens, timed, state), found.timing


def test_a_server_that_tells_nothing_and_few_tries_are_said() -> None:
    found = Cache(tells=False).probed(tries=6)
    assert (found.timing, found.state) == (None, "cannot tell")
    assert "does not tell cached tokens, and there are too few tries" in found.why
    found = Cache(tells=False, keeps=False).probed()
    assert "its times do not tell a hit from none (power 0." in found.why


def test_times_that_speak_against_the_tokens_that_are_told_leave_it_open() -> None:
    """A server that counts none where it hits is no witness of its own."""
    one, shared = Cache(), Cache(shared=True)
    told, timed = one.probed().samples, shared.probed().samples
    mixed = tuple(
        Sample(
            *((getattr(a, name)[0], getattr(b, name)[1]) for name in ("cold", "other", "fresh", "warm")),
        )
        for a, b in zip(told, timed, strict=True)
    )
    found = Isolation(mixed, "isolated", shared.probed().timing, 3)
    assert (found.state, "as fast as a hit" in found.why) == ("cannot tell", True)


def test_a_slight_gain_is_no_residency() -> None:
    timing = Timing(warm=1e-6, other=1e-6, power=1.0, saved=1.0, gained=0.1)
    assert timing.state == "cannot tell"
    assert Timing(warm=1e-6, other=1e-6, power=1.0, saved=1.0, gained=0.5).state == "leaks"
    assert Timing(warm=1e-6, other=0.5, power=POWER - 0.01, saved=1.0, gained=0.0).state == "cannot tell"
    assert Timing(warm=1e-6, other=0.5, power=POWER, saved=1.0, gained=0.0).state == "isolated"


def test_nothing_sent_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing would be sent"):
        Cache().probed(tries=0)


def test_chance_raises_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred probes of a boundary that holds, by time alone."""
    monkeypatch.setattr(ranks, "_DRAWS", 1)  # the power is of no concern here
    states = []
    for seed in range(100):
        drawn = random.Random(seed)
        cache = Cache(tells=False)
        cache._drawn = drawn
        states.append(cache.probed(tries=10).state)
    assert "leaks" not in states


def by_counting(low: list[float], high: list[float]) -> float:
    """The same probability, over every way to draw the first sample from both."""
    pooled = [*low, *high]

    def above(chosen: tuple[int, ...]) -> float:
        rest = [pooled[each] for each in range(len(pooled)) if each not in chosen]
        return sum(pooled[one] > other for one in chosen for other in rest)

    seen = above(tuple(range(len(low))))
    ways = list(itertools.combinations(range(len(pooled)), len(low)))
    return sum(above(chosen) <= seen for chosen in ways) / len(ways)


@given(st.data())
def test_the_exact_probability_is_that_of_counting(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 10**6), min_size=4, max_size=9, unique=True))
    cut = data.draw(st.integers(1, len(values) - 1))
    low, high = [float(value) for value in values[:cut]], [float(value) for value in values[cut:]]
    assert probability_below(low, high) == pytest.approx(by_counting(low, high))


def test_the_normal_distribution_goes_on_where_counting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = [float(2 * number) for number in range(15)], [float(2 * number + 7) for number in range(15)]
    exact = probability_below(low, high)
    monkeypatch.setattr(ranks, "_EXACT", 0)
    assert probability_below(low, high) == pytest.approx(exact, rel=0.03)


def test_samples_that_are_alike_say_nothing() -> None:
    assert probability_below([1.0] * 9, [1.0] * 9) == 1.0
    assert power_of([1.0] * 9, [1.0] * 9, LEVEL, 1) == 0.0
    assert power_of([0.1, 0.2] * 10, [1.0, 1.1] * 10, LEVEL, 1) == 1.0


@pytest.mark.parametrize("api", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize(
    ("toy", "code", "state"),
    [
        ({}, 0, "isolated"),
        ({"ignores": ("cache_salt",)}, 10, "leaks"),
        ({"caches": False}, 11, "cannot tell"),
        ({"tells": False}, 11, "cannot tell"),
    ],
)
def test_the_command(run: Run, api: str, toy: dict[str, Any], code: int, state: str) -> None:
    server = Toy(**toy)
    with running(server) as url:
        ran = run(
            "canary",
            "probe",
            "--endpoint",
            url,
            "--tries",
            "2",
            "--words",
            "5",
            "--settle",
            "0",
            "--api",
            api,
            "-o",
            "json",
        )
    data = json.loads(ran.out)
    assert (ran.code, data["state"]) == (code, state), data
    assert len({body["cache_salt"] for _, body in server.asked}) == 2
    assert {body["max_tokens"] for _, body in server.asked} == {1}


@pytest.mark.parametrize(
    ("toy", "code", "tokens"),
    [
        ({"omits_zero": True}, 0, "isolated"),
        ({"omits_zero": True, "ignores": ("cache_salt",)}, 10, "leaks"),
        ({"omits_zero": True, "ignores": ("cache_salt",), "engine": "vllm"}, 10, "leaks"),  # told is told
        ({"omits_zero": True, "engine": "vllm"}, 11, None),  # it need not mean none
        ({"omits_zero": True, "caches": False}, 11, None),
    ],
)
def test_a_server_that_says_nothing_of_none(run: Run, toy: dict[str, Any], code: int, tokens: str | None) -> None:
    with running(Toy(**{"engine": "sglang", **toy})) as url:
        ran = run("canary", "probe", "--endpoint", url, "--tries", "2", "--words", "5", "--settle", "0", "-o", "json")
    assert (ran.code, json.loads(ran.out)["byTokens"]) == (code, tokens), ran.out


@pytest.mark.parametrize(
    ("toy", "code", "said"),
    [
        ({"started": (1.5,)}, 0, ""),
        ({"started": (1.5, 2.5)}, 11, "several processes answer there"),
        ({"configurations": ("a", "b")}, 11, "several processes answer there"),
        ({"started": (1.5, 2.5), "ignores": ("cache_salt",)}, 10, "several processes answer there"),
        ({}, 0, "whether it was one process is not told"),
    ],
)
def test_replicas_that_take_turns_show_no_boundary(run: Run, toy: dict[str, Any], code: int, said: str) -> None:
    with running(Toy(**toy)) as url:
        ran = run("canary", "probe", "--endpoint", url, "--tries", "2", "--words", "5", "--settle", "0")
    assert (ran.code, said in " ".join(ran.out.split())) == (code, True), ran.out
    assert said or "process" not in ran.out


@pytest.mark.parametrize(
    ("tenancy", "state"),
    [
        ({"boundary": "tenant", "carried_by": "cache_salt"}, "refuted"),
        ({"boundary": "shared", "carried_by": None}, "inconclusive"),
        (None, "inconclusive"),  # nothing is to be kept apart
        (FORGET, "refuted"),  # nobody says so
    ],
)
def test_a_leak_is_one_across_a_boundary_that_is_declared(tenancy: Any, state: str) -> None:
    found = Cache(shared=True).probed(2)
    new = clean({"cache.tenancy": tenancy})
    evidence = isolation_evidence(found, new, asked=pools(new), missing={}, tools={}, command="")
    assert (evidence.state, evidence.coverage.missing.keys() >= {"replicas"}) == (state, True)


@pytest.mark.parametrize(("names", "state"), [("ab", "refuted"), ("b", "refuted"), ("a", "inconclusive")])
def test_the_boundary_is_that_of_the_pool_that_was_asked(names: str, state: str) -> None:
    tenant = {"cache.tenancy.boundary": "tenant", "cache.tenancy.carried_by": "cache_salt"}
    roles = [{"name": "a", "set": {}}, {"name": "b", "set": tenant}]
    new = clean({"cache.tenancy": None, "roles": roles})
    asked = [pool for pool in pools(new) if str(pool.name) in names]
    evidence = isolation_evidence(Cache(shared=True).probed(2), new, asked=asked, missing={}, tools={}, command="")
    assert (evidence.state, evidence.figures["pools"]) == (state, list(names))


def test_a_store_that_is_written_late_is_read_all_the_same(run: Run) -> None:
    """The engine's own memory holds the salt, and the store behind it does not, nor is it there at once."""
    toy, late = Toy(), 4
    stored: list[str] = []
    answered = toy.answer

    def answer(method: str, path: str, body: Any) -> Any:
        status, data = answered(method, path, body)
        if method == "POST" and not data["usage"]["prompt_tokens_details"]["cached_tokens"]:
            if body["prompt"] in stored[:-late]:
                data["usage"]["prompt_tokens_details"] = {"cached_tokens": 96}
            stored.append(body["prompt"])
        return status, data

    toy.answer = answer  # type: ignore[method-assign]
    with running(toy) as url:
        told = ("--tries", "8", "--words", "5", "--settle", "0", "-o", "json")
        ran = run("canary", "probe", "--endpoint", url, *told)
    assert (ran.code, json.loads(ran.out)["byTokens"]) == (10, "leaks")


def test_a_prefix_is_no_longer_than_the_model_takes(run: Run) -> None:
    toy = Toy()

    def answer(method: str, path: str, body: Any) -> Any:
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "parent": None, "max_model_len": 120}]}
        return toy.answer(method, path, body)

    with serving(Engine(answer)) as engine:
        assert run("canary", "probe", "--endpoint", engine.url, "--tries", "1", "--settle", "0").code == 0
    assert {len(body["prompt"].split()) for _, body in toy.asked} == {21}


def test_one_tenant_after_the_other_is_asked_over_one_connection(run: Run) -> None:
    """Another connection may lead to another replica, where nobody's prefix lies."""
    with serving(Engine(Toy().answer)) as engine:
        assert (
            run("canary", "probe", "--endpoint", engine.url, "--tries", "2", "--words", "5", "--settle", "0").code == 0
        )
    assert len(engine.connections) <= 1 + 2  # what is looked at before and after takes others


def test_tenants_may_be_told_apart_by_their_keys(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "first")
    with running(Toy()) as url:
        call = ("canary", "probe", "--settle", "0", "--endpoint", url, "--api-key-env", "KEY_A", "--other-api-key-env")
        assert run(*call, "KEY_A", "--tries", "1").code == 2
        monkeypatch.setenv("KEY_B", "second")
        ran = run(*call, "KEY_B", "--tries", "1", "--words", "5", "--settle", "0")
        assert (ran.code, "leaks" in ran.out) == (10, True)  # this one's key is of the prompt alone
        assert run(*call, "KEY_B", "--value", "x", "--value", "y").code == 2
        assert run("canary", "probe", "--endpoint", url, "--value", "x").code == 2
        assert run("canary", "probe", "--endpoint", url, "--api", "/v1/embeddings").code == 2
