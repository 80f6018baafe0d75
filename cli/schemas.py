"""The JSON Schemas of the files that kvgate reads and writes, made from the types that read and write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvgate.rules.errors import UsageError

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of ``manifest``, ``record``, ``evidence``, ``waivers``, ``profile`` or ``served-weights``.

    Raises:
        UsageError: another name.

    """
    if name not in _SCHEMAS:
        raise UsageError(f"there is no schema {name!r}", hint=f"schemas: {', '.join(_SCHEMAS)}")
    identifier, schema = _SCHEMAS[name]()
    return {"$schema": DIALECT, "$id": identifier, **schema}


def _manifest() -> tuple[str, dict[str, Any]]:
    from kvgate.rules.schema import SCHEMA_ID, ManifestModel

    return f"urn:{SCHEMA_ID.replace('/', ':')}", ManifestModel.model_json_schema()


def _record() -> tuple[str, dict[str, Any]]:
    from kvgate.rules.record import PREDICATE_TYPE
    from kvgate.rules.record_schema import Record

    return PREDICATE_TYPE, Record.model_json_schema()


def _evidence() -> tuple[str, dict[str, Any]]:
    from kvgate.rules.evidence import SCHEMA_ID, Evidence

    return f"urn:{SCHEMA_ID.replace('/', ':')}", Evidence.model_json_schema()


def _waivers() -> tuple[str, dict[str, Any]]:
    from kvgate.rules.waivers import SCHEMA_ID, Waivers

    return f"urn:{SCHEMA_ID.replace('/', ':')}", Waivers.model_json_schema()


def _profile() -> tuple[str, dict[str, Any]]:
    from kvgate.rules.profile import SCHEMA_ID, Profile

    return f"urn:{SCHEMA_ID.replace('/', ':')}", Profile.model_json_schema()


def _served_weights() -> tuple[str, dict[str, Any]]:
    from kvgate.weights.served.report import SCHEMA, ServedRank

    return f"urn:{SCHEMA.replace('/', ':')}", ServedRank.model_json_schema()


_SCHEMAS: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
    "manifest": _manifest,
    "record": _record,
    "evidence": _evidence,
    "waivers": _waivers,
    "profile": _profile,
    "served-weights": _served_weights,
}
