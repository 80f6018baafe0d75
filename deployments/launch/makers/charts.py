"""Files of Helm values: which chart they are for, which version of it, and the pods that it makes of them.

A chart's own templates write flags and variables too, and another version writes others. So what values do not say is
known only where the version of the chart is: ``helm show chart`` prints it, and it is given as a file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.deployments.launch.filled import GO_TEMPLATE
from kvgate.deployments.launch.makers.modelservice import MODELSERVICE, modelservice_objects
from kvgate.deployments.launch.makers.production_stack import STACK, stack_objects
from kvgate.deployments.launch.makers.values import Values, laid_over
from kvgate.deployments.launch.objects import KubernetesObject
from kvgate.deployments.launch.secrets import clean_text
from kvgate.rules.document import TwoWays, parse_foreign_documents
from kvgate.rules.errors import InputError

_HEADINGS = ("USER-SUPPLIED VALUES", "COMPUTED VALUES")
_RENDERED = "give what is deployed: the output of `helm template`"
_CHARTS = {STACK.name: (STACK, stack_objects), MODELSERVICE.name: (MODELSERVICE, modelservice_objects)}


def chart_of_values(text: str) -> str | None:
    """Return which chart a file holds values of, by its top-level keys; nothing is parsed."""
    for name, (chart, _) in _CHARTS.items():
        if text.lstrip().startswith("{"):
            if f'"{chart.told_by[0]}"' in text:
                return name
        elif re.search(rf"^(?:{'|'.join(chart.told_by)})[ \t]*:", text, re.MULTILINE):
            return name
    return None


def is_chart(text: str) -> bool:
    """Whether a file is a chart's own description (``Chart.yaml``, ``helm show chart``)."""
    found = set(re.findall(r"^(apiVersion|name|version|kind)[ \t]*:", text, re.MULTILINE))
    return found == {"apiVersion", "name", "version"}


def chart_objects(
    values: Sequence[tuple[str, bytes]], descriptions: Sequence[tuple[str, bytes]]
) -> list[KubernetesObject]:
    """Return what charts make of values.

    Args:
        values: name and content of files of values; several of one chart are laid over each other in their order, as
            Helm does.
        descriptions: name and content of the charts' own descriptions.

    Raises:
        InputError: not well-formed, a value of another kind than the chart takes, a description of another chart.
    """
    layers: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for source, data in values:
        name = chart_of_values(data.decode("utf-8")) or ""
        layers.setdefault(name, []).append((source, _one_mapping(source, data)))
    versions = dict(_version(source, data, layers) for source, data in descriptions)
    objects = []
    for name, given in layers.items():
        merged: dict[str, Any] = {}
        for _, layer in given:
            merged = laid_over(merged, layer)
        where = f"{' and '.join(source for source, _ in given[:2])}:"
        chart, objects_of = _CHARTS[name]
        objects += objects_of(Values(merged, where), chart.version(versions.get(name)))
    return objects


def _version(source: str, data: bytes, layers: Mapping[str, Any]) -> tuple[str, str]:
    description = _one_mapping(source, data)
    name, version = description.get("name"), description.get("version")
    if not isinstance(name, str) or not isinstance(version, str) or isinstance(version, TwoWays):
        raise InputError("a chart has a name and a version", where=source)
    if name not in layers:
        shown = clean_text(name) or "..."
        raise InputError(f"describes the chart {shown}, and no values of it were given", where=source, hint=_RENDERED)
    return name, version.removeprefix("v")


def _one_mapping(source: str, data: bytes) -> Mapping[str, Any]:
    try:
        documents = parse_foreign_documents(data, source)
    except InputError as error:
        if GO_TEMPLATE.search(data.decode("utf-8", "replace")):
            message = "holds a template language that kvgate does not run"
            raise InputError(message, where=error.where, hint=_RENDERED) from None
        raise
    if len(documents) != 1 or not isinstance(documents[0][0], Mapping):
        raise InputError("is not one mapping of values", where=source)
    # `helm get values` prints a heading, which looks like a value of nothing.
    return {key: value for key, value in documents[0][0].items() if key not in _HEADINGS or value is not None}
