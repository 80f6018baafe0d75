"""What deployment files leave to others to fill in: Kubernetes' ``$(VAR)``, ``${VAR}``, Go templates."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvgate.deployments.launch.shell import MAX_FILLED, MAX_TEXT, Word, too_much_to_fill_in
from kvgate.rules.credentials import is_secret_name
from kvgate.rules.errors import InputError

# A Go template's action, which is not Jinja's: it starts with a field, a variable or one of Helm's functions.
GO_TEMPLATE = re.compile(
    r"\{\{-?\s*(?:[.$]|(?:include|tpl|template|toYaml|toJson|quote|printf|default|if|with|range|end|define)\b)"
)
_SUBSTITUTED = re.compile(r"\$\{[^}]{0,200}\}|\$[A-Z_][A-Z0-9_]*")
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]{0,400})\))")


def filled_word(text: str) -> Word:
    """Return a text of a deployment file, with what a template engine or ``envsubst`` would fill in marked."""
    labels = dict.fromkeys(match.group() for match in _SUBSTITUTED.finditer(text))
    if GO_TEMPLATE.search(text):
        labels["a Go template"] = None
    return Word(text, tuple(labels))


def container_word(text: str, environment: Mapping[str, Word | None], where: str) -> Word:
    """Return a word of ``command`` or ``args``, or a value of ``env``, with ``$(VAR)`` replaced.

    A variable that is set to something unknown, or to a credential, is written as a shell's (``${VAR}``), so that a
    script around it treats it as one. What is not set stays as it is, as in Kubernetes, where a shell may still find a
    command in it. Source: kubernetes/kubernetes pkg/kubelet/kubelet_pods.go at df5f024, and its package ``expansion``.

    Args:
        text: the word as written.
        environment: the variables it may refer to; ``None``: set, and not known.
        where: what to call it in errors.

    Raises:
        InputError: what is put into it makes it longer than a launch line may be, or leaves too much open.
    """
    labels: list[str] = []
    size = len(text)

    def replaced(match: re.Match[str]) -> str:
        nonlocal size
        name = match[1]
        if name is None:
            return "$"
        if name not in environment:
            labels.append(match.group())
            return match.group()
        value = environment[name]
        size += 0 if value is None else len(value.text)
        if size > MAX_TEXT:
            raise InputError(f"more than the {MAX_TEXT:,} characters that a launch line may have", where=where)
        if len(labels) > MAX_FILLED:
            raise too_much_to_fill_in(where)
        if value is None or is_secret_name(name):  # a credential stays where it is
            labels.append(f"${{{name}}}")
            return f"${{{name}}}"
        labels.extend(value.expansions)
        return value.text

    labels[:0] = filled_word(text).expansions
    word = Word(_REFERENCE.sub(replaced, text), tuple(dict.fromkeys(labels)))
    if len(word.expansions) > MAX_FILLED:
        raise too_much_to_fill_in(where)
    return word
