"""What tokenizer and chat template of a deployment are, and what they make of a corpus."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.corpora.child.bounded import run_bounded
from kvgate.corpora.child.feeding import batches
from kvgate.corpora.child.limits import Limits
from kvgate.corpora.rendering.options import render_options
from kvgate.corpora.snapshots.snapshot import SnapshotFile, SnapshotHeader, SnapshotWriter
from kvgate.corpora.tokenizers.facts import TokenizerFacts, facts_of
from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress, silent

if TYPE_CHECKING:
    from kvgate.corpora.conversations.corpus import Corpus


def describe_tokenizer(
    folder: Path, *, template: str | None = None, progress: Progress = silent, limits: Limits | None = None
) -> TokenizerFacts:
    """Say what the tokenizer and chat template of a model folder are; see :func:`examine`."""
    return examine(folder, template=template, progress=progress, limits=limits)[0]


def take_snapshot(
    folder: Path,
    corpus: Corpus,
    snapshot_to: Path,
    *,
    template: str | None = None,
    options: Mapping[str, Any] | None = None,
    redact: bool = False,
    progress: Progress = silent,
    limits: Limits | None = None,
) -> SnapshotFile:
    """Render and encode a corpus; see :func:`examine`.

    Raises:
        InputError: also where no tokenizer can be built here.

    """
    facts, snapshot = examine(
        folder,
        template=template,
        corpus=corpus,
        options=options,
        snapshot_to=snapshot_to,
        redact=redact,
        progress=progress,
        limits=limits,
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
    snapshot_to: Path | None = None,
    redact: bool = False,
    progress: Progress = silent,
    limits: Limits | None = None,
) -> tuple[TokenizerFacts, SnapshotFile | None]:
    """Describe tokenizer and template, and render a corpus with them, all in one bounded child process.

    Rendering and encoding is transformers' own (``apply_chat_template``), with a stopped clock; a template
    that reads the clock renders everything on two dates.

    Args:
        folder: a model folder: tokenizer files, config.json (which chooses the class), templates.
        template: what the launch line overrides the template with: a file, or template text.
        corpus: what to render; ``None``: only describe.
        options: rendering options, see :func:`kvgate.corpora.rendering.options.render_options`.
        snapshot_to: the file that the snapshot becomes; needed with a corpus.
        redact: leave prompt text out of the snapshot. Token ids stay, which whoever has the tokenizer can read.
        progress: told how many conversations are rendered.
        limits: the bounds of the child; the defaults leave real models a wide margin.

    Returns:
        The facts, and the snapshot; ``None`` without a corpus, or where no tokenizer can be built here (the
        facts say why).

    Raises:
        InputError: no folder, files that cannot be read, are malformed or hostile, a tokenizer that needs
            code of the repository, a limit that was passed, a snapshot that cannot be written.
        UsageError: an option of the wrong type.

    """
    limits = limits or Limits()
    path = folder.absolute()
    if not path.is_dir():
        raise InputError("not a folder", where=str(folder), hint="a model folder with its tokenizer files")
    applied, unapplied = render_options(options or {})
    with contextlib.ExitStack() as stack:
        facts: TokenizerFacts | None = None
        writer: SnapshotWriter | None = None
        done = 0

        def take(item: dict[str, Any]) -> None:
            nonlocal facts, writer
            facts = facts_of(item["facts"])
            if corpus is not None and snapshot_to is not None and item["clocks"]:
                header = _header(corpus, facts, applied, unapplied, item["clocks"], redact=redact)
                writer = stack.enter_context(SnapshotWriter(snapshot_to, header))

        def write(data: bytes, count: int) -> None:
            nonlocal done
            assert writer is not None  # noqa: S101 - the child sends the facts first
            assert corpus is not None  # noqa: S101 - else it has nothing to render
            writer.lines(data, count)
            if count:
                done += count
                progress("rendering conversations", done, corpus.count, "conversations")

        answer = run_bounded(
            "examine",
            {
                "folder": str(path),
                "template": None if template is None else _from_anywhere(template),
                "render": corpus is not None,
                "options": applied,
                "redact": redact,
            },
            limits=limits,
            on_item=take,
            feed=() if corpus is None else batches(corpus.conversations()),
            on_lines=write,
        )
        assert facts is not None  # noqa: S101 - the child sends them before it answers
        if writer is None or corpus is None:
            return facts, None
        if done != corpus.count:
            raise RuntimeError(f"the renderer's process gave {done} of {corpus.count} conversations back")
        pieces = {int(number): piece for number, piece in answer["pieces"].items()}
        return facts, writer.finish(answer["coverage"], pieces)


def _header(
    corpus: Corpus,
    facts: TokenizerFacts,
    options: Mapping[str, Any],
    unapplied: tuple[str, ...],
    clocks: list[str],
    *,
    redact: bool,
) -> SnapshotHeader:
    return SnapshotHeader(
        corpus=corpus.id,
        corpus_digest=corpus.digest,
        renderer=facts.renderer,
        jinja2=facts.jinja2,
        made="here",
        options=options,
        unapplied=unapplied,
        template=None if facts.template is None else facts.template.digest,
        tokenizer=facts.effective,
        clocks=tuple(clocks),
        redacted=redact,
    )


def _from_anywhere(template: str) -> str:
    """Make a file's path absolute: the child works in another folder."""
    try:
        return str(Path(template).absolute()) if Path(template).exists() else template
    except (OSError, ValueError):  # too long for a name, or a NUL in it: template text
        return template
