"""What the commands that ask running models share: manifests, outputs, the evidence they write."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvgate.rules.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvgate.rules.evidence import Evidence, Kind
    from kvgate.rules.manifest import Manifest
    from kvgate.rules.pools import Pool


def probe_outputs(given: Sequence[str] | None) -> tuple[str, Path | None]:
    """Return the format for standard output and the file for evidence, as ``-o`` asks for them.

    Raises:
        UsageError: something else, or one of them twice.

    """
    form: str | None = None
    target: Path | None = None
    for text in given or ():
        if text in ("text", "json") and form is None:
            form = text
        elif text.endswith(".json") and target is None:
            target = Path(text)
        else:
            raise UsageError(f"{text!r} is not one of text, json and FILE.json, once each", where="-o")
    return form or "text", target


def as_words(given: Mapping[str, object]) -> list[str]:
    """Return options as words of a command that repeats it; what was not given is left out."""
    said = {option: value for option, value in given.items() if value is not None}
    told = {option: f"{value:g}" if isinstance(value, float) else str(value) for option, value in said.items()}
    return [word for pair in told.items() for word in pair]


def finite(value: float, option: str) -> float:
    """Return a number that can be compared with: nothing is larger than NaN, and everything would be alike.

    Raises:
        UsageError: it is infinite, or none.

    """
    if not math.isfinite(value):
        raise UsageError("is not a number to compare with", where=option)
    return value


def manifests_of(new: str | None, old: str | None, target: Path | None) -> tuple[Manifest | None, Manifest | None]:
    """Read the manifests that evidence is about.

    Raises:
        UsageError: evidence is to be written about nothing.
        InputError: one cannot be read.

    """
    from kvgate.inputs import load_manifest

    if new is None and (target is not None or old is not None):
        raise UsageError(
            "evidence is about a deployment", where="-o" if target else "--old", hint="--manifest MANIFEST"
        )
    return (
        None if new is None else load_manifest(new),
        None if old is None else load_manifest(old),
    )


@dataclass(frozen=True)
class Asked:
    """What a server is, of the deployment that evidence is about.

    Attributes:
        pools: that it may be of; the deployment itself where it has none.
        missing: what is not known of it, for the evidence's coverage.

    """

    pools: tuple[Pool, ...]
    missing: dict[str, str]


def refuse_other_server(manifest: Manifest, endpoint: str, key: str | None, pool: str | None = None) -> Asked:
    """Refuse to write about one deployment what another one answered.

    A server behind a gateway may not say what it is: then it is the caller's word.

    Raises:
        InputError: the server tells a setting that is another in the manifest, and in each pool of it.
        UsageError: the manifest has no such pool.

    """
    from kvgate.corpora.endpoints.server import NoKnownEngineError
    from kvgate.probes.readiness.fitting import asked_pools, fitting, nearest
    from kvgate.readiness import settings_of

    approved = asked_pools(manifest, pool)
    try:
        found = settings_of(manifest, endpoint, key, pool=pool)
    except NoKnownEngineError:
        word = {"deployment": "the server does not say what it is, so that it is this one is the caller's word"}
        return Asked(approved, word | _other_pools(manifest, approved))
    fits = fitting(found)
    if not fits:
        near = nearest(found)
        first = next(item for item in near.items if item.state == "differs")
        which = manifest.source if near.pool.name is None else f"{manifest.source}, pool {near.pool.name}"
        others = ", and none of its other pools" if len(found) > 1 else ""
        raise InputError(
            f"is not the deployment in {which}{others}: {first.name} is {first.found} here, not {first.approved}",
            where=endpoint,
            hint="kvgate record verify --endpoint says all that differs",
        )
    silent = dict.fromkeys(item.name for one in fits for item in one.items if item.state == "not asked")
    word = {
        "deployment": f"not asked here, so that it is the caller's word: {', '.join([*silent, 'weights', 'tokens'])}"
    }
    asked = tuple(one.pool for one in fits)
    return Asked(asked, word | _other_pools(manifest, asked))


def _other_pools(manifest: Manifest, asked: Sequence[Pool]) -> dict[str, str]:
    """Say which pools one server speaks of: evidence is about all of them."""
    from kvgate.probes.readiness.fitting import listed, names_of
    from kvgate.rules.pools import pools

    if len(pools(manifest)) == 1:
        return {}
    return {"pools": f"all but one: a server of {listed(names_of(asked))} was asked"}


def begin_asking(
    target: Path | None,
    kind: Kind,
    new: Manifest,
    old: Manifest | None,
    *,
    endpoint: str,
    key: str | None,
    pool: str | None,
    command: str,
) -> Asked:
    """Write that nothing has been found yet, and refuse another server than the deployment.

    Returns:
        See :func:`refuse_other_server`.

    Raises:
        InputError: it cannot be written, or the server is another; the evidence says so then.
        UsageError: the deployment has no such pool; nothing is written then.

    """
    from kvgate.probes.readiness.fitting import asked_pools

    asked_pools(new, pool)
    if target is not None:
        begin_evidence(target, kind, new, old, command=command)
    try:
        return refuse_other_server(new, endpoint, key, pool)
    except InputError as error:
        if target is not None:
            begin_evidence(target, kind, new, old, command=command, reason=f"the server {error.message}")
        raise


def begin_evidence(
    target: Path,
    kind: Kind,
    new: Manifest,
    old: Manifest | None = None,
    *,
    command: str,
    reason: str = "it did not come to an end",
) -> None:
    """Write that nothing has been found yet: a run that is interrupted leaves no earlier proof standing for itself.

    Raises:
        InputError: it cannot be written.

    """
    from kvgate import __version__
    from kvgate.rules.evidence import Coverage, Evidence, subject_of

    write_evidence(
        target,
        Evidence(
            schema="kvgate/evidence/v1",
            kind=kind,
            state="not-run",
            old=None if old is None else subject_of(old, kind),
            new=subject_of(new, kind),
            coverage=Coverage(examined={}, missing={}),
            tools={"kvgate": __version__},
            figures={},
            reason=reason,
            command=command,
        ),
    )


def write_evidence(target: Path, evidence: Evidence) -> None:
    """Write evidence as a file.

    Raises:
        InputError: it cannot be written.

    """
    from kvgate.cli.output import write_file

    write_file(target, json.dumps(evidence.as_data(), indent=2, sort_keys=True) + "\n")
