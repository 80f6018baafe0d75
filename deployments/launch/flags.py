"""The command line of an engine as argparse would read it, from the tables in ``data/*_flags.yaml``."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from kvgate.deployments.launch.shell import Word
from kvgate.rules.document import parse_document, parse_json
from kvgate.rules.errors import InputError

_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]|[KMGT]i)?")
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
# A string (left alone) or a bare number with a suffix, in the JSON of a flag.
_SUFFIXED = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![\w.])\d+(?:\.\d+)?[kKmMgGtT]\b')


class Flag(BaseModel):
    """One row of the flag table; the head of the file says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["bool", "int", "float", "str", "list", "json", "maybe", "size", "tokens", "each"]
    use: Literal["path", "read", "arg", "harmless", "secret"]
    path: str | None = None
    why: Literal["front", "log", "memory", "batch", "load", "place", "output"] | None = None
    also: list[str] = Field(default_factory=list)
    default: bool | int | str | None = None
    first: str | None = None
    last: str | None = None


class FlagTable(BaseModel):
    """The flag table of one engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal["kvgate/flags/v1"] = Field(alias="schema")
    engine: str
    read_at: list[str]
    source: str
    checked: str
    flags: dict[str, Flag]


@dataclass(frozen=True, slots=True)
class Given:
    """One flag as given on the line.

    Attributes:
        value: typed by the table; the words as they stand for a flag that the table does not have.
        expansions: shell variables and substitutions in it: the value is not known then.
    """

    value: Any
    expansions: tuple[str, ...] = ()


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line.

    Attributes:
        flags: known flags by their table name; the last of several counts, as in argparse.
        others: flags that the table does not have, by the name as given without dashes.
        positional: words that belong to no flag.
        open: words in which the shell fills in what may be any flag: a flag's name, or a word among the values of one
            that takes as many as follow.
        notes: abbreviations that were resolved.
    """

    flags: Mapping[str, Given]
    others: Mapping[str, Given]
    positional: tuple[Word, ...]
    open: tuple[Word, ...]
    notes: tuple[str, ...]


@cache
def flag_table(engine: str) -> FlagTable:
    """Return the table of an engine's flags."""
    name = f"{engine}_flags.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    document, _ = parse_document(data, name)
    return FlagTable.model_validate(document)


@cache
def _spellings(engine: str) -> dict[str, tuple[str, bool]]:
    """Map each spelling, without dashes, to the table name and whether it says yes."""
    spellings: dict[str, tuple[str, bool]] = {}
    flags = flag_table(engine).flags
    for name, flag in flags.items():
        if flag.type == "bool":  # --no-x, and from vLLM 0.33 --disable-x for --enable-x and the other way round
            spellings.setdefault(f"no-{name}", (name, False))
            for prefix, inverse in (("enable-", "disable-"), ("disable-", "enable-")):
                opposite = inverse + name.removeprefix(prefix)
                if engine == "vllm" and name.startswith(prefix) and opposite not in flags:
                    spellings.setdefault(opposite, (name, False))
        spellings[name] = (name, True)
        for other in flag.also:
            spellings[other] = (name, True)
    return spellings


@cache
def _sorted_spellings(engine: str) -> list[str]:
    return sorted(_spellings(engine))


def table_name(spelling: str, engine: str) -> str | None:
    """Return a flag's name in its engine's table by one of its spellings, without dashes in front."""
    found = _spellings(engine).get(spelling.replace("_", "-"))
    return found[0] if found is not None and found[1] else None


def read_flags(words: Sequence[Word], source: str, engine: str) -> CommandLine:
    """Read the words after the command that starts an engine's server.

    Raises:
        InputError: a value of the wrong type, a flag without its value. The value is never quoted in the
            message: it could be a credential.
    """
    return _Reader(words, source, engine).read()


class _Reader:
    def __init__(self, words: Sequence[Word], source: str, engine: str) -> None:
        self._engine = engine
        self._words = words
        self._source = source
        self._flags: dict[str, Given] = {}
        self._dotted: dict[str, dict[str, Any]] = {}
        self._dotted_open: dict[str, tuple[str, ...]] = {}
        self._others: dict[str, Given] = {}
        self._positional: list[Word] = []
        self._open: list[Word] = []
        self._notes: list[str] = []

    def read(self) -> CommandLine:
        at = 0
        while at < len(self._words):
            word = self._words[at]
            if word.text == "--" and not word.expansions:
                self._positional += self._words[at + 1 :]
                break
            if _is_flag(word):
                at = self._flag(at)
                continue
            self._positional.append(word)
            at += 1
        for name, value in self._dotted.items():
            self._flags[name] = Given(value, self._dotted_open.get(name, ()))
        return CommandLine(self._flags, self._others, tuple(self._positional), tuple(self._open), tuple(self._notes))

    def _flag(self, at: int) -> int:
        """Read the flag at ``at`` with its values; return where the next word starts."""
        word = self._words[at]
        given, has_value, value = word.text.partition("=")
        name = given.lstrip("-")
        head, dot, rest = name.partition(".")
        spelling = head.replace("_", "-") if given.startswith("--") else head
        if any(label in given for label in word.expansions):
            self._open.append(word)
        if given.startswith("-O") and not given.startswith("--") and not dot:
            spelling, value = "optimization-level", (value if has_value else given[2:])
            has_value = "=" if value else ""
        found = self._known(spelling)
        here = Word(value, word.expansions) if has_value else None
        if found is None:
            return self._unknown(given, here, at + 1)
        table_name, yes = found
        if dot:
            return self._dotted_value(table_name, rest, here, at + 1)
        return self._value(table_name, yes, here, at + 1)

    def _known(self, spelling: str) -> tuple[str, bool] | None:
        spellings = _spellings(self._engine)
        if spelling in spellings:
            return spellings[spelling]
        if len(spelling) < 3:
            return None
        # argparse takes any unambiguous beginning of a long option.
        begun: set[tuple[str, bool]] = set()
        sorted_ = _sorted_spellings(self._engine)
        for other in sorted_[bisect_left(sorted_, spelling) :]:
            if not other.startswith(spelling):
                break
            begun.add(spellings[other])
        if len(begun) != 1:
            return None
        (found,) = begun
        self._notes.append(f"--{spelling} was read as --{found[0]}")
        return found

    def _unknown(self, given: str, here: Word | None, at: int) -> int:
        values = [here] if here is not None else list(self._arguments(at))
        expansions = tuple(name for word in values for name in word.expansions)
        self._open += [word for word in values if here is None and is_filled_in(word)]
        texts = [word.text for word in values]
        self._others[given.lstrip("-")] = Given(texts[0] if len(texts) == 1 else texts or True, expansions)
        return at if here is not None else at + len(values)

    def _arguments(self, at: int) -> Iterator[Word]:
        while at < len(self._words) and not _is_flag(self._words[at]) and self._words[at].text != "--":
            yield self._words[at]
            at += 1

    def _value(self, name: str, yes: bool, here: Word | None, at: int) -> int:
        flag = flag_table(self._engine).flags[name]
        if flag.type == "bool":
            if here is not None:
                raise InputError(f"--{name} takes no value", where=self._source, hint=f"write --{name} or --no-{name}")
            self._flags[name] = Given(yes)
            return at
        if flag.type == "each":
            word = here or next(self._arguments(at), None)
            if word is None:
                raise self._missing(name)
            before = self._flags.get(name, Given([]))
            self._flags[name] = Given([*before.value, word.text], (*before.expansions, *word.expansions))
            return at if here is not None else at + 1
        if flag.type == "list":
            values = [here] if here is not None else list(self._arguments(at))
            if not values:
                raise self._missing(name)
            self._open += [word for word in values[1:] if is_filled_in(word)]
            expansions = tuple(label for word in values for label in word.expansions)
            self._flags[name] = Given([word.text for word in values], expansions)
            return at if here is not None else at + len(values)
        if here is None:
            following = next(self._arguments(at), None)
            if following is None:
                if flag.type != "maybe":
                    raise self._missing(name)
                self._flags[name] = Given(True)
                return at
            here, at = following, at + 1
        value = here.text if here.expansions else self._typed(name, flag, here.text)
        self._flags[name] = Given(value, here.expansions)
        return at

    def _dotted_value(self, name: str, path: str, here: Word | None, at: int) -> int:
        if here is None:
            if at >= len(self._words):
                raise self._missing(f"{name}.{path}")
            here, at = self._words[at], at + 1
        keys = path.removesuffix("+").split(".")
        value: Any = here.text.split(",") if path.endswith("+") else _loose(here.text, self._source)
        if len(keys) > 32:
            raise InputError(f"--{name} is nested too deeply", where=self._source)
        target = self._dotted.setdefault(name, {})
        for key in keys[:-1]:
            inner = target.setdefault(key, {})
            if not isinstance(inner, dict):
                inner = target[key] = {}
            target = inner
        before = target.get(keys[-1])
        target[keys[-1]] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
        if here.expansions:
            self._dotted_open[name] = (*self._dotted_open.get(name, ()), *here.expansions)
        return at

    def _missing(self, name: str) -> InputError:
        return InputError(f"--{name} is given without a value", where=self._source)

    def _typed(self, name: str, flag: Flag, text: str) -> Any:
        if flag.type in ("str", "maybe"):
            return text
        if flag.type == "json":
            if text in ("", "None"):
                return None
            if not text.lstrip().startswith(("{", "[")):
                return text  # several JSON flags also take a name or a path
            return parse_json(_SUFFIXED.sub(_expanded, text), f"{self._source}: --{name}")
        if flag.type == "tokens" and text.strip().lower() in ("-1", "auto"):
            return "auto"
        if text == "None":
            return None
        try:
            if flag.type == "float":
                return float(text)
            return int(text) if flag.type == "int" else _size(text.strip())
        except (ValueError, OverflowError):
            kind = "a number" if flag.type == "float" else "an integer"
            raise InputError(f"--{name} needs {kind}", where=self._source) from None


def is_filled_in(word: Word) -> bool:
    """Whether the shell fills in the whole word: ``$ARGS``, ``"$@"``; it may be several words then."""
    return word.text in word.expansions


def _is_flag(word: Word) -> bool:
    return (
        len(word.text) > 1
        and word.text[0] == "-"
        and " " not in word.text.partition("=")[0]
        and not _NUMBER.match(word.text)
    )


def _size(text: str) -> int:
    """Read human-readable integers: ``1k`` is 1,000, ``1K`` (and SGLang's ``1Ki``) 1,024, ``25.6k`` 25,600."""
    match = _SIZE.fullmatch(text)
    if match is None or ("." in match[1] and (match[2] or "K")[0].isupper()):
        raise ValueError(text)
    suffix = match[2]
    if suffix is None:
        return int(match[1])
    if suffix[0].isupper():
        return int(match[1]) * cast("int", 1024 ** _POWER[suffix[0].lower()])
    return int(float(match[1]) * 1000 ** _POWER[suffix])


def _expanded(match: re.Match[str]) -> str:
    text = match.group()
    if text.startswith('"'):
        return text
    try:
        return str(_size(text))
    except ValueError:
        return text


def _loose(text: str, source: str) -> Any:
    """Read the value of a dotted flag: JSON where it is JSON, a size, else the text."""
    try:
        return parse_json(text, source)
    except InputError:
        pass
    try:
        return _size(text)
    except ValueError:
        return text


def words_of_config(document: Mapping[str, Any], source: str, engine: str) -> list[Word]:
    """Turn the content of a ``--config`` file into the words that the engine makes of it.

    Source: vllm/utils/argparse_utils.py, ``load_config_file``, 0.33.0: true is a bare flag, false is
    ``--no-x`` where there is one and else nothing, a list is several words, a mapping is JSON. SGLang's
    srt/utils/server_args_config_parser.py, 0.5.23, does the same, but has no ``--no-x``.
    """
    words: list[str] = []
    for key, value in document.items():
        if isinstance(value, bool):
            found = _spellings(engine).get(key.replace("_", "-"))
            if value:
                words.append(f"--{key}")
            elif engine == "vllm" and found is not None and flag_table(engine).flags[found[0]].type == "bool":
                words.append(f"--no-{key}")
        elif isinstance(value, list):
            words += [f"--{key}", *(_scalar(item, key, source) for item in value)] if value else []
        elif isinstance(value, Mapping):
            words += [f"--{key}", json.dumps(value)]
        else:
            words += [f"--{key}", _scalar(value, key, source)]
    return [Word(word) for word in words]


def _scalar(value: Any, key: str, source: str) -> str:
    if isinstance(value, (Mapping, list)):
        raise InputError(f"{key}: a nested value where one word is expected", where=source)
    return str(value)
