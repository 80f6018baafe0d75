"""A store that is another model's: named for one, as a path that somebody copied, or shared with one under one name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvgate.deployments.config import text_config
from kvgate.deployments.launch import LaunchFacts
from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import manifest_from
from kvgate.rules.profile import cover
from kvgate.rules.schema import SCHEMA_ID
from kvgate.rules.values import Known

_NAMES = ("model.id", "model.served_name")
# Names that say nothing of a model: a store may be called so whichever is served.
_COMMON = frozenset(
    {"ai", "base", "cache", "chat", "data", "default", "engine", "inference", "kv", "kvcache", "llm", "lmcache", "main"}
    | {"mnt", "model", "models", "prod", "serving", "sglang", "shared", "store", "test", "tmp", "vllm"}
)
_COMPONENT = re.compile(r"[^/:@\[\]+\s]+")


class ModelFamilies(BaseModel):
    """The table of families; the head of the file says what it means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["kvgate/model-families/v1"] = Field(alias="schema")
    source: str
    checked: str
    families: dict[str, list[str]]


@cache
def model_families() -> ModelFamilies:
    """Return the table of families of models."""
    name = "model_families.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    return ModelFamilies.model_validate(parse_document(data, name)[0])


def refuse_stores_of_others(facts: LaunchFacts, config: Mapping[str, Any], sets: Mapping[str, Any]) -> None:
    """Refuse a store that is another model's.

    It is named for the model of another server in the files or for one of another family; or another server in the
    files stores there too, and keys have one and the same name for both models.

    A place that the operator declares is taken for what it is.

    Args:
        facts: what the files say.
        config: the effective config of the checkpoint.
        sets: what the operator declares.

    Raises:
        InputError: naming the store and the model, and where each stands.
    """
    if any(path in ("cache", "cache.location", "cache.namespace") for path in sets):
        return
    places: dict[str, Any] = {path: facts.values.get(path) for path in ("cache.location", "cache.namespace")}
    known = next((f"--set {path}={value}" for path, value in places.items() if value is not None), "")
    hint = "give this model a store of its own" + (f", or say that it is meant: {known}" if known else "")
    for other in facts.neighbours:
        mine, others = _filed(facts), _filed(other)
        if mine is not None and mine == others and facts.model != other.model:
            raise InputError(
                f"two models share the store {places['cache.location']}, and its keys tell them apart by nothing: "
                f"{facts.model} here, and {other.model} in {other.source}",
                where=facts.source,
                hint=hint,
            )
    names = [*facts.stores, *(value for value in places.values() if isinstance(value, str))]
    own = {*_names(facts.model), *_names(facts.values.get("model.served_name"))}
    for store in dict.fromkeys(names):
        components = [_plain(one) for one in _COMPONENT.findall(store)]
        if own & set(components):
            continue
        if (why := _of_a_neighbour(components, own, facts) or _of_a_family(components, facts, config)) is not None:
            raise InputError(f"the store {store} is named for another model: {why}", where=facts.source, hint=hint)


def _of_a_neighbour(components: Iterable[str], own: set[str], facts: LaunchFacts) -> str | None:
    for other in facts.neighbours:
        others = (_names(other.model) | _names(other.values.get("model.served_name"))) - own - _COMMON
        if found := next((one for one in components if one in others), None):
            return f"{found} is what {other.source} serves"
    return None


def _filed(facts: LaunchFacts) -> tuple[Any, ...] | None:
    """Return the store and the name of the model in its keys; ``None`` where one of them is not known."""
    paths = (*_NAMES, "engine.name", "engine.version", "cache.connector", "cache.location", "cache.namespace")
    data: dict[str, Any] = {"schema": SCHEMA_ID}
    for path in paths:
        section, _, name = path.partition(".")
        if path in facts.values:
            data.setdefault(section, {})[name] = facts.values[path]
    data.setdefault("model", {})["id"] = facts.model
    if facts.model is None or not isinstance(facts.values.get("cache.location"), str):
        return None
    covered = cover(manifest_from(data, facts.source))
    if covered.profile is None:
        return None
    names = [covered.part(one, one) for one in _NAMES if one in covered.in_every_key]
    if not all(isinstance(name, Known) for name in names):
        return None
    store = (facts.values.get(path) for path in ("cache.connector", "cache.location", "cache.namespace"))
    return (*store, *(name.value for name in names if isinstance(name, Known)))


def _of_a_family(components: Iterable[str], facts: LaunchFacts, config: Mapping[str, Any]) -> str | None:
    """Say which families a store is named for, where the model is known to be of another."""
    families = model_families().families
    model_type = text_config(config).get("model_type")
    if not isinstance(model_type, str) or not any(model_type.startswith(tuple(one)) for one in families.values()):
        return None
    said = " ".join(str(name).lower() for name in (facts.model, facts.values.get("model.served_name")))
    for component in components:
        named = list(_families_in(component))
        if named and not any(family in said or model_type.startswith(tuple(families[family])) for family in named):
            return f"{component} is a {named[0]}, and config.json says {model_type}"
    return None


def _families_in(component: str) -> Iterator[str]:
    """Yield the families whose word stands in a name with a version or size behind it, as names of checkpoints have."""
    for family in model_families().families:
        if re.search(rf"(?<![a-z0-9]){re.escape(family)}-?v?[0-9]", component):
            yield family


def _names(name: object) -> set[str]:
    """Return what a store may be called that is named for a model: all of its name, or the last part."""
    if not isinstance(name, str) or not name:
        return set()
    return {_plain(name), _plain(name.rstrip("/").rpartition("/")[2])} - {""}


def _plain(name: str) -> str:
    """Return a name in one spelling: case and the signs between its words are everybody's own."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
