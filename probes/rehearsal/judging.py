"""What was seen of a rehearsal, judged: pure, so that the same answers give the same state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvgate.probes.rehearsal.backend import Ground, LayerError
from kvgate.probes.rehearsal.mistakes import Mistake, name_mistakes
from kvgate.probes.rehearsal.seen import NOT_RUN, Claim, Hit, Part, Rehearsal, Request
from kvgate.rules.discharge import TOKEN_DIMENSIONS
from kvgate.rules.evidence import State
from kvgate.rules.manifest import Manifest
from kvgate.rules.shown import Entries


@dataclass(frozen=True)
class Tenants:
    """What another tenant's request got that the first one had stored.

    Attributes:
        unguarded: of the old deployment's entries, with the boundary taken away.
        old: of them, with the boundary in force.
        own: of the new deployment's own.

    """

    unguarded: tuple[Hit, ...] = ()
    old: tuple[Hit, ...] = ()
    own: tuple[Hit, ...] = ()


@dataclass(frozen=True)
class Torn:
    """What the new deployment got of its own entries.

    Attributes:
        whole: as it had stored them.
        half: with the second half of each missing.

    """

    whole: tuple[Hit, ...] = ()
    half: tuple[Hit, ...] = ()


@dataclass(frozen=True)
class Observed:
    """All answers of a rehearsal.

    Attributes:
        claim: whether the manifests ask for reuse, or for separation.
        control: with the boundary taken away, or from what was planted.
        inside: with the boundary in force, in front of what the old deployment stored.
        own: in front of what the new deployment stored itself; empty where it was not asked.
        tenants: between two tenants; ``None`` where neither deployment keeps any apart.
        lacking: of ``control``, ``own``, ``tenants`` and ``torn``, those that a back end has no way to, and why.
        tolerance: below which answers do not differ, in nats.
        alike: requests that are the same tokens on both sides.
        unstaged: dimensions that ask for separation, and whose difference was not there.
        layers: stored KV against computed KV.
        ground: what it was staged on.
        staged: dimensions whose difference was really there.
        missing: what was not, and why.
        asked: how many prompts there were.
        because: dimensions that the claim rests on.
        torn: in front of torn entries; ``None`` where that was not asked for.
        compared: tokens of the longest prompt whose stored KV was held against computed KV.
        longest: tokens of the longest prompt, a second turn aside.

    """

    claim: Claim
    control: tuple[Hit, ...]
    inside: tuple[Hit, ...]
    own: tuple[Hit, ...]
    tenants: Tenants | None
    lacking: Mapping[str, str]
    tolerance: float
    alike: frozenset[Request] = frozenset()
    unstaged: tuple[str, ...] = ()
    layers: tuple[LayerError, ...] | None = None
    ground: Ground | None = None
    staged: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    asked: int = 0
    because: tuple[str, ...] = ()
    torn: Torn | None = None
    compared: int = 0
    longest: int = 0

    @property
    def planted(self) -> set[str]:
        """Dimensions whose difference makes an old entry wrong."""
        return set(self.staged) - {"cache.tenancy"}


def judge(old: Manifest, new: Manifest, observed: Observed) -> Rehearsal:
    """Say what the answers show: ``proved`` only where every part held, ``refuted`` where one failed."""
    must_not = {hit.key for hit in observed.control if hit.wrong}
    # An entry that was right although it is old (an adapter changed, the model did not) may be read.
    stale = [
        hit
        for hit in observed.inside
        if hit.wrong or (observed.claim == "separate" and hit.cached and hit.key in must_not)
    ]
    control = _control(observed, must_not)
    isolation = _isolation(observed, stale, must_not)
    equivalence = _equivalence(observed)
    tenants = NOT_RUN if observed.tenants is None else _tenants(observed.tenants, observed.lacking)
    wrong = _wrong(observed, stale)
    mistakes = name_mistakes(
        old,
        new,
        staged=observed.staged,
        adapters={hit.adapter for hit in stale},
        own={hit.adapter for hit in observed.own if hit.wrong},
        tenants=tenants.state == "failed",
    )
    parts = [control, isolation, equivalence, *([] if observed.tenants is None else [tenants])]
    state, reason = _whole(parts, wrong, mistakes)
    return Rehearsal(
        observed.claim,
        state,
        reason,
        control,
        isolation,
        equivalence,
        tenants,
        mistakes,
        observed.layers,
        observed.ground,
        observed.staged,
        observed.missing,
        observed.asked,
        wrong if state == "refuted" else _right(observed) if state == "proved" else (),
        observed.because,
        NOT_RUN if observed.torn is None else _torn(observed.torn, observed.lacking),
        observed.compared,
        observed.longest,
    )


def _control(observed: Observed, must_not: set[Request]) -> Part:
    hits = observed.control
    crossed = () if observed.tenants is None else observed.tenants.unguarded
    planted = observed.planted
    reuse = observed.claim == "reuse"
    if must_not:
        where = "other weights planted under its names" if reuse else "the boundary taken away"
        return Part("held", f"with {where} the stale entry is hit, and the output is wrong", hits)
    if "control" in observed.lacking:
        return Part("open", observed.lacking["control"], hits)
    if crossed and not planted and any(hit.cached for hit in crossed):
        return Part("held", "with the boundary taken away another tenant's entry is hit", (*hits, *crossed))
    if not any(hit.cached for hit in hits):
        return Part("open", "with the boundary taken away nothing is hit", hits)
    if not planted and not reuse:
        return Part("open", "nothing of what differs is staged here, so no output can be wrong", hits)
    floor = f"no output is further off than {observed.tolerance:g} nats, the floor of this comparison"
    return Part("open", f"with the boundary taken away entries are hit, and {floor}", hits)


def _isolation(observed: Observed, stale: Sequence[Hit], must_not: set[Request]) -> Part:
    hits = observed.inside
    if stale:
        cached = sum(hit.cached for hit in stale)
        return Part("failed", f"with the boundary in force {cached:,} tokens came from stale entries", hits)
    if not hits:
        return Part("open", "nothing was asked with the boundary in force")
    cached = sum(hit.cached for hit in hits)
    if not all(hit.agreement.same for hit in hits):
        told = "" if cached else ", and no token is told to have come from the store"
        return Part("open", f"answers are not those without a store{told}: what was read cannot be told", hits)
    if observed.claim == "reuse":
        return Part("held", f"{cached:,} tokens came from old entries, and none of them is stale", hits)
    if cached and observed.unstaged:
        names = ", ".join(observed.unstaged)
        return Part(
            "open", f"{cached:,} tokens came from old entries, and what else differs was not there: {names}", hits
        )
    if cached and not must_not:
        return Part("open", f"{cached:,} tokens came from old entries, and nothing shows that one could be wrong", hits)
    if cached:
        return Part("held", f"{cached:,} tokens came from old entries that are still right, none from stale ones", hits)
    if observed.planted - set(TOKEN_DIMENSIONS) and not any(hit.key in observed.alike for hit in hits):
        return Part("open", "no prompt is the same tokens on both sides, as those of customers may be", hits)
    return Part("held", "with the boundary in force no old entry is read", hits)


def _equivalence(observed: Observed) -> Part:
    reuse = observed.claim == "reuse"
    hits, what = (observed.inside, "old entries") if reuse else (observed.own, "the new deployment's own entries")
    cached = sum(hit.cached for hit in hits)
    if any(hit.wrong for hit in hits):
        return Part("failed", f"answers from {what} are not those without a store", hits)
    if not cached:
        return Part("open", observed.lacking.get("own", f"nothing of {what} is hit"), hits)
    if not all(hit.agreement.same for hit in hits):
        return Part("open", "answers without a hit differ among themselves: this worker is not repeatable", hits)
    return Part("held", f"{cached:,} tokens came from {what}, and every answer is the one without a store", hits)


def _tenants(tenants: Tenants, lacking: Mapping[str, str]) -> Part:
    hits = (*tenants.old, *tenants.own)
    if any(hit.cached for hit in hits):
        return Part("failed", "one tenant's request read another's entry", hits)
    if not (tenants.old and tenants.own):
        return Part("open", lacking.get("tenants", "no other tenant asked"), hits)
    if not any(hit.cached for hit in tenants.unguarded):
        return Part("open", "with the boundary taken away nothing is read either", hits)
    return Part("held", "no tenant's request reads another's entry", hits)


def _torn(torn: Torn, lacking: Mapping[str, str]) -> Part:
    if any(hit.wrong for hit in torn.half):
        return Part("failed", "entries whose second half is missing are read, and answers are wrong", torn.half)
    if not torn.half:
        return Part("open", lacking.get("torn", "nothing was asked in front of torn entries"))
    if not any(hit.cached for hit in torn.whole):
        return Part("open", "entries that are whole are not read either", torn.half)
    if not all(hit.agreement.same for hit in torn.half):
        return Part(
            "open", "answers are not those without a store, and no token is told to have come from it", torn.half
        )
    return Part(
        "held", "entries whose second half is missing are noticed: answers are those without a store", torn.half
    )


def _wrong(observed: Observed, stale: Sequence[Hit]) -> tuple[Entries, ...]:
    """Say which entries were read that must not be."""
    tenants = observed.tenants or Tenants()
    found: dict[Entries, bool] = {
        "old-entries": bool(stale),
        "own-entries": any(hit.wrong for hit in observed.own),
        "old-entries-of-tenants": any(hit.cached for hit in tenants.old),
        "own-entries-of-tenants": any(hit.cached for hit in tenants.own),
    }
    return tuple(name for name, one in found.items() if one)


def _right(observed: Observed) -> tuple[Entries, ...]:
    """Say of which entries a proof speaks."""
    found: dict[Entries, bool] = {
        "old-entries": True,
        "own-entries": any(hit.cached for hit in observed.own),
        "old-entries-of-tenants": observed.tenants is not None,
        "own-entries-of-tenants": observed.tenants is not None,
    }
    return tuple(name for name, one in found.items() if one)


def _whole(parts: Sequence[Part], wrong: Sequence[Entries], mistakes: Sequence[Mistake]) -> tuple[State, str]:
    failed = [part for part in parts if part.state == "failed"]
    if failed:
        named = "; ".join(mistake.what for mistake in mistakes)
        return "refuted", f"{failed[0].why}" + (f" ({named})" if named else "")
    if wrong:
        return "refuted", "answers from the new deployment's own entries are not those without a store"
    undecided = [part for part in parts if part.state != "held"]
    if undecided:
        return "inconclusive", undecided[0].why
    return "proved", "; ".join(part.why for part in parts)
