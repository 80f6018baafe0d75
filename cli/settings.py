"""``--set path=value``: what is written on a command line becomes what the manifest's schema asks for."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.manifest import refuse_value, schema_leaves
from kvgate.rules.schema import ManifestModel

_ANYTHING = object()  # a JSON value: any type will do


def parse_settings(given: Iterable[str]) -> dict[str, Any]:
    """Return manifest paths and values from ``path=value`` texts.

    Where the schema asks for a string the text is taken as it stands (``engine.version=0.33.0``,
    ``model.revision=010``); ``null`` is known to be unset. Everything else is read as YAML.

    Raises:
        UsageError: no ``=``, a path twice, no manifest path, a value that YAML cannot read.

    """
    settings: dict[str, Any] = {}
    for text in given:
        path, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{text!r} has no '='", where="--set", hint="write --set path=value")
        if path in settings:
            raise UsageError(f"{path} is set twice", where="--set")
        settings[path] = _value(path, value)
    return settings


def check_path(path: str, where: str) -> None:
    """Refuse what is neither a manifest path nor a section.

    Raises:
        UsageError: naming the nearest path.

    """
    if _types(path) is None:
        known = [leaf for leaf in schema_leaves() if leaf != "schema"]
        near = difflib.get_close_matches(path, known, 1)
        raise UsageError(
            f"{path!r} is not a manifest path",
            where=where,
            hint=f"did you mean {near[0]}?" if near else f"a path starts with {_sections()}",
        )


def _sections() -> str:
    *names, last = dict.fromkeys(leaf.partition(".")[0] for leaf in schema_leaves() if _types(leaf) is not None)
    return f"{', '.join(names)} or {last}"


def refuse_values(settings: Mapping[str, Any], where: str) -> None:
    """Refuse values that no manifest can hold, before any work is done.

    Raises:
        UsageError: naming the path, and the place that the value is from.

    """
    try:
        for path, value in settings.items():
            refuse_value(path, value, where)
    except InputError as error:
        raise UsageError(error.message, where=error.where, hint=error.hint) from None


def laid_over(configured: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Let the command line win: what it sets replaces what is configured at, below and above the same path.

    Of a mapping that is configured above it, only that part is replaced.
    """
    merged = dict(settings)
    for path, value in configured.items():
        above = any(path == own or path.startswith(f"{own}.") for own in settings)
        inside = {own: given for own, given in settings.items() if own.startswith(f"{path}.")}
        if not above and not inside:
            merged[path] = value
        elif not above and isinstance(value, Mapping) and path in schema_leaves():
            # A complete collection stays one: as parts, they would be added to what is found out.
            merged = {own: given for own, given in merged.items() if own not in inside}
            merged[path] = _replaced(value, {own[len(path) + 1 :]: given for own, given in inside.items()})
        elif not above and isinstance(value, Mapping):
            merged |= laid_over({f"{path}.{name}": part for name, part in value.items()}, inside)
    return merged


def _replaced(collection: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    replaced = dict(collection)
    for path, value in parts.items():
        head, _, rest = path.partition(".")
        inner = replaced.get(head)
        replaced[head] = _replaced(inner if isinstance(inner, Mapping) else {}, {rest: value}) if rest else value
    return replaced


def _value(path: str, text: str) -> Any:
    check_path(path, "--set")
    if not text:
        raise UsageError(f"{path} is set to nothing", where="--set", hint="null says that it is known to be unset")
    kinds = _types(path) or set()
    if kinds <= {str, None} and not (len(text) > 1 and text[0] == text[-1] == '"'):
        return None if text == "null" and None in kinds else text
    # As the value of a key, so that YAML's own spelling of lists and mappings is understood, JSON's included.
    try:
        document, _ = parse_document(f"{json.dumps(path)}: {text}".encode(), "--set")
    except InputError as error:
        if str in kinds:
            return text
        raise UsageError(error.message, where="--set", hint=error.hint) from None
    if document.keys() != {path}:
        raise UsageError(f"{path} is set to more than one value", where="--set")
    return document[path]


def _types(path: str) -> set[Any] | None:
    """Return the plain types that a path takes (``None`` for ``null``); ``None`` where it is no path."""
    if path.partition(".")[0] in ("schema", "provenance"):
        return None
    annotation: Any = ManifestModel
    for part in path.split("."):
        annotation = _below(annotation, part)
        if annotation is None:
            return None
    return {*_flat(annotation)}


def _below(annotation: Any, name: str) -> Any:
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            fields: Mapping[str, Any] = {info.alias or key: info for key, info in option.model_fields.items()}
            if name in fields:
                return _whole(fields[name])
        elif get_origin(option) is dict:
            return get_args(option)[1]
        elif not isinstance(option, type) and get_origin(option) is None:
            return option  # inside a JSON value anything goes
    return None


def _whole(info: Any) -> Any:
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


def _options(annotation: Any) -> Iterable[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _options(get_args(annotation)[0])
    elif origin is Union or type(annotation).__name__ == "UnionType":
        for option in get_args(annotation):
            yield from _options(option)
    else:
        yield annotation


def _flat(annotation: Any) -> Iterable[Any]:
    for option in _options(annotation):
        origin = get_origin(option)
        if option is type(None):
            yield None
        elif origin is Literal:
            yield from {type(value) for value in get_args(option)}
        elif origin in (dict, list):
            yield origin
        elif isinstance(option, type):
            yield option
        else:
            yield _ANYTHING
