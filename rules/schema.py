"""The manifest's schema, ``kvgate/manifest/v1``: what one deployment is (design, section 5).

A field that is left out is unknown. ``null`` is known to be unset: the engine's default applies; only the
fields for which that means something accept it. The published JSON Schema is made from these types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, StringConstraints

SCHEMA_ID = "kvgate/manifest/v1"


def absent(description: str = "") -> Any:
    """Declare a field that may be left out. What an absent field holds is never read: see ``Manifest.get``."""
    return Field(default_factory=lambda: None, description=description or None)


def _resolved(value: str) -> str:
    if value.lower() == "auto":
        raise ValueError("'auto' says nothing about what runs; write the resolved type, or leave it out")
    return value


Digest = Annotated[str, StringConstraints(pattern=r"^(blake3|sha256):[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Resolved = Annotated[str, StringConstraints(min_length=1), AfterValidator(_resolved)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Feature = Literal["lora", "lora_hot_load", "cache_salt", "multimodal", "prompt_embeds", "template_kwargs"]
BasisWord = Literal["computed", "observed", "declared"]


class Section(BaseModel):
    """Base of every section: closed, strict, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class Release(Section):
    """Labels: who released what. Never identity."""

    name: Text | None = absent()
    version: Text | None = absent()
    owner: Text | None = absent()


class ConfigClass(Section):
    """Which library class filled in the defaults of ``model.config``."""

    name: Text
    transformers: Text


class Model(Section):
    """The model as the engine is started with it."""

    id: Text = Field(description="as resolved by the engine; a path stays a path")
    served_name: Text | None = absent()
    revision: Text | None = absent("a 40-hex commit pins the content; a branch or tag name does not")
    config: dict[str, JsonValue] = absent("effective: overrides applied, aliases normalised; complete")
    config_class: ConfigClass | None = absent("where the defaults in config come from")
    quantization: Text | None = absent()
    code: Digest | None = absent("of the modeling files, where remote code may run")
    processor: Digest | None = absent("of the (pre)processor files for multimodal input")


class Sidecar(Section):
    """A file beside the manifest, and its digest."""

    file: Text
    sha256: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class Checkpoint(Section):
    """Digests over the tensors of a checkpoint, independent of the files they are stored in."""

    digest: Digest
    kv_digest: Digest | None = absent("over the tensors that persisted state depends on")
    kv_rule: Text | None = absent("version of the list that kv_digest was computed with, and the model type")
    layout: Digest | None = absent("of file names, sizes and tensor placement")
    tensors: Count = absent()
    bytes: Count = absent()
    map: Sidecar | None = absent()


class Hub(Section):
    """What the hub publishes about the files."""

    repo: Text
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
    files: dict[str, Text] = absent("file name to the digest that the hub publishes")


class RankOf(Section):
    """Where a rank stands in a group of ranks."""

    rank: Count
    size: Positive


class Served(Section):
    """The weights that one rank of a running engine holds, in served form.

    Served compares with served of the same form: ``engine`` to ``pipeline``.
    """

    rank: Count
    digest: Digest
    engine: Text = absent()
    engine_version: Text = absent()
    architecture: Text = absent("the engine's model class")
    tensor: RankOf = absent("among the ranks of one tensor-parallel group")
    pipeline: RankOf = absent("among the pipeline's stages")
    checkpoint: Digest | None = absent("that all ranks together hold, byte for byte; null: not shown")
    own: Digest | None = absent("over what the rank holds beside a checkpoint: buffers that the engine made")
    map: Sidecar | None = absent()


class Weights(Section):
    """What the model's parameters are, byte for byte."""

    checkpoint: Checkpoint | None = absent("null: no digest was taken; the pinned hub commit stands for it")
    hub: Hub | None = absent()
    served: Annotated[list[Served], Field(min_length=1)] | None = absent("every rank; null: no engine was asked")
    mutable: bool = absent("weights are updated in place while serving")


class Vocabulary(Section):
    """Every token and its id."""

    size: Count
    digest: Digest


class Renderer(Section):
    """The software that turns messages into token ids where requests are served.

    ``null`` stands for "what the image or package set holds" and is comparable only while that is known.
    """

    engine: Text | None = absent()
    engine_version: Text | None = absent()
    transformers: Text | None = absent()
    tokenizers: Text | None = absent()


class SnapshotRenderer(Section):
    """The versions of what rendered a snapshot: libraries, or an engine that was asked."""

    transformers: Text | None = absent()
    tokenizers: Text | None = absent()
    vllm: Text | None = absent()
    sglang: Text | None = absent()


class SnapshotSidecar(Sidecar):
    """Rendered text and token ids of a corpus, saved at capture."""

    corpus: Text
    renderer: SnapshotRenderer = absent()


class Tokenizer(Section):
    """How text becomes token ids."""

    path: Text | None = absent("where the files can be loaded from: a folder, or repository@revision")
    files: dict[str, Digest] = absent("complete when present")
    effective: Digest = absent("of the tokenizer that is really built from the files")
    built_by: dict[str, Text] = absent("libraries that built it, by version; complete when present")
    vocabulary: Vocabulary = absent()
    special_tokens: dict[str, JsonValue] = absent("complete when present")
    renderer: Renderer = absent()
    options: dict[str, JsonValue] = absent("what else alters rendering; complete when present")
    snapshot: SnapshotSidecar | None = absent()


class ChatTemplate(Section):
    """The chat template in force."""

    digest: Digest
    tree: Digest = absent("of the syntax tree: equal trees render equally")
    source: Text | None = absent()
    reads: list[str] = absent("variables that the template reads")
    reads_clock: bool = absent()
    clock: Literal["second", "minute", "hour", "day", "month", "year"] | None = absent(
        "how long what it prints of the clock stays the same; null: it prints nothing of it"
    )


class Precision(Section):
    """Number formats, resolved."""

    compute: Resolved = absent()
    kv_cache: Resolved = absent()
    kv_scales: Digest | Literal["stored-in-block", "dynamic"] | None = absent("null: 1.0")


class Adapter(Section):
    """A LoRA adapter, or the tombstone of a removed one."""

    name: Text
    path: Text | None = absent()
    digest: Digest = absent()
    rank: Positive | None = absent()
    alpha: int | float | None = absent()
    removed: bool = absent()


class Parallelism(Section):
    """Rank layout."""

    tensor: Positive = absent()
    pipeline: Positive = absent()
    data: Positive = absent()
    expert: Positive = absent()
    decode_context: Positive = absent()
    prefill_context: Positive = absent()


class PrefixHash(Section):
    """How block or chunk hashes are made."""

    algorithm: Text | None = absent()
    seed: Text | None = absent()


class Engine(Section):
    """The serving engine and the settings that shape its KV."""

    name: Text = absent()
    version: Text = absent()
    image: Digest | None = absent()
    packages: Digest | None = absent("of the installed package set")
    accelerator: Text | None = absent()
    attention_backend: Text | None = absent()
    block_size: Positive | None = absent()
    max_model_len: Positive | None = absent()
    kv_layout: Text | None = absent()
    prefix_hash: PrefixHash | None = absent()
    speculative: dict[str, JsonValue] | None = absent()
    args: dict[str, JsonValue] | None = absent("launch flags without a path of their own; complete")


class Role(Section):
    """One pool of a deployment with several, and the paths in which it differs from the rest."""

    name: Text
    set: dict[str, JsonValue]


class Tenancy(Section):
    """Who may share cached state, and what carries the boundary into the key."""

    boundary: Literal["shared", "organization", "tenant", "user", "session"]
    carried_by: Text | None = Field(
        description="cache_salt, or what else the connector's key holds: its section in docs/connectors.md names it; "
        "a field of cache.key_fields for an application's own store; null: nothing"
    )


class Cache(Section):
    """The store that outlives the worker."""

    connector: Text | None = absent("names a connector profile; null: no persistent cache")
    version: Text | None = absent()
    location: Text | None = absent("credentials are refused")
    chunk_size: Positive | None = absent()
    serde: Text | None = absent()
    namespace: Text | None = absent("the value of the profile's isolation knob")
    tenancy: Tenancy | None = absent("null: shared")
    key_fields: list[Text] | None = absent("for an application's own store; complete when present")
    epoch: int | None = absent()
    ttl: Text | None = absent()
    cleanup_owner: Text | None = absent()


class Inputs(Section):
    """What is put in front of every request, by name and digest; each collection complete when present."""

    tool_schemas: dict[str, Digest] | None = absent()
    document_sets: dict[str, Digest] | None = absent()
    system_prompts: dict[str, Digest] | None = absent()


class ManifestModel(Section):
    """One deployment. Only ``schema`` and ``model.id`` are required; whatever is absent is unknown."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, title=SCHEMA_ID, defer_build=True, validate_by_name=False
    )

    schema_: Literal["kvgate/manifest/v1"] = Field(alias="schema")
    release: Release = absent()
    model: Model
    weights: Weights = absent()
    tokenizer: Tokenizer = absent()
    chat_template: ChatTemplate | None = absent("null: there is none")
    precision: Precision = absent()
    adapters: list[Adapter] = absent("[]: none; complete when present")
    parallelism: Parallelism = absent()
    engine: Engine = absent()
    request_features: list[Feature] = absent("what varies between requests; complete when present")
    roles: Annotated[list[Role], Field(max_length=32)] | None = absent()  # each is judged against each
    cache: Cache = absent()
    inputs: Inputs | None = absent()
    provenance: dict[str, BasisWord] = absent("basis by section or path; what is not named is declared")
