"""What tokenizer and chat template of a deployment are, and what they make of a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.corpora.bounded import run_bounded
from kvgate.corpora.limits import Limits
from kvgate.corpora.snapshot import Snapshot, SnapshotEntry, entry_of, render_options
from kvgate.corpora.tokenizer import TokenizerFacts, facts_of
from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent

if TYPE_CHECKING:
    from kvgate.corpora.corpus import Corpus


def describe_tokenizer(
    folder: Path, *, template: str | None = None, progress: Progress = silent, limits: Limits | None = None
) -> TokenizerFacts:
    """Say what the tokenizer and chat template of a model folder are; see :func:`examine`."""
    return examine(folder, template=template, progress=progress, limits=limits)[0]


def take_snapshot(
    folder: Path,
    corpus: Corpus,
    *,
    template: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    limits: Limits | None = None,
) -> Snapshot:
    """Render and encode a corpus; see :func:`examine`.

    Raises:
        InputError: also where no tokenizer can be built here.

    """
    facts, snapshot = examine(
        folder, template=template, corpus=corpus, options=options, progress=progress, limits=limits
    )
    if snapshot is None:
        raise InputError(f"nothing can be rendered: {facts.unread[0][1]}", where=str(folder))
    return snapshot


def examine(
    folder: Path,
    *,
    template: str | None = None,
    corpus: Corpus | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    limits: Limits | None = None,
) -> tuple[TokenizerFacts, Snapshot | None]:
    """Describe tokenizer and template, and render a corpus with them, all in one bounded child process.

    Rendering and encoding is transformers' own (``apply_chat_template``), with a stopped clock; a template
    that reads the clock renders everything on two dates.

    Args:
        folder: a model folder: tokenizer files, config.json (which chooses the class), templates.
        template: what the launch line overrides the template with: a file, or template text.
        corpus: what to render; ``None``: only describe.
        options: rendering options, see :func:`kvgate.corpora.snapshot.render_options`.
        progress: called once for each conversation.
        limits: the bounds of the child; the defaults leave real models a wide margin.

    Returns:
        The facts, and the snapshot; ``None`` without a corpus, or where no tokenizer can be built here (the
        facts say why).

    Raises:
        InputError: no folder, files that cannot be read, are malformed or hostile, a tokenizer that needs
            code of the repository, a limit that was passed.
        UsageError: an option of the wrong type.

    """
    limits = limits or Limits()
    path = folder.absolute()
    if not path.is_dir():
        raise InputError("not a folder", where=str(folder), hint="a model folder with its tokenizer files")
    applied, unapplied = render_options(options or {})
    conversations = corpus.conversations if corpus is not None else ()
    entries: list[SnapshotEntry] = []
    digests = {conversation.id: conversation.input_digest for conversation in conversations}

    def take(item: dict[str, Any]) -> None:
        entries.append(entry_of(item | {"input": digests[item["id"]]}, str(folder)))
        progress("rendering conversations", len(entries), len(conversations), "conversations")

    answer = run_bounded(
        "examine",
        {
            "folder": str(path),
            "template": None if template is None else _from_anywhere(template),
            "conversations": (None if corpus is None else {one.id: one.input() for one in conversations}),
            "options": applied,
        },
        limits=limits,
        conversations=len(conversations),
        on_item=take,
    )
    facts = facts_of(answer)
    if corpus is None or not answer["rendered"]:
        return facts, None
    return facts, Snapshot(
        corpus=corpus.id,
        corpus_digest=corpus.digest,
        renderer=facts.renderer,
        jinja2=facts.jinja2,
        options=applied,
        unapplied=unapplied,
        template=None if facts.template is None else facts.template.digest,
        tokenizer=facts.effective,
        entries=tuple(entries),
    )


def _from_anywhere(template: str) -> str:
    """Make a file's path absolute: the child works in another folder."""
    try:
        return str(Path(template).absolute()) if Path(template).exists() else template
    except (OSError, ValueError):  # too long for a name, or a NUL in it: template text
        return template
