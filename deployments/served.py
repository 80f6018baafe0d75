"""What a running engine says that it holds: asked over HTTP, and as a manifest's ``weights.served``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvgate.corpora.endpoints.client import SECONDS, Answer, Client
from kvgate.corpora.endpoints.server import engine_and_version
from kvgate.deployments.running import Said
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError
from kvgate.weights.digest import root_digest
from kvgate.weights.served.compare import ServedComparison
from kvgate.weights.served.report import ServedRank, read_ranks

METHOD = "kvgate_weights"
_NO_SUCH_PATH = (404, 405)
PATIENCE = 1800.0
"""Seconds for the hashing of every rank: on the host, through copies, a large model takes minutes."""


class NotEquippedError(InputError):
    """The engine answers, and is not started so that it says what its workers hold."""


_EXTENSION = "kvgate.weights.served.vllm_worker.FingerprintExtension"
_VLLM = f"start vLLM with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls {_EXTENSION}"
_SGLANG = "install kvgate where SGLang runs; SGLANG_PLUGINS, where it is set, must name kvgate_weights"


def ask_served(
    url: str, key: str | None = None, *, seconds: float = SECONDS, patience: float = PATIENCE
) -> tuple[ServedRank, ...]:
    """Ask every rank of a running engine for the fingerprint of the weights that it serves with.

    vLLM answers where its development mode is on and its workers have kvgate's extension
    (``vllm/entrypoints/serve/dev/rpc/api_router.py``, 0.32.0), SGLang where kvgate is installed beside it
    (:mod:`kvgate.weights.served.sglang_plugin`). Nothing is changed in the engine.

    Args:
        url: where it answers, ``http://HOST:PORT``.
        key: its API key.
        seconds: within which it must say what it is.
        patience: seconds within which all ranks must have hashed what they hold.

    Raises:
        NotEquippedError: it is not started for it.
        InputError: it cannot be reached, is no engine that can be asked, or answers with what is no complete report of
            all ranks.
    """
    with Client(url, key, seconds=seconds) as client:
        engine, _ = engine_and_version(client)
    with Client(url, key, seconds=patience) as client:
        return (_ask_vllm if engine == "vllm" else _ask_sglang)(client)


def _ask_vllm(client: Client) -> tuple[ServedRank, ...]:
    path = "/collective_rpc"
    where = f"{client.url}{path}"
    answer = client.post(path, {"method": METHOD})
    replies = answer.data.get("results") if answer.ok and isinstance(answer.data, dict) else None
    if isinstance(replies, list):
        return read_ranks(replies, where)
    if answer.status in _NO_SUCH_PATH:
        raise NotEquippedError(
            "this vLLM takes no calls to its workers: its development mode is off", where=where, hint=_VLLM
        )
    if METHOD in answer.said() and "attribute" in answer.said():
        hint = f"{_VLLM}; kvgate must be installed where the engine runs"
        raise NotEquippedError("the workers of this vLLM do not have kvgate's extension", where=where, hint=hint)
    raise _refusal(answer, where, _VLLM)


def _ask_sglang(client: Client) -> tuple[ServedRank, ...]:
    path = "/weights_checker"
    where = f"{client.url}{path}"
    answer = client.post(path, {"action": METHOD, "selector": "target"})
    ranks = answer.data.get("ranks") if answer.ok and isinstance(answer.data, dict) else None
    if isinstance(ranks, list):
        return read_ranks([_text_of(rank, where) for rank in ranks], where)
    if answer.status in _NO_SUCH_PATH:
        raise NotEquippedError("this SGLang has no weight checker; 0.5.23 has one", where=where)
    if METHOD in answer.said():  # "Unsupported action='kvgate_weights'"
        raise NotEquippedError("this SGLang does not have kvgate's plugin", where=where, hint=_SGLANG)
    raise _refusal(answer, where, _SGLANG)


def _text_of(rank: Any, where: str) -> Any:
    texts = rank.get("checksums") if isinstance(rank, dict) else None
    text = texts.get(METHOD) if isinstance(texts, dict) else None
    return parse_json(text, where) if isinstance(text, str) else None


def _refusal(answer: Answer, where: str, hint: str) -> InputError:
    what = f"answers with HTTP {answer.status}" if answer.status != 200 else "answers with what is no report"
    return InputError(what + (f": {answer.said()}" if answer.said() else ""), where=where, hint=hint)


def served_section(
    ranks: Sequence[ServedRank], found: ServedComparison | None, checkpoint: str | None
) -> list[dict[str, Any]]:
    """Return a manifest's ``weights.served``.

    Args:
        ranks: all ranks of one engine.
        found: how they stand to the checkpoint of the same manifest; ``None``: no tensor of it was read.
        checkpoint: its digest.

    Raises:
        InputError: a rank holds other weights than the checkpoint, or weights that cannot be read.
    """
    if found is not None and found.different:
        where, name = found.different[0]
        tensors = len({each for _, each in found.different})
        raise InputError(
            f"the running engine holds other weights than this checkpoint: {tensors} of its tensors differ "
            f"(first: {name[:200]}, rank {where})",
            where="--endpoint",
            hint="capture the checkpoint that it has loaded, or start it anew",
        )
    return [_entry(rank, found, checkpoint) for rank in ranks]


def _entry(rank: ServedRank, found: ServedComparison | None, checkpoint: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "rank": rank.world.rank,
        "digest": rank.digest(),
        "engine": rank.engine,
        "engine_version": rank.engine_version,
        "architecture": rank.architecture,
        "tensor": rank.tensor_parallel.model_dump(),
        "pipeline": rank.pipeline_parallel.model_dump(),
        "checkpoint": checkpoint if found is not None and found.equal else None,
    }
    if found is not None and found.equal:  # else what is beside the checkpoint is not known
        beside = [one for one in rank.entries() if one.name in found.own]
        entry["own"] = root_digest(beside) if beside else None
    return entry


def told_by(ranks: Sequence[ServedRank], url: str) -> dict[str, Said]:
    """Return what the ranks of an engine say of it besides their weights, by manifest path.

    Args:
        ranks: all ranks of one engine.
        url: where it answers.
    """
    first = ranks[0]
    told: dict[str, Any] = {
        "engine.name": first.engine,
        "engine.version": first.engine_version,
        "parallelism.tensor": first.tensor_parallel.size,
        "parallelism.pipeline": first.pipeline_parallel.size,
    }
    return {path: Said(value, f"{url}: what its workers report") for path, value in told.items()}
