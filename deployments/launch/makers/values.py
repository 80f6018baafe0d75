"""Reading the values of a chart, or the spec of a custom resource, with the place of each in errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.deployments.launch.objects import KubernetesObject, objects_in
from kvgate.deployments.launch.secrets import clean_text
from kvgate.deployments.launch.shell import MAX_TEXT
from kvgate.rules.document import TwoWays
from kvgate.rules.errors import InputError

_ACTION = re.compile(r"\{\{-?\s*(.{0,400}?)\s*-?\}\}", re.DOTALL)
# What kvgate writes where a text depends on more than the file: the reader of pods takes it for a Go template.
FILLED_IN = "{{ . }}"


@dataclass(frozen=True)
class Values:
    """A mapping of a foreign document.

    Attributes:
        data: the mapping.
        where: what to call it in errors; a file ends with a colon.
    """

    data: Mapping[str, Any]
    where: str

    def __contains__(self, key: str) -> bool:
        """Whether the key is there, whatever its value (Helm's ``hasKey``)."""
        return key in self.data

    def at(self, key: str) -> str:
        """Name a key for errors and reasons."""
        return f"{self.where}{' ' if self.where.endswith(':') else '.'}{key}"

    def inside(self, key: str) -> Values:
        """Return the mapping under a key; an empty one where there is none.

        Raises:
            InputError: something else is there.
        """
        value = self.data.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise InputError("is no mapping", where=self.at(key))
        return Values(value or {}, self.at(key))

    def sequence(self, key: str) -> list[Any]:
        """Return the list under a key; an empty one where there is none.

        Raises:
            InputError: something else is there.
        """
        value = self.data.get(key)
        if value is not None and not isinstance(value, list):
            raise InputError("is no list", where=self.at(key))
        return value or []

    def each(self, key: str) -> list[Values]:
        """Return the mappings in the list under a key.

        Raises:
            InputError: it is no list of mappings.
        """
        found = []
        for index, item in enumerate(self.sequence(key)):
            where = f"{self.at(key)}[{index}]"
            if not isinstance(item, Mapping):
                raise InputError("is no mapping", where=where)
            found.append(Values(item, where))
        return found

    def objects(self, key: str) -> list[KubernetesObject]:
        """Return the Kubernetes objects in the list under a key; what only a template makes one of is left out.

        Raises:
            InputError: it is no list.
        """
        found: list[KubernetesObject] = []
        for index, item in enumerate(self.sequence(key)):
            if isinstance(item, Mapping) and isinstance(item.get("kind"), str):
                found += objects_in(item, f"{self.at(key)}[{index}]")
        return found

    def word(self, key: str, default: str = "") -> str:
        """Return a scalar as Go prints it (``true``, ``16384``).

        Raises:
            InputError: it is none, nobody can tell which, or it is longer than a launch line may be.
        """
        return printed(self.data[key], self.at(key)) if self.data.get(key) is not None else default

    def words(self, key: str) -> list[str]:
        """Return the scalars of the list under a key, as :meth:`word` does."""
        return [printed(item, f"{self.at(key)}[{index}]") for index, item in enumerate(self.sequence(key))]

    def on(self, key: str, default: bool = False) -> bool:
        """Whether a value is true to a Go template: anything but false, 0 and what is empty.

        Raises:
            InputError: it is a word that YAML tools read differently (``yes``).
        """
        value = self.data.get(key, default)
        if isinstance(value, TwoWays):
            raise InputError(
                "is read differently by different YAML tools", where=self.at(key), hint="write true or false"
            )
        return bool(value)

    def strangers(self, known: frozenset[str]) -> Iterator[str]:
        """Yield the places of keys that are not among the known ones."""
        for key in self.data:
            if key not in known:
                yield self.at(clean_text(key) or "...")


def printed(value: Any, where: str) -> str:
    """Return a scalar as Go prints it.

    Raises:
        InputError: it is none, or nobody can tell which.
    """
    if isinstance(value, TwoWays):
        raise InputError("is read differently by different YAML tools", where=where, hint="put it in quotes")
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)):
        raise InputError("is not a text or a number", where=where)
    text = str(value)
    if len(text) > MAX_TEXT:
        raise InputError(f"more than the {MAX_TEXT:,} characters that a launch line may have", where=where)
    return text


def filled(data: Any, names: Mapping[str, str]) -> Any:
    """Return a document with the template actions that are only a known name filled in.

    Every other action becomes :data:`FILLED_IN`: what a controller's template language makes of it is not known.

    Args:
        data: the document.
        names: what actions stand for (``.Spec.Model.Name``); an empty text is not known.
    """
    if isinstance(data, Mapping):
        return {key: filled(value, names) for key, value in data.items()}
    if isinstance(data, list):
        return [filled(item, names) for item in data]
    if isinstance(data, str) and "{{" in data and "}}" in data:
        return _ACTION.sub(lambda match: names.get(match[1]) or FILLED_IN, data)
    return data


def laid_over(base: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with later ones over them, as Helm does: mappings are merged, ``null`` takes away, all else wins.

    Source: helm/helm v3, pkg/chartutil/coalesce.go.
    """
    merged = dict(base)
    for key, value in later.items():
        before = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[key] = laid_over(before, value)
        else:
            merged[key] = value
    return merged
