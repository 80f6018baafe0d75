"""Pairs of snapshots that part in the ways that every format is shown on."""

from __future__ import annotations

import dataclasses
import tempfile
from array import array
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvgate.corpora.conversations.corpus import load_corpus
from kvgate.corpora.snapshots.comparison import SnapshotComparison, compare_snapshots
from kvgate.corpora.snapshots.snapshot import Rendered, SnapshotEntry, SnapshotFile, SnapshotHeader, SnapshotWriter

Side = tuple[list[SnapshotEntry], Mapping[int, str]]

_HEADER = SnapshotHeader(
    corpus="requests@0123456789ab",
    corpus_digest="sha256:" + "1" * 64,
    renderer={"transformers": "5.24.0", "tokenizers": "0.23.3"},
    jinja2="3.1.6",
    made="here",
    options={},
    unapplied=(),
    template=None,
    tokenizer=None,
    clocks=(),
)


def ok(text: str | None, ids: list[int]) -> Rendered:
    return Rendered(text, array("I", ids))


def entry(name: str, *renders: Rendered, **more: Any) -> SnapshotEntry:
    return SnapshotEntry(**{"id": name, "input": "same", "renders": renders, **more})


def write(path: Path, side: Side, *, public: bool = True, **header: Any) -> SnapshotFile:
    entries, pieces = side
    found = dataclasses.replace(_HEADER, **header)
    if public:
        corpus = load_corpus("diagnostic")
        # The digest says whose corpus it is; the name has to stay the same while conversations are added.
        found = dataclasses.replace(found, corpus="diagnostic@0123456789ab", corpus_digest=corpus.digest)
    with SnapshotWriter(path, found) as writer:
        for one in entries:
            writer.entry(one)
        return writer.finish(None, pieces)


_WORDS = {0: "<s>", 1: "<|im_start|>", 2: "<|im_end|>", 3: "user", 4: "Ċ", 5: "Hi", 6: "Ġthere", 7: "assistant"}
_ASKED = "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
_IDS = [1, 3, 4, 5, 6, 2, 4, 1, 7, 4]


def _think() -> tuple[Side, Side]:
    """Incident I07: the new template opens the reasoning itself."""
    new = [entry(name, ok(_ASKED + "<think>\n", [*_IDS, 8, 4])) for name in ("first", "second")]
    return (
        ([entry(name, ok(_ASKED, _IDS)) for name in ("first", "second")], _WORDS),
        (new, {**_WORDS, 8: "<think>"}),
    )


def _bos() -> tuple[Side, Side]:
    """Incident I13: the new side has one BOS less in front of the same text."""
    return ([entry("raw", ok(_ASKED, [0, *_IDS]))], _WORDS), ([entry("raw", ok(_ASKED, _IDS))], _WORDS)


def _added() -> tuple[Side, Side]:
    """One added token where there were several, round content that a terminal would act on."""
    text = "\x1b[31m\u202e<think>\u00a0Hi"
    pieces = {1: "\x1b[31m", 2: "\u202e", 3: "<", 4: "think", 5: ">", 6: "<think>", 7: "\u00a0", 8: "Hi"}
    return ([entry("esc\x1bape", ok(text, [1, 2, 3, 4, 5, 7, 8]))], pieces), (
        [entry("esc\x1bape", ok(text, [1, 2, 6, 7, 8]))],
        pieces,
    )


def _huge() -> tuple[Side, Side]:
    """Tokens wider than any page, and wide characters."""
    pieces = {1: "x" * 5000, 2: "世界" * 40, 3: "y" * 300, 4: "z"}
    old, new = "".join(pieces[one] for one in (1, 2, 3)), "".join(pieces[one] for one in (1, 2, 4))
    return ([entry("huge", ok(old, [1, 2, 3]))], pieces), ([entry("huge", ok(new, [1, 2, 4]))], pieces)


def _failing() -> tuple[Side, Side]:
    """Errors on one side and on both, one of which quotes the prompt."""
    refused = Rendered(None, array("I"), ("TemplateError", "roles must\nalternate: \x1b[2Jsecret words"))
    other = Rendered(None, array("I"), ("UndefinedError", "'tools' is undefined"))
    fine = ok("Hi", [5])
    old = [entry("both", refused), entry("mended", other), entry("fine", fine), entry("gone", fine)]
    new = [entry("both", refused), entry("mended", fine), entry("fine", fine), entry("came", fine)]
    return (old, _WORDS), (new, _WORDS)


def _turns() -> tuple[Side, Side]:
    """Incident I09: the old template drops the empty reasoning of past turns, so that its turns are not stable."""
    turn: Callable[[int], dict[str, Any]] = lambda shared: {  # noqa: E731 - a row of a table
        "end": 1, "prompt": True, "tokens": 10, "shared": shared
    }  # fmt: skip
    answer = {"message": 1, "tokens": 4, "place": 6, "shared": 2}
    return (
        ([entry("chat", ok("Hi there", [5, 6]), turns=(turn(8), turn(10)), generated=(answer,))], _WORDS),
        ([entry("chat", ok("Hi  there", [5, 4, 6]), turns=(turn(10), turn(10)), generated=(answer,))], _WORDS),
    )


def _clock() -> tuple[Side, Side]:
    """Incident I17: a fixed date becomes today's."""
    return ([entry("dated", ok("Hi", [5]), ok("Hi", [5]))], _WORDS), (
        [entry("dated", ok("Hi", [5]), ok(" there", [6]))],
        _WORDS,
    )


def _blind() -> tuple[Side, Side]:
    """Endpoints give ids alone."""
    return ([entry("a", ok(None, [1, 2, 3]))], {}), ([entry("a", ok(None, [1, 9, 3]))], {})


def _many() -> tuple[Side, Side]:
    """Ten thousand conversations that diverge in one way, and some in others."""
    old = [entry(f"line-{number}", ok("Hi there", [5, 6])) for number in range(10_000)]
    new = [entry(f"line-{number}", ok("Hi user", [5, 3 if number % 100 else 4])) for number in range(10_000)]
    return (old, _WORDS), (new, _WORDS)


_CASES: dict[str, Callable[[], tuple[Side, Side]]] = {
    "think": _think,
    "bos": _bos,
    "added": _added,
    "huge": _huge,
    "failing": _failing,
    "turns": _turns,
    "clock": _clock,
    "blind": _blind,
    "many": _many,
}
NAMES = tuple(_CASES)


def snapshots(name: str, folder: Path, *, public: bool = True) -> tuple[SnapshotFile, SnapshotFile]:
    """Write one case's snapshots."""
    old, new = _CASES[name]()
    header: dict[str, Any] = {"clocks": ("a", "b")} if name == "clock" else {}
    return (
        write(folder / "old.jsonl", old, public=public, **header),
        write(folder / "new.jsonl", new, public=public, **header),
    )


@cache
def compared(name: str, *, public: bool = True) -> SnapshotComparison:
    """Compare one case's snapshots in blocks of four tokens."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = snapshots(name, Path(folder), public=public)
        return compare_snapshots(old, new, block_size=4)
