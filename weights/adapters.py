"""The fingerprint of a LoRA adapter: its tensors, and the settings that change what they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from kvgate.rules.canonical import canonical_json
from kvgate.rules.errors import InputError
from kvgate.rules.progress import silent
from kvgate.weights.checkpoint import list_folder, tensor_holders
from kvgate.weights.digest import field, printed, root_digest, unprinted
from kvgate.weights.dtypes import tensor_bytes
from kvgate.weights.files import read_json_object
from kvgate.weights.hashing import hash_files
from kvgate.weights.opaque import PICKLES
from kvgate.weights.safetensors import Left, read_header
from kvgate.weights.tables import adapter_fields
from kvgate.weights.tensor_file import TensorFile

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_ADAPTER = b"kvgate/adapter/v1"
_LARGEST = 2**31
_MAX_CONFIG = 4_000_000  # bytes; rank_pattern may name every module of a large model
# Files that loaders read beside the adapter: ``new_embeddings`` extends the vocabulary in vLLM up to 0.11.
_STEMS = ("adapter_model", "new_embeddings")


@dataclass(frozen=True)
class AdapterFingerprint:
    """What a LoRA adapter is.

    Attributes:
        digest: ``blake3:<64 hex>`` over its tensors and the settings that matter.
        rank: ``r``.
        alpha: ``lora_alpha``.
        tensors: how many tensors it has.
        bytes: how many bytes they have together.
    """

    digest: str
    rank: int
    alpha: float
    tensors: int
    bytes: int


def fingerprint_adapter(folder: Path) -> AdapterFingerprint:
    """Hash the LoRA adapter in ``folder`` (``adapter_config.json`` and ``adapter_model.safetensors``).

    Settings that cannot change what the stored tensors do (``data/adapter_fields.yaml``) are left out,
    defaults count as absent, and lists that mean sets are sorted; a setting that nobody listed counts.

    Raises:
        InputError: when a file is missing, unsound or pickle, when it is no LoRA adapter, or when rank or
            alpha is not a number.
    """
    config = read_json_object(folder / CONFIG, _MAX_CONFIG)
    where = str(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        said = f"peft_type is {config['peft_type']!r}"[:80] if "peft_type" in config else "it has no peft_type"
        raise InputError(f"not a LoRA adapter: {said}", where=where, hint='"peft_type": "LORA" is what PEFT writes')
    rank, alpha = _rank(config, where), _alpha(config, where)
    entries = hash_files(_files(folder), silent)
    try:
        settings = canonical_json(significant_settings(config))
    except (ValueError, RecursionError) as error:  # a lone surrogate, or nesting that only a parser bears
        raise InputError("a setting has no canonical form", where=where) from error
    root = unprinted(root_digest(entries))
    return AdapterFingerprint(
        digest=printed(blake3(field(_ADAPTER) + field(root) + field(settings)).digest()),
        rank=rank,
        alpha=alpha,
        tensors=len(entries),
        bytes=sum(tensor_bytes(entry.dtype, entry.shape) for entry in entries),
    )


def _rank(config: Mapping[str, Any], where: str) -> int:
    rank = config.get("r")
    if type(rank) is not int or not 1 <= rank < _LARGEST:
        what = f"r is {rank!r}"[:80] if "r" in config else "it has no r"
        raise InputError(f"no rank: {what}", where=where, hint="a positive integer is expected, as PEFT writes it")
    return rank


def _alpha(config: Mapping[str, Any], where: str) -> float:
    alpha = config.get("lora_alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not -_LARGEST < alpha < _LARGEST:
        what = f"lora_alpha is {alpha!r}"[:80] if "lora_alpha" in config else "it has no lora_alpha"
        raise InputError(f"no scale: {what}", where=where, hint="a number is expected, as PEFT writes it")
    return float(alpha)


def significant_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an ``adapter_config.json`` that change what it computes, in one spelling."""
    table = adapter_fields().fields
    kept: dict[str, Any] = {}
    for name, value in config.items():
        known = table.get(name)
        if known is None:
            kept[name] = value
            continue
        if value is None or known.inert or _among(value, (known.default, *known.inert_values)):
            continue
        if known.one_is_a_list and type(value) is int:
            value = [value]
        sort = known.unordered and isinstance(value, list)
        kept[name] = sorted(value, key=canonical_json) if sort else value
    return {name: _in_order(value) for name, value in kept.items()}


def _in_order(value: Any) -> Any:
    """Return a setting with the keys of its objects in their order.

    PEFT takes the first pattern that matches (0.21.2, ``utils/other.py``, ``get_pattern_key``), and the canonical
    form sorts the keys of an object.
    """
    if isinstance(value, Mapping):
        return {"pairs": [[key, _in_order(item)] for key, item in value.items()]}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


def _among(value: object, values: tuple[object, ...]) -> bool:
    """Say whether ``value`` is one of ``values``, where ``1`` is not ``True``."""
    return any(type(value) is type(item) and value == item for item in values)


def _files(folder: Path) -> tuple[TensorFile, ...]:
    """Return the adapter's files: every safetensors file counts, and no pickle may hold what they lack."""
    names = list_folder(folder)
    found = [name for name in names if name.endswith(".safetensors")]
    for name in names:
        stem, dot, suffix = name.partition(".")
        if stem in _STEMS and dot + suffix in PICKLES and f"{stem}.safetensors" not in found:
            raise InputError(
                f"{name} is pickle; pickle can run code and is never loaded",
                where=str(folder),
                hint="save the adapter as safetensors",
            )
    if WEIGHTS not in found:
        raise InputError(f"no {WEIGHTS} here", where=str(folder))
    left = Left()
    files = tuple(read_header(folder / name, name, left) for name in found)
    if not tensor_holders(folder, files):
        raise InputError("the adapter holds no tensor", where=str(folder))
    return files
