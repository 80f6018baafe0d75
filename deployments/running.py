"""What a running server says of itself: names, version, settings. Asked over HTTP, and compared by nobody here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvgate.corpora.endpoints.client import Client
from kvgate.corpora.endpoints.server import engine_and_version
from kvgate.deployments.launch.connectors import connector_table, no_connector, read_connector
from kvgate.deployments.launch.secrets import clean, clean_text
from kvgate.rules.document import parse_document, parse_json
from kvgate.rules.errors import InputError

_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_MOST_LABELS = 1 << 16  # characters of one line of metrics; a real one has a thousand
# What in a store's settings a server tells as its files do; LMCache's own are in its environment.
_OF_THE_STORE = ("cache.location", "cache.namespace", "cache.chunk_size")
_OTHER_STORES = ("enable_lmcache", "enable_flexkv", "enable_unified_cache_external_linker", "radix_cache_backend")
_TYPES = {"half": "float16", "float": "float32", "bf16": "bfloat16"}


AUTO = "auto"


@dataclass(frozen=True)
class Said:
    """One setting, as the server tells it.

    Attributes:
        value: as a manifest would hold it; :data:`AUTO` where it was told nothing, and does not say what it made of it.
        where: the answer and the field in it: ``http://HOST:PORT/server_info: tp_size``.
    """

    value: Any
    where: str


@dataclass(frozen=True)
class Running:
    """What a running server says of itself.

    Attributes:
        url: where it answers.
        engine: ``"vllm"`` or ``"sglang"``.
        settings: manifest paths to what it says; a path that is not there was not told. ``cache.location`` is the
            path that the server itself uses.
        names: the names that requests may give for the model, first the usual one.
        model: what it loaded, in its own words.
        adapters: the adapters that it serves now; ``None``: it lists no models.
        overrides: what it lays over the model's configuration.
        silent: answers that it does not give.
    """

    url: str
    engine: str
    settings: Mapping[str, Said]
    names: Said | None = None
    model: Said | None = None
    adapters: Said | None = None
    overrides: Said | None = None
    silent: tuple[str, ...] = ()


class _Engine(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    info: list[str]
    fields: dict[str, str]
    overrides: str
    transfer: str | None = None
    backend: str | None = None
    metric: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class RunningFields(BaseModel):
    """The table of fields; the head of the file says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["kvgate/running-fields/v1"] = Field(alias="schema")
    source: str
    checked: str
    resolved: dict[str, Literal["multiple", "extended"]]
    engines: dict[str, _Engine]


@cache
def running_fields() -> RunningFields:
    """Return the table of the fields in which servers tell their settings."""
    name = "running_fields.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    return RunningFields.model_validate(parse_document(data, name)[0])


def ask_running(url: str, key: str | None = None) -> Running:
    """Ask a running server what it is.

    vLLM: ``/version``, ``/v1/models``, ``/metrics`` and, where its development mode is on, ``/server_info``. SGLang:
    ``/server_info``, ``/model_info`` (``/get_...`` in older releases) and ``/v1/models``. Nothing is changed in it.
    What an answer does not hold in the form that is known stays untold.

    Args:
        url: where it answers, ``http://HOST:PORT``.
        key: its API key.

    Raises:
        InputError: it cannot be reached, or is neither engine.
    """
    with Client(url, key) as client:
        return _Asking(client).ask()


@dataclass
class _Asking:
    client: Client
    settings: dict[str, Said] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)

    def ask(self) -> Running:
        engine, version = engine_and_version(self.client)
        told = "/version" if engine == "vllm" else "/server_info"
        self._tell("engine.name", engine, told)
        self._tell("engine.version", version, f"{told}: version")
        table = running_fields().engines[engine]
        overrides = self._info(table)
        self._metrics(table)
        names, model, adapters = self._models(engine)
        return Running(self.client.url, engine, self.settings, names, model, adapters, overrides, tuple(self.silent))

    def _tell(self, path: str, value: Any, where: str) -> None:
        """Take down a setting; the first answer that tells it counts."""
        known = _as_manifest(path, value)
        if known is not None or (value is None and path == "cache.connector"):  # there is no store, and it says so
            self.settings.setdefault(path, Said(known, f"{self.client.url}{where}"))

    def _info(self, table: _Engine) -> Said | None:
        for path in table.info:
            answer = self.client.get(path)
            if answer.ok and isinstance(answer.data, dict):
                break
        else:
            self.silent.append(table.info[0].partition("?")[0])
            return None
        for name, setting in table.fields.items():
            self._tell(setting, _at(answer.data, name), f"{path}: {name}")
        if table.transfer is not None and _at(answer.data, table.transfer.rpartition(".")[0]) is not None:
            self._transfer(_at(answer.data, table.transfer), f"{path}: {table.transfer}")
        if table.backend is not None and table.backend in answer.data:
            self._backend(answer.data, table.backend, path)
        found = _at(answer.data, table.overrides)
        if isinstance(found, str):
            found = parse_json(found, f"{self.client.url}{path}: {table.overrides}") if found.strip() else {}
        where = f"{self.client.url}{path}: {table.overrides}"
        return Said(clean(found)[0], where) if isinstance(found, Mapping) else None

    def _transfer(self, config: Any, where: str) -> None:
        """Read the store's settings as those of a launch line are read."""
        given, _ = clean(config if isinstance(config, Mapping) else {})
        facts = read_connector(given, {}) if given else no_connector()
        connector = facts.values.get("cache.connector")
        self._tell("cache.connector", connector, where)
        if connector is None or connector.startswith("lmcache"):
            return
        for path in _OF_THE_STORE:
            value = facts.values.get(path)
            if not (path == "cache.namespace" and value == facts.values.get("cache.location")):
                self._tell(path, value, where)

    def _backend(self, info: Mapping[str, Any], name: str, path: str) -> None:
        if any(info.get(other) for other in _OTHER_STORES):
            return  # which profile describes it depends on more than this
        backend = info[name]
        row = connector_table("sglang").connectors.get(backend) if isinstance(backend, str) else None
        known = row.profile if row is not None else None
        self._tell("cache.connector", known or (f"sglang-hicache-{backend}" if backend else None), f"{path}: {name}")

    def _metrics(self, table: _Engine) -> None:
        if table.metric is None:
            return
        answer = self.client.get("/metrics")
        found = list(_labels(answer.text or "", table.metric))
        if not found:
            self.silent.append(f"/metrics: {table.metric}")
        for name, setting in table.labels.items():
            values = {labels.get(name) for labels in found}
            if (
                len(values) == 1 and (value := values.pop()) is not None
            ):  # replicas may differ, and then it tells nothing
                self._tell(setting, value, f"/metrics: {table.metric}{{{name}}}")

    def _models(self, engine: str) -> tuple[Said | None, Said | None, Said | None]:
        """Return the model's names, what was loaded for it, and the adapters, by what is listed."""
        path = f"{self.client.url}/v1/models"
        answer = self.client.get("/v1/models")
        listed = answer.data.get("data") if answer.ok and isinstance(answer.data, dict) else None
        cards = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        named = [(name, card) for card in cards if (name := _text(card.get("id"))) is not None]
        own = [(name, card) for name, card in named if card.get("parent") is None]
        if not own:
            self.silent.append("/v1/models")
            return None, None, None
        owner = _text(own[0][1].get("owned_by"))
        if engine == "vllm" and owner not in (None, "vllm"):  # others answer at /version too
            raise InputError(f"neither vLLM nor SGLang answers here, but {owner[:40]}", where=path)
        self._tell("engine.max_model_len", own[0][1].get("max_model_len"), "/v1/models: data[0].max_model_len")
        adapters = sorted(name for name, card in named if card.get("parent") is not None)
        loaded = Said(_text(own[0][1].get("root")), f"{path}: data[0].root")
        if engine == "sglang":  # its `root` repeats the name
            info = next((one for one in map(self.client.get, ("/model_info", "/get_model_info")) if one.ok), None)
            where = f"{self.client.url}/model_info: model_path"
            loaded = Said(_text(_at(info.data, "model_path")) if info is not None else None, where)
        names = Said([name for name, _ in own], f"{path}: data[].id")
        return names, loaded if loaded.value else None, Said(adapters, f"{path}: data[].parent")


def _as_manifest(path: str, value: Any) -> Any:
    """Return a setting as a manifest holds it; ``None`` where it tells nothing, or is no such setting."""
    if path.startswith(("parallelism.", "engine.block_size", "engine.max_model_len", "cache.chunk_size")):
        if isinstance(value, str) and value.isdigit() and len(value) < 16:
            value = int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53 else None
    text = _text(value)
    if text is None or text == "None":
        return None
    if path.startswith("precision."):
        text = text.lower().removeprefix("torch.")
        return _TYPES.get(text, text)
    return text


def _text(value: Any) -> str | None:
    """Return a text of a line without a credential in it; ``None`` where it is none."""
    if not isinstance(value, str) or not value or len(value) > 4096 or not value.isprintable():
        return None
    return value if clean_text(value) == value else None


def _at(data: Any, name: str) -> Any:
    for key in name.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _labels(text: str, metric: str) -> Iterator[dict[str, str]]:
    """Yield the labels of each line of a metric in Prometheus' text format."""
    for line in text.splitlines():
        if line.startswith(f"{metric}{{") and len(line) < _MOST_LABELS:
            yield {name: value.replace('\\"', '"').replace("\\\\", "\\") for name, value in _LABEL.findall(line)}
