"""What both deployments are asked: conversations of the corpus, joined to long prompts, and decidable ones.

Each request is one for both sides: as the old deployment's tokens, and as the new one's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvgate.corpora.conversations.corpus import DIAGNOSTIC, load_corpus
from kvgate.probes.evaluation.own_words import Encode, in_own_words
from kvgate.probes.evaluation.references import decidable
from kvgate.rules.canonical import digest
from kvgate.rules.change import same
from kvgate.rules.manifest import Manifest
from kvgate.rules.values import Known

Rendered = Mapping[str, tuple[int, ...]]
"""Token ids of conversations, by their ids, as a snapshot holds them."""

_MARKS = 16  # tokens that stand in front where a template or tokenizer differs
_INPUTS = ("inputs.system_prompts", "inputs.tool_schemas", "inputs.document_sets")
_DECIDES = {
    "chat_template": ("chat_template.tree", "chat_template.digest"),
    "tokenizer": ("tokenizer.effective", "tokenizer.files"),
}
_RENDERS = {name: (name,) for name in ("tokenizer.renderer", "tokenizer.options")}  # seen in snapshots alone


@dataclass(frozen=True)
class Asked:
    """One request, as each side's tokens."""

    id: str
    old: tuple[int, ...]
    new: tuple[int, ...]
    old_answer: tuple[int, ...] | None = None
    new_answer: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Questions:
    """All requests, and what of the differences between both sides is in their tokens."""

    asked: tuple[Asked, ...]
    staged: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


def questions(
    old: Manifest,
    new: Manifest,
    *,
    rendered: tuple[Rendered, Rendered] | None,
    length: int,
    count: int,
    decide: int,
    words: tuple[Encode, Encode] | None = None,
    most: int = 8,
) -> Questions:
    """Return what is asked.

    Where the tokens of both sides differ, one request more is the same tokens for both: not every request of a
    customer takes the template or the merge that changed, and what else differs meets old entries there.

    Args:
        old: one side.
        new: the other.
        rendered: token ids of both sides' snapshots; without them the bytes of conversations stand for tokens.
        length: tokens of each prompt.
        count: how many are made of the corpus.
        decide: how many decidable ones there are.
        words: both tokenizers, where real models answer; without them decidable prompts are for the one that copies.
        most: tokens that are generated, and of an answer at most.

    """
    staged: dict[str, str] = {}
    missing: dict[str, str] = {}
    texts = _of_snapshots(old, new, rendered, staged, missing) if rendered else _of_bytes(old, new, staged, missing)
    asked = [
        Asked(f"corpus-{number}", *(_joined([text[side] for text in texts], 3 * number, length) for side in (0, 1)))
        for number in range(count)
    ]
    if any(one.old != one.new for one in asked):
        alike = _joined([one for one, two in texts if one == two] or [one for one, _ in texts], 1, length)
        asked.insert(0, Asked("alike", alike, alike))  # first: it is asked with every adapter, and for a second turn
    labels = [_label(old, new, side) for side in (old, new)]
    for number in range(decide):
        if words is None:
            filler = texts[number % len(texts)][0]
            made = [decidable(f"{label} {number}", filler, length) for label in labels]
        else:
            spoken = zip(words, labels, strict=True)
            found = [in_own_words(encode, f"{label} {number}", length, most) for encode, label in spoken]
            made = [one for one in found if one is not None]
        if len(made) == len(labels):
            (one, first), (two, second) = made
            asked.append(Asked(f"decidable-{number}", one, two, first, second))
        else:
            missing["decidable"] = "the tokenizer does not keep a reference apart from what stands round it"
    for path in (one for one in _INPUTS if same(old.get(one), new.get(one)) is False):
        if any(one.old_answer is not None for one in asked):
            staged[path] = "another reference in the cached part"
        else:
            missing[path] = "no prompt is asked in which it stands"
    return Questions(tuple(asked), staged, missing)


def _joined(texts: Sequence[tuple[int, ...]], first: int, length: int) -> tuple[int, ...]:
    """Join conversations, from one of them on and round again, to so many tokens."""
    joined: list[int] = []
    number = first
    while len(joined) < length:
        joined += texts[number % len(texts)]
        number += 1
    return tuple(joined[:length])


def _conversations() -> Iterator[tuple[str, tuple[int, ...]]]:
    for conversation in load_corpus(DIAGNOSTIC).conversations():
        if conversation.messages and 100 < len(conversation.input_text) < 600:
            yield conversation.id, tuple(conversation.input_text.encode("ascii"))


def _of_bytes(
    old: Manifest, new: Manifest, staged: dict[str, str], missing: dict[str, str]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Bytes of conversations, with a mark in front that is another one where what makes tokens is known to differ."""
    marks: list[list[object]] = [[], []]
    for name, paths in _DECIDES.items():
        path = next((one for one in paths if same(old.get(one), new.get(one)) is not None), None)
        if path is None:
            missing[name] = "not known on both sides: the same tokens stand in for both"
            continue
        if same(old.get(path), new.get(path)) is False:
            staged[name] = "other tokens in front of every conversation"
        for mark, side in zip(marks, (old, new), strict=True):
            mark.append(side.value(path))
    missing["tokens"] = "no snapshot on both sides: the bytes of conversations stand for their tokens"
    fronts = [_mark(mark) for mark in marks]
    return [(fronts[0] + text, fronts[1] + text) for _, text in _conversations()]


def _mark(what: object) -> tuple[int, ...]:
    return tuple(256 + byte for byte in hashlib.sha256(digest(what).encode("ascii")).digest()[:_MARKS])


def _of_snapshots(
    old: Manifest,
    new: Manifest,
    rendered: tuple[Rendered, Rendered],
    staged: dict[str, str],
    missing: dict[str, str],
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    first, second = rendered
    both = [(first[name], second[name]) for name in first if name in second and first[name] and second[name]]
    # Those that differ first: equal ones stage nothing.
    both.sort(key=lambda pair: pair[0] == pair[1])
    differing = sum(one != two for one, two in both)
    for name, paths in (_DECIDES | _RENDERS).items():
        if any(same(old.get(path), new.get(path)) is True for path in paths):
            continue  # whatever differs in the ids does not come from it
        if differing:
            staged[name] = f"the ids of both snapshots: {differing} of the {len(both)} conversations asked from differ"
        else:
            missing[name] = "the snapshots hold the same ids for every conversation that both have"
    return both


def _label(old: Manifest, new: Manifest, side: Manifest) -> str:
    """What documents and instructions a side puts in front, as the label that its references are made of."""
    known = [path for path in _INPUTS if isinstance(old.get(path), Known) and isinstance(new.get(path), Known)]
    return digest([side.value(path) for path in known])
