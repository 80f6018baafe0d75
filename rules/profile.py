"""Connector profiles: what the key of a persistent KV entry really covers, read from the sources as data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any, Literal, cast

from pydantic import Field, model_validator

from kvgate.rules import dtypes
from kvgate.rules.carried import carries
from kvgate.rules.catalogue import Dimension, dimensions
from kvgate.rules.change import UNCLASSIFIED
from kvgate.rules.keyforms import Form, in_key
from kvgate.rules.manifest import Manifest, schema_leaves
from kvgate.rules.packaged import DataModel, packaged_bytes, packaged_names, parse_data
from kvgate.rules.values import UNKNOWN, Known
from kvgate.rules.values import Field as ManifestField

SCHEMA_ID = "kvgate/profile/v1"

Coverage = Literal["separates", "token-ids", "rejects", "no", "unknown"]
Feature = Literal["lora", "cache_salt", "multimodal", "prompt_embeds", "template_kwargs", "kv_scales", "weights"]


class Cell(DataModel):
    """What the key does with one dimension.

    ``key``: it separates; separates only because token hashes change; rejects at connect (no key);
    does not separate; not known. ``form``: the form in which the value enters the key, where two values
    can share one. ``paths``: those of the dimension's manifest paths that enter it; all where none is listed.
    ``while_unset``: the manifest path that must be known to be unset for the key to hold it at all.
    ``clashes_with``: another thing requests carry that enters the key at the same place, so that a value of
    one is a value of the other. ``scope``: the entries whose keys carry it. ``by_path``: of an adapter the path that
    the engine loads it from enters the key beside its name, letter by letter. ``harmless_when``: the condition
    under which a difference leaves entries valid by design: ``mla``: the model keeps one latent for all heads;
    ``converted``: whoever reads brings the blocks into its own form, or refuses.
    """

    key: Coverage
    form: Form = "verbatim"
    paths: list[str] = Field(default_factory=list)
    while_unset: str | None = None
    clashes_with: Feature | None = None
    scope: Literal["all", "adapter", "media", "tenant"] = "all"
    by_path: bool = False
    harmless_when: Literal["mla", "converted"] | None = None
    note: str | None = None
    source: str | None = None


class Knob(DataModel):
    """A setting that puts entries in a name space of their own, the manifest path that holds it, and how to set it.

    ``when_key_has``: for an own store, only where its key holds this field. ``schemes``: the URL schemes (the
    empty one: a plain path or name) whose path is a place of its own. ``whole_hosts``: those of which only the host or
    bucket is one, because what stands behind it is not read. ``databases``: those whose path is the number of a
    database, and is read.
    """

    path: Literal["cache.namespace", "cache.location"]
    how: list[str]
    when_key_has: str | None = None
    schemes: list[str] = Field(default_factory=lambda: ["", "file", "fs", "s3", "gs"])
    whole_hosts: list[str] = Field(default_factory=list)
    databases: list[str] = Field(default_factory=list)


class Tags(DataModel):
    """Values that a request may carry under names of the sender's choice, all of them part of its entries' keys.

    ``prefix``: what such a name begins with. ``taken``: what may follow it, and holds one value for all requests.
    """

    prefix: str
    taken: list[str]
    source: str

    def carry(self, name: str) -> bool:
        """Whether something is the name of such a value."""
        return name.startswith(self.prefix) and _TAG.fullmatch(name, len(self.prefix)) is not None


_TAG = re.compile(r"[A-Za-z0-9_-]+")  # a dot, @ or % would be read as something else somewhere


class Clearing(DataModel):
    """How old entries are deleted, and what else goes with them."""

    command: str
    blast_radius: str
    scoped: bool


class Versions(DataModel):
    """The versions a profile was read for; outside them it says nothing.

    ``range``: released versions, PEP 440. ``commits``: what was read between releases, in as many hex digits as
    are known of each. Where both are missing, what was read is no one version.
    """

    path: Literal["cache.version", "engine.version"]
    range: str | None = None
    commits: list[str] = Field(default_factory=list)

    @property
    def said(self) -> str:
        """The versions in words, after the path: ``>=0.31,<=0.33.0``, ``commit 34ab141``; empty where there is none."""
        parts = [*([self.range] if self.range else []), *(f"commit {commit}" for commit in self.commits)]
        return " or ".join(parts)

    def speak_for(self, version: Any) -> bool:
        """Whether a version was read: one in the range, or one of the commits in seven or more hex digits."""
        if self.range is not None and version_in(version, self.range):
            return True
        text = str(version)
        return _COMMIT.fullmatch(text) is not None and any(text.startswith(commit) for commit in self.commits)


_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class Upgrade(DataModel):
    """What one version step does: to the keys, and whether stored KV stays what the new version would compute.

    ``keys``: kept, gone cold, or made to meet those of other processes that they were apart from. ``scope``: all
    entries, those of plain text, or those of requests that carry something else (adapters, salts, media).
    """

    from_: str = Field(alias="from")
    to: str
    path: Literal["cache.version", "engine.version"]
    keys: Literal["kept", "cold", "joins"]
    kv: Literal["same", "unknown"]
    scope: Literal["all", "text", "not-text"] = "all"
    note: str | None = None
    source: str

    @model_validator(mode="after")
    def _covers_whole_requests(self) -> Upgrade:
        if self.kv == "same" and self.scope == "not-text":
            raise ValueError("a step that is covered is covered for all entries, or for text")
        return self


class Profile(DataModel):
    """One connector and key scheme. A dimension or feature it does not list is not known.

    ``engine``: the one whose code was read with it; ``null`` where no engine makes the keys. ``outlives_worker``:
    whether entries stay when the worker that made them is gone. ``tags``: what can carry a tenant boundary beside
    ``requests``. ``knobs``: ``null`` where no setting is known, ``[]``
    where there positively is none. ``isolation``: what keeps entries apart where no setting that a manifest holds does.
    """

    id: str
    title: str
    source: str
    checked: str
    engine: str | None = None
    versions: Versions | None = None
    outlives_worker: bool = True
    token_keyed: bool
    key_from_fields: bool = False
    key_format: str
    model_name: str
    cells: dict[str, Cell]
    requests: dict[Feature, Cell]
    tags: Tags | None = None
    knobs: list[Knob] | None
    isolation: str | None = None
    clearing: Clearing
    upgrades: list[Upgrade] = Field(default_factory=list)

    __hash__ = object.__hash__  # what it holds has no hash, and what is worked out with it is kept by the object

    @model_validator(mode="after")
    def _about_what_there_is(self) -> Profile:
        known = {one.id: one for one in dimensions()}
        for name, cell in self.cells.items():
            if name not in known:
                raise ValueError(f"cells: {name!r} is not a dimension")
            if strangers := [path for path in cell.paths if path not in known[name].paths]:
                raise ValueError(f"cells: {strangers[0]!r} is no path of {name}")
            if cell.by_path and (name, cell.key, cell.scope) != ("adapters", "separates", "adapter"):
                raise ValueError(f"cells: {name}: by_path says how the key holds an adapter")
        for cell in (*self.cells.values(), *self.requests.values()):
            if cell.while_unset is not None and cell.while_unset not in schema_leaves():
                raise ValueError(f"cells: while_unset: {cell.while_unset!r} is not a manifest path")
        return self


class EveryConnector(DataModel):
    """What holds for the key of every connector that was read, unless its profile says otherwise."""

    source: str
    checked: str
    cells: dict[str, Cell]
    requests: dict[Feature, Cell]


@cache
def every_connector() -> EveryConnector:
    """Return what holds for every connector that was read."""
    return parse_data(packaged_bytes("data", "every_connector.yaml"), "every_connector.yaml", EveryConnector)


@cache
def load_profile(identifier: str) -> Profile | None:
    """Return a shipped profile by id, with what is true of every connector; ``None`` where there is none."""
    if identifier not in packaged_names("profiles"):
        return None
    own = parse_data(packaged_bytes("profiles", f"{identifier}.yaml"), f"{identifier}.yaml", Profile)
    if own.key_from_fields:
        return own
    shared = every_connector()
    cells = {**shared.cells, **own.cells}
    ordered = {one.id: cells[one.id] for one in dimensions() if one.id in cells}
    return own.model_copy(update={"cells": ordered, "requests": {**shared.requests, **own.requests}})


def shipped_profiles() -> dict[str, Profile]:
    """Return every shipped profile by id."""
    return {name: profile for name in packaged_names("profiles") if (profile := load_profile(name)) is not None}


@dataclass(frozen=True)
class Coverer:
    """A profile applied to one manifest: what the key of that deployment's entries covers.

    ``profile`` is ``None`` where nothing can be said: no connector known, no profile, a version outside
    its range; ``why`` says which. ``absent`` marks a deployment known to have no persistent cache. ``beside``: the
    deployment on the other side of a rollout, whose entries lie in the same store.
    """

    manifest: Manifest
    profile: Profile | None
    why: str
    absent: bool = False
    beside: Manifest | None = None

    def next_to(self, other: Manifest) -> Coverer:
        """Return the same with another deployment beside it; what its own manifest decides is kept."""
        moved = replace(self, beside=other)
        kept = {"_own_fields": self._own_fields, "_cells": self._cells, "in_every_key": self.in_every_key}
        vars(moved).update(kept)
        return moved

    def cell(self, dimension_id: str) -> Cell:
        """Return what the key does with a dimension; not known where nothing says."""
        if self.profile is None or dimension_id == UNCLASSIFIED:
            return _NOTHING
        cell = self._cells.get(dimension_id, _NOTHING)
        if dimension_id == "adapters" and cell.key in ("separates", "token-ids"):
            held = self.request("lora")  # what their requests carry, at the place where it stands
            return cell if held.key in ("separates", "token-ids") or held.clashes_with is None else held
        return cell

    def request(self, feature: Feature) -> Cell:
        """Return what the key does with something that varies between requests."""
        if self.profile is None:
            return _NOTHING
        if self.profile.key_from_fields:
            fields = self._own_fields
            if fields is None:
                return _NOTHING
            if feature == "template_kwargs" and self.token_keyed:
                return _FROM_TOKENS
            return _SEPARATES if feature in fields else _LEFT_OUT
        cell = self._in_force(self.profile.requests.get(feature, _NOTHING))
        other = cell.clashes_with
        sides = [side for side in (self.manifest, self.beside) if side is not None]
        if other is None or all(carries(side, other) is False for side in sides):
            return cell
        note = f"it enters the key where {other} does, and requests may carry either"
        return cell.model_copy(update={"key": "unknown", "note": note})

    def carrier(self, name: str) -> Cell:
        """Return what the key does with what carries a tenant boundary: something of requests, or a tag of theirs."""
        tags = None if self.profile is None else self.profile.tags
        if tags is None or not tags.carry(name):
            return self.request(cast("Feature", name))
        if name.removeprefix(tags.prefix) in tags.taken:
            note = "cache.namespace stands there, one for all requests: take a tag of another name"
            return Cell.model_construct(key="no", note=note)
        return Cell.model_construct(key="separates", scope="tenant", source=tags.source)

    @property
    def token_keyed(self) -> bool:
        """Whether every entry's key is made of the token ids it holds the KV of."""
        if self.profile is None:
            return False
        if self.profile.key_from_fields:
            fields = self._own_fields
            return fields is not None and "token_ids" in fields
        return self.profile.token_keyed

    @property
    def knobs(self) -> list[Knob] | None:
        """The isolation knobs that work for this deployment; ``None``: not known, ``[]``: there is none."""
        if self.profile is None or self.profile.knobs is None:
            return None
        fields = self._own_fields if self.profile.key_from_fields else None
        return [
            knob
            for knob in self.profile.knobs
            if knob.when_key_has is None or (fields is not None and knob.when_key_has in fields)
        ]

    @cached_property
    def in_every_key(self) -> dict[str, list[str]]:
        """The dimensions that the keys of all entries hold, in catalogue order, with the paths that enter them."""
        if self.profile is None:
            return {}
        held = [
            (one, cell)
            for one in dimensions()
            if (cell := self._cells.get(one.id)) is not None and cell.key == "separates" and cell.scope == "all"
        ]
        if not self.profile.key_from_fields:
            return {one.id: cell.paths or one.paths for one, cell in held}
        fields = {*(self._own_fields or ()), *_ALWAYS_IN_AN_OWN_KEY}
        return {one.id: [field for field in fields if one.owns(field)] for one, _ in held}

    @property
    def in_worker(self) -> bool:
        """Whether entries are known to end with the worker that made them."""
        return self.profile is not None and not self.profile.outlives_worker

    def part(self, dimension_id: str, path: str) -> ManifestField:
        """Return the value at ``path`` in the form in which it enters the key; unknown where that is not known.

        A path that does not enter it is one and the same for all values.
        """
        cell = self.cell(dimension_id)
        if cell.paths and path not in cell.paths:
            return Known(None)
        field = self.manifest.get(path)
        if not isinstance(field, Known):
            return field
        if path in _LISTS:
            return UNKNOWN
        if dimension_id in ("precision.compute", "precision.kv_cache") and field.value not in dtypes.KNOWN:
            return UNKNOWN  # it may be another format's second name
        return in_key(cell.form, field, self.manifest)

    @cached_property
    def _cells(self) -> Mapping[str, Cell]:
        if self.profile is None:
            return {}
        if self.profile.key_from_fields:
            return self._own_cells
        return {name: self._in_force(cell) for name, cell in self.profile.cells.items()}

    def _in_force(self, cell: Cell) -> Cell:
        """Return a cell as it is for this deployment: what the key holds only while something is unset, or not."""
        path = cell.while_unset
        if path is None or self.manifest.unset(path):
            return cell
        return cell.model_copy(update={"key": "no" if self.manifest.knows(path) else "unknown"})

    @cached_property
    def _own_fields(self) -> frozenset[str] | None:
        fields = self.manifest.value("cache.key_fields")
        return None if fields is None else frozenset(path for field in fields for path in _own_paths(field))

    @cached_property
    def _own_cells(self) -> dict[str, Cell]:
        fields = self._own_fields
        return {} if fields is None else {one.id: _own_cell(one, fields) for one in dimensions()}


def _own_paths(field: str) -> list[str]:
    """Return what one entry of ``cache.key_fields`` stands for; a dimension for what identifies it, never its labels.

    A section is no field, and neither are labels as a whole: that part of one is in some key says nothing of the
    rest. How something is known (``provenance``) is in no key.
    """
    field = _FIELD_PATHS.get(field, field)
    named = next((one for one in dimensions() if one.id == field), None)
    if field in ("labels", "provenance", "schema"):
        return []
    if named is not None:
        return named.identity or named.paths
    return [] if any(leaf.startswith(f"{field}.") for leaf in schema_leaves()) else [field]


def _own_cell(one: Dimension, fields: frozenset[str]) -> Cell:
    """Return what a key that is made of these fields does with a dimension."""
    if one.id in _ALWAYS_IN_AN_OWN_KEY or any(one.owns(field) for field in fields):
        return _OF_ADAPTERS if one.id == "adapters" else _SEPARATES
    return _FROM_TOKENS if one.id in _TOKEN_DIMENSIONS and "token_ids" in fields else _LEFT_OUT


# Constructed, not validated: that alone would build the validator of cells whenever this module is imported.
_COVERAGES: tuple[Coverage, ...] = ("unknown", "separates", "token-ids", "no")
_NOTHING, _SEPARATES, _FROM_TOKENS, _LEFT_OUT = (Cell.model_construct(key=key) for key in _COVERAGES)
_OF_ADAPTERS = Cell.model_construct(key="separates", scope="adapter")  # entries of the base model name none
_LISTS = frozenset({"adapters", "roles", "weights.served"})  # of entries whose parts may be unknown, each on its own
_FIELD_PATHS = {"namespace": "cache.namespace", "epoch": "cache.epoch"}
_ALWAYS_IN_AN_OWN_KEY = frozenset({"cache.location", "cache.key_fields"})  # another place or another key: another entry
_TOKEN_DIMENSIONS = frozenset(
    {
        "tokenizer",
        "tokenizer.renderer",
        "tokenizer.options",
        "chat_template",
        "inputs.tool_schemas",
        "inputs.document_sets",
        "inputs.system_prompts",
    }
)


def cover(manifest: Manifest, profiles: Mapping[str, Profile] | None = None) -> Coverer:
    """Find the profile that speaks for a deployment's entries.

    Args:
        manifest: the deployment.
        profiles: profiles by id to choose from; the shipped ones where ``None``.

    """
    connector = manifest.get("cache.connector")
    if not isinstance(connector, Known):
        return Coverer(manifest, None, "the connector is not known")
    if connector.value is None:
        return Coverer(manifest, None, "no persistent cache", absent=True)
    profile = load_profile(connector.value) if profiles is None else profiles.get(connector.value)
    if profile is None:
        return Coverer(manifest, None, f"there is no profile for the connector {connector.value!r}")
    return _covered(manifest, profile)


@lru_cache(maxsize=256)
def _covered(manifest: Manifest, profile: Profile) -> Coverer:
    if profile.engine is not None and (why := _another_engine(profile, profile.engine, manifest)) is not None:
        return Coverer(manifest, None, why)
    if profile.versions is not None and (why := _outside(profile, profile.versions, manifest)) is not None:
        return Coverer(manifest, None, why)
    if profile.key_from_fields and not manifest.value("cache.key_fields"):
        return Coverer(manifest, None, "cache.key_fields is not known, or empty")
    return Coverer(manifest, profile, "")


def _another_engine(profile: Profile, read: str, manifest: Manifest) -> str | None:
    engine = manifest.value("engine.name")
    if engine == read:
        return None
    found = "it is not known which one runs" if engine is None else f"not in {engine}"
    return f"the profile {profile.id} was read as it runs in {read}; {found}"


def _outside(profile: Profile, versions: Versions, manifest: Manifest) -> str | None:
    version = manifest.value(versions.path)
    if not versions.said:
        return f"what is known of {profile.id} was read from files of no one release, so its profile speaks for none"
    if version is None:
        return f"{versions.path} is not known; the profile covers {versions.said}"
    if versions.speak_for(version):
        return None
    return f"the profile {profile.id} speaks for {versions.path} {versions.said}, not for {version}"


def version_in(version: Any, wanted: str) -> bool:
    """Whether a released version lies in a PEP 440 range; ``False`` for anything else.

    A pre-release, a development version or a local build (``0.33.0+fork``) is not what was read.
    """
    return _in_range(str(version), wanted)


@lru_cache(maxsize=256)
def _in_range(version: str, wanted: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        found = Version(version)
        return not found.is_prerelease and found.local is None and found in SpecifierSet(wanted)
    except (InvalidVersion, InvalidSpecifier):
        return False
