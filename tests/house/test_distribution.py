"""The wheel that is built from the source distribution holds exactly what git has, and works where it lands."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import kvgate

from .packaging import room_files
from .repository import ROOT, tracked

VERSION = kvgate.__version__


@dataclass(frozen=True)
class Distribution:
    """What one build made."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Build from what git has, in a folder with the leavings of an older build in it."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked():
        path = ROOT / name
        if not name.startswith(".typing/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(path.read_bytes())
    stale = source / "build" / "lib" / "kvgate" / "rules" / "packs" / "stale.yaml"
    stale.parent.mkdir(parents=True)
    stale.write_text("id: stale\n")
    made = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(source)], cwd=made)
    assert sorted(path.name for path in made.iterdir()) == [
        f"kvgate-{VERSION}-py3-none-any.whl",
        f"kvgate-{VERSION}.tar.gz",
    ]
    return Distribution(made / f"kvgate-{VERSION}.tar.gz", made / f"kvgate-{VERSION}-py3-none-any.whl")


@pytest.fixture(scope="module")
def site(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel alone into an empty folder."""
    target = tmp_path_factory.mktemp("site")
    install = ["install", "--quiet", "--no-index", "--no-deps", "--target", str(target), str(distribution.wheel)]
    _run([sys.executable, "-m", "pip", *install], cwd=target)
    return target


def test_the_wheel_holds_the_rooms_and_nothing_else(distribution: Distribution) -> None:
    expected = room_files()
    with zipfile.ZipFile(distribution.wheel) as wheel:
        names = {name for name in wheel.namelist() if not name.startswith(f"kvgate-{VERSION}.dist-info/")}
        assert sorted(names) == sorted(expected)
        assert [name for name in names if wheel.read(name) != (ROOT / expected[name]).read_bytes()] == []
        metadata = wheel.read(f"kvgate-{VERSION}.dist-info/METADATA").decode()
        assert wheel.read(f"kvgate-{VERSION}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: Apache-2.0" in metadata.splitlines()


def test_the_source_distribution_holds_what_git_has(distribution: Distribution) -> None:
    """All but what only a checkout needs: the type checkers' links and what starts with a dot."""
    prefix = f"kvgate-{VERSION}/"
    with tarfile.open(distribution.sdist) as sdist:
        names = {member.name.removeprefix(prefix) for member in sdist if member.isfile()}
    generated = {"PKG-INFO", "setup.cfg"} | {name for name in names if name.startswith("kvgate.egg-info/")}
    assert sorted(names - generated) == sorted(name for name in tracked() if not name.startswith("."))


def test_the_wheel_works_where_it_lands(site: Path, tmp_path: Path) -> None:
    done = _run([sys.executable, "-m", "kvgate.cli.main", "--version"], cwd=tmp_path, site=site)
    assert VERSION in done.stdout


def test_the_wheel_finds_its_data(site: Path, tmp_path: Path) -> None:
    script = """
import json, kvgate
from kvgate.corpora.conversations.corpus import load_corpus
from kvgate.rules.pack import shipped_pack
from kvgate.rules.profile import shipped_profiles
print(json.dumps({
    "home": kvgate.__file__,
    "rules": len(shipped_pack("default").rules),
    "profiles": sorted(shipped_profiles()),
    "conversations": load_corpus("diagnostic").count,
}))
"""
    seen = json.loads(_run([sys.executable, "-c", script], cwd=tmp_path, site=site).stdout)
    assert Path(seen["home"]) == site / "kvgate" / "__init__.py"
    assert seen["rules"] > 0
    assert seen["conversations"] > 0
    profiles = {Path(name).stem for name in tracked() if name.startswith("rules/profiles/")}
    assert set(seen["profiles"]) == profiles


def _run(command: list[str], *, cwd: Path, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "", "LC_ALL": "C.UTF-8"} | ({"PYTHONPATH": str(site)} if site else {})
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
