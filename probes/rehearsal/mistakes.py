"""What went wrong in a deployment procedure when a stale entry was read, named so that somebody can mend it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvgate.rules.change import same
from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import cover
from kvgate.rules.values import Known


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        id: ``salt-dropped``, ``adapter-swapped``, ``adapter-left-out``, ``left-out-of-key``, ``namespace-not-rolled``,
            ``unexplained``.
        what: one sentence, with the manifest path.

    """

    id: str
    what: str


def name_mistakes(
    old: Manifest,
    new: Manifest,
    *,
    staged: Collection[str],
    adapters: Collection[str | None],
    own: Collection[str | None],
    tenants: bool,
) -> tuple[Mistake, ...]:
    """Name what let stale entries through.

    Args:
        old: the deployment whose entries were read.
        new: the one that read them.
        staged: dimensions that differed.
        adapters: those of the requests that read a stale entry; ``None`` among them for the model's own. Empty where
            none did.
        own: adapters of the requests that read a wrong entry of the new deployment's own.
        tenants: whether one tenant's request read another's entry.

    """
    found = []
    if tenants:
        found.append(_salt(new))
    if adapters:
        stale = [*_adapters(old, new, adapters), *_own_key(old, new, staged), *_namespace(old, new, staged)]
        found += stale or [Mistake("unexplained", "old entries were read, and no setting of the manifest says why")]
    return tuple(dict.fromkeys([*found, *_left_out(new, own)]))


def _salt(new: Manifest) -> Mistake:
    carrier = (new.value("cache.tenancy") or {}).get("carried_by")
    features = new.get("request_features")
    if carrier is None:
        why = "cache.tenancy.carried_by is not set: nothing carries the boundary between tenants"
    elif isinstance(features, Known) and carrier == "cache_salt" and carrier not in (features.value or ()):
        why = f"cache.tenancy.carried_by is {carrier}, and request_features says that no request carries it"
    else:
        why = f"cache.tenancy.carried_by is {carrier}, and the key of {new.value('cache.connector')} does not hold it"
    return Mistake("salt-dropped", why)


def _adapters(old: Manifest, new: Manifest, read: Collection[str | None]) -> Iterator[Mistake]:
    for name in sorted(filter(None, read)):
        digest = f"adapters.{name}.digest"
        if same(old.get(digest), new.get(digest)) is False:
            yield Mistake("adapter-swapped", f"adapters: {name!r} holds other bytes under the same name")
    yield from _left_out(new, read)


def _left_out(new: Manifest, read: Collection[str | None]) -> Iterator[Mistake]:
    if cover(new).request("lora").key not in ("separates", "token-ids"):
        for name in sorted(filter(None, read)):
            connector = new.value("cache.connector")
            yield Mistake("adapter-left-out", f"adapters: the key of {connector} does not hold {name!r}")


def _own_key(old: Manifest, new: Manifest, staged: Collection[str]) -> Iterator[Mistake]:
    covered = cover(new)
    if covered.profile is None or not covered.profile.key_from_fields:
        return
    fields = [name for name in sorted(staged) if covered.cell(name).key == "no"]
    if (
        same(old.get("model.revision"), new.get("model.revision")) is False
        and covered.cell("model.revision").key == "no"
    ):
        fields.insert(0, "model.revision")
    if fields:
        yield Mistake("left-out-of-key", f"cache.key_fields holds nothing of what changed: {', '.join(fields)}")


def _namespace(old: Manifest, new: Manifest, staged: Collection[str]) -> Iterator[Mistake]:
    if not set(staged) - {"adapters", "cache.tenancy"}:
        return
    for knob in cover(new).knobs or ():
        if knob.path == "cache.location" and len(cover(new).knobs or ()) > 1:
            continue  # the namespace is the nearer one
        if same(old.get(knob.path), new.get(knob.path)) is True:
            yield Mistake("namespace-not-rolled", f"{knob.path} is the same on both sides")
