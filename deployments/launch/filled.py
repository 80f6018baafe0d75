"""What deployment files leave to others to fill in: Kubernetes' ``$(VAR)``, ``${VAR}``, Go templates."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvgate.deployments.launch.shell import Word
from kvgate.rules.credentials import is_secret_name

# A Go template's action, which is not Jinja's: it starts with a field, a variable or one of Helm's functions.
GO_TEMPLATE = re.compile(
    r"\{\{-?\s*(?:[.$]|(?:include|tpl|template|toYaml|toJson|quote|printf|default|if|with|range|end|define)\b)"
)
_SUBSTITUTED = re.compile(r"\$\{[^}]{0,200}\}|\$[A-Z_][A-Z0-9_]*")
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]{0,400})\))")


def filled_word(text: str) -> Word:
    """Return a text of a deployment file, with what a template engine or ``envsubst`` would fill in marked."""
    labels = [match.group() for match in _SUBSTITUTED.finditer(text)]
    if GO_TEMPLATE.search(text):
        labels.append("a Go template")
    return Word(text, tuple(labels))


def container_word(text: str, environment: Iterable[tuple[str, Word | None]]) -> Word:
    """Return a word of ``command`` or ``args``, or a value of ``env``, with ``$(VAR)`` replaced.

    A variable that is set to something unknown, or to a credential, is written as a shell's (``${VAR}``), so that a
    script around it treats it as one. What is not set stays as it is, as in Kubernetes, where a shell may still find a
    command in it. Source: kubernetes/kubernetes pkg/kubelet/kubelet_pods.go at df5f024, and its package ``expansion``.

    Args:
        text: the word as written.
        environment: the variables it may refer to; ``None``: set, and not known.
    """
    known = dict(environment)
    labels: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "$"
        if name not in known:
            labels.append(match.group())
            return match.group()
        value = known[name]
        if value is None or is_secret_name(name):  # a credential stays where it is
            labels.append(f"${{{name}}}")
            return f"${{{name}}}"
        labels.extend(value.expansions)
        return value.text

    labels[:0] = filled_word(text).expansions
    return Word(_REFERENCE.sub(replaced, text), tuple(dict.fromkeys(labels)))
