"""When two deployments are proved to give every text the same token ids.

Sampling proves no tokenizer. Proofs are: everything that makes ids is equal by digest, or differs in ways that no id
depends on; or the chat template alone differs, both sides rendered the whole diagnostic corpus alike, each with the
libraries that it serves with, and of every changed branch it is shown that it prints the same (design, section 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvgate.rules.change import Change, measured
from kvgate.rules.compare.sides import Sides
from kvgate.rules.diff import compare_only
from kvgate.rules.discharge import TOKEN_DIMENSIONS, token_changes
from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import cover

if TYPE_CHECKING:
    from kvgate.corpora.snapshots.comparison import SnapshotComparison
    from kvgate.corpora.snapshots.snapshot import SnapshotHeader

_LIBRARIES = ("transformers", "tokenizers")
_REFUSING = frozenset({"vllm", "transformers"})
"""Engines that answer with an error where a template fails. SGLang renders such a request again, its tools written in
another way (sgl-project/sglang, python/sglang/srt/entrypoints/openai/serving_chat.py, 0.5.23): there, a template that
fails is not one that leaves no tokens, which is what the proofs take it for."""


def what_differs(old: Manifest, new: Manifest) -> list[Change]:
    """Return what may give the same text other ids; nothing: the manifests prove that they are equal."""
    return token_changes(compare_only(Sides(old, new, cover(old), cover(new)), TOKEN_DIMENSIONS))


def why_not_proved(
    old: Manifest, new: Manifest, differing: Sequence[Change], comparisons: Sequence[SnapshotComparison]
) -> str | None:
    """Say why equal ids on the corpora are no proof; ``None``: they are one.

    Args:
        old: the old deployment.
        new: the new one.
        differing: :func:`what_differs`.
        comparisons: the diagnostic corpus first; in none of them do ids diverge.
    """
    renderers = [side.value("tokenizer.renderer") for side in (old, new)]
    if renderers[0] != renderers[1] and all(one.same_renderer for one in comparisons):
        return (
            "no divergence, but one library rendered both sides although different ones serve: take each side's "
            "snapshot inside its own image (kvgate corpus script)"
        )
    if not all(_template_alone(change) for change in differing):
        return "no divergence on the corpus; sampling proves no tokenizer or renderer equal"
    found = comparisons[0]
    doubts = (
        _corpus_doubt(found),
        _side_doubt("old", old, found.old),
        _side_doubt("new", new, found.new),
        _coverage_doubt(found),
    )
    doubt = next((one for one in doubts if one is not None), None)
    return None if doubt is None else f"no divergence on the corpus; not proved: {doubt}"


def _template_alone(change: Change) -> bool:
    return (
        change.dimension == "chat_template"
        and change.kind == "tree"
        and change.path == "chat_template.digest"
        and measured(change.old)
        and measured(change.new)
    )


def _corpus_doubt(found: SnapshotComparison) -> str | None:
    from kvgate.corpora.divergence.figures import is_public

    if not is_public(found):
        return "only the whole diagnostic corpus of this kvgate is enough"
    if found.only_old.count or found.only_new.count or not found.examined:
        return "a side did not render the whole diagnostic corpus"
    if found.redefined.count:
        return "an id stands for another string"
    return None


def _side_doubt(name: str, manifest: Manifest, header: SnapshotHeader) -> str | None:
    """Say why a snapshot does not show what the deployment itself renders."""
    from kvgate.corpora.rendering.options import render_options

    options, unapplied = render_options(manifest.value("tokenizer.options") or {})
    serving = manifest.value("tokenizer.renderer") or {}
    if serving.get("engine") not in _REFUSING:
        return f"the {name} side's engine is not known to refuse what its template cannot render"
    if header.made == "endpoint":
        return f"the {name} side's server does not say which branches of its template ran"
    if header.tokenizer is None or header.tokenizer != manifest.value("tokenizer.effective"):
        return f"the {name} side's snapshot is of another tokenizer than its manifest"
    if header.template != manifest.value("chat_template.digest"):
        return f"the {name} side's snapshot is of another chat template than its manifest"
    if unapplied or header.unapplied or header.options != options:
        return f"the {name} side's snapshot was not rendered with the options of its manifest"
    if any(serving.get(library) is None or serving[library] != header.renderer.get(library) for library in _LIBRARIES):
        return f"the {name} side's snapshot was not rendered by the libraries that its manifest says serve"
    return None


def _coverage_doubt(found: SnapshotComparison) -> str | None:
    from kvgate.corpora.coverage.detection import same_detection

    if found.coverage is None:
        return "which branches of the chat templates ran is not recorded"
    if not found.same_renderer:
        return "two releases of a library rendered the two sides"
    if failed := next((one for one in found.unexamined.first if not one.same_error), None):
        return f"one side alone could not render {failed.id}"
    if found.unexamined.count > len(found.unexamined.first):
        return f"{found.unexamined.count} conversations could not be rendered"
    if not found.old.clocks or found.old.clocks != found.new.clocks:
        return "the two sides were not rendered on the same dates"
    if found.coverage.open:
        return str(found.coverage.open[0])
    if not same_detection(found.coverage.old, found.coverage.new):
        return "engines read the form of message content off the template's loops and assignments, and those differ"
    return None
