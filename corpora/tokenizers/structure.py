"""Which parts of two effective tokenizers differ, and whether an id can depend on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.corpora.tokenizers.effective import canonical
from kvgate.corpora.tokenizers.inert import inert_classes
from kvgate.corpora.tokenizers.merges import change

_SHOWN = 5  # examples of each difference; all are counted
_LONGEST = 200  # characters of an example
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@dataclass(frozen=True)
class PartDifference:
    """One respect in which two tokenizers differ.

    Attributes:
        part: ``normalizer``, ``pre-tokenizer``, ``model``, ``merges``, ``vocabulary``, ``added-tokens``,
            ``post-processor``, ``wrapper``, ``other``; of inert ones also ``decoder``, ``truncation``,
            ``padding``, ``file``.
        what: what differs, a phrase.
        count: how many differ of what the phrase names.
        examples: some of them, written out.
        inert: the id in the list of inert classes; ``None``: ids may depend on it.

    """

    part: str
    what: str
    count: int
    examples: tuple[str, ...]
    inert: str | None = None


def structural_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[PartDifference, ...]:
    """Say in which parts two tokenizers differ.

    Args:
        old: the parts as :func:`kvgate.corpora.tokenizers.effective.written_out` gives them.
        new: likewise.

    Returns:
        What ids may depend on, in the order in which a text passes through the parts; then what is inert.
        Nothing of the former exactly where the effective tokenizers are equal.

    """
    before, after = canonical(old), canonical(new)
    found = [one for differ in _PARTS for one in differ(before, after)]
    if not found and before != after:
        found = [PartDifference("other", "what nobody listed", 1, ())]
    levelled = [part for part in {*old, *new} if old.get(part) != new.get(part) and before.get(part) == after.get(part)]
    inert = [
        PartDifference(listed.part, listed.why, 1, (), inert=name)
        for name, listed in inert_classes().items()
        if any(canonical(old, but=name).get(part) != canonical(new, but=name).get(part) for part in levelled)
    ]
    return (*found, *inert)


def _settings(model: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name not in ("vocab", "merges")}


def _step(part: str, name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[PartDifference]]:
    def differ(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PartDifference]:
        if old[name] != new[name]:
            changed = tuple(_paths(old[name], new[name], ""))
            yield PartDifference(part, "settings", len(changed), changed[:_SHOWN])

    return differ


def _paths(old: Any, new: Any, path: str) -> Iterator[str]:
    """Yield what differs within two JSON values, by path where their shapes are the same."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and old.get("type") == new.get("type"):
        for name in sorted({*old, *new}):
            yield from _paths(old.get(name), new.get(name), f"{path}.{name}" if path else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _paths(one, other, f"{path}[{place}]")
    else:
        yield f"{path}: {_shown(old)} -> {_shown(new)}" if path else f"{_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _model(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PartDifference]:
    before, after = _settings(old["model"]), _settings(new["model"])
    if before != after:
        changed = tuple(_paths(before, after, ""))
        yield PartDifference("model", "settings", len(changed), changed[:_SHOWN])


def _merges(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PartDifference]:
    before, after = old["model"].get("merges") or [], new["model"].get("merges") or []
    if before == after:
        return
    found = change(before, after)
    for what, merges in (("in another order", found.moved), ("only old", found.removed), ("only new", found.added)):
        if merges:
            examples = tuple(
                f"{_shown(list(merge))}: rank {found.old.get(merge, 'none')} -> {found.new.get(merge, 'none')}"
                for merge in merges[:_SHOWN]
            )
            yield PartDifference("merges", what, len(merges), examples)
    if not found.changed:
        yield PartDifference("merges", "written twice", 1, ())


def _vocabulary(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PartDifference]:
    before, after = old["model"]["vocab"], new["model"]["vocab"]
    if before == after:
        return
    if isinstance(before, list) and isinstance(after, list):
        yield from _scores(before, after)
    ids, others = entries(old), entries(new)
    moved = [piece for piece, token in ids.items() if others.get(piece, token) != token]
    yield from _listed(
        "vocabulary", "entries with another id", [f"{_shown(p)}: {ids[p]} -> {others[p]}" for p in moved]
    )
    for what, one, other in (("entries only old", ids, others), ("entries only new", others, ids)):
        yield from _listed("vocabulary", what, [f"{_shown(p)}: {one[p]}" for p in one if p not in other])


def _scores(old: list[Any], new: list[Any]) -> Iterator[PartDifference]:
    scores = dict(old)
    changed = [
        f"{_shown(piece)}: {scores[piece]} -> {score}" for piece, score in new if scores.get(piece, score) != score
    ]
    yield from _listed("vocabulary", "entries with another score", changed)


def entries(parts: Mapping[str, Any]) -> dict[str, int]:
    """Return id by vocabulary string of the model, added tokens apart; of equal strings the last counts."""
    vocabulary = parts["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: [string, score], in the order of the ids
        return {piece: token for token, (piece, _) in enumerate(vocabulary)}
    return dict(vocabulary)


def _added(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[PartDifference]:
    before = {token["content"]: token for token in old["added_tokens"]}
    after = {token["content"]: token for token in new["added_tokens"]}
    both = [content for content in before if content in after]
    for name in ("id", *_FLAGS):
        yield from _listed(
            "added-tokens",
            f"tokens with another {name}",
            [
                f"{_shown(content)}: {_shown(before[content][name])} -> {_shown(after[content][name])}"
                for content in both
                if before[content][name] != after[content][name]
            ],
        )
    for what, one, other in (("tokens only old", before, after), ("tokens only new", after, before)):
        yield from _listed(
            "added-tokens", what, [f"{_shown(name)}: {one[name]['id']}" for name in one if name not in other]
        )


def _listed(part: str, what: str, found: list[str]) -> Iterator[PartDifference]:
    if found:
        yield PartDifference(part, what, len(found), tuple(found[:_SHOWN]))


_PARTS = (
    _added,
    _step("normalizer", "normalizer"),
    _step("pre-tokenizer", "pre_tokenizer"),
    _model,
    _vocabulary,
    _merges,
    _step("post-processor", "post_processor"),
    _step("wrapper", "wrapper"),
)
"""One function for each part, in the order in which a text passes through them."""
