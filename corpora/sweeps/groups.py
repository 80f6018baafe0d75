"""The strings of a sweep, by kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgate.corpora.sweeps.added import round_tokens
from kvgate.corpora.sweeps.borders import contractions, meetings, runs
from kvgate.corpora.sweeps.characters import assigned, in_context, other_forms
from kvgate.corpora.sweeps.competing import Competitions
from kvgate.corpora.sweeps.spelling import Spelling
from kvgate.corpora.tokenizers.effective import canonical
from kvgate.corpora.tokenizers.merges import MergeChange, change
from kvgate.corpora.tokenizers.structure import entries

_BEGINNINGS = ("", " ", "  ", "a", " a", "A", "\n", "\na", "1", ".", "中", "\u0301", "a b", " a b ")

_NEIGHBOURS = ("a{}", "{}a", "  {}", "{} ", "{}  a", "\n{}", "{}\n", ".{}", "{}.", "1{}", "{}1", "{}{}", "{} {}")
_SAMPLED = 2_000  # entries of the vocabulary that are tried in context


@dataclass(frozen=True)
class Group:
    """Strings of one kind, each once.

    Attributes:
        name: the kind.
        strings: the strings.
        special_tokens: whether they are encoded as raw completions are, with the ids put round them.

    """

    name: str
    strings: Sequence[str]
    special_tokens: bool = False


@dataclass
class Plan:
    """All groups for two tokenizers, and what could not be made into strings."""

    groups: list[Group]
    unswept: list[tuple[str, str]]


def plan(sides: Sequence[Mapping[str, Any]], characters: Sequence[str] | None = None) -> Plan:
    """Make the strings for one or two tokenizers.

    Args:
        sides: the parts of those that can be written out; see :func:`kvgate.corpora.tokenizers.effective.written_out`.
        characters: the single characters to try; by default every assigned one.

    """
    found = Plan([], [])
    added = list(dict.fromkeys(token["content"] for side in sides for token in side["added_tokens"]))
    # Where only what is put round a text differs, there is nothing to find inside of it.
    if len(sides) != 2 or _inside(sides[0]) != _inside(sides[1]):
        _inner(found, sides, added, assigned() if characters is None else characters)
    begun = [*_BEGINNINGS, *(text for one in added for text in (one, f"{one}a"))]
    found.groups.append(Group("beginnings", begun, special_tokens=True))
    return found


def _inner(found: Plan, sides: Sequence[Mapping[str, Any]], added: Sequence[str], characters: Sequence[str]) -> None:
    spellings = [Spelling(side) for side in sides]
    if len(sides) == 2 and (changed := _changed_merges(*sides)) is not None and changed.changed:
        _competing(found, changed, sides, spellings)
    texts = _vocabulary(found, sides, spellings)
    _add(found, "vocabulary", texts)
    _add(found, "vocabulary in context", _neighbours(texts))
    _add(found, "added tokens", round_tokens(added))
    _add(found, "borders", meetings())
    _add(found, "runs", runs())
    _add(found, "contractions", contractions())
    found.groups.append(Group("code points", characters))
    found.groups.append(Group("code points in context", list(in_context(characters))))
    _add(found, "normal forms", other_forms(characters))


def _inside(side: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in canonical(side).items() if name != "post_processor"}


def _add(found: Plan, name: str, strings: Iterable[str]) -> None:
    found.groups.append(Group(name, list(dict.fromkeys(strings))))


def _vocabulary(found: Plan, sides: Sequence[Mapping[str, Any]], spellings: Sequence[Spelling]) -> list[str]:
    tried: dict[tuple[object, ...], set[str]] = {}
    texts: dict[str, None] = {}
    silent = 0
    for side, spelling in zip(sides, spellings, strict=True):
        seen = tried.setdefault(spelling.key, set())
        for piece in entries(side):
            if piece in seen:
                continue
            seen.add(piece)
            written = spelling.texts(piece)
            silent += not written
            texts.update(dict.fromkeys(written))
    if silent:
        found.unswept.append(("vocabulary", f"{silent} entries stand for bytes that no text holds"))
    return list(texts)


def _neighbours(texts: Sequence[str]) -> Iterator[str]:
    """Yield some of the vocabulary next to white space, signs, letters, digits and each other."""
    some = texts[:: max(1, len(texts) // _SAMPLED)]
    for one, other in zip(some, [*some[1:], *some[:1]], strict=True):
        yield from (form.format(one, other) for form in _NEIGHBOURS)


def _changed_merges(old: Mapping[str, Any], new: Mapping[str, Any]) -> MergeChange | None:
    lists = [side["model"].get("merges") for side in (old, new)]
    if None in lists or lists[0] == lists[1]:
        return None
    return change(*lists)


def _competing(
    found: Plan, changed: MergeChange, sides: Sequence[Mapping[str, Any]], spellings: Sequence[Spelling]
) -> None:
    every = itertools.chain.from_iterable(side["model"]["merges"] for side in sides)
    competitions = Competitions(changed, every, sides[0]["model"].get("continuing_subword_prefix") or "")
    unlike = spellings if spellings[0].key != spellings[1].key else spellings[:1]
    written = list(dict.fromkeys(competitions.strings()))
    _add(found, "competing merges", _placed(text for one in unlike for raw in written for text in one.texts(raw)))
    if competitions.examined < len(changed.changed):
        left = len(changed.changed) - competitions.examined
        found.unswept.append(("competing merges", f"{left} changed merges beyond the first {competitions.examined}"))


def _placed(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from (text, f" {text}", f".{text}")
