"""A vLLM command line as facts for a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kvgate.deployments.launch.cache_facts import CACHE_PATHS, CacheFacts
from kvgate.deployments.launch.connectors import (
    no_connector,
    offloading_flags,
    read_connector,
    undecided,
    vllm_connectors,
)
from kvgate.deployments.launch.containers import read_image
from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.flags import CommandLine, Given, read_flags, vllm_flags, words_of_config
from kvgate.deployments.launch.invocation import Invocation, find_invocation
from kvgate.deployments.launch.lmcache import CONFIG_FILE, with_config_file
from kvgate.deployments.launch.places import located, one_location
from kvgate.deployments.launch.secrets import clean, clean_text, is_secret_name, without_text
from kvgate.deployments.launch.shell import Word
from kvgate.deployments.launch.surroundings import over_code, surroundings_table
from kvgate.rules.document import parse_document, parse_json
from kvgate.rules.errors import InputError

_CREDENTIAL = "looks like a credential and was left out"
_MAX_REASONS = 8  # a script of a thousand commands is not told command by command
_DROPPED = "a credential, which was left out"
_WHOLE_OR_NOT_AT_ALL = frozenset({"hf-overrides", "chat-template", "speculative-config", "rope-scaling"})
_TRUE = frozenset({"1", "true", "yes", "on"})
# What a flag that may be hidden in an unread place could set.
_SET_BY_FLAGS = (
    "model.revision",
    "model.served_name",
    "model.quantization",
    "model.config",
    "tokenizer",
    "chat_template",
    "adapters",
    "request_features",
    "precision.compute",
    "precision.kv_cache",
    "precision.kv_scales",
    "weights.checkpoint",
    "weights.mutable",
    "engine.max_model_len",
    "engine.block_size",
    "engine.attention_backend",
    "engine.prefix_hash.algorithm",
    "engine.speculative",
    "engine.args",
    "parallelism.tensor",
    "parallelism.pipeline",
    "parallelism.data",
    "parallelism.expert",
    "parallelism.decode_context",
    "parallelism.prefill_context",
    "roles",
    *CACHE_PATHS,
)
_TOKENIZER = ("tokenizer.files", "tokenizer.effective", "tokenizer.vocabulary", "tokenizer.special_tokens")
# Flags that make the engine read other files than a capture does, but for these values: what they leave unknown.
# vllm/config/load.py, model_executor/model_loader/__init__.py, tokenizers/registry.py, 0.33.0.
_OTHER_FILES: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "load-format": (
        frozenset({"auto", "hf", "safetensors", "fastsafetensors", "runai_streamer"}),
        ("weights.checkpoint",),
    ),
    "config-format": (frozenset({"auto", "hf"}), ("model.config",)),
    "hf-config-path": (frozenset(), ("model.config",)),
    "tokenizer-mode": (frozenset({"auto", "hf"}), (*_TOKENIZER, "chat_template")),
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
# What the image and the package set stand for, once something may have changed the software in them.
_CODE = ("engine.version", "engine.image", "engine.packages", "tokenizer.renderer")
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


class EnvironmentTable(BaseModel):
    """Which environment variables count; the head of the file says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema", pattern=r"^kvgate/environment/v1$")
    engine: str
    source: str
    checked: str
    counts: list[str]
    harmless: list[str]
    read: list[str]
    kv_layouts: dict[str, str]

    def counted(self, name: str) -> bool:
        """Whether a variable that no manifest path stands for belongs into ``engine.args``."""
        if name in self.read or name.startswith(tuple(self.harmless)):
            return False
        return name.startswith(tuple(self.counts))


@cache
def _environment_table() -> EnvironmentTable:
    name = "vllm_environment.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    document, _ = parse_document(data, name)
    return EnvironmentTable.model_validate(document)


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
    return vllm_facts(find_invocation(text, source), source, files or {})


def vllm_facts(invocation: Invocation, source: str, files: Mapping[str, bytes]) -> LaunchFacts:
    """Return what a vLLM server's command says, as :func:`parse_vllm` does for the text that it stands in.

    Args:
        invocation: the command.
        source: what to call it in errors and reasons.
        files: content of the files that the command names, by the name in it.

    Raises:
        InputError: a value of the wrong type, broken JSON.
    """
    return _Reading(invocation, source, files).facts()


class _Reading:
    def __init__(self, invocation: Invocation, source: str, files: Mapping[str, bytes]) -> None:
        environment = with_config_file(invocation.environment, files, source)
        self._lmcache_file = invocation.environment.get(CONFIG_FILE, Word("")).text
        self._run = replace(invocation, environment=environment)
        self._source = source
        self._values: dict[str, Any] = {}
        self._unknown: dict[str, str] = {}
        self._notes: list[str] = []
        self._pending: list[str] = []
        self._args: dict[str, Any] = {}
        self._options: dict[str, Any] = {}
        self._ignored: list[str] = []
        self._software: list[str] = []  # reasons why other code may run than the image holds
        self._stores: list[str] = []  # where blocks are kept, as the server sees it
        self._hidden: list[str] = []  # reasons why a flag may be set that is not seen
        self._line = self._read_line(files)
        self._words = list(self._line.positional)
        self._model_word = self._words.pop(0) if self._positional_model() else None
        # "$ARGS" may stand for any number of flags
        filled = [name for word in self._words if word.text in word.expansions for name in word.expansions]
        if filled := sorted({*filled, *self._line.open}):
            self._hidden.append(f"the shell fills in {', '.join(filled)}, which may hold any flag")
        self._flags = {name: self._cleaned(name, given) for name, given in self._line.flags.items()}

    def _positional_model(self) -> bool:
        return self._run.positional_model and "model" not in self._line.flags and bool(self._line.positional)

    def _read_line(self, files: Mapping[str, bytes]) -> CommandLine:
        line = read_flags(self._run.arguments, self._source)
        config = line.flags.get("config")
        if config is None:
            return line
        name = str(config.value)
        if config.expansions or name not in files:
            shown = clean_text(name) or "..."
            self._hidden.append(f"--config {shown} was not given, and it may set this")
            return line
        where = f"{self._source}: {name}"
        document, _ = parse_document(files[name], where)
        if not isinstance(document, Mapping):
            raise InputError("a --config file is a mapping of flags", where=where)
        # vLLM puts the file's flags after the positional model and before the line's own, so that the line wins.
        words = self._run.arguments
        model = 1 if self._run.positional_model and words and not words[0].text.startswith("-") else 0
        return read_flags([*words[:model], *words_of_config(document, where), *words[model:]], self._source)

    def _cleaned(self, name: str, given: Given) -> Given | None:
        """Return the flag without credentials; ``None`` where nothing is left of it."""
        if vllm_flags().flags[name].use == "secret":
            return None
        value, dropped = clean(given.value)
        if not dropped:
            return given
        self._notes.append(f"--{name} held a credential; it was left out")
        # A list without one of its entries, or half of a structure, would be a wrong value.
        shorter = isinstance(value, list) and len(value) < len(given.value)
        if value is None or shorter or name in _WHOLE_OR_NOT_AT_ALL:
            return Given(None, (_CREDENTIAL,))
        return Given(value, given.expansions)

    # -- small helpers -------------------------------------------------------------------------------

    def _doubt(self, path: str, reason: str) -> None:
        self._values.pop(path, None)
        self._unknown.setdefault(path, reason)

    def _value_of(self, name: str) -> Any:
        """Return a flag's value where it is known, else ``None``."""
        given = self._flags.get(name)
        return None if given is None or given.expansions else given.value

    def _doubted(self, name: str, *paths: str) -> bool:
        """Leave the paths unknown where the flag's value is not in the line; say whether it was so."""
        given = self._flags.get(name)
        if given is None or not given.expansions:
            return False
        for path in paths:
            self._doubt(path, _because(name, given.expansions))
        return True

    def _variable(self, name: str, *paths: str) -> str | None:
        """Return an environment variable's value; leave the paths unknown where that is not in the line."""
        word = self._run.environment.get(name)
        if name in self._run.passed or (word is not None and word.expansions):
            for path in paths:
                self._doubt(path, f"the environment variable {name} is set from outside the line")
            return None
        return None if word is None else word.text

    # -- the parts -----------------------------------------------------------------------------------

    def facts(self) -> LaunchFacts:
        self._values["engine.name"] = "vllm"
        self._image()
        self._table_flags()
        self._other_flags()
        self._environment()
        self._parallelism()
        self._speculation()
        overrides = self._overrides()
        adapters = self._features()
        cache = self._cache()
        self._mutability()
        self._other_files()
        self._values["tokenizer.options"] = self._options
        if "engine.args" not in self._unknown:
            self._values["engine.args"] = self._args
        self._doubted("tokenizer", "tokenizer")
        self._doubted("tokenizer-revision", "tokenizer")
        self._doubted("chat-template", "chat_template")
        self._doubted("trust-remote-code", "model.code")
        for path, value in cache.values.items():
            self._values.setdefault(path, value)
        self._altered(adapters)
        self._hidden_settings()
        for path in [path for path in self._values if _covered(path, self._unknown)]:
            del self._values[path]
        return LaunchFacts(
            source=self._source,
            engine="vllm",
            model=self._model(),
            values=self._values,
            overrides=overrides,
            adapters=adapters,
            tokenizer=self._value_of("tokenizer"),
            tokenizer_revision=self._value_of("tokenizer-revision"),
            chat_template=self._template(),
            remote_code=bool(self._value_of("trust-remote-code")),
            language_model_only=bool(self._value_of("language-model-only")),
            pending=tuple(path for path in self._pending if not _covered(path, self._unknown)),
            unknown=tuple(self._unknown.items()),
            ignored=tuple(sorted(set(self._ignored))),
            notes=(*self._line.notes, *dict.fromkeys(self._notes)),
        )

    def _model(self) -> str | None:
        given = self._flags.get("model")
        if (word := self._model_word) is not None:
            text = clean_text(word.text)
            given = Given(text, word.expansions if text is not None else (_CREDENTIAL,))
            if text != word.text:
                self._notes.append("the model's name held a credential; it was left out")
        if self._words:
            self._notes.append(f"{len(self._words)} words of the line belong to no flag")
        if given is None and not self._hidden:
            raise InputError("the launch line names no model", where=self._source, hint="vllm serve MODEL ...")
        if given is None or given.expansions:
            self._notes.append("the line leaves the model's name to something outside it")
            return None
        if (self._variable("HF_HUB_OFFLINE") or "").lower() in _TRUE:
            self._notes.append(
                "with HF_HUB_OFFLINE the engine puts the local path of a repository into its keys, not its name"
            )
        return str(given.value)

    def _template(self) -> str | None:
        """Return the path or the text of the template: what a file that is mounted holds is known."""
        given = self._value_of("chat-template")
        if not isinstance(given, str) or given not in self._run.files:
            return None if given is None else str(given)
        try:
            return self._run.files[given].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 text (byte {error.start})", where=f"{self._source}: {given}") from None

    def _image(self) -> None:
        word = self._run.image
        if word is None:
            self._values["engine.image"] = None  # the line starts no container
            self._doubt("engine.version", "the launch line does not say it")
            return
        image = read_image(word.text)
        tag = f"the tag {clean_text(image.tag)!r}" if image.tag and clean_text(image.tag) else "the image name"
        if word.expansions:
            tag = f"the image {word.expansions[0]}"
        if image.digest and not word.expansions:
            self._values["engine.image"] = image.digest
        else:
            self._doubt("engine.image", f"{tag} does not pin the content; an image digest would")
        if image.version and not word.expansions:
            self._values["engine.version"] = image.version
        else:
            self._doubt("engine.version", f"{tag} names no release of vLLM's own image")

    def _table_flags(self) -> None:
        for name, flag in vllm_flags().flags.items():
            given = self._flags.get(name)
            if flag.use == "harmless" and name in self._line.flags:
                self._ignored.append(name)
            elif flag.use == "arg" and name in self._line.flags:
                self._keep(name, given)
            elif flag.use == "path" and flag.path is not None:
                self._path(name, flag.path, flag.default, given, present=name in self._line.flags)
        if isinstance(attention := self._args.get("attention-config"), dict) and "backend" in attention:
            if not self._line.flags.get("attention-backend"):
                self._values["engine.attention_backend"] = attention["backend"]
            rest = {key: value for key, value in attention.items() if key != "backend"}
            self._args["attention-config"] = rest
            if not rest:
                del self._args["attention-config"]
        if "worker-extension-cls" in self._line.flags:
            self._keep("worker-extension-cls", self._flags["worker-extension-cls"])

    def _path(self, name: str, path: str, default: Any, given: Given | None, *, present: bool) -> None:
        section, _, option = path.rpartition(".")
        if section == "tokenizer.options":
            if self._doubted(name, section) or not present or given is None:
                return
            if given.value not in (default, None, ""):
                texts = option == "template_kwargs"  # they may hold whole prompts; the rest are names of modes
                self._options[option] = without_text(given.value) if texts else given.value
            return
        if self._doubted(name, path):
            return
        value = given.value if given is not None else default
        if isinstance(value, list):
            value = value[0]
        if path in ("precision.compute", "precision.kv_cache"):
            value = value or "auto"
        if isinstance(value, str):
            value = value.lower() if path.startswith("precision.") else value
        if value == "auto" and path == "engine.max_model_len":
            self._doubt(path, "--max-model-len auto is settled by the memory that is free at start")
        elif value == "auto" and path.startswith("precision."):
            self._pending.append(path)
        else:
            self._values[path] = value if value != "" else None

    def _keep(self, name: str, given: Given | None) -> None:
        if given is None:
            return
        if given.expansions:
            self._doubt("engine.args", _because(name, given.expansions))
        else:
            self._args[name] = given.value

    def _other_flags(self) -> None:
        for name, given in self._line.others.items():
            if clean_text(name) != name:
                self._notes.append("a flag looked like a credential; it was left out")
                continue
            value, dropped = clean(given.value, name)
            if dropped:
                self._notes.append(f"--{name} held a credential; it was left out")
            if dropped and value is None:
                continue
            self._notes.append(f"--{name} is not a flag of the vLLM versions kvgate has read; it is kept and counts")
            self._keep(name, Given(value, given.expansions))

    def _environment(self) -> None:
        table = _environment_table()
        surroundings = surroundings_table()
        names: list[str] = []
        unread: list[str] = []
        for name in sorted({*self._run.environment, *self._run.passed}):
            if name in surroundings.code:
                self._software.append(f"{name} is set, and what code it brings in is not known")
            elif name in surroundings.files:
                self._run.undisclosed.append(f"{name} makes a shell read a file that was not given")
            elif name not in table.read and not is_secret_name(name):
                names.append(name)
        for name in names:
            if not table.counted(name):
                if not name.startswith(tuple(table.harmless)):
                    unread.append(name)
                continue
            value = self._variable(name, "engine.args")
            if value is None:
                continue
            cleaned = clean_text(value)
            if cleaned is None or cleaned != value:
                self._notes.append(f"{name} held a credential; it was left out")
            if cleaned is not None:
                self._args[name] = without_text(cleaned)
        if unread:
            self._notes.append(f"environment variables taken to change nothing: {', '.join(map(_shown, unread))}")
        seed, layout = "engine.prefix_hash.seed", "engine.kv_layout"
        for path, name in ((seed, "PYTHONHASHSEED"), (layout, "VLLM_KV_CACHE_LAYOUT")):
            value = self._variable(name, path)
            if path not in self._unknown:
                shown = clean_text(value) if value else None
                self._values[path] = table.kv_layouts.get(shown, shown) if shown and path == layout else shown
                if value and shown is None:
                    self._doubt(path, f"{name} is set to {_DROPPED}")
        self._attention_variable()

    def _attention_variable(self) -> None:
        name, path = "VLLM_ATTENTION_BACKEND", "engine.attention_backend"
        if self._values.get(path) is not None or path in self._unknown:
            return
        value = self._variable(name, path)
        if value is None:
            return
        # Read by 0.11.0 (vllm/envs.py), no longer by 0.28.0; which release between dropped it is not known.
        if "engine.version" in self._values and _release(self._values["engine.version"]) >= (0, 28):
            self._notes.append(f"vLLM {self._values['engine.version']} does not read {name}")
        elif "engine.version" in self._values and _release(self._values["engine.version"]) <= (0, 11, 0):
            self._values[path] = clean_text(value)
        else:
            self._doubt(path, f"{name} is set, and whether it is read depends on the engine's version")

    def _parallelism(self) -> None:
        path = "parallelism.expert"
        if self._doubted("enable-expert-parallel", path) or not self._value_of("enable-expert-parallel"):
            self._values.setdefault(path, 1)
            return
        # vllm/distributed/parallel_state.py, 0.33.0: experts are spread over tensor, data and prefill-context ranks.
        sizes = [self._values.get(f"parallelism.{part}") for part in ("tensor", "data", "prefill_context")]
        if all(isinstance(size, int) for size in sizes):
            product = 1
            for size in sizes:
                product *= int(size or 1)
            self._values[path] = product
        else:
            self._doubt(path, "the sizes it is made of are not known")

    def _speculation(self) -> None:
        path = "engine.speculative"
        config = self._flags.get("speculative-config")
        given = config.value if config is not None else None
        doubted = [
            name
            for name in ("speculative-config", "spec-method", "spec-model", "spec-tokens")
            if self._doubted(name, path)
        ]
        if doubted:
            return
        if given is not None and not isinstance(given, Mapping):
            raise InputError("--speculative-config is not a JSON object", where=self._source)
        merged = dict(given or {})
        for name, key in (
            ("spec-method", "method"),
            ("spec-model", "model"),
            ("spec-tokens", "num_speculative_tokens"),
        ):
            if (value := self._value_of(name)) is not None:
                merged[key] = value
        self._values[path] = merged or None

    def _overrides(self) -> dict[str, Any]:
        overrides: dict[str, Any] = {}
        for name in ("hf-overrides", "rope-scaling", "rope-theta"):
            if self._doubted(name, "model.config") or (value := self._value_of(name)) is None:
                continue
            if name == "rope-theta":
                overrides["rope_theta"] = value
            elif not isinstance(value, Mapping):
                raise InputError(f"--{name} is not a JSON object", where=self._source)
            elif name == "rope-scaling":
                overrides["rope_scaling"] = dict(value)
            else:
                overrides.update(value)
        return overrides

    def _features(self) -> dict[str, str]:
        features: list[str] = []
        enabled = bool(self._value_of("enable-lora"))
        adapters = self._lora_modules()
        reload = self._variable("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "adapters", "request_features")
        hot = enabled and (reload or "").strip().lower() in _TRUE
        if enabled:
            features.append("lora")
        if hot:
            features.append("lora_hot_load")
            self._doubt("adapters", "VLLM_ALLOW_RUNTIME_LORA_UPDATING lets adapters be loaded while serving")
        if self._value_of("enable-prompt-embeds"):
            features.append("prompt_embeds")
        if "adapters" not in self._unknown:
            self._values["adapters"] = [{"name": name, "path": path} for name, path in adapters.items()]
        if "request_features" not in self._unknown:
            self._values["request_features"] = features
        return adapters

    def _lora_modules(self) -> dict[str, str]:
        """Read both forms of ``--lora-modules``: ``name=path``, and JSON with ``name`` and ``path``."""
        if self._doubted("lora-modules", "adapters"):
            return {}
        adapters: dict[str, str] = {}
        for item in self._value_of("lora-modules") or []:
            if not item:
                continue
            if "=" in item and "," not in item:
                name, _, path = item.partition("=")
                adapters[name] = path
                continue
            parsed = parse_json(item, f"{self._source}: --lora-modules")
            for module in parsed if isinstance(parsed, list) else [parsed]:
                module = clean(module)[0]
                if not isinstance(module, Mapping) or not all(isinstance(module.get(k), str) for k in ("name", "path")):
                    raise InputError(
                        "--lora-modules takes name=path or a JSON object with name and path",
                        where=self._source,
                    )
                adapters[str(module["name"])] = str(module["path"])
        return adapters

    def _cache(self) -> CacheFacts:
        given = self._flags.get("kv-transfer-config")
        if given is not None and given.expansions:
            facts = undecided(_because("kv-transfer-config", given.expansions))
            self._doubt("engine.args", _because("kv-transfer-config", given.expansions))
        elif given is not None and isinstance(given.value, Mapping):
            facts = read_connector(given.value, self._clean_environment())
        elif given is not None and given.value is not None:
            raise InputError("--kv-transfer-config is not a JSON object", where=self._source)
        elif self._line.flags.get("kv-offloading-size") is not None:
            backend = str(self._value_of("kv-offloading-backend") or "native")
            facts = offloading_flags(backend, self._clean_environment())
        else:
            facts = no_connector()
        if facts.rest:
            self._args["kv-transfer-config"] = facts.rest
        self._place(facts)
        for path, reason in facts.unknown:
            self._doubt(path, reason)
        for name in ("LMCACHE_REMOTE_URL", "LMCACHE_LOCAL_DISK"):
            if facts.values.get("cache.connector") == "lmcache":
                self._variable(name, "cache.location")
        self._notes += facts.notes
        if facts.split_roles:
            self._doubt("roles", "the line starts one half of a prefill/decode pair; the other is not in it")
        else:
            self._values["roles"] = None
        return facts

    def _place(self, facts: CacheFacts) -> None:
        """Say where the store is for everybody, not for the container: what is mounted there may be another."""
        location, namespace = (facts.values.get(path) for path in ("cache.location", "cache.namespace"))
        tiers = facts.tiers or ([location] if isinstance(location, str) else [])
        if not tiers or any(path == "cache.location" for path, _ in facts.unknown):
            return
        self._stores += [tier.removeprefix("file://") for tier in tiers if tier.startswith(("/", "file:///"))]
        places = [located(tier, self._run.mounts if self._run.contained else None) for tier in tiers]
        reason = next((place.reason for place in places if place.reason), None)
        # A folder that is its own isolation knob is another one where another folder is mounted.
        paths = ("cache.location", "cache.namespace") if namespace == location else ("cache.location",)
        for path in paths:
            if reason is None:
                facts.settle(path, one_location([place.value for place in places]))
            else:
                facts.doubt(path, reason)
        facts.notes += [place.note for place in places if place.note]

    def _clean_environment(self) -> dict[str, Word]:
        cleaned: dict[str, Word] = {}
        for name, word in self._run.environment.items():
            if is_secret_name(name):
                continue
            text = clean_text(word.text)
            cleaned[name] = Word(text, word.expansions) if text is not None else Word("", (_DROPPED,))
        return cleaned

    def _mutability(self) -> None:
        path = "weights.mutable"
        if self._doubted("weight-transfer-config", path):
            return
        self._values[path] = self._value_of("weight-transfer-config") is not None
        if self._values[path]:
            return
        if (self._variable("VLLM_SERVER_DEV_MODE", path) or "0").strip() not in ("0", ""):
            self._doubt(path, "VLLM_SERVER_DEV_MODE lets anybody who reaches the server change the weights")
        if "worker-extension-cls" in self._line.flags:
            self._doubt(path, "--worker-extension-cls may change the weights while serving")
        if self._value_of("calculate-kv-scales"):
            self._values["precision.kv_scales"] = "dynamic"

    def _other_files(self) -> None:
        """Leave unknown what the engine reads from files that no capture opens."""
        for name, (usual, paths) in _OTHER_FILES.items():
            if self._doubted(name, *paths) or (value := self._value_of(name)) is None:
                continue
            if str(value).lower() not in usual:
                for path in paths:
                    self._doubt(path, f"--{name} {value}: it is read from files that kvgate does not read")

    def _altered(self, adapters: Mapping[str, str]) -> None:
        """Make unknown what the image no longer says, where code was mounted, installed or patched round the server."""
        names = (self._model_word.text if self._model_word is not None else self._value_of("model"),)
        given = (self._value_of(name) for name in ("tokenizer", "chat-template", "download-dir", "config"))
        known = self._run.files  # they may lie where code lies, but what they hold is seen
        named = (*names, *given, *adapters.values(), self._lmcache_file)
        data = [str(name) for name in (*named, *self._stores, *known) if name]
        mounted = filter(None, (over_code(mount, data) for mount in self._run.mounts))
        reasons = list(dict.fromkeys([*self._run.altered, *self._software, *mounted]))
        if not reasons:
            return
        for path in _CODE:
            self._doubt(path, reasons[0])
        for path in self._set_by_environment() if self._run.altered else ():
            self._doubt(path, reasons[0])
        self._notes += [f"the software that serves is not known: {reason}" for reason in reasons[1:_MAX_REASONS]]

    def _hidden_settings(self) -> None:
        """Make unknown what may be set out of sight, unless the line sets it too."""
        seen = {flag.path for name, flag in vllm_flags().flags.items() if name in self._line.flags and flag.path}
        for name, paths in _SEEN_BY_READING.items():
            if name in self._line.flags:
                seen.update(paths)
        for path in _SET_BY_FLAGS if self._hidden else ():
            if path not in seen:
                self._doubt(path, self._hidden[0])
        if self._run.undisclosed:
            for path in self._set_by_environment():
                self._doubt(path, self._run.undisclosed[0])

    def _set_by_environment(self) -> list[str]:
        """Return what a variable that the line does not show may have set."""
        paths = [*_CODE, *_SET_BY_ENVIRONMENT]
        connector = self._values.get("cache.connector", "unknown")
        if connector is None or (connector != "lmcache" and connector in _profiles()):
            paths = [path for path in paths if not path.startswith("cache.")]
        if "enable-lora" not in self._line.flags and not self._hidden:
            paths = [path for path in paths if path not in ("adapters", "request_features")]
        # No longer read by 0.28.0 (see _attention_variable).
        if "attention-backend" not in self._line.flags and _release(self._values.get("engine.version", "")) < (0, 28):
            paths.append("engine.attention_backend")
        return paths


def _because(flag: str, expansions: Iterable[str]) -> str:
    first = next(iter(expansions))
    return f"--{flag} {first}" if first == _CREDENTIAL else f"--{flag} is set to {first}, which the shell fills in"


def _covered(path: str, unknown: Mapping[str, str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:end]) in unknown for end in range(1, len(parts) + 1))


def _profiles() -> set[str | None]:
    table = vllm_connectors()
    return {row.profile for row in (*table.connectors.values(), *table.tiers.values())}


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def _shown(name: str) -> str:
    return clean_text(name) or "..."
