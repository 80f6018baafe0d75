"""The manifest under construction: values, where they come from, and what stays unknown and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from kvgate.rules.errors import UsageError
from kvgate.rules.manifest import schema_leaves
from kvgate.rules.schema import SCHEMA_ID, ManifestModel
from kvgate.rules.values import Basis

_NO_DEFAULT = frozenset({"engine.name", "engine.version", "engine.image", "tokenizer.renderer.engine_version"})


@cache
def _nullable_sections() -> tuple[str, ...]:
    """Return the schema's sections that may be ``null`` as a whole."""

    def walk(model: type[BaseModel], prefix: str) -> Iterator[str]:
        for name, info in model.model_fields.items():
            path = f"{prefix}{info.alias or name}"
            kinds = get_args(info.annotation) or (info.annotation,)
            inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
            if get_origin(info.annotation) is list or not inner:
                continue
            if type(None) in kinds:
                yield path
            yield from walk(inner[0], f"{path}.")

    return tuple(walk(ManifestModel, ""))


class Assembly:
    """Collects values by dotted path; a doubt about a path removes what lies at and below it."""

    def __init__(self) -> None:
        self._leaves = [leaf for leaf in schema_leaves() if leaf != "schema"]
        self._values: dict[str, Any] = {}
        self._basis: dict[str, Basis] = {}
        self._doubts: dict[str, str] = {}

    def check_path(self, path: str) -> None:
        """Refuse what is no manifest path, before any work is done.

        Raises:
            UsageError: naming the path.
        """
        if path in ("schema", "provenance") or not any(_related(path, leaf) for leaf in self._leaves):
            raise UsageError("is not a manifest path", where=path, hint="`kvgate schema manifest` lists them")

    def put(self, path: str, value: Any, basis: Basis = "declared") -> None:
        """Write a value that was found out."""
        self._values[path] = value
        self._basis[path] = basis

    def doubt(self, path: str, reason: str) -> None:
        """Leave a path unknown, whatever else is found out about it; the first reason counts."""
        self._doubts.setdefault(path, reason)

    def restore(self, path: str, wanted: bool) -> None:
        """Take back the doubts about a path, because better evidence than the one that raised them was given."""
        if wanted:
            self._doubts.pop(path, None)

    def declare(self, path: str, value: Any, basis: Basis = "declared") -> None:
        """Write what the operator says, or what was observed; it stands above everything found out, doubts included."""
        for other in [other for other in self._values if _below(other, path)]:
            del self._values[other], self._basis[other]
        for other in [other for other in self._doubts if _below(path, other) and other != path]:
            self._split(other)
        for other in [other for other in self._doubts if _below(other, path)]:
            del self._doubts[other]
        parent = path
        while "." in parent:  # a null section gives way to what is set inside it
            parent = parent.rpartition(".")[0]
            if parent in self._values and self._values[parent] is None:
                del self._values[parent], self._basis[parent]
            elif isinstance(self._values.get(parent), dict):  # inside a complete collection
                self._values[parent] = _with(self._values[parent], path[len(parent) + 1 :].split("."), value)
                self._basis[parent] = basis
                return
        self._values[path] = value
        self._basis[path] = basis

    def fill(self, path: str, defaults: Mapping[str, Any]) -> None:
        """Declare a path or section to be at the engine's defaults, where nothing else is known of it."""
        for target in self._targets(path, defaults):
            if target not in _NO_DEFAULT and not self.has(target):
                self.declare(target, defaults.get(target))

    def _targets(self, path: str, defaults: Mapping[str, Any]) -> list[str]:
        """Return what ``null`` or a default can be written to, at and below a path."""
        whole = [section for section in _nullable_sections() if _below(section, path)]
        # A section of which nothing is known, and that has no defaults inside, is null as a whole.
        whole = [
            section
            for section in whole
            if not any(_below(other, section) for other in (*self._values, *defaults))
            and not any(_below(section, other) and section != other for other in whole)
        ]
        leaves = [leaf for leaf in self._leaves if _below(leaf, path)] or [path]
        return [*whole, *(leaf for leaf in leaves if not any(_below(leaf, section) for section in whole))]

    def has(self, path: str) -> bool:
        """Whether something is known at the path."""
        if any(_below(path, doubt) for doubt in self._doubts):
            return False
        return any(_below(path, known) or _below(known, path) for known in self._values)

    def missing(self, path: str) -> list[str]:
        """Return what is not known at and below a path: the path itself where nothing is, else its leaves."""
        leaves = [leaf for leaf in self._leaves if _below(leaf, path)]
        absent = [leaf for leaf in leaves if not self.has(leaf)]
        return [path] if absent == leaves else absent

    def unknown(self) -> tuple[tuple[str, str], ...]:
        """Return what stays unknown and why, in schema order."""
        order = {leaf: index for index, leaf in enumerate(self._leaves)}

        def place(path: str) -> int:
            return min((index for leaf, index in order.items() if _related(path, leaf)), default=len(order))

        return tuple(sorted(self._doubts.items(), key=lambda item: place(item[0])))

    def manifest(self) -> dict[str, Any]:
        """Return the manifest's data in schema order, with its provenance."""
        kept = {
            path: value
            for path, value in self._values.items()
            if not any(_below(path, doubt) for doubt in self._doubts)
        }
        data: dict[str, Any] = {"schema": SCHEMA_ID}
        order = {leaf: index for index, leaf in enumerate(self._leaves)}
        for path in sorted(kept, key=lambda path: order.get(path, -1) if path in order else _first(path, order)):
            target = data
            *sections, last = path.split(".")
            for section in sections:
                target = target.setdefault(section, {})
            target[last] = kept[path]
        data["provenance"] = _compact({path: self._basis[path] for path in kept})
        return data

    def _split(self, path: str) -> None:
        """Turn a doubt about a section into doubts about each of its leaves."""
        reason = self._doubts.pop(path)
        for leaf in self._leaves:
            if _below(leaf, path):
                self._doubts.setdefault(leaf, reason)


def _below(path: str, ancestor: str) -> bool:
    return path == ancestor or path.startswith(f"{ancestor}.")


def _related(path: str, other: str) -> bool:
    return _below(path, other) or _below(other, path)


def _first(path: str, order: Mapping[str, int]) -> int:
    return min((index for leaf, index in order.items() if _related(path, leaf)), default=len(order))


def _with(collection: Mapping[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    changed = dict(collection)
    head, *rest = keys
    inner = changed.get(head)
    changed[head] = _with(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value
    return changed


def _compact(basis: Mapping[str, Basis], prefix: str = "") -> dict[str, Basis]:
    """Name a section once where all of it has one basis, else the parts; ``declared`` goes without saying there."""
    groups: dict[str, dict[str, Basis]] = {}
    for path, found in basis.items():
        head = path[len(prefix) :].partition(".")[0]
        groups.setdefault(f"{prefix}{head}", {})[path] = found
    compact: dict[str, Basis] = {}
    for section, paths in groups.items():
        kinds = set(paths.values())
        if len(kinds) > 1:
            compact |= _compact(paths, f"{section}.")
        elif not prefix or kinds != {"declared"}:
            compact[section] = kinds.pop()
    return compact
