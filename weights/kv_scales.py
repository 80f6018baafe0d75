"""The scales with which a quantized KV cache is written, where a checkpoint brings them: a digest of their own.

They are tensors like the others and count in every digest. Alone they say whether an fp8 cache of two checkpoints is
written alike (``precision.kv_scales``): what is stored under another scale means another number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvgate.weights.digest import TensorEntry, root_digest

# Tensors that scale the KV cache (vllm/model_executor/model_loader/weight_utils.py maybe_remap_kv_scale_name, 0.33.0).
_NAME = re.compile(
    r"(?:^|[._])(?:k|v|kv|q|prob)_(?:scale|zero_point)$|[._](?:k|v|qkv)_proj\.output_scale$|\.(?:q|[kv]_cache)\.scale$"
)


def is_kv_scale(name: str) -> bool:
    """Say whether an engine takes a tensor of this name as a scale of the KV cache."""
    return _NAME.search(name) is not None


def kv_scales_digest(entries: Iterable[TensorEntry]) -> str | None:
    """Return the root over the KV scales among a checkpoint's tensors; ``None``: there are none, so they are 1.0."""
    scales = [entry for entry in entries if is_kv_scale(entry.name)]
    return root_digest(scales) if scales else None
