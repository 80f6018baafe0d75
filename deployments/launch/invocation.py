"""Finding the engine's own command in a launch text: under containers, shells, ``env`` and other wrappers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from kvgate.deployments.launch.containers import TOOLS, ContainerRun, Mount, read_container_run, read_image
from kvgate.deployments.launch.shell import MAX_FILLED, Script, Word, split_script, too_much_to_fill_in
from kvgate.deployments.launch.surroundings import (
    Shell,
    into_a_container,
    is_python,
    outside_the_system,
    places,
    started_by,
    without_keywords,
    wrapped_by,
)
from kvgate.deployments.launch.variables import with_known_variables
from kvgate.rules.errors import InputError

_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash"})
_SHELL_COMMAND = re.compile(r"-[a-zA-Z]*c")
_SERVER_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "lmcache.v1.multiprocess.server": "lmcache",
    "lmcache.v1.multiprocess.http_server": "lmcache",
}
# Workers of ai-dynamo/dynamo (dynamo/{vllm,sglang,trtllm}/__main__.py, 1.6.1).
_WORKERS = {"dynamo.vllm": "vllm", "dynamo.sglang": "sglang", "dynamo.trtllm": "tensorrt-llm"}
_SERVER_COMMANDS = {"vllm": "serve", "sglang": "serve", "lmcache": "server"}
_TRTLLM = "trtllm-serve"
# What of it serves no model; anything else is `serve`, whose name may be left out (tensorrt_llm/commands/serve.py).
_TRTLLM_OTHERS = frozenset({"disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve"})
_ONE_LINE = "give the line that starts one server"
# Images of the programs in front of a server, which bear its name.
_NO_SERVER = ("router", "proxy", "gateway", "exporter", "scheduler", "frontend", "operator", "runtime")
_ARGUMENT = re.compile(r"\$([1-9])")
_ONE_WORD = re.compile(r"[^\s*?\[\]]+")  # what no shell splits or completes
_HEADS = ("for", "select")
_REARRANGING = frozenset({"shift", "getopts"})


@dataclass(frozen=True)
class _Text:
    """What is read: how to call it, and the scripts that it may run from files, by path."""

    source: str
    scripts: Mapping[str, bytes] = field(default_factory=dict)


@dataclass
class Invocation:
    """The engine's command.

    Attributes:
        engine: whose server it is (``"vllm"``, ``"sglang"``, ``"tensorrt-llm"``); ``"lmcache"`` is a store's server.
        arguments: the words after ``vllm serve`` or the server module.
        positional_model: the model may stand without a flag (``vllm serve MODEL``).
        environment: variables that the text sets for the engine.
        undisclosed: why further variables may be set that the text does not show.
        passed: variables that are handed through from outside: set, but not known to what.
        altered: why code or files may be other than the image or package set says.
        contained: the server runs in a container that the text starts.
        image: the container image; ``None``: no container in the text.
        mounts: what lies over the image's own files.
        files: files in the container whose content is known, by path.
        hidden: why flags may be given that the text does not show.
        notes: what a reader should know of how the server came about.
        workdir: the folder of the image from which ``python -m`` takes code, where it is another than the image's own.
        program: the engine's command, or its Python, where the line names one outside the system's folders.
        writers: what else runs in the pod and may write to what the server reads: a digest of it, by its name.
        nodes: what its container asks of the node it runs on: values of which that has one, by label.
        written: the files that commands before it write.
        worker: the engine is a worker of Dynamo, which has flags of its own.
        frontend: what renders requests in front of such a worker; ``None``: it is not known.
    """

    engine: str
    arguments: tuple[Word, ...]
    positional_model: bool
    environment: dict[str, Word] = field(default_factory=dict)
    undisclosed: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    contained: bool = False
    image: Word | None = None
    mounts: tuple[Mount, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    workdir: str = ""
    program: str = ""
    writers: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    worker: bool = False
    frontend: ContainerRun | None = None

    def may_be_written(self, name: str) -> bool:
        """Whether a command before the server may have written a file, by its last path component."""
        last = PurePosixPath(name).name
        return any(PurePosixPath(one).name == last for one in self.written)


def find_invocation(text: str, source: str) -> Invocation:
    """Find the one server that the text starts.

    Raises:
        InputError: none, more than one, or a shell inside a shell inside a shell.
    """
    found = servers_in_script(text, source)
    if len(found) > 1:
        raise InputError(f"starts {len(found)} servers", where=source, hint=_ONE_LINE)
    return found[0]


def servers_in_script(text: str, source: str) -> list[Invocation]:
    """Find the servers that the text starts.

    Raises:
        InputError: none, or a shell inside a shell inside a shell.
    """
    shell = Shell(undisclosed=list(filter(None, [started_by(text)])))
    found = _in_script(split_script(text, source), shell, _Text(source), depth=0)
    if not found:
        raise InputError(
            "no launch line found that kvgate reads",
            where=source,
            hint="expected 'vllm serve MODEL ...', 'trtllm-serve MODEL ...', vLLM's or SGLang's server module, a "
            "worker of Dynamo, or a docker run of one",
        )
    return found


def servers_in_container(run: ContainerRun, source: str) -> list[Invocation]:
    """Find the servers that a container starts; scripts among its files are read where its command runs them.

    Raises:
        InputError: a script that cannot be split into words, too many shells inside each other, or a word with too much
            to be filled in.
    """
    if any(len(word.expansions) > MAX_FILLED for word in run.arguments):
        raise too_much_to_fill_in(source)
    return _in_container(run, {}, _Text(source, run.files), depth=0)


def _in_script(script: Script, shell: Shell, text: _Text, depth: int) -> list[Invocation]:
    found: list[Invocation] = []
    looped: list[tuple[Invocation, int]] = []
    shell.substitute(script, text.source)
    serving = [bool(_in_command(without_keywords(one.words), Shell(), text, depth)) for one in script.commands]
    for command, place in zip(script.commands, places(script.commands, serving), strict=True):
        before = shell.loops
        words = with_known_variables(shell.enter(command, place), shell)
        here = _in_command(words, shell, text, depth) if words else []
        if here:
            found += here
            looped += [(invocation, len(shell.altered)) for invocation in here if shell.loops]
        else:
            if (reason := into_a_container(words)) is not None:
                for started in found:
                    started.altered += [reason] if started.contained else []
            shell.run(words, command.writes, headed=shell.loops > before and command.words[0].text in _HEADS)
    for invocation, known in looped:  # what stands behind the server in a loop runs before it the second time
        if not invocation.contained:
            invocation.altered += shell.altered[known:]
    return found


def _in_command(command: Sequence[Word], shell: Shell, text: _Text, depth: int) -> list[Invocation]:
    for at, word in enumerate(command):
        name = PurePosixPath(word.text).name
        following = [w.text for w in command[at + 1 : at + 3]]
        if name in TOOLS and (following[:1] == ["run"] or following == ["container", "run"]):
            prefix = command[:at]
            run = read_container_run(command[at + 1 + following.index("run") + 1 :], text.source)
            # What was done to the host before is not in the image; but it may have set what is handed through.
            known = not (shell.altered or shell.undisclosed or wrapped_by(prefix))
            inside = _in_container(run, shell.environment(prefix) if known else {}, text, depth)
            for one in inside:
                one.written += shell.written
            return inside
        if name in _SHELLS and (own := _script_at(command, at + 1)) is not None:
            return _in_nested(command[own], command[own + 2 :], command[:at], shell, text, depth)
        if word.text == "eval" and (joined := _evaluated(command[at + 1 :])) is not None:
            return _in_nested(joined, None, command[:at], shell, text, depth - 1)
        if word.text in text.scripts and not word.expansions and _runs(command[:at]):
            script = Word(_decoded(text.scripts[word.text], word.text, text.source))
            before = _before_shell(command[:at])
            if len(before) == at and (reason := started_by(script.text)) is not None:  # no shell is named
                shell.undisclosed.append(reason)
            return _in_nested(script, command[at + 1 :], before, shell, text, depth)
        if name in _SERVER_COMMANDS and following[:1] == [_SERVER_COMMANDS[name]]:
            started = _invocation(name, command[at + 2 :], name == "vllm", shell, command[:at])
            started.program = outside_the_system(word.text)
            return [started]
        module = word.text == "-m" and following[:1] == ["tensorrt_llm.commands.serve"]
        if name == _TRTLLM or module:
            return _trtllm(command, at + (2 if module else 1), shell, module=module)
        if word.text == "-m" and following[:1] and (engine := _SERVER_MODULES.get(following[0])) is not None:
            return [_invocation(engine, command[at + 2 :], False, shell, command[:at], module=True)]
        if word.text == "-m" and following[:1] and (engine := _WORKERS.get(following[0])) is not None:
            started = _invocation(engine, command[at + 2 :], False, shell, command[:at], module=True)
            started.worker = True
            return [started]
        if name == "api_server.py":
            found = _invocation("vllm", command[at + 1 :], False, shell, command[:at])
            if not {"site-packages", "dist-packages"} & set(PurePosixPath(word.text).parts):
                found.altered.append("the server is run from a file that is not among the installed packages")
            return [found]
    return []


def _evaluated(words: Sequence[Word]) -> Word | None:
    """Return what ``eval`` reads as a script once more; ``None`` where that evaluates something itself."""
    text = " ".join(word.text for word in words)
    return None if "eval" in text else Word(text, tuple(label for word in words for label in word.expansions))


def _trtllm(command: Sequence[Word], at: int, shell: Shell, *, module: bool) -> list[Invocation]:
    """Return the server that ``trtllm-serve`` starts, whose own words begin at ``at``."""
    own = command[at].text if at < len(command) else ""
    if own in _TRTLLM_OTHERS:
        return []
    words, prefix = command[at + (1 if own == "serve" else 0) :], command[: at - (2 if module else 1)]
    return [_invocation("tensorrt-llm", words, True, shell, prefix, module=module)]


def _invocation(
    engine: str,
    arguments: Sequence[Word],
    positional: bool,
    shell: Shell,
    prefix: Sequence[Word],
    *,
    module: bool = False,
) -> Invocation:
    found = Invocation(engine, tuple(arguments), positional, shell.environment(prefix))
    found.altered += shell.altered
    found.undisclosed += shell.undisclosed
    found.written += shell.written
    if (reason := wrapped_by(prefix)) is not None:
        found.altered.append(reason)
    found.workdir = shell.workdir if module else ""
    found.program = next((outside_the_system(word.text) for word in prefix if is_python(word)), "")
    if module and shell.moved:
        found.altered.append("`python -m` takes code from the folder that was entered before")
    return found


def _script_at(words: Sequence[Word], at: int) -> int | None:
    """Return where the script of ``bash -c SCRIPT`` stands, with other options before it."""
    while at + 1 < len(words) and words[at].text.startswith(("-", "+")):
        if _SHELL_COMMAND.fullmatch(words[at].text):
            return at + 1
        at += 1
    return None


def _before_shell(prefix: Sequence[Word]) -> Sequence[Word]:
    """Return what stands before the shell that runs a script from a file, if one is named (``bash -ex FILE``)."""
    at = len(prefix)
    while at and prefix[at - 1].text.startswith("-"):
        at -= 1
    return prefix[: at - 1] if at and PurePosixPath(prefix[at - 1].text).name in _SHELLS else prefix


def _runs(prefix: Sequence[Word]) -> bool:
    """Whether the file named after these words is run, and not only read."""
    return wrapped_by(_before_shell(prefix)) is None


def _decoded(data: bytes, name: str, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", where=f"{source}: {name}") from None


def _in_nested(
    script: Word, arguments: Sequence[Word] | None, prefix: Sequence[Word], shell: Shell, text: _Text, depth: int
) -> list[Invocation]:
    """Find the servers in a script inside another; ``None`` for its arguments: they are those around it."""
    if depth >= 1:
        raise InputError("a shell starts a shell that starts a shell", where=text.source, hint=_ONE_LINE)
    started = shell.inside(shell.environment(prefix), filter(None, [wrapped_by(prefix)]))
    inner = split_script(script.text, text.source)
    # What the outer shell would have filled in is not known inside either, however it is quoted there.
    commands = [
        replace(command, words=tuple(_tainted(word, script.expansions) for word in command.words))
        for command in inner.commands
    ]
    moved = any(command.words[0].text in _REARRANGING or _sets_arguments(command.words) for command in commands)
    if arguments is not None and not moved:
        commands = [
            replace(command, words=tuple(_with_arguments(command.words, arguments)) or (Word(":"),))
            for command in commands
        ]
    return _in_script(replace(inner, commands=tuple(commands)), started, text, depth + 1)


def _sets_arguments(words: Sequence[Word]) -> bool:
    return words[0].text == "set" and any(
        not word.text.startswith(("-", "+")) or word.text == "--" for word in words[1:]
    )


def _with_arguments(words: Sequence[Word], arguments: Sequence[Word]) -> Iterator[Word]:
    """Put the script's own arguments where it names them: ``"$@"``, and ``$1`` where it is one word."""
    for word in words:
        if word == Word("$@", ("$@",)):
            yield from arguments
        elif (
            len(word.expansions) == 1
            and (number := _ARGUMENT.fullmatch(word.expansions[0])) is not None
            and int(number[1]) <= len(arguments)
            and _ONE_WORD.fullmatch((value := arguments[int(number[1]) - 1]).text)
        ):
            yield Word(word.text.replace(word.expansions[0], value.text), value.expansions)
        else:
            yield word


def _tainted(word: Word, labels: tuple[str, ...]) -> Word:
    more = tuple(label for label in labels if label in word.text and label not in word.expansions)
    return Word(word.text, word.expansions + more) if more else word


def _is_server_image(reference: str) -> bool:
    name = read_image(reference).name.rpartition("/")[2].lower()
    return "vllm" in reference.lower() and not any(word in name for word in _NO_SERVER)


def _in_the_image(folder: Word, run: ContainerRun) -> bool:
    """Whether what a folder holds is the image's alone: nothing is mounted over it, nor into it."""
    path = PurePosixPath(folder.text)
    if folder.expansions or not path.is_absolute() or ".." in path.parts:
        return False
    targets = [PurePosixPath(mount.target) for mount in run.mounts]
    return not any(mount.expansions for mount in run.mounts) and not any(
        path.is_relative_to(target) or target.is_relative_to(path) for target in targets
    )


def _in_container(run: ContainerRun, outer: dict[str, Word], text: _Text, depth: int) -> list[Invocation]:
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
    inside = run.workdir is None or _in_the_image(run.workdir, run)
    shell = Shell(environment, moved=not inside, workdir=run.workdir.text if run.workdir is not None else "")
    found = _in_command(words, shell, text, depth)
    if not found and run.entrypoint is None and _is_server_image(run.image.text):
        # The image's own entry point starts the server: `vllm serve` today, the module before that.
        found = [_invocation("vllm", run.arguments, True, shell, ())]
    for invocation in found:
        invocation.contained = True
        invocation.image = run.image
        invocation.mounts = run.mounts
        invocation.passed += passed
        invocation.files = run.files
        invocation.altered += run.altered
        invocation.undisclosed += run.undisclosed
        invocation.hidden, invocation.notes = run.hidden, run.notes
        invocation.writers, invocation.nodes = run.writers, run.nodes
    return found
