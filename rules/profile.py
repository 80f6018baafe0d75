"""Connector profiles: what the key of a persistent KV entry really covers, read from the sources as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, Literal

from pydantic import Field, model_validator

from kvgate.rules import dtypes
from kvgate.rules.catalogue import Dimension, dimensions
from kvgate.rules.change import UNCLASSIFIED
from kvgate.rules.manifest import Manifest, schema_leaves
from kvgate.rules.packaged import DataModel, packaged_bytes, packaged_names, parse_data
from kvgate.rules.values import UNKNOWN, Known
from kvgate.rules.values import Field as ManifestField

Coverage = Literal["separates", "token-ids", "rejects", "no", "unknown"]
Feature = Literal["lora", "cache_salt", "multimodal", "prompt_embeds", "template_kwargs", "kv_scales", "weights"]
Form = Literal["verbatim", "last-component", "world-size", "world-size-unless-mla", "torch-storage-dtype"]


class Cell(DataModel):
    """What the key does with one dimension.

    ``key``: it separates; separates only because token hashes change; rejects at connect (no key);
    does not separate; not known. ``form``: the form in which the value enters the key, where two values
    can share one. ``scope``: the entries whose keys carry it. ``harmless_when``: the condition under which
    a difference leaves entries valid by design.
    """

    key: Coverage
    form: Form = "verbatim"
    scope: Literal["all", "adapter", "media", "tenant"] = "all"
    harmless_when: Literal["mla"] | None = None
    note: str | None = None
    source: str | None = None


class Knob(DataModel):
    """A setting that puts entries in a name space of their own, the manifest path that holds it, and how to set it.

    ``when_key_has``: for an own store, only where its key holds this field. ``schemes``: the URL schemes (the
    empty one: a plain path or name) whose path is a place of its own.
    """

    path: Literal["cache.namespace", "cache.location"]
    how: list[str]
    when_key_has: str | None = None
    schemes: list[str] = Field(default_factory=lambda: ["", "file", "fs", "s3", "gs"])


class Clearing(DataModel):
    """How old entries are deleted, and what else goes with them."""

    command: str
    blast_radius: str
    scoped: bool


class Versions(DataModel):
    """The versions a profile was read for; outside them it says nothing."""

    path: Literal["cache.version", "engine.version"]
    range: str


class Upgrade(DataModel):
    """What one version step does: to the keys, and whether stored KV stays what the new version would compute."""

    from_: str = Field(alias="from")
    to: str
    path: Literal["cache.version", "engine.version"]
    keys: Literal["kept", "cold", "joins"]
    kv: Literal["same", "unknown"]
    scope: Literal["all", "text"] = "all"
    source: str


class Profile(DataModel):
    """One connector and key scheme. A dimension or feature it does not list is not known."""

    id: str
    title: str
    source: str
    checked: str
    versions: Versions | None = None
    token_keyed: bool
    key_from_fields: bool = False
    key_format: str
    model_name: str
    cells: dict[str, Cell]
    requests: dict[Feature, Cell]
    knobs: list[Knob] | None
    clearing: Clearing
    upgrades: list[Upgrade] = Field(default_factory=list)

    @model_validator(mode="after")
    def _known_dimensions(self) -> Profile:
        unknown = sorted(set(self.cells) - {known.id for known in dimensions()})
        if unknown:
            raise ValueError(f"cells: {unknown[0]!r} is not a dimension")
        return self


@cache
def load_profile(identifier: str) -> Profile | None:
    """Return a shipped profile by id, or ``None`` where there is none."""
    if identifier not in packaged_names("profiles"):
        return None
    return parse_data(packaged_bytes("profiles", f"{identifier}.yaml"), f"{identifier}.yaml", Profile)


def shipped_profiles() -> dict[str, Profile]:
    """Return every shipped profile by id."""
    return {name: profile for name in packaged_names("profiles") if (profile := load_profile(name)) is not None}


@dataclass(frozen=True)
class Coverer:
    """A profile applied to one manifest: what the key of that deployment's entries covers.

    ``profile`` is ``None`` where nothing can be said: no connector known, no profile, a version outside
    its range; ``why`` says which. ``absent`` marks a deployment known to have no persistent cache.
    """

    manifest: Manifest
    profile: Profile | None
    why: str
    absent: bool = False

    def cell(self, dimension_id: str) -> Cell:
        """Return what the key does with a dimension; not known where nothing says."""
        if self.profile is None or dimension_id == UNCLASSIFIED:
            return _NOTHING
        if self.profile.key_from_fields:
            return self._own_cells.get(dimension_id, _NOTHING)
        return self.profile.cells.get(dimension_id, _NOTHING)

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
        return self.profile.requests.get(feature, _NOTHING)

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
        if self.profile is None:
            return None
        fields = self._own_fields if self.profile.key_from_fields else None
        return [
            knob
            for knob in self.profile.knobs or []
            if knob.when_key_has is None or (fields is not None and knob.when_key_has in fields)
        ]

    @cached_property
    def in_every_key(self) -> dict[str, list[str]]:
        """The dimensions that the keys of all entries hold, in catalogue order, with the paths that enter them."""
        if self.profile is None:
            return {}
        cells = self._own_cells if self.profile.key_from_fields else self.profile.cells
        held = [
            one
            for one in dimensions()
            if (cell := cells.get(one.id)) is not None and cell.key == "separates" and cell.scope == "all"
        ]
        if not self.profile.key_from_fields:
            return {one.id: one.paths for one in held}
        fields = {*(self._own_fields or ()), *_ALWAYS_IN_AN_OWN_KEY}
        return {one.id: [field for field in fields if one.owns(field)] for one in held}

    def part(self, dimension_id: str, path: str) -> ManifestField:
        """Return the value at ``path`` in the form in which it enters the key; unknown where that is not known."""
        form = self.cell(dimension_id).form
        field = self.manifest.get(path)
        if not isinstance(field, Known):
            return field
        if dimension_id in ("precision.compute", "precision.kv_cache") and field.value not in dtypes.KNOWN:
            return UNKNOWN  # it may be another format's second name
        if form == "verbatim":
            return field
        if form == "world-size":
            return self._world_size()
        if form == "world-size-unless-mla":
            mla = uses_mla(self.manifest)
            return UNKNOWN if mla is None else Known(1) if mla else self._world_size()
        if not isinstance(field.value, str):
            return field
        if form == "last-component":
            return Known(field.value.rstrip("/").rpartition("/")[2])
        return Known(dtypes.torch_storage(field.value))

    def _world_size(self) -> ManifestField:
        tensor, pipeline = (self.manifest.get(f"parallelism.{name}") for name in ("tensor", "pipeline"))
        if isinstance(tensor, Known) and isinstance(pipeline, Known):
            return Known(tensor.value * pipeline.value)
        return UNKNOWN

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

    A section is no field: that part of it is in some key says nothing of the rest.
    """
    field = _FIELD_PATHS.get(field, field)
    named = next((one for one in dimensions() if one.id == field), None)
    if named is not None:
        return named.identity or named.paths
    return [] if any(leaf.startswith(f"{field}.") for leaf in schema_leaves()) else [field]


def _own_cell(one: Dimension, fields: frozenset[str]) -> Cell:
    """Return what a key that is made of these fields does with a dimension."""
    if one.id in _ALWAYS_IN_AN_OWN_KEY or any(one.owns(field) for field in fields):
        return _SEPARATES
    return _FROM_TOKENS if one.id in _TOKEN_DIMENSIONS and "token_ids" in fields else _LEFT_OUT


# Constructed, not validated: that alone would build the validator of cells whenever this module is imported.
_COVERAGES: tuple[Coverage, ...] = ("unknown", "separates", "token-ids", "no")
_NOTHING, _SEPARATES, _FROM_TOKENS, _LEFT_OUT = (Cell.model_construct(key=key) for key in _COVERAGES)
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


def uses_mla(manifest: Manifest) -> bool | None:
    """Whether the model caches one latent per token for all heads (DeepSeek's MLA); ``None`` where not known.

    Told by ``kv_lora_rank`` in the config, as transformers' DeepSeek-V2 and -V3 classes name it.
    """
    config = manifest.value("model.config")
    if not isinstance(config, Mapping):
        return None
    text = config.get("text_config")
    return any(isinstance(part, Mapping) and part.get("kv_lora_rank") is not None for part in (config, text))


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
    if profile.versions is not None:
        version = manifest.value(profile.versions.path)
        if version is None:
            return Coverer(
                manifest, None, f"{profile.versions.path} is not known; the profile covers {profile.versions.range}"
            )
        if not version_in(version, profile.versions.range):
            range_ = f"{profile.versions.path} {profile.versions.range}"
            return Coverer(manifest, None, f"the profile {profile.id} speaks for {range_}, not for {version}")
    if profile.key_from_fields and not manifest.value("cache.key_fields"):
        return Coverer(manifest, None, "cache.key_fields is not known, or empty")
    return Coverer(manifest, profile, "")


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
