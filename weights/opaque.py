"""Pickle checkpoints as what they are without running code: files of bytes that nothing looks into.

Equal files hold equal tensors. Different files say nothing: saving again moves a time stamp or a key. So a digest of
such files compares only with another of them, and only its equality counts.
"""

from __future__ import annotations

import os
from pathlib import Path

from kvgate.rules.errors import InputError
from kvgate.weights.dtypes import OPAQUE
from kvgate.weights.files import open_stamped, read_json_object
from kvgate.weights.tensor_file import TensorFile, TensorRecord

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
RULE = "opaque"  # what stands in kv_rule
_INDEX = "pytorch_model.bin.index.json"
_MAX_INDEX = 32_000_000


def open_opaque(folder: Path, names: list[str]) -> tuple[TensorFile, ...]:
    """Return the pickle files among ``names``, each as one tensor of the type ``OPAQUE`` and its own name.

    The index that says which of them holds what is a file of the checkpoint as they are.

    Raises:
        InputError: a file cannot be read, or the index names one that is not there.
    """
    found = [name for name in names if name.endswith(PICKLES)]
    if found and _INDEX in names:
        weight_map = read_json_object(folder / _INDEX, _MAX_INDEX).get("weight_map")
        wanted = weight_map.values() if isinstance(weight_map, dict) else ()
        missing = next((str(file)[:200] for file in wanted if file not in found), None)
        if missing is not None:
            raise InputError(f"the index names {missing!r}, which is not here", where=str(folder / _INDEX))
        found.append(_INDEX)
    return tuple(whole_file(folder / name, name) for name in sorted(found))


def whole_file(path: Path, name: str) -> TensorFile:
    """Return a file as one tensor of the type ``OPAQUE`` and this name: what is in it nothing looks at.

    Raises:
        InputError: it cannot be read, or its name is not UTF-8.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError("a file name that is not UTF-8", where=os.fsencode(path).decode(errors="replace")) from None
    descriptor, stamp = open_stamped(path)
    os.close(descriptor)
    return TensorFile(path, name, stamp, (TensorRecord(name, OPAQUE, (stamp.size,), 0, stamp.size),))
