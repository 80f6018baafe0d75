"""What else lies in a model's folder: files that an engine, or a model's class, may read by their names.

Nothing here knows what is in them. Each counts by its bytes, as a part of the effective configuration, so that two
folders of which one has another such file are not called the same.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvgate.rules.document import parse_document
from kvgate.rules.progress import Progress, silent
from kvgate.weights.checkpoint import indexed_files, list_folder
from kvgate.weights.fingerprint import file_digests

_TENSORS = ".safetensors"


class _Listed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["kvgate/side-files/v1"] = Field(alias="schema")
    source: str
    checked: str
    read_elsewhere: list[str]
    inert: list[str]


def side_files(folder: Path, progress: Progress = silent, *, subfolders: bool) -> dict[str, str]:
    """Return the digest of each file of the folder that is on no list, by its path inside it.

    Args:
        folder: the model's folder.
        progress: told of the bytes.
        subfolders: whether safetensors in subfolders count. Some model classes read those by themselves: an audio
            encoder (vllm 0.32.0, model_executor/models/kimi_audio.py), an audio tokenizer (mimo_audio.py).

    Raises:
        InputError: a file cannot be read, or changes meanwhile.
    """
    known = (*_listed().read_elsewhere, *_listed().inert)
    names = [
        name
        for name in list_folder(folder)
        if name.endswith(".json") and not name.startswith(".") and not any(fnmatchcase(name, one) for one in known)
    ]
    if subfolders:
        indexed = indexed_files(folder)
        below = (path.relative_to(folder) for path in sorted(folder.rglob(f"*{_TENSORS}")) if path.parent != folder)
        visible = (path.as_posix() for path in below if not any(part.startswith(".") for part in path.parts))
        names += [name for name in visible if name not in indexed]
    return file_digests(folder, names, progress)


@cache
def _listed() -> _Listed:
    name = "side_files.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    return _Listed.model_validate(parse_document(data, name)[0])
