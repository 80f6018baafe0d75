"""A worker of Dynamo as facts for a manifest: an engine, started by Dynamo and with flags of Dynamo's own.

Dynamo takes its flags out of the line, and the rest is the engine's. Requests are rendered and encoded in front of the
worker, by Dynamo's frontend, unless the engine is told to do it: the frontend belongs to what makes token ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvgate.deployments.launch.containers import ContainerRun, read_image
from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.flags import flag_table
from kvgate.deployments.launch.invocation import Invocation
from kvgate.deployments.launch.secrets import clean, clean_text, without_text
from kvgate.deployments.launch.shell import Word, split_script
from kvgate.deployments.launch.trtllm_types import ENGINE as TRTLLM
from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError

_TRUE = frozenset({"1", "true", "yes", "on"})
_IN_VARIABLES = {"vllm": "VLLM", "sglang": "SGL", TRTLLM: "TRTLLM"}
_WHOLE = frozenset({"agg", "pd", "prefill_and_decode", "null"})
_RENDERED = "Dynamo's frontend renders and encodes what requests ask"
# dynamo/vllm/args.py, _connector_to_kv_transfer_json, 1.6.1.
_KVBM = {"kv_connector": "DynamoConnector", "kv_connector_module_path": "kvbm.vllm_integration.connector"}
_CONNECTORS: dict[str, dict[str, str]] = {
    "lmcache": {"kv_connector": "LMCacheConnectorV1"},
    "flexkv": {"kv_connector": "FlexKVConnectorV1"},
    "nixl": {"kv_connector": "NixlConnector"},
    "kvbm": _KVBM,
}
_NO_CONNECTOR = frozenset({"none", "null"})


class WorkerFlag(BaseModel):
    """One row of the table of Dynamo's flags; the head of the file says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    takes: Literal["none", "one", "many"]
    use: Literal[
        "harmless", "option", "renders", "template", "role", "prefill", "decode", "connector", "mutable", "arg", "file"
    ]
    env: list[str] = Field(default_factory=list)
    engines: list[Literal["vllm", "sglang", "tensorrt-llm"]] | None = None

    def belongs_to(self, engine: str) -> bool:
        """Whether this engine's worker has the flag."""
        return self.engines is None or engine in self.engines


class WorkerTable(BaseModel):
    """The table of Dynamo's flags."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["kvgate/dynamo/v1"] = Field(alias="schema")
    read_at: list[str]
    source: str
    checked: str
    flags: dict[str, WorkerFlag]
    router: list[str]
    frontend_harmless: list[str]
    frontend_variables: list[str]

    def flag(self, name: str, engine: str) -> WorkerFlag | None:
        """Return the row of a flag that this engine's worker has."""
        found = self.flags.get(name)
        return found if found is not None and found.belongs_to(engine) else None

    def routes(self, name: str) -> bool:
        """Whether a flag says how workers are chosen."""
        return name.startswith("router-") or name in self.router


@cache
def worker_table() -> WorkerTable:
    """Return the table of Dynamo's flags."""
    name = "dynamo_workers.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    document, _ = parse_document(data, name)
    return WorkerTable.model_validate(document)


@dataclass
class _Own:
    """What is Dynamo's of a line: its flags by name, and the words that are left for the engine."""

    flags: dict[str, list[Word]] = field(default_factory=dict)
    rest: list[Word] = field(default_factory=list)

    def by_use(self, *uses: str) -> Iterator[tuple[str, list[Word]]]:
        table = worker_table()
        yield from ((name, words) for name, words in self.flags.items() if table.flags[name].use in uses)

    def on(self, use: str) -> bool:
        return any(words[-1].text == "true" for _, words in self.by_use(use))


def dynamo_facts(
    invocation: Invocation,
    source: str,
    files: Mapping[str, bytes],
    engine: Callable[[Invocation, str, Mapping[str, bytes]], LaunchFacts],
) -> LaunchFacts:
    """Return what the command of one of Dynamo's workers says.

    Args:
        invocation: the command, with the frontend in front of it where that is known.
        source: what to call it in errors and reasons.
        files: content of the files that the command names, by the name in it.
        engine: what reads the engine's own part.

    Raises:
        InputError: what ``engine`` raises, a flag without its value.
    """
    words, hidden = _variables(invocation)
    taken = {name for name, _, _ in _by_variable(invocation.engine)}
    own = _own_flags([*words, *invocation.arguments], invocation.engine, source)
    if any(True for _ in own.by_use("file")):
        hidden.append("--disagg-config was not read, and it may set this")
    run = replace(
        invocation,
        arguments=(*own.rest, *_for_the_engine(own, invocation.engine)),
        positional_model=False,
        environment={name: word for name, word in invocation.environment.items() if name not in taken},
        passed=[name for name in invocation.passed if name not in taken],
        hidden=(*invocation.hidden, *hidden),
    )
    return _Worker(engine(run, source, files), own, invocation).facts()


def _variables(run: Invocation) -> tuple[list[Word], list[str]]:
    """Return the flags that variables stand for, and why there may be more."""
    words: list[Word] = []
    hidden: list[str] = []
    for name, spelled, takes in _by_variable(run.engine):
        word = run.environment.get(name)
        if name in run.passed or (word is not None and word.expansions and takes != "one"):
            hidden.append(f"the environment variable {name} is set from outside the line")
        elif word is None or (not word.text and not word.expansions):
            continue
        elif takes == "none":
            words.append(Word(f"--{spelled}" if word.text.strip().lower() in _TRUE else f"--no-{spelled}"))
        else:
            values = [Word(text) for text in word.text.split()] if takes == "many" else [word]
            words += [Word(f"--{spelled}"), *values]
    return words, hidden


def _by_variable(engine: str) -> Iterator[tuple[str, str, str]]:
    """Yield each variable that stands for a flag, with the flag and what it takes."""
    for name, flag in worker_table().flags.items():
        if flag.belongs_to(engine):
            yield from ((variable.format(_IN_VARIABLES[engine]), name, flag.takes) for variable in flag.env)
    if engine == TRTLLM:
        for name, row in flag_table(engine).flags.items():
            for spelled in (name, *row.also):
                if "." not in spelled:
                    variable = f"DYN_TRTLLM_{spelled.replace('-', '_').upper()}"
                    yield variable, spelled, "none" if row.type == "bool" else "one"


def _own_flags(words: Sequence[Word], engine: str, source: str) -> _Own:
    table, own = worker_table(), _Own()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        given, has_value, value = word.text.partition("=")
        name = given.removeprefix("--").replace("_", "-")
        positive = name.removeprefix("no-")
        flag = table.flag(name, engine) or table.flag(positive, engine)
        routes = table.routes(name) or table.routes(positive)
        if not given.startswith("--") or (flag is None and not routes):
            own.rest.append(word)
            continue
        values = [Word(value, word.expansions)] if has_value else []
        takes = flag.takes if flag is not None else "one"
        while not has_value and takes != "none" and at < len(words) and not words[at].text.startswith("--"):
            values.append(words[at])
            at += 1
            if takes == "one":
                break
        if flag is None:
            continue
        if takes == "one" and not values:
            raise InputError(f"--{name} is given without a value", where=source)
        if takes == "none":
            values = [Word("false" if name != positive else "true", word.expansions)]
        own.flags[name if takes != "none" else positive] = values
    return own


def _for_the_engine(own: _Own, engine: str) -> list[Word]:
    """Return what Dynamo makes of its own flags for the engine, as flags of the engine's."""
    words: list[Word] = []
    for _, template in own.by_use("template"):
        words += [Word("--chat-template"), template[-1]]
    for name, given in own.by_use("connector"):
        expansions = tuple(label for word in given for label in word.expansions)
        names = [one for word in given for one in word.text.lower().split() if one not in _NO_CONNECTOR]
        flag = "--kv-connector-config" if engine == TRTLLM else "--kv-transfer-config"
        if expansions:
            words += [Word(flag), Word(name, expansions)]
        elif names and not any(word.text.partition("=")[0].replace("_", "-") == flag for word in own.rest):
            words += [Word(flag), Word(json.dumps(_connector(names, engine)))]
    return words


def _connector(names: Sequence[str], engine: str) -> dict[str, Any]:
    if engine == TRTLLM:
        return {"connector": names[0]}
    made = [{**_CONNECTORS.get(name, {"kv_connector": name}), "kv_role": "kv_both"} for name in names]
    if len(made) == 1:
        return made[0]
    inside = {"kv_connector_extra_config": {"connectors": made}}
    return {**_KVBM, "kv_connector": "PdConnector", "kv_role": "kv_both", **inside}


class _Worker:
    """An engine's facts under completion."""

    def __init__(self, facts: LaunchFacts, own: _Own, run: Invocation) -> None:
        self._facts = facts
        self._own = own
        self._run = run
        self._values = dict(facts.values)
        self._unknown = dict(facts.unknown)
        self._notes = list(facts.notes)

    def facts(self) -> LaunchFacts:
        self._kept()
        self._role()
        if not self._own.on("renders"):
            self._rendered_in_front()
        for name in (name for name, words in self._own.by_use("mutable") if words[-1].text != "false"):
            self._doubt("weights.mutable", f"--{name} lets weights be changed while serving")
        harmless = [name for name, _ in self._own.by_use("harmless")]
        return replace(
            self._facts,
            values=self._values,
            unknown=tuple(self._unknown.items()),
            pending=tuple(path for path in self._facts.pending if path not in self._unknown),
            ignored=tuple(sorted({*self._facts.ignored, *harmless})),
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _doubt(self, path: str, reason: str) -> None:
        self._values.pop(path, None)
        self._unknown.setdefault(path, reason)

    def _put(self, section: str, name: str, value: Any) -> None:
        """Add a setting to a collection, which is unknown as a whole where the setting is a credential."""
        if section in self._unknown:
            return
        cleaned, dropped = clean(value, name)
        if dropped:
            self._notes.append(f"--{name} held a credential; it was left out")
        if cleaned is not None:
            self._values[section] = {**self._values.get(section, {}), name: cleaned}

    def _kept(self) -> None:
        for use, section in (("arg", "engine.args"), ("option", "tokenizer.options"), ("mutable", "engine.args")):
            for name, words in self._own.by_use(use):
                if labels := [label for word in words for label in word.expansions]:
                    self._doubt(section, f"--{name} is set to {labels[0]}, which the shell fills in")
                    continue
                texts = [word.text for word in words]
                value: Any = texts if len(texts) > 1 else {"true": True, "false": False}.get(texts[0], texts[0])
                self._put(section, name, without_text(value) if name == "mm-prompt-template" else value)

    def _role(self) -> None:
        given = [words[-1] for _, words in self._own.by_use("role")]
        given += [Word(use) for use in ("prefill", "decode") if self._own.on(use)]
        for word in given:
            if word.expansions:
                self._doubt("roles", f"--disaggregation-mode is set to {word.expansions[0]}, which the shell fills in")
            elif word.text not in _WHOLE:
                self._put("engine.args", "disaggregation-mode", word.text)
                self._doubt("roles", "the line starts one half of a prefill/decode pair; the other is not in it")

    def _rendered_in_front(self) -> None:
        """Say what renders: the frontend's build and settings, as far as they are known."""
        if self._facts.chat_template is not None and not any(True for _ in self._own.by_use("template")):
            self._doubt("chat_template", f"{_RENDERED}, and the template is given to the engine alone")
        front = self._run.frontend
        if front is None:
            self._doubt("tokenizer.options", f"{_RENDERED}, and how that is started was not given")
            return
        image = read_image(front.image.text)
        if image.digest is None or front.image.expansions:
            shown = clean_text(image.tag or image.name) or "..."
            self._doubt("tokenizer.options", f"{_RENDERED}, and {shown!r} does not pin its image; a digest would")
            return
        if (reason := next(iter((*front.undisclosed, *front.altered, *front.hidden)), None)) is not None:
            self._doubt("tokenizer.options", f"{_RENDERED}, and {reason}")
            return
        settings = _frontend_settings(front)
        if isinstance(settings, str):
            self._doubt("tokenizer.options", f"{_RENDERED}, and {settings}")
        else:
            self._put("tokenizer.options", "dynamo_frontend", {"image": image.digest, **settings})


def _frontend_settings(front: ContainerRun) -> dict[str, Any] | str:
    """Return what the frontend is told that may alter rendering, or why that is not known."""
    table = worker_table()
    settings: dict[str, Any] = {}
    for name, variable in front.environment:
        if name in table.frontend_variables:
            if variable is None or variable.expansions:
                return f"its variable {name} is set from outside the file"
            settings[name] = variable.text
    words = _frontend_words(front)
    if words is None:
        return "how it is started is not read"
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        given, has_value, value = word.text.partition("=")
        name = given.lstrip("-").replace("_", "-")
        values = [value] if has_value else []
        labels = list(word.expansions)
        while not has_value and at < len(words) and not words[at].text.startswith("-"):
            values.append(words[at].text)
            labels += words[at].expansions
            at += 1
        known = {name, name.removeprefix("no-")}
        if any(one in table.frontend_harmless or table.routes(one) for one in known) or name == "i":
            continue
        if labels:
            return f"its --{name} is set to {labels[0]}"
        settings[name] = values[0] if len(values) == 1 else values or True
    return settings


def _frontend_words(front: ContainerRun) -> Sequence[Word] | None:
    """Return the words after ``dynamo.frontend``, in the command or in the script that it runs."""
    words = (*([front.entrypoint] if front.entrypoint is not None else []), *front.arguments)
    if not words:
        return ()  # the operator starts it without any
    commands: Iterable[Sequence[Word]] = [words]
    if "-c" in (texts := [word.text for word in words]) or "-lc" in texts:
        script = next((word for word in words if "dynamo.frontend" in word.text), None)
        if script is None:
            return None
        try:
            inner = split_script(script.text, "the frontend").commands
        except InputError:
            return None
        commands = [[_marked(word, script.expansions) for word in command.words] for command in inner]
    for command in commands:
        for at, word in enumerate(command):
            if word.text == "dynamo.frontend" and at and command[at - 1].text == "-m":
                return command[at + 1 :]
    return None


def _marked(word: Word, labels: Sequence[str]) -> Word:
    """Return a word of a script with what was already open in the script as a whole."""
    return Word(word.text, (*word.expansions, *(label for label in labels if label in word.text)))
