"""The job of the bounded child that sweeps two tokenizers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.corpora.child.limits import Limits
from kvgate.corpora.fingerprint import fingerprint
from kvgate.corpora.sweeps.characters import UNICODE
from kvgate.corpora.sweeps.encoder import Encoder, Ids
from kvgate.corpora.sweeps.groups import Group, Plan, plan
from kvgate.corpora.sweeps.result import GroupResult, OtherMeaning, SweepResult, SweptDivergence, data_of
from kvgate.corpora.sweeps.spelling import Spelling
from kvgate.corpora.tokenizers.backend import Folder, build, versions
from kvgate.corpora.tokenizers.effective import Parts, canonical, written_out
from kvgate.corpora.tokenizers.structure import entries, structural_difference
from kvgate.rules.errors import InputError

if TYPE_CHECKING:
    from kvgate.corpora.child.worker import Allowance, Channel

_BATCH = 4096  # strings
_KEPT = 10  # divergent strings of each group, and ids that stand for other bytes; all are counted
_AFTER = 6  # ids shown behind the first that differs
_LONGEST = 64  # ids shown of one string


def sweep_here(arguments: Mapping[str, Any], limits: Limits, channel: Channel, allowance: Allowance) -> dict[str, Any]:  # noqa: ARG001 - what every job takes
    """Encode the same strings with two tokenizers; progress goes out as items.

    Args:
        arguments: ``old`` and ``new``, folders.
        limits: the bounds, which the parent keeps.
        channel: where steps and progress go.
        allowance: the memory limit.

    Raises:
        InputError: the files cannot be read, are hostile, or are no tokenizer that can be built here.

    """
    sides = []
    for side in ("old", "new"):
        path = Path(arguments[side])
        channel.step("load", "loading the tokenizer", str(path))
        tokenizer = build(Folder(path))
        if isinstance(tokenizer, str):
            raise InputError(f"nothing can be swept: {tokenizer}", where=str(path))
        sides.append(Side(tokenizer))
    return data_of(sweep(sides[0], sides[1], channel, where=arguments["new"]))


class Side:
    """One tokenizer that transformers built, written out."""

    def __init__(self, tokenizer: Any) -> None:
        found = written_out(tokenizer)
        self.parts: Parts | None = None if isinstance(found, str) else found
        """``None``: it cannot be written out, see ``unknown``."""
        self.unknown = found if isinstance(found, str) else None
        self.effective = None if self.parts is None else fingerprint(canonical(self.parts))
        self.encoder = Encoder(tokenizer, direct=self.parts is not None and self.parts["wrapper"]["class"] is None)


def sweep(old: Side, new: Side, channel: Channel, *, where: str) -> SweepResult:
    """Encode the same strings with two tokenizers.

    Args:
        old: one.
        new: the other.
        channel: where steps and progress go.
        where: what a limit that is passed is blamed on.

    """
    channel.step("sweep", "comparing the parts of the tokenizers", where)
    known = [side.parts for side in (old, new) if side.parts is not None]
    equal = old.effective is not None and old.effective == new.effective
    work = Plan([], []) if equal else plan(known)
    work.unswept += [("effective", side.unknown) for side in (old, new) if side.unknown is not None]
    encoders = [old.encoder, new.encoder]
    meanings = other_meanings(*known) if len(known) == 2 else None
    difference = structural_difference(*known) if len(known) == 2 else ()
    total = sum(len(group.strings) for group in work.groups)
    groups: list[GroupResult] = []
    divergences: list[SweptDivergence] = []
    done = 0
    for group in work.groups:
        divergent = failed = 0
        for start in range(0, len(group.strings), _BATCH):
            channel.step("sweep", f"encoding {group.name} with both tokenizers", where)
            batch = group.strings[start : start + _BATCH]
            ids = [encoder.ids(batch, special_tokens=group.special_tokens) for encoder in encoders]
            for text, one, other in _unequal(batch, *ids):
                if one is None or other is None:
                    failed += 1
                    continue
                divergent += 1
                if divergent <= _KEPT:
                    divergences.append(_divergence(group, text, one, other, encoders))
            done += len(batch)
            channel.item({"done": done, "total": total})
        groups.append(GroupResult(group.name, len(group.strings), divergent, failed))
    return SweepResult(
        equal=equal,
        old_effective=old.effective,
        new_effective=new.effective,
        renderer={name: version for name, version in versions().items() if name != "jinja2"},
        unicode=UNICODE,
        parts=difference,
        meanings=None if meanings is None else len(meanings),
        other_meanings=() if meanings is None else tuple(meanings[:_KEPT]),
        groups=tuple(groups),
        divergences=tuple(divergences),
        unswept=tuple(work.unswept),
    )


def _unequal(
    texts: Sequence[str], old: list[Ids | None], new: list[Ids | None]
) -> Iterator[tuple[str, Ids | None, Ids | None]]:
    """Yield what was encoded differently, or not at all by one of them."""
    if old != new or None in old:
        yield from (
            (text, one, other)
            for text, one, other in zip(texts, old, new, strict=True)
            if one is None or other is None or one != other
        )


def _divergence(group: Group, text: str, old: Ids, new: Ids, encoders: list[Encoder]) -> SweptDivergence:
    at = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    end = max(_LONGEST, at + _AFTER)
    old, new = old[:end], new[:end]
    pieces = [tuple(encoder.pieces(ids)) for encoder, ids in zip(encoders, (old, new), strict=True)]
    return SweptDivergence(group.name, text, group.special_tokens, at, tuple(old), tuple(new), *pieces)


def other_meanings(old: Parts, new: Parts) -> list[OtherMeaning]:
    """Return the ids that both tokenizers know and that stand for other bytes, in order."""
    before, after = _by_id(old), _by_id(new)
    spellings = Spelling(old), Spelling(new)
    alike = spellings[0].key == spellings[1].key
    return [
        OtherMeaning(token, piece, after[token])
        for token, piece in sorted(before.items())
        if token in after
        and not (alike and piece == after[token])
        and spellings[0].meaning(piece) != spellings[1].meaning(after[token])
    ]


def _by_id(parts: Parts) -> dict[int, str]:
    return {token: piece for piece, token in entries(parts).items()} | {
        token["id"]: token["content"] for token in parts["added_tokens"]
    }
