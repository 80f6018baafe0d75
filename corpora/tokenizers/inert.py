"""The list of what a tokenizer's JSON says that no token id depends on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from kvgate.rules.document import parse_document

_FILE = "inert_tokenizer.yaml"


@dataclass(frozen=True)
class Inert:
    """One class of differences that cannot change an id: in which part it lies, and why that is so."""

    id: str
    part: str
    why: str


@cache
def inert_classes() -> dict[str, Inert]:
    """Return the list by id, in its order.

    Raises:
        InputError: the packaged file is damaged.

    """
    data = resources.files("kvgate.corpora").joinpath("data", _FILE).read_bytes()
    document, _ = parse_document(data, _FILE)
    return {entry["id"]: Inert(**entry) for entry in document["inert"]}
