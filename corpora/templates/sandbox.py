"""A renderer's sandbox that asks itself once what a kind of object may be asked for. Used in the bounded child only."""

from __future__ import annotations

from typing import Any

from jinja2.sandbox import SandboxedEnvironment

_MOST = 4096  # a template may ask for names that it makes up


def remembering(base: type[SandboxedEnvironment]) -> type[SandboxedEnvironment]:
    """Return a subclass of a renderer's environment that remembers which attributes are safe.

    jinja2 asks this of every attribute that a template reads, which is a sixth of the time of rendering, and its answer
    depends on the name and on the type of the object alone. Source: pallets/jinja, src/jinja2/sandbox.py, 3.1.6,
    ``is_safe_attribute``, ``is_internal_attribute`` and ``modifies_known_mutable``.
    """

    class Remembering(base):  # type: ignore[valid-type, misc] # the base is the renderer's choice
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._kvgate_safe: dict[tuple[type, str], bool] = {}

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            asked = (type(obj), attr)
            known = self._kvgate_safe.get(asked)
            if known is None:
                if len(self._kvgate_safe) >= _MOST:
                    self._kvgate_safe.clear()
                known = self._kvgate_safe[asked] = bool(super().is_safe_attribute(obj, attr, value))
            return known

    return Remembering
