"""LMCache's multi-process server, which keeps the blocks of the engines that connect to it.

Source: LMCache 0.5.6, lmcache/v1/multiprocess/config.py and lmcache/v1/distributed/l2_adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvgate.deployments.launch.containers import lmcache_release, read_image
from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.flags import CommandLine, Given, flag_table, read_flags
from kvgate.deployments.launch.invocation import Invocation
from kvgate.deployments.launch.partly_known import label_in, partly_known
from kvgate.deployments.launch.places import located, one_location
from kvgate.deployments.launch.secrets import clean, clean_text
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError

ENGINE = "lmcache"
CONNECTOR = "lmcache-mp"
SAID_BY_SERVER = ("cache.location", "cache.chunk_size", "cache.serde")
_CHUNK = 256  # what an unset --chunk-size means
_IN_FILES = ("fs", "fs_native")
# Settings of an adapter that change neither what is stored nor where.
_HARMLESS = frozenset(
    {"base_path", "eviction", "host", "max_capacity_gb", "num_workers", "persist", "port", "read_ahead_size", "serde"}
    | {"shared", "type", "use_odirect"}
)


def with_store(facts: LaunchFacts, run: Invocation, source: str) -> LaunchFacts:
    """Return an engine's facts with what the server says that it stores its blocks in.

    Args:
        facts: of the engine; what is not connected to such a server comes back as it is.
        run: the server's command.
        source: what to call the server in errors and reasons.

    Raises:
        InputError: a value of the wrong type, broken JSON.
    """
    if facts.values.get("cache.connector") != CONNECTOR:
        return facts
    values, unknown, rest, notes = _Store(run, source).read()
    engines, servers = (one.get("cache.version") for one in (facts.values, values))
    if engines is not None and servers is not None and engines != servers:
        del values["cache.version"]
        unknown["cache.version"] = f"the engine's image holds LMCache {engines}, and {source} runs {servers}"
    args = facts.values.get("engine.args")
    kept = {path: value for path, value in facts.values.items() if path not in unknown}
    if isinstance(args, Mapping) and rest and "engine.args" not in unknown:
        kept["engine.args"] = {**args, "lmcache-server": rest}
    doubts = {path: reason for path, reason in facts.unknown if path not in SAID_BY_SERVER}
    return replace(
        facts,
        values={**kept, **values},
        unknown=tuple({**unknown, **doubts}.items()),
        notes=(*facts.notes, *notes),
    )


class _Store:
    def __init__(self, run: Invocation, source: str) -> None:
        self._run = run
        self._source = source
        self._line: CommandLine = read_flags(run.arguments, source, ENGINE)
        self._unknown: dict[str, str] = {}
        self._notes: list[str] = []
        self._rest: dict[str, Any] = {}

    def read(self) -> tuple[dict[str, Any], dict[str, str], dict[str, Any], list[str]]:
        chunk = self._line.flags.get("chunk-size", Given(_CHUNK))
        if chunk.expansions:
            self._doubt("cache.chunk_size", chunk.expansions[0])
        values: dict[str, Any] = {"cache.chunk_size": chunk.value}
        values |= self._adapters(self._line.flags.get("l2-adapter", Given([])))
        for name, flag in flag_table(ENGINE).flags.items():
            given = self._line.flags.get(name)
            if given is not None and (flag.use == "arg" or name in ("gds-l1-path", "l1-devdax-path")):
                self._keep(name, given)
        for name, given in self._line.others.items():
            self._keep(name, given)
        filled = [one for word in self._line.positional for one in word.expansions if one == word.text]
        for label in (*(label for word in self._line.open for label in word.expansions), *filled):
            for path in (*SAID_BY_SERVER, "engine.args"):
                self._doubt(path, label)
        values |= self._image()
        for reason in (*self._run.undisclosed, *self._run.altered):
            self._unknown.setdefault("engine.args", f"LMCache's server: {reason}")
        known = {path: value for path, value in values.items() if path not in self._unknown}
        return known, self._unknown, self._rest, self._notes

    def _image(self) -> dict[str, Any]:
        """Return the version that the server's own image names; the image's content counts where it is pinned."""
        word = self._run.image
        if word is None:
            return {}
        if word.expansions:
            self._doubt("cache.version", word.expansions[0])
            return {}
        image, release = read_image(word.text), lmcache_release(word.text)
        if image.digest is not None:
            self._rest["image"] = image.digest
        if release is not None and not self._run.altered:
            return {"cache.version": release}
        shown = clean_text(word.text) or "..."
        self._unknown.setdefault(
            "cache.version", f"LMCache's server runs {shown}, which names no release of LMCache's own"
        )
        return {}

    def _doubt(self, path: str, label: str) -> None:
        self._unknown.setdefault(path, f"LMCache's server is started with {label}, which is filled in elsewhere")

    def _keep(self, name: str, given: Given) -> None:
        value, dropped = clean(given.value, name)
        if given.expansions:
            self._doubt("engine.args", given.expansions[0])
        elif not (dropped and value is None):
            self._rest[name] = value

    def _adapters(self, given: Given) -> dict[str, Any]:
        """Say where the adapters keep blocks: all of them hold some, and are read from."""
        adapters = self._parsed(given)
        if adapters is None:
            for path in ("cache.location", "cache.serde"):
                self._doubt(path, given.expansions[0])
            return {}
        places, serdes = [], []
        for adapter, label in adapters:
            if label is not None:
                self._doubt("cache.location", label)
            places.append(self._place(adapter))
            serdes.append(adapter.get("serde"))
            rest = {key: value for key, value in adapter.items() if key not in _HARMLESS}
            if rest:
                self._rest.setdefault("l2-adapter", []).append(rest)
        serde = serdes[0] if serdes else None
        if len({repr(one) for one in serdes}) > 1 or (isinstance(serde, Mapping) and set(serde) != {"type"}):
            self._unknown["cache.serde"] = "the adapters of LMCache's server store in several forms, or with settings"
        kind = serde.get("type") if isinstance(serde, Mapping) else None
        location = one_location([one for one in places if one]) if all(places) and places else None
        return {"cache.location": location, "cache.serde": kind}

    def _parsed(self, given: Given) -> list[tuple[Mapping[str, Any], str | None]] | None:
        """Return each adapter without its credentials, and what is filled in of its host; ``None``: more is."""
        if not all(any(label in text for text in given.value) for label in given.expansions):
            return None  # it is no text that is filled in
        found: list[tuple[Mapping[str, Any], str | None]] = []
        for text in given.value:
            labels = [label for label in given.expansions if label in text]
            if labels:
                known = partly_known(text, labels)
                if known is None or label_in({**known[0], "host": None}, known[1]):
                    return None
                found.append((known[0], next(iter(known[1]), None)))
                continue
            adapter = clean(parse_json(text, f"{self._source}: --l2-adapter"))[0]
            if not isinstance(adapter, Mapping):
                raise InputError("--l2-adapter is not a JSON object", where=self._source)
            found.append((adapter, None))
        return found

    def _place(self, adapter: Mapping[str, Any]) -> str | None:
        kind = adapter.get("type")
        if kind in _IN_FILES and isinstance(adapter.get("base_path"), str):
            place = located(adapter["base_path"], self._run.mounts if self._run.contained else None)
            self._notes += [place.note] if place.note else []
            if place.reason is None:
                return place.value
            self._unknown.setdefault("cache.location", place.reason)
        elif kind == "resp" and isinstance(adapter.get("host"), str) and isinstance(adapter.get("port"), int):
            return f"redis://{adapter['host']}:{adapter['port']}"
        else:
            self._unknown.setdefault("cache.location", "where an adapter of LMCache's server keeps blocks is not read")
        return None
