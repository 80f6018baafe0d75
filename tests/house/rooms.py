"""Reads the source of every room and says where one reaches what the house does not allow it.

The table is the law of the house (docs/architecture.md draws it). Everything is read from the syntax tree, so an
import counts wherever it stands: inside a function, under ``TYPE_CHECKING``, as a literal given to ``importlib``
or to ``python -m``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ALLOWED: dict[str, frozenset[str]] = {
    "rules": frozenset(),
    "weights": frozenset({"rules"}),
    "corpora": frozenset({"rules"}),
    "deployments": frozenset({"rules", "weights", "corpora"}),
    "stores": frozenset({"rules"}),
    "probes": frozenset({"rules", "stores", "corpora"}),
    "cli": frozenset({"api", "rules", "weights", "corpora", "deployments", "stores", "probes"}),
    "api": frozenset({"cli", "rules", "weights", "corpora", "deployments", "stores", "probes"}),
}
"""What each room may import besides itself. ``api`` is the package ``kvgate`` itself."""

WORKSHOPS = ("tests", "benchmarks", "demo")
"""Folders that are no room: they may import every room, by its full name."""

CHILD_PROCESSES = frozenset(
    {"corpora/child/worker.py", "deployments/config_worker.py", "probes/embedded/worker.py"}
    | {"probes/engines/vllm_program.py"}
)
"""Modules that run as a process of their own, where the standard streams are the pipe to the parent."""

SCRIPTS = frozenset({"corpora/standalone/snapshot_script.py"})
"""Programs that are printed to be run elsewhere, with what they import of kvgate inside: they speak for themselves."""

_SPEAKING_PACKAGES = frozenset({"typer", "rich"})
_SPEAKING_NAMES = frozenset({"print", "input", "exit", "quit", "breakpoint", "SystemExit"})
_SPEAKING_ATTRIBUTES = {
    "sys": frozenset({"exit", "stdout", "stderr", "__stdout__", "__stderr__"}),
    "os": frozenset({"_exit", "abort"}),
    "builtins": _SPEAKING_NAMES,
}
_PROGRAM_MAY_USE = frozenset({"sys.exit", "sys.stdout", "sys.stderr", "os._exit"})
_CONFIGURATION = frozenset({"kvgate.yaml", "pyproject.toml"})

_IMPURE_PACKAGES = frozenset(
    {"asyncio", "fcntl", "glob", "http", "io", "multiprocessing", "os", "pathlib", "random", "secrets", "shutil"}
    | {"signal", "socket", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid"}
)
_IMPURE_NAMES = frozenset({"open"})
_IMPURE_ATTRIBUTES = frozenset({"now", "today", "utcnow"})

_IMPORTERS = frozenset({"import_module", "__import__", "find_spec", "run_module", "resolve_name"})
_MODULE_NAME = re.compile(r"kvgate(?:\.\w+)*")


@dataclass(frozen=True)
class Violation:
    """One place where a room does what it may not."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def sources(root: Path) -> list[Path]:
    """Return every Python file of the rooms and workshops under ``root``, sorted."""
    return sorted(path for folder in (*ALLOWED, *WORKSHOPS) for path in (root / folder).rglob("*.py"))


def violations(root: Path) -> list[Violation]:
    """Return what every file under ``root`` does that the house does not allow."""
    found = [each for path in sources(root) for each in _Reader(path.relative_to(root)).read(path.read_bytes())]
    return sorted(set(found), key=str)


class _Reader:
    """Reads one file."""

    def __init__(self, path: Path) -> None:
        self._path = path.as_posix()
        self._room = path.parts[0]
        inside = path.parts[1:-1]
        self._package = ("kvgate", *inside) if self._room == "api" else ("kvgate", self._room, *inside)

    def read(self, source: bytes) -> Iterator[Violation]:
        """Yield the violations in ``source``."""
        tree = ast.parse(source, self._path)
        for node in ast.walk(tree):
            for what in self._of(node):
                yield Violation(self._path, getattr(node, "lineno", 0), what)

    def _of(self, node: ast.AST) -> Iterator[str]:
        for module in self._imported(node):
            yield from self._importing(module)
        if self._room in ALLOWED and self._room != "cli":
            yield from self._speaking(node)
        if self._room == "rules":
            yield from self._impure(node)

    def _imported(self, node: ast.AST) -> Iterator[str]:
        """Yield the absolute name of everything ``node`` imports, the imported names included."""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                if self._room not in ALLOWED:
                    return  # tests import their neighbours
                above = self._package[: len(self._package) - node.level + 1]
                base = ".".join((*above, base)) if base else ".".join(above)
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _last_name(node.func) in _IMPORTERS:
            name = node.args[0] if node.args else None
            literal = name.value if isinstance(name, ast.Constant) else None
            yield literal if isinstance(literal, str) and not literal.startswith(".") else "?"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE_NAME.fullmatch(node.value):
            if node.value.split(".")[1:2] and node.value.split(".")[1] in ALLOWED:
                yield node.value
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kvgate":
            yield f"kvgate.{node.attr}"

    def _importing(self, module: str) -> Iterator[str]:
        first, _, rest = module.partition(".")
        if first == "click":
            yield "imports click: Typer carries its own"
        elif first in ALLOWED:
            yield f"imports {first} without kvgate. in front of it"
        elif self._room not in ALLOWED:
            return
        elif first in WORKSHOPS:
            yield f"imports {first}, which is not shipped"
        elif first == "kvgate":
            second = rest.partition(".")[0]
            reached = second if second in ALLOWED else "api"
            if reached != self._room and reached not in ALLOWED[self._room]:
                yield f"{self._room} reaches {reached}: {module}"
        elif first == "?" and len(ALLOWED[self._room]) < len(ALLOWED) - 1:
            yield "imports a module whose name cannot be read here"

    def _speaking(self, node: ast.AST) -> Iterator[str]:
        used = set(self._used(node))
        if self._path in CHILD_PROCESSES | SCRIPTS:
            used -= _PROGRAM_MAY_USE
        yield from (f"uses {name}: only cli prints and exits" for name in sorted(used))
        for module in self._imported(node):
            if module.partition(".")[0] in _SPEAKING_PACKAGES:
                yield f"imports {module}: only cli prints and exits"
        if isinstance(node, ast.Constant) and node.value in _CONFIGURATION:
            yield f"names {node.value}: only cli looks for configuration"

    @staticmethod
    def _used(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _SPEAKING_NAMES:
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in _SPEAKING_ATTRIBUTES.get(node.value.id, ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                if alias.name in _SPEAKING_ATTRIBUTES.get(node.module or "", ()):
                    yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname and alias.name in _SPEAKING_ATTRIBUTES:
                    yield f"{alias.name} under another name"

    def _impure(self, node: ast.AST) -> Iterator[str]:
        for module in self._imported(node):
            if module.partition(".")[0] in _IMPURE_PACKAGES:
                yield f"imports {module}: rules does no I/O and asks for no time or chance"
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _IMPURE_NAMES:
            yield f"uses {node.id}: rules does no I/O"
        if isinstance(node, ast.Attribute) and node.attr in _IMPURE_ATTRIBUTES:
            yield f"uses .{node.attr}: the date is an input of the decision"


def _last_name(function: ast.expr) -> str | None:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None
