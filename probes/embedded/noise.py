"""How far a model is from itself when only shapes differ in which one prompt is computed. Runs in the child only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvgate.probes.embedded.models import Model

BATCHES = (2, 5)  # copies of a prompt in one batch
_STEPS = 4  # tokens that are generated
_TOP = 8


def noise_of(model: Model, token_ids: Sequence[int], saved: str, batches: Sequence[int] = ()) -> tuple[float, float]:
    """Return the largest difference of a likely log-probability, in nats, and of a key or value.

    The prompt is computed whole, once more the same, in parts, and several times over in one batch. A difference of a
    key or value is of the largest magnitude in its layer; what is not a number is infinite.

    Args:
        model: that is asked.
        token_ids: the prompt.
        saved: the format in which KV is stored.
        batches: how many copies of it there are in a batch.

    """
    ids = list(token_ids)
    whole = model.empty(saved)
    steps = [model.compute(ids, whole)]
    said: list[int] = []
    for _ in range(_STEPS):
        said.append(int(steps[-1].argmax()))
        steps.append(model.compute(said[-1:], whole))
    logprob = kv = 0.0
    for cut, copies in [(0, 1), *((at, 1) for at in _cuts(len(ids))), *((0, number) for number in batches)]:
        parts = model.empty(saved)
        if cut:
            model.compute(ids[:cut], parts, copies=copies)
        again = [model.compute(ids[cut:], parts, copies=copies)]
        again += [model.compute([token], parts, copies=copies) for token in said]  # the same context in all cases
        for one, two in zip(steps, again, strict=True):
            likely = torch.topk(one, _TOP).indices
            logprob = max(logprob, _number((one[likely] - two[likely]).abs().max()))
        for one, two in zip(whole.layers, parts.layers, strict=True):
            if one.get_seq_length():
                kv = max(kv, apart(one.keys, two.keys[:1]), apart(one.values, two.values[:1]))
    return logprob, kv


def apart(computed: Any, other: Any) -> float:
    """The largest difference of two states, relative to the largest magnitude of the first; infinite where none is."""
    if computed.shape != other.shape:
        return float("inf")
    one, two = computed.float(), other.float()
    return _number((one - two).abs().max() / one.abs().max().clamp_min(1e-30))


def _cuts(length: int) -> tuple[int, ...]:
    """Where prompts are cut: behind the first token, at a block, within one, and just before the end."""
    return 1, length // 3 // 16 * 16, 2 * length // 3 + 1, length - 8


def _number(found: Any) -> float:
    value = float(found)
    return value if value == value else float("inf")
