"""A running server against the files: what it was not started with, and what it tells that they leave open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvgate.deployments.launch import LaunchFacts
from kvgate.deployments.launch.flags import flag_table
from kvgate.deployments.running import AUTO, Running, Said, running_fields
from kvgate.rules.canonical import canonical_json
from kvgate.rules.errors import InputError

_MAX_SHOWN, _MAX_TEXT = 6, 200
# What the files say by another flag than one of the table's.
_SAID_BY = {
    "vllm": {"cache.connector": "--kv-transfer-config", "adapters": "--lora-modules", "model.config": "--hf-overrides"},
    "sglang": {
        "cache.connector": "--hicache-storage-backend",
        "adapters": "--lora-paths",
        "model.config": "--json-model-override-args",
    },
}
_IN_THE_IMAGE = ("engine.name", "engine.version")
_PLAIN_TYPES = ("bfloat16", "float16", "float32")
# An engine that settles a type or length for itself does so by its device and its release, which no file shows.
_SETTLED_BY_THE_ENGINE = ("precision.compute", "engine.max_model_len")


@dataclass(frozen=True)
class Contradiction:
    """Two places that cannot both be true.

    Attributes:
        path: the manifest path that both speak of.
        files: what the files say, and where.
        running: what the running server says, and where.
    """

    path: str
    files: str
    running: str


@dataclass(frozen=True)
class Claim:
    """What a file, a pool of it or the operator says of one path."""

    value: Any
    where: str


def refuse_contradictions_with(found: Sequence[Contradiction]) -> None:
    """Refuse a capture of two deployments in one.

    Raises:
        InputError: there is a contradiction; every one is named with both places.
    """
    if not found:
        return
    shown = [f"{one.path} is {one.files}, but {one.running}" for one in found[:_MAX_SHOWN]]
    more = [f"{len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
    raise InputError(
        f"the running server was not started as it is said here: {'; '.join([*shown, *more])}",
        where="--endpoint",
        hint="ask the server that these files start, or start it anew",
    )


def contradictions_with(
    settings: Mapping[str, Said], facts: LaunchFacts | None, given: LaunchFacts | None, sets: Mapping[str, Any]
) -> list[Contradiction]:
    """Return where the settings of a running server are none that the files or the operator give it.

    What they leave to the engine's default contradicts nothing; of several pools any may be the one that answers.

    Args:
        settings: what was told, by manifest path.
        facts: what the files say, settled by the checkpoint; ``None``: there are none.
        given: the same, before it was settled.
        sets: what the operator declares.
    """
    found = []
    for path, said in settings.items():
        claims = list(_claims(path, facts, given, sets))
        # What an engine makes of its default it may not say; and it may call so a type that it was told (vLLM, V3.2).
        default = given is not None and path in given.pending
        if said.value == AUTO and (default or any(claim.value in (AUTO, *_PLAIN_TYPES) for claim in claims)):
            continue
        if claims and not any(agrees(path, claim.value, said.value) for claim in claims):
            first = claims[0]
            found.append(
                Contradiction(path, f"{_shown(first.value)} in {first.where}", f"{_shown(said.value)} at {said.where}")
            )
    return found


def contradictions_in_names(running: Running, facts: LaunchFacts) -> list[Contradiction]:
    """Return where the model, its names, its adapters or what is laid over its configuration are others."""
    found = []

    def differ(path: str, value: Any, said: Said, where: str) -> None:
        found.append(Contradiction(path, f"{_shown(value)} in {where}", f"{_shown(said.value)} at {said.where}"))

    flags = _flags(facts)
    if running.model is not None and facts.model is not None and not same_model(facts.model, running.model.value):
        differ("model.id", facts.model, running.model, facts.source)
    served = facts.values.get("model.served_name", ...)
    name = facts.model if served is None else served
    # Without a name of its own a model is served under what the engine was told to load, or found there.
    if running.names is not None and isinstance(name, str) and not (served is None and running.model is None):
        own = served is None and running.model is not None and running.model.value in running.names.value
        if name not in running.names.value and not own:
            differ("model.served_name", name, running.names, _place(facts, "model.served_name", flags))
    if running.adapters is not None and "adapters" in facts.values and not facts.values.get("roles"):
        names = sorted(facts.adapters)
        if names != running.adapters.value:
            differ("adapters", names, running.adapters, _place(facts, "adapters", flags))
    comparable = not any(path == "model.config" for path, _ in facts.unknown) and not _older_flags(running, facts)
    said = running.overrides
    if comparable and said is not None and canonical_json(dict(facts.overrides)) != canonical_json(dict(said.value)):
        differ("model.config", dict(facts.overrides), said, _place(facts, "model.config", flags))
    return found


def with_observed(
    running: Running, facts: LaunchFacts, given: LaunchFacts
) -> tuple[LaunchFacts, frozenset[str], list[str]]:
    """Return the facts with what the running server tells where the files leave it open.

    Args:
        running: contradicts nothing.
        facts: what the files say, settled by the checkpoint.
        given: the same, before it was settled.

    Returns:
        the facts, not settled yet; the paths that were observed; sentences for the reader.
    """
    if given.values.get("roles"):
        return given, frozenset(), ["several pools are captured, and the running server speaks for one of them only"]
    values, unknown, pending = dict(given.values), dict(given.unknown), set(given.pending)
    observed, notes = set(), []
    for path, said in running.settings.items():
        settled = facts.values.get(path)
        if not observable(path, said):
            continue
        if path not in unknown and path not in pending and given.values.get(path) is None and settled is None:
            continue  # the engine's default, on both sides of a comparison
        if path in given.values and path not in pending and given.values[path] is not None:
            if settled is None or _same(settled, said.value):
                continue
            notes.append(
                f"{path} is {_shown(settled)} in {_place(facts, path, _flags(facts))}, and the engine made "
                f"{_shown(said.value)} of it ({said.where})"
            )
        elif settled is not None and not _same(settled, said.value):
            notes.append(f"{path} is left to the engine, which settled {_shown(said.value)} ({said.where})")
        values[path] = said.value
        unknown.pop(path, None)
        pending.discard(path)
        observed.add(path)
    changed = replace(given, values=values, unknown=tuple(unknown.items()), pending=tuple(sorted(pending)))
    return changed, frozenset(observed), notes


def observable(path: str, said: Said) -> bool:
    """Whether what a server tells may stand in a manifest: of a folder it knows its own path, and no mount."""
    return said.value not in (None, AUTO) and (path != "cache.location" or "://" in said.value)


def not_told(running: Running, facts: LaunchFacts) -> str | None:
    """Say which settings of the files could not be compared with the running server's; ``None``: every one was."""
    paths = {path for engine in running_fields().engines.values() for path in engine.fields.values()}
    missing = sorted(
        path
        for path in {*paths, "cache.connector"}
        if path not in running.settings and facts.values.get(path) not in (None, 1)
    )
    if not missing:
        return None
    silent = f" (no answer from {', '.join(running.silent)})" if running.silent else ""
    return f"the running server does not tell, so that it was not compared{silent}: {', '.join(missing)}"


def _claims(
    path: str, facts: LaunchFacts | None, given: LaunchFacts | None, sets: Mapping[str, Any]
) -> Iterator[Claim]:
    declared = _declared(path, sets)
    if declared is not None:
        yield Claim(declared, "--set")
        return
    if facts is None or given is None:
        return
    flags = _flags(facts)
    pools = [pool for pool in facts.values.get("roles") or [] if path in pool["set"]]
    for pool in pools:
        yield Claim(pool["set"][path], f"{facts.source}: {pool['name']}")
    if pools:
        return
    if path == "cache.location":
        # Outside its container it is another path; the server speaks of its own.
        if len(facts.stores) == 1 and path in facts.values and not facts.values.get("roles"):
            yield Claim(facts.stores[0], _place(facts, "cache.connector", flags))
        return
    if path not in facts.values or (facts.values[path] is None and path != "cache.connector"):
        return
    default = given.values.get(path) is None  # what is there now was settled by the checkpoint
    if default and path in _SETTLED_BY_THE_ENGINE:
        return
    where = f"{facts.source}, by the engine's default" if default and path != "cache.connector" else ""
    yield Claim(facts.values[path], where or _place(facts, path, flags))


def _declared(path: str, sets: Mapping[str, Any]) -> Any:
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        found = sets.get(".".join(parts[:end]))
        for key in parts[end:]:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is not None:
            return found
    return None


def agrees(path: str, value: Any, said: Any) -> bool:
    """Whether what a server says of a setting is what it makes of a value that it was given."""
    if _same(value, said):
        return True
    rule = running_fields().resolved.get(path)
    if rule == "multiple":
        return isinstance(value, int) and isinstance(said, int) and 0 in (said % value, value % said)
    return rule == "extended" and str(said).startswith(f"{value}_")


def _same(value: Any, said: Any) -> bool:
    """Whether two values are one; what a builder adds to a version is no other version: ``0.32.0+cpu`` is 0.32.0."""
    if isinstance(value, str) and isinstance(said, str):
        return value.partition("+")[0] == said.partition("+")[0]
    return bool(value == said)


def same_model(named: str, loaded: str) -> bool:
    """Whether a server loaded what a file names: a repository may be loaded from a local copy of it."""
    if named.rstrip("/") == loaded.rstrip("/"):
        return True
    parts = loaded.split("/")
    return f"models--{named.replace('/', '--')}" in parts or (
        not named.startswith("/") and loaded.endswith(f"/{named}")
    )


def _older_flags(running: Running, facts: LaunchFacts) -> bool:
    """Whether overrides may be from vLLM's --rope-scaling and --rope-theta of 0.11.0, which keeps them elsewhere."""
    version = running.settings["engine.version"].value
    parts = [int(part) if part.isdigit() else 0 for part in version.split(".")[:2]]
    return facts.engine == "vllm" and parts < [0, 28] and bool({"rope_scaling", "rope_theta"} & set(facts.overrides))


def _flags(facts: LaunchFacts) -> Mapping[str, str]:
    rows = flag_table(facts.engine).flags.items()
    return {flag.path: f"--{name}" for name, flag in rows if flag.path is not None} | _SAID_BY.get(facts.engine, {})


def _place(facts: LaunchFacts, path: str, flags: Mapping[str, str]) -> str:
    if path in _IN_THE_IMAGE:
        return f"{facts.source}: the image" if path == "engine.version" else facts.source
    return f"{facts.source}: {flags[path]}" if path in flags else facts.source


def _shown(value: Any) -> str:
    if value is None or value in ([], {}):
        return "none"
    text = value if isinstance(value, str) else canonical_json(value).decode()
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text):,} characters)"
