"""``-o FORMAT[=PATH]``: one decision, many renderings; files appear whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvgate.rules.errors import InputError, UsageError

FORMATS = ("text", "json", "markdown", "github")


@dataclass(frozen=True)
class Output:
    """One rendering, and where it goes: ``None`` is standard output."""

    format: str
    path: Path | None


def parse_outputs(given: Sequence[str]) -> list[Output]:
    """Return what ``-o`` asks for, with the text report on standard output where nothing else goes there.

    Raises:
        UsageError: an unknown format, two without a path, a file twice.

    """
    outputs: list[Output] = []
    for text in given:
        name, equals, path = text.partition("=")
        if name not in FORMATS:
            raise UsageError(f"there is no format {name!r}", where="-o", hint=f"formats: {', '.join(FORMATS)}")
        if equals and not path:
            raise UsageError("the path after '=' is empty", where=f"-o {name}=")
        outputs.append(Output(name, Path(path) if equals else None))
    to_stdout = [output.format for output in outputs if output.path is None]
    if len(to_stdout) > 1:
        raise UsageError(
            f"{to_stdout[0]} and {to_stdout[1]} would both go to standard output",
            where="-o",
            hint=f"give all but one a path: -o {_in_a_file(to_stdout[:2])}=FILE",
        )
    files = [output.path.resolve() for output in outputs if output.path is not None]
    for number, file in enumerate(files):
        if file in files[:number]:
            raise UsageError("is named by two outputs", where=str(file), hint="one file for each format")
    return outputs if to_stdout else [*outputs, Output("text", None)]


def _in_a_file(both: Sequence[str]) -> str:
    """Return which of two formats a file serves better: annotations are read off standard output alone."""
    return both[0] if both[1] == "github" else both[1]


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse to write where an input lies, whatever names and links lead there.

    Raises:
        UsageError: naming both.

    """
    taken = [(path, place) for path in inputs if (place := _place(path)) is not None]
    for output in outputs:
        for path, place in taken:
            if _place(output) == place:
                raise UsageError(
                    f"would overwrite {path}, which is an input", where=str(output), hint="write to another file"
                )


def _place(path: Path) -> tuple[int, int] | None:
    """Return where on the disk a file lies, whatever its name; ``None`` where there is nothing to overwrite."""
    try:
        found = path.stat()
    except (OSError, ValueError):  # not there, no permission, a NUL in the name: reading or writing it says so
        return None
    return (found.st_dev, found.st_ino)


def write_file(path: Path, text: str) -> None:
    """Write a file whole: beside its place, then renamed. A device or pipe is written to as it is.

    Raises:
        InputError: it cannot be written.

    """
    from kvgate.corpora.files import write_whole

    data = text.encode("utf-8")
    place = path.resolve() if path.is_symlink() else path  # a link goes on standing for its file
    if place.is_dir():
        raise InputError("is a folder, not a file", where=str(path))
    if not place.exists() or place.is_file():
        write_whole(place, data)
        return
    try:
        with place.open("wb") as file:
            file.write(data)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
