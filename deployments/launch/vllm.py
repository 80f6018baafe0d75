"""A vLLM command line as facts for a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.deployments.launch.aibrix import CONNECTOR as AIBRIX
from kvgate.deployments.launch.aibrix import PATHS as AIBRIX_PATHS
from kvgate.deployments.launch.cache_facts import CACHE_PATHS, CacheFacts
from kvgate.deployments.launch.connectors import (
    connector_table,
    no_connector,
    offloading_flags,
    only_in_addresses,
    read_connector,
    undecided,
)
from kvgate.deployments.launch.engine_line import (
    ANY_FLAG_SETS,
    CODE,
    CREDENTIAL,
    DROPPED,
    TOKENIZER,
    TRUE,
    EngineLine,
    because,
    shown_name,
)
from kvgate.deployments.launch.environment import environment_table
from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.flags import Given
from kvgate.deployments.launch.invocation import Invocation, find_invocation
from kvgate.deployments.launch.kvbm import CONNECTOR as KVBM
from kvgate.deployments.launch.partly_known import partly_known
from kvgate.deployments.launch.secrets import clean, clean_text
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError

_WHOLE_OR_NOT_AT_ALL = frozenset({"hf-overrides", "chat-template", "speculative-config", "rope-scaling"})
# What a flag that may be hidden in an unread place could set.
_SET_BY_FLAGS = (*ANY_FLAG_SETS, "engine.prefix_hash.algorithm", "parallelism.data", *CACHE_PATHS)
# Flags that make the engine read other files than a capture does, but for these values: what they leave unknown.
# vllm/config/load.py, model_executor/model_loader/__init__.py, tokenizers/registry.py, 0.33.0.
_OTHER_FILES: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "load-format": (
        frozenset({"auto", "hf", "safetensors", "fastsafetensors", "runai_streamer"}),
        ("weights.checkpoint",),
    ),
    "config-format": (frozenset({"auto", "hf"}), ("model.config",)),
    "hf-config-path": (frozenset(), ("model.config",)),
    "tokenizer-mode": (frozenset({"auto", "hf"}), (*TOKENIZER, "chat_template")),
    "mm-encoder-fp8-scale-path": (frozenset(), ("engine.args",)),
}
_SEEN_BY_READING = {
    "kv-transfer-config": (*CACHE_PATHS, "roles"),
    "hf-overrides": ("model.config",),
    "lora-modules": ("adapters",),
    "tokenizer": ("tokenizer",),
    "chat-template": ("chat_template",),
    "speculative-config": ("engine.speculative",),
    "enable-expert-parallel": ("parallelism.expert",),
    "load-format": ("weights.checkpoint",),
}
# Connectors whose store variables name, and what each variable stands for.
_STORE_VARIABLES: dict[str, Mapping[str, str]] = {
    "lmcache": dict.fromkeys(("LMCACHE_REMOTE_URL", "LMCACHE_LOCAL_DISK"), "cache.location"),
    KVBM: {},
    AIBRIX: AIBRIX_PATHS,
}
_CONNECTOR_MARKS = ("kv-transfer-config", "kv_transfer_config", "kv_connector")
_SET_BY_ENVIRONMENT = (
    "engine.prefix_hash.seed",
    "engine.kv_layout",
    "engine.args",
    "weights.mutable",
    "request_features",
    "adapters",
    "cache.location",
    "cache.chunk_size",
    "cache.serde",
)


def parse_vllm(text: str, *, source: str, files: Mapping[str, bytes] | None = None) -> LaunchFacts:
    """Read the command line that starts a vLLM server.

    Nothing is run: a shell variable or substitution leaves its value unknown. Credentials are dropped.

    Args:
        text: the line, or a script of which one command starts the server: ``vllm serve``,
            ``python -m vllm.entrypoints.openai.api_server``, ``docker run IMAGE ...``, one ``bash -c``.
        source: what to call it in errors and reasons.
        files: content of the files that ``--config`` names, by the name in the line.

    Raises:
        InputError: not one such line, open quotes, a value of the wrong type, broken JSON.
    """
    found = find_invocation(text, source)
    if found.engine != "vllm":
        raise InputError("starts another engine than vLLM", where=source)
    return vllm_facts(found, source, files or {})


def vllm_facts(invocation: Invocation, source: str, files: Mapping[str, bytes]) -> LaunchFacts:
    """Return what a vLLM server's command says, as :func:`parse_vllm` does for the text that it stands in.

    Args:
        invocation: the command.
        source: what to call it in errors and reasons.
        files: content of the files that the command names, by the name in it.

    Raises:
        InputError: a value of the wrong type, broken JSON.
    """
    return _VllmLine(invocation, source, files).facts()


class _VllmLine(EngineLine):
    engine = "vllm"
    shown = "vLLM"
    usage = "vllm serve MODEL ..."
    model_flag = "model"
    tokenizer_flag = "tokenizer"
    set_by_flags = _SET_BY_FLAGS
    other_files = _OTHER_FILES
    seen_by_reading = _SEEN_BY_READING
    whole = _WHOLE_OR_NOT_AT_ALL

    def specific(self) -> tuple[dict[str, Any], dict[str, str], CacheFacts]:
        """See the base class."""
        self._attention_config()
        self._parallelism()
        self._speculation()
        overrides = self._overrides()
        adapters = self._features()
        cache = self._cache()
        self._mutability()
        return overrides, adapters, cache

    def _attention_config(self) -> None:
        if isinstance(attention := self.args.get("attention-config"), dict) and "backend" in attention:
            if not self.line.flags.get("attention-backend"):
                self.values["engine.attention_backend"] = attention["backend"]
            rest = {key: value for key, value in attention.items() if key != "backend"}
            self.args["attention-config"] = rest
            if not rest:
                del self.args["attention-config"]
        if "worker-extension-cls" in self.line.flags:
            self.keep("worker-extension-cls", self.flags["worker-extension-cls"])

    def variables(self) -> None:
        """See the base class."""
        table = environment_table(self.engine)
        seed, layout = "engine.prefix_hash.seed", "engine.kv_layout"
        for path, name in ((seed, "PYTHONHASHSEED"), (layout, "VLLM_KV_CACHE_LAYOUT")):
            value = self.variable(name, path)
            if path not in self.unknown:
                shown = clean_text(value) if value else None
                self.values[path] = table.kv_layouts.get(shown, shown) if shown and path == layout else shown
                if value and shown is None:
                    self.doubt(path, f"{name} is set to {DROPPED}")
        self._attention_variable()

    def _attention_variable(self) -> None:
        name, path = "VLLM_ATTENTION_BACKEND", "engine.attention_backend"
        if self.values.get(path) is not None or path in self.unknown:
            return
        value = self.variable(name, path)
        if value is None:
            return
        # Read by 0.11.0 (vllm/envs.py), no longer by 0.28.0; which release between dropped it is not known.
        if "engine.version" in self.values and _release(self.values["engine.version"]) >= (0, 28):
            self.notes.append(f"vLLM {self.values['engine.version']} does not read {name}")
        elif "engine.version" in self.values and _release(self.values["engine.version"]) <= (0, 11, 0):
            self.values[path] = clean_text(value)
        else:
            self.doubt(path, f"{name} is set, and whether it is read depends on the engine's version")

    def _parallelism(self) -> None:
        path = "parallelism.expert"
        if self.doubted("enable-expert-parallel", path) or not self.value_of("enable-expert-parallel"):
            self.values.setdefault(path, 1)
            return
        # vllm/distributed/parallel_state.py, 0.33.0: experts are spread over tensor, data and prefill-context ranks.
        sizes = [self.values.get(f"parallelism.{part}") for part in ("tensor", "data", "prefill_context")]
        if all(isinstance(size, int) for size in sizes):
            product = 1
            for size in sizes:
                product *= int(size or 1)
            self.values[path] = product
        else:
            self.doubt(path, "the sizes it is made of are not known")

    def _speculation(self) -> None:
        path = "engine.speculative"
        config = self.flags.get("speculative-config")
        given = config.value if config is not None else None
        doubted = [
            name
            for name in ("speculative-config", "spec-method", "spec-model", "spec-tokens")
            if self.doubted(name, path)
        ]
        if doubted:
            return
        if given is not None and not isinstance(given, Mapping):
            raise InputError("--speculative-config is not a JSON object", where=self.source)
        merged = dict(given or {})
        for name, key in (
            ("spec-method", "method"),
            ("spec-model", "model"),
            ("spec-tokens", "num_speculative_tokens"),
        ):
            if (value := self.value_of(name)) is not None:
                merged[key] = value
        self.values[path] = merged or None

    def _overrides(self) -> dict[str, Any]:
        overrides: dict[str, Any] = {}
        for name in ("hf-overrides", "rope-scaling", "rope-theta"):
            if self.doubted(name, "model.config") or (value := self.value_of(name)) is None:
                continue
            if name == "rope-theta":
                overrides["rope_theta"] = value
            elif not isinstance(value, Mapping):
                raise InputError(f"--{name} is not a JSON object", where=self.source)
            elif name == "rope-scaling":
                overrides["rope_scaling"] = dict(value)
            else:
                overrides.update(value)
        if (file := overrides.get("quantization_config_file")) is not None:
            # vllm 0.32.0, model_executor/model_loader/weight_utils.py get_quant_config
            self.doubt("model.quantization", f"the engine reads {file} for it, and no capture opens that")
        return overrides

    def _features(self) -> dict[str, str]:
        features: list[str] = []
        enabled = bool(self.value_of("enable-lora"))
        adapters = self._lora_modules()
        reload = self.variable("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "adapters", "request_features")
        hot = enabled and (reload or "").strip().lower() in TRUE
        if enabled:
            features.append("lora")
        if hot:
            features.append("lora_hot_load")
            self.doubt("adapters", "VLLM_ALLOW_RUNTIME_LORA_UPDATING lets adapters be loaded while serving")
        if self.value_of("enable-prompt-embeds"):
            features.append("prompt_embeds")
        if "adapters" not in self.unknown:
            self.values["adapters"] = [{"name": name, "path": path} for name, path in adapters.items()]
        if "request_features" not in self.unknown:
            self.values["request_features"] = features
        return adapters

    def _lora_modules(self) -> dict[str, str]:
        """Read both forms of ``--lora-modules``: ``name=path``, and JSON with ``name`` and ``path``."""
        if self.doubted("lora-modules", "adapters"):
            return {}
        adapters: dict[str, str] = {}
        for item in self.value_of("lora-modules") or []:
            if not item:
                continue
            if "=" in item and "," not in item:
                name, _, path = item.partition("=")
                adapters[name] = path
                continue
            parsed = parse_json(item, f"{self.source}: --lora-modules")
            for module in parsed if isinstance(parsed, list) else [parsed]:
                module = clean(module)[0]
                if not isinstance(module, Mapping) or not all(isinstance(module.get(k), str) for k in ("name", "path")):
                    raise InputError(
                        "--lora-modules takes name=path or a JSON object with name and path",
                        where=self.source,
                    )
                adapters[str(module["name"])] = str(module["path"])
        return adapters

    def _cache(self) -> CacheFacts:
        given = self.flags.get("kv-transfer-config")
        config = given.value if given is not None and not given.expansions else None
        labels: tuple[str, ...] = ()
        if given is not None and given.expansions:
            config, labels = self._partly_known_connector(given) or (None, ())
        if given is not None and given.expansions and config is None:
            facts = undecided(because("kv-transfer-config", given.expansions))
            self.doubt("engine.args", because("kv-transfer-config", given.expansions))
        elif config is not None and not isinstance(config, Mapping):
            raise InputError("--kv-transfer-config is not a JSON object", where=self.source)
        elif self.line.flags.get("kv-offloading-size") is not None:
            facts = self._offloading(config or {})
        elif config is not None:
            facts = read_connector(config, self.clean_environment(), labels)
        else:
            facts = no_connector()
            self._connector_in_a_variable()
        if facts.rest:
            self.args["kv-transfer-config"] = facts.rest
        self.place(facts)
        for path, reason in facts.unknown:
            self.doubt(path, reason)
        for name, path in _STORE_VARIABLES.get(str(facts.values.get("cache.connector")), {}).items():
            self.variable(name, path)
        self.notes += facts.notes
        if facts.split_roles:
            self.doubt("roles", "the line starts one half of a prefill/decode pair; the other is not in it")
        else:
            self.values["roles"] = None
        return facts

    def _partly_known_connector(self, given: Given) -> tuple[dict[str, Any], tuple[str, ...]] | None:
        """Return ``--kv-transfer-config`` where the shell fills in addresses or passwords alone; else ``None``."""
        raw = self.line.flags["kv-transfer-config"]
        if not {*given.expansions} <= {*raw.expansions, CREDENTIAL}:
            return None
        found = partly_known(raw.value, raw.expansions)
        if found is None or not (config := found[0]) or not (labels := found[1]):
            return found
        offloads = "kv-offloading-size" in self.line.flags  # which takes the place of the connector
        return None if offloads or not only_in_addresses(config, labels) else found

    def _connector_in_a_variable(self) -> None:
        """Say that a variable holds the connector which the line does not have: somebody meant it to be passed on."""
        for name, word in sorted(self.run.environment.items()):
            if any(mark in word.text for mark in _CONNECTOR_MARKS):
                self.notes.append(
                    f"{shown_name(name)} holds a connector, and the command that was read has none: nothing in these "
                    "files passes it on, and it is read as no persistent cache"
                )

    def _offloading(self, config: Mapping[str, Any]) -> CacheFacts:
        backend = self.flags.get("kv-offloading-backend") or Given("native")
        if backend.expansions:
            return undecided(because("kv-offloading-backend", backend.expansions))
        version = self.values.get("engine.version")
        if backend.value == "lmcache" and _release(str(version or "")) < (0, 32):
            return undecided("earlier releases than vLLM 0.32.0 may make another connector of --kv-offloading-backend")
        return offloading_flags(str(backend.value), config, self.clean_environment())

    def _mutability(self) -> None:
        path = "weights.mutable"
        if self.doubted("weight-transfer-config", path):
            return
        self.values[path] = self.value_of("weight-transfer-config") is not None
        if self.values[path]:
            return
        if (self.variable("VLLM_SERVER_DEV_MODE", path) or "0").strip() not in ("0", ""):
            self.doubt(path, "VLLM_SERVER_DEV_MODE lets anybody who reaches the server change the weights")
        if "worker-extension-cls" in self.line.flags:
            self.doubt(path, "--worker-extension-cls may change the weights while serving")
        if self.value_of("calculate-kv-scales"):
            self.values["precision.kv_scales"] = "dynamic"

    def set_by_environment(self) -> list[str]:
        """See the base class."""
        paths = [*CODE, *_SET_BY_ENVIRONMENT]
        connector = self.values.get("cache.connector", "unknown")
        if connector is None or (connector not in _STORE_VARIABLES and connector in _profiles()):
            paths = [path for path in paths if not path.startswith("cache.")]
        elif connector == AIBRIX:
            paths.append("cache.namespace")
        if "enable-lora" not in self.line.flags and not self.hidden:
            paths = [path for path in paths if path not in ("adapters", "request_features")]
        # No longer read by 0.28.0 (see _attention_variable).
        if "attention-backend" not in self.line.flags and _release(self.values.get("engine.version", "")) < (0, 28):
            paths.append("engine.attention_backend")
        return paths


def _profiles() -> set[str | None]:
    table = connector_table("vllm")
    return {row.profile for row in (*table.connectors.values(), *table.tiers.values(), *table.specs.values())}


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
