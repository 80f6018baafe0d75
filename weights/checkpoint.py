"""Which files of a folder are its weights, and what their headers say together.

Loaders disagree about that: transformers 5.24 takes ``model.safetensors`` before the index; vLLM (main,
November 2026: model_executor/model_loader/default_loader.py) takes ``consolidated*.safetensors`` when there
is one, else the files of the index, else every ``*.safetensors``. A fingerprint of files that another
loader would not read proves nothing, so here everything that any of them might read counts:

* every ``*.safetensors`` at the top level of the folder, except adapters (``adapter_*.safetensors``), which
  have a fingerprint of their own;
* every file that ``model.safetensors.index.json`` names, in a subfolder too.

The index must agree with its shards. Two files that hold a tensor of one name are two sets of weights, of
which a loader takes one: that is refused and not guessed. Pickle files (``*.bin``, ``*.pt``, ``*.pth``,
``*.ckpt``) are never loaded; beside safetensors they are ignored, as loaders ignore them, and without any they are
refused, or hashed as opaque files where that is asked for (:mod:`kvgate.weights.opaque`). GGUF counts where there are
no safetensors (:mod:`kvgate.weights.gguf`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NoReturn

from kvgate.rules.errors import InputError
from kvgate.weights.files import read_json_object
from kvgate.weights.gguf import GgufModel, open_gguf
from kvgate.weights.opaque import PICKLES, open_opaque
from kvgate.weights.safetensors import read_header
from kvgate.weights.tensor_file import TensorFile

INDEX = "model.safetensors.index.json"
MAX_INDEX = 32_000_000  # bytes; the index of a checkpoint with 100,000 tensors has about 10 MB


@dataclass(frozen=True)
class Weights:
    """The weights that were found.

    Attributes:
        files: their files, headers read and checked.
        form: what they are.
        gguf: what a GGUF model says beside its tensors.
    """

    files: tuple[TensorFile, ...]
    form: Literal["safetensors", "gguf", "opaque"]
    gguf: GgufModel | None


def open_checkpoint(folder: Path) -> tuple[TensorFile, ...]:
    """Find and check the weights in ``folder``; return their files sorted by name.

    Raises:
        InputError: when there are none, when a file breaks the format, when the index and its shards
            disagree, when a tensor is in two files, or when there are only pickle files.
    """
    return _open_safetensors(folder, list_folder(folder))


def open_weights(path: Path, *, opaque_pickle: bool = False) -> Weights:
    """Find and check the weights at ``path``, whatever form they have.

    Args:
        path: a checkpoint folder, or a GGUF file (any part of a split one).
        opaque_pickle: whether pickle files count, as files that nothing looks into, where there is nothing else.

    Raises:
        InputError: as :func:`open_checkpoint`; a folder holds several GGUF models and no safetensors; pickle files
            are asked for and others are there.
    """
    if path.is_file() and path.suffix == ".gguf":
        return _gguf(path)
    names = list_folder(path)
    if any(name.endswith(".safetensors") and not name.startswith("adapter_") for name in names) or INDEX in names:
        if opaque_pickle:
            hint = "leave --opaque-pickle out: loaders take the safetensors"
            raise InputError("there are safetensors beside the pickle files", where=str(path), hint=hint)
        return Weights(_open_safetensors(path, names), "safetensors", None)
    if opaque_pickle and (files := open_opaque(path, names)):
        return Weights(files, "opaque", None)
    ggufs = [name for name in names if name.endswith(".gguf")]
    if not ggufs:
        _refuse_nothing(path, names)
    model = _gguf(path / ggufs[0])
    if strangers := sorted(set(ggufs) - {file.name for file in model.files}):
        what = f"several GGUF models here ({ggufs[0]}, {strangers[0]})"
        raise InputError(what, where=str(path), hint="give the file that is served")
    return model


def _gguf(path: Path) -> Weights:
    model = open_gguf(path)
    tensor_holders(path, model.files)
    if not any(file.tensors for file in model.files):
        raise InputError("the GGUF file holds no tensor", where=str(path))
    return Weights(model.files, "gguf", model)


def _open_safetensors(folder: Path, names: list[str]) -> tuple[TensorFile, ...]:
    weight_map = _read_index(folder / INDEX) if INDEX in names else {}
    wanted = {name for name in names if name.endswith(".safetensors") and not name.startswith("adapter_")}
    files = tuple(read_header(folder / name, name) for name in sorted(wanted | set(weight_map.values())))
    if not files:
        _refuse_nothing(folder, names)
    holders = tensor_holders(folder, files)
    _check_index(folder / INDEX, weight_map, holders)
    if not holders:
        raise InputError("the safetensors files hold no tensor", where=str(folder))
    return files


def list_folder(folder: Path) -> list[str]:
    """Return the names in ``folder``, sorted.

    Raises:
        InputError: when it is not a folder that can be read.
    """
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        hint = "give the folder that holds the safetensors files"
        what = f"cannot be read as a folder: {error.strerror}"
        raise InputError(what, where=str(folder), hint=hint) from error


def _refuse_nothing(folder: Path, names: list[str]) -> NoReturn:
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise InputError(
            f"only pickle weights here ({pickles[0]}); pickle can run code and is never loaded",
            where=str(folder),
            hint="save the checkpoint as safetensors, or take the files as they are (--opaque-pickle)",
        )
    raise InputError("no safetensors weights here", where=str(folder))


def tensor_holders(folder: Path, files: tuple[TensorFile, ...]) -> dict[str, str]:
    """Return which file holds each tensor.

    Raises:
        InputError: when two files hold a tensor of one name.
    """
    holders: dict[str, str] = {}
    for file in files:
        for name, _, _, _, _ in file.tensors:
            other = holders.setdefault(name, file.name)
            if other != file.name:
                raise InputError(
                    f"tensor {name[:200]!r} is in {other} and in {file.name}; loaders disagree about which one counts",
                    where=str(folder),
                    hint="remove the files that are not served",
                )
    return holders


def _check_index(path: Path, weight_map: dict[str, str], holders: dict[str, str]) -> None:
    hint = "download or save the checkpoint again"
    for name, file in weight_map.items():
        if holders.get(name) != file:
            what = f"the index puts tensor {name[:200]!r} into {file}; it is not there"
            raise InputError(what, where=str(path), hint=hint)


def _read_index(path: Path) -> dict[str, str]:
    """Return the index's ``weight_map``: tensor name to file, with files that stay inside the folder."""
    document = read_json_object(path, MAX_INDEX)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError("no weight_map in the index", where=str(path))
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _stays_inside(file):
            raise InputError(
                f"the index puts tensor {name[:200]!r} into {str(file)[:200]!r}",
                where=str(path),
                hint="a safetensors file inside the folder is expected",
            )
    return weight_map


def _stays_inside(file: str) -> bool:
    """Say whether ``file`` names a safetensors file below the folder, in its one plain spelling."""
    pure = PurePosixPath(file)
    plain = str(pure) == file and file.isprintable() and not pure.is_absolute() and ".." not in pure.parts
    return plain and pure.suffix == ".safetensors"
