"""The room's packaged tables (``data/*.yaml``), read once, and refused where a key is unknown."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from kvgate.rules.document import parse_document

_Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Root(_Strict):
    """Where a language model's tensors are: layers, input embedding, head, what is behind the last layer."""

    layers: _Text
    embedding: _Text
    head: _Text
    final: tuple[_Text, ...]


class Family(_Strict):
    """What was proved of one ``model_type``."""

    architecture: _Text
    root: _Text
    text_config: bool = False
    tail: tuple[_Text, ...]
    counts: tuple[_Text, ...]


class KvTail(_Strict):
    """``kv_tail.yaml``: the tensors that no persisted state depends on."""

    schema_: Literal["kvgate/kv-tail/v1"] = Field(alias="schema")
    version: int
    checked: _Text
    source: _Text
    roots: dict[str, Root]
    families: dict[str, Family]


class TiedPair(_Strict):
    """The two names of one parameter."""

    head: _Text
    embedding: _Text


class TiedHeads(_Strict):
    """``tied_heads.yaml``: where a tied head may be stored."""

    schema_: Literal["kvgate/tied-heads/v1"] = Field(alias="schema")
    checked: _Text
    source: _Text
    pairs: tuple[TiedPair, ...]


class AdapterField(_Strict):
    """One field of ``adapter_config.json``: is it inert, its default, does order matter, is one number a list of it."""

    why: _Text
    inert: bool = False
    inert_values: tuple[Any, ...] = ()
    unordered: bool = False
    one_is_a_list: bool = False
    default: Any = None


class AdapterFields(_Strict):
    """``adapter_fields.yaml``: which fields of an adapter's configuration change what it computes."""

    schema_: Literal["kvgate/adapter-fields/v1"] = Field(alias="schema")
    checked: _Text
    source: _Text
    fields: dict[str, AdapterField]


_Table = TypeVar("_Table", bound=_Strict)


def _load(name: str, kind: type[_Table]) -> _Table:
    document, _ = parse_document(files("kvgate.weights").joinpath("data", name).read_bytes(), name)
    return kind.model_validate(document)


@functools.cache
def kv_tail() -> KvTail:
    """Return the table of harmless tensors."""
    return _load("kv_tail.yaml", KvTail)


@functools.cache
def tied_heads() -> TiedHeads:
    """Return the table of tied heads."""
    return _load("tied_heads.yaml", TiedHeads)


@functools.cache
def adapter_fields() -> AdapterFields:
    """Return the table of adapter fields."""
    return _load("adapter_fields.yaml", AdapterFields)
