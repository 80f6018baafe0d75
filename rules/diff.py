"""From two manifests to typed changes: every dimension compared, and whatever no comparison claimed, counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from kvgate.rules.advisories import producer_changes
from kvgate.rules.catalogue import Comparison, Dimension, dimensions, owner_of
from kvgate.rules.change import UNCLASSIFIED, Change
from kvgate.rules.compare.adapters import compare_adapters
from kvgate.rules.compare.address import compare_address, compare_connector
from kvgate.rules.compare.maps import compare_args, compare_config
from kvgate.rules.compare.plain import (
    compare_build,
    compare_connector_version,
    compare_exact,
    compare_label,
    compare_max_model_len,
    compare_mutable,
    compare_replicas,
    compare_roles,
    compare_scales,
)
from kvgate.rules.compare.requests import compare_features, compare_tenancy
from kvgate.rules.compare.served import compare_served
from kvgate.rules.compare.sides import Sides
from kvgate.rules.compare.tokens import compare_renderer, compare_template, compare_tokenizer
from kvgate.rules.compare.weights import compare_weights
from kvgate.rules.errors import InputError

_COMPARISONS: Mapping[Comparison, Callable[[Dimension, Sides], list[Change]]] = {
    "weights": compare_weights,
    "served": compare_served,
    "config": compare_config,
    "tokenizer": compare_tokenizer,
    "renderer": compare_renderer,
    "template": compare_template,
    "exact": compare_exact,
    "scales": compare_scales,
    "adapters": compare_adapters,
    "build": compare_build,
    "max_model_len": compare_max_model_len,
    "args": compare_args,
    "features": compare_features,
    "roles": compare_roles,
    "tenancy": compare_tenancy,
    "connector_version": compare_connector_version,
    "mutable": compare_mutable,
    "address": compare_address,
    "connector": compare_connector,
    "replicas": compare_replicas,
    "label": compare_label,
}

# Comparisons that stay silent on a differing leaf on purpose: a digest that is equal decides for what it covers, labels
# and unused parts of an address are no difference, flags that are null are none, and what is unknown of the new side
# alone is said there.
_SILENT_BY_DESIGN = frozenset(
    {
        "label",
        "replicas",
        "address",
        "connector",
        "build",
        "weights",
        "served",
        "template",
        "max_model_len",
        "adapters",
        "args",
        "tenancy",
        "scales",
        "mutable",
        "roles",
        "features",
    }
)


def compare(sides: Sides) -> list[Change]:
    """Return every change between two deployments, in catalogue order.

    Raises:
        InputError: where the manifests contradict each other: equal weights with unequal ``kv_digest``
            under one list, or equal text of a template with unequal syntax trees, cannot both be true.

    """
    _refuse_contradiction(sides)
    changes = [
        change
        for dimension in dimensions()
        if not (dimension.only_with and sides.both_null(dimension.only_with))
        for change in _COMPARISONS[dimension.compare](dimension, sides)
    ]
    changes += producer_changes(sides)
    return changes + _unclaimed(sides, changes)


def compare_only(sides: Sides, wanted: Collection[str]) -> list[Change]:
    """Return the changes of some dimensions, as :func:`compare` finds them; nothing else is looked at."""
    return [
        change
        for dimension in dimensions()
        if dimension.id in wanted
        for change in _COMPARISONS[dimension.compare](dimension, sides)
    ]


def changed_leaves(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the paths at which two canonical manifests differ: lists whole, sorted.

    DeepDiff walks the manifest proper only; tensor maps and token lists are compared elsewhere, as maps
    and arrays.
    """
    if old == new and _kinds(old) == _kinds(new):
        return []
    from deepdiff import DeepDiff

    # Zero: maps without many keys in common are compared key by key too, and not reported as one change.
    found = DeepDiff(old, new, ignore_order=False, view="tree", threshold_to_diff_deeper=0)
    paths = {_map_path(level.path(output_format="list")) for levels in found.values() for level in levels}
    return sorted(paths)


def _kinds(value: Any) -> Any:
    """Tell True from 1, which compare equal."""
    if isinstance(value, Mapping):
        return {key: _kinds(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_kinds(item) for item in value]
    return isinstance(value, bool)


def _map_path(parts: list[Any]) -> str:
    names = []
    for part in parts:
        if not isinstance(part, str):
            break  # an index: the list is one leaf
        names.append(part)
    return ".".join(names)


def _unclaimed(sides: Sides, changes: list[Change]) -> list[Change]:
    """Return a change for every leaf that differs in a dimension whose comparison found nothing."""
    answered = {change.dimension for change in changes}
    left = []
    for path in changed_leaves(sides.old.canonical, sides.new.canonical):
        owner = owner_of(path)
        if owner is None or owner.id in answered or owner.compare in _SILENT_BY_DESIGN:
            continue
        if owner.only_with and sides.both_null(owner.only_with):
            continue
        if not sides.old.knows(path) or not sides.new.knows(path):
            continue  # what must be known to be equal, its own comparison has said
        left.append(Change(UNCLASSIFIED, UNCLASSIFIED, path, sides.old.get(path), sides.new.get(path)))
    return left


def _refuse_contradiction(sides: Sides) -> None:
    checkpoint = "weights.checkpoint"
    if not sides.both_null(checkpoint) and sides.same(f"{checkpoint}.kv_rule"):
        _refuse_unequal(sides, f"{checkpoint}.digest", f"{checkpoint}.kv_digest", " under the same list")
    # What a template reads is a list that a release of kvgate may learn to read better; its tree names it in ids.
    _refuse_unequal(sides, "chat_template.digest", "chat_template.tree", "")


def _refuse_unequal(sides: Sides, whole: str, part: str, how: str) -> None:
    """Refuse two sides of which the whole is equal, and a part of it is not."""
    if sides.same(whole) and sides.same(part) is False:
        raise InputError(
            f"contradicts {sides.old.source}: equal {whole}, unequal {part.rpartition('.')[2]}{how}",
            where=sides.new.where(part),
            hint="one of the manifests was edited; capture it again",
        )
