"""pyproject.toml names every package and every data file: setuptools leaves out in silence what it does not name."""

from __future__ import annotations

from pathlib import Path

from .packaging import package_of, room_files, setuptools_table
from .repository import ROOT
from .rooms import ALLOWED


def test_every_package_on_disk_is_listed_where_it_lies() -> None:
    folders = {path.parent.relative_to(ROOT) for room in ALLOWED for path in (ROOT / room).rglob("*.py")}
    on_disk = {package_of(folder): folder.as_posix() for folder in folders}
    table = setuptools_table()
    assert sorted(table["packages"]) == sorted(on_disk)
    assert table["package-dir"] == on_disk


def test_every_package_has_its_init() -> None:
    folders = {path.parent for room in ALLOWED for path in (ROOT / room).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_every_data_file_is_in_a_glob_and_every_glob_finds_one() -> None:
    table = setuptools_table()
    data = {name for name in room_files().values() if not name.endswith(".py")}
    found: set[str] = set()
    for package, globs in table["package-data"].items():
        folder = Path(table["package-dir"][package])
        for pattern in globs:
            matched = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).glob(pattern)}
            assert matched, f"{package}: {pattern} finds nothing"
            found |= matched
    assert sorted(data - found) == []


def test_type_checkers_see_every_package() -> None:
    """``.typing/kvgate`` is what mypy and editors read in place of an editable installation's import hook."""
    linked = {path.name: path.resolve() for path in (ROOT / ".typing" / "kvgate").iterdir()}
    expected = {room: ROOT / room for room in ALLOWED if room != "api"}
    expected |= {path.name: path for path in (ROOT / "api").iterdir() if path.name != "__pycache__"}
    assert linked == expected
