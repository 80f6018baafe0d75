"""The one job of the bounded child: what the tokenizer and template are, and what they make of a corpus."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.corpora.child.limits import Limits
from kvgate.corpora.coverage.installed import recording
from kvgate.corpora.rendering.pipeline import Pipeline
from kvgate.corpora.rendering.renderer import CLOCKS, Renderer
from kvgate.corpora.sweeps.encoder import Encoder
from kvgate.corpora.templates.template import Templates, describe_templates, resolve_templates, with_processors
from kvgate.corpora.tokenizers.backend import Folder, build, describe, needs_code, versions
from kvgate.corpora.tokenizers.effective import leaves_encoding_to_its_backend

if TYPE_CHECKING:
    from kvgate.corpora.child.worker import Allowance, Channel


def examine_here(
    arguments: Mapping[str, Any], limits: Limits, channel: Channel, allowance: Allowance
) -> dict[str, Any]:
    """Describe a tokenizer and render conversations; the facts go out first, then each rendering as an item of its own.

    Args:
        arguments: ``folder``, ``template`` (override), ``render`` (whether conversations are fed), ``options`` and
            ``redact``.
        limits: the bounds, for those that are checked here.
        channel: where steps and renderings go.
        allowance: the memory limit, which shrinks before templates are touched.

    Returns:
        ``coverage`` and ``pieces`` of the snapshot's footer, where conversations were rendered.

    Raises:
        InputError: the files cannot be read, are hostile, or are no tokenizer.

    """
    path = Path(arguments["folder"])
    channel.step("load", "loading the tokenizer", str(path))
    folder = Folder(path)
    tokenizer = build(folder)
    built = not isinstance(tokenizer, str)
    facts: dict[str, Any] = {"effective": None, "vocabulary": None, "special_tokens": None, "unread": []}
    if built:
        facts = describe(tokenizer)
        if needs_code(folder.config):
            facts["unread"].append(
                (
                    "code",
                    "tokenizer_config.json names code of the repository: engines that run it build another",
                )
            )
    else:
        facts["unread"].append(("effective", tokenizer))

    allowance.shrink()
    templates = resolve_templates(path, folder.config, arguments["template"])
    if built and arguments["template"] is None:
        templates = _as_loaded(templates, tokenizer, path)
    if arguments["template"] is None:
        templates = with_processors(templates, path)
    template = None
    if templates is not None:
        channel.step("parse", "parsing the chat template", next(iter(templates.where.values())))
        template = describe_templates(templates)
    rendering = built and arguments["render"]
    clocks = CLOCKS if template is not None and template.reads_clock else CLOCKS[:1]
    facts |= {
        "files": folder.files,
        "versions": versions(),
        "template": None if template is None else dataclasses.asdict(template),
    }
    channel.item({"facts": facts, "clocks": clocks if rendering else []})
    if not rendering:
        return {}
    where = str(path) if templates is None else next(iter(templates.where.values()))
    direct = leaves_encoding_to_its_backend(tokenizer)
    pipeline = Pipeline(
        Renderer(
            tokenizer,
            None if arguments["template"] is None or template is None else template.texts["default"],
            arguments["options"],
            where,
            limits.text_bytes,
            random=template is not None and template.reads_chance,
        ),
        Encoder(tokenizer, direct=direct),
        clocks,
        direct=direct,
        redact=arguments["redact"],
        position=channel.position,
    )
    gc.freeze()  # what is loaded stays; looking through it for garbage again and again takes time
    channel.step("render", "rendering the chat template", where)
    with recording({} if template is None else template.texts) as recorder:
        pipeline.run(_allowed(channel, allowance), channel.lines, recorder)
    coverage = None if recorder is None else recorder.coverage().as_data()
    pieces = {} if arguments["redact"] else _pieces(tokenizer, pipeline.used)
    return {"coverage": coverage, "pieces": pieces}


def _allowed(channel: Channel, allowance: Allowance) -> Iterator[list[dict[str, Any]]]:
    conversations = 0
    for batch in channel.feed():
        conversations += len(batch)
        allowance.extend(conversations)
        yield batch


def _pieces(tokenizer: Any, used: set[int]) -> dict[int, str]:
    """Return the vocabulary's string for each id; one that it does not name is left out."""
    numbers = sorted(used)
    pieces = tokenizer.convert_ids_to_tokens(numbers)
    return {number: piece for number, piece in zip(numbers, pieces, strict=True) if isinstance(piece, str)}


def _as_loaded(found: Templates | None, tokenizer: Any, path: Path) -> Templates | None:
    """Return what transformers loaded: should another release look elsewhere, its answer stands."""
    loaded = tokenizer.chat_template
    texts = {"default": loaded} if isinstance(loaded, str) else dict(loaded or {})
    if texts == (dict(found.texts) if found is not None else {}):
        return found
    if not texts:
        return None
    return Templates(texts, f"transformers {versions()['transformers']}", dict.fromkeys(texts, str(path)))
