"""A snapshot that was taken where requests are served: does it belong to the deployment that is captured?"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvgate.corpora.rendering.options import render_options
from kvgate.rules.errors import InputError

if TYPE_CHECKING:
    from kvgate.corpora.snapshots.snapshot import SnapshotFile
    from kvgate.corpora.tokenizers.facts import TokenizerFacts

LIBRARIES = ("transformers", "tokenizers")
ENGINES = ("vllm", "sglang")


def engine_of(snapshot: SnapshotFile) -> tuple[str, str] | None:
    """Return name and version of the server that was asked; ``None``: libraries rendered, and no server did."""
    return next(((name, snapshot.header.renderer[name]) for name in ENGINES if name in snapshot.header.renderer), None)


def built_elsewhere(found: TokenizerFacts, snapshot: SnapshotFile) -> TokenizerFacts:
    """Return the facts with the tokenizer that was built where the snapshot was taken."""
    if snapshot.header.tokenizer is not None:
        return dataclasses.replace(found, effective=snapshot.header.tokenizer)
    reason = ("effective", f"{snapshot.path.name} does not say which tokenizer was built")
    return dataclasses.replace(found, effective=None, unread=(*found.unread, reason))


def refuse_another_deployment(
    snapshot: SnapshotFile,
    found: TokenizerFacts,
    launched: Mapping[str, Any],
    *,
    template_known: bool,
) -> None:
    """Refuse a snapshot that contradicts the files or the launch line.

    Args:
        snapshot: taken elsewhere.
        found: what the files are, as this environment reads them.
        launched: what the launch line says, by manifest path; empty where there is none.
        template_known: whether ``found`` has the template that is in force.

    Raises:
        InputError: naming the snapshot and what differs.

    """
    header, where = snapshot.header, str(snapshot.path)
    asked = engine_of(snapshot)
    if asked is not None:
        for said, path in zip(asked, ("engine.name", "engine.version"), strict=True):
            if launched.get(path) not in (None, said):
                raise InputError(
                    f"{' '.join(asked)} was asked, and the launch line starts {launched[path]}",
                    where=where,
                    hint="ask the server that this launch line starts",
                )
    elif missing := [name for name in LIBRARIES if name not in header.renderer]:
        raise InputError(f"does not say which {missing[0]} rendered it", where=where, hint="take it again")
    if "tokenizer.options" in launched:
        applied, _ = render_options(launched["tokenizer.options"])
        other = next((name for name, value in applied.items() if header.options.get(name) != value), None)
        if other is not None:
            raise InputError(
                f"was rendered with another {other} than the launch line sets",
                where=where,
                hint=f"take it with --option {other}=...",
            )
    if asked is not None:
        return
    template = None if found.template is None else found.template.digest
    if template_known and header.template != template:
        raise InputError(
            "its renderer took another chat template than the one found here",
            where=where,
            hint="take it of this folder with the same --chat-template; an old transformers may not read "
            "chat_template.jinja, and then serves another one",
        )
    here = {name: found.renderer[name] for name in LIBRARIES} == {name: header.renderer[name] for name in LIBRARIES}
    if here and None not in (header.tokenizer, found.effective) and header.tokenizer != found.effective:
        raise InputError(
            "the same libraries build another tokenizer from these files", where=where, hint="take it of this folder"
        )
