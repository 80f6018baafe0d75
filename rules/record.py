"""The decision record: an in-toto Statement v1 in canonical JSON, made to be signed and re-derived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvgate.rules.action import action_for
from kvgate.rules.canonical import canonical_json, digest
from kvgate.rules.case import Case
from kvgate.rules.decide import Decision
from kvgate.rules.diff import changed_leaves
from kvgate.rules.evidence import Evidence, refutations
from kvgate.rules.find import Between
from kvgate.rules.finding import side_as_data
from kvgate.rules.manifest import Manifest
from kvgate.rules.pools import pools
from kvgate.rules.privacy import redacted
from kvgate.rules.profile import cover
from kvgate.rules.values import UNKNOWN, Known
from kvgate.rules.values import Field as ManifestField

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:kvgate:decision:v1"


@dataclass(frozen=True)
class Sources:
    """Where the inputs came from, so that the record can be derived again.

    Attributes:
        evidence: path and ``sha256:…`` of each evidence file that was read.
        rules: path and digest of a rule pack file; ``None`` for a shipped pack.
        waivers: path and digest of the waivers file, ``None`` without one.
        corpora: paths and digests of further corpora.
        sweep: whether the tokenizers were swept: ``auto``, ``always`` or ``never``.

    """

    evidence: Sequence[tuple[str, str]] = ()
    rules: tuple[str, str] | None = None
    waivers: tuple[str, str] | None = None
    corpora: Sequence[tuple[str, str]] = field(default_factory=tuple)
    sweep: str = "auto"


def record_of(decision: Decision, tool_version: str, sources: Sources | None = None) -> dict[str, Any]:
    """Return the decision record as plain data. The same decision and sources give the same record."""
    case, found = decision.case, sources or Sources()
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": case.new.source, "digest": {"sha256": case.new.sha256.removeprefix("sha256:")}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "tool": {"name": "kvgate", "version": tool_version},
            "verdict": decision.verdict,
            "accepted": decision.accepted,
            "enforced": decision.enforced,
            "acceptedBecause": decision.why,
            "exitCode": decision.exit_code,
            "action": action_for(decision).as_data(),
            "options": {
                "first": not case.old,
                "strategy": case.options.strategy,
                "declareClear": [old.sha256 for old in case.old] if case.options.declare_clear else [],
                "accept": sorted(case.options.accept),
                "advisory": case.options.advisory,
                "asOf": case.options.as_of,
            },
            "baseline": [_baseline(old, case.new) for old in case.old],
            "namespace": {
                "derived": decision.derived.id,
                "missing": [{"dimension": name, "settle": settle} for name, settle in decision.derived.missing],
                "current": _namespace(case.new),
            },
            "changes": [change for index, old in enumerate(case.old) for change in _changes(index, old, case.new)],
            "findings": [finding.as_data() for finding in decision.findings],
            "boundary": [_boundary(one) for one in decision.boundaries],
            "tokens": [item.figures for item in case.evidence if item.kind == "token-identity"],
            "evidence": [_evidence(item, case) for item in case.evidence],
            "waivers": {
                "used": [finding.waived for finding in decision.findings if finding.waived],
                "unused": [
                    {**waiver.model_dump(mode="json"), "because": why} for waiver, why in decision.unused_waivers
                ],
            },
            "policies": _policies(decision),
            "sources": {
                "evidence": [{"path": path, "sha256": content} for path, content in found.evidence],
                "rules": _source(found.rules),
                "waivers": _source(found.waivers),
                "corpora": [{"path": path, "sha256": content} for path, content in found.corpora],
                "sweep": found.sweep,
            },
        },
    }


def record_bytes(record: Mapping[str, Any]) -> bytes:
    """Encode a record as canonical JSON and one newline: what is signed, attached and compared."""
    return canonical_json(record) + b"\n"


def differences(recorded: Any, derived: Any, path: str = "") -> list[str]:
    """Return the paths at which two records differ, for ``record verify`` to name."""
    if isinstance(recorded, Mapping) and isinstance(derived, Mapping):
        return [
            found
            for key in sorted({*recorded, *derived})
            for found in differences(recorded.get(key, UNKNOWN), derived.get(key, UNKNOWN), f"{path}.{key}".lstrip("."))
        ]
    if isinstance(recorded, list) and isinstance(derived, list) and len(recorded) == len(derived):
        pairs = zip(recorded, derived, strict=True)
        return [found for number, (a, b) in enumerate(pairs) for found in differences(a, b, f"{path}[{number}]")]
    equal = recorded == derived and isinstance(recorded, bool) == isinstance(derived, bool)
    return [] if equal else [path or "record"]


def _evidence(item: Evidence, case: Case) -> dict[str, Any]:
    """Return evidence as it may be shown, and what it is to these deployments where it decides nothing of them.

    ``answered``: a refutation, and a proof answers it. ``others``: what shows that it is about other deployments.
    """
    olds: Sequence[Manifest | None] = case.old or (None,)
    against = [old for old in olds if item.speaks_against(old, case.new)]
    answered = against and not any(item in refutations(case.evidence, old, case.new) for old in against)
    others = min((item.about_others(old, case.new) for old in olds), key=len)
    told = {**({"answered": True} if answered else {}), **({"others": others} if others else {})}
    return {"digest": item.digest, **redacted(item).as_data(), **told}


def _source(source: tuple[str, str] | None) -> dict[str, str] | None:
    return None if source is None else {"path": source[0], "sha256": source[1]}


_BUILD = ("engine.image", "engine.packages")


def _baseline(old: Manifest, new: Manifest) -> dict[str, Any]:
    # Where no digest of either build was taken, two builds of one version are taken for the same; readers must see it.
    unlisted = all(side.unset(path) for side in (old, new) for path in _BUILD)
    build = "version" if unlisted else "digest"
    return {"name": old.source, "sha256": old.sha256, "release": _labels(old), "buildComparedBy": build}


def _labels(manifest: Manifest) -> dict[str, Any]:
    return dict(manifest.value("release") or {})


def _changes(index: int, old: Manifest, new: Manifest) -> list[dict[str, Any]]:
    return [
        {"baseline": index, "path": path, "old": side_as_data(_leaf(old, path)), "new": side_as_data(_leaf(new, path))}
        for path in changed_leaves(old.canonical, new.canonical)
    ]


def _leaf(manifest: Manifest, path: str) -> ManifestField:
    # Keys of complete collections may hold dots (file names do), so the path is walked greedily.
    value: Any = manifest.canonical
    rest = path
    while rest:
        if not isinstance(value, Mapping):
            return UNKNOWN
        name = max((key for key in value if rest == key or rest.startswith(f"{key}.")), key=len, default=None)
        if name is None:
            return UNKNOWN
        value, rest = value[name], rest[len(name) + 1 :]
    return Known(value, manifest.basis(path))


def _namespace(new: Manifest) -> dict[str, Any]:
    """Return the namespace as it is set; of each pool where they have others."""
    own = {str(pool.name): side_as_data(pool.manifest.get("cache.namespace")) for pool in pools(new)}
    first, *others = own.values()
    return {"pools": own} if any(one != first for one in others) else first


def _boundary(between: Between) -> dict[str, Any]:
    boundary, old = between.boundary, between.old
    return {
        "baseline": between.baseline,
        "pool": between.pool,
        "old": {
            "connector": side_as_data(old.get("cache.connector")),
            "location": side_as_data(old.get("cache.location")),
            "namespace": side_as_data(old.get("cache.namespace")),
            "owner": old.value("cache.cleanup_owner"),
            "ttl": old.value("cache.ttl"),
        },
        "separatedBy": list(boundary.separators),
        "knob": boundary.knob.path if boundary.knob is not None else None,
        "knobBecause": boundary.why_knob,
        "detached": boundary.detached,
        "profileSpeaks": boundary.certain or boundary.detached,
        "profileSilentBecause": boundary.why_not,
        "profileSilentOn": None if boundary.detached else boundary.silent_on,
    }


def _policies(decision: Decision) -> dict[str, Any]:
    case = decision.case
    profiles = {}
    for pool in (pool for manifest in (*case.old, case.new) for pool in pools(manifest)):
        profile = cover(pool.manifest, case.profiles).profile
        if profile is not None:
            profiles[profile.id] = digest(profile.model_dump(mode="json", by_alias=True))
    return {"pack": {"id": case.pack.id, "digest": case.pack.digest}, "profiles": profiles}
