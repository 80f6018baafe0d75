"""``kvgate record verify --endpoint``: is the worker that came up the one that was approved?"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.inputs import hash_file, load_manifest, sidecar_path
from kvgate.probes.completions.replicas import NOT_TOLD, SEVERAL, Seen, together
from kvgate.probes.completions.server import answering_server, open_client
from kvgate.probes.readiness.fitting import Fit, asked_pools, fitting, nearest, pool_item
from kvgate.probes.readiness.items import Item, Readiness, ReadyState, compared, shown, unknown_names
from kvgate.rules.canonical import canonical_json
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.manifest import Manifest
from kvgate.rules.namespace import PREFIX
from kvgate.rules.progress import Progress, silent
from kvgate.rules.values import Known
from kvgate.verifying import read_record

if TYPE_CHECKING:
    from kvgate.deployments.running import Running, Said
    from kvgate.weights.served.report import ServedRank

SETTINGS = (
    "engine.name",
    "engine.version",
    "engine.block_size",
    "engine.max_model_len",
    "engine.prefix_hash.algorithm",
    "precision.compute",
    "precision.kv_cache",
    "parallelism.tensor",
    "parallelism.pipeline",
    "parallelism.decode_context",
    "parallelism.prefill_context",
    "model.revision",
    "cache.connector",
    "cache.location",
    "cache.namespace",
)
"""Settings that keys or stored bytes depend on and that an engine may tell, by manifest path."""

UNTOLD = (
    "model.quantization",
    "model.code",
    "model.processor",
    "precision.kv_scales",
    "parallelism.expert",
    "parallelism.data",
    "engine.accelerator",
    "engine.image",
    "engine.packages",
    "engine.attention_backend",
    "engine.kv_layout",
    "engine.speculative",
    "engine.prefix_hash.seed",
    "cache.version",
    "cache.chunk_size",
    "cache.serde",
)
"""The same, of which no engine tells."""

_ORDER: tuple[ReadyState, ...] = ("ready", "cannot tell", "not ready")  # the best first
_DERIVED = re.compile(rf"{PREFIX}[a-z2-7]{{32}}")
_BESIDE = {"side_files", "gguf"}  # what a capture notes with a configuration
_LONGEST = 200  # characters of a server's words
_DEEPEST = 20  # levels of what is laid over a configuration
_ABSENT_IS_TOLD = frozenset({"cache.connector"})  # that there is no store is an answer
_NOTHING_BY_DEFAULT = frozenset(
    {"model.revision", "cache.location", "cache.namespace"}
)  # no default of an engine sets them
# vllm/config/cache.py, 0.32.0: CacheConfig.prefix_caching_hash_algo.
_DEFAULTS: Mapping[tuple[str, str], Any] = {("vllm", "engine.prefix_hash.algorithm"): "sha256"}


def verify_worker(
    path: str | Path,
    endpoint: str,
    key: str | None = None,
    *,
    corpora: Sequence[str | Path] = (),
    unasked: Collection[str] = (),
    pool: str | None = None,
    progress: Progress = silent,
) -> Readiness:
    """Compare a running worker with the deployment that a decision record approved.

    The record is not derived again: what it was made from need not be at hand where a worker starts. The manifest that
    it is about must be, with the bytes that it had. Of a deployment with pools a worker is one of one of them: it is
    held against each, and the item ``pool`` says which it is.

    Args:
        path: of the record.
        endpoint: where the worker answers.
        key: its API key.
        corpora: conversations that the manifest's snapshot was taken of, where it is not the diagnostic corpus.
        unasked: names of items that are accepted without an answer.
        pool: the pool that the worker is of, where that is known; else it may be of any.
        progress: told what is asked.

    Raises:
        InputError: the record or the manifest cannot be read, or is another; the server cannot be reached.
        UsageError: ``unasked`` names what is no item, ``pool`` what is no pool.
    """
    record = read_record(Path(path))
    manifest = _approved(record, str(path))
    endpoint = endpoint.rstrip("/")  # as places at it are named
    approved = asked_pools(manifest, pool)
    before = _who(endpoint, key)
    told = settings_of(manifest, endpoint, key, pool=pool, checkpoint=True)
    left = fitting(told) or [nearest(told)]  # to ask for weights takes long: not for pools that it cannot be of
    weights = _by_section("weights", left, lambda one: _weights(one, endpoint, key, progress))
    tokens = _by_section("tokenizer", left, lambda one: _tokens(one, endpoint, key, corpora, progress))
    found = [
        Fit(one.pool, (*one.items, _untold(one.pool.manifest), *asked))
        for one, *asked in zip(left, weights, tokens, strict=True)
    ]
    which = pool_item(approved, found)
    around = (_decision(record), *([which] if which else ())), (_process(endpoint, key, before),)
    answers = [Readiness((*around[0], *one.items, *around[1]), frozenset(unasked)) for one in found]
    best = min(answers, key=lambda one: (_ORDER.index(one.state), one.differing))
    if wrong := unknown_names(unasked, best.items):
        raise UsageError(f"there is no item {wrong[0]!r}", where="--unasked", hint="the report names them")
    return best


def _by_section(section: str, fits: Sequence[Fit], ask: Callable[[Manifest], Item]) -> list[Item]:
    """Ask for each pool, once for those that have a section alike."""
    keys = [canonical_json(one.pool.manifest.data.get(section)) for one in fits]
    first = {key: one.pool.manifest for key, one in reversed(list(zip(keys, fits, strict=True)))}
    found = {key: ask(manifest) for key, manifest in first.items()}
    return [found[key] for key in keys]


def _approved(record: Mapping[str, Any], where: str) -> Manifest:
    subject = record["subject"][0]
    name, expected = subject["name"], f"sha256:{subject['digest']['sha256']}"
    if name in ("-", "<data>"):
        raise InputError("the approved manifest was not a file", where=where)
    if hash_file(Path(name)) != expected:
        raise InputError("is not the manifest that was decided about: its bytes are others", where=name)
    return load_manifest(name)


def _decision(record: Mapping[str, Any]) -> Item:
    found = record["predicate"]
    accepted = bool(found["accepted"]) and bool(found["enforced"])
    why = found["acceptedBecause"] if accepted else "the record does not accept this deployment"
    return compared("record", "accepted", "accepted" if accepted else "not accepted", why, equal=accepted)


def settings_of(
    manifest: Manifest, endpoint: str, key: str | None = None, *, pool: str | None = None, checkpoint: bool = False
) -> list[Fit]:
    """Compare what a running server says of itself with a manifest: model, adapters, settings, store.

    Args:
        manifest: what was approved.
        endpoint: where the server answers.
        key: its API key.
        pool: the pool that it is of, where that is known.
        checkpoint: compare the configuration in the model's folder, too, where there is one: that takes seconds.

    Returns:
        What differs from each pool that it may be of; from the deployment where it has none.

    Raises:
        InputError: it cannot be reached, or is no engine that is known.
        UsageError: there is no such pool.
    """
    from kvgate.deployments.running import ask_running

    approved = asked_pools(manifest, pool)
    running = ask_running(endpoint, key)
    return [Fit(one, tuple(_settings(one.manifest, running, checkpoint=checkpoint))) for one in approved]


def _settings(manifest: Manifest, running: Running, *, checkpoint: bool) -> Iterator[Item]:
    yield from _names(manifest, running)
    for path in SETTINGS:
        yield _setting(manifest, path, running)
    yield _config(manifest, running, checkpoint=checkpoint)


def _config(manifest: Manifest, running: Running, *, checkpoint: bool) -> Item:
    """Compare the configuration: the checkpoint's own where it is at hand, with what the server lays over it."""
    name, said = "model.config", running.overrides
    if said is None or not manifest.knows(name):
        known = manifest.knows(name)
        why = _silence("", running) if known else "the approved manifest does not know its configuration"
        return Item(name, "not asked", why)
    approved = manifest.data["model"]["config"] or {}
    other = {
        ".".join(path): held
        for path, value in _leaves(said.value)
        if (held := _held(approved, path)) is not _NOT_THERE and held != value
    }
    if other:
        return compared(name, other, said.value, f"{said.where}: laid over it", equal=False)
    folder = Path(str(manifest.value("model.id")))
    if not (checkpoint and (folder / "config.json").is_file()):
        why = "what the server lays over it is as approved" if said.value else "the server lays nothing over it"
        return Item(name, "not asked", f"{why}, and the checkpoint's own is not at hand")
    effective = _effective_of(folder, said.value)
    names = sorted({*approved, *effective} - _BESIDE)
    differing = [one for one in names if approved.get(one, _NOT_THERE) != effective.get(one, _NOT_THERE)]
    where = f"{folder}/config.json as it is here, and what {said.where} lays over it"
    if differing:
        was, now = ({one: side.get(one) for one in differing} for side in (approved, effective))
        return compared(name, was, now, where, equal=False)
    return compared(name, "as approved", "as approved", where, equal=True)


_NOT_THERE = object()


def _effective_of(folder: Path, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a checkpoint's configuration with what a server lays over it, as a capture has it."""
    from kvgate.deployments.config import effective_config, read_config

    return effective_config(read_config(folder), overrides).config


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and len(path) < _DEEPEST:
        for key, each in value.items():
            yield from _leaves(each, (*path, str(key)))
    else:
        yield path, value


def _held(config: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(config, Mapping) or key not in config:
            return _NOT_THERE
        config = config[key]
    return config


def _untold(manifest: Manifest) -> Item:
    """List what was approved and is told by no server."""
    known = [path for path in UNTOLD if manifest.knows(path)]
    return Item("untold", "not asked", f"no server tells whether it is as approved: {', '.join(known)}")


def _who(endpoint: str, key: str | None) -> Seen:
    with open_client(endpoint, key) as client:
        return answering_server(client).look()


def _process(endpoint: str, key: str | None, before: Seen) -> Item:
    """Say whether one process gave all the answers."""
    seen = together([before, _who(endpoint, key)])
    if seen.one:
        return Item("process", "same", "one process answered, from the first question to the last")
    return Item("process", "not asked", SEVERAL if seen.several else NOT_TOLD)


def _setting(manifest: Manifest, path: str, running: Running) -> Item:
    from kvgate.deployments.running_contradictions import agrees

    approved = manifest.get(path)
    if not isinstance(approved, Known):
        return Item(path, "not asked", "the approved manifest does not know it")
    said = _told(manifest, path, running)
    if approved.value is None and path not in _ABSENT_IS_TOLD:
        return _against_default(manifest, path, said, running)
    place = running.settings.get("cache.location")
    if place is not None and (path == "cache.location" or (path == "cache.namespace" and said is None)):
        return _in_a_folder(path, approved.value, place)
    if said is None:
        return Item(path, "not asked", _silence(path, running), shown(approved.value))
    # A block that the engine made larger or smaller is another block; capture takes such a size from --endpoint.
    equal = approved.value == said.value if path == "engine.block_size" else agrees(path, approved.value, said.value)
    return compared(path, approved.value, said.value, said.where, equal=equal)


def _told(manifest: Manifest, path: str, running: Running) -> Said | None:
    """Return what the server tells of a setting; a KV type that follows the compute type is that."""
    from kvgate.deployments.running import AUTO, Said

    said = running.settings.get(path)
    if said is None or said.value != AUTO:
        return said
    compute = running.settings.get("precision.compute")
    # A checkpoint that is quantized may name a type for the cache (vllm/utils/torch_utils.py,
    # resolve_kv_cache_dtype_string, 0.32.0).
    follows = path == "precision.kv_cache" and manifest.unset("model.quantization") and compute is not None
    return Said(compute.value, f"{said.where}: auto, so as {compute.where}") if follows and compute else None


def _in_a_folder(path: str, approved: str, place: Said) -> Item:
    """Compare where a store lies, or a name space that is a folder: a server knows its path, and no mount to there."""
    derived = _DERIVED.search(approved)
    folders = "://" not in approved and "://" not in place.value
    if derived is None and folders and approved.rstrip("/") != place.value.rstrip("/"):
        why = f"it stores in {shown(place.value)}, and where that is outside its container it does not tell"
        return Item(path, "not asked", why, approved)
    equal = approved.rstrip("/") == place.value.rstrip("/") or (derived is not None and derived[0] in place.value)
    return compared(path, approved, place.value, place.where, equal=equal)


def _against_default(manifest: Manifest, path: str, said: Said | None, running: Running) -> Item:
    """Compare what a server tells where nothing was set: an engine's default, or nothing at all."""
    if path in _NOTHING_BY_DEFAULT:
        if said is not None:
            return compared(path, None, said.value, said.where, equal=False)
        if not path.startswith("cache.") or _tells_its_namespace(manifest, running):
            return Item(path, "same", "none was approved, and the server tells of none")
        return Item(path, "not asked", _silence(path, running))
    if said is None:
        return Item(path, "not asked", "it is left to the engine's default, which the server does not tell")
    if said.value == _DEFAULTS.get((running.engine, path)):
        return compared(path, None, said.value, f"{said.where}: the engine's default", equal=True)
    return Item(path, "not asked", f"it is left to the engine's default, and whether {shown(said.value)} is that")


def _tells_its_namespace(manifest: Manifest, running: Running) -> bool:
    """Whether a server tells the name space of its store where it has one; LMCache's settings are not the engine's."""
    said = running.settings.get("cache.connector")
    return said is not None and not str(said.value).startswith("lmcache") and not _by_requests(manifest)


def _by_requests(manifest: Manifest) -> bool:
    tenancy = manifest.value("cache.tenancy")
    return isinstance(tenancy, Mapping) and tenancy.get("carried_by") is not None


def _silence(path: str, running: Running) -> str:
    if path == "cache.namespace":
        return "the server does not tell it, or requests carry it"
    silent_ = f" (no answer from {', '.join(running.silent)})" if running.silent else ""
    return f"the server does not tell it{silent_}"


def _names(manifest: Manifest, running: Running) -> Iterator[Item]:
    from kvgate.deployments.running_contradictions import same_model

    model, served = manifest.value("model.id"), manifest.value("model.served_name")
    if running.model is None:
        yield Item("model.id", "not asked", _silence("model.id", running), shown(model))
    else:
        equal = same_model(model, running.model.value)
        yield compared("model.id", model, running.model.value, running.model.where, equal=equal)
    if running.names is None or not manifest.knows("model.served_name"):
        why = _silence("", running) if running.names is None else "the approved manifest does not know it"
        yield Item("model.served_name", "not asked", why, shown(served))
    else:
        loaded = None if running.model is None else running.model.value
        equal = (served or model) in running.names.value or (served is None and loaded in running.names.value)
        yield compared("model.served_name", served or model, running.names.value, running.names.where, equal=equal)
    yield _adapters(manifest, running.adapters, running)


def _adapters(manifest: Manifest, said: Said | None, running: Running) -> Item:
    if said is None or not manifest.knows("adapters"):
        why = _silence("", running) if said is None else "the approved manifest does not know them"
        return Item("adapters", "not asked", why)
    approved = sorted(one["name"] for one in manifest.data.get("adapters") or () if not one.get("removed"))
    if approved and approved == said.value:
        why = f"{said.where}: the names are those approved, and what they stand for is not told"
        return Item("adapters", "not asked", why, shown(approved), shown(said.value))
    return compared("adapters", approved, said.value, said.where, equal=approved == said.value)


def _weights(manifest: Manifest, endpoint: str, key: str | None, progress: Progress) -> Item:
    """Ask what the workers hold, and compare it with what they held, or with the checkpoint's tensor map."""
    from kvgate.deployments.served import NotEquippedError, ask_served

    progress("asking the workers for their weights", 0, None, "ranks")
    try:
        ranks = ask_served(endpoint, key)
    except NotEquippedError as error:
        return Item("weights", "not asked", f"{error.message} ({error.hint})" if error.hint else error.message)
    approved = manifest.value("weights.served")
    if approved:
        return _against_ranks({str(rank): one for rank, one in approved.items()}, ranks, endpoint)
    return _against_map(manifest, ranks, endpoint)


def _against_ranks(approved: Mapping[str, Mapping[str, Any]], ranks: Sequence[ServedRank], where: str) -> Item:
    unreadable = [rank.world.rank for rank in ranks if rank.unreadable]
    was = {rank: one["digest"] for rank, one in sorted(approved.items())}
    found = {str(rank.world.rank): rank.digest() for rank in ranks if not rank.unreadable}
    if unreadable:
        return Item("weights", "not asked", f"rank {unreadable[0]} keeps weights where nobody can read them")
    return compared("weights", was, found, f"{where}: what its workers report", equal=was == found)


def _against_map(manifest: Manifest, ranks: Sequence[ServedRank], where: str) -> Item:
    from kvgate.weight_maps import tensor_map
    from kvgate.weights.served.compare import compare_with_checkpoint

    stored = tensor_map(manifest)
    if stored is None:
        return Item("weights", "not asked", "no tensor map lies beside the manifest, and no worker was asked before")
    found = compare_with_checkpoint(ranks, stored.entries, lambda _name, _stretch: None)
    told = f"{where}: what its workers report"
    if found.different:
        rank, name = found.different[0]
        return compared("weights", stored.digest, f"another {name[:200]} (rank {rank})", told, equal=False)
    if not found.equal:
        layers = sum(len(rank.unreadable) for rank in ranks)
        why = f": the engine keeps the weights of {layers} layers where nobody can read them" if layers else ""
        what = f"{len(found.unknown)} tensors could not be compared, {found.unknown[0][:200]} first{why}"
        return Item("weights", "not asked", what, stored.digest)
    return compared("weights", stored.digest, stored.digest, told, equal=True)


def _tokens(
    manifest: Manifest, endpoint: str, key: str | None, corpora: Sequence[str | Path], progress: Progress
) -> Item:
    """Have the server tokenize what the manifest's snapshot was taken of, and compare the ids."""
    from kvgate.corpora.conversations.corpus import DIAGNOSTIC, load_corpus
    from kvgate.corpora.endpoints.asking import NOT_ASKED, snapshot_endpoint
    from kvgate.corpora.endpoints.client import Client
    from kvgate.corpora.snapshots.comparison import compare_snapshots
    from kvgate.corpora.snapshots.snapshot import open_snapshot

    named = sidecar_path(manifest, "tokenizer.snapshot")
    if named is None:
        return Item("tokens", "not asked", "no snapshot lies beside the manifest")
    saved = open_snapshot(*named)
    loaded = (load_corpus(one, progress) for one in (DIAGNOSTIC, *corpora))
    corpus = next((one for one in loaded if one.digest == saved.header.corpus_digest), None)
    if corpus is None:
        return Item("tokens", "not asked", f"the snapshot is of {saved.header.corpus}, which is not at hand: --corpus")
    with tempfile.TemporaryDirectory(prefix="kvgate-") as work, Client(endpoint, key) as client:
        try:
            again = snapshot_endpoint(
                client,
                corpus,
                Path(work) / "tokens.jsonl",
                options=dict(saved.header.options),
                redact=saved.header.redacted,
                progress=progress,
            )
        except InputError as error:
            return Item("tokens", "not asked", f"the server does not tokenize: {error.message}")
        found = compare_snapshots(saved, again, progress=progress)
    where = f"{endpoint}: {found.examined} renderings of {saved.header.corpus}"
    if found.divergent:
        first = found.divergences.first[0].id
        told = f"{found.divergent:,} of {found.examined:,} renderings have other token ids, {first} first"
        if saved.header.made != "endpoint":
            by = " and ".join(f"{name} {version}" for name, version in saved.header.renderer.items())
            how = "`kvgate corpus snapshot --endpoint` takes one of the engine, and `kvgate capture --renderer` uses it"
            return Item("tokens", "not asked", f"{told}; but {by} rendered the approved ones, and no engine: {how}")
        return compared("tokens", "those saved", told, where, equal=False)
    one_sided = [one for one in found.unexamined.first if (one.old is None) != (one.new is None)]
    open_ = [one for one in one_sided if (one.old or one.new or ("",))[0] == NOT_ASKED]
    for one in one_sided:
        if one in open_:
            continue
        said = ": ".join(filter(None, one.old or one.new or ()))[:_LONGEST]
        does = "refuses" if one.old is None else "renders"
        other = "was rendered" if one.old is None else "was refused"
        what = f"{does} {one.id}, which {other} when it was approved ({said})"
        return compared("tokens", "those saved", what, where, equal=False)
    if not found.examined:
        return Item("tokens", "not asked", "no conversation was tokenized on both sides")
    if left := len(open_) + found.only_old.count + found.only_new.count:
        return Item("tokens", "not asked", f"{left} conversations were rendered on one side alone")
    return compared("tokens", "those saved", "those saved", where, equal=True)
