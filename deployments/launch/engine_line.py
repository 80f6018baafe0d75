"""The command line of an engine's server as facts: what holds for every engine.

An engine's own class adds its table of flags and what flags mean together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from kvgate.deployments.launch.cache_facts import CacheFacts
from kvgate.deployments.launch.containers import lmcache_release, read_image
from kvgate.deployments.launch.environment import environment_table
from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.filled import filled_word
from kvgate.deployments.launch.flags import (
    CommandLine,
    FlagTable,
    Given,
    flag_table,
    is_filled_in,
    read_flags,
    words_of_config,
)
from kvgate.deployments.launch.invocation import Invocation
from kvgate.deployments.launch.lmcache import CONFIG_FILE, with_config_file
from kvgate.deployments.launch.named_paths import clean_named
from kvgate.deployments.launch.nodes import GPU_LABELS, RESOURCES
from kvgate.deployments.launch.places import Place, located, on_the_host, one_location
from kvgate.deployments.launch.secrets import clean, clean_text, without_text
from kvgate.deployments.launch.shell import Word
from kvgate.deployments.launch.surroundings import over_code, surroundings_table
from kvgate.rules.credentials import is_secret_name
from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError

DROPPED = "a credential, which was left out"
# What a flag that may be hidden in an unread place can set, whatever the engine; each adds its own, and the store's.
ANY_FLAG_SETS = (
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
    "engine.speculative",
    "engine.args",
    "parallelism.tensor",
    "parallelism.pipeline",
    "parallelism.expert",
    "parallelism.decode_context",
    "parallelism.prefill_context",
    "roles",
)
TRUE = frozenset({"1", "true", "yes", "on"})
# What the image and the package set stand for, once something may have changed the software in them.
CODE = ("engine.version", "engine.image", "engine.packages", "tokenizer.renderer")
TOKENIZER = ("tokenizer.files", "tokenizer.effective", "tokenizer.vocabulary", "tokenizer.special_tokens")
CREDENTIAL = "looks like a credential and was left out"
# A setting that a line and a file give differently.
TWICE = "is given twice, with two values, and which of them counts depends on the release"
_REASONS = frozenset({CREDENTIAL, TWICE})
_AGAIN = "is followed by"
# Flags whose entries are NAME=PATH, with names that somebody gave.
_NAMED_BY_SOMEBODY = frozenset({"lora-modules", "lora-paths"})
_MAX_REASONS = 8  # a script of a thousand commands is not told command by command


class EngineLine:
    """One command line under reading.

    Attributes:
        engine: the name of its tables.
        shown: the engine's name for readers.
        usage: how its server is started, for errors.
        model_flag, tokenizer_flag: what names model and tokenizer.
        set_by_flags: what a flag that may be hidden in an unread place could set.
        other_files: flags that make the engine read other files than a capture does, but for these values, and what
            they leave unknown.
        seen_by_reading: what flags that code reads settle, where they stand on the line.
        whole: structured flags that mean nothing without one of their parts.
    """

    engine: str
    shown: str
    usage: str
    model_flag: str
    tokenizer_flag: str
    set_by_flags: tuple[str, ...]
    other_files: Mapping[str, tuple[frozenset[str], tuple[str, ...]]]
    seen_by_reading: Mapping[str, tuple[str, ...]]
    whole: frozenset[str]

    def __init__(self, invocation: Invocation, source: str, files: Mapping[str, bytes]) -> None:
        """Read the words; nothing is said of them yet.

        Args:
            invocation: the command.
            source: what to call it in errors and reasons.
            files: content of the files that the command names, by the name in it.
        """
        self.table: FlagTable = flag_table(self.engine)
        environment = with_config_file(invocation.environment, files, source)
        self._lmcache_file = invocation.environment.get(CONFIG_FILE, Word("")).text
        known = {name: _without_open_credential(word) for name, word in environment.items()}
        self.run = replace(invocation, environment=known)
        self.source = source
        self.values: dict[str, Any] = {}
        self.unknown: dict[str, str] = {}
        self.notes: list[str] = list(invocation.notes)
        self.pending: list[str] = []
        self.args: dict[str, Any] = {}
        self.options: dict[str, Any] = {}
        self.ignored: list[str] = []
        self.software: list[str] = []  # reasons why other code may run than the image holds
        self.stores: list[str] = []  # where blocks are kept, as the server sees it
        self.hidden: list[str] = list(invocation.hidden)  # reasons why a flag may be set that is not seen
        self.line = self._read_line(files)
        self._words = list(self.line.positional)
        self._model_word = self._words.pop(0) if self._positional_model() else None
        # "$ARGS" may stand for any number of flags
        open_ = [*(word for word in self._words if is_filled_in(word)), *self.line.open]
        filled = sorted({label for word in open_ for label in word.expansions})
        if filled:
            self.hidden.append(f"the shell fills in {', '.join(filled)}, which may hold any flag")
        last = self._set_last(open_) if open_ else self.line.flags
        again = f"{_AGAIN} {', '.join(filled)}, which the shell fills in and which may set it again"
        self.flags = {
            name: self._cleaned(name, given) if name in last else Given(None, (*given.expansions, again))
            for name, given in self.line.flags.items()
        }

    def _positional_model(self) -> bool:
        return self.run.positional_model and self.model_flag not in self.line.flags and bool(self.line.positional)

    def _set_last(self, open_: list[Word]) -> Mapping[str, Given]:
        """Return the flags behind all that may hold any flag: of one that is given twice the last counts."""
        words = self.run.arguments
        last = max(at for at, word in enumerate(words) if any(word is one for one in open_))
        return read_flags(words[last + 1 :], self.source, self.engine).flags

    def _read_line(self, files: Mapping[str, bytes]) -> CommandLine:
        words = self.run.arguments
        line = read_flags(words, self.source, self.engine)
        self._refuse_two_models(line)
        given = [at for at, word in enumerate(words) if word.text == "--config"]
        if len(given) > 1:
            raise InputError("--config is given twice", where=self.source, hint=f"{self.shown} takes one file")
        if "config" not in line.flags:
            return line
        if not given:  # vllm/utils/argparse_utils.py, parse_args, 0.32.0 looks for this one word
            self.hidden.append("--config=FILE is not read by every release (`--config FILE` is), and it may set this")
            return line
        named = words[given[0] + 1]
        if named.expansions or named.text not in files:
            shown = clean_text(named.text) or "..."
            self.hidden.append(f"--config {shown} was not given, and it may set this")
            return line
        where = f"{self.source}: {named.text}"
        document, _ = parse_document(files[named.text], where)
        if not isinstance(document, Mapping):
            raise InputError("a --config file is a mapping of flags", where=where)
        # vLLM puts the file's flags after the positional model and before the line's own, so that the line wins.
        model = 1 if self.run.positional_model and words and not words[0].text.startswith("-") else 0
        if self.run.positional_model and line.positional:
            document = {key: value for key, value in document.items() if key != self.model_flag}
        return read_flags(
            [*words[:model], *words_of_config(document, where, self.engine), *words[model:]],
            self.source,
            self.engine,
        )

    def _refuse_two_models(self, line: CommandLine) -> None:
        """Refuse a line that names the model with and without a flag, or by two flags, and not alike.

        vLLM refuses most of them, and which of two flags counts is not the rule of other flags
        (vllm/utils/argparse_utils.py, ``parse_args``, 0.32.0: the first).
        """
        if not self.run.positional_model:
            return
        flag, words = f"--{self.model_flag}", self.run.arguments
        named = [word.text.partition("=")[2] for word in words if word.text.startswith(f"{flag}=")]
        named += [after.text for word, after in pairwise(words) if word.text == flag]
        named += [word.text for word in line.positional[:1] if not word.expansions]
        if len(set(named)) > 1:
            raise InputError("names two models", where=self.source, hint=f"name one: {self.usage}")

    def _cleaned(self, name: str, given: Given) -> Given | None:
        """Return the flag without credentials; ``None`` where nothing is left of it."""
        if self.table.flags[name].use == "secret":
            return None
        named = name in _NAMED_BY_SOMEBODY and isinstance(given.value, list)
        value, dropped = clean_named(given.value) if named else clean(given.value)
        if not dropped:
            return given
        self.notes.append(f"--{name} held a credential; it was left out")
        # A list without one of its entries, or half of a structure, would be a wrong value.
        shorter = isinstance(value, list) and len(value) < len(given.value)
        if value is None or shorter or name in self.whole:
            return Given(None, (CREDENTIAL,))
        return Given(value, given.expansions)

    def doubt(self, path: str, reason: str) -> None:
        """Leave a path unknown; the first reason counts."""
        self.values.pop(path, None)
        self.unknown.setdefault(path, reason)

    def value_of(self, name: str) -> Any:
        """Return a flag's value where it is known, else ``None``."""
        given = self.flags.get(name)
        return None if given is None or given.expansions else given.value

    def doubted(self, name: str, *paths: str) -> bool:
        """Leave the paths unknown where the flag's value is not in the line; say whether it was so."""
        given = self.flags.get(name)
        if given is None or not given.expansions:
            return False
        for path in paths:
            self.doubt(path, because(name, given.expansions))
        return True

    def variable(self, name: str, *paths: str) -> str | None:
        """Return an environment variable's value; leave the paths unknown where that is not in the line."""
        word = self.run.environment.get(name)
        if name in self.run.passed or (word is not None and word.expansions):
            for path in paths:
                self.doubt(path, f"the environment variable {name} is set from outside the line")
            return None
        return None if word is None else word.text

    def facts(self) -> LaunchFacts:
        """Return what the line says."""
        self.values["engine.name"] = self.engine
        self._image()
        self._device()
        self._table_flags()
        self._other_flags()
        self._environment()
        overrides, adapters, cache = self.specific()
        self._other_files()
        self.values["tokenizer.options"] = self.options
        if "engine.args" not in self.unknown:
            self.values["engine.args"] = self.args
        self.doubted(self.tokenizer_flag, "tokenizer")
        self.doubted("tokenizer-revision", "tokenizer")
        self.doubted("chat-template", "chat_template")
        if isinstance(template := self.value_of("chat-template"), str) and self.run.may_be_written(template):
            self.doubt("chat_template", "--chat-template names a file that is written before the server reads it")
        self.doubted("trust-remote-code", "model.code")
        for path, value in cache.values.items():
            self.values.setdefault(path, value)
        self._lmcache_version()
        self._altered(adapters)
        self._hidden_settings()
        for path in [path for path in self.values if _covered(path, self.unknown)]:
            del self.values[path]
        return LaunchFacts(
            source=self.source,
            engine=self.engine,
            model=self._model(),
            values=self.values,
            overrides=overrides,
            adapters=adapters,
            tokenizer=self.value_of(self.tokenizer_flag),
            tokenizer_revision=self.value_of("tokenizer-revision"),
            chat_template=self._template(),
            remote_code=bool(self.value_of("trust-remote-code")),
            language_model_only=bool(self.value_of("language-model-only")),
            places=self._places(adapters),
            image=self._image_named(),
            stores=tuple(self.stores),
            pending=tuple(path for path in self.pending if not _covered(path, self.unknown)),
            unknown=tuple(self.unknown.items()),
            ignored=tuple(sorted(set(self.ignored))),
            notes=(*self.line.notes, *dict.fromkeys(self.notes)),
        )

    def _model(self) -> str | None:
        given = self.flags.get(self.model_flag)
        if (word := self._model_word) is not None:
            text = clean_text(word.text)
            given = Given(text, word.expansions if text is not None else (CREDENTIAL,))
            if text != word.text:
                self.notes.append("the model's name held a credential; it was left out")
        if self._words:
            self.notes.append(f"{len(self._words)} words of the line belong to no flag")
        if given is None and not self.hidden:
            raise InputError("the launch line names no model", where=self.source, hint=self.usage)
        if given is None or given.expansions:
            self.notes.append("the line leaves the model's name to something outside it")
            return None
        if (self.variable("HF_HUB_OFFLINE") or "").lower() in TRUE:
            self.notes.append(
                "with HF_HUB_OFFLINE the engine puts the local path of a repository into its keys, not its name"
            )
        return str(given.value)

    def _template(self) -> str | None:
        """Return the path or the text of the template: what a file that is mounted holds is known."""
        given = self.value_of("chat-template")
        if not isinstance(given, str) or given not in self.run.files:
            return None if given is None else str(given)
        try:
            return self.run.files[given].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 text (byte {error.start})", where=f"{self.source}: {given}") from None

    def _places(self, adapters: Mapping[str, str]) -> dict[str, Place]:
        """Say where on the host the files are that a container's line names beside the model's."""
        if not self.run.contained:
            return {}
        draft = self.values.get("engine.speculative")
        draft = draft.get("model") if isinstance(draft, Mapping) else None
        named = (*adapters.values(), draft, self.value_of(self.tokenizer_flag), self.value_of("chat-template"))
        return {path: on_the_host(path, self.run.mounts) for path in named if isinstance(path, str)}

    def _image(self) -> None:
        word = self.run.image
        if word is None:
            self.values["engine.image"] = None  # the line starts no container
            self.doubt("engine.version", "the launch line does not say it")
            return
        image = read_image(word.text)
        tag = f"the tag {clean_text(image.tag)!r}" if image.tag and clean_text(image.tag) else "the image name"
        if word.expansions:
            tag = f"the image {word.expansions[0]}"
        if image.digest and not word.expansions:
            self.values["engine.image"] = image.digest
        else:
            self.doubt("engine.image", f"{tag} does not pin the content; an image digest would")
        if image.engine == self.engine and image.version and not word.expansions:
            self.values["engine.version"] = image.version
        else:
            self.doubt("engine.version", f"{tag} names no release of {self.shown}'s own image")

    def _lmcache_version(self) -> None:
        word = self.run.image
        if self.values.get("cache.connector") not in ("lmcache", "lmcache-mp") or word is None or word.expansions:
            return
        if (release := lmcache_release(word.text)) is not None:
            self.values["cache.version"] = release

    def _image_named(self) -> str | None:
        word = self.run.image
        return None if word is None or word.expansions else clean_text(word.text) or None

    def _device(self) -> None:
        """Say what GPU the file asks for; a kind of machine stands for one that is not named."""
        asked = {label: [shown_name(value) for value in values] for label, values in self.run.nodes.items()}
        gpu = next((asked[label] for label in GPU_LABELS if label in asked), None)
        named = gpu is not None and len(gpu) == 1 and not filled_word(gpu[0]).expansions
        if gpu is not None and named:
            self.values["engine.accelerator"] = gpu[0]
        elif gpu is not None:
            self.doubt("engine.accelerator", f"the file lets it run on {' or '.join(gpu) or 'no node'}")
        for label, values in asked.items():
            if not named or label == RESOURCES:
                self.args[f"node.{label}"] = values

    def _table_flags(self) -> None:
        for name, flag in self.table.flags.items():
            given = self.flags.get(name)
            if flag.use == "harmless" and name in self.line.flags:
                self.ignored.append(name)
            elif flag.use == "arg" and name in self.line.flags:
                self.keep(name, given)
            elif flag.use == "path" and flag.path is not None:
                self._path(name, flag.path, flag.default, given, present=name in self.line.flags)

    def _path(self, name: str, path: str, default: Any, given: Given | None, *, present: bool) -> None:
        section, _, option = path.rpartition(".")
        if section == "tokenizer.options":
            if self.doubted(name, section) or not present or given is None:
                return
            if given.value not in (default, None, ""):
                texts = option == "template_kwargs"  # they may hold whole prompts; the rest are names of modes
                self.options[option] = without_text(given.value) if texts else given.value
            return
        if self.doubted(name, path):
            return
        value = given.value if given is not None else default
        if isinstance(value, list):
            value = value[0]
        if path in ("precision.compute", "precision.kv_cache"):
            value = value or "auto"
        if isinstance(value, str):
            value = value.lower() if path.startswith("precision.") else value
        if value == "auto" and path == "engine.max_model_len":
            self.doubt(path, "--max-model-len auto is settled by the memory that is free at start")
        elif value == "auto" and path.startswith("precision."):
            self.pending.append(path)
        else:
            self.values[path] = value if value != "" else None

    def keep(self, name: str, given: Given | None) -> None:
        """Keep a flag that has no path of its own: it counts."""
        if given is None:
            return
        if given.expansions:
            self.doubt("engine.args", because(name, given.expansions))
        else:
            self.args[name] = given.value

    def _other_flags(self) -> None:
        for name, given in self.line.others.items():
            if clean_text(name) != name:
                self.notes.append("a flag looked like a credential; it was left out")
                continue
            value, dropped = clean(given.value, name)
            if dropped:
                self.notes.append(f"--{name} held a credential; it was left out")
            if dropped and value is None:
                continue
            self.notes.append(
                f"--{name} is not a flag of the {self.shown} versions kvgate has read; it is kept and counts"
            )
            self.keep(name, Given(value, given.expansions))

    def _environment(self) -> None:
        table = environment_table(self.engine)
        surroundings = surroundings_table()
        names: list[str] = []
        unread: list[str] = []
        for name in sorted({*self.run.environment, *self.run.passed}):
            if name in surroundings.code:
                self.software.append(f"{name} is set, and what code it brings in is not known")
            elif name in surroundings.files:
                self.run.undisclosed.append(f"{name} makes a shell read a file that was not given")
            elif name not in table.read and not table.may_be_secret(name):
                names.append(name)
        for name in names:
            if not table.counted(name):
                if not name.startswith(tuple(table.harmless)):
                    unread.append(name)
                continue
            value = self.variable(name, "engine.args")
            if value is None:
                continue
            cleaned = clean_text(value)
            if cleaned is None or cleaned != value:
                self.notes.append(f"{name} held a credential; it was left out")
            if cleaned is not None:
                self.args[name] = without_text(cleaned)
        if (folder := clean_text(self.run.workdir)) is not None and folder:
            self.args["workdir"] = folder  # another folder of the same image may hold other code
        for name, digest in self.run.writers.items():
            self.args[f"beside.{name}"] = digest
        if (program := clean_text(self.run.program)) is not None and program:
            self.args["program"] = program  # as may another environment in it
        if unread:
            self.notes.append(f"environment variables taken to change nothing: {', '.join(map(shown_name, unread))}")
        self.variables()

    def place(self, facts: CacheFacts) -> None:
        """Say where the store is for everybody, not for the container: what is mounted there may be another."""
        location, namespace = (facts.values.get(path) for path in ("cache.location", "cache.namespace"))
        tiers = facts.tiers or ([location] if isinstance(location, str) else [])
        if not tiers or any(path == "cache.location" for path, _ in facts.unknown):
            return
        self.stores += [tier.removeprefix("file://") for tier in tiers]
        places = [located(tier, self.run.mounts if self.run.contained else None) for tier in tiers]
        reason = next((place.reason for place in places if place.reason), None)
        # A folder that is its own isolation knob is another one where another folder is mounted.
        paths = ("cache.location", "cache.namespace") if namespace == location else ("cache.location",)
        for path in paths:
            if reason is None:
                facts.settle(path, one_location([place.value for place in places]))
            else:
                facts.doubt(path, reason)
        facts.notes += [place.note for place in places if place.note]

    def clean_environment(self) -> dict[str, Word]:
        """Return the environment without credentials."""
        cleaned: dict[str, Word] = {}
        for name, word in self.run.environment.items():
            if is_secret_name(name):
                continue
            text = clean_text(word.text)
            cleaned[name] = Word(text, word.expansions) if text is not None else Word("", (DROPPED,))
        return cleaned

    def _other_files(self) -> None:
        """Leave unknown what the engine reads from files that no capture opens."""
        for name, (usual, paths) in self.other_files.items():
            if self.doubted(name, *paths) or (value := self.value_of(name)) is None:
                continue
            if str(value).lower() not in usual:
                for path in paths:
                    self.doubt(path, f"--{name} {value}: it is read from files that kvgate does not read")

    def _altered(self, adapters: Mapping[str, str]) -> None:
        """Make unknown what the image no longer says, where code was mounted, installed or patched round the server."""
        names = (self._model_word.text if self._model_word is not None else self.value_of(self.model_flag),)
        given = (self.value_of(name) for name in (self.tokenizer_flag, "chat-template", "download-dir", "config"))
        known = self.run.files  # they may lie where code lies, but what they hold is seen
        named = (*names, *given, *adapters.values(), self._lmcache_file)
        stores = (store for store in self.stores if store.startswith("/"))
        data = [str(name) for name in (*named, *stores, *known) if name]
        mounted = filter(None, (over_code(mount, data) for mount in self.run.mounts))
        reasons = list(dict.fromkeys([*self.run.altered, *self.software, *mounted]))
        if not reasons:
            return
        for path in (*CODE, "cache.version") if "cache.version" in self.values else CODE:
            self.doubt(path, reasons[0])
        for path in self.set_by_environment() if self.run.altered else ():
            self.doubt(path, reasons[0])
        self.notes += [f"the software that serves is not known: {reason}" for reason in reasons[1:_MAX_REASONS]]

    def _hidden_settings(self) -> None:
        """Make unknown what may be set out of sight, unless the line sets it too."""
        seen = {flag.path for name, flag in self.table.flags.items() if name in self.line.flags and flag.path}
        for name, paths in self.seen_by_reading.items():
            if name in self.line.flags:
                seen.update(paths)
        for path in self.set_by_flags if self.hidden else ():
            if path not in seen:
                self.doubt(path, self.hidden[0])
        if self.run.undisclosed:
            for path in self.set_by_environment():
                self.doubt(path, self.run.undisclosed[0])

    # -- what each engine says its own way -------------------------------------------------------------

    def variables(self) -> None:
        """Read the environment variables that stand for manifest paths."""
        raise NotImplementedError

    def specific(self) -> tuple[dict[str, Any], dict[str, str], CacheFacts]:
        """Read what the table alone cannot; return the overrides of the config, the adapters, and the store."""
        raise NotImplementedError

    def set_by_environment(self) -> list[str]:
        """Return what a variable that the line does not show may have set."""
        raise NotImplementedError


def _without_open_credential(word: Word) -> Word:
    """Return a value as known where only the credential in it is not: that is dropped anyway."""
    cleaned = clean_text(word.text)
    if not word.expansions or cleaned is None:
        return word
    return Word(word.text, tuple(one for one in word.expansions if one not in word.text or one in cleaned))


def because(flag: str, expansions: Iterable[str]) -> str:
    """Say why a flag's value is not known."""
    first = next(iter(expansions))
    said = first in _REASONS or first.startswith(_AGAIN)
    return f"--{flag} {first}" if said else f"--{flag} is set to {first}, which the shell fills in"


def _covered(path: str, unknown: Mapping[str, str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:end]) in unknown for end in range(1, len(parts) + 1))


def shown_name(name: str) -> str:
    """Return a variable's name unless it is a credential."""
    return clean_text(name) or "..."
