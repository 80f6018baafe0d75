"""Which tensors persisted state depends on: all of them, less those that were proved not to matter.

The list is an allow-list by ``model_type`` (``data/kv_tail.yaml``), proved by perturbation. It applies only
where the checkpoint is what was proved: the listed architecture without code of its own, not quantized,
floating-point tensors, and a last layer that holds listed names only. Everywhere else every tensor counts,
and so does a tensor that nobody listed.

What it proves is proved of the stored values. An engine that derives one tensor's numbers from others at
load time (quantizing a fused QKV weight with one common scale, say) makes the tail matter again: whoever
compares ``kv_digest`` must know that there is no such quantization, and no speculative decoding, whose
draft reads the last layer's output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgate.weights.digest import TensorEntry, root_digest
from kvgate.weights.tables import Family, Root, kv_tail, tied_heads

_UNPROVED = ("auto_map", "quantization_config", "compression_config")  # code of its own, quantized weights
_FLOATING = frozenset({"BF16", "F16", "F32", "F64"})


@dataclass(frozen=True)
class KvSelection:
    """What of a checkpoint does not matter to persisted state.

    Attributes:
        rule: the version of the list and what it was applied as: ``1/llama``, or ``1/all-tensors``.
        harmless: the names of the stored tensors that do not count.
    """

    rule: str
    harmless: frozenset[str]


def kv_selection(entries: Iterable[TensorEntry], config: Mapping[str, Any] | None) -> KvSelection:
    """Say which tensors do not count.

    Args:
        entries: the checkpoint's tensors, aliases of a tied head already dropped.
        config: the model's effective configuration; ``None`` where it is not known.
    """
    table = kv_tail()
    model_type = (config or {}).get("model_type")
    family = table.families.get(model_type) if isinstance(model_type, str) else None
    if config is not None and family is not None and _proved_form(config, family):
        harmless = _harmless({entry.name: entry for entry in entries}, config, family, table.roots[family.root])
        if harmless is not None:
            return KvSelection(f"{table.version}/{model_type}", harmless)
    return KvSelection(f"{table.version}/all-tensors", frozenset())


def kv_digest(entries: Sequence[TensorEntry], config: Mapping[str, Any] | None, root: str) -> tuple[str, str]:
    """Return ``kv_digest`` and the rule it was made under.

    Args:
        entries: as :func:`kv_selection` takes them.
        config: the model's effective configuration; ``None`` where it is not known.
        root: the root over all of ``entries``.
    """
    selection = kv_selection(entries, config)
    if not selection.harmless:
        return root, selection.rule
    return root_digest(entry for entry in entries if entry.name not in selection.harmless), selection.rule


def tied_alias(entries: Iterable[TensorEntry], config: Mapping[str, Any] | None) -> str | None:
    """Return the name under which a tied head is stored a second time, ``None`` where it is not.

    It is an alias where the configuration ties head and input embedding (``tie_word_embeddings`` at the top
    or in ``text_config``) and both are stored with equal dtype, shape and bytes.

    Args:
        entries: the stored tensors.
        config: the effective configuration: the class default of ``tie_word_embeddings`` filled in.
    """
    if not any(section.get("tie_word_embeddings") is True for section in _sections(config)):
        return None
    by_name = {entry.name: entry for entry in entries}
    for pair in tied_heads().pairs:
        head, embedding = by_name.get(pair.head), by_name.get(pair.embedding)
        if head is not None and embedding is not None:
            return head.name if head[1:4] == embedding[1:4] else None  # dtype, shape, bytes
    return None


def _sections(config: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the configuration and, where it has one, its nested text part."""
    if config is None:
        return []
    text = config.get("text_config")
    return [config, text] if isinstance(text, Mapping) else [config]


def _proved_form(config: Mapping[str, Any], family: Family) -> bool:
    """Say whether the configuration is of a model as it was proved: known code, plain weights."""
    sections = _sections(config)
    return config.get("architectures") == [family.architecture] and not any(
        section.get(key) for section in sections for key in _UNPROVED
    )


def _harmless(
    by_name: Mapping[str, TensorEntry], config: Mapping[str, Any], family: Family, root: Root
) -> frozenset[str] | None:
    """Return the names that do not count, ``None`` where the checkpoint is not the one that was proved."""
    section = config.get("text_config") if family.text_config else config
    layers = section.get("num_hidden_layers") if isinstance(section, Mapping) else None
    if type(layers) is not int or layers < 1:
        return None
    prefix = f"{root.layers}.{layers - 1}."
    last = [entry for entry in by_name.values() if entry.name.startswith(prefix)]
    tail, counts = _pattern(family.tail), _pattern(family.counts)
    harmless = set()
    counted = False
    for entry in last:
        suffix = entry.name[len(prefix) :]
        if entry.dtype not in _FLOATING:
            return None
        if tail.fullmatch(suffix):
            harmless.add(entry.name)
        elif counts.fullmatch(suffix):
            counted = True
        else:
            return None
    if not counted or not harmless:  # another naming, or not all of the checkpoint
        return None
    harmless |= set(root.final) & by_name.keys()
    if root.embedding in by_name:  # else the head is the embedding: it is all that is stored of the two
        harmless |= {root.head} & by_name.keys()
    return frozenset(harmless)


def _pattern(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(name).replace(r"\*", "[0-9]+") for name in names))
