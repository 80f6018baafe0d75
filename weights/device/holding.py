"""Which tensors hold what they stand for, and what their type is called: everything else is refused.

A tensor object may be a promise (meta), one part of a tensor (sharded), or a shell round others (quantized
subclasses): the bytes it shows are then not the weights. A fingerprint of such bytes would be wrong without
anybody noticing, so each is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvgate.rules.errors import InputError

if TYPE_CHECKING:
    import torch

# torch's name of a type → the safetensors name (safetensors 0.8.0, safetensors/torch.py). torch's other types
# are in no checkpoint: complex32 and complex128, the quantized q*, and the shells int1 ... uint7 and bits*.
DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
}
_PAIRED = "F4"  # two in a byte: torch counts bytes, safetensors elements


def stored_form(name: str, tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """Return the safetensors dtype and shape that the tensor is stored with.

    Raises:
        InputError: for a type that safetensors does not have.
    """
    spelled = str(tensor.dtype).removeprefix("torch.")
    dtype, shape = DTYPES.get(spelled), tuple(tensor.shape)
    if dtype is None or (dtype == _PAIRED and not shape):
        raise InputError(f"the type {spelled} has no name in the weight digest, version 1", where=name)
    return dtype, (*shape[:-1], shape[-1] * 2) if dtype == _PAIRED else shape


def require_held(name: str, tensor: object) -> torch.Tensor:
    """Return the tensor if its memory is what it stands for.

    Raises:
        InputError: when it is no tensor, has no memory (meta, lazy), is sharded, sparse or quantized by a
            subclass or by torch, or carries further tensors as attributes.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        kind = type(tensor).__name__
        raise InputError(f"the state holds a {kind}, which is no tensor and has no place in the digest", where=name)
    kind = type(tensor).__name__
    if torch.nn.parameter.is_lazy(tensor):
        raise InputError("the parameter has no shape yet", where=name, hint="run the module once, or load its weights")
    if tensor.is_meta:
        hint = "load the weights; offloaded ones must be brought back first"
        raise InputError("the tensor is on the meta device: it has no bytes", where=name, hint=hint)
    if kind in ("DTensor", "ShardedTensor"):
        hint = "fingerprint the gathered module, or the local shards (to_local()) as served weights"
        raise InputError(f"a {kind} holds one shard of the tensor", where=name, hint=hint)
    if tensor.is_quantized or tensor.layout is not torch.strided or hasattr(tensor, "__tensor_flatten__"):
        raise InputError(f"a {kind} keeps its values in several tensors, not in bytes of its own", where=name)
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise InputError(f"a {kind} computes what it holds; its bytes do not say it", where=name)
    for attribute in _further_tensors(tensor):
        hint = "quantization state that is kept as an attribute is in no digest"
        raise InputError(f"the tensor carries further tensors in its attribute {attribute!r}", where=name, hint=hint)
    return tensor


def _further_tensors(tensor: torch.Tensor) -> Iterator[str]:
    """Yield the attributes of a tensor object that hold tensors, directly or one level down; not gradients."""
    import torch

    for name, value in vars(tensor).items():
        if not name.endswith("grad") and any(isinstance(each, torch.Tensor) for each in _contained(value)):
            yield name


def _contained(value: Any) -> list[Any]:
    """Return a value, the elements of a container and the attributes of an object; not what a method is bound to."""
    if isinstance(value, dict):
        return [*value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [*value]
    if callable(value) or isinstance(value, type):
        return []
    return [value, *vars(value).values()] if hasattr(value, "__dict__") else [value]
