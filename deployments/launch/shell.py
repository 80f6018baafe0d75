"""Reading a shell script as words, without running any of it.

Quoting is :mod:`shlex`'s. A pass in front of it does what shlex cannot: it joins continued lines, drops
comments, and marks what the shell would have replaced (``$VAR``, ``$(...)``), because after the quotes are
gone nobody can tell ``'$HOME'`` from ``"$HOME"``.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from kvgate.rules.errors import InputError

MAX_TEXT = 128 * 1024  # the longest real one, with an inline chat template, is about 20 kB
MAX_FILLED = 2_000  # places that a shell fills in; a real script has some hundred

# Noncharacters (Unicode 16, section 23.7) stand in for what must reach the words unchanged.
_OPEN = "\ufdd0"  # "something the shell would have filled in follows"
_SHIELD = {character: chr(0xFDD1 + index) for index, character in enumerate("$`;&|<>()'\"\\ \n")}
_UNSHIELD = str.maketrans({stand_in: character for character, stand_in in _SHIELD.items()})
_NONCHARACTER = re.compile("[\ufdd0-\ufdef]")
# Braces may hold another expansion (`${A:-${B}}`, `${A["${I}"]}`).
_EXPANSION = re.compile(r"\$(?:\{(?:[^{}$]|\$(?!\{)|\$\{[^{}]*\})*\}|\{[^}]*\}|[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_SEPARATORS = frozenset("();|&")
_REDIRECTIONS = _SEPARATORS | frozenset("<>")
_DESCRIPTOR = re.compile(r"[0-9]+(?=[<>])")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command.

    Attributes:
        text: the word with quotes resolved; what the shell would have filled in is left as its name.
        expansions: the variables and substitutions in it (``("$MODEL",)``): the text is not the value then.
    """

    text: str
    expansions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a script.

    Attributes:
        words: its words, never none.
        writes: the files that its output is redirected into.
        after: the separators between it and the command before (``"&&"``, ``";("``).
    """

    words: tuple[Word, ...]
    writes: tuple[Word, ...] = ()
    after: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """A script as its commands, in order.

    Attributes:
        commands: the commands.
        substitutions: the text of the commands inside ``$(...)``, backquotes and ``<(...)``, which run as well.
    """

    commands: tuple[Command, ...]
    substitutions: tuple[str, ...] = ()


def split_script(text: str, source: str) -> Script:
    """Split a script into commands, each of words. Nothing is expanded or run.

    Args:
        text: the script; at most :data:`MAX_TEXT` characters.
        source: what to call it in errors.

    Raises:
        InputError: too long, more than :data:`MAX_FILLED` places to fill in, a NUL, an open quote or substitution, a
            here-document.
    """
    if len(text) > MAX_TEXT:
        raise InputError(f"{len(text):,} characters is more than the {MAX_TEXT:,} a launch line may have", where=source)
    if "\x00" in text or _NONCHARACTER.search(text):
        raise InputError("holds a NUL or a Unicode noncharacter", where=source, hint="is this the right file?")
    marker = _Marker(text.replace("\r\n", "\n"), source)
    lexer = shlex.shlex(marker.marked(), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    commands: list[Command] = []
    words: list[Word] = []
    writes: list[Word] = []
    separator, redirection = "", ""

    def ended() -> None:
        if words or writes:
            commands.append(Command(tuple(words) or (Word(":"),), tuple(writes), separator))

    try:
        for token in lexer:
            if token and set(token) <= _SEPARATORS:
                if words or writes:
                    ended()
                    words, writes, separator = [], [], ""
                separator += token
            elif token and set(token) <= _REDIRECTIONS:  # a redirection: its target is no argument
                redirection = token
                continue
            elif not redirection:
                words.append(_word(token))
            elif ">" in redirection:
                writes.append(_word(token))
            redirection = ""
    except ValueError:
        raise InputError("ends inside a quote or after a backslash", where=source) from None
    ended()
    return Script(tuple(commands), tuple(marker.substitutions))


def too_much_to_fill_in(where: str) -> InputError:
    """Return the error of a text that is no launch line: every variable in it is looked for in every word."""
    return InputError(f"leaves more than {MAX_FILLED:,} places to be filled in", where=where)


def _label(expansion: str) -> str:
    """Name a variable without its default, which may be a credential; ``${X...}`` where more is done to it."""
    name = _NAME.search(expansion, 2 if expansion[1] == "{" else 1)
    if name is None:
        return "${...}"
    plain = expansion in (f"${name.group()}", f"${{{name.group()}}}")
    return f"${name.group()}" if plain else f"${{{name.group()}...}}"


def _word(token: str) -> Word:
    pieces = token.split(_OPEN)
    labels = tuple(piece.split(_SHIELD["\n"], 1)[0].translate(_UNSHIELD) for piece in pieces[1:])
    text = pieces[0] + "".join(piece.replace(_SHIELD["\n"], "", 1) for piece in pieces[1:])
    return Word(text.translate(_UNSHIELD), labels)


class _Marker:
    """One pass over the characters, knowing only quotes, escapes, comments and the start of an expansion."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._at = 0
        self._out: list[str] = []
        self._marks = 0
        self._braces = True  # one is closed further on
        self.substitutions: list[str] = []

    def _refuse(self, at: int, message: str, hint: str | None = None) -> InputError:
        line = self._text.count("\n", 0, at) + 1
        return InputError(message, where=f"{self._source}:{line}", hint=hint)

    def marked(self) -> str:
        text, out = self._text, self._out
        quote, opened = "", 0
        while self._at < len(text):
            character = text[self._at]
            if character == "\\" and quote != "'":
                self._escape(quote)
            elif quote == "'":
                quote = "" if character == "'" else quote
                out.append(character if character == "'" else _SHIELD.get(character, character))
                self._at += 1
            elif character in "$`":
                self._expansion(bool(quote))
            elif quote:  # double
                quote = "" if character == '"' else quote
                out.append(character if character == '"' else _SHIELD.get(character, character))
                self._at += 1
            else:
                if character in "'\"":
                    quote, opened = character, self._at
                self._plain(character)
        if quote:
            raise self._refuse(opened, f"a quote ({quote}) is opened and never closed")
        return "".join(out)

    def _plain(self, character: str) -> None:
        text, at = self._text, self._at
        at_word_start = at == 0 or text[at - 1] in " \t\n;&|()"
        if character == "#" and at_word_start:
            end = text.find("\n", at)
            self._at = len(text) if end < 0 else end
            return
        if character == "\n":
            self._out.append(" ; ")
        elif text.startswith("<<", at):
            raise self._refuse(at, "here-documents are not read", "give the launch line alone")
        elif text.startswith(("<(", ">("), at):
            self._substitution(at + 1, at)
            return
        elif at_word_start and (number := _DESCRIPTOR.match(text, at)):
            self._at = number.end()  # the descriptor of a redirection (2>&1) is no argument
            return
        else:
            self._out.append(character)
        self._at += 1

    def _escape(self, quote: str) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following == "\n":
            self._at += 2  # a continued line
            return
        if following in _SHIELD and (not quote or following in '$`"\\'):
            self._out.append(_SHIELD[following])
        else:
            self._out.append("\\" + following if not quote else _SHIELD["\\"] + _SHIELD.get(following, following))
        self._at += 2

    def _expansion(self, quoted: bool) -> None:
        text, at = self._text, self._at
        if text[at] == "`":
            end = text.find("`", at + 1)
            if end < 0:
                raise self._refuse(at, "a ` is opened and never closed")
            self.substitutions.append(text[at + 1 : end])
            self._mark("`...`", end + 1)
        elif text.startswith("$(", at):
            self._substitution(at + 1, at)
        elif text.startswith(("$'", '$"'), at) and not quoted:
            raise self._refuse(at, "$'...' and $\"...\" quoting is not read", "use plain quotes")
        elif (not text.startswith("${", at) or self._closed(at)) and (match := _EXPANSION.match(text, at)):
            if "$(" in match.group() or "`" in match.group():
                self.substitutions.append(match.group())
            self._mark(_label(match.group()), match.end())
        else:
            self._out.append(_SHIELD["$"])
            self._at += 1

    def _closed(self, at: int) -> bool:
        """Whether a brace is closed after ``at``; a text of open ones is looked through once."""
        self._braces = self._braces and self._text.find("}", at) >= 0
        return self._braces

    def _substitution(self, opening: int, start: int) -> None:
        depth, at = 0, opening
        while at < len(self._text):
            depth += {"(": 1, ")": -1}.get(self._text[at], 0)
            at += 1
            if depth == 0:
                self.substitutions.append(self._text[opening + 1 : at - 1])
                self._mark("$(...)", at)
                return
        raise self._refuse(start, "a ( is opened and never closed")

    def _mark(self, label: str, end: int) -> None:
        self._marks += 1
        if self._marks > MAX_FILLED:
            raise too_much_to_fill_in(self._source)
        shielded = "".join(_SHIELD.get(character, character) for character in label)
        self._out.append(_OPEN + shielded + _SHIELD["\n"])  # the newline ends the label
        self._at = end
