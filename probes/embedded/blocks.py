"""KV in a scratch folder: one safetensors file for each name that a connector gives. Runs in the child only.

Files are called by the hash of place and name, so that no name can reach out of the folder; the name itself stands in
the file. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_SAVED = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


class StoredLayer(DynamicLayer):  # type: ignore[misc]  # torch and transformers are not typed for mypy here
    """One layer's KV, every token of it kept, rounded to the number format in which it is stored.

    Windowed layers keep all tokens too, as a paged engine's blocks do; what a query may see is up to the mask. The
    library's own windowed layer keeps the window alone and counts what it dropped, so that blocks restored into it
    without that count are read at wrong positions.
    """

    def __init__(self, saved: torch.dtype) -> None:
        super().__init__()
        self._saved = saved

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        """Add tokens, and return all."""
        rounded = [one.to(self._saved).to(one.dtype) for one in (key_states, value_states)]
        return super().update(*rounded, *args, **kwargs)


def empty_cache(layers: int, saved: str) -> Any:
    """Return a cache without tokens."""
    cache = DynamicCache()
    cache.layers = [StoredLayer(_SAVED[saved]) for _ in range(layers)]
    return cache


class Store:
    """The entries of one scratch store."""

    def __init__(self, folder: Path, place: str, saved: str) -> None:
        self._folder = folder
        self._place = place
        self._saved = _SAVED[saved]

    def restore(
        self, cache: Any, stretches: Sequence[tuple[int, Sequence[str]]], most: int, placed: Mapping[str, Any]
    ) -> list[str]:
        """Fill an empty cache with leading stretches, as far as all names of each lie here; return those names.

        Args:
            cache: see :func:`empty_cache`.
            stretches: end and names of each, in order.
            most: tokens that may be restored; one has to be left to compute.
            placed: the number format of the model, and the device that it is on.

        """
        read: list[str] = []
        for end, names in stretches:
            files = [self._file(name) for name in names]
            if end > most or not files or not all(file.exists() for file in files):
                break
            tensors: dict[str, Any] = {}
            for file in files:
                with safe_open(file, framework="pt") as opened:
                    tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
            for number, layer in enumerate(cache.layers):
                if (key := tensors.get(f"{number}.k")) is not None:
                    kv = (self._understood(one).to(**placed) for one in (key, tensors[f"{number}.v"]))
                    layer.update(*kv)
            read += names
        return read

    def save(self, cache: Any, stretches: Sequence[tuple[int, Sequence[str]]]) -> list[str]:
        """Store every stretch of a cache that does not lie here yet; return the names that were written."""
        written: list[str] = []
        begin = 0
        self._folder.mkdir(exist_ok=True)
        for end, names in stretches:
            tensors = {
                f"{number}.{part}": states[:, :, begin:end].to(device="cpu", dtype=self._saved).contiguous()
                for number, layer in enumerate(cache.layers)
                if layer.get_seq_length()
                for part, states in (("k", layer.keys), ("v", layer.values))
            }
            begin = end
            labels = sorted(tensors)
            for number, name in enumerate(names):
                if not (file := self._file(name)).exists():
                    save_file({one: tensors[one] for one in labels[number :: len(names)]}, file, {"name": name})
                    written.append(name)
        return written

    def _understood(self, stored: Any) -> Any:
        """What a reader makes of stored numbers of another format: of equal size, other numbers in the same bytes."""
        if stored.dtype != self._saved and stored.element_size() == self._saved.itemsize:
            return stored.view(self._saved)
        return stored

    def _file(self, name: str) -> Path:
        hashed = hashlib.sha256(f"{self._place}\x00{name}".encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / f"{hashed}.safetensors"
