"""A rehearsal as evidence that ``check --evidence`` takes: what was proved, on what, and what was not looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from kvgate.probes.evaluation.comparison import worst_of
from kvgate.probes.rehearsal.backend import Ground, LayerError
from kvgate.probes.rehearsal.reach import too_short
from kvgate.probes.rehearsal.seen import Part, Rehearsal
from kvgate.rules.change import same
from kvgate.rules.compare.sides import Sides
from kvgate.rules.diff import compare
from kvgate.rules.evidence import Coverage, Evidence, Kind, State, subject_of
from kvgate.rules.manifest import Manifest
from kvgate.rules.pack import shipped_pack
from kvgate.rules.profile import cover
from kvgate.rules.shown import Entries, Ran, Shown

_NOISE = 4.0  # how much further off than its own noise KV must be before it counts as other KV


def evidence_of(
    old: Manifest,
    new: Manifest,
    rehearsal: Rehearsal,
    *,
    backend: str,
    tools: Mapping[str, str],
    command: str | None,
    refutations: Sequence[Evidence] = (),
    tear: bool = False,
) -> tuple[Evidence, ...]:
    """Return what a rehearsal showed: ``isolation`` and ``kv-equivalence``, bound to both deployments.

    Args:
        old: the deployment whose entries were read, or were not.
        new: the other.
        rehearsal: what was seen.
        backend: the name of what ran them.
        tools: versions of kvgate and the like.
        command: what reproduces it.
        refutations: of these deployments, that were made before; each is named as answered by what answers it.
        tear: also what became of torn entries, as a ``lifecycle-audit``.

    """
    ground = rehearsal.ground
    versions = {**tools, **(ground.tools if ground else {})}
    figures: dict[str, JsonValue] = {
        "backend": backend,
        "claim": rehearsal.claim,
        "model": ground.model if ground else None,
        "precision": ground.precision if ground else None,
        "procedure": ground.procedure if ground else "plan",
        "staged": dict(rehearsal.staged),
        "seeds": dict(ground.seeds) if ground else {},
        "control": _part(rehearsal.control),
        "isolation": _part(rehearsal.isolation),
        "equivalence": _part(rehearsal.equivalence),
        "between_tenants": None if rehearsal.tenants.state == "not-run" else _part(rehearsal.tenants),
        "mistakes": [{"id": one.id, "what": one.what} for one in rehearsal.mistakes],
    }
    if ground and (tolerance := ground.tolerance) is not None:
        figures["tolerance"] = {"logprob": tolerance.logprob, "kv": tolerance.kv, "source": tolerance.source}
    coverage = Coverage(
        examined={"prompts": rehearsal.asked, "differences": len(rehearsal.staged)},
        missing=dict(sorted(rehearsal.missing.items())),
    )

    def made(kind: Kind, state: State, reason: str, of: Sequence[Entries], told: Mapping[str, JsonValue]) -> Evidence:
        found = Evidence(
            schema="kvgate/evidence/v1",
            kind=kind,
            state=state,
            old=subject_of(old, kind),
            new=subject_of(new, kind),
            coverage=coverage,
            tools=dict(sorted(versions.items())),
            figures=dict(told),
            shown=_shown(rehearsal, backend, of),
            reason=reason,
            command=command,
        )
        answered = [one.digest for one in refutations if found.why_no_answer(one) is None]
        return found.model_copy(update={"supersedes": answered})

    state, reason = kv_state(old, new, rehearsal)
    torn = rehearsal.torn
    audit = [made("lifecycle-audit", _AUDITED[torn.state], torn.why, (), {**_shared(figures), "torn": _part(torn)})]
    compared: tuple[Entries, ...] = ("old-entries",) if state in ("proved", "refuted") else ()
    return (
        made("isolation", rehearsal.state, rehearsal.reason, rehearsal.of, figures),
        made("kv-equivalence", state, reason, compared, {**_shared(figures), "layers": _layers(rehearsal.layers)}),
        *(audit if tear else ()),
    )


_AUDITED: Mapping[str, State] = {
    "held": "proved",
    "failed": "refuted",
    "open": "inconclusive",
    "not-run": "not-run",
}
_RAN: Mapping[str, Ran] = {"launch files": "launch-files", "running servers": "servers"}


def _shown(rehearsal: Rehearsal, backend: str, of: Sequence[Entries]) -> Shown | None:
    ground = rehearsal.ground
    if ground is None:
        return None
    return Shown(
        where="scratch",
        of=list(of) or None,
        model=ground.model,
        ran=_RAN.get(ground.procedure, "model" if backend == "embedded" else "engine"),
        differences=sorted(rehearsal.staged),
        prompts=rehearsal.asked,
        tokens=rehearsal.longest,
    )


def kv_state(old: Manifest, new: Manifest, rehearsal: Rehearsal) -> tuple[State, str]:
    """Say what old blocks against freshly computed ones show of the deployments themselves."""
    ground, layers = rehearsal.ground, rehearsal.layers
    if ground is None or layers is None:
        return "not-run", rehearsal.reason if ground is None else "no stored block was compared with a computed one"
    error = max(layer.error for layer in layers)
    noise = max(layer.noise for layer in layers)
    if ground.model == "stand-in":
        return "inconclusive", "a stand-in's blocks were compared: that proves the procedure, not the numbers"
    tolerance = ground.tolerance
    if tolerance is None or tolerance.kv is None:
        return "inconclusive", f"how far KV differs from itself was never measured for {ground.precision}"
    floor = tolerance.kv
    if not error <= max(floor, _NOISE * noise):
        return (
            "refuted",
            f"old blocks are up to {error:.2g} of a layer's largest value off, its own noise is {noise:.2g}",
        )
    if not max(error, noise) <= floor:
        return (
            "inconclusive",
            f"old blocks are {error:.2g} off, the worker is {noise:.2g} off itself, and the floor is {floor:.2g}",
        )
    if not ground.engines:
        return "inconclusive", f"equal here, but what serves is not what computed them{_elsewhere(ground)}"
    if not _same_weights(old, new):
        return (
            "inconclusive",
            f"no further off than the floor of {floor:.2g}, and the weights are not known to be equal",
        )
    if unstaged := _unstaged(old, new, rehearsal.staged):
        return "inconclusive", f"equal here, but what differs was not there when they were computed: {unstaged}"
    if short := too_short(old, new, rehearsal.compared):
        return "inconclusive", f"equal as far as it was looked at: {short} (--prompt-tokens)"
    apart = "; entries of adapters that changed were left out" if _adapters_differ(old, new) else ""
    return (
        "proved",
        f"old blocks are at most {error:.2g} of a layer's largest value off, the floor is {floor:.2g}{apart}",
    )


def _elsewhere(ground: Ground) -> str:
    """Say what of the engine did not run."""
    paths = [path for path in ground.missing if path.startswith(("engine.", "cache.", "parallelism"))]
    return f": {', '.join(sorted(paths))}" if paths else ""


def _unstaged(old: Manifest, new: Manifest, staged: Mapping[str, str]) -> str:
    """Name what differs, was not there, and would be settled by equal blocks all the same."""
    pack = shipped_pack("default")
    return ", ".join(
        sorted(
            {
                change.dimension
                for change in compare(Sides(old, new, cover(old), cover(new)))
                if change.dimension not in staged
                and any(
                    one.evidence == "kv-equivalence"
                    for one in pack.rule_for(change.dimension, change.kind).discharged_by
                )
            }
        )
    )


def _adapters_differ(old: Manifest, new: Manifest) -> bool:
    return same(old.get("adapters"), new.get("adapters")) is not True


def _same_weights(old: Manifest, new: Manifest) -> bool:
    path = "weights.checkpoint.digest"
    return same(old.get(path), new.get(path)) is True and old.value(path) is not None


def _shared(figures: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: figures[name] for name in ("backend", "claim", "model", "precision", "tolerance") if name in figures}


def _layers(layers: Sequence[LayerError] | None) -> list[JsonValue]:
    return [{"layer": one.layer, "error": one.error, "noise": one.noise} for one in layers or ()]


def _part(part: Part) -> dict[str, Any]:
    return {
        "state": part.state,
        "why": part.why,
        "prompts": len(part.hits),
        "hits": sum(hit.cached > 0 for hit in part.hits),
        "cached_tokens": part.cached,
        "wrong": sum(hit.wrong for hit in part.hits),
        "near_ties": sum(hit.agreement.answer == "near-tie" for hit in part.hits),
        "answers": {
            "right": sum(hit.right is True for hit in part.hits),
            "wrong": sum(hit.right is False for hit in part.hits),
        },
        "largest_difference": worst_of(hit.agreement for hit in part.hits),
    }
