"""What is private in evidence: whose entries, salts, keys and words it was found in. No output says them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.rules.evidence import Evidence

REDACTED = "(redacted)"
# Names of figures that hold a tenant, a salt, a key of the store or somebody's words, in the singular.
_PRIVATE = frozenset({"tenant", "user", "session", "organization", "salt", "cache_salt", "key", "cache_key", "prompt"})
_WHOSE = ("tenant", "user", "session", "organization")


def redacted(evidence: Evidence) -> Evidence:
    """Return evidence as it may be shown; bind, count and digest the original.

    The scope keeps its kind (``tenant:NAME`` becomes ``tenant``), private figures are replaced, and what was
    private there is replaced wherever else in the evidence it stands.
    """
    data = evidence.as_data()
    kind, _, name = evidence.scope.partition(":")
    private = {name} if kind in _WHOSE else set()
    private |= set(_private(data["figures"]))
    words = sorted(filter(None, private), key=len, reverse=True)
    if kind in _WHOSE:
        data["scope"] = kind
    for field in ("scope", "reason", "command", "figures", "coverage", "tools"):
        data[field] = _without(data[field], words)
    return Evidence.model_validate(data)


def _private(value: Any, private: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _private(item, private or name.lower().removesuffix("s") in _PRIVATE)
            if private:
                yield name
    elif isinstance(value, list):
        for item in value:
            yield from _private(item, private)
    elif private and isinstance(value, str):
        yield value


def _without(value: Any, words: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {_without(name, words): _without(item, words) for name, item in value.items()}
    if isinstance(value, list):
        return [_without(item, words) for item in value]
    if isinstance(value, str):
        for word in words:
            value = value.replace(word, REDACTED)
    return value
