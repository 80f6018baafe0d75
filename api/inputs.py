"""Reading what a caller hands in: manifests and their sidecars, evidence, waivers, rule packs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvgate.corpora.files import open_regular, reason
from kvgate.rules.credentials import refuse_credentials
from kvgate.rules.document import MAX_BYTES, parse_document
from kvgate.rules.errors import InputError
from kvgate.rules.evidence import Evidence
from kvgate.rules.manifest import Manifest, manifest_from, parse_manifest
from kvgate.rules.pack import Pack, parse_pack, shipped_pack
from kvgate.rules.packaged import data_from, packaged_names
from kvgate.rules.waivers import Waiver, Waivers

ManifestInput = Manifest | Mapping[str, Any] | str | Path


MAX_BULK = 64 << 30
"""Bytes of a tensor map, a snapshot or a corpus of millions of lines: hashed as a stream, half a minute at most."""


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Read a regular file whole, at most ``limit`` bytes.

    Raises:
        InputError: missing, a folder, a pipe or device, no permission, too large.
    """
    return b"".join(_blocks(path, limit))


def hash_file(path: Path, limit: int = MAX_BULK) -> str:
    """Return the digest of a regular file of at most ``limit`` bytes, ``sha256:<64 hex>``.

    Raises:
        InputError: missing, a folder, a pipe or device, no permission, too large.
    """
    hashed = hashlib.sha256()
    for block in _blocks(path, limit):
        hashed.update(block)
    return f"sha256:{hashed.hexdigest()}"


def _blocks(path: Path, limit: int) -> Iterator[bytes]:
    _refuse_what_is_no_file(path)
    with open_regular(path) as file:
        size, seen = os.fstat(file.fileno()).st_size, 0
        while max(size, seen) <= limit:  # refused before it is read, and again where it grows meanwhile
            try:
                block = file.read(1 << 20)
            except OSError as error:
                raise InputError(f"cannot be read: {reason(error)}", where=str(path)) from None
            if not block:
                return
            seen += len(block)
            yield block
    raise InputError(f"more than the {limit:,} bytes allowed", where=str(path))


def _refuse_what_is_no_file(path: Path) -> None:
    """Say what is there instead of a regular file. Opening it checks again; this is for the words alone.

    A pipe cannot be read a second time when the record is verified, and one without a writer never ends.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(path)) from None
    except (OSError, ValueError):  # opening it says why; ValueError: a NUL in the name
        return
    if stat.S_ISDIR(mode):
        raise InputError("is a folder, not a file", where=str(path), hint="name the manifest in it")
    if not stat.S_ISREG(mode):
        raise InputError(
            "is a pipe or a device, not a file",
            where=str(path),
            hint="'-' reads one manifest from standard input; write anything else to a file first",
        )


def load_manifest(given: ManifestInput) -> Manifest:
    """Return a manifest from a path, plain data, or as it is. A folder stands for the ``manifest.yaml`` in it.

    Raises:
        InputError: unreadable or not a manifest.

    """
    if isinstance(given, Manifest):
        return given
    if isinstance(given, Mapping):
        return manifest_from(given)
    path = Path(given)
    inside = path / "manifest.yaml"
    with contextlib.suppress(OSError):  # a name that is too long: reading it says so
        path = inside if inside.is_file() else path
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise InputError(
            "is a folder without a manifest.yaml", where=str(path), hint="`kvgate capture MODEL -o` this folder first"
        )
    return parse_manifest(read_bytes(path), str(path))


def sidecar_path(manifest: Manifest, field: str, limit: int = MAX_BULK) -> tuple[Path, str] | None:
    """Return path and digest of a sidecar that a manifest names, once its bytes have been checked; else ``None``.

    Args:
        manifest: the manifest.
        field: ``weights.checkpoint.map``, ``weights.served.RANK.map`` or ``tokenizer.snapshot``.
        limit: the most bytes that whoever reads it would take; a larger one is not read.

    Raises:
        InputError: missing, outside the manifest's folder, or with another digest: evidence that was lost or
            exchanged is no evidence.

    """
    named = manifest.value(field)
    if named is None:
        return None
    name, expected = named["file"], named["sha256"]
    where = manifest.where(field)
    if Path(name).is_absolute() or ".." in Path(name).parts or "\x00" in name:
        raise InputError(f"{field}: the sidecar must lie in the manifest's folder", where=where)
    path = Path(manifest.source).parent / name
    try:
        actual = hash_file(path, limit)
    except InputError as error:
        raise InputError(
            f"{field}: the sidecar {name} is missing or unreadable: {error.message}",
            where=where,
            hint="keep it beside the manifest, or capture again",
        ) from None
    if actual != expected:
        raise InputError(
            f"{field}: the sidecar {name} has another digest than the manifest says",
            where=where,
            hint="it was exchanged or damaged; capture again",
        )
    return path, expected


def manifest_files(manifest: Manifest) -> Iterator[Path]:
    """Yield the files that a manifest is read from and names: itself, its sidecars, its tokenizer's files."""
    source = Path(manifest.source)
    yield source
    ranks = [f"weights.served.{rank}.map" for rank in manifest.value("weights.served") or ()]
    for field in ("weights.checkpoint.map", *ranks, "tokenizer.snapshot"):
        if (named := manifest.value(field)) is not None:
            yield source.parent / named["file"]
    if (folder := manifest.value("tokenizer.path")) is not None:
        for name in manifest.value("tokenizer.files") or ():
            yield Path(folder) / name


def evidence_files(given: str | Path) -> list[Path]:
    """Return the files that evidence is read from: a folder stands for every ``*.json`` in it, in name order."""
    path = Path(given)
    return sorted(path.glob("*.json")) if path.is_dir() else [path]


def load_evidence(paths: Iterable[str | Path]) -> list[tuple[Evidence, str, str]]:
    """Read evidence files; a folder stands for every ``*.json`` in it, in name order.

    Returns:
        The evidence, its path and the digest of its bytes.

    Raises:
        InputError: unreadable, not evidence, holding a credential, or a folder without any.

    """
    found = []
    for given in paths:
        files = evidence_files(given)
        if not files:
            raise InputError("holds no evidence (*.json)", where=str(given))
        for file in files:
            data = read_bytes(file)
            document, lines = parse_document(data, str(file))
            refuse_credentials(document, str(file), lines)
            evidence = data_from(document, str(file), Evidence, lines)
            found.append((evidence, str(file), f"sha256:{hashlib.sha256(data).hexdigest()}"))
    return found


def load_pack(given: str | Path) -> tuple[Pack, tuple[str, str] | None]:
    """Return a rule pack, and path and digest where it is a file and not a shipped one.

    Raises:
        UsageError: neither a shipped pack nor a file.
        InputError: not a complete rule pack.

    """
    if str(given) in packaged_names("packs") or not Path(given).exists():
        return shipped_pack(str(given)), None
    data = read_bytes(Path(given))
    return parse_pack(data, str(given)), (str(given), f"sha256:{hashlib.sha256(data).hexdigest()}")


def load_waivers(path: str | Path | None) -> tuple[tuple[Waiver, ...], tuple[str, str] | None]:
    """Return the waivers of a file, with its path and digest.

    Raises:
        InputError: unreadable, not a waivers file, or holding a credential.

    """
    if path is None:
        return (), None
    data = read_bytes(Path(path))
    document, lines = parse_document(data, str(path))
    refuse_credentials(document, str(path), lines)
    waivers = data_from(document, str(path), Waivers, lines)
    return tuple(waivers.waivers), (str(path), f"sha256:{hashlib.sha256(data).hexdigest()}")
