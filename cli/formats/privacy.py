"""Showing what isolates entries, and names that hold it, without saying whose they are."""

from __future__ import annotations

import re
from dataclasses import replace

from kvgate.rules.namespace import PREFIX
from kvgate.stores.keys.schemes import SCHEMES
from kvgate.stores.keys.stored import StoredKey

_STRUCTURE = "@%/"  # what connectors part tags by
_TRIES = 64  # places of one name that are looked at
_DERIVED = re.compile(rf"{PREFIX}[a-z2-7]{{32}}")


class Veil:
    """Puts a number in the place of each salt, tag or tenant; ids that kvgate derived are nobody's secret.

    Args:
        lifted: show everything as it is.

    """

    def __init__(self, *, lifted: bool) -> None:
        self._lifted = lifted
        self._numbers: dict[str, int] = {}

    def namespace(self, namespace: str | None) -> str | None:
        """Return what to show of a namespace: the same for the same one."""
        if namespace is None or self._lifted or _DERIVED.fullmatch(namespace):
            return namespace
        number = self._numbers.setdefault(namespace, len(self._numbers) + 1)
        derived = _DERIVED.search(namespace)
        return f"{derived[0]} (redacted {number})" if derived else f"(redacted {number})"

    def name(self, key: StoredKey) -> str:
        """Return what to show of a name: all of it but the part that is its namespace."""
        if key.namespace is None or (shown := self.namespace(key.namespace)) == key.namespace:
            return key.name
        start = _start(key, key.namespace)
        return "(redacted)" if start is None else f"{key.name[:start]}{shown}{key.name[start + len(key.namespace) :]}"

    def stranger(self, name: str) -> str | None:
        """Return a name of which nothing is known; ``None`` where it may hold anything."""
        return name if self._lifted else None


def _start(key: StoredKey, namespace: str) -> int | None:
    """Return where a name's namespace stands in it; ``None`` where that is not plain.

    The same text may stand in the model's name or in a hash, so its scheme is asked: another text in the right place
    makes another namespace, and nothing else.
    """
    parse = SCHEMES[key.connector].parse
    probe = "".join(letter if letter in _STRUCTURE else "y" if letter == "x" else "x" for letter in namespace)
    wanted = replace(key, namespace=probe, name="")
    start = len(key.name)
    for _ in range(_TRIES):
        start = key.name.rfind(namespace, 0, start + len(namespace) - 1)
        if start < 0:
            break
        found = parse(f"{key.name[:start]}{probe}{key.name[start + len(namespace) :]}")
        if found is not None and replace(found, name="") == wanted:
            return start
    return None
