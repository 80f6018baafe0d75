"""The checkpoints that answer in a rehearsal: those that hold what the manifests say, and go on holding it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.rules.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvgate.probes.embedded.backend import Folders
    from kvgate.rules.manifest import Manifest
    from kvgate.rules.progress import Progress

_Stamps = dict[str, tuple[int, int, int]]


@dataclass(frozen=True)
class Checkpoints:
    """Both sides' folders, as they were when they were looked at.

    Attributes:
        folders: what models are loaded from.
        stamps: of every file that a model or an adapter is made of.
        adapters: folders of those that answer.

    """

    folders: Folders
    stamps: _Stamps
    adapters: tuple[Path, ...]

    def written_to(self) -> str | None:
        """Return a file that is not what it was: what ran is not known to be what was hashed; ``None``: none."""
        now = _stamps((self.folders.old, self.folders.new, *self.adapters))
        changed = sorted(name for name in now.keys() | self.stamps.keys() if now.get(name) != self.stamps.get(name))
        return changed[0] if changed else None


def find_checkpoints(
    old: Manifest,
    new: Manifest,
    given: tuple[Path | None, Path | None],
    adapters: Sequence[str] = (),
    *,
    must: bool,
    progress: Progress,
) -> tuple[Checkpoints | None, str | None]:
    """Return both checkpoints, once they were seen to hold what the manifests say; else why a stand-in answers.

    Args:
        old: one side.
        new: the other.
        given: checkpoints that lie elsewhere than ``model.id`` says.
        adapters: ``NAME=FOLDER`` of those that lie elsewhere than their manifests say; where both sides have one of
            that name, its bytes say whose it is.
        must: whether nothing else may answer.
        progress: told how much was hashed.

    Raises:
        InputError: the real model was asked for, and cannot answer; a folder holds no adapter of that name.
        UsageError: an adapter is not given as ``NAME=FOLDER``.

    """
    from kvgate.probes.embedded.backend import Folders

    sides = list(zip((old, new), given, strict=True))
    told = [folder or Path(str(side.value("model.id"))) for side, folder in sides]
    places = [folder.resolve() for folder in told]
    named = [one for side, _ in sides for one in _adapters(side)]
    folders = [_pair(text) for text in adapters]
    stamps = _stamps((*places, *(one.place for one in named), *(folder for _, folder in folders)))
    elsewhere = _recognised(folders, named)
    for (side, folder), place, called in zip(sides, places, told, strict=True):
        why = _why_not(side, place, elsewhere, progress)
        if why is not None and (must or folder is not None or adapters):
            here = place.is_dir()
            raise InputError(
                why, where=str(called), hint="--model stand-in" if here else "--old-model FOLDER, --new-model FOLDER"
            )
        if why is not None:
            return None, f"{called}: {why}"
    read = tuple(dict.fromkeys(elsewhere.get(str(one.digest), one.place) for one in named))
    watched = (*places, *read)
    kept = {file: stamp for file, stamp in stamps.items() if Path(file).parent in watched}
    return Checkpoints(Folders(places[0], places[1], elsewhere), kept, read), None


@dataclass(frozen=True)
class _Adapter:
    name: str
    place: Path
    digest: str | None


def _adapters(side: Manifest) -> list[_Adapter]:
    return [
        _Adapter(name, Path(str(entry.get("path"))).resolve(), entry.get("digest"))
        for name, entry in (side.value("adapters") or {}).items()
        if entry.get("removed") is not True
    ]


def _pair(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise UsageError(f"{text!r} is not NAME=FOLDER", where="--adapter")
    return name, Path(folder).resolve()


def _recognised(folders: Iterable[tuple[str, Path]], named: Iterable[_Adapter]) -> dict[str, Path]:
    """Return folders by the digests of the adapters that they hold.

    Raises:
        InputError: one holds none of that name.

    """
    from kvgate.weights.adapters import fingerprint_adapter

    known = {(one.name, one.digest) for one in named}
    found = {}
    for name, folder in folders:
        digest = fingerprint_adapter(folder).digest
        if (name, digest) not in known:
            why = f"does not hold the bytes that either manifest has for {name!r}"
            raise InputError(why, where=str(folder), hint="capture it again")
        found[digest] = folder
    return found


def _why_not(side: Manifest, folder: Path, elsewhere: Mapping[str, Path], progress: Progress) -> str | None:
    """Say why a checkpoint cannot answer for a manifest; ``None`` where it can."""
    from kvgate.cli.commands.stored import Stored
    from kvgate.probes.embedded.real import too_large
    from kvgate.weights.adapters import fingerprint_adapter

    if not folder.is_dir():
        return "there is no checkpoint folder there"
    if (why := too_large(folder)) is not None:
        return why
    expected = side.value("weights.checkpoint.digest")
    if expected is None:
        return "the manifest has no digest of its weights"
    if Stored(None, opaque=False, progress=progress).checkpoint(folder).digest != expected:
        return f"it does not hold the weights of {side.source}"
    for one in _adapters(side):
        if one.digest in elsewhere:
            continue
        way = f"(--adapter {one.name}=FOLDER)"
        try:
            found = fingerprint_adapter(one.place).digest
        except InputError as error:
            return f"the adapter {one.name!r}: {error} {way}"
        if found != one.digest:
            return f"the adapter {one.name!r}: {one.place} does not hold the bytes of {side.source} {way}"
    return None


def _stamps(folders: Iterable[Path]) -> _Stamps:
    found: _Stamps = {}
    for file in (
        file for folder in folders for pattern in ("*.safetensors", "*.json") for file in folder.glob(pattern)
    ):
        try:
            told = file.stat()
        except OSError:
            continue
        found[str(file)] = (told.st_size, told.st_mtime_ns, told.st_ino)
    return found
