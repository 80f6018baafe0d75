"""Renders and encodes a stream of conversations into the lines of a snapshot. Runs in the bounded child only.

transformers renders every conversation to text (``apply_chat_template(tokenize=False)``); texts are encoded in batches
by the backend itself while the next ones are rendered, which takes a third of the time of calling
``apply_chat_template`` for each. That both give the same ids is checked on the first conversations of every corpus,
and on all where they ever differ or where the tokenizer's class has an encoding of its own.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Protocol

from kvgate.corpora.child.position import Position
from kvgate.corpora.coverage.recording import Recorder
from kvgate.corpora.divergence.generated import answers_as_data, measure_answers
from kvgate.corpora.divergence.stability import measure_turns, turns_as_data
from kvgate.corpora.rendering.renderer import Clock, Renderer
from kvgate.corpora.snapshots.snapshot import Rendered, SnapshotEntry, entry_line, redacted
from kvgate.corpora.sweeps.encoder import Encoder, Ids
from kvgate.rules.errors import InputError

CHECKED = 512
"""Conversations of every corpus that are rendered a second time, to ids in one call."""

_DISAGREE = "TextAndIdsDisagreeError"
_TURN = 0.001  # seconds
_TEXT = 1 << 20  # characters that are encoded in one batch; one longer text is a batch of its own


class Lines(Protocol):
    """Takes finished lines, and how many they are."""

    def __call__(self, data: bytes, count: int) -> None:
        """Take them."""


@dataclass
class _Render:
    """One conversation on one date, in the making."""

    text: str = ""
    error: tuple[str, str] | None = None
    direct: Ids | None = None
    ids: Ids | None = None


@dataclass
class _Draft:
    """One conversation, in the making."""

    id: str
    input: str
    conversation: Mapping[str, Any]
    turns: bool
    generated: Mapping[int, Sequence[int]]
    renders: list[_Render]


class Pipeline:
    """Renders, encodes and writes down.

    Args:
        renderer: renders.
        encoder: encodes.
        clocks: the dates on which every conversation is rendered.
        direct: whether the tokenizer's class leaves encoding to its backend.
        redact: leave prompt text out.
        position: told what is being worked on.

    Attributes:
        used: every id that occurred.

    """

    def __init__(
        self,
        renderer: Renderer,
        encoder: Encoder,
        clocks: Sequence[str],
        *,
        direct: bool,
        redact: bool,
        position: Position,
    ) -> None:
        self._renderer = renderer
        self._encoder = encoder
        self._clocks = clocks
        self._redact = redact
        self._position = position
        self._recorder: Recorder | None = None
        self._unchecked = CHECKED if direct else None  # None: all are checked
        self._done = 0
        self._backend = Lock()  # calling the tokenizer itself sets up its backend anew
        self.used: set[int] = set()

    def run(self, feed: Iterable[Sequence[Mapping[str, Any]]], lines: Lines, recorder: Recorder | None) -> None:
        """Work on batches of conversations until there are no more.

        Args:
            feed: ``id``, ``input`` (digest), ``conversation``, ``turns`` and ``generated`` of each.
            lines: gets the finished lines, in order.
            recorder: told which renderings are written down: the branches that ran in others do not count.

        Raises:
            InputError: as :meth:`Renderer.text`.
            MemoryError: likewise.

        """
        # The thread that comes back from native code shall not wait long for its turn.
        sys.setswitchinterval(_TURN)
        self._recorder = recorder
        with Clock() as clock, ThreadPoolExecutor(1) as behind:
            waiting: deque[tuple[list[_Draft], Future[None]]] = deque()
            for drafts in self._drafts(feed, clock):
                if self._checking():
                    while waiting:
                        self._wait(*waiting.popleft(), clock, lines)
                    self._position.set(self._done - 1, "encoding")
                    self._encode(drafts)
                    self._finish(drafts, clock, lines)
                    continue
                waiting.append((drafts, behind.submit(self._encode, drafts)))
                if len(waiting) > 1:
                    self._wait(*waiting.popleft(), clock, lines)
            while waiting:
                self._wait(*waiting.popleft(), clock, lines)

    def _checking(self) -> bool:
        return self._unchecked is None or self._unchecked > 0

    def _drafts(self, feed: Iterable[Sequence[Mapping[str, Any]]], clock: Clock) -> Iterator[list[_Draft]]:
        """Render, and yield as much as is encoded at once."""
        drafts: list[_Draft] = []
        size = 0
        for batch in feed:
            for item in batch:
                self._position.set(self._done, "rendering")
                draft = self._draft(item, clock)
                self._done += 1
                new = sum(len(render.text) for render in draft.renders)
                if size + new > _TEXT and drafts:
                    yield drafts
                    drafts, size = [], 0
                drafts.append(draft)
                size += new
            if drafts:
                yield drafts
                drafts, size = [], 0
            self._position.set(max(0, self._done - 1), "waiting")

    def _draft(self, item: Mapping[str, Any], clock: Clock) -> _Draft:
        renders = []
        for moment in self._clocks:
            clock.set(moment)
            render = self._render(item["conversation"], direct=self._checking())
            self._settle(counts=render.error is None)
            renders.append(render)
        generated = {int(number): ids for number, ids in item["generated"].items()}
        return _Draft(item["id"], item["input"], item["conversation"], item["turns"], generated, renders)

    def _render(self, conversation: Mapping[str, Any], *, direct: bool) -> _Render:
        try:
            text = self._renderer.text(conversation)
            if not direct:
                return _Render(text)
            self._position.set(self._done, "encoding")
            with self._backend:
                return _Render(text, direct=self._renderer.ids(conversation))
        except (MemoryError, InputError):
            raise
        except Exception as error:
            return _Render(error=self._renderer.refused(error))

    def _encode(self, drafts: Sequence[_Draft]) -> None:
        for special_tokens in (False, True):
            renders = [
                render
                for draft in drafts
                if self._renderer.special_tokens(draft.conversation) == special_tokens
                for render in draft.renders
                if render.error is None
            ]
            if renders:
                with self._backend:
                    found = self._encoder.ids([render.text for render in renders], special_tokens=special_tokens)
                for render, ids in zip(renders, found, strict=True):
                    render.ids = ids

    def _wait(self, drafts: Sequence[_Draft], encoded: Future[None], clock: Clock, lines: Lines) -> None:
        self._position.set(self._done - 1, "encoding")
        encoded.result()
        self._finish(drafts, clock, lines)

    def _finish(self, drafts: Sequence[_Draft], clock: Clock, lines: Lines) -> None:
        for draft in drafts:
            for render, moment in zip(draft.renders, self._clocks, strict=True):
                if render.error is None:
                    self._check(draft, render, clock, moment)
        if self._unchecked is not None:
            self._unchecked = max(0, self._unchecked - len(drafts))
        lines(b"".join(self._line(draft, clock) for draft in drafts), len(drafts))

    def _check(self, draft: _Draft, render: _Render, clock: Clock, moment: str) -> None:
        if render.ids is None:  # the batch could not be encoded with it: what does transformers say of it alone?
            clock.set(moment)
            try:
                with self._backend:
                    render.ids = self._renderer.ids(draft.conversation)
            except (MemoryError, InputError):
                raise
            except Exception as error:
                render.error = self._renderer.refused(error)
        elif render.direct is not None and render.direct != render.ids:
            # Engines do one or the other, and nothing here says which.
            render.error = (_DISAGREE, "encoding the rendered text gives other ids than apply_chat_template")
            self._unchecked = None

    def _line(self, draft: _Draft, clock: Clock) -> bytes:
        entry = SnapshotEntry(draft.id, draft.input, tuple(map(_rendered, draft.renders)))
        for render in entry.renders:
            self.used.update(render.ids)
        first = draft.renders[0]
        if draft.turns or draft.generated:
            clock.set(self._clocks[0])
            whole = first.ids or []
            if draft.turns and first.error is None:
                turns = measure_turns(draft.conversation, whole, self._alone)
                entry = replace(entry, turns=tuple(turns_as_data(turns)))
            if draft.generated and first.error is None:
                answers = measure_answers(draft.conversation, draft.generated, whole, self._alone)
                entry = replace(entry, generated=tuple(answers_as_data(answers)))
        if self._redact:
            entry = replace(entry, renders=tuple(map(redacted, entry.renders)))
        return entry_line(entry)

    def _settle(self, *, counts: bool) -> None:
        if self._recorder is not None:
            self._recorder.settle(counts=counts)

    def _alone(self, conversation: Mapping[str, Any]) -> Ids | None:
        """Render and encode one conversation at once; ``None``: it does not render."""
        render = self._render(conversation, direct=False)
        self._settle(counts=False)
        if render.error is not None:
            return None
        with self._backend:
            (ids,) = self._encoder.ids([render.text], special_tokens=self._renderer.special_tokens(conversation))
        return ids


def _rendered(render: _Render) -> Rendered:
    if render.error is not None:
        return Rendered(None, array("I"), render.error)
    return Rendered(render.text, array("I", render.ids or ()))
