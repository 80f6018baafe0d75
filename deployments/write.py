"""Writing a captured manifest with its sidecars: all of it, or nothing."""

from __future__ import annotations

import copy
import fcntl
import glob
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kvgate.rules.errors import InputError

if TYPE_CHECKING:
    from kvgate.deployments.capture import Captured

MANIFEST = "manifest.yaml"
_NO_FOLDER = frozenset({".json", ".jsonl", ".md", ".toml", ".txt"})  # a file was meant
_LOOKED_AT = 1 << 20  # bytes of a file that say whose it is: `schema` stands in the first lines of all of them
# A string that starts with a letter is a string to every YAML reader, these words apart; PyYAML itself quotes
# the ones it would read as something else.
_PLAIN = re.compile(r"[A-Za-z]")
_WORDS = frozenset(["y", "Y", "n", "N", "NaN", "Infinity"])


def write(captured: Captured, target: Path) -> Path:
    """Write the manifest and its sidecars.

    Args:
        captured: what :func:`kvgate.deployments.capture.capture` returned; its snapshot is copied from where it is.
        target: a file (``.yaml``, ``.yml``), the sidecars go beside it under its name; else a folder, made
            where it does not exist, for ``manifest.yaml``, ``weights.jsonl``, ``tokens.jsonl``,
            and ``served-0.jsonl`` for each rank of an engine that was asked.

    Returns:
        The manifest's path.

    Raises:
        InputError: the place cannot be written to. Nothing is left half-written.
    """
    from kvgate.weights.fingerprint import fingerprint_entries
    from kvgate.weights.tensor_map import write_map

    folder, name = _place(target)
    stem = "" if folder == target else f"{target.stem}."
    manifest = copy.deepcopy(dict(captured.manifest))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".kvgate-", dir=folder))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(target)) from None
    try:
        sidecars = [f"{stem}weights.jsonl"]
        checkpoint = manifest.get("weights", {}).get("checkpoint")
        if checkpoint is not None and captured.weights is not None:
            sha256 = write_map(captured.weights, staging / sidecars[0])
            checkpoint["map"] = {"file": sidecars[0], "sha256": sha256}
        else:
            sidecars = []
        for rank, entry in zip(captured.served, manifest.get("weights", {}).get("served") or (), strict=False):
            sidecars.append(f"{stem}served-{rank.world.rank}.jsonl")
            sha256 = write_map(fingerprint_entries(rank.entries(), None), staging / sidecars[-1])
            entry["map"] = {"file": sidecars[-1], "sha256": sha256}
        if captured.tokens is not None and "tokenizer" in manifest:
            sidecars.append(f"{stem}tokens.jsonl")
            shutil.copyfile(captured.tokens.path, staging / sidecars[-1])
            manifest["tokenizer"]["snapshot"] = {
                "file": sidecars[-1],
                "sha256": captured.tokens.sha256,
                "corpus": captured.tokens.header.corpus,
                "renderer": dict(captured.tokens.header.renderer),
            }
        (staging / name).write_text(dump(manifest), encoding="utf-8")
        with _alone_in(folder):
            _put(staging, folder, [*sidecars, name])
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(target)) from None
    except InputError as error:  # of a sidecar, whose place nobody but this function knows
        raise InputError(error.message, where=str(target)) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder / name


def require_writable(target: Path) -> None:
    """Refuse a place that :func:`write` cannot or should not write to, before the work is done; nothing is left there.

    Raises:
        InputError: it cannot be written to, its name is that of another kind of file, or a file is there that no
            capture wrote.
    """
    folder, _ = _place(target)
    if target.suffix in _NO_FOLDER and not target.is_dir():
        raise InputError("a manifest is a YAML file", where=str(target), hint="NAME.yaml, or a folder")
    try:
        for path in places(target):
            if path.is_dir():
                raise InputError("is a folder, and a file of the capture would be there", where=str(path))
            if path.exists() and not _is_ours(path):
                hint = "move it away, or write to another folder"
                raise InputError("is there, and no capture wrote it", where=str(path), hint=hint)
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        Path(tempfile.mkdtemp(prefix=".kvgate-", dir=folder)).rmdir()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be written: {getattr(error, 'strerror', error)}", where=str(target)) from None


def places(target: Path) -> list[Path]:
    """Return the files that :func:`write` writes or may write: the manifest and its sidecars."""
    folder, name = _place(target)
    stem = "" if folder == target else f"{target.stem}."
    served = folder.glob(f"{glob.escape(stem)}served-*.jsonl")
    return [folder / name, folder / f"{stem}weights.jsonl", folder / f"{stem}tokens.jsonl", *served]


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return b"kvgate/" in file.read(_LOOKED_AT)


def _place(target: Path) -> tuple[Path, str]:
    is_file = target.suffix in (".yaml", ".yml") and not target.is_dir()
    return (target.parent, target.name) if is_file else (target, MANIFEST)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let one capture at a time put its files: a manifest with another's sidecars is of no use."""
    held = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every network file system has locks
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _put(staging: Path, folder: Path, names: Sequence[str]) -> None:
    """Move the files to their places, the manifest last: it vouches for the others. Interrupted, put back what was."""
    kept = Path(tempfile.mkdtemp(dir=staging))
    moved: list[str] = []
    try:
        for name in names:
            if (folder / name).exists():
                shutil.copy2(folder / name, kept / name)
            moved.append(name)
            (staging / name).replace(folder / name)
    except BaseException:
        for name in moved:
            if (kept / name).exists():
                (kept / name).replace(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        raise


def dump(manifest: Mapping[str, Any]) -> str:
    """Return the manifest as YAML that YAML 1.1 and 1.2 readers read alike, keys in the order given."""
    return yaml.dump(dict(manifest), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Quotes every string that some reader could take for something else, and uses no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    plain = _PLAIN.match(text) and text not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _string)
