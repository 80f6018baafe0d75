"""One engine under one boundary: what is put in place for it, and what its failures say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from kvgate.probes.engines.connectors import Connector
from kvgate.probes.engines.program import Program
from kvgate.probes.engines.worker import Engine, EngineWorker
from kvgate.probes.rehearsal.backend import CannotStageError, Generation, Prompt, Start
from kvgate.rules.manifest import Manifest
from kvgate.stores.keys.stored import Request
from tests.probes.rehearsal.pairs import deployment

_PROMPT = Prompt("one", tuple(range(80)))


@dataclass
class _Fake:
    """An engine, its connector, and its stores; ``fails`` says whether it fails in front of what is in place."""

    fails: Callable[[str, int], bool]
    in_place: str = ""
    asked: int = 0
    restarts: int = 0
    puts: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def places(self) -> _Fake:
        return self

    def put(self, store: str, _location: str, *, keeps: bool) -> None:
        self.in_place = store
        self.puts.append((store, keeps))

    def forget(self) -> None:
        pass

    def settled(self, _manifest: Manifest, _request: Request) -> None:
        pass

    def held(self, _manifest: Manifest, _request: Request) -> int:
        return 64 if self.in_place == "old" else 0

    def generate(self, _name: str, _ids: Any, _tokens: int, _salt: Any, **_: bool) -> Generation:
        self.asked += 1
        if self.fails(self.in_place, self.asked):
            raise CannotStageError("the engine ended")
        return Generation((1,), ({1: 0.0},), self.held(None, None))  # type: ignore[arg-type]

    def restart(self) -> None:
        self.restarts += 1


def _worker(fake: _Fake, **start: Any) -> EngineWorker:
    served = deployment()
    engine = Engine(
        cast("Program", fake), "new", cast("Connector", fake), fake.restart, True, "bfloat16", "bfloat16", {}
    )
    return EngineWorker(engine, Start(served, "old", **start), None)


def test_an_engine_that_fails_again_and_not_without_has_read_what_it_failed_on() -> None:
    fake = _Fake(lambda store, _: store == "old")
    worker = _worker(fake)
    assert worker.generate(_PROMPT, 4) == Generation((), (), 64)
    assert (fake.asked, fake.restarts) == (3, 2)
    assert worker.generate(_PROMPT, 4) == Generation((), (), 64)
    assert (fake.asked, fake.restarts) == (4, 3)  # it was seen before
    assert not any(keeps for _, keeps in fake.puts)


def test_an_engine_that_failed_once_answers() -> None:
    fake = _Fake(lambda _, asked: asked == 1)
    assert _worker(fake).generate(_PROMPT, 4).token_ids == (1,)
    assert fake.restarts == 1


@pytest.mark.parametrize("start", [{}, {"boundary": "no-reuse"}, {"fills": True}])
def test_an_engine_that_fails_whatever_lies_there_says_nothing(start: dict[str, Any]) -> None:
    with pytest.raises(CannotStageError):
        _worker(_Fake(lambda _store, _asked: True), **start).generate(_PROMPT, 4)


def test_what_a_worker_writes_for_one_prompt_is_no_old_entry_for_the_next() -> None:
    fake = _Fake(lambda _store, _asked: False)
    worker = _worker(fake)
    for _ in range(2):
        worker.generate(_PROMPT, 4)
    assert fake.puts == [("old", False), ("old", False)]
    assert _worker(fake).compare_blocks(_PROMPT) is None  # another connector filled it
