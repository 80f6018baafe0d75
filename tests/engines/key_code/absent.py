"""Packages that the engines import and that nothing here calls: importing them makes an empty stand-in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock


class StandIns(MetaPathFinder, Loader):
    """Finds the packages that are not installed."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, fullname: str, *_where: Sequence[str] | ModuleType | None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in self.names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        made = MagicMock(name=spec.name)
        made.__path__, made.__spec__, made.__name__, made.__version__ = [], spec, spec.name, "99"
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run."""


def stand_in(*names: str) -> None:
    """Let packages be imported that are not there; those that are there are found first."""
    sys.meta_path.append(StandIns(*names))
