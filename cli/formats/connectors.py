"""What is known of connectors' keys: the words for it, and the page of documentation that is made of the profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvgate.cli.formats.escaping import code
from kvgate.rules.keyforms import Form
from kvgate.rules.profile import Cell, Coverage, EveryConnector, Feature, Profile, Tags, Upgrade, Versions

KEYS: Mapping[Coverage, str] = {
    "separates": "in the key",
    "token-ids": "through the token ids",
    "rejects": "refused when connecting",
    "no": "not in the key",
    "unknown": "not known",
}
MEANING: Mapping[Coverage, str] = {
    "separates": "entries of two deployments that differ in it are kept apart",
    "token-ids": "kept apart where token ids differ",
    "rejects": "two deployments that differ in it do not connect",
    "no": "entries of two deployments that differ in it are shared",
    "unknown": "it separates nothing",
}

_OVERVIEW = (
    ("model.id", "model"),
    ("precision.kv_cache", "KV dtype"),
    ("parallelism.tensor", "TP"),
    ("parallelism.pipeline", "PP"),
    ("engine.block_size", "block"),
    ("cache.chunk_size", "chunk"),
)
_REQUESTS: tuple[tuple[Feature, str], ...] = (
    ("lora", "LoRA"),
    ("cache_salt", "salt"),
    ("multimodal", "media"),
    ("prompt_embeds", "embeds"),
)
_FORMS: Mapping[Form, str] = {
    "last-component": "its last path component",
    "slashes-as-dashes": "with - for /",
    "world-size-unless-mla": "as the engine's world size; with MLA not at all",
    "world-size-per-server-unless-mla": "as the world size divided by how many LMCache servers; with MLA not at all",
    "attention-tensor-size": "as the tensor size of attention; with MLA not at all",
    "kv-heads-per-rank": "as the number of KV heads that a rank holds",
    "whether-more-than-one": "whether it is more than one, and not how many",
    "size-unless-one-name-for-all": "where the tier does not file all sizes under one name",
    "torch-storage-dtype": "as the type that torch stores it in",
    "cache-dtype-flag": "as the engine's flag names it",
    "draft-model": "the name of the draft model alone",
}
_HARMLESS = {"mla": "harmless with MLA", "converted": "harmless: converted when it is read, or refused"}
_SHORT = {"separates": "yes", "token-ids": "tokens", "rejects": "refused", "no": "**no**", "unknown": "?"}


def conditions(cell: Cell) -> list[str]:
    """Return everything that is to be said of a cell besides its key, one clause each."""
    notes = [
        _FORMS.get(cell.form, ""),
        f"{', '.join(cell.paths)} alone" if cell.paths else "",
        f"only while {cell.while_unset} is not set" if cell.while_unset else "",
        f"at the place of {cell.clashes_with}" if cell.clashes_with else "",
        f"{cell.scope} entries only" if cell.scope != "all" else "",
        _HARMLESS[cell.harmless_when] if cell.harmless_when else "",
        cell.note or "",
        cell.source or "",
    ]
    return [note for note in notes if note]


def read_at(versions: Versions | None) -> str:
    """Return the versions that a profile speaks for, in words; empty where it asks for none."""
    if versions is None:
        return ""
    return f"{versions.path} {versions.said}" if versions.said else "no one release: it speaks for none"


def step(row: Upgrade) -> str:
    """Return what one version step does, in one line."""
    entries = {"all": "all", "text": "text", "not-text": "adapter, salted and media"}[row.scope]
    kv = "KV the same" if row.kv == "same" else "KV not known to be the same"
    note = f": {row.note}" if row.note else ""
    return f"{row.path} {row.from_} to {row.to}: {_STEPS[row.keys]}, {kv}, for {entries} entries{note}"


def tag(tags: Tags) -> str:
    """Return how a tag of each request carries a tenant boundary, in one line."""
    name = f"{tags.prefix}NAME (letters, digits, - and _; not {', '.join(tags.taken)})"
    return f"what can carry a tenant boundary: cache.tenancy.carried_by: {name}, a tag of each request; {tags.source}"


_STEPS = {"kept": "keys kept", "cold": "other keys, so old entries go cold", "joins": "keys meet those of others"}


def connectors_page(profiles: Mapping[str, Profile], shared: EveryConnector) -> str:
    """Return the page of documentation on all profiles, in Markdown. The data is kvgate's own, so it is not escaped."""
    parts = [_head(), *_overview(profiles), *_shared(shared)]
    for profile in profiles.values():
        parts += _section(profile, shared)
    return "\n".join(parts) + "\n"


def _head() -> str:
    return """# What each connector's key covers

<!-- Made of the profiles: kvgate connectors list -o markdown > docs/connectors.md -->

Whether a change is dangerous depends on what the connector files entries under. These tables say what its key holds,
read from its source. **no**: two deployments that differ in it share entries. `yes`: they do not. `tokens`: they do not
where token ids differ. `refused`: the two do not connect. `?`: not known, which separates nothing. A star: on a
condition that the connector's own section names.

Outside the versions that were read nothing is known of a key. A profile that was read at no one release says what was
found, and speaks for no deployment.
"""


def _overview(profiles: Mapping[str, Profile]) -> Iterator[str]:
    names = [*(name for _, name in _OVERVIEW), *(name for _, name in _REQUESTS), "setting that isolates"]
    yield "| connector | " + " | ".join(names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for profile in profiles.values():
        if profile.key_from_fields:
            continue
        cells = [profile.cells.get(name) for name, _ in _OVERVIEW]
        requests = [profile.requests.get(name) for name, _ in _REQUESTS]
        shown = [_short(cell) for cell in (*cells, *requests)]
        yield f"| [{profile.id}](#{profile.id}) | " + " | ".join([*shown, _isolated(profile)]) + " |"
    yield ""


def _short(cell: Cell | None) -> str:
    if cell is None:
        return _SHORT["unknown"]
    conditional = cell.form != "verbatim" or cell.paths or cell.while_unset or cell.clashes_with
    return _SHORT[cell.key] + ("\\*" if conditional and cell.key == "separates" else "")


def _isolated(profile: Profile) -> str:
    if profile.knobs:
        return ", ".join(code(knob.path) for knob in profile.knobs)
    return "**none**" if profile.knobs is not None else "not known"


def _shared(shared: EveryConnector) -> Iterator[str]:
    yield "## True of every connector that was read\n"
    yield "Unless its own section says otherwise. Read from: " + shared.source.replace("\n", " ") + ".\n"
    for title, cells in (("dimensions", shared.cells), ("what requests carry", shared.requests)):
        for key, words in KEYS.items():
            names = [name for name, cell in cells.items() if cell.key == key]
            if names:
                yield f"- {title} {words}: {', '.join(map(code, names))}"
    yield ""


def _section(profile: Profile, shared: EveryConnector) -> Iterator[str]:
    yield f"## {profile.id}\n"
    yield f"{profile.title}.\n"
    yield f"- key: {code(profile.key_format)}"
    yield f"- model name in the key: {profile.model_name}"
    if profile.engine is not None:
        yield f"- engine: {profile.engine}"
    if (versions := read_at(profile.versions)) != "":
        yield f"- versions: {versions}"
    yield f"- read from: {profile.source} (checked {profile.checked})"
    if not profile.outlives_worker:
        yield "- entries end with the worker that made them"
    yield ""
    own = [(name, cell) for name, cell in profile.cells.items() if cell != shared.cells.get(name)]
    asked = [(str(name), cell) for name, cell in profile.requests.items() if cell != shared.requests.get(name)]
    for title, cells in (("dimension", own), ("what requests carry", asked)):
        if cells:
            yield f"| {title} | | |"
            yield "|---|---|---|"
            for name, cell in cells:
                yield f"| {code(name)} | {KEYS[cell.key]} | {_in_a_cell('; '.join(conditions(cell)))} |"
            yield ""
    yield from _ways(profile)


def _ways(profile: Profile) -> Iterator[str]:
    if profile.tags is not None:
        yield f"- {tag(profile.tags)}"
    for knob in profile.knobs or ():
        condition = f" (where the key holds {knob.when_key_has})" if knob.when_key_has else ""
        yield f"- a place of its own, {code(knob.path)}{condition}: {'; '.join(map(code, knob.how))}"
    if profile.isolation:
        yield f"- what keeps entries apart: {profile.isolation}"
    elif profile.knobs is None:
        yield "- no setting that keeps entries apart is known"
    yield f"- clearing: {code(profile.clearing.command)}; reaches {profile.clearing.blast_radius}"
    for row in profile.upgrades:
        yield f"- version step: {step(row)} ({row.source})"
    yield ""


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")
