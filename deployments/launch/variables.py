"""Variables of a script whose value the script or its container says, put where they are used."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kvgate.deployments.launch.shell import Word
from kvgate.deployments.launch.surroundings import Shell
from kvgate.rules.credentials import is_secret_name

_PLAIN = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
# What a shell neither splits nor completes, quoted or not.
_ONE_WORD = re.compile(r"[^\s*?\[\]]+")
# What also means itself where the text is read by a shell once more.
_READ_AGAIN = re.compile(r"[\w@%+=:,./-]+")
# What a shell sets by itself.
_ITS_OWN = frozenset(
    {"PWD", "OLDPWD", "RANDOM", "SECONDS", "LINENO", "PPID", "UID", "EUID", "IFS", "OPTARG", "OPTIND", "REPLY", "_"}
)


def with_known_variables(words: Sequence[Word], shell: Shell) -> tuple[Word, ...]:
    """Return the words with the values of variables that are known where they stand.

    A value is known where nothing ran before that could have set it out of sight. A word that a shell might split is
    left as it is, and so is one that there is no more room for: of values made of values a few lines make gigabytes.
    """
    if shell.altered or shell.undisclosed or shell.loops:
        return tuple(words)
    return tuple(_filled(word, shell) if word.expansions else word for word in words)


def _filled(word: Word, shell: Shell) -> Word:
    text, left = word.text, []
    for label in dict.fromkeys(word.expansions):
        value = _value(label, shell)
        # The same text may also stand in it as such, or begin a longer name.
        often = word.expansions.count(label)
        alone = word.text.count(label) == often
        if value is None or not alone or len(value) * often > shell.room.left or not _fits(value, word, label):
            left.append(label)
        else:
            shell.room.left -= len(value) * often
            text = text.replace(label, value)
    return Word(text, tuple(left))


def _value(label: str, shell: Shell) -> str | None:
    match = _PLAIN.fullmatch(label)
    if match is None or match[1] in _ITS_OWN or is_secret_name(match[1]):  # a credential stays where it is
        return None
    known = shell.variables.get(match[1]) or shell.exported.get(match[1])
    return None if known is None or known.expansions or not known.text else known.text


def _fits(value: str, word: Word, label: str) -> bool:
    if "$" in value:
        return False
    if word.text == label and value[0] == "{" and value[-1] == "}":
        return True  # JSON that a shell would split starts no server
    return (_READ_AGAIN if re.search(r"\s", word.text) else _ONE_WORD).fullmatch(value) is not None
