"""What a hub says of a repository's weights without a byte of them: file digests, and the headers of safetensors.

Equal files are proved by their SHA-256. Of files that differ the headers may settle it one way only: another name, type
or shape of a tensor is a difference; equal headers prove nothing, because the bytes behind them are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kvgate.deployments.hub import explained
from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent

_TENSORS = ".safetensors"
_WEIGHTS = (_TENSORS, ".gguf", ".bin", ".pt", ".pth", ".ckpt")
_INDEX = ".index.json"
_Header = tuple[str, tuple[int, ...]]


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
        """The files that hold tensors or say where they are; adapters have a fingerprint of their own."""
        return {
            name: file
            for name, file in self.files.items()
            if name.endswith((*_WEIGHTS, _INDEX)) and not name.rpartition("/")[2].startswith("adapter_")
        }


@dataclass(frozen=True)
class PublishedDifference:
    """How the weights of two revisions differ, as far as the hub says.

    Attributes:
        state: ``equal``: the same files, proved; ``different``: headers differ, proved; ``undecided``: other files, and
            what their tensors hold has to be compared.
        files: weight files that only one side has, or that differ.
        added: tensors that only the new headers name; empty where headers were not read, as are the next two.
        removed: tensors that only the old ones name.
        changed: tensors that have another type or shape.
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
        found = HfApi(endpoint=endpoint, library_name="kvgate").model_info(repo, revision=revision, files_metadata=True)
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

    The headers of the safetensors files that only one side has are read by range requests, no more.

    Args:
        old: what :func:`published` returned.
        new: the other side, of the same repository or another.
        progress: told of the headers.
        endpoint: another hub than ``HF_ENDPOINT`` says.

    Raises:
        InputError: a revision has no weights, or a header cannot be read.
    """
    for side in (old, new):
        if not any(name.endswith(_WEIGHTS) for name in side.weights):
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
    fetch = sum(file.bytes for side in alone for file in side.values())
    if not all(name.endswith(_TENSORS) for side in alone for name in side):
        return PublishedDifference("undecided", files, fetch=fetch)
    total, done = sum(map(len, alone)), 0
    headers: list[dict[str, _Header]] = []
    for side, names in zip((old, new), alone, strict=True):
        found: dict[str, _Header] = {}
        for name in names:
            found |= _header(side, name, endpoint)
            done += 1
            progress("reading headers", done, total, "files")
        headers.append(found)
    before, after = headers
    changed = tuple(sorted(name for name in before.keys() & after.keys() if before[name] != after[name]))
    added, removed = tuple(sorted(after.keys() - before.keys())), tuple(sorted(before.keys() - after.keys()))
    differs = bool(added or removed or changed)
    return PublishedDifference("different" if differs else "undecided", files, added, removed, changed, fetch)


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
    strong = all(digest.startswith("sha256:") for name, digest in found.items() if name.endswith(_WEIGHTS))
    return found if strong else None


def _without(files: Mapping[str, PublishedFile], others: Mapping[str, PublishedFile]) -> dict[str, PublishedFile]:
    known = {file.digest for file in others.values() if file.digest.startswith("sha256:")}
    return {name: file for name, file in files.items() if name.endswith(_WEIGHTS) and file.digest not in known}


def _header(side: Published, name: str, endpoint: str | None) -> Iterable[tuple[str, _Header]]:
    from huggingface_hub import HfApi

    where = f"{side.repo}@{side.commit}/{name}"
    try:
        api = HfApi(endpoint=endpoint, library_name="kvgate")
        found = api.parse_safetensors_file_metadata(side.repo, name, revision=side.commit)
        return [(tensor, (info.dtype, tuple(info.shape))) for tensor, info in found.tensors.items()]
    except Exception as error:
        raise explained(error, where) from None
