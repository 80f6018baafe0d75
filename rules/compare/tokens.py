"""Tokenizer, template and renderer: equal input gives equal ids only where all three are what they were.

Equality by digest is a proof (design, section 8, a and b) and is decided here; anything less is left to
``token-identity`` evidence.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvgate.rules.catalogue import Dimension
from kvgate.rules.change import Change, measured
from kvgate.rules.compare.sides import Sides
from kvgate.rules.manifest import Manifest
from kvgate.rules.values import Field, Known

_LIBRARIES = ("transformers", "tokenizers")
_DECLARED = "equal, but only declared: nobody computed them"


def compare_tokenizer(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare what the renderer built.

    Kinds: ``effective``, ``vocabulary``, ``special-tokens``, ``inert``, ``unverified``.
    ``inert``: the files differ but the tokenizer that the serving libraries build from them does not, or a special
    token changed that the template does not read (eos, pad and the like do not touch prefix ids: incident I14).
    """
    changes = []
    for path, kind in (("tokenizer.effective", "effective"), ("tokenizer.vocabulary.digest", "vocabulary")):
        equal = sides.same(path)
        if equal is None:
            changes.append(sides.unverified(dimension, path, sides.unknown_sides(path)))
        elif not equal:
            changes.append(sides.change(dimension, kind, path))
        elif not (measured(sides.old.get(path)) and measured(sides.new.get(path))):
            changes.append(sides.unverified(dimension, path, _DECLARED))
    size = "tokenizer.vocabulary.size"
    if sides.same(size) is False and sides.same("tokenizer.vocabulary.digest") is not False:
        changes.append(sides.change(dimension, "vocabulary", size, detail="another size"))
    changes += _special_tokens(dimension, sides)
    return changes + _files(dimension, sides)


def _files(dimension: Dimension, sides: Sides) -> list[Change]:
    """Judge the files: they do not count where the digest above is of what the serving libraries build from them."""
    path = "tokenizer.files"
    equal = sides.same(path)
    if all(built_by_what_serves(side) for side in (sides.old, sides.new)):
        if equal is not False:
            return []
        detail = f"{_differing(sides)} differ; what is built from them is judged above"
        return [sides.change(dimension, "inert", path, detail=detail)]
    if equal:
        return []
    detail = sides.unknown_sides(path) if equal is None else f"{_differing(sides)} differ"
    return [
        sides.unverified(
            dimension, path, f"{detail}, and tokenizer.effective is not known to be of the libraries that serve"
        )
    ]


def _differing(sides: Sides) -> str:
    old, new = (side.value("tokenizer.files") for side in (sides.old, sides.new))
    return ", ".join(sorted(name for name in {*old, *new} if old.get(name) != new.get(name)))


def built_by_what_serves(manifest: Manifest) -> bool:
    """Whether the libraries that built ``tokenizer.effective`` are known to be those that serve.

    Another release builds another tokenizer from equal files (huggingface/transformers#45488).
    """
    built, serving = manifest.value("tokenizer.built_by"), manifest.value("tokenizer.renderer")
    return (
        isinstance(built, Mapping)
        and isinstance(serving, Mapping)
        and all(built.get(name) is not None and built[name] == serving.get(name) for name in _LIBRARIES)
    )


def _special_tokens(dimension: Dimension, sides: Sides) -> list[Change]:
    path = "tokenizer.special_tokens"
    equal = sides.same(path)
    if equal is None:
        return [sides.unverified(dimension, path, sides.unknown_sides(path))]
    if equal:
        return []
    old, new = sides.old.value(path), sides.new.value(path)
    names = sorted(name for name in {*old, *new} if old.get(name, ()) != new.get(name, ()))
    read = [_reads(side.get("chat_template"), names) for side in (sides.old, sides.new)]
    if None in read:
        return [
            sides.change(
                dimension, "special-tokens", path, detail=f"{', '.join(names)}; what the template reads is not known"
            )
        ]
    used = sorted({name for names_read in read for name in names_read or ()})
    if used:
        return [sides.change(dimension, "special-tokens", path, detail=f"the template reads {', '.join(used)}")]
    return [sides.change(dimension, "inert", path, detail=f"{', '.join(names)}: not read by the template")]


def _reads(template: Field, names: list[str]) -> list[str] | None:
    if not isinstance(template, Known):
        return None
    if template.value is None:
        return []  # no template, so nothing reads them
    if "reads" not in template.value:
        return None
    return [name for name in names if name in template.value["reads"]]


def compare_template(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare chat templates (kinds: ``tree``, ``text``, ``clock``, ``unverified``).

    ``text``: the text differs, the syntax tree does not. ``clock``: the template reads the clock, so every
    prefix goes cold when it moves on (incident I17).
    """
    section, digest, tree = "chat_template", "chat_template.digest", "chat_template.tree"
    changes = []
    if sides.both_null(section):
        return []
    if (
        None in (sides.old.value(section), sides.new.value(section))
        and sides.old.knows(section)
        and sides.new.knows(section)
    ):
        return [sides.change(dimension, "tree", section, detail="one side has no chat template")]
    equal = sides.same(digest)
    if equal is None:
        changes.append(sides.unverified(dimension, digest, sides.unknown_sides(digest)))
    elif equal and not (measured(sides.old.get(digest)) and measured(sides.new.get(digest))):
        changes.append(sides.unverified(dimension, digest, _DECLARED))
    elif not equal:
        proved = sides.same(tree) and measured(sides.old.get(tree)) and measured(sides.new.get(tree))
        changes.append(
            sides.change(dimension, "text", digest, detail="comments or layout only: the syntax tree is the same")
            if proved
            else sides.change(dimension, "tree", digest)
        )
    if sides.new.value("chat_template.reads_clock") is True:
        changes.append(sides.change(dimension, "clock", "chat_template.reads_clock", detail=_going_cold(sides.new)))
    return changes


def _going_cold(new: Manifest) -> str:
    period = new.value("chat_template.clock")
    if period == "day":
        return "prefixes go cold at midnight"
    return "prefixes go cold as time goes by" if period is None else f"prefixes go cold with every {period}"


def compare_renderer(dimension: Dimension, sides: Sides) -> list[Change]:
    """Compare what renders where requests are served (kinds: ``differs``, ``unverified``).

    Two nulls ("what the image holds") are equal where both sides run the same image or package set.
    """
    changes = []
    for name in ("engine", "engine_version", "transformers", "tokenizers"):
        path = f"{dimension.paths[0]}.{name}"
        equal = sides.same(path)
        if equal is None:
            changes.append(sides.unverified(dimension, path, sides.unknown_sides(path)))
        elif not equal:
            changes.append(sides.change(dimension, "differs", path))
        elif sides.both_null(path) and not _build_known_equal(sides, name):
            changes.append(
                sides.unverified(
                    dimension, path, "left to the image on both sides, and the images are not known to be equal"
                )
            )
    return changes


def _build_known_equal(sides: Sides, name: str) -> bool:
    if name == "engine":
        return sides.same("engine.name") is True
    if name == "engine_version":
        return sides.same("engine.version") is True
    return any(sides.same(path) is True and not sides.both_null(path) for path in ("engine.image", "engine.packages"))
