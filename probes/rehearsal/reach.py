"""How long prompts must be before what was seen of them says anything of longer ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.probes.rehearsal.filing import unit_of
from kvgate.rules.change import same
from kvgate.rules.manifest import Manifest

_TURNS = re.compile(r"window|chunk|original_max|floor_scale|local_attention|max_distance")
"""Fields of a config that name a position behind which keys, values or masks are made otherwise."""
_NO_WINDOW = frozenset({"max_window_layers", "use_sliding_window"})


def turns_at(old: Manifest, new: Manifest) -> int:
    """Return the largest position, within what either engine serves, behind which a config has KV made otherwise."""
    longest = max_lengths(old, new)
    found = {at for side in (old, new) for at in _positions(side.value("model.config"))}
    return max((at for at in found if longest is None or at < longest), default=0)


def max_lengths(old: Manifest, new: Manifest) -> int | None:
    """Return how long a sequence may be on either side; ``None`` where it is not known of both."""
    told = [side.value("engine.max_model_len") for side in (old, new)]
    return max(told) if all(isinstance(one, int) for one in told) else None


def too_short(old: Manifest, new: Manifest, tokens: int) -> str | None:
    """Say why prompts of so many tokens show nothing of longer ones; ``None`` where they do.

    A field of a config that differs may act at any position, so what was equal must have been as long as any sequence.
    Where the config is the same, past every position at which it turns.
    """
    if same(old.get("model.config"), new.get("model.config")) is not True:
        longest = max_lengths(old, new)
        if longest is None or tokens < longest:
            up_to = "an unknown length" if longest is None else f"{longest:,}"
            return f"the config differs, and only {tokens:,} of {up_to} tokens were compared"
        return None
    turn = turns_at(old, new)
    if turn and tokens < turn + max(unit_of(old), unit_of(new)):
        return f"what lies past {turn:,} tokens, where the config has KV made otherwise, was not compared"
    return None


def _positions(value: Any, name: str = "") -> Iterator[int]:
    if isinstance(value, Mapping):
        for inner, one in value.items():
            yield from _positions(one, str(inner))
    elif isinstance(value, list):
        for one in value:
            yield from _positions(one, name)
    elif type(value) is int and value > 0 and name not in _NO_WINDOW and _TURNS.search(name):
        yield value
