"""Which files of a folder are its weights, and what their headers say together.

Loaders disagree about that: transformers 5.24 takes ``model.safetensors`` before the index; vLLM (main,
November 2026: model_executor/model_loader/default_loader.py) takes ``consolidated*.safetensors`` when there
is one, else the files of the index, else every ``*.safetensors``. A fingerprint of files that another
loader would not read proves nothing, so here everything that any of them might read counts:

* every ``*.safetensors`` at the top level of the folder, except adapters, which have a fingerprint of their own:
  files called ``adapter_*`` all of whose tensors PEFT named (``base_model.``...), so that no loader takes one of them
  for a tensor of the model;
* every file that ``model.safetensors.index.json`` names, in a subfolder too.

``config.json`` can name the file that transformers 5.24 takes before all of these (``transformers_weights``;
modeling_utils, _get_resolved_checkpoint_files). A folder where that file is none of them is refused.

The index must agree with its shards. What lies in files beside those that it names is another thing than what it
names: vLLM and transformers leave it out, and with ``consolidated*`` some take it instead. So it counts under names of
its own (:data:`ASIDE`), and naming a file in the index, or not any more, is a difference. Two files that hold a tensor
of one name are two sets of weights, of which a loader takes one: that is refused and not guessed. So are shards
(``-00001-of-00003``) that no index vouches for and of which some are missing. Pickle files (``*.bin``, ``*.pt``,
``*.pth``, ``*.ckpt``) are never loaded; beside safetensors they are ignored, as loaders ignore them, and without any
they are refused, or hashed as opaque files where that is asked for (:mod:`kvgate.weights.opaque`). GGUF counts where
there are no safetensors (:mod:`kvgate.weights.gguf`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NoReturn

from kvgate.rules.errors import InputError
from kvgate.weights.files import read_json_object
from kvgate.weights.gguf import GgufModel, open_gguf
from kvgate.weights.opaque import PICKLES, open_opaque
from kvgate.weights.safetensors import Left, read_header
from kvgate.weights.tensor_file import TensorFile

INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"
_SHARD = re.compile(r"(.*?)-?([0-9]{5,})-of-([0-9]{5,})\.[a-z]+")
_NO_FOLDER: dict[type[OSError], str] = {
    FileNotFoundError: "there is no such file or folder",
    NotADirectoryError: "is no checkpoint: neither a folder nor a file of a known kind",
}
_PEFT = "base_model."  # what PEFT's names of adapter tensors begin with (peft 0.21.2, utils/save_and_load.py)
ASIDE = "(not in the index) "
"""What stands before the name of a tensor whose file the index leaves out; no tensor of a checkpoint is called so."""
MAX_INDEX = 32_000_000  # bytes; the index of a checkpoint with 100,000 tensors has about 10 MB


@dataclass(frozen=True)
class Weights:
    """The weights that were found.

    Attributes:
        files: their files, headers read and checked.
        form: what they are.
        gguf: what a GGUF model says beside its tensors.
        aside: the tensors that lie in files which the index leaves out.
    """

    files: tuple[TensorFile, ...]
    form: Literal["safetensors", "gguf", "opaque"]
    gguf: GgufModel | None = None
    aside: frozenset[str] = frozenset()


def open_checkpoint(folder: Path) -> tuple[TensorFile, ...]:
    """Find and check the safetensors in ``folder``; return their files sorted by name.

    Raises:
        InputError: when there are none, when a file breaks the format, when the index and its shards
            disagree, when a shard is missing, when a tensor is in two files, or when there are only pickle files.
    """
    names = list_folder(folder)
    found = _open_safetensors(folder, names)
    return found.files if found is not None else _refuse_nothing(folder, names)


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
    if (found := _open_safetensors(path, names)) is not None:
        if opaque_pickle:
            hint = "leave --opaque-pickle out: loaders take the safetensors"
            raise InputError("there are safetensors beside the pickle files", where=str(path), hint=hint)
        return found
    if opaque_pickle and (files := open_opaque(path, names)):
        _require_all_shards(path, [file.name for file in files])
        _require_named(path, names, {file.name for file in files})
        return Weights(files, "opaque")
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


def _open_safetensors(folder: Path, names: list[str]) -> Weights | None:
    """Return the safetensors files that count; ``None`` where there are none."""
    weight_map = _read_index(folder / INDEX) if INDEX in names else {}
    indexed = set(weight_map.values())
    wanted = indexed | {name for name in names if name.endswith(".safetensors")}
    left = Left()
    found = (read_header(folder / name, name, left) for name in sorted(wanted))
    files = tuple(file for file in found if file.name in indexed or not _is_adapter(file))
    if not files:
        return None
    _require_all_shards(folder, [file.name for file in files if file.name not in indexed])
    holders = tensor_holders(folder, files)
    _check_index(folder / INDEX, weight_map, holders)
    _require_named(folder, names, [*([INDEX] if weight_map else []), *(file.name for file in files)])
    if not holders:
        raise InputError("the safetensors files hold no tensor", where=str(folder))
    aside = [name for name, file in holders.items() if indexed and file not in indexed]
    return Weights(files, "safetensors", aside=frozenset(aside))


def _require_named(folder: Path, names: Iterable[str], counted: Iterable[str]) -> None:
    """Refuse a folder whose config has transformers load a file that is none of those that count."""
    named = read_json_object(folder / _CONFIG, MAX_INDEX).get("transformers_weights") if _CONFIG in names else None
    if named is not None and named not in counted:
        raise InputError(
            f"transformers_weights names {str(named)[:200]!r}, which transformers loads instead of the weights here",
            where=str(folder / _CONFIG),
            hint="save the checkpoint again with transformers: it leaves that field out",
        )


def _is_adapter(file: TensorFile) -> bool:
    return file.name.startswith("adapter_") and all(tensor.name.startswith(_PEFT) for tensor in file.tensors)


def _require_all_shards(folder: Path, names: Iterable[str]) -> None:
    """Refuse files that call themselves some of several, where not all of them are there.

    Without an index loaders take what they find: nobody else notices a copy that was interrupted.
    """
    sets: dict[tuple[str, str], set[int]] = {}
    for name in names:
        if (found := _SHARD.fullmatch(name)) is not None:
            stem, number, count = found.groups()
            sets.setdefault((stem, count), set()).add(int(number))
    for (stem, count), numbers in sets.items():
        first = 0 if 0 in numbers else 1  # both are in use
        missing = set(range(first, first + min(int(count), len(numbers) + 1))) - numbers
        if missing:
            raise InputError(
                f"of {int(count)} shards {stem!r} there are {len(numbers)}; number {min(missing)} is missing",
                where=str(folder),
                hint="download or copy the checkpoint again",
            )


def indexed_files(folder: Path) -> frozenset[str]:
    """Return the files that the folder's index names, in subfolders too; none where there is no index.

    Raises:
        InputError: when the index is none.
    """
    return frozenset(_read_index(folder / INDEX).values()) if (folder / INDEX).exists() else frozenset()


def list_folder(folder: Path) -> list[str]:
    """Return the names in ``folder``, sorted; hidden ones are left out, as loaders' patterns leave them out.

    Raises:
        InputError: when it is not a folder that can be read.
    """
    try:
        return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        hint = "give the folder that holds the safetensors files, a .gguf file, or a tensor map (.jsonl)"
        what = _NO_FOLDER.get(type(error), f"cannot be read as a folder: {error.strerror}")
        raise InputError(what, where=str(folder), hint=hint) from error


def _refuse_nothing(folder: Path, names: list[str]) -> NoReturn:
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise InputError(
            f"only pickle weights here ({pickles[0]}); pickle can run code and is never loaded",
            where=str(folder),
            hint="save the checkpoint as safetensors, or take the files as they are (--opaque-pickle)",
        )
    raise InputError(
        "no safetensors weights here",
        where=str(folder),
        hint="a checkpoint's folder, a GGUF file, an adapter's folder, a tensor map or a captured release is expected",
    )


def tensor_holders(folder: Path, files: tuple[TensorFile, ...]) -> dict[str, str]:
    """Return which file holds each tensor.

    Raises:
        InputError: when two files hold a tensor of one name, or one has a name that no tensor may have.
    """
    holders: dict[str, str] = {}
    for file in files:
        for name, _, _, _, _ in file.tensors:
            if name.startswith(ASIDE):
                raise InputError(f"a tensor with the name {name[:200]!r}", where=str(folder / file.name))
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
