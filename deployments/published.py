"""What a hub says of a repository's weights without a byte of them: file digests, and headers of safetensors and GGUF.

Equal files are proved by their SHA-256. Of files that differ the headers may settle it one way only: another name, type
or shape of a tensor is a difference, and so is what GGUF says beside its tensors; equal headers prove nothing, because
the bytes behind them are not looked at.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvgate.deployments.hub import SECONDS, explained
from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent

if TYPE_CHECKING:
    from kvgate.weights.gguf import GgufHeader

_PARTIAL = 206  # HTTP
_TENSORS = ".safetensors"
_GGUF = ".gguf"
_OTHERS = (_GGUF, ".bin", ".pt", ".pth", ".ckpt")
_INDEX = ".index.json"
_PEFT = "base_model."  # what PEFT's names of adapter tensors begin with (peft 0.21.2, utils/save_and_load.py)
_Header = dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class PublishedFile:
    """One file of a repository.

    Attributes:
        digest: ``sha256:<64 hex>`` of a file in Git LFS, ``git-blob:<40 hex>`` of another.
        bytes: its size.
    """

    digest: str
    bytes: int


@dataclass(frozen=True)
class Published:
    """A repository at one commit, as the hub describes it.

    Attributes:
        repo: ``org/name``.
        commit: the 40-hex commit that the revision stands for.
        files: every file of it.
    """

    repo: str
    commit: str
    files: Mapping[str, PublishedFile]

    @property
    def weights(self) -> dict[str, PublishedFile]:
        """The files that a loader may take tensors from, and what says where they are.

        All safetensors, in subfolders too: some model classes read those by themselves. Other formats count where
        the top level has no safetensors; beside them loaders leave the others alone.
        """
        top = any(name.endswith(_TENSORS) and "/" not in name for name in self.files)
        wanted = (_TENSORS, _INDEX) if top else (_TENSORS, _INDEX, *_OTHERS)
        return {name: file for name, file in self.files.items() if name.endswith(wanted)}


@dataclass(frozen=True)
class PublishedDifference:
    """How the weights of two revisions differ, as far as the hub says.

    Attributes:
        state: ``equal``: the same files, proved; ``different``: headers differ, proved; ``undecided``: other files, and
            what their tensors hold has to be compared.
        files: weight files that only one side has, or that differ.
        added: tensors that only the new headers name; empty where headers were not read, as are the next two.
        removed: tensors that only the old ones name.
        changed: tensors that have another type or shape; of GGUF files, behind the name of the file, what differs.
        fetch: how many bytes would have to be fetched to compare the tensors.
    """

    state: Literal["equal", "different", "undecided"]
    files: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    fetch: int = 0


def published(repo: str, revision: str | None, *, endpoint: str | None = None) -> Published:
    """Ask the hub which files a revision has; nothing of them is fetched.

    Token, endpoint and offline mode are huggingface_hub's own, as with :func:`kvgate.deployments.hub.obtain`.

    Args:
        repo: ``org/name``.
        revision: a branch, tag or commit; ``None``: the default branch.
        endpoint: another hub than ``HF_ENDPOINT`` says.

    Raises:
        InputError: no such repository or revision, no access, not reachable, or an answer without digests.
    """
    from huggingface_hub import HfApi

    name = f"{repo}@{revision}" if revision else repo
    try:
        api = HfApi(endpoint=endpoint, library_name="kvgate")
        found = api.model_info(repo, revision=revision, files_metadata=True, timeout=SECONDS)
        files = {one.rfilename: _file(one.blob_id, one.lfs, one.size) for one in found.siblings or ()}
    except Exception as error:
        raise explained(error, name) from None
    if not isinstance(found.sha, str) or len(found.sha) != 40:
        raise InputError("the hub does not say which commit this is", where=name)
    known = {name: file for name, file in files.items() if file is not None}
    if len(known) != len(files):
        raise InputError("the hub publishes no digests of its files", where=name, hint="fetch the weights")
    return Published(repo, found.sha, known)


def compare_published(
    old: Published, new: Published, progress: Progress = silent, *, endpoint: str | None = None
) -> PublishedDifference:
    """Say how the weights of two revisions differ without fetching them.

    The headers of the safetensors files that only one side has are read by range requests, no more; and those of GGUF
    files that both have under one name, where the package for GGUF is installed.

    Args:
        old: what :func:`published` returned.
        new: the other side, of the same repository or another.
        progress: told of the headers.
        endpoint: another hub than ``HF_ENDPOINT`` says.

    Raises:
        InputError: a revision has no weights, or a header cannot be read.
    """
    for side in (old, new):
        if not any(_holds_tensors(name) for name in side.weights):
            raise InputError("holds no weights", where=f"{side.repo}@{side.commit}")
    known = _sound(old.weights)
    if known is not None and known == _sound(new.weights):
        return PublishedDifference("equal")
    files = tuple(
        sorted(
            name for name in old.weights.keys() | new.weights.keys() if old.weights.get(name) != new.weights.get(name)
        )
    )
    # A file that the other side has too, under whatever name, adds nothing to a difference.
    alone = [_without(old.weights, new.weights), _without(new.weights, old.weights)]
    fetch = sum(file.bytes for names in alone for file in names.values())
    common = [name for name in alone[0] if name in alone[1] and name.endswith(_GGUF)]
    if common and importlib.util.find_spec("gguf") is not None:
        changed = tuple(_changed_in_gguf(old, new, common, progress, endpoint))
        return PublishedDifference("different" if changed else "undecided", files, changed=changed, fetch=fetch)
    if not all(_surely_read(side, name) for side, names in zip((old, new), alone, strict=True) for name in names):
        return PublishedDifference("undecided", files, fetch=fetch)
    total, done = sum(map(len, alone)), 0
    headers: list[_Header] = []
    for side, names in zip((old, new), alone, strict=True):
        found: _Header = {}
        for name in names:
            if "/" not in name:
                header = _header(side, name, endpoint)
                found |= {} if _is_adapter(name, header) else header
            done += 1
            progress("reading headers", done, total, "files")
        headers.append(found)
    before, after = headers
    changed = tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name]))
    added, removed = tuple(sorted(after.keys() - before.keys())), tuple(sorted(before.keys() - after.keys()))
    differs = bool(added or removed or changed)
    return PublishedDifference("different" if differs else "undecided", files, added, removed, changed, fetch)


def _changed_in_gguf(
    old: Published, new: Published, names: Sequence[str], progress: Progress, endpoint: str | None
) -> Iterator[str]:
    """Yield what differs in the headers of GGUF files that both sides have."""
    for number, name in enumerate(names, start=1):
        before, after = (_gguf_header(side, name, endpoint) for side in (old, new))
        if before.metadata_digest != after.metadata_digest:
            yield f"{name}: what it says beside its tensors"
        tensors = before.tensors.keys() | after.tensors.keys()
        for tensor in sorted(one for one in tensors if before.tensors.get(one) != after.tensors.get(one)):
            yield f"{name}: {tensor}"
        progress("reading headers", number, len(names), "files")


def _gguf_header(side: Published, name: str, endpoint: str | None) -> GgufHeader:
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    from kvgate.weights.gguf import read_gguf_header

    where = f"{side.repo}@{side.commit}/{name}"
    url = hf_hub_url(side.repo, name, revision=side.commit, endpoint=endpoint)

    def read(begin: int, end: int) -> bytes:
        headers = {**build_hf_headers(library_name="kvgate"), "range": f"bytes={begin}-{end - 1}"}
        found = b""
        with get_session().stream("GET", url, headers=headers, timeout=SECONDS) as response:
            hf_raise_for_status(response)
            if response.status_code != _PARTIAL:
                raise InputError("the hub does not send parts of files", where=where)
            for block in response.iter_bytes():
                found += block
                if len(found) >= end - begin:
                    break
        return found[: end - begin]

    try:
        return read_gguf_header(where, side.files[name].bytes, read)
    except InputError:
        raise
    except Exception as error:
        raise explained(error, where) from None


def _holds_tensors(name: str) -> bool:
    return name.endswith((_TENSORS, *_OTHERS))


def _surely_read(side: Published, name: str) -> bool:
    """Whether it is sure, one way or the other, that a loader takes tensors from a file.

    A subfolder's file is read where an index names it (and the index is not read here), and by some model classes
    beside what the loader itself reads: such a file never shows a difference.
    """
    return name.endswith(_TENSORS) and ("/" not in name or not any(other.endswith(_INDEX) for other in side.files))


def _is_adapter(name: str, header: _Header) -> bool:
    """Whether it is an adapter that lies beside the weights, as :mod:`kvgate.weights.checkpoint` tells them."""
    return name.startswith("adapter_") and all(tensor.startswith(_PEFT) for tensor in header)


def _file(blob: object, lfs: object, size: object) -> PublishedFile | None:
    large = getattr(lfs, "sha256", None)
    if not isinstance(size, int):
        return None
    if isinstance(large, str):
        return PublishedFile(f"sha256:{large}", size)
    return PublishedFile(f"git-blob:{blob}", size) if isinstance(blob, str) else None


def _sound(files: Mapping[str, PublishedFile]) -> dict[str, str] | None:
    """Return the digests by name where SHA-256 vouches for every tensor; SHA-1 is enough for an index alone."""
    found = {name: file.digest for name, file in files.items()}
    strong = all(digest.startswith("sha256:") for name, digest in found.items() if _holds_tensors(name))
    return found if strong else None


def _without(files: Mapping[str, PublishedFile], others: Mapping[str, PublishedFile]) -> dict[str, PublishedFile]:
    known = {file.digest for file in others.values() if file.digest.startswith("sha256:")}
    return {name: file for name, file in files.items() if _holds_tensors(name) and file.digest not in known}


def _header(side: Published, name: str, endpoint: str | None) -> _Header:
    from huggingface_hub import HfApi

    where = f"{side.repo}@{side.commit}/{name}"
    try:
        api = HfApi(endpoint=endpoint, library_name="kvgate")
        found = api.parse_safetensors_file_metadata(side.repo, name, revision=side.commit)
        return {tensor: (info.dtype, tuple(info.shape)) for tensor, info in found.tensors.items()}
    except Exception as error:
        raise explained(error, where) from None
