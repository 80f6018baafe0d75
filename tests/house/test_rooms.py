"""Who may import whom; only ``cli`` speaks; ``rules`` is pure."""

from __future__ import annotations

from pathlib import Path

import pytest

from .repository import ROOT, tracked
from .rooms import ALLOWED, CHILD_PROCESSES, WORKSHOPS, sources, violations


def test_no_room_reaches_where_it_may_not() -> None:
    assert [str(each) for each in violations(ROOT)] == []


def test_every_tracked_python_file_is_read() -> None:
    read = {path.relative_to(ROOT).as_posix() for path in sources(ROOT)}
    python = {name for name in tracked() if name.endswith(".py") and not name.startswith(".typing/")}
    assert python <= read, "a folder with code has no row in the table of rooms"
    assert {name.partition("/")[0] for name in python} >= set(ALLOWED)


def test_child_processes_are_started_as_such_and_are_no_library() -> None:
    for name in CHILD_PROCESSES:
        assert (ROOT / name).is_file()
        room = name.partition("/")[0]
        module = f"kvgate.{name.removesuffix('.py').replace('/', '.')}"
        others = [path.read_text() for path in (ROOT / room).rglob("*.py") if path != ROOT / name]
        # By its file where the interpreter is another's, which need not have kvgate.
        starts = (f'"-m", "{module}"', f'"{Path(name).name}"')
        assert any(start in text for text in others for start in starts), f"nobody starts {module} as a process"


def _plain_import(room: str) -> str:
    return "from kvgate import name" if room == "api" else f"from kvgate.{room}.thing import name"


PLANTED = [
    # every reach that the table forbids, in its plainest form
    *(
        (
            f"{room}/planted.py",
            f"from kvgate.{other}.thing import name" if other != "api" else "from kvgate import name",
        )
        for room in ALLOWED
        for other in ALLOWED
        if other != room and other not in ALLOWED[room]
    ),
    # an import counts wherever it stands and however it is spelled
    ("rules/planted.py", "def f():\n    import kvgate.weights.digest"),
    ("rules/planted.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kvgate.corpora import corpus"),
    ("rules/deep/er/planted.py", "from ....cli import main"),
    ("weights/planted.py", "from .. import cli"),
    ("weights/planted.py", "from ..deployments import capture"),
    ("weights/planted.py", "from kvgate import cli"),
    ("weights/planted.py", "from kvgate import *"),
    ("weights/planted.py", "import kvgate"),
    ("weights/planted.py", "import kvgate as gate"),
    ("weights/planted.py", "import kvgate.rules.errors\nkvgate.cli.main.main()"),
    ("weights/planted.py", "import importlib\nimportlib.import_module('kvgate.cli.main')"),
    ("weights/planted.py", "from importlib import import_module\nimport_module('kvgate.corpora')"),
    ("weights/planted.py", "__import__('kvgate.cli')"),
    ("weights/planted.py", "import importlib\nimportlib.import_module('..cli', 'kvgate.weights')"),
    ("weights/planted.py", "import importlib\nimportlib.import_module('kvgate.' + name)"),
    ("corpora/planted.py", "command = [python, '-m', 'kvgate.deployments.config_worker']"),
    (
        "corpora/planted.py",
        "from importlib import resources\nresources.files('kvgate.weights')",
    ),
    ("corpora/planted.py", "try:\n    from kvgate.weights import digest\nexcept ImportError:\n    pass"),
    ("corpora/planted.py", "class C:\n    from kvgate.cli import main"),
    ("deployments/planted.py", "import tests.weights.builders"),
    # works by accident from the root of the checkout
    *((f"{folder}/planted.py", f"import {room}") for folder in ("rules", "cli", *WORKSHOPS) for room in ALLOWED),
    ("api/planted.py", "from rules.errors import InputError"),
    ("tests/planted.py", "from importlib import import_module\nimport_module('weights.digest')"),
    *((f"{folder}/planted.py", "import click") for folder in (*ALLOWED, *WORKSHOPS)),
    ("cli/planted.py", "def f():\n    from click.testing import CliRunner"),
    # only cli speaks
    ("api/planted.py", "print('hello')"),
    ("rules/planted.py", "report = print"),
    ("weights/planted.py", "import sys\nsys.exit(1)"),
    ("weights/planted.py", "from sys import exit"),
    ("weights/planted.py", "import sys as system\nsystem.exit(1)"),
    ("weights/planted.py", "import os\nos._exit(1)"),
    ("weights/planted.py", "from os import _exit as leave"),
    ("corpora/planted.py", "raise SystemExit(2)"),
    ("corpora/planted.py", "quit()"),
    ("corpora/planted.py", "import sys\nsys.stderr.write('x')"),
    ("corpora/planted.py", "import builtins\nbuiltins.print('x')"),
    ("deployments/planted.py", "import typer"),
    ("deployments/planted.py", "def f():\n    from rich.console import Console"),
    ("deployments/planted.py", "name = 'kvgate.yaml'"),
    ("corpora/child/worker.py", "print('into the pipe')"),
    ("weights/worker.py", "import os\nos._exit(1)"),
    ("corpora/standalone/snapshot_script.py", "from kvgate.deployments import capture"),
    ("corpora/standalone/other.py", "import sys\nsys.stderr.write('x')"),
    # rules is pure
    ("rules/planted.py", "from pathlib import Path"),
    ("rules/planted.py", "def f():\n    import os"),
    ("rules/planted.py", "import urllib.request"),
    ("rules/planted.py", "import random"),
    ("rules/planted.py", "open('x')"),
    ("rules/planted.py", "import datetime\ndatetime.datetime.now()"),
    ("rules/planted.py", "from datetime import date\ndate.today()"),
]


@pytest.mark.parametrize(("path", "source"), PLANTED)
def test_a_planted_violation_is_caught_where_it_is(tmp_path: Path, path: str, source: str) -> None:
    _plant(tmp_path, path, source)
    found = violations(tmp_path)
    assert {each.path for each in found} == {path}
    assert all(1 <= each.line <= source.count("\n") + 1 for each in found)


ALLOWED_SOURCES = [
    *((f"{room}/fine.py", _plain_import(other)) for room in ALLOWED for other in sorted(ALLOWED[room] | {room})),
    ("weights/fine.py", "from . import digest\nfrom .digest import leaf\nfrom ..rules import errors"),
    ("rules/deep/__init__.py", "from .near import name\nfrom ..errors import InputError"),
    ("rules/fine.py", "from importlib import resources\nresources.files('kvgate.rules')\nimport datetime, hashlib"),
    ("rules/fine.py", '"""Speaks of kvgate.cli and print() in words."""'),
    ("corpora/child/worker.py", "import os, sys\nsys.stderr.flush()\nos._exit(0)"),
    ("corpora/standalone/snapshot_script.py", "import sys\nsys.stderr.write('x')\nsys.exit(0)"),
    ("cli/fine.py", "import sys\nimport typer\nprint('x')\nsys.exit(0)\n'kvgate.yaml'"),
    ("api/fine.py", "from importlib import import_module\nimport_module(name)"),
    ("tests/fine.py", "from .builders import x\nfrom kvgate.rules import errors\nimport kvgate\nprint('x')"),
]


@pytest.mark.parametrize(("path", "source"), ALLOWED_SOURCES)
def test_what_is_allowed_is_left_alone(tmp_path: Path, path: str, source: str) -> None:
    _plant(tmp_path, path, source)
    assert [str(each) for each in violations(tmp_path)] == []


def _plant(root: Path, path: str, source: str) -> None:
    """Write one file into a tree in which every room already holds an innocent one."""
    for folder in (*ALLOWED, *WORKSHOPS):
        (root / folder).mkdir()
        (root / folder / "__init__.py").write_text("from __future__ import annotations\n")
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(source)
