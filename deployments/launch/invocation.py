"""Finding the engine's own command in a launch text: under containers, shells, ``env`` and other wrappers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from kvgate.deployments.launch.containers import TOOLS, ContainerRun, read_container_run
from kvgate.deployments.launch.shell import Word, split_script
from kvgate.rules.errors import InputError

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
_SHELL_COMMAND = re.compile(r"-[a-zA-Z]*c")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SERVER_MODULES = frozenset({"vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"})
_ONE_LINE = "give the line that starts one server"


@dataclass
class Invocation:
    """The engine's command.

    Attributes:
        arguments: the words after ``vllm serve`` or the server module.
        positional_model: the model may stand without a flag (``vllm serve MODEL``).
        environment: variables that the text sets for the engine.
        undisclosed: why further variables may be set that the text does not show.
        passed: variables that are handed through from outside: set, but not known to what.
        image: the container image; ``None``: no container in the text.
    """

    arguments: tuple[Word, ...]
    positional_model: bool
    environment: dict[str, Word] = field(default_factory=dict)
    undisclosed: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    image: Word | None = None


def find_invocation(text: str, source: str) -> Invocation:
    """Find the one vLLM server that the text starts.

    Raises:
        InputError: none, more than one, or a shell inside a shell inside a shell.
    """
    found = _in_script(split_script(text, source), {}, source, depth=0)
    if not found:
        raise InputError(
            "no vLLM launch line found",
            where=source,
            hint="expected 'vllm serve MODEL ...', the openai.api_server module, or a docker run of either",
        )
    if len(found) > 1:
        raise InputError(f"starts {len(found)} vLLM servers", where=source, hint=_ONE_LINE)
    return found[0]


def _in_script(commands: Sequence[Sequence[Word]], outer: dict[str, Word], source: str, depth: int) -> list[Invocation]:
    exported = dict(outer)
    found: list[Invocation] = []
    for command in commands:
        if command[0].text in ("export", "declare", "typeset"):
            exported.update(_assignments(command[1:]))
            continue
        found += _in_command(command, exported, source, depth)
    return found


def _in_command(command: Sequence[Word], exported: dict[str, Word], source: str, depth: int) -> list[Invocation]:
    for at, word in enumerate(command):
        name = PurePosixPath(word.text).name
        following = [w.text for w in command[at + 1 : at + 3]]
        if name in TOOLS and (following[:1] == ["run"] or following == ["container", "run"]):
            run = read_container_run(command[at + 1 + following.index("run") + 1 :], source)
            return _in_container(run, _environment(exported, command, at), source, depth)
        if name in _SHELLS and (script := _script_of(command, at + 1)) is not None:
            return _in_nested(script, _environment(exported, command, at), source, depth)
        if name == "vllm" and following[:1] == ["serve"]:
            return [Invocation(tuple(command[at + 2 :]), True, _environment(exported, command, at))]
        if (word.text == "-m" and following[:1] and following[0] in _SERVER_MODULES) or name == "api_server.py":
            arguments = tuple(command[at + (2 if word.text == "-m" else 1) :])
            return [Invocation(arguments, False, _environment(exported, command, at))]
    return []


def _environment(exported: dict[str, Word], command: Sequence[Word], end: int) -> dict[str, Word]:
    """Return what is exported and what the words before ``end`` assign (``K=V vllm``, ``env K=V vllm``)."""
    return {**exported, **_assignments(command[:end])}


def _script_of(words: Sequence[Word], at: int) -> Word | None:
    """Return the script of ``bash -c SCRIPT``, with other options before it."""
    while at + 1 < len(words) and words[at].text.startswith(("-", "+")):
        if _SHELL_COMMAND.fullmatch(words[at].text):
            return words[at + 1]
        at += 1
    return None


def _in_nested(script: Word, environment: dict[str, Word], source: str, depth: int) -> list[Invocation]:
    if depth >= 1:
        raise InputError("a shell starts a shell that starts a shell", where=source, hint=_ONE_LINE)
    commands = split_script(script.text, source)
    # What the outer shell would have filled in is not known inside either, however it is quoted there.
    commands = [[_tainted(word, script.expansions) for word in command] for command in commands]
    return _in_script(commands, environment, source, depth + 1)


def _tainted(word: Word, labels: tuple[str, ...]) -> Word:
    more = tuple(label for label in labels if label in word.text and label not in word.expansions)
    return Word(word.text, word.expansions + more) if more else word


def _in_container(run: ContainerRun, outer: dict[str, Word], source: str, depth: int) -> list[Invocation]:
    environment: dict[str, Word] = {}
    passed: list[str] = []
    for name, value in run.environment:
        if value is not None:
            environment[name] = value
        elif name in outer:
            environment[name] = outer[name]
        else:
            passed.append(name)
    words = ((run.entrypoint,) if run.entrypoint is not None and run.entrypoint.text else ()) + run.arguments
    found = _in_command(words, environment, source, depth)
    if not found and run.entrypoint is None and "vllm" in run.image.text.lower():
        # The image's own entry point starts the server: `vllm serve` today, the module before that.
        found = [Invocation(run.arguments, True, environment)]
    for invocation in found:
        invocation.image = run.image
        invocation.passed += passed
        if run.environment_files:
            invocation.undisclosed.append("the file of --env-file was not given")
    return found


def _assignments(words: Sequence[Word]) -> dict[str, Word]:
    found: dict[str, Word] = {}
    for word in words:
        if _ASSIGNMENT.match(word.text):
            name, _, value = word.text.partition("=")
            found[name] = Word(value, word.expansions)
    return found
