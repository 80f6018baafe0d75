"""Checkpoints from a hub: through huggingface_hub, its cache and its settings, so that they behave as known."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent

# What a capture reads. Pickle (*.bin, *.pt) and code (*.py is read, never run) stay where they are.
_WEIGHTS = "*.safetensors"
_PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "*.py")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?")

_NETWORK = "the network, a proxy, HF_HUB_OFFLINE, HF_ENDPOINT"
SECONDS = 20  # for an answer that a hub gives in less than one


@dataclass(frozen=True)
class HubCheckpoint:
    """A repository at one commit, on this machine.

    Attributes:
        folder: the snapshot in the library's cache.
        repo: ``org/name``.
        commit: the 40-hex commit that the revision stood for.
    """

    folder: Path
    repo: str
    commit: str


def split_repository(text: str) -> tuple[str, str | None] | None:
    """Split ``org/name@revision``; ``None`` where the text cannot name a repository."""
    repo, _, revision = text.partition("@")
    if not _REPOSITORY.fullmatch(repo) or "--" in repo or ".." in repo:
        return None
    return repo, revision or None


def obtain(
    repo: str,
    revision: str | None,
    progress: Progress = silent,
    *,
    weights: bool = True,
    endpoint: str | None = None,
    cache: Path | None = None,
) -> HubCheckpoint:
    """Bring a repository onto this machine and say which commit it is.

    Token, cache, endpoint and offline mode are huggingface_hub's own: ``HF_TOKEN``, ``HF_HOME``,
    ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``. Offline, or when the hub cannot be reached, what the cache holds
    counts; a branch then stands for the commit that was last seen.

    Args:
        repo: ``org/name``.
        revision: a branch, tag or commit; ``None``: the default branch.
        progress: told of the bytes that arrive.
        weights: whether the tensors are wanted too.
        endpoint: another hub than ``HF_ENDPOINT`` says.
        cache: another cache than ``HF_HOME`` says.

    Raises:
        InputError: no such repository or revision, no access, not reachable and not cached, cut short.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import OfflineModeIsEnabled

    name = f"{repo}@{revision}" if revision else repo
    progress("asking the hub", 0, None, "answers")
    silent_hub = False
    try:
        # The download itself waits without end for a server that takes the connection and says nothing.
        HfApi(endpoint=endpoint, library_name="kvgate").model_info(repo, revision=revision, timeout=SECONDS)
    except OfflineModeIsEnabled:
        pass
    except Exception as error:
        silent_hub = _is_timeout(error)  # what else is wrong the download says too, or finds in the cache
    try:
        folder = Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=[*_PATTERNS, *([_WEIGHTS] if weights else [])],
                endpoint=endpoint,
                cache_dir=cache,
                library_name="kvgate",
                local_files_only=silent_hub,
                tqdm_class=_reporting(progress),
            )
        )
    except Exception as error:
        # The messages of the library quote URLs and headers; a token could be in one.
        raise explained(error, name) from None
    if not _COMMIT.fullmatch(folder.name):
        raise InputError("the hub's cache does not say which commit this is", where=name)
    return HubCheckpoint(folder, repo, folder.name)


def history(repo: str, revision: str | None, *, endpoint: str | None = None) -> frozenset[str] | None:
    """Return the commits that a branch or tag has had, newest and oldest; ``None``: the hub cannot be asked.

    Args:
        repo: ``org/name``.
        revision: a branch, tag or commit; ``None``: the default branch.
        endpoint: another hub than ``HF_ENDPOINT`` says.
    """
    from huggingface_hub import HfApi

    try:
        found = HfApi(endpoint=endpoint, library_name="kvgate").list_repo_commits(repo, revision=revision)
        return frozenset(one.commit_id for one in found)
    except Exception:
        return None


def _reporting(progress: Progress) -> Any:
    """Return a progress bar that shows nothing and tells ``progress`` of the bytes."""
    from huggingface_hub.utils import tqdm

    lock = threading.Lock()
    # Some versions keep two bars for the same bytes; the one that is ahead is told.
    reached = {"done": 0, "total": 0}

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if not self.counts_bytes:
                return
            with lock:
                reached["done"] = max(reached["done"], int(self.n))
                reached["total"] = max(reached["total"], int(self.total or 0), reached["done"])
                progress("downloading", reached["done"], reached["total"], "bytes")

    return Bar


def _is_timeout(error: BaseException) -> bool:
    # httpx's; which package huggingface_hub takes its client from has changed between its releases.
    return type(error).__name__ in ("ReadTimeout", "ConnectTimeout", "PoolTimeout", "WriteTimeout")


def _is_unreachable(error: BaseException) -> bool:
    return type(error).__name__ in ("ConnectError", "ProxyError", "ConnectionError")  # httpx's, requests'


def explained(error: Exception, name: str) -> InputError:
    """Return what an error of huggingface_hub means to a user, without the URLs and headers that it quotes.

    Args:
        error: what was raised.
        name: the repository, as it was asked for.
    """
    from huggingface_hub import errors

    # From the particular to the general: these classes inherit from each other.
    if isinstance(error, errors.GatedRepoError):
        return InputError(
            "is gated, and this account has no access", where=name, hint="accept its terms on the hub and set HF_TOKEN"
        )
    if isinstance(error, errors.DisabledRepoError):
        return InputError("was disabled by its owner or the hub", where=name)
    if isinstance(error, errors.RepositoryNotFoundError):
        return InputError(
            "there is no such repository, or it is private",
            where=name,
            hint="check the name; a private one needs HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError("the repository has no such revision", where=name, hint="give a branch, a tag or a commit")
    if isinstance(error, errors.HFValidationError):
        return InputError("cannot be the name of a repository", where=name, hint="org/name, or an existing folder")
    if _is_timeout(error):
        return InputError(f"the hub does not answer within {SECONDS} seconds", where=name, hint=_NETWORK)
    if _is_unreachable(error):
        return InputError("the hub cannot be reached", where=name, hint=_NETWORK)
    if isinstance(error, errors.LocalEntryNotFoundError):
        return InputError(
            "is not in the cache, and the hub cannot be reached",
            where=name,
            hint=f"there is no folder of this name either; for a repository: {_NETWORK}",
        )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return InputError("HF_HUB_OFFLINE is set, and only the hub can tell", where=name, hint="unset it")
    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            return InputError(f"the hub refuses access ({status})", where=name, hint="set HF_TOKEN to a valid token")
        return InputError(f"the hub answered {status or 'with an error'}", where=name, hint="try again later")
    if isinstance(error, errors.SafetensorsParsingError):
        return InputError("is no sound safetensors file", where=name, hint="its header cannot be read; tell its owner")
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return InputError(f"cannot be stored: {error.strerror}", where=name, hint="HF_HOME says where the cache is")
    return InputError(
        f"the download failed ({type(error).__name__})", where=name, hint="run it again: what arrived is kept"
    )
