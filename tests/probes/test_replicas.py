"""Who answers at a URL, and when that is not known."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kvgate.corpora.endpoints.client import Client
from kvgate.probes.completions.replicas import LOOKS, Seen, look, together
from tests.corpora.engine_server import Engine, metrics, serving

NOBODY = (404, {"detail": "Not Found"})


@pytest.mark.parametrize(
    ("engine", "path", "answers", "seen"),
    [
        ("vllm", "/metrics", [metrics(1.5)], Seen(frozenset({"1.5"}), certain=True)),
        ("vllm", "/metrics", [metrics(1.5), metrics(2.5)], Seen(frozenset({"1.5", "2.5"}), certain=True)),
        ("vllm", "/metrics", [metrics(1.5, 2)], Seen(frozenset({"1.5"}))),  # engines take turns in one process
        ("vllm", "/metrics", [metrics(1.5, 0)], Seen(frozenset({"1.5"}))),  # a router, which started itself
        ("vllm", "/metrics", [metrics(1.5), "nothing\n"], Seen(frozenset({"1.5"}))),
        ("vllm", "/metrics", [{"process_start_time_seconds": 1}], Seen()),
        ("sglang", "/server_info", [{"random_seed": 7}], Seen(frozenset({"7"}))),  # two may have been given one
        ("sglang", "/get_server_info", [{"random_seed": 7}, {"random_seed": 8}], Seen(frozenset({"7", "8"}))),
        ("sglang", "/server_info", [{"random_seed": "7"}], Seen()),
        (None, "/metrics", [metrics(1.5)], Seen()),
    ],
)
def test_who_answers(engine: str | None, path: str, answers: list[Any], seen: Seen) -> None:
    turns = itertools.count()

    def answer(_: str, asked: str, __: Any) -> Any:
        return (200, answers[next(turns) % len(answers)]) if asked == path else NOBODY

    with serving(Engine(answer)) as server, Client(server.url) as client:
        assert look(client, engine) == seen
    assert not seen.certain or len(server.connections) == LOOKS


def test_what_was_seen_at_several_times() -> None:
    one, other = Seen(frozenset("a"), certain=True), Seen(frozenset("b"), certain=True)
    assert (one.one, one.several, one.missing) == (True, False, {})
    assert together([one, one]) == one
    assert together([one, other]).several
    assert not together([one, Seen()]).one
    assert not together([]).one
    assert Seen(frozenset("a"), certain=True, configurations=frozenset({"x", "y"})).several
