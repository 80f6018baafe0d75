"""The effective tokenizer: all that decides the ids of a text, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

# Methods by which a class changes ids behind the back of its backend.
_ENCODING = (
    "__call__",
    "_convert_encoding",
    "_encode_plus",
    "_encode_without_added_tokens",
    "apply_chat_template",
    "encode",
    "set_truncation_and_padding",
    "tokenize",
)

Parts = dict[str, Any]
"""The parts of a tokenizer by the names of its JSON, and ``wrapper``: what only transformers' class knows."""


def written_out(tokenizer: Any) -> Parts | str:
    """Return the parts of a tokenizer that transformers built, or why they cannot be written out.

    The parts are the backend's JSON, and under ``wrapper``: ``split_special_tokens`` (which the backend
    holds but does not write), ``chat_control_tokens`` (what ``sanitize_control_tokens`` looks for), and the
    class, where it overrides how text is encoded. Source: huggingface/transformers,
    src/transformers/tokenization_utils_tokenizers.py, 5.24.0.
    """
    from transformers import TokenizersBackend

    cls = type(tokenizer)
    if not isinstance(tokenizer, TokenizersBackend):
        return f"{cls.__name__} has no backend that can be written out"
    try:
        parts: Parts = json.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # the library has no type of its own for it
        return f"{cls.__name__} has a backend that cannot be written out: {error}"
    model = parts["model"]
    if model.get("dropout"):
        return f"its BPE drops merges at random (dropout {model['dropout']:g}): equal text has other ids each time"
    named = len(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False))
    if named > len(model["vocab"]):
        # Which of them is written out is left to chance, as is the one that a merge names.
        return f"{named - len(model['vocab'])} entries of its vocabulary share their id with another"
    control = getattr(tokenizer, "chat_control_tokens", None)
    parts["wrapper"] = {
        "split_special_tokens": bool(tokenizer.backend_tokenizer.encode_special_tokens),
        "chat_control_tokens": None if control is None else sorted(map(str, control)),
        "class": None if leaves_encoding_to_its_backend(tokenizer) else cls.__name__,
    }
    return parts


def leaves_encoding_to_its_backend(tokenizer: Any) -> bool:
    """Whether the tokenizer's class changes nothing of what its backend makes of text."""
    from transformers import TokenizersBackend

    cls = type(tokenizer)
    return isinstance(tokenizer, TokenizersBackend) and all(
        getattr(cls, name, None) is getattr(TokenizersBackend, name, None) for name in _ENCODING
    )


def canonical(parts: Mapping[str, Any], *, but: str | None = None) -> Parts:
    """Return the parts without what no id depends on.

    ``data/inert_tokenizer.yaml`` lists what is left out, with the reasons. Nothing is copied that is large.

    Args:
        parts: as :func:`written_out` returns them.
        but: the id of a class of the list that is kept nevertheless.

    """
    kept = dict(parts)
    for name, strip in INERT.items():
        if name != but:
            strip(kept)
    return kept


def _drops(name: str) -> Callable[[Parts], None]:
    def drop(parts: Parts) -> None:
        parts.pop(name, None)

    return drop


def _flattens(part: str, steps: str) -> Callable[[Parts], None]:
    def level(parts: Parts) -> None:
        flat = _steps(parts[part], steps)
        parts[part] = None if not flat else flat[0] if len(flat) == 1 else {"type": "Sequence", steps: flat}

    return level


def _steps(value: Any, name: str) -> list[Any]:
    if value is None:
        return []
    return [step for one in value[name] for step in _steps(one, name)] if value["type"] == "Sequence" else [value]


def _trimmed_offsets(parts: Parts) -> None:
    def level(value: Any) -> Any:
        if value is None or value["type"] not in ("Sequence", "ByteLevel"):
            return value
        if value["type"] == "Sequence":
            return value | {"pretokenizers": [level(one) for one in value["pretokenizers"]]}
        return {key: setting for key, setting in value.items() if key != "trim_offsets"}

    parts["pre_tokenizer"] = level(parts["pre_tokenizer"])


def _post_processor(parts: Parts) -> None:
    around = _around(parts["post_processor"])
    if around is not None:  # else it stays as it is, and all of it counts
        parts["post_processor"] = None if around == [_TEXT] else {"around": around}


_TEXT = "text"  # where the text's own ids stand among those that a post-processor puts round them


def _around(value: Any) -> list[Any] | None:
    """Return what a post-processor makes of one text, as ids and :data:`_TEXT`; ``None``: a form nobody listed."""
    if value is None or value["type"] == "ByteLevel":
        return [_TEXT]
    if value["type"] in ("BertProcessing", "RobertaProcessing"):
        return [value["cls"][1], _TEXT, value["sep"][1]]
    if value["type"] == "Sequence":
        found = [_around(one) for one in value["processors"]]
        adding = [one for one in found if one != [_TEXT]]
        # Two that add something do not simply add up: the second takes what the first added for texts.
        return [_TEXT] if not adding else adding[0] if len(adding) == 1 else None
    if value["type"] != "TemplateProcessing":
        return None
    around: list[Any] = []
    for item in value["single"]:
        if item.get("Sequence", {}).get("id") == "A":
            around.append(_TEXT)
        elif "SpecialToken" in item:
            around += value["special_tokens"][item["SpecialToken"]["id"]]["ids"]
        else:
            return None
    return around


def _model(changes: Callable[[Parts], Parts]) -> Callable[[Parts], None]:
    def level(parts: Parts) -> None:
        if parts["model"]["type"] == "BPE":
            parts["model"] = parts["model"] | changes(parts["model"])

    return level


def _empty_affixes(model: Parts) -> Parts:
    return {name: model[name] or None for name in ("continuing_subword_prefix", "end_of_word_suffix")}


INERT: Mapping[str, Callable[[Parts], None]] = {
    "format-version": _drops("version"),
    "stored-truncation": _drops("truncation"),
    "stored-padding": _drops("padding"),
    "decoder": _drops("decoder"),
    "trimmed-offsets": _trimmed_offsets,
    "nested-sequences": _flattens("normalizer", "normalizers"),
    "nested-splits": _flattens("pre_tokenizer", "pretokenizers"),
    "post-processor-form": _post_processor,
    "empty-affixes": _model(_empty_affixes),
    "no-dropout": _model(lambda model: {"dropout": model["dropout"] or None}),
}
"""How each class of the list is levelled, in place and without touching what lies below the parts."""
