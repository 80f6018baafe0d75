"""The configuration file: what is the same for every capture and check of a repository."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from kvgate.rules.document import MAX_BYTES, parse_document
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.packaged import DataModel, data_from

NAME = "kvgate.yaml"
_PYPROJECT = "pyproject.toml"
_TABLE = re.compile(rb"^\s*\[\s*tool\s*\.\s*kvgate\b", re.MULTILINE)


class CaptureConfig(DataModel):
    """What only the operator knows, written into every manifest."""

    set: dict[str, JsonValue] = Field(default_factory=dict, description="manifest path to value")
    unset: list[str] = Field(default_factory=list, description="paths or sections in which nothing else is set")


class CheckConfig(DataModel):
    """What every check is asked with.

    The command line wins, but for evidence and corpora: it adds to those, since knowing less must not accept more.
    """

    rules: str | None = None
    strategy: str | None = None
    accept: list[str] = Field(default_factory=list)
    waivers: str | None = None
    evidence: list[str] = Field(default_factory=list)
    corpus: list[str] = Field(default_factory=list)
    sweep: str | None = None


class Config(DataModel):
    """A configuration file. Paths in it are relative to its folder."""

    capture: CaptureConfig = Field(default_factory=CaptureConfig)
    check: CheckConfig = Field(default_factory=CheckConfig)


class Found:
    """The configuration in force, and the file it is from (``None``: there is none)."""

    def __init__(self, config: Config, file: Path | None = None) -> None:
        self.capture = config.capture
        self.check = config.check
        self.file = file
        self._folder = Path() if file is None else file.parent

    @property
    def shown(self) -> str | None:
        """The file as seen from the current folder."""
        return None if self.file is None else self.path(self.file.name)

    def path(self, name: str) -> str:
        """Return a path of the configuration as seen from the current folder."""
        path = self._folder / name
        try:
            return str(path.resolve().relative_to(Path.cwd()))
        except ValueError:
            return str(path)


def find_config(file: Path | None, *, none: bool) -> Found:
    """Return the configuration: ``file``, else the nearest ``kvgate.yaml``, else ``[tool.kvgate]``, else nothing.

    Looked for in the current folder and its parents, up to and with the root of the git repository. In one
    folder ``kvgate.yaml`` comes before ``pyproject.toml``.

    Args:
        file: ``--config``.
        none: ``--no-config``.

    Raises:
        InputError: unreadable, an unknown key, a wrong type; naming file and line.
        UsageError: both options.

    """
    if file is not None and none:
        raise UsageError("--config and --no-config exclude each other")
    if none:
        return _nothing()
    if file is not None:
        return _read(file)
    here = Path.cwd()
    for folder in (here, *here.parents):
        for name in (NAME, _PYPROJECT):
            if (folder / name).is_file() and (name == NAME or _TABLE.search(_bytes(folder / name))):
                return _read(folder / name)
        if (folder / ".git").exists():
            break
    return _nothing()


def _nothing() -> Found:
    """Return what holds where nothing is configured; not validated, because building validators takes its time."""
    return Found(Config.model_construct(capture=CaptureConfig.model_construct(), check=CheckConfig.model_construct()))


def _read(path: Path) -> Found:
    data = _bytes(path)
    if path.suffix == ".toml":
        return Found(_from_toml(data, str(path)), path)
    document, lines = parse_document(data, str(path))
    return Found(data_from({} if document is None else document, str(path), Config, lines), path)


def _bytes(path: Path) -> bytes:
    from kvgate.corpora.files import read_bytes

    return read_bytes(path, MAX_BYTES)


def _from_toml(data: bytes, source: str) -> Config:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", where=source) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"not valid TOML: {error}", where=source) from None
    table: Any = document.get("tool", {}).get("kvgate", {})
    return data_from(table, source, Config, _toml_lines(data.decode("utf-8")))


def _toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the lines of tables and keys below ``[tool.kvgate]``, as far as plain spellings go."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            parts = tuple(part.strip(" \"'") for part in header[1].split("."))
            table = parts[2:] if parts[:2] == ("tool", "kvgate") else None
            if table:
                lines.setdefault(table, number)
        elif table is not None and (key := re.match(r"\s*([\w.\"'-]+)\s*=", line)):
            lines.setdefault((*table, *(part.strip("\"'") for part in key[1].split("."))), number)
    return lines
