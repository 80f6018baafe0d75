"""Where markers stand in the prompts of their tenants, in tokens and blocks: by what renders requests."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from kvgate.corpora.conversations.corpus import Corpus, load_corpus
from kvgate.corpora.snapshots.snapshot import SnapshotFile
from kvgate.probes.canary.markers import Marker, Position
from kvgate.rules.errors import InputError

# No tenant's; no reference has a first or a last character in common with both.
_STRANGERS = tuple(Marker("", f"kvc1-{first}{'q7' * 12}{first}") for first in "ab")

Snapshot = Callable[[Corpus, Path], SnapshotFile]


def placed(
    markers: Sequence[Marker], system: str, block_size: int, snapshot: Snapshot, work: Path
) -> tuple[Marker, ...]:
    """Return the markers with the place that each has in its tenant's prompt.

    The prompt is a system message that begins with the instruction, and a short question. Where the tokens of two
    tenants' prompts begin and cease to differ, there the reference stands, whatever the tokenizer makes of it.

    Args:
        markers: all tenants'.
        system: the system prompt that follows the instruction.
        block_size: tokens of a block.
        snapshot: renders and encodes a corpus.
        work: a folder for files that are not kept.

    Raises:
        InputError: a prompt cannot be rendered; the reference is not in it; it reaches into what is not cached.

    """
    corpus = work / "canary.jsonl"
    lines = [_line(f"{number}", one, system) for number, one in enumerate((*_STRANGERS, *markers))]
    corpus.write_text("".join(lines), encoding="utf-8")
    taken = snapshot(load_corpus(corpus), work / "canary-tokens.jsonl")
    ids: dict[str, array[int]] = {}
    for entry in taken.entries():
        rendered = entry.renders[0]
        if not rendered.ok:
            error = ": ".join(rendered.error or ())
            raise InputError(f"a prompt with the marker cannot be rendered: {error}", where="--system")
        ids[entry.id] = rendered.ids
    others = [ids[str(number)] for number in range(len(_STRANGERS))]
    return tuple(
        replace(marker, position=_position(ids[str(number)], others, block_size))
        for number, marker in enumerate(markers, len(_STRANGERS))
    )


def _line(name: str, marker: Marker, system: str) -> str:
    text = f"{marker.instruction}\n{system}" if system else marker.instruction
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "Which reference is mine?"}]
    return json.dumps({"id": name, "messages": messages}) + "\n"


def _position(own: array[int], others: Sequence[array[int]], block_size: int) -> Position:
    spans = [_differing(own, other) for other in others]
    first, end = min(span[0] for span in spans), max(span[1] for span in spans)
    if first >= end:
        raise InputError("the marker is not in the prompt: the template drops the system message", where="--system")
    found = Position(first, end, len(own), block_size)
    if not found.cached:
        raise InputError(
            f"the marker of a tenant stands in tokens {found.first} to {found.end - 1} of {found.prompt}, and only the "
            f"first {found.cached_blocks * block_size} are cached (blocks of {block_size})",
            where="--system",
            hint="give the system prompt that follows it: --system FILE",
        )
    return found


def _differing(own: array[int], other: array[int]) -> tuple[int, int]:
    shortest = min(len(own), len(other))
    front = next((place for place in range(shortest) if own[place] != other[place]), shortest)
    rest = shortest - front
    back = next((place for place in range(rest) if own[-1 - place] != other[-1 - place]), rest)
    return front, len(own) - back
