"""Finding the engine's own command in a launch text: under containers, shells, ``env`` and other wrappers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from kvgate.deployments.launch.containers import TOOLS, ContainerRun, Mount, read_container_run
from kvgate.deployments.launch.shell import Script, Word, split_script
from kvgate.deployments.launch.surroundings import Shell, wrapped_by
from kvgate.rules.errors import InputError

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
_SHELL_COMMAND = re.compile(r"-[a-zA-Z]*c")
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
        altered: why code or files may be other than the image or package set says.
        contained: the server runs in a container that the text starts.
        image: the container image; ``None``: no container in the text.
        mounts: what lies over the image's own files.
    """

    arguments: tuple[Word, ...]
    positional_model: bool
    environment: dict[str, Word] = field(default_factory=dict)
    undisclosed: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    contained: bool = False
    image: Word | None = None
    mounts: tuple[Mount, ...] = ()


def find_invocation(text: str, source: str) -> Invocation:
    """Find the one vLLM server that the text starts.

    Raises:
        InputError: none, more than one, or a shell inside a shell inside a shell.
    """
    found = _in_script(split_script(text, source), Shell(), source, depth=0)
    if not found:
        raise InputError(
            "no vLLM launch line found",
            where=source,
            hint="expected 'vllm serve MODEL ...', the openai.api_server module, or a docker run of either",
        )
    if len(found) > 1:
        raise InputError(f"starts {len(found)} vLLM servers", where=source, hint=_ONE_LINE)
    return found[0]


def _in_script(script: Script, shell: Shell, source: str, depth: int) -> list[Invocation]:
    found: list[Invocation] = []
    looped: list[tuple[Invocation, int]] = []
    shell.substitute(script, source)
    for command in script.commands:
        before = shell.loops
        words = shell.enter(command)
        here = _in_command(words, shell, source, depth) if words else []
        if here:
            found += here
            looped += [(invocation, len(shell.altered)) for invocation in here if shell.loops]
        else:
            shell.run(words, command.writes, headed=shell.loops > before and command.words[0].text == "for")
    for invocation, known in looped:  # what stands behind the server in a loop runs before it the second time
        if not invocation.contained:
            invocation.altered += shell.altered[known:]
    return found


def _in_command(command: Sequence[Word], shell: Shell, source: str, depth: int) -> list[Invocation]:
    for at, word in enumerate(command):
        name = PurePosixPath(word.text).name
        following = [w.text for w in command[at + 1 : at + 3]]
        if name in TOOLS and (following[:1] == ["run"] or following == ["container", "run"]):
            prefix = command[:at]
            run = read_container_run(command[at + 1 + following.index("run") + 1 :], source)
            # What was done to the host before is not in the image; but it may have set what is handed through.
            known = not (shell.altered or shell.undisclosed or wrapped_by(prefix))
            return _in_container(run, shell.environment(prefix) if known else {}, source, depth)
        if name in _SHELLS and (script := _script_of(command, at + 1)) is not None:
            prefix = command[:at]
            inner = shell.inside(shell.environment(prefix), filter(None, [wrapped_by(prefix)]))
            return _in_nested(script, inner, source, depth)
        if name == "vllm" and following[:1] == ["serve"]:
            return [_invocation(command[at + 2 :], True, shell, command[:at])]
        if word.text == "-m" and following[:1] and following[0] in _SERVER_MODULES:
            return [_invocation(command[at + 2 :], False, shell, command[:at], module=True)]
        if name == "api_server.py":
            found = _invocation(command[at + 1 :], False, shell, command[:at])
            if not {"site-packages", "dist-packages"} & set(PurePosixPath(word.text).parts):
                found.altered.append("the server is run from a file that is not among the installed packages")
            return [found]
    return []


def _invocation(
    arguments: Sequence[Word], positional: bool, shell: Shell, prefix: Sequence[Word], *, module: bool = False
) -> Invocation:
    found = Invocation(tuple(arguments), positional, shell.environment(prefix))
    found.altered += shell.altered
    found.undisclosed += shell.undisclosed
    if (reason := wrapped_by(prefix)) is not None:
        found.altered.append(reason)
    if module and shell.moved:
        found.altered.append("`python -m` takes code from the folder that was entered before")
    return found


def _script_of(words: Sequence[Word], at: int) -> Word | None:
    """Return the script of ``bash -c SCRIPT``, with other options before it."""
    while at + 1 < len(words) and words[at].text.startswith(("-", "+")):
        if _SHELL_COMMAND.fullmatch(words[at].text):
            return words[at + 1]
        at += 1
    return None


def _in_nested(script: Word, shell: Shell, source: str, depth: int) -> list[Invocation]:
    if depth >= 1:
        raise InputError("a shell starts a shell that starts a shell", where=source, hint=_ONE_LINE)
    inner = split_script(script.text, source)
    # What the outer shell would have filled in is not known inside either, however it is quoted there.
    commands = tuple(
        replace(command, words=tuple(_tainted(word, script.expansions) for word in command.words))
        for command in inner.commands
    )
    return _in_script(replace(inner, commands=commands), shell, source, depth + 1)


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
    shell = Shell(environment, moved=run.workdir)
    found = _in_command(words, shell, source, depth)
    if not found and run.entrypoint is None and "vllm" in run.image.text.lower():
        # The image's own entry point starts the server: `vllm serve` today, the module before that.
        found = [_invocation(run.arguments, True, shell, ())]
    for invocation in found:
        invocation.contained = True
        invocation.image = run.image
        invocation.mounts = run.mounts
        invocation.passed += passed
        invocation.altered += [f"{option} mounts what the line does not show" for option in run.borrowed]
        if run.environment_files:
            invocation.undisclosed.append("the file of --env-file was not given")
    return found
