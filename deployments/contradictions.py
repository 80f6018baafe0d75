"""What the operator declares against what the launch line says: both cannot be true."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.deployments.launch import LaunchFacts
from kvgate.deployments.launch.nodes import may_be_one_gpu
from kvgate.deployments.launch.secrets import clean, clean_text
from kvgate.rules.canonical import canonical_json
from kvgate.rules.errors import UsageError

# A line has no way to say these fully: forks start by the same command, weights may be changed from outside, and
# what varies between requests is up to the requests.
_BEYOND_THE_LINE = frozenset({"engine.name", "weights.mutable", "request_features", "adapters"})


def refuse_contradictions(sets: Mapping[str, Any], facts: LaunchFacts) -> None:
    """Refuse a declared value where the launch line says another.

    A value that the line leaves to the engine's default (``null``) or does not tell may be declared.

    Raises:
        UsageError: naming the path and both values.
    """
    for given, value in sets.items():
        for path, declared in _leaves(given, value):
            said = _said(path, facts)
            if path == "engine.image" and declared is None and facts.image is not None:
                raise UsageError(
                    f"is declared to be unset, but the launch line names {clean_text(facts.image) or 'one'}",
                    where=path,
                    hint="--set engine.image=sha256:DIGEST, of that image",
                )
            if said is None or path in _BEYOND_THE_LINE or canonical_json(said) == canonical_json(declared):
                continue
            if path == "engine.accelerator" and may_be_one_gpu(str(declared), str(said)):
                continue
            raise UsageError(
                f"is declared to be {_shown(path, declared)}, but the launch line says {_shown(path, said)}",
                where=path,
                hint=f"change {facts.source}, or do not set it",
            )


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}", item)
    else:
        yield path, value


def _said(path: str, facts: LaunchFacts) -> Any:
    """Return what the line says of a path, also inside a collection (``engine.args.seed``); ``None``: nothing."""
    if path in facts.pending:
        return None
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        found = facts.values.get(".".join(parts[:end]))
        for key in parts[end:]:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is not None:
            return None if isinstance(found, Mapping) and not found else found
    return None


def _shown(path: str, value: Any) -> str:
    cleaned, dropped = clean(value, path.rpartition(".")[2])
    return "another value" if dropped and cleaned is None else json.dumps(cleaned, ensure_ascii=False)
