"""A TensorRT-LLM command line, and the file of settings beside it, as facts for a manifest.

The flags are those of ``trtllm-serve``; Dynamo's worker has the same settings under names of its own. Sources: the
table ``data/tensorrt-llm_flags.yaml``, and where something stands in no table, in front of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvgate.deployments.launch.cache_facts import CACHE_PATHS, CacheFacts
from kvgate.deployments.launch.connectors import connector_table, no_connector, undecided
from kvgate.deployments.launch.engine_line import ANY_FLAG_SETS, CODE, TOKENIZER, TWICE, EngineLine, because
from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.filled import filled_word
from kvgate.deployments.launch.flags import CommandLine, Flag, Given, read_flags, table_name
from kvgate.deployments.launch.invocation import Invocation
from kvgate.deployments.launch.kvbm import CONNECTOR as KVBM
from kvgate.deployments.launch.kvbm import read_kvbm
from kvgate.deployments.launch.secrets import clean_text
from kvgate.deployments.launch.trtllm_types import ENGINE
from kvgate.rules.document import parse_document, parse_json
from kvgate.rules.errors import InputError

_OTHER_FILES: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "load-format": (frozenset({"auto", "0"}), ("weights.checkpoint",)),
    "checkpoint-format": (frozenset({"hf"}), ("weights.checkpoint", "model.config")),
    "checkpoint-loader": (frozenset(), ("weights.checkpoint", "model.config")),
    "tokenizer-mode": (frozenset({"auto"}), TOKENIZER),
    "custom-tokenizer": (frozenset(), (*TOKENIZER, "chat_template")),
}
_SEEN_BY_READING = {
    "kv-connector-config": CACHE_PATHS,
    "model-kwargs": ("model.config",),
    "enable-lora": ("adapters", "request_features"),
    "tokenizer": ("tokenizer",),
    "chat-template": ("chat_template",),
    "speculative-config": ("engine.speculative",),
    "load-format": ("weights.checkpoint",),
    "quant-config": ("model.quantization",),
    "server-role": ("roles",),
    "disaggregation-mode": ("roles",),
}
_SET_BY_FLAGS = (*ANY_FLAG_SETS, *CACHE_PATHS)
_SET_BY_ENVIRONMENT = ("engine.args", "cache.location", "cache.chunk_size", "cache.serde")
# What a compiled engine holds inside, and no line or config says.
_COMPILED = (
    "weights.checkpoint",
    "model.config",
    "model.quantization",
    "precision.compute",
    "precision.kv_cache",
    "precision.kv_scales",
    "engine.max_model_len",
    "engine.block_size",
    "parallelism.tensor",
    "parallelism.pipeline",
)
_COMPILED_BACKENDS = frozenset({"tensorrt", "trt"})
_IS_COMPILED = "the tensorrt backend runs a compiled engine, and what was compiled into it is not in the line"
# Settings whose members are settings: the file may hold a part of them only.
_NESTED = {"kv-cache-config": "kv-cache-config.", "pytorch-backend-config": ""}
# What a speculative setup calls its parts, as other engines call them.
_SPECULATIVE = {
    "decoding_type": "method",
    "speculative_model": "model",
    "speculative_model_dir": "model",
    "max_draft_len": "num_speculative_tokens",
}
_KV_NAMES = {"fp8": "fp8_e4m3"}
_MAX_DEPTH = 32


def trtllm_facts(invocation: Invocation, source: str, files: Mapping[str, bytes]) -> LaunchFacts:
    """Return what a TensorRT-LLM server's command says, and the file of settings that it names.

    Args:
        invocation: the command.
        source: what to call it in errors and reasons.
        files: content of the files that the command names, by the name in it.

    Raises:
        InputError: a value of the wrong type, a file of settings that is none.
    """
    return _TrtllmLine(invocation, source, files).facts()


@dataclass(frozen=True)
class _Layer:
    """Settings that lie over those of the line.

    Attributes:
        settings: the settings, by the names of the LLM API.
        where: what to call them in errors.
        wins: over the line; else the release decides: the file won until a flag that was typed did.
    """

    settings: Mapping[str, Any]
    where: str
    wins: bool


class _TrtllmLine(EngineLine):
    engine = ENGINE
    shown = "TensorRT-LLM"
    usage = "trtllm-serve MODEL ..."
    model_flag = "model"
    tokenizer_flag = "tokenizer"
    set_by_flags = _SET_BY_FLAGS
    other_files = _OTHER_FILES
    seen_by_reading = _SEEN_BY_READING
    whole = frozenset({"speculative-config", "model-kwargs", "chat-template", "quant-config", "kv-connector-config"})

    # -- the line and the file over it -----------------------------------------------------------------

    def _read_line(self, files: Mapping[str, bytes]) -> CommandLine:
        line = read_flags(self.run.arguments, self.source, self.engine)
        flags, others, positional = dict(line.flags), dict(line.others), list(line.positional)
        if self.run.positional_model and positional and self.model_flag not in flags:
            model = positional.pop(0)
            flags[self.model_flag] = Given(model.text, model.expansions)
        self._unread = False
        for layer in self._layers(line, files):
            for name, value in _flattened(layer.settings, layer.where):
                known = self.table.flags.get(name)
                given = _given(name, known, value, layer.where)
                target = flags if known is not None else others
                before = target.get(name)
                if before is not None and before != given and not layer.wins:
                    given = Given(given.value, (TWICE,))
                target[name] = given
        self._put_environment(flags.pop("env-overrides", None))
        return CommandLine(flags, others, tuple(positional), line.open, line.notes)

    def _layers(self, line: CommandLine, files: Mapping[str, bytes]) -> Iterator[_Layer]:
        """Yield what lies over the line, the last one on top.

        Source: tensorrt_llm/commands/serve.py at 00209af and update_llm_args_with_extra_dict in llmapi/llm_args.py;
        dynamo/trtllm/workers/llm_worker.py:473-484 in ai-dynamo 1.6.1.
        """
        for name, wins in (("config", False), ("extra-engine-args", True)):
            given = line.flags.get(name)
            if given is None or given.value == "":
                continue
            file = str(given.value)
            if given.expansions or file not in files:
                shown = clean_text(file) or "..."
                self.hidden.append(f"--{name} {shown} was not given, and it may set this")
                self._unread = True
                continue
            where = f"{self.source}: {file}"
            yield _Layer(_settings(parse_document(files[file], where)[0], where), where, wins)
        over = line.flags.get("override-engine-args")
        if over is not None and over.expansions:
            self.hidden.append(because("override-engine-args", over.expansions))
            self._unread = True
        elif over is not None and over.value:
            where = f"{self.source}: --override-engine-args"
            yield _Layer(_settings(over.value, where), where, True)
        dotted = line.flags.get("trtllm")
        if dotted is not None and dotted.expansions:
            self.hidden.append(because("trtllm", dotted.expansions))
            self._unread = True
        elif dotted is not None:
            yield _Layer(_settings(dotted.value, f"{self.source}: --trtllm"), f"{self.source}: --trtllm", True)
        yield from self._set(line)

    def _set(self, line: CommandLine) -> Iterator[_Layer]:
        """Yield what ``--set path.to.it=VALUE`` lays over everything (tensorrt_llm/commands/_config_overrides.py)."""
        given = line.flags.get("set")
        if given is None:
            return
        if given.expansions:
            self.hidden.append(because("set", given.expansions))
            self._unread = True
            return
        for item in given.value:
            path, equals, text = item.partition("=")
            where = f"{self.source}: --set"
            keys = path.split(".")
            if not equals or not all(keys) or len(keys) > _MAX_DEPTH:
                raise InputError("--set takes path.to.a.setting=VALUE", where=self.source)
            value, _ = parse_document(text.encode("utf-8", "surrogatepass"), where)
            for key in reversed(keys):
                value = {key: value}
            yield _Layer(value, where, True)

    def _put_environment(self, given: Given | None) -> None:
        """Take in the variables that the file sets for the server (``env_overrides``)."""
        if given is None or not isinstance(given.value, Mapping):
            return
        if given.expansions:
            self.run.undisclosed.append("env_overrides is filled in from outside, and it may set any variable")
        words = {str(name): filled_word(str(value)) for name, value in given.value.items() if value is not None}
        self.run = replace(self.run, environment={**self.run.environment, **words})

    def _hidden_settings(self) -> None:
        """See the base class: a file that was not given may also set what the line sets."""
        for path in self.set_by_flags if self._unread else ():
            self.doubt(path, self.hidden[0])
        super()._hidden_settings()

    # -- what the table alone does not say -------------------------------------------------------------

    def variables(self) -> None:
        """See the base class: no variable sets a manifest path but for the store's."""
        # Block keys are hashed in a fixed way (cpp/include/tensorrt_llm/batch_manager/blockKey.h).
        self.values["engine.prefix_hash.algorithm"] = None
        self.values["engine.prefix_hash.seed"] = None
        self.values["engine.kv_layout"] = None
        # Replicas are servers of their own; attention that is divided by data is a flag, which counts.
        self.values["parallelism.data"] = 1

    def specific(self) -> tuple[dict[str, Any], dict[str, str], CacheFacts]:
        """See the base class."""
        self._quantization()
        self._context_parallelism()
        self._speculation()
        self._adapters()
        self._mutability()
        self._custom_code()
        self._compiled()
        return self._overrides(), {}, self._cache()

    def _quantization(self) -> None:
        method, kv_cache = "model.quantization", "precision.kv_cache"
        if not self.doubted("quant-config", method, kv_cache):
            given = self.value_of("quant-config") or {}
            if not isinstance(given, Mapping):
                raise InputError("quant_config is not a mapping", where=self.source)
            rest = {key: value for key, value in given.items() if key not in ("quant_algo", "kv_cache_quant_algo")}
            algorithm, kv_algorithm = (_lower(given.get(key)) for key in ("quant_algo", "kv_cache_quant_algo"))
            self.values.setdefault(method, algorithm)
            if kv_algorithm is not None and kv_cache in self.pending:  # a type that is set wins
                self.pending.remove(kv_cache)
                self.values[kv_cache] = kv_algorithm
            if rest:
                self.args["quant-config"] = rest
        if isinstance(name := self.values.get(kv_cache), str):
            self.values[kv_cache] = _KV_NAMES.get(name, name)

    def _context_parallelism(self) -> None:
        """Write 1 where context is not divided; which part of the work is divided depends on ``cp_config``."""
        paths = ("parallelism.decode_context", "parallelism.prefill_context")
        if self.doubted("context-parallel-size", *paths) or self.doubted("cp-config", *paths):
            return
        size, setup = self.value_of("context-parallel-size"), self.value_of("cp-config")
        if size in (None, 1) and not setup:
            self.values.update(dict.fromkeys(paths, 1))
            return
        self.args["context-parallel-size"] = size or 1
        if setup:
            self.args["cp-config"] = setup
        for path in paths:
            self.doubt(path, "what --cp_size divides depends on cp_config")

    def _speculation(self) -> None:
        path = "engine.speculative"
        if self.doubted("speculative-config", path):
            return
        given = self.value_of("speculative-config")
        if given is not None and not isinstance(given, Mapping):
            raise InputError("speculative_config is not a mapping", where=self.source)
        self.values[path] = {_SPECULATIVE.get(key, key): value for key, value in given.items()} if given else None

    def _adapters(self) -> None:
        names = ("enable-lora", "lora-config")
        if any(self.doubted(name, "adapters", "request_features") for name in names):
            return
        enabled = bool(self.value_of("enable-lora")) or bool(self.value_of("lora-config"))
        self.values["request_features"] = ["lora", "lora_hot_load"] if enabled else []
        if enabled:
            self.keep("lora-config", self.flags.get("lora-config"))
            self.doubt("adapters", "requests name the adapters that they want by path")
        else:
            self.values["adapters"] = []

    def _mutability(self) -> None:
        """Source: tensorrt_llm/serve/openai_server.py: ``/update_weights`` answers where Ray runs the engine."""
        path = "weights.mutable"
        if any(self.doubted(name, path) for name in ("orchestrator-type", "ray-worker-extension-cls", "sleep-config")):
            return
        self.values[path] = False
        for name in ("orchestrator-type", "ray-worker-extension-cls", "sleep-config"):
            if (value := self.value_of(name)) not in (None, "rpc", "mpi"):
                self.keep(name, self.flags[name])
                shown = value if isinstance(value, str) else "..."
                self.doubt(path, f"{name} {shown}: weights may be changed or loaded again while serving")

    def _custom_code(self) -> None:
        if "custom-module-dirs" in self.line.flags:
            self.software.append("--custom_module_dirs brings in code, and which is not known")

    def _compiled(self) -> None:
        reason: str | None
        backend = self.flags.get("backend")
        version = self.values.get("engine.version")
        unset_then = backend is None and isinstance(version, str) and version.startswith("0.")
        if backend is not None and backend.expansions:
            reason = because("backend", backend.expansions)
        elif backend is not None and str(backend.value).lower() in _COMPILED_BACKENDS:
            reason = _IS_COMPILED
        elif unset_then:  # releases before 1.0 took it where none was named
            reason = f"TensorRT-LLM {version} may run a compiled engine, and what is in that is not in the line"
        else:
            reason = None
        self.keep("build-config", self.flags.get("build-config"))
        for path in _COMPILED if reason is not None else ():
            self.doubt(path, str(reason))

    def _overrides(self) -> dict[str, Any]:
        if self.doubted("model-kwargs", "model.config"):
            return {}
        given = self.value_of("model-kwargs")
        if given is not None and not isinstance(given, Mapping):
            raise InputError("model_kwargs is not a mapping", where=self.source)
        return dict(given or {})

    # -- the store -------------------------------------------------------------------------------------

    def _cache(self) -> CacheFacts:
        facts = self._store()
        self.place(facts)
        for path, reason in facts.unknown:
            self.doubt(path, reason)
        if facts.rest:
            self.args["kv-connector-config"] = facts.rest
        self.notes += facts.notes
        self._roles()
        return facts

    def _roles(self) -> None:
        for name in ("server-role", "disaggregation-mode"):
            if self.doubted(name, "roles"):
                return
            role = _lower(self.value_of(name))
            if role not in (None, "agg", "pd", "prefill_and_decode"):
                self.args["disaggregation-mode"] = {"context": "prefill", "generation": "decode"}.get(role, role)
                self.doubt("roles", "the line starts one half of a prefill/decode pair; the other is not in it")
                return
        self.values["roles"] = None

    def _store(self) -> CacheFacts:
        name = "kv-connector-config"
        given = self.flags.get(name)
        if given is None or (given.value is None and not given.expansions):
            return no_connector()
        if given.expansions:
            return undecided(because(name, given.expansions))
        if not isinstance(given.value, Mapping):
            raise InputError("kv_connector_config is not a mapping", where=self.source)
        config = given.value
        named = next((config[key] for key in ("connector_module", "connector") if isinstance(config.get(key), str)), "")
        table = connector_table(ENGINE)
        begun = [key for key in table.connectors if named == key or named.startswith(f"{key}.")]
        row = table.connectors[max(begun, key=len)] if begun else None
        facts = no_connector()
        facts.settle("cache.connector", row.profile if row is not None and row.profile else f"tensorrt-llm-{named}")
        facts.rest = {key: value for key, value in config.items() if key not in table.harmless}
        if row is not None and row.profile == KVBM:
            facts.rest = {}
            read_kvbm(self.clean_environment(), facts)
            return facts
        why = row.why if row is not None else "no profile describes it"
        facts.notes.append(f"the connector {named or '...'} is kept by its name: {why}")
        for path in CACHE_PATHS[1:]:
            facts.doubt(path, f"what {named or 'the connector'} makes of it was not read")
        return facts

    def set_by_environment(self) -> list[str]:
        """See the base class."""
        paths = [*CODE, *_SET_BY_ENVIRONMENT]
        if self.values.get("cache.connector", "unknown") is None:
            paths = [path for path in paths if not path.startswith("cache.")]
        return paths


def _settings(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        value = parse_json(value, where)
    if not isinstance(value, Mapping):
        raise InputError("is not a mapping of TensorRT-LLM's settings", where=where)
    return value


def _flattened(settings: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """Yield settings by the names of the table; members of ``kv_cache_config`` are settings of their own."""
    for key, value in settings.items():
        name = str(key).replace("_", "-")
        if name in _NESTED:
            if value is not None and not isinstance(value, Mapping):
                raise InputError(f"{key} is not a mapping", where=where)
            for inner, item in (value or {}).items():
                whole = f"{_NESTED[name]}{inner}"
                yield table_name(whole, ENGINE) or whole.replace("kv-cache-config.", "kv_cache_config."), item
        else:
            yield table_name(name, ENGINE) or str(key), value


def _given(name: str, flag: Flag | None, value: Any, where: str) -> Given:
    """Return a setting of a file as a flag would have it.

    Raises:
        InputError: it has the wrong type. The value is never quoted: it could be a credential.
    """
    labels = tuple(dict.fromkeys(_filled_in(value)))
    if flag is None or value is None or labels:
        return Given(value, labels)
    kinds: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "str": (str,)}
    expected = kinds.get(flag.type)
    wrong_bool = isinstance(value, bool) and expected is not None and bool not in expected
    if expected is not None and (wrong_bool or not isinstance(value, expected)):
        kind = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "a text"}[flag.type]
        raise InputError(f"{name.replace('-', '_')} needs {kind}", where=where)
    return Given(float(value) if flag.type == "float" else value)


def _filled_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from filled_word(value).expansions
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _filled_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _filled_in(item)


def _lower(value: Any) -> str | None:
    return value.lower() if isinstance(value, str) and value else None
