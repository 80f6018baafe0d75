"""What a deployment's tokenizer is: the facts that capture writes into the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.corpora.templates.template import TemplateFacts


@dataclass(frozen=True)
class Vocabulary:
    """Every token, the added ones included: how many, and ``"blake3:..."`` over token and id in id order."""

    size: int
    digest: str


@dataclass(frozen=True)
class TokenizerFacts:
    """What the files of a model folder make of text, as transformers in this environment reads them.

    Attributes:
        files: ``"blake3:..."`` by name, of every tokenizer file present; chat templates are not among them.
        effective: ``"blake3:..."`` of the tokenizer that is really built; ``None``: unknown, see ``unread``.
        vocabulary: ``None``: unknown.
        special_tokens: token by name, sorted; a list under ``extra_special_tokens``; ``None``: unknown.
        renderer: version by library: ``transformers`` and ``tokenizers``.
        jinja2: the version that renders the templates.
        template: ``None``: it is known that there is no chat template.
        unread: what could not be read or does not count, each with the reason.

    """

    files: Mapping[str, str]
    effective: str | None
    vocabulary: Vocabulary | None
    special_tokens: Mapping[str, str | list[str]] | None
    renderer: Mapping[str, str]
    jinja2: str
    template: TemplateFacts | None
    unread: tuple[tuple[str, str], ...]


def facts_of(answer: Mapping[str, Any]) -> TokenizerFacts:
    """Return the facts from the child's answer."""
    versions = answer["versions"]
    template = answer["template"]
    return TokenizerFacts(
        files=answer["files"],
        effective=answer["effective"],
        vocabulary=None if answer["vocabulary"] is None else Vocabulary(**answer["vocabulary"]),
        special_tokens=answer["special_tokens"],
        renderer={name: versions[name] for name in ("transformers", "tokenizers")},
        jinja2=versions["jinja2"],
        template=None if template is None else TemplateFacts(**{**template, "reads": tuple(template["reads"])}),
        unread=tuple((what, reason) for what, reason in answer["unread"]),
    )
