"""Number formats: one spelling for each, and which of them a key can be trusted to tell apart."""

from __future__ import annotations

# What engines and people write for one and the same format. vLLM documents fp8 as fp8_e4m3 on CUDA
# (vllm 0.33.0, config/cache.py); the others are torch's own aliases.
_SPELLINGS = {
    "bf16": "bfloat16",
    "double": "float64",
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "fp8_e4m3",
    "half": "float16",
}
KNOWN = frozenset({
    "bfloat16", "float16", "float32", "float64", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "int4", "int8",
    "nvfp4",
})  # fmt: skip
"""The formats whose names are understood; two others may be one format in two spellings."""

# torch stores every 8-bit and 4-bit KV format of vLLM as uint8 (vllm 0.33.0, utils/torch_utils.py:40-66).
_TORCH_STORAGE = dict.fromkeys(("fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "nvfp4"), "uint8")


def canonical_dtype(name: str) -> str:
    """Return the one spelling of a number format; a name that is not understood stays as it is, trimmed."""
    plain = name.strip().lower().removeprefix("torch.")
    return _SPELLINGS.get(plain, plain)


def torch_storage(name: str) -> str:
    """Return the torch dtype in which a KV format is stored."""
    return _TORCH_STORAGE.get(name, name)


def flag_name(name: str) -> str:
    """Return what a KV format may be called in a key that holds vLLM's ``--kv-cache-dtype``.

    ``fp8_ds_mla`` is chosen in the worker, and the scheduler's process may go on calling it ``fp8``
    (vllm-project/vllm#56928), so the two are not told apart.
    """
    return "fp8_e4m3" if name == "fp8_ds_mla" else name
