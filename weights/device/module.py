"""The fingerprint of a torch module: the tensors it holds now, under the names it would be saved with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kvgate.rules.progress import Progress, silent
from kvgate.weights.device.contents import hash_contents
from kvgate.weights.device.holding import require_held, stored_form
from kvgate.weights.digest import TensorEntry, tensor_entries
from kvgate.weights.fingerprint import Fingerprint, fingerprint_entries

if TYPE_CHECKING:
    import torch


class _Form(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]


def fingerprint_module(
    module: torch.nn.Module,
    *,
    config: Mapping[str, Any] | None = None,
    unsaved_buffers: bool = False,
    progress: Progress = silent,
) -> Fingerprint:
    """Return the fingerprint of a module's weights where they are: on a GPU, on the CPU, on both.

    It is the one of a checkpoint folder (``kvgate fingerprint``) whose tensors have the same names, types,
    shapes and bytes. The names are those of ``state_dict()``; libraries that rename or fuse tensors on loading
    give other names, and another digest.

    Args:
        module: nobody may write to its weights meanwhile.
        config: the model's effective configuration, which says whether a head is tied and which tensors
            ``kv_digest`` is over; by default what ``module.config.to_dict()`` returns, where there is such a
            thing (transformers). Without one every name counts, both names of a tied head too.
        unsaved_buffers: count buffers too that ``state_dict()`` leaves out. No checkpoint has them, so the
            digest then compares only with others that were made like it.
        progress: told of the bytes that were hashed, or handed to the device that hashes them.

    Raises:
        InputError: when a tensor has no bytes of its own to hash (on the meta device, sharded, sparse,
            quantized by a subclass), or a type that the digest has no name for. Nothing is left out in silence.
    """
    held: dict[str, object] = dict(module.state_dict(keep_vars=True))
    if unsaved_buffers:
        held |= dict(module.named_buffers(remove_duplicate=False))
    return fingerprint_entries(entries_of(held, progress), _configuration(module) if config is None else config)


def entries_of(held: Mapping[str, object], progress: Progress = silent) -> list[TensorEntry]:
    """Hash tensors by name; those that share their memory are read once.

    Raises:
        InputError: as :func:`fingerprint_module`.
    """
    tensors = {name: require_held(name, tensor) for name, tensor in held.items()}
    forms = [_Form(name, *stored_form(name, tensor)) for name, tensor in tensors.items()]
    places = {name: _place(tensor) for name, tensor in tensors.items()}
    distinct = {place: tensors[name] for name, place in places.items()}
    contents = dict(zip(distinct, hash_contents(list(distinct.values()), progress), strict=True))
    return tensor_entries(forms, [contents[place] for place in places.values()])


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two names of one tensor have in common: where it lies and how it is read."""
    marks = (tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), marks)


def _configuration(module: torch.nn.Module) -> Mapping[str, Any] | None:
    describe = getattr(getattr(module, "config", None), "to_dict", None)
    found = describe() if callable(describe) else None
    return found if isinstance(found, Mapping) else None
