"""What stands around a server in a launch script: which of it is known to change nothing, and what the rest sets.

The table ``data/launch_surroundings.yaml`` is an allow-list. A command that is not on it may have installed
packages or patched files, so that neither the image nor a package set says what runs any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

from kvgate.deployments.launch.containers import Mount
from kvgate.deployments.launch.secrets import clean_text
from kvgate.deployments.launch.shell import MAX_TEXT, Command, Script, Word, split_script
from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_OPENING = frozenset({"if", "while", "until", "for", "case", "select", "{", "function"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_JOINING = frozenset({"then", "else", "elif", "do", "!", "time", "in"})
_LOOPS = frozenset({"while", "until", "for", "select"})
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
# What ends well whatever happens, so that what stands behind `&&` runs.
_NEVER_FAIL = _DECLARING | {":", "true", "echo", "printf", "set", "unset"}
_READ_LETTERS = frozenset("gprx")  # of `declare`; others change what is assigned
_SET_OPTIONS = re.compile(
    r"[-+][Baefhmnuvx]+|[-+][Baefhmnuvx]*o|allexport|errexit|errtrace|nounset|pipefail|posix|verbose|xtrace"
)
_PYTHON = re.compile(r"python[0-9.]*")
_PYTHON_VALUES = ("-X", "-W")
_SYSTEM = ("", "/bin/", "/usr/bin/", "/usr/local/bin/", "/sbin/", "/usr/sbin/")
# Where a path leads that has `..` behind its beginning is not known.
_HARMLESS_FILES = re.compile(
    r"[0-9]+-?|-|(?!.*/\.\.(?:/|$))(?:/dev/\S*|/tmp/\S*|/var/log/\S*|[^.]\S*\.(?:log|pid)|\.?\.?/?\S*\.log)"
)
_HARMLESS_TO_REMOVE = re.compile(rf"{_HARMLESS_FILES.pattern}|(?!.*/\.\.(?:/|$))/\S*/\.cache/\S*")
# Signals that end a script; what is caught otherwise runs commands between the others.
_TRAPPED = re.compile(r"(?:(?:(?:SIG)?(?:TERM|INT|HUP|QUIT|USR1|USR2)|EXIT|[0-9]+) ?)*")
_EXEC_VALUES = ("-e", "--env", "--env-file", "-u", "--user", "-w", "--workdir", "--detach-keys")
# What runs a script as a shell does that nobody has told anything.
_PLAIN_SHELL = re.compile(
    r"#!\s*(?:/usr(?:/local)?)?/bin/(?:env\s+(?:-S\s+)?)?(?:ba|da|k|z|a)?sh(?:\s+-[euxvlBC]+(?:o\s+pipefail)?)*\s*"
)
_CONTAINER_TOOLS = frozenset({"docker", "podman"})
_LOOKING = frozenset({"pull", "rm", "stop", "kill", "ps", "logs", "network", "volume", "inspect", "images", "wait"})
_MAX_SUBSTITUTIONS = 256
_MAX_NESTED = 2  # substitutions inside substitutions


class Wrapper(BaseModel):
    """A command that runs another one unchanged; the head of the table says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    words: int = 0
    values: list[str] = Field(default_factory=list)


class SurroundingsTable(BaseModel):
    """The table of what may stand around a server; its head says what the columns mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: str = Field(alias="schema", pattern=r"^kvgate/surroundings/v1$")
    source: str
    checked: str
    inert: list[str]
    wrappers: dict[str, Wrapper]
    code: list[str]
    files: list[str]
    code_roots: list[str]
    code_names: list[str]
    code_endings: list[str]
    data_paths: list[str]
    data_names: list[str]


@cache
def surroundings_table() -> SurroundingsTable:
    """Return the table of what may stand around a server."""
    name = "launch_surroundings.yaml"
    data = resources.files("kvgate.deployments").joinpath("data", name).read_bytes()
    document, _ = parse_document(data, name)
    return SurroundingsTable.model_validate(document)


def started_by(text: str) -> str | None:
    """Say why a script may run with other settings than it shows: by what its first line starts it with."""
    first = text.partition("\n")[0]
    if not first.startswith("#!") or _PLAIN_SHELL.fullmatch(first.rstrip("\r")):
        return None
    return "the script's first line starts it in a way that kvgate does not read"


@dataclass
class Room:
    """How many more characters the values of variables may take, in a script and all the shells in it."""

    left: int = 4 * MAX_TEXT


@dataclass
class Shell:
    """What the commands of a script leave behind, for the server after them.

    Attributes:
        exported: variables that the next command inherits.
        variables: variables that it does not.
        altered: why code, environment or files may be other than the line shows.
        undisclosed: why variables may be set that the text does not show.
        moved: a folder was entered, from which ``python -m`` takes code.
        workdir: the folder of the image in which the commands run, where it is another than the image's own.
        room: what is left for values that are put where their variables stand.
        written: the files that commands write.
    """

    exported: dict[str, Word] = field(default_factory=dict)
    variables: dict[str, Word] = field(default_factory=dict)
    altered: list[str] = field(default_factory=list)
    undisclosed: list[str] = field(default_factory=list)
    moved: bool = False
    workdir: str = ""
    room: Room = field(default_factory=Room)
    written: list[str] = field(default_factory=list)
    all_exported: bool = False
    loops: int = 0
    _open: list[str] = field(default_factory=list)
    _subshells: int = 0
    _tested: bool = False
    _failing: bool = False
    _aside: bool = False

    def inside(self, environment: dict[str, Word], altered: Iterable[str]) -> Shell:
        """Return the state in which a shell started by this one begins."""
        altered = [*self.altered, *altered]
        left = (list(self.undisclosed), self.moved, self.workdir, self.room, list(self.written))
        return Shell(dict(environment), {}, altered, *left)

    def substitute(self, script: Script, source: str, depth: int = 0) -> None:
        """Take in the commands inside ``$(...)``, which can set no variable of this shell."""
        if len(script.substitutions) > _MAX_SUBSTITUTIONS:
            self.altered.append(f"{len(script.substitutions):,} substitutions run before the server")
            return
        for body in script.substitutions:
            try:
                inner = split_script(body, source) if depth < _MAX_NESTED else None
            except InputError:
                inner = None
            if inner is None:
                self.altered.append("a substitution runs commands that kvgate does not read")
                continue
            self.altered += filter(None, (_foreign(without_keywords(one.words), one.writes) for one in inner.commands))
            self.substitute(inner, source, depth + 1)

    def enter(self, command: Command, place: Place) -> tuple[Word, ...]:
        """Keep account of conditions, loops and subshells; return the command without their keywords."""
        self._subshells += command.after.count("(") - command.after.count(")")
        if place.joined != "&&":
            self._tested = "|" in place.joined
        elif not place.before_server:  # the server would not run either
            self._tested = self._tested or self._failing
        self._aside = place.aside
        at, negated = 0, False
        for word in command.words:
            if word.text in _OPENING:
                self._open.append(word.text)
            elif word.text in _CLOSING:
                if self._open:
                    self._open.pop()
            elif word.text not in _JOINING:
                break
            negated = negated or word.text == "!"
            at += 1
        self.loops = sum(opened in _LOOPS for opened in self._open)
        words = command.words[at:]
        self._failing = negated or not _never_fails(words)
        return words

    def _conditional(self) -> bool:
        return bool(self._open) or self._subshells > 0 or self._tested or self._aside

    def run(self, words: Sequence[Word], writes: Sequence[Word], *, headed: bool) -> None:
        """Take in one command that is not the server.

        Args:
            words: the command, without keywords.
            writes: the files it writes into.
            headed: it is the head of a loop (``for x in ...``).
        """
        if not words:
            return
        if headed:  # its variable holds whatever the loop put there last
            self._assign(words[0].text, Word("", (f"${words[0].text}",)), export=False)
            return
        name = words[0].text
        if name in _DECLARING:
            self._declare(name, words[1:])
        elif name == "unset":
            for word in words[1:]:
                self._assign(word.text, None, export=False)
        elif name in (".", "source", "eval"):
            shown = clean_text(words[1].text) if len(words) > 1 and name != "eval" else None
            ran = f"{name} {shown}" if shown else name
            self.undisclosed.append(f"`{ran}` runs before the server and may set anything")
            self.altered.append(self.undisclosed[-1])
        elif all(_ASSIGNMENT.match(word.text) for word in words):
            for name_, word in _assigned(words):
                self._assign(name_, word, export=self.all_exported)
        else:
            if name == "set":
                self._set([word.text for word in words[1:]])
            self.moved = self.moved or name in ("cd", "pushd")
            self.written += [word.text for word in (*writes, *(words[1:] if name == "tee" else ()))]
            if (reason := _foreign(words, writes)) is not None:
                self.altered.append(reason)

    def _set(self, options: list[str]) -> None:
        on = any(re.fullmatch(r"-[a-zA-Z]*a[a-zA-Z]*", option) for option in options) or (
            "-o" in options and "allexport" in options
        )
        off = any(re.fullmatch(r"\+[a-zA-Z]*a[a-zA-Z]*", option) for option in options) or (
            "+o" in options and "allexport" in options
        )
        if (on or off) and self._conditional():
            self.undisclosed.append("a condition decides which variables are exported")
        self.all_exported = on or (self.all_exported and not off)

    def _declare(self, name: str, words: Sequence[Word]) -> None:
        options = [word.text for word in words if word.text.startswith(("-", "+")) and word.text != "--"]
        letters = "".join(option[1:] for option in options if option.startswith("-"))
        taken = {"-n"} if name == "export" else {"+x"}
        if set(options) & taken:
            for word in words:
                self._assign(word.text.partition("=")[0], None, export=False, keep=True)
            return
        if unread := sorted(set("".join(option.lstrip("-+") for option in options)) - _READ_LETTERS):
            self.undisclosed.append(f"`{name} -{unread[0]}` changes what is assigned")
        export = name == "export" or "x" in letters or self.all_exported
        for word in words:
            if word.text in options or word.text == "--":
                continue
            if _ASSIGNMENT.match(word.text):
                ((name_, value),) = _assigned([word])
                self._assign(name_, value, export=export)
            elif word.expansions:
                self.undisclosed.append(f"{name} {word.expansions[0]} may set any variable")
            elif export and word.text in self.variables:
                self._assign(word.text, self.variables[word.text], export=True)

    def _assign(self, name: str, value: Word | None, *, export: bool, keep: bool = False) -> None:
        """Set a variable, or unset it (``keep``: for commands alone); under a condition it is not known afterwards."""
        if self._conditional():
            value = Word(value.text if value is not None else "", (f"${name}",))
        export = export or name in self.exported
        if value is None:
            self.exported.pop(name, None)
            if not keep:
                self.variables.pop(name, None)
            return
        self.variables[name] = value
        if export:
            self.exported[name] = value

    def environment(self, prefix: Sequence[Word]) -> dict[str, Word]:
        """Return what a command inherits, with what the words before it assign (``K=V vllm``, ``env -i K=V``)."""
        found = dict(self.exported)
        at = 0
        while at < len(prefix):
            word = prefix[at]
            at += 1
            name = _basename(word.text)
            if _ASSIGNMENT.match(word.text):
                found |= dict(_assigned([word]))
            elif name == "env":
                at = self._env(prefix, at, found)
            elif name == "exec" and at < len(prefix) and re.fullmatch(r"-[a-z]*[^al-][a-z]*", prefix[at].text):
                self.undisclosed.append("`exec` is told to start the server with other variables")
        return found

    def _env(self, words: Sequence[Word], at: int, found: dict[str, Word]) -> int:
        """Take in the options of ``env`` (coreutils, "env invocation"); return where what it runs begins."""
        while at < len(words):
            option = words[at].text
            following = words[at + 1].text if at + 1 < len(words) else ""
            if option == "--":
                return at + 1
            if option in ("-", "-i", "--ignore-environment"):
                found.clear()
            elif option in ("-u", "--unset"):
                found.pop(following, None)
                at += 1
            elif option.startswith("--unset="):
                found.pop(option.partition("=")[2], None)
            elif re.fullmatch(r"-u\w+", option):
                found.pop(option[2:], None)
            elif option in ("-C", "--chdir") or option.startswith(("-C", "--chdir=")):
                self.moved = True
                at += option in ("-C", "--chdir")
            elif option.startswith("-") and option not in ("-v", "--debug"):
                self.undisclosed.append(f"`env {clean_text(option) or '...'}` may set or unset anything")
            elif not option.startswith("-"):
                return at
            at += 1
        return at


@dataclass(frozen=True)
class Place:
    """Where a command stands among the others.

    Attributes:
        joined: how it hangs on the one before, without brackets: ``"&&"``, ``"||"``, ``";"``.
        before_server: behind it the server follows, joined with ``&&`` alone.
        aside: it runs in a shell of its own: in a pipeline, or in the background.
    """

    joined: str
    before_server: bool
    aside: bool


def places(commands: Sequence[Command], servers: Sequence[bool]) -> list[Place]:
    """Say where each command of a script stands; ``servers``: which of them start a server."""
    joined = ["".join(character for character in one.after if character not in "()\n") for one in commands]
    found: list[Place] = []
    ahead, background = False, False
    for at in reversed(range(len(commands))):
        behind = joined[at + 1] if at + 1 < len(commands) else ""
        ahead = servers[at] or (ahead and behind == "&&")
        if behind not in ("&&", "||"):
            background = behind.startswith("&")
        found.append(Place(joined[at], ahead, background or (behind.startswith("|") and behind != "||")))
    return found[::-1]


def _never_fails(words: Sequence[Word]) -> bool:
    asks = any("(" in label or "`" in label for word in words for label in word.expansions)
    plain = bool(words) and (words[0].text in _NEVER_FAIL or all(_ASSIGNMENT.match(word.text) for word in words))
    return plain and not asks


def wrapped_by(prefix: Sequence[Word]) -> str | None:
    """Say which word in front of a server is none that runs it unchanged; ``None``: there is no such word."""
    rest = _unwrapped(prefix)
    if rest and is_python(rest[0]):
        rest = rest[1:]
        while rest and rest[0].text.startswith("-"):
            rest = rest[2:] if rest[0].text in _PYTHON_VALUES else rest[1:]
    return f"the server is run by {_shown(rest[0])}, and what that changes is not known" if rest else None


def is_python(word: Word) -> bool:
    """Whether a word names a Python."""
    return bool(_PYTHON.fullmatch(_basename(word.text))) and not word.expansions


def outside_the_system(path: str) -> str:
    """Return a program's path where it lies in another folder than those of the system; else nothing.

    Another environment of the same image may hold another engine.
    """
    return "" if path.removesuffix(_basename(path)) in _SYSTEM else path


def over_code(mount: Mount, data: Iterable[str]) -> str | None:
    """Say why a mount may change the software of an image; ``None`` where it holds data.

    Args:
        mount: the mount.
        data: paths inside the container that the line reads models, adapters or stored blocks from.
    """
    table = surroundings_table()
    target = PurePosixPath(mount.target or "/")
    shown = clean_text(mount.target) or "..."
    reason = f"{shown} is mounted over the image's own files"
    if any(label in mount.target for label in mount.expansions):
        return f"the shell fills in what is mounted: {mount.expansions[0]}"
    if not target.is_absolute() or ".." in target.parts:
        return reason
    if any(target.is_relative_to(path) for path in table.data_paths):
        return None
    if target.suffix in table.code_endings or ".so." in target.name:
        return reason
    components = target.parts[1:]
    if any(name in table.data_names for name in components):
        return None
    if any(PurePosixPath(root).is_relative_to(target) for root in table.code_roots):
        return reason
    if any(name in ("site-packages", "dist-packages") or _PYTHON.fullmatch(name) for name in components):
        return reason
    holds_data = any(PurePosixPath(path).is_relative_to(target) or target.is_relative_to(path) for path in data)
    if holds_data and len(components) > 1:
        return None
    if any(target.is_relative_to(root) for root in table.code_roots):
        return reason
    named = any(name in table.code_names for name in components)
    return reason if named and not holds_data else None


def _foreign(words: Sequence[Word], writes: Sequence[Word]) -> str | None:
    """Say why a command may change more than the shell's own state; ``None`` where it is known not to."""
    rest = _unwrapped(words)
    if not rest:
        rest = (Word(":"),)
    head = rest[0]
    name = _basename(head.text)
    if head.expansions or head.text.removesuffix(name) not in _SYSTEM or name not in surroundings_table().inert:
        return f"{_shown(head)} runs before the server, and what it changes is not known"
    texts = [word.text for word in rest[1:]]
    if name == "set" and not all(_SET_OPTIONS.fullmatch(text) for text in texts):
        return "`set` changes the shell before the server is run"
    if name in _CONTAINER_TOOLS and next((text for text in texts if text[:1] != "-"), "") not in _LOOKING:
        return f"`{name}` runs before the server, and what it changes is not known"
    saves = name == "curl" and any(re.match(r"--(?:output|remote)|-[a-zA-Z]*[oOJK]", text) for text in texts)
    if saves or (name in ("printf", "hash") and any(text[:1] == "-" and text != "--" for text in texts)):
        return f"`{name}` runs before the server, and what it changes is not known"
    if name == "trap" and not _TRAPPED.fullmatch(" ".join(texts[1:])):
        return "`trap` runs commands between those of the script"
    harmless = _HARMLESS_TO_REMOVE if name == "rm" else _HARMLESS_FILES
    named = [word for word in rest[1:] if word.text[:1] != "-"] if name in ("tee", "touch", "rm") else []
    files = [word for word in (*writes, *named) if word.expansions or not harmless.fullmatch(word.text)]
    if files:
        does = "removes" if name == "rm" else "writes"
        return f"`{name}` {does} {clean_text(files[0].text) or '...'} before the server is run"
    return None


def into_a_container(words: Sequence[Word]) -> str | None:
    """Say what a command does in a container that runs already (``docker exec``, ``docker cp``); ``None``: nothing."""
    rest = _unwrapped(words)
    if len(rest) < 2 or _basename(rest[0].text) not in _CONTAINER_TOOLS:
        return None
    rest = rest[2:] if rest[1].text == "container" else rest[1:]
    if rest[:1] == (Word("cp"),):
        return "`docker cp` writes into the container"
    if rest[:1] != (Word("exec"),):
        return None
    at = 1
    while at < len(rest) and rest[at].text.startswith("-"):
        at += 2 if rest[at].text in _EXEC_VALUES else 1
    changes = _foreign(rest[at + 1 :], ()) is not None
    return "`docker exec` runs a command in the container, and what it changes is not known" if changes else None


def _unwrapped(words: Sequence[Word]) -> Sequence[Word]:
    """Return a command without assignments and the commands that run another unchanged."""
    rest = without_keywords(words)
    table = surroundings_table().wrappers
    at = 0
    while at < len(rest):
        if _ASSIGNMENT.match(rest[at].text):
            at += 1
            continue
        wrapper = table.get(_basename(rest[at].text)) if not rest[at].expansions else None
        if wrapper is None:
            return rest[at:]
        at += 1
        while at < len(rest) and (rest[at].text.startswith("-") or _ASSIGNMENT.match(rest[at].text)):
            option = rest[at].text
            at += 2 if option in wrapper.values else 1
            if option == "--":
                break
        at += wrapper.words
    return ()


def without_keywords(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return a command without the shell's keywords in front of it."""
    at = 0
    while at < len(words) and words[at].text in _OPENING | _CLOSING | _JOINING:
        at += 1
    return tuple(words[at:])


def _assigned(words: Sequence[Word]) -> list[tuple[str, Word]]:
    found = []
    for word in words:
        if match := _ASSIGNMENT.match(word.text):
            name, appended = match.groups()
            expansions = (*word.expansions, f"${name}") if appended else word.expansions
            found.append((name, Word(word.text[match.end() :], expansions)))
    return found


def _basename(text: str) -> str:
    return PurePosixPath(text).name or text


def _shown(word: Word) -> str:
    name = word.expansions[0] if word.expansions else _basename(word.text)
    return f"`{clean_text(name) or '...'}`"
