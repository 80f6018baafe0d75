"""Where the entries of a prompt lie: the connector's own names, stretch by stretch of the prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvgate.probes.rehearsal.backend import Prompt
from kvgate.rules.canonical import digest
from kvgate.rules.manifest import Manifest
from kvgate.rules.profile import Coverer, cover
from kvgate.rules.values import Known
from kvgate.stores.keys.schemes import SCHEMES
from kvgate.stores.keys.stored import Prediction, Request

_IN_THE_PATH = "vllm-offload-fs"  # the only store whose names hold no namespace: it is a folder that they lie in
_OWN_BLOCK = 64  # tokens; an application's own store says nothing of blocks


@dataclass(frozen=True)
class Stretch:
    """Tokens that are stored together: those before ``end`` that no stretch before holds, under ``names``."""

    end: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Filing:
    """Where a deployment files a prompt.

    Attributes:
        place: the store's location.
        stretches: in order; ``None`` where something is unknown that names depend on.
        unknown: what, a sentence each.
        assumed: what was taken for granted.

    """

    place: str
    stretches: tuple[Stretch, ...] | None
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def file_prompt(manifest: Manifest, prompt: Prompt) -> Filing:
    """Say under which names a deployment stores and looks for the KV of a prompt."""
    place = str(manifest.value("cache.location"))
    covered = cover(manifest)
    if covered.profile is None:
        return Filing(place, None, (f"cache.connector: {covered.why}",))
    if covered.profile.key_from_fields:
        return _own(manifest, covered, prompt, place)
    if covered.profile.id == _IN_THE_PATH:
        place = f"{place}/{manifest.value('cache.namespace') or ''}"
    scheme = SCHEMES.get(covered.profile.id)
    if scheme is None:
        return Filing(place, None, (f"cache.connector: what {covered.profile.id} calls its entries is not known here",))

    def predict(count: int) -> Prediction:
        return scheme.predict(manifest, Request(prompt.token_ids[:count], salt=prompt.salt, adapter=prompt.adapter))

    whole = predict(len(prompt.token_ids))
    if whole.names is None:
        return Filing(place, None, whole.unknown, whole.assumed)
    return Filing(place, tuple(_stretches(predict, whole.names, prompt, unit_of(manifest))), (), whole.assumed)


def unit_of(manifest: Manifest) -> int:
    """Return how many tokens a connector stores together at least."""
    chunk, block = manifest.value("cache.chunk_size"), manifest.value("engine.block_size")
    return int(chunk or block or _OWN_BLOCK)


def salt_of(manifest: Manifest, tenant: str) -> str | None:
    """Return what one tenant's requests carry to a deployment's store, as it has it sent."""
    carrier = (manifest.value("cache.tenancy") or {}).get("carried_by")
    if carrier in (manifest.value("cache.key_fields") or ()):
        return tenant
    if carrier != "cache_salt":
        return None
    features = manifest.get("request_features")
    if isinstance(features, Known) and "cache_salt" not in (features.value or ()):
        return _bare(manifest)  # said to be carried, and no request carries it
    namespace = _bare(manifest)
    return f"{namespace}-{tenant}" if namespace else tenant


def salt_of_no_tenant(manifest: Manifest) -> str | None:
    """Return what a request carries that is no tenant's."""
    return None if salt_of(manifest, "any") is None else _bare(manifest)


def _bare(manifest: Manifest) -> str:
    return (manifest.value("cache.namespace") if salted_namespace(manifest) else None) or ""


def salted_namespace(manifest: Manifest) -> bool:
    """Whether a namespace is put in force as the ``cache_salt`` of every request."""
    return cover(manifest).cell("cache.namespace").clashes_with == "cache_salt"


def carried_salt(manifest: Manifest, salt: str | None) -> str | None:
    """Return the ``cache_salt`` that a request carries: a tenant's, or the namespace where that is how it is set."""
    return salt or (manifest.value("cache.namespace") if salted_namespace(manifest) else None)


def _stretches(predict: Any, whole: tuple[str, ...], prompt: Prompt, unit: int) -> Iterator[Stretch]:
    """Cut the names of a prompt where its beginnings gain names; one stretch where they have other names instead."""
    seen: tuple[str, ...] = ()
    found = []
    for end in range(unit, len(prompt.token_ids) + 1, unit):
        # One token more: some connectors never store a prompt's last one.
        names = predict(min(end + 1, len(prompt.token_ids))).names or ()
        if names[: len(seen)] != seen:
            found = [Stretch((len(prompt.token_ids) - 1) // unit * unit, whole)]
            break
        if len(names) > len(seen):
            found.append(Stretch(end, tuple(names[len(seen) :])))
        seen = tuple(names)
    yield from found


def _own(manifest: Manifest, covered: Coverer, prompt: Prompt, place: str) -> Filing:
    """File under a key that is made of manifest fields, as its owner declares them."""
    parts: dict[str, Any] = {}
    unknown = []
    for paths in covered.in_every_key.values():
        for path in paths:
            field = manifest.get(path)
            if not isinstance(field, Known):
                unknown.append(f"{path}: not known, and it is part of the key")
            else:
                parts[path] = field.value
    if unknown:
        return Filing(place, None, tuple(unknown))
    carried: Mapping[str, Any] = {
        "lora": prompt.adapter if covered.request("lora").key == "separates" else None,
        "adapters": manifest.value(f"adapters.{prompt.adapter}") if _holds(covered, "adapters") else None,
        "tenant": prompt.salt,  # given only where the key holds what carries it
    }
    ends = range(_OWN_BLOCK, len(prompt.token_ids) + 1, _OWN_BLOCK)
    return Filing(
        place,
        tuple(
            Stretch(
                end,
                (
                    digest(
                        {
                            "fields": parts,
                            "carried": carried,
                            "request": list(prompt.token_ids[:end]) if covered.token_keyed else prompt.id,
                            "block": end // _OWN_BLOCK,
                        }
                    ),
                ),
            )
            for end in ends
        ),
        (),
        ("the application files blocks of 64 tokens, by the fields that cache.key_fields lists",),
    )


def _holds(covered: Coverer, dimension_id: str) -> bool:
    return covered.cell(dimension_id).key == "separates"
