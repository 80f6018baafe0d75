"""Showing what isolates entries, and names that hold it, without saying whose they are."""

from __future__ import annotations

import re

from kvgate.rules.namespace import PREFIX

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

    def name(self, name: str, namespace: str | None) -> str:
        """Return what to show of a name that holds a namespace."""
        if namespace is None or self._lifted:
            return name
        shown = self.namespace(namespace) or ""
        whole = re.compile(rf"(?<![A-Za-z0-9]){re.escape(namespace)}(?![A-Za-z0-9])")
        found, number = whole.subn(lambda _: shown, name)
        return found if number else "(redacted)"

    def stranger(self, name: str) -> str | None:
        """Return a name of which nothing is known; ``None`` where it may hold anything."""
        return name if self._lifted else None
