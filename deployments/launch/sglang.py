"""An SGLang command line as facts for a manifest.

Every rule is SGLang 0.5.23's: sglang/srt/arg_groups, sglang/srt/mem_cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.deployments.launch.cache_facts import CACHE_PATHS, CacheFacts
from kvgate.deployments.launch.connectors import connector_table, no_connector
from kvgate.deployments.launch.engine_line import ANY_FLAG_SETS, CODE, TOKENIZER, EngineLine, because
from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.invocation import Invocation
from kvgate.deployments.launch.lmcache import CONFIG_FILE, read_lmcache, with_config_file
from kvgate.deployments.launch.secrets import clean
from kvgate.deployments.launch.shell import Word
from kvgate.rules.document import parse_document, parse_json
from kvgate.rules.errors import InputError

# Flags that make the engine read other files than a capture does, but for these values: what they leave unknown.
_OTHER_FILES: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "load-format": (frozenset({"auto", "safetensors", "fastsafetensors", "runai_streamer"}), ("weights.checkpoint",)),
    "model-config-parser": (frozenset({"auto", "hf"}), ("model.config",)),
    "decrypted-config-file": (frozenset(), ("model.config",)),
    "modelopt-quant": (frozenset(), ("weights.checkpoint",)),
    "modelopt-checkpoint-restore-path": (frozenset(), ("weights.checkpoint",)),
    "custom-weight-loader": (frozenset(), ("weights.checkpoint",)),
    "tokenizer-mode": (frozenset({"auto"}), TOKENIZER),
    "tokenizer-backend": (frozenset({"huggingface"}), TOKENIZER),
    "hf-chat-template-name": (frozenset(), ("chat_template",)),
    "quantization-param-path": (frozenset(), ("precision.kv_scales",)),
    "speculative-token-map": (frozenset(), ("engine.speculative",)),
    "enable-pd-role-switch": (frozenset({"false"}), ("roles",)),
}
# The parts of a speculative setup, as other engines call them.
_SPECULATIVE = {
    "speculative-algorithm": "method",
    "speculative-draft-model-path": "model",
    "speculative-draft-model-revision": "revision",
    "speculative-draft-model-quantization": "quantization",
    "speculative-draft-kv-cache-dtype": "kv_cache_dtype",
    "speculative-num-steps": "num_steps",
    "speculative-eagle-topk": "eagle_topk",
    "speculative-num-draft-tokens": "num_speculative_tokens",
}
_SEEN_BY_READING = {
    "hicache-storage-backend": CACHE_PATHS,
    "json-model-override-args": ("model.config",),
    "lora-paths": ("adapters",),
    "tokenizer-path": ("tokenizer",),
    "chat-template": ("chat_template",),
    "speculative-algorithm": ("engine.speculative",),
    "load-format": ("weights.checkpoint",),
    "disaggregation-mode": ("roles",),
}
_SET_BY_FLAGS = (*ANY_FLAG_SETS, "engine.kv_layout", "parallelism.data", *CACHE_PATHS)
_SET_BY_ENVIRONMENT = ("engine.args", "cache.location", "cache.chunk_size", "cache.serde")
_KV_NAMES = {"bf16": "bfloat16"}
_MOONCAKE_FILE = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"
_KEYS = ("api-key", "admin-api-key")
_OPEN = "anybody who reaches the server can change it: neither --api-key nor --admin-api-key is set"


def sglang_facts(invocation: Invocation, source: str, files: Mapping[str, bytes]) -> LaunchFacts:
    """Return what an SGLang server's command says.

    Args:
        invocation: the command.
        source: what to call it in errors and reasons.
        files: content of the files that the command names, by the name in it.

    Raises:
        InputError: a value of the wrong type, broken JSON.
    """
    return _SglangLine(invocation, source, files).facts()


class _SglangLine(EngineLine):
    engine = "sglang"
    shown = "SGLang"
    usage = "python -m sglang.launch_server --model-path MODEL ..."
    model_flag = "model-path"
    tokenizer_flag = "tokenizer-path"
    set_by_flags = _SET_BY_FLAGS
    other_files = _OTHER_FILES
    seen_by_reading = _SEEN_BY_READING
    whole = frozenset({"json-model-override-args", "chat-template"})

    def __init__(self, invocation: Invocation, source: str, files: Mapping[str, bytes]) -> None:
        super().__init__(invocation, source, files)
        self._files = files

    def variables(self) -> None:
        """See the base class: no variable of SGLang's sets a manifest path but for the store's."""
        # Pages are hashed with sha256 from a fixed start (sglang/srt/mem_cache/utils.py).
        self.values["engine.prefix_hash.algorithm"] = None
        self.values["engine.prefix_hash.seed"] = None

    def specific(self) -> tuple[dict[str, Any], dict[str, str], CacheFacts]:
        """See the base class."""
        self._kv_type()
        self._speculation()
        self._built_in_template()
        adapters = self._adapters()
        self._mutability()
        return self._overrides(), adapters, self._cache()

    def _kv_type(self) -> None:
        path = "precision.kv_cache"
        if isinstance(given := self.values.get(path), str):
            self.values[path] = _KV_NAMES.get(given, given)

    def _speculation(self) -> None:
        path = "engine.speculative"
        if any(self.doubted(name, path) for name in _SPECULATIVE):
            return
        given = {key: self.value_of(name) for name, key in _SPECULATIVE.items()}
        setup = {key: value for key, value in given.items() if value is not None}
        self.values[path] = setup if "method" in setup else None

    def _built_in_template(self) -> None:
        """A name without a folder or an ending is one of SGLang's own templates, and ``.json`` one of its formats."""
        given = self.value_of("chat-template")
        if not isinstance(given, str) or "{" in given or given in self.run.files:
            return
        if given.endswith(".json") or not ("/" in given or given.endswith(".jinja")):
            self.doubt("chat_template", f"--chat-template {given} is a template of SGLang's own, which is not read")

    def _adapters(self) -> dict[str, str]:
        adapters: dict[str, str] = {}
        if not self.doubted("lora-paths", "adapters", "request_features"):
            for item in self.value_of("lora-paths") or []:
                name, path = self._adapter(item)
                adapters[name] = path
        enabled = bool(self.value_of("enable-lora")) or "lora-paths" in self.line.flags
        if enabled and not self._guarded():
            self.doubt("adapters", _OPEN)
        if "adapters" not in self.unknown:
            self.values["adapters"] = [{"name": name, "path": path} for name, path in adapters.items()]
        if "request_features" not in self.unknown:
            self.values["request_features"] = ["lora"] if enabled else []
        return adapters

    def _adapter(self, item: str) -> tuple[str, str]:
        """Read one of the three forms: ``name=path``, JSON, and a path alone."""
        if item.lstrip().startswith("{"):
            module = clean(parse_json(item, f"{self.source}: --lora-paths"))[0]
            name, path = (module.get(key) for key in ("lora_name", "lora_path"))
            if not isinstance(name, str) or not isinstance(path, str):
                raise InputError(
                    "--lora-paths takes name=path, a path, or JSON with lora_name and lora_path", where=self.source
                )
            return name, path
        name, equals, path = item.partition("=")
        return (name, path) if equals else (item, item)

    def _guarded(self) -> bool:
        """Whether a key is asked for before weights or adapters are changed (srt/utils/auth.py)."""
        return any(name in self.line.flags for name in _KEYS)

    def _mutability(self) -> None:
        path = "weights.mutable"
        if self.value_of("checkpoint-engine-wait-weights-before-ready"):
            self.values[path] = True
        elif self._guarded():
            self.values[path] = False
        else:
            self.doubt(path, _OPEN)

    def _overrides(self) -> dict[str, Any]:
        if self.doubted("json-model-override-args", "model.config"):
            return {}
        given = self.value_of("json-model-override-args")
        if given is not None and not isinstance(given, Mapping):
            raise InputError("--json-model-override-args is not a JSON object", where=self.source)
        return dict(given or {})

    # -- the store -------------------------------------------------------------------------------------

    def _cache(self) -> CacheFacts:
        facts = self._store()
        self.place(facts)
        for path, reason in facts.unknown:
            self.doubt(path, reason)
        if facts.rest:
            self.args["hicache-storage-backend-extra-config"] = facts.rest
        self.notes += facts.notes
        mode = self.value_of("disaggregation-mode")
        if self.doubted("disaggregation-mode", "roles"):
            pass
        elif mode in ("prefill", "decode"):
            self.args["disaggregation-mode"] = mode
            self.doubt("roles", "the line starts one half of a prefill/decode pair; the other is not in it")
        elif "roles" not in self.unknown:
            self.values["roles"] = None
        return facts

    def _store(self) -> CacheFacts:
        for name in ("enable-flexkv", "enable-unified-cache-external-linker"):
            if name in self.line.flags:
                return _unread(f"sglang-{name.removeprefix('enable-')}")
        if "radix-cache-backend" in self.line.flags:
            return _unread("sglang-radix-cache-backend")
        if "enable-lmcache" in self.line.flags:
            return self._lmcache()
        given = self.flags.get("hicache-storage-backend")
        if given is None or (given.value is None and not given.expansions):
            return no_connector()
        if given.expansions:
            why = because("hicache-storage-backend", given.expansions)
            return CacheFacts(unknown=[(path, why) for path in CACHE_PATHS])
        return self._hicache(str(given.value))

    def _lmcache(self) -> CacheFacts:
        """LMCache in SGLang has no profile: its keys are LMCache's, but what the adapter hands it was not read."""
        facts = no_connector()
        facts.settle("cache.connector", "sglang-lmcache")
        environment = self.clean_environment()
        named = self.flags.get("lmcache-config-file")
        if named is not None:
            environment[CONFIG_FILE] = Word(str(named.value), named.expansions)
            environment = with_config_file(environment, self._files, self.source)
        read_lmcache({}, environment, facts)
        return facts

    def _hicache(self, backend: str) -> CacheFacts:
        table = connector_table("sglang")
        row = table.connectors.get(backend)
        facts = no_connector()
        facts.settle("cache.connector", row.profile if row is not None and row.profile else f"sglang-hicache-{backend}")
        extra = self._extra()
        if row is None:
            facts.notes.append(f"the storage backend {backend} is kept by its name: no profile describes it")
        location, namespace = (None, None) if row is None else (row.location, row.namespace)
        self._location(
            facts,
            extra,
            row.variable if row is not None else None,
            location,
            row.location_default if row is not None else None,
        )
        if namespace is not None and (extra is None or extra.get(namespace) is not None):
            tag = None if extra is None else extra[namespace]
            facts.settle("cache.namespace", tag) if isinstance(tag, str) else facts.doubt(
                "cache.namespace", "the extra config of the storage backend says it, and it is not known"
            )
        elif row is None:
            facts.doubt("cache.namespace", "which of its settings keeps deployments apart was not read")
        used = {location, namespace, *table.harmless}
        facts.rest = {key: value for key, value in (extra or {}).items() if key not in used}
        return facts

    def _location(
        self,
        facts: CacheFacts,
        extra: Mapping[str, Any] | None,
        variable: str | None,
        key: str | None,
        default: str | None,
    ) -> None:
        path = "cache.location"
        word = self.clean_environment().get(variable) if variable is not None else None
        if variable in self.run.passed or (word is not None and word.expansions):
            facts.doubt(path, f"the environment variable {variable} is set from outside the line")
        elif extra is None:
            facts.doubt(path, "the extra config of the storage backend says it, and it is not known")
        elif facts.values["cache.connector"] == "sglang-hicache-mooncake" and key is not None and extra.get(key):
            facts.settle(path, extra[key]) if isinstance(extra[key], str) else facts.doubt(path, "it is not a text")
        elif _MOONCAKE_FILE in {*self.run.environment, *self.run.passed} and variable == "MOONCAKE_MASTER":
            facts.doubt(path, f"the file of {_MOONCAKE_FILE} says it")
        elif word is not None and word.text:
            facts.settle(path, word.text)
        elif key is not None and isinstance(extra.get(key), str):
            facts.settle(path, extra[key])
        elif default is not None and not extra.get("plugin"):
            facts.settle(path, default)
        else:
            facts.doubt(path, "a file or variable that was not given says where the store is")

    def _extra(self) -> dict[str, Any] | None:
        """Return the backend's settings, from the line or from the file that it names; ``None``: not known."""
        name = "hicache-storage-backend-extra-config"
        given = self.flags.get(name)
        if given is None:
            return {}
        if given.expansions:
            self.doubt("engine.args", because(name, given.expansions))
            return None
        value = given.value
        if isinstance(value, str) and value.startswith("@"):
            file = value[1:]
            if file not in self._files or file.endswith(".toml"):
                self.doubt("engine.args", f"--{name} names a file that was not given or is not read")
                return None
            value = clean(parse_document(self._files[file], f"{self.source}: {file}")[0])[0]
        if not isinstance(value, Mapping):
            raise InputError(f"--{name} is not a JSON object", where=self.source)
        return dict(value)

    def set_by_environment(self) -> list[str]:
        """See the base class."""
        paths = [*CODE, *_SET_BY_ENVIRONMENT]
        if self.values.get("cache.connector", "unknown") is None:
            paths = [path for path in paths if not path.startswith("cache.")]
        return paths


def _unread(name: str) -> CacheFacts:
    facts = CacheFacts({"cache.connector": name})
    for path in CACHE_PATHS[1:]:
        facts.doubt(path, f"what {name} makes of it was not read")
    return facts
