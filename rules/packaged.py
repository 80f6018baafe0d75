"""Reading the data that ships with this room: parsed strictly, cached, named in errors by its own file name."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError

_Model = TypeVar("_Model", bound="DataModel")


class DataModel(BaseModel):
    """Base of everything that is read from a data file: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


@cache
def packaged_bytes(folder: str, name: str) -> bytes:
    """Return the bytes of one packaged file of this room.

    Raises:
        FileNotFoundError: if the installed package lacks it.

    """
    return resources.files("kvgate.rules").joinpath(folder, name).read_bytes()


@cache
def packaged_names(folder: str) -> tuple[str, ...]:
    """Return the stems of the YAML files in one packaged folder, sorted."""
    entries = resources.files("kvgate.rules").joinpath(folder).iterdir()
    return tuple(sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".yaml")))


def parse_data(data: bytes, source: str, model: type[_Model]) -> _Model:
    """Parse one data file into its type.

    Raises:
        InputError: naming file, line and path of the first thing that is wrong with it.

    """
    document, lines = parse_document(data, source)
    return data_from(document, source, model, lines)


def data_from(
    document: Any, source: str, model: type[_Model], lines: dict[tuple[str, ...], int] | None = None
) -> _Model:
    """Validate plain data into its type; the same errors as :func:`parse_data`."""
    try:
        return model.model_validate(document, by_alias=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        path = tuple(str(part) for part in first["loc"])
        where = source
        for end in range(len(path), 0, -1):
            if lines and (line := lines.get(path[:end])) is not None:
                where = f"{source}:{line}"
                break
        message = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        raise InputError(f"{'.'.join(path) or 'document'}: {message}", where=where) from None
