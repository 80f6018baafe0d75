"""``kvgate fingerprint --hub``: what a hub says of weights that nobody fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.rules.progress import Progress

_FILES = (".gguf", ".safetensors", ".jsonl", ".yaml")


def facts_published(path: str, compare: str | None, progress: Progress) -> dict[str, Any]:
    """Return what a hub publishes of a revision's weights, or how two revisions differ by it.

    Args:
        path: ``org/name[@revision]``.
        compare: the newer one; ``None``: nothing is compared.
        progress: told of the headers that are read.

    Raises:
        InputError: as :func:`kvgate.deployments.published.published`.
        UsageError: one cannot name a repository.
    """
    from dataclasses import asdict

    from kvgate.deployments.hub import split_repository
    from kvgate.deployments.published import compare_published, published
    from kvgate.rules.errors import UsageError

    sides = []
    for text in (path, *(() if compare is None else (compare,))):
        split = split_repository(text)
        if split is None or text.endswith(_FILES):
            raise UsageError("is no org/name[@revision]", where=text, hint="without --hub a file or folder is read")
        sides.append(published(*split))
    old = sides[0]
    if compare is None:
        files = {name: asdict(file) for name, file in old.weights.items()}
        return {"repo": old.repo, "commit": old.commit, "weights": files}
    new = sides[1]
    found = compare_published(old, new, progress)
    lists = {name: list(getattr(found, name)) for name in ("files", "added", "removed", "changed")}
    commits = {"old": f"{old.repo}@{old.commit}", "new": f"{new.repo}@{new.commit}"}
    return {"state": found.state, **commits, **lists, "bytes_to_fetch": found.fetch}
