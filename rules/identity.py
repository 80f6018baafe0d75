"""What a deployment is, apart from where its cache lies: the projection behind derived ids and evidence binding.

Harmless parts are left out, so that neither an id moves nor a refutation is shed when only they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from kvgate.rules.attention import replicas_divide_attention
from kvgate.rules.catalogue import Dimension, dimensions
from kvgate.rules.change import measured
from kvgate.rules.compare.maps import counting_args, counting_config
from kvgate.rules.compare.plain import rope_reads_length
from kvgate.rules.compare.published import names_a_part
from kvgate.rules.compare.served import EVERY, beside, holds_checkpoint, is_whole
from kvgate.rules.compare.served import PATH as SERVED
from kvgate.rules.compare.tokens import built_by_what_serves
from kvgate.rules.manifest import Manifest
from kvgate.rules.values import UNKNOWN, Known

_PINNED = "weights.hub"
_FILES = "tokenizer.files"
_OWN = f"{SERVED}.own"
_STANDS_IN = {"weights.checkpoint.digest": _PINNED, "engine.packages": "engine.image"}
"""What is identity where the path itself is null: nothing was digested, which says nothing of what it is."""


@lru_cache(maxsize=256)
def identity(manifest: Manifest) -> dict[str, Any]:
    """Return the identity paths that are known, with their values reduced to what counts.

    A path whose reduction depends on something unknown is left out: were it kept whole, forgetting that
    something would change it, and shed the refutations that are bound to it.
    """
    found: dict[str, Any] = {}
    for dimension in dimensions():
        if _irrelevant(dimension, manifest):
            continue
        for path in dimension.identity:
            field = manifest.get(path)
            if dimension.never_unset and manifest.unset(path):
                continue
            if isinstance(field, Known) and (value := _reduced(path, field.value, manifest)) is not UNKNOWN:
                found[path] = value
    if (pinned := _pin(manifest)) is not None:
        found[_PINNED] = pinned
    if manifest.value(SERVED) and holds_checkpoint(manifest) and (own := beside(manifest)) not in (None, {EVERY: None}):
        found[_OWN] = own  # apart: an engine not asked contradicts none of it
    if manifest.knows(_FILES) and not built_by_what_serves(manifest):
        found[_FILES] = manifest.value(_FILES)  # for all that is known, other files are another tokenizer
    return found


def missing_identity(manifest: Manifest) -> list[Dimension]:
    """Return the dimensions whose identity is not known, or only declared where it must be measured; by order."""
    known = identity(manifest)
    missing = []
    for dimension in dimensions():
        if _irrelevant(dimension, manifest):
            continue
        for path in dimension.identity:
            field = manifest.get(path)
            if path in _STANDS_IN and path not in known:
                complete = _STANDS_IN[path] in known and not (_STANDS_IN[path] == _PINNED and names_a_part(manifest))
            elif path in _STANDS_IN.values():
                continue  # asked for where it stands in
            else:
                complete = path in known and (
                    dimension.needs == "declared" or _nothing_to_measure(path, known[path]) or measured(field)
                )
            if not complete:
                missing.append(dimension)
                break
    return sorted(missing, key=lambda dimension: dimension.order)


def _irrelevant(dimension: Dimension, manifest: Manifest) -> bool:
    if dimension.id == "parallelism.data" and not replicas_divide_attention(manifest):
        return True
    path = dimension.only_with
    return path is not None and manifest.unset(path)


def _reduced(path: str, value: Any, manifest: Manifest) -> Any:
    if path == "model.config" and isinstance(value, Mapping):
        return counting_config(value)
    if path == SERVED:
        return _served(value, manifest)
    if path == "engine.args":
        engine = manifest.value("engine.name")
        return UNKNOWN if engine is None else counting_args(value or {}, engine)
    if path == "adapters":
        digests = {name: entry.get("digest") for name, entry in value.items() if entry.get("removed") is not True}
        return UNKNOWN if None in digests.values() else digests
    if path == "engine.max_model_len":
        if not manifest.knows("model.config"):
            return UNKNOWN
        return value if rope_reads_length(manifest) is not False else None
    if path == "tokenizer.special_tokens":
        reads = manifest.get("chat_template.reads")
        if not isinstance(reads, Known):
            return UNKNOWN
        return {name: token for name, token in value.items() if name in (reads.value or ())}
    if path == "engine.image":
        return value if manifest.unset("engine.packages") else UNKNOWN
    if path == "cache.tenancy":
        return None if value is None or value["boundary"] == "shared" else value
    if path in _STANDS_IN and value is None:
        return UNKNOWN
    return value


def _served(value: Any, manifest: Manifest) -> Any:
    """Return what served weights add to the checkpoint: nothing where they are shown to be it, buffers aside."""
    if value is None:
        return None
    if not is_whole(manifest):
        return UNKNOWN
    if holds_checkpoint(manifest):
        return UNKNOWN if beside(manifest) is None else None
    claims = any(entry.get("checkpoint") is not None for entry in value.values())
    if claims and not manifest.knows("weights.checkpoint.digest"):
        return UNKNOWN
    return {rank: entry["digest"] for rank, entry in value.items()}


def _nothing_to_measure(path: str, value: Any) -> bool:
    """Whether what is known names nothing with a digest: ``null``, or an empty set of adapters."""
    return value is None or (path == "adapters" and value == {})


def _pin(manifest: Manifest) -> dict[str, str] | None:
    hub = manifest.value("weights.hub")
    if manifest.unset("weights.checkpoint") and isinstance(hub, Mapping):
        return {"repo": hub["repo"], "commit": hub["commit"]}
    return None
