"""One deployment becomes a manifest: what its files are, what its launch line says, what the operator declares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from kvgate.corpora.conversations.corpus import load_corpus
from kvgate.corpora.examine import examine
from kvgate.deployments.assembly import Assembly
from kvgate.deployments.compiled import compiled_engine
from kvgate.deployments.config import (
    EffectiveConfig,
    code_digest,
    effective_config,
    is_multimodal,
    processor_digest,
    read_config,
)
from kvgate.deployments.contradictions import refuse_contradictions
from kvgate.deployments.elsewhere import LIBRARIES, built_elsewhere, engine_of, refuse_another_deployment
from kvgate.deployments.hub import HubCheckpoint, obtain, split_repository
from kvgate.deployments.launch import LaunchFacts, bare_facts, resolve
from kvgate.deployments.locating import Beside, exists, locate, on_this_machine, pins
from kvgate.deployments.published import published
from kvgate.deployments.running import Running, ask_running
from kvgate.deployments.running_contradictions import (
    contradictions_in_names,
    contradictions_with,
    not_told,
    observable,
    refuse_contradictions_with,
    with_observed,
)
from kvgate.deployments.served import NotEquippedError, ask_served, served_section, told_by
from kvgate.deployments.side_files import side_files
from kvgate.deployments.store_names import refuse_stores_of_others
from kvgate.rules.canonical import canonical, digest
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.manifest import manifest_from
from kvgate.rules.progress import Progress, silent
from kvgate.rules.schema import Feature
from kvgate.rules.values import Basis
from kvgate.weights.adapters import fingerprint_adapter
from kvgate.weights.fingerprint import CheckpointFingerprint, fingerprint_checkpoint, pickle_beside
from kvgate.weights.kv_scales import kv_scales_digest
from kvgate.weights.opaque import RULE
from kvgate.weights.served.compare import compare_with_checkpoint
from kvgate.weights.served.stretches import CheckpointStretches

if TYPE_CHECKING:
    from kvgate.corpora.snapshots.snapshot import SnapshotFile
    from kvgate.corpora.tokenizers.facts import TokenizerFacts
    from kvgate.weights.kept_hashes import KeptHashes
    from kvgate.weights.served.report import ServedRank

CORPUS = "diagnostic"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# vllm/config/speculative.py, 0.33.0: methods that need no model of their own.
_WITHOUT_WEIGHTS = frozenset({"ngram", "ngram_gpu", "suffix"})
# A repository or folder and a type in it, as vllm-project/vllm-gguf-plugin (vLLM's own until 0.23) takes it.
_GGUF_ON_A_HUB = re.compile(r"[^:]*/[^:]+:[A-Za-z0-9_+-]+")
# With one of these files vLLM takes Mistral's own tokenizer (vllm/tokenizers/registry.py, 0.33.0).
_MISTRAL_TOKENIZER = ("tekken.json", "tokenizer.model.v*")
_TOKENIZER_CONTENT = (
    "tokenizer.files",
    "tokenizer.effective",
    "tokenizer.vocabulary",
    "tokenizer.special_tokens",
)
_NO_LAUNCH = "no launch line was given (--from)"
# What a launch line would have told, and what without one can only be declared.
_FROM_LAUNCH = (
    "model.served_name",
    "model.quantization",
    "tokenizer.renderer",
    "tokenizer.options",
    "precision.compute",
    "precision.kv_cache",
    "precision.kv_scales",
    "adapters",
    "parallelism",
    "engine",
    "request_features",
    "roles",
    "cache",
    "weights.mutable",
)
_FROM_OPERATOR = {
    "engine.accelerator": "the launch line does not name the device",
    "cache.version": "a launch line does not name the connector's version",
    "cache.tenancy": "only the operator knows who may share cached state",
    "cache.ttl": "only the operator knows",
    "cache.cleanup_owner": "only the operator knows",
    "inputs": "only the operator knows what is put in front of every request",
}


@dataclass(frozen=True)
class Captured:
    """What was found out about a deployment.

    Attributes:
        manifest: the manifest's data, in schema order; :func:`kvgate.deployments.write.write` adds the sidecars.
        weights: the fingerprint that the tensor map is made of; ``None`` where no tensor was read.
        served: what the ranks of the running engine hold, where it was asked.
        tokens: the snapshot of the corpus, where :func:`capture` was told to put it; ``None`` where nothing could
            be rendered, or no place was given.
        unknown: manifest paths that stay unknown, each with the reason.
        notes: what else a reader should know, one sentence each.
    """

    manifest: Mapping[str, Any]
    weights: CheckpointFingerprint | None
    served: tuple[ServedRank, ...]
    tokens: SnapshotFile | None
    unknown: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = field(default=())


def capture(
    model: str,
    *,
    revision: str | None = None,
    launch: Sequence[LaunchFacts] = (),
    beside: Beside | None = None,
    renderer: Literal["here"] | SnapshotFile | None = None,
    sets: Mapping[str, Any] | None = None,
    unsets: Iterable[str] = (),
    snapshot_to: Path | None = None,
    kept: KeptHashes | None = None,
    opaque_pickle: bool = False,
    fetch_weights: bool = True,
    endpoint: str | None = None,
    api_key: str | None = None,
    progress: Progress = silent,
) -> Captured:
    """Find out what a deployment is.

    Args:
        model: a checkpoint folder, a GGUF file, or ``org/name[@revision]`` on a hub: where the files are. What the
            engine is started with is the launch line's model, where there is one.
        revision: the hub revision; the launch line's counts where neither says one.
        launch: what the launch files say.
        beside: where adapters, another tokenizer, a draft model and a template are here; what the launch line names
            in a place that is not known to be on this machine is not looked for.
        renderer: ``"here"``: this environment is the one that serves. A snapshot: it was taken where requests are
            served, and speaks for the renderer there.
        sets: manifest values that only the operator knows, by path; they override what was found.
        unsets: manifest paths and sections that the operator declares to be at the engine's defaults.
        snapshot_to: the file that the snapshot of the corpus becomes; ``None``: none is taken.
        kept: hashes of weight files that need not be read again where they did not change.
        opaque_pickle: hash pickle weights as files that nothing looks into, where there is nothing else.
        fetch_weights: whether the weights of a hub repository are fetched and hashed; else the digests that the hub
            publishes of its files stand for them.
        endpoint: where the running engine answers, which is asked what it is
            (:func:`kvgate.deployments.running.ask_running`) and, where it is started for that, for the weights that it
            serves with (:func:`kvgate.deployments.served.ask_served`); ``None``: it is not asked.
        api_key: its API key.
        progress: told of downloads, hashing and rendering.

    Raises:
        InputError: the checkpoint, an adapter or the template is missing, unreadable or hostile; the launch
            lines contradict each other or the checkpoint; the renderer's snapshot contradicts them; the running
            engine cannot be asked, is another one, or holds other weights than the checkpoint.
        UsageError: ``sets`` or ``unsets`` name no manifest path, or what the endpoint is asked for; a tokenizer or
            draft model is given that no launch line names.
    """
    sources = _Sources(kept, opaque_pickle, fetch_weights, endpoint, api_key)
    return _Capture(
        *(model, revision, launch, beside or Beside(), renderer, sets or {}, unsets, snapshot_to),
        sources,
        progress,
    ).run()


@dataclass(frozen=True)
class _Sources:
    """How weights are read, and which running engine is asked for them."""

    kept: KeptHashes | None
    opaque_pickle: bool
    fetch: bool
    endpoint: str | None
    api_key: str | None


class _Capture:
    def __init__(
        self,
        model: str,
        revision: str | None,
        launch: Sequence[LaunchFacts],
        beside: Beside,
        renderer: Literal["here"] | SnapshotFile | None,
        sets: Mapping[str, Any],
        unsets: Iterable[str],
        snapshot_to: Path | None,
        sources: _Sources,
        progress: Progress,
    ) -> None:
        self._model = model
        self._revision = revision
        self._given = self._facts = _only(launch)  # as the line says it, and as the checkpoint settles it
        self._beside = beside
        self._renderer = renderer
        self._snapshot_to = snapshot_to
        self._sources = sources
        self._served: tuple[ServedRank, ...] = ()
        self._running: Running | None = None
        self._observed: frozenset[str] = frozenset()
        self._progress = progress
        self._assembly = Assembly()
        self._unsets = tuple(unsets)
        self._sets = sets
        self._notes: list[str] = list(self._facts.notes) if self._facts is not None else []
        for path in (*self._sets, *self._unsets):
            self._assembly.check_path(path)
            asked = sources.endpoint is not None and path in self._sets
            if asked and (path == "weights" or path.startswith("weights.served")):
                raise UsageError("is what the endpoint is asked for", where=path, hint="leave one of the two out")
        for name, given, flag in (
            (self._other_tokenizer, beside.tokenizer, "--tokenizer"),
            (self._draft, beside.draft, "--draft"),
        ):
            if given is not None and name is None:
                raise UsageError("no launch line names one beside the model", where=flag, hint="leave it out")
            if given is not None and not exists(given):
                raise InputError("there is no such folder", where=str(given), hint=f"{flag} FOLDER")
        if self._facts is not None:
            named_away = {path: None for path in self._unsets if path == "engine.image"}
            refuse_contradictions({**named_away, **self._sets}, self._facts)

    def run(self) -> Captured:
        assembly = self._assembly
        if self._sources.endpoint is not None:
            self._progress("asking the engine", 0, None, "answers")
            self._running = ask_running(self._sources.endpoint, self._sources.api_key)
        folder, hub = locate(
            self._model, self._revision, self._facts, fetch_weights=self._sources.fetch, progress=self._progress
        )
        doubted = self._facts is not None and any(path == "model.config" for path, _ in self._facts.unknown)
        gguf = folder.is_file() or (
            any(folder.glob("*.gguf")) and not any(folder.glob("*.safetensors")) and not self._sources.opaque_pickle
        )
        overrides = self._facts.overrides if self._facts is not None else {}
        weights: CheckpointFingerprint | None
        compiled = compiled_engine(folder)
        for path in ("weights.checkpoint", "model.config") if compiled is not None else ():
            assembly.doubt(path, str(compiled))
        if gguf:
            weights = self._hashed(folder, None)
            config = self._beside_gguf(folder.parent if folder.is_file() else folder, overrides)
            config = replace(config, config={**config.config, "gguf": canonical(weights.metadata or {})})
        else:
            config = effective_config(read_config(folder), overrides)
            fetched = compiled is None and (hub is None or self._sources.fetch)
            weights = self._hashed(folder, None if doubted else config.config) if fetched else None
            # A class on the list of harmless tails is known to read what the index names and nothing else.
            unlisted = weights is not None and weights.kv_rule.endswith("/all-tensors")
            if beside := side_files(folder, self._progress, subfolders=unlisted):
                config = replace(config, config={**config.config, "side_files": beside})
        dtypes = {entry.dtype for entry in weights.entries} if weights is not None else set()
        said = self._facts.values.get("engine.accelerator") if self._facts is not None else None
        accelerator = self._sets.get("engine.accelerator", said)
        defaults = self._defaults(config, dtypes, accelerator, weights)
        if self._facts is not None:
            settle = partial(resolve, config=config.config, tensor_dtypes=dtypes, accelerator=accelerator)
            self._facts = settle(self._facts)
            refuse_stores_of_others(self._facts, config.config, self._sets)
            observations = self._compare_with_running(settle)
            self._notes = [*self._facts.notes, *observations]
            if (reason := dict(self._facts.unknown).get("model.config")) is not None:
                self._settled_by_config(reason)
            elif gguf:
                self._settled_by_config("the engine derives it from the GGUF file")
            elif compiled is not None:
                self._settled_by_config(compiled)
        self._identity(folder, hub, config)
        self._weights(weights, hub)
        self._ask(folder, weights)
        self._launched(weights)
        if self._running is not None and self._facts is None:
            refuse_contradictions_with(contradictions_with(self._running.settings, None, None, self._sets))
            self._told(self._running)
        self._speculative()
        self._mistral(folder)
        self._gguf(folder, weights)
        self._adapters_section()
        tokens = self._tokens(folder, hub, gguf=gguf)
        if self._sources.kept is not None and (count := self._sources.kept.used):
            self._notes.append(
                f"weight files not read again: {count}; their size, times and inode are what they were when hashed"
            )
        for path in self._unsets:
            assembly.fill(path, defaults)
        for path, value in self._sets.items():
            assembly.declare(path, value)
        self._unknown()
        manifest = assembly.manifest()
        if "request_features" not in self._sets:
            _let_requests_carry_the_boundary(manifest)
        manifest_from(manifest, "the captured manifest")  # refuses what a set value made of it
        return Captured(manifest, weights, self._served, tokens, assembly.unknown(), tuple(dict.fromkeys(self._notes)))

    def _hashed(self, path: Path, config: Mapping[str, Any] | None) -> CheckpointFingerprint:
        kept, opaque = self._sources.kept, self._sources.opaque_pickle
        return fingerprint_checkpoint(path, config, self._progress, kept=kept, opaque_pickle=opaque)

    def _settled_by_config(self, reason: str) -> None:
        """Leave unknown what follows from a config that is not the one the engine reads."""
        given = self._given
        if given is None:
            return
        for path in ("model.quantization", "engine.max_model_len"):
            if given.values.get(path, "") is None:
                self._assembly.doubt(path, reason)
        for path in given.pending:
            self._assembly.doubt(path, reason)

    # -- sections --------------------------------------------------------------------------------------

    def _identity(self, folder: Path, hub: HubCheckpoint | None, config: EffectiveConfig) -> None:
        put, facts = self._assembly.put, self._facts
        named = facts.model if facts is not None else None
        put("model.id", named or (hub.repo if hub is not None else self._model))
        if facts is None:
            put("model.revision", hub.commit if hub is not None else None)
        put("model.config", dict(config.config), "computed")
        put("model.config_class", None if config.config_class is None else dict(config.config_class), "computed")
        if config.reason is not None:
            self._notes.append(f"model.config holds no class defaults: {config.reason}")
        if facts is not None and not facts.remote_code:
            put("model.code", None)
        elif folder.is_file():
            self._assembly.doubt("model.code", "a file alone does not say which code the engine runs for it")
        else:
            digest, reason = code_digest(folder)
            if reason is None:
                put("model.code", digest, "computed")
            else:
                self._assembly.doubt("model.code", reason)
        takes_media = is_multimodal(config.config) and not (facts is not None and facts.language_model_only)
        put("model.processor", processor_digest(folder) if takes_media else None, "computed")

    def _weights(self, weights: CheckpointFingerprint | None, hub: HubCheckpoint | None) -> None:
        put = self._assembly.put
        if weights is None:
            put("weights.checkpoint", None)  # no digest was taken
        else:
            for name in ("digest", "kv_digest", "kv_rule", "layout", "tensors", "bytes"):
                put(f"weights.checkpoint.{name}", getattr(weights, name), "computed")
        if hub is None:
            put("weights.hub", None)
            return
        # What a hub publishes speaks of what is served only where the launch line names the commit.
        pinned = self._facts is None or pins(self._facts, hub)
        basis: Basis = "computed" if pinned else "declared"
        if not pinned:
            self._notes.append(
                f"the launch line does not load {hub.repo} at a commit: pin it (--revision {hub.commit})"
            )
        put("weights.hub.repo", hub.repo, basis)
        put("weights.hub.commit", hub.commit, basis)
        if not self._sources.fetch:
            # Where tensors are read their digests speak: what the cache calls its files is not what is in them.
            files = published(hub.repo, hub.commit).files
            put("weights.hub.files", {name: file.digest for name, file in files.items()}, basis)

    def _compare_with_running(self, settle: Callable[[LaunchFacts], LaunchFacts]) -> list[str]:
        """Refuse a server that the files do not start, and take from it what they leave open; return what to say."""
        running, facts, given = self._running, self._facts, self._given
        if running is None or facts is None or given is None:
            return []
        contradictions = contradictions_with(running.settings, facts, given, self._sets)
        refuse_contradictions_with([*contradictions, *contradictions_in_names(running, facts)])
        changed, self._observed, notes = with_observed(running, facts, given)
        self._facts = settle(changed)
        missing = not_told(running, facts)
        return notes if missing is None else [*notes, missing]

    def _told(self, running: Running) -> None:
        """Write what a running server tells where no launch line was given."""
        for path, said in running.settings.items():
            if observable(path, said):
                self._assembly.declare(path, said.value, "observed")
        if running.names is not None:
            self._assembly.declare("model.served_name", running.names.value[0], "observed")

    def _ask(self, folder: Path, weights: CheckpointFingerprint | None) -> None:
        """Ask the running engine what it holds, where there is one to be asked."""
        if self._running is None:
            self._assembly.put("weights.served", None)
            return
        self._progress("asking the engine", 0, None, "ranks")
        try:
            self._served = ask_served(self._running.url, self._sources.api_key)
        except NotEquippedError as error:
            self._notes.append(f"what weights the running engine holds was not told: {error.message}; {error.hint}")
            self._assembly.put("weights.served", None)
            return
        told = told_by(self._served, self._running.url)
        refuse_contradictions_with(contradictions_with(told, self._facts, self._given, self._sets))
        found = None
        if weights is not None:
            found = compare_with_checkpoint(self._served, weights.entries, CheckpointStretches(folder))
            if not found.equal and not found.different:
                self._notes.append(
                    f"what the engine holds is not shown to be the checkpoint ({len(found.unknown)} tensors or layers "
                    f"could not be compared, the first is {found.unknown[0]}): it compares with an engine's of its form"
                )
        section = served_section(self._served, found, None if weights is None else weights.digest)
        self._assembly.put("weights.served", section, "observed")

    def _launched(self, weights: CheckpointFingerprint | None) -> None:
        if self._facts is None:
            for path in _FROM_LAUNCH:
                self._assembly.doubt(path, _NO_LAUNCH)
            return
        for path, value in self._facts.values.items():
            if path != "adapters":
                self._assembly.put(path, value, "observed" if path in self._observed else "declared")
        path, kv_cache = "precision.kv_scales", self._facts.values.get("precision.kv_cache")
        if path not in self._facts.values and isinstance(kv_cache, str) and kv_cache.startswith("fp8"):
            if weights is None or weights.kv_rule == RULE:
                self._assembly.doubt(path, "nobody looked at the checkpoint's tensors, which may bring scales")
            else:
                self._assembly.put(path, kv_scales_digest(weights.entries), "computed")
        self._never_in_a_line()
        for path, reason in self._facts.unknown:
            self._assembly.doubt(path, reason)

    def _speculative(self) -> None:
        """Add the content of a draft model: its name says nothing of its weights, and its KV is stored as well."""
        path, draft = "engine.speculative", self._draft
        if draft is None or self._facts is None:
            return
        config = self._facts.values[path]
        given = self._beside.draft
        folder, why = (given, "") if given is not None else on_this_machine(self._facts, draft)
        if folder is None:
            revision = config.get("revision")
            pinned = isinstance(revision, str) and _COMMIT.fullmatch(revision) and split_repository(draft)
            if not pinned or draft.startswith(("/", ".", "~")) or exists(Path(draft)):
                shown = f"what the draft model {draft} holds is not known: {why}; give --draft FOLDER"
                self._assembly.doubt(path, shown)
            return
        try:
            print_ = self._hashed(folder, None)
            content = {"weights": print_.digest, "config": digest(read_config(folder))}
            if (beside := pickle_beside(folder, self._progress)) is not None:
                content["pickle"] = beside  # a draft may read one: mask_embedding.pt (qwen3_dflash.py, vLLM 0.32.0)
        except InputError as error:
            self._assembly.doubt(path, f"the draft model {draft} cannot be fingerprinted: {error.message}")
            return
        self._assembly.put(path, {**config, "content": content})

    @property
    def _draft(self) -> str | None:
        """The draft model that the launch line names; ``None`` where there is none with weights of its own."""
        config = self._facts.values.get("engine.speculative") if self._facts is not None else None
        draft = config.get("model") if isinstance(config, Mapping) else None
        # A method without weights may stand as its model; the target's own tensors are fingerprinted with it.
        if not isinstance(draft, str) or draft.strip("[]") in _WITHOUT_WEIGHTS or draft == self._named():
            return None
        return draft

    @property
    def _other_tokenizer(self) -> str | None:
        """The tokenizer that the launch line names, where it is not the model's own."""
        name = self._facts.tokenizer if self._facts is not None else None
        return None if name == self._named() else name

    def _named(self) -> str | None:
        return self._facts.model if self._facts is not None else None

    def _mistral(self, folder: Path) -> None:
        """Leave unknown what an engine takes from Mistral's own files, where a checkpoint has both kinds.

        Source: vllm/transformers_utils/config.py get_config, tokenizers/registry.py and model_loader, 0.33.0;
        an older release looks for the tokenizer's files alone.
        """
        consolidated = any(folder.glob("consolidated*.safetensors")) if folder.is_dir() else False
        others = consolidated and any(not one.name.startswith("consolidated") for one in folder.glob("*.safetensors"))
        if others:
            self._assembly.doubt(
                "weights.checkpoint", "the engine loads consolidated*.safetensors, and there are others"
            )
        if consolidated and (folder / "params.json").exists():
            reason = "the engine reads Mistral's params.json, which kvgate does not read"
            self._assembly.doubt("model.config", reason)
            self._settled_by_config(reason)

    def _beside_gguf(self, folder: Path, overrides: Mapping[str, Any]) -> EffectiveConfig:
        """Return the configuration that an engine reads beside a GGUF file: the tokenizer's, else that of its folder.

        Source: vllm-project/vllm-gguf-plugin as vllm-project/vllm-metal#466 describes it, July 2026.
        """
        nothing = EffectiveConfig({}, None, "beside the GGUF file there is no config.json")
        tokenizer = self._other_tokenizer
        if tokenizer is not None and self._facts is not None:
            given = self._beside.tokenizer
            found, why = (given, "") if given is not None else on_this_machine(self._facts, tokenizer)
            if found is None:
                why = f"with GGUF the engine takes the configuration from {tokenizer}: {why}; give --tokenizer FOLDER"
                self._assembly.doubt("model.config", why)
                return nothing
            folder = found
        return effective_config(read_config(folder), overrides) if (folder / "config.json").exists() else nothing

    def _gguf(self, folder: Path, weights: CheckpointFingerprint | None) -> None:
        """Leave the weights unknown where the engine loads GGUF and other files were read, or the other way round."""
        named, values = self._named(), self._facts.values if self._facts is not None else {}
        if named is None:
            return
        file = named if named.endswith(".gguf") else None
        served = file is not None or _GGUF_ON_A_HUB.fullmatch(named) or values.get("model.quantization") == "gguf"
        read = weights is not None and weights.metadata is not None
        if served and not read:
            self._assembly.doubt("weights.checkpoint", f"the engine loads GGUF ({named}), and other files were read")
        elif read and not served:
            self._assembly.doubt("weights.checkpoint", f"a GGUF file was read, and the engine loads {named}")
        elif read and file is not None and folder.is_file() and folder.name != Path(file).name:
            self._assembly.doubt(
                "weights.checkpoint", f"{folder.name} was read, and the engine loads {Path(file).name}"
            )

    def _never_in_a_line(self) -> None:
        """Write ``null`` for what a launch line has no way to set: it is known to be unset."""
        values = self._facts.values if self._facts is not None else {}
        connector = values.get("cache.connector")
        if "cache.connector" not in values:
            return
        for path in ("engine.packages", "cache.key_fields", "cache.epoch"):
            self._assembly.put(path, None)
        # A connector of the engine's own has its version. Any other has one of its own, and so may its server have.
        if connector is None or connector.startswith(("vllm-", "sglang-hicache-")):
            self._assembly.put("cache.version", None)

    def _adapters_section(self) -> None:
        """Fingerprint every adapter whose files are here."""
        facts, given = self._facts, self._beside.adapters
        named = dict(facts.adapters) if facts is not None else {}
        if facts is None and not given:
            return
        entries: list[dict[str, Any]] = []
        for name in (*named, *(name for name in given if name not in named)):
            # The engine's own path: keys hold it. Where the files are here is in none.
            entry: dict[str, Any] = {"name": name, "path": named[name]} if name in named else {"name": name}
            folder, why = given.get(name), ""
            if folder is None and facts is not None:
                folder, why = on_this_machine(facts, named[name])
            elif folder is not None and not exists(folder):
                raise InputError("there is no such folder", where=str(folder), hint=f"--adapter {name}=FOLDER")
            if folder is not None:
                print_ = fingerprint_adapter(folder)
                alpha = int(print_.alpha) if print_.alpha.is_integer() else print_.alpha
                entry |= {"digest": print_.digest, "rank": print_.rank, "alpha": alpha}
            else:
                where = f"where {named[name]} is here is not known: {why}; give --adapter {name}=FOLDER"
                self._assembly.doubt(f"adapters.{name}.digest", where)
            entries.append(entry)
        basis: Literal["computed", "declared"] = "computed" if entries else "declared"
        self._assembly.put("adapters", entries, basis)
        self._assembly.restore("adapters", facts is None)

    def _tokens(self, folder: Path, hub: HubCheckpoint | None, *, gguf: bool) -> SnapshotFile | None:
        facts, assembly = self._facts, self._assembly
        doubted = dict(facts.unknown) if facts is not None else {}
        if (reason := doubted.get("tokenizer")) is not None:
            self._left_out(reason)
            return None
        if (reason := doubted.get("tokenizer.effective")) is not None:
            assembly.doubt("chat_template", reason)
            self._left_out(reason)
            return None
        folder, path, reason = self._tokenizer_folder(folder, hub)
        if reason is not None:
            assembly.doubt("tokenizer", reason)
            assembly.doubt("chat_template", reason)
            self._left_out(reason)
            return None
        own = next((name for pattern in _MISTRAL_TOKENIZER for name in folder.glob(pattern)), None)
        if own is not None or (gguf and not (folder / "tokenizer_config.json").exists()):
            inside = "the GGUF file" if own is None else own.name
            reason = f"the engine takes the tokenizer from {inside}, which kvgate does not read"
            for part in (*_TOKENIZER_CONTENT, "chat_template"):
                assembly.doubt(part, reason)
            self._left_out(reason)
            return None
        template, here = self._chat_template("chat_template" in doubted)
        options = facts.values.get("tokenizer.options") if facts is not None else None
        elsewhere = self._elsewhere
        found, snapshot = examine(
            folder,
            template=template,
            corpus=load_corpus(CORPUS) if here and self._snapshot_to is not None and elsewhere is None else None,
            options=options or {},
            snapshot_to=self._snapshot_to,
            progress=self._progress,
        )
        if elsewhere is not None:
            values = self._facts.values if self._facts is not None else {}
            refuse_another_deployment(elsewhere, found, values, template_known=here)
            snapshot = elsewhere
            if engine_of(elsewhere) is None:
                found = built_elsewhere(found, elsewhere)
            elif found.template is not None and found.template.reads_clock:
                self._notes.append(
                    f"the chat template reads the clock, which a server does not stop: {elsewhere.path} compares only "
                    "with a snapshot of the same day"
                )
        assembly.put("tokenizer.path", path, "computed")
        self._tokenizer(found)
        if here and found.template is None:
            assembly.put("chat_template", None, "computed")
        elif here and found.template is not None:
            for name in ("digest", "tree", "source", "reads_clock", "clock"):
                assembly.put(f"chat_template.{name}", getattr(found.template, name), "computed")
            assembly.put("chat_template.reads", list(found.template.reads), "computed")
            if found.template.reads_chance:
                self._notes.append("the chat template draws random text: no rendering of it can be repeated")
        return snapshot

    @property
    def _elsewhere(self) -> SnapshotFile | None:
        return None if isinstance(self._renderer, str) else self._renderer

    def _left_out(self, reason: str) -> None:
        """Say that a snapshot which was given is not taken in: a reader would think that it counts."""
        if self._elsewhere is not None:
            self._notes.append(f"the snapshot {self._elsewhere.path} is left out: {reason}")

    def _tokenizer_folder(self, folder: Path, hub: HubCheckpoint | None) -> tuple[Path, str, str | None]:
        """Return where its files are, what to call that, and why they are not known to be these."""
        name, given = self._other_tokenizer, self._beside.tokenizer
        if name is None or self._facts is None:
            return folder, f"{hub.repo}@{hub.commit}" if hub is not None else str(folder.absolute()), None
        found, why = (given, "") if given is not None else on_this_machine(self._facts, name)
        if found is not None:
            return found, str(found.absolute()), None
        split = split_repository(name)
        if split is None or exists(Path(name)):  # a folder of that name may be what the engine takes
            return folder, "", f"where the tokenizer {name} is here is not known: {why}; give --tokenizer FOLDER"
        other = obtain(split[0], self._facts.tokenizer_revision or split[1], self._progress, weights=False)
        return other.folder, f"{other.repo}@{other.commit}", None

    def _chat_template(self, doubted: bool) -> tuple[str | None, bool]:
        """Return the override, and whether the template in force is known here."""
        if self._beside.chat_template is not None:
            self._assembly.restore("chat_template", True)
            return self._beside.chat_template, True
        if doubted:
            return None, False
        given = self._facts.chat_template if self._facts is not None else None
        if given is None or self._facts is None or "{" in given or "\n" in given:
            return given, True
        found, why = on_this_machine(self._facts, given)
        if found is not None:
            return str(found), True
        self._assembly.doubt("chat_template", f"the launch line takes {given}: {why}; give --chat-template FILE")
        return None, False

    def _tokenizer(self, found: TokenizerFacts) -> None:
        put, doubt = self._assembly.put, self._assembly.doubt
        put("tokenizer.files", dict(found.files), "computed")
        reason = "; ".join(f"{what}: {why}" for what, why in found.unread) or "it could not be built here"
        if found.effective is not None:
            put("tokenizer.effective", found.effective, "computed")
            put("tokenizer.built_by", self._built_by(found), "computed")
        else:
            doubt("tokenizer.effective", reason)
        if found.vocabulary is not None:
            put("tokenizer.vocabulary.size", found.vocabulary.size, "computed")
            put("tokenizer.vocabulary.digest", found.vocabulary.digest, "computed")
        else:
            doubt("tokenizer.vocabulary", reason)
        if found.special_tokens is not None:
            put("tokenizer.special_tokens", dict(found.special_tokens), "computed")
        else:
            doubt("tokenizer.special_tokens", reason)
        self._serving_renderer(found)

    def _built_by(self, found: TokenizerFacts) -> dict[str, str]:
        elsewhere = self._elsewhere
        libraries = found.renderer if elsewhere is None or engine_of(elsewhere) else elsewhere.header.renderer
        return {name: libraries[name] for name in LIBRARIES}

    def _serving_renderer(self, found: TokenizerFacts) -> None:
        assembly, values = self._assembly, self._facts.values if self._facts is not None else {}
        section = "tokenizer.renderer"
        elsewhere = self._elsewhere
        asked = engine_of(elsewhere) if elsewhere is not None else None
        if elsewhere is not None and asked is None:
            assembly.restore(section, True)
            for name in LIBRARIES:
                assembly.put(f"{section}.{name}", elsewhere.header.renderer[name], "computed")
        elif self._renderer == "here":
            assembly.restore(section, True)
            for name in LIBRARIES:
                assembly.put(f"{section}.{name}", found.renderer[name], "computed")
            if (here := _installed(values.get("engine.name"))) is not None and "engine.version" not in self._sets:
                assembly.restore("engine.version", True)
                assembly.put("engine.version", here, "computed")
                values = {**values, "engine.version": here}
        elif self._facts is not None:
            # What the image or package set holds: comparable only while that is known.
            for name in LIBRARIES:
                assembly.put(f"{section}.{name}", None)
            if asked is not None and "engine.version" not in self._sets:
                assembly.restore("engine.version", True)
                assembly.put("engine.version", asked[1], "observed")
                values = {**values, "engine.version": asked[1]}
        for name, path in (("engine", "engine.name"), ("engine_version", "engine.version")):
            value = self._sets.get(path, values.get(path))
            if value is not None:
                assembly.put(f"{section}.{name}", value)

    # -- what is not in any file -----------------------------------------------------------------------

    def _defaults(
        self,
        config: EffectiveConfig,
        dtypes: set[str],
        accelerator: str | None,
        weights: CheckpointFingerprint | None,
    ) -> dict[str, Any]:
        """Return what an engine started without any flag has, for the paths declared to be unset."""
        if not self._unsets:
            return {}
        bare = resolve(
            bare_facts(self._facts.engine if self._facts is not None else "vllm"),
            config.config,
            tensor_dtypes=dtypes,
            accelerator=accelerator,
        )
        values = dict(bare.values)
        looked_at = weights is not None and weights.kv_rule != RULE
        if weights is not None and looked_at and str(values.get("precision.kv_cache", "")).startswith("fp8"):
            values.setdefault("precision.kv_scales", kv_scales_digest(weights.entries))
        del values["engine.name"]
        return values

    def _unknown(self) -> None:
        for path, reason in _FROM_OPERATOR.items():
            for missing in self._assembly.missing(path):
                self._assembly.doubt(missing, reason)


def _only(launch: Sequence[LaunchFacts]) -> LaunchFacts | None:
    if len(launch) > 1:
        sources = " and ".join(facts.source for facts in launch[:2])
        raise InputError("starts more than one server", where=sources, hint="give the launch line of one deployment")
    return launch[0] if launch else None


def _let_requests_carry_the_boundary(manifest: dict[str, Any]) -> None:
    """Add what carries the tenant boundary to what requests carry: whoever declares the one says the other."""
    tenancy = manifest.get("cache", {}).get("tenancy")
    carrier = tenancy.get("carried_by") if isinstance(tenancy, Mapping) else None
    if carrier in get_args(Feature) and "request_features" in manifest:
        manifest["request_features"] = sorted({*manifest["request_features"], carrier})


def _installed(engine: Any) -> str | None:
    """Return the version of an engine that is installed in this environment, by the name of its distribution."""
    try:
        return version(engine) if engine in ("vllm", "sglang", "tensorrt-llm") else None
    except PackageNotFoundError:
        return None
