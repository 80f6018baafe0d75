"""Evidence: what somebody examined, bound to what it was examined on (schema ``kvgate/evidence/v1``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from pydantic import ConfigDict, Field, JsonValue

from kvgate.rules.canonical import digest
from kvgate.rules.catalogue import dimensions
from kvgate.rules.compare.served import PATH as SERVED
from kvgate.rules.identity import identity
from kvgate.rules.manifest import Manifest
from kvgate.rules.packaged import DataModel
from kvgate.rules.pools import overlap, pools
from kvgate.rules.shown import Shown, lacks
from kvgate.rules.values import Known

SCHEMA_ID = "kvgate/evidence/v1"

Kind = Literal[
    "token-identity",
    "weights-identity",
    "config-equivalence",
    "kv-equivalence",
    "isolation",
    "inventory",
    "lifecycle-audit",
    "tenant-canary",
    "bypass-diff",
]
State = Literal["proved", "refuted", "inconclusive", "not-run"]

# The engine's image stands in for library versions that the renderer leaves at null.
_TOKENS = ("tokenizer", "chat_template", "model", "engine", "roles")
_EVERYTHING = (
    "model",
    "weights",
    "tokenizer",
    "chat_template",
    "precision",
    "adapters",
    "parallelism",
    "engine",
    "request_features",
    "roles",
    "cache",
    "inputs",
)
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "token-identity": _TOKENS,
    "weights-identity": ("weights", "roles"),
    "config-equivalence": ("model", "engine", "roles"),
    "kv-equivalence": ("model", "weights", "precision", "adapters", "parallelism", "engine", "roles", "cache"),
    "isolation": _EVERYTHING,
    "inventory": _EVERYTHING,  # whose entries were looked for is the name of a model, of ranks, of an adapter
    "lifecycle-audit": ("roles", "cache"),
    "tenant-canary": _EVERYTHING,
    "bypass-diff": _EVERYTHING,
}
"""The manifest sections that supporting evidence of each kind binds to; what a pool sets is set in ``roles``."""

_TESTS: tuple[Kind, ...] = ("isolation", "kv-equivalence")
"""Kinds that come of a test with running models: one that looked at less answers nothing."""


class Subject(DataModel):
    """One deployment that evidence speaks of.

    ``sections``: digests of the sections that the kind names, for exact binding. ``identity``: digests of
    the known identity fields by path, so that adverse evidence can be told to be about another deployment.
    """

    sections: dict[str, str]
    identity: dict[str, str] = Field(default_factory=dict)


class Coverage(DataModel):
    """What was examined, what was not, and why."""

    examined: dict[str, int] = Field(default_factory=dict)
    missing: dict[str, str] = Field(default_factory=dict, description="what was not examined, and the reason")


class Evidence(DataModel):
    """One piece of evidence about an old and a new deployment, or about the new one alone."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, title=SCHEMA_ID, validate_by_name=False)

    schema_: Literal["kvgate/evidence/v1"] = Field(alias="schema")
    kind: Kind
    state: State
    old: Subject | None = None
    new: Subject
    coverage: Coverage = Field(default_factory=Coverage)
    tools: dict[str, str] = Field(default_factory=dict, description="name to version")
    figures: dict[str, JsonValue] = Field(default_factory=dict)
    shown: Shown | None = Field(default=None, description="what a test with running models looked at")
    scope: str = "all"
    reason: str = Field(default="", description="one clause: what was found, or why it is not proved")
    command: str | None = Field(default=None, description="what reproduces it")
    supersedes: list[str] = Field(default_factory=list, description="digests of refutations that this one answers")

    def as_data(self) -> dict[str, Any]:
        """Return the evidence as plain JSON data."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def digest(self) -> str:
        """The digest of the evidence's canonical JSON."""
        return digest(self.as_data())

    def supports(self, old: Manifest | None, new: Manifest) -> bool:
        """Whether it is proved and bound to exactly these deployments; else it counts as not run."""
        return self.state == "proved" and self.bound(old, new)

    def bound(self, old: Manifest | None, new: Manifest) -> bool:
        """Whether it is about exactly these deployments, in the sections that its kind names."""
        if (self.old is None) != (old is None) and self.kind != "inventory":
            return False
        if self.old is not None and old is not None and not _binds(self.kind, self.old, old):
            return False
        return _binds(self.kind, self.new, new)

    def binds_pools(self, old: Manifest, new: Manifest) -> bool:
        """Whether pools set nothing of what it binds to; that it binds to the list of them is asked of the whole."""
        pairs = [(self.new, new), *([(self.old, old)] if self.old is not None else [])]
        return all(_binds(self.kind, subject, pool, but=("roles",)) for subject, pool in pairs)

    def speaks_against(self, old: Manifest | None, new: Manifest) -> bool:
        """Whether it is a refutation that no identity field, known in both, shows to be about another deployment.

        What was found of one deployment alone speaks of its entries too, where that is the old one.
        """
        return self.state == "refuted" and not self._contradicted(old, new)

    def about_old_alone(self, old: Manifest | None, new: Manifest) -> bool:
        """Whether it was found of one deployment alone, and that is the old one and not the new one."""
        return self.old is None and old is not None and self._is_not(new) and not self._is_not(old)

    def about_others(self, old: Manifest | None, new: Manifest) -> list[str]:
        """Name what shows that it is about other deployments than these: sections, of a refutation identity paths.

        What is about one of them alone is not about others, although it settles nothing between two.
        """
        if self.state == "refuted":
            return self._contradicted(old, new)
        if self.bound(old, new):
            return []
        pairs = [(self.new, new), *([(self.old, old)] if self.old is not None and old is not None else [])]
        found = {
            name
            for subject, manifest in pairs
            for name in SECTIONS[self.kind]
            if subject.sections.get(name) != _section_digest(manifest, name)
        }
        return sorted(found) or ([] if self.old is None else ["an old one"])

    def _contradicted(self, old: Manifest | None, new: Manifest) -> list[str]:
        if self.about_old_alone(old, new):
            return []
        return sorted({*_contradicting(self.old, old), *_contradicting(self.new, new)})

    def _is_not(self, manifest: Manifest) -> bool:
        return bool(_contradicting(self.new, manifest))

    def why_no_answer(self, refutation: Evidence) -> str | None:
        """Say why this does not answer a refutation, whatever it names; ``None`` where it can."""
        if self.kind != refutation.kind:
            return f"it is evidence of {self.kind}, and that is of {refutation.kind}"
        if self.state != "proved":
            return f"it is {self.state}"
        if self.kind == "bypass-diff":
            asked = [sum(one.coverage.examined.values()) for one in (self, refutation)]
            return (
                f"{asked[0]} requests were compared, and {asked[1]} for the refutation" if asked[0] < asked[1] else None
            )
        return lacks(self.shown, refutation.shown) if self.kind in _TESTS else None


def subject_of(manifest: Manifest, kind: Kind) -> Subject:
    """Return the binding of evidence of one kind to a deployment."""
    return Subject(
        sections={name: _section_digest(manifest, name) for name in SECTIONS[kind]},
        identity=_identity_digests(manifest),
    )


# What may differ without harm to entries: that it does makes no other deployment of one that was refuted.
_HARMLESS = ("roles", "request_features", "inputs.", "parallelism.")
_ADAPTERS = "adapters"


@lru_cache(maxsize=256)
def _identity_digests(manifest: Manifest) -> dict[str, str]:
    """Return digests of what makes a deployment another one, by path; adapters one by one, since some may be added.

    What pools set for themselves is nothing that the deployment is.
    """
    own = {path for pool in pools(manifest) for path in pool.overrides}
    found = {
        path: value
        for path, value in identity(manifest).items()
        if not path.startswith(_HARMLESS) and not any(overlap(path, one) for one in own)
    }
    adapters = found.pop(_ADAPTERS, None) or {}
    found |= {f"{_ADAPTERS}.{name}": value for name, value in adapters.items()}
    return {path: digest(value) for path, value in found.items()}


def _binds(kind: str, subject: Subject, manifest: Manifest, but: Sequence[str] = ()) -> bool:
    return all(
        subject.sections.get(name) == _section_digest(manifest, name) for name in SECTIONS[kind] if name not in but
    )


@lru_cache(maxsize=1024)
def _section_digest(manifest: Manifest, section: str) -> str:
    """Return the digest of a section's canonical content without labels; absence has a digest too."""
    found = manifest.get(section)
    return digest({"known": _unlabelled(found.value, section)} if isinstance(found, Known) else {})


def _unlabelled(value: Any, path: str) -> Any:
    if not isinstance(value, Mapping):
        return value
    labels = {one for dimension in dimensions() if dimension.compare == "label" for one in dimension.paths}
    return {name: item for name, item in value.items() if f"{path}.{name}" not in labels}


# An engine that was not asked may hold anything: that it was not contradicts nothing.
_NOTHING = digest(None)


def _contradicting(subject: Subject | None, manifest: Manifest | None) -> list[str]:
    """Return the identity paths that are known of both, and not the same."""
    if subject is None or manifest is None:
        return []
    known = _identity_digests(manifest)
    return [
        path
        for path, value in subject.identity.items()
        if path in known and known[path] != value and not (path == SERVED and _NOTHING in (known[path], value))
    ]


def refutations(evidence: Sequence[Evidence], old: Manifest | None, new: Manifest) -> list[Evidence]:
    """Return what speaks against these deployments and is not answered, by name, by a bound proof of its kind."""
    against = [item for item in evidence if item.speaks_against(old, new)]
    proofs = [item for item in evidence if item.supersedes] if against else []
    return [item for item in against if not any(_answers(proof, item, old, new) for proof in proofs)]


def _answers(proof: Evidence, refutation: Evidence, old: Manifest | None, new: Manifest) -> bool:
    if refutation.digest not in proof.supersedes or proof.why_no_answer(refutation) is not None:
        return False
    # What was found of one deployment alone is answered by what is found of it alone.
    alone = old if old is not None and refutation.about_old_alone(old, new) else new
    return proof.supports(old, new) or (refutation.old is None and proof.supports(None, alone))


def failed_answers(refutation: Evidence, evidence: Sequence[Evidence]) -> list[str]:
    """Say why what names a refutation that stands does not answer it, a clause each."""
    unbound = "it is about other deployments, or they were edited after it"
    whys = (item.why_no_answer(refutation) or unbound for item in evidence if refutation.digest in item.supersedes)
    return list(dict.fromkeys(whys))
