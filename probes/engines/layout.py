"""How an engine lays KV out in what it stores, and how far two stored stretches of it are apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvgate.probes.rehearsal.backend import LayerError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
PLAIN = frozenset(_BYTES)
"""The number formats that are understood here."""

_RANK_FUSED, _RANK_APART = 4, 5


class UnlikeError(Exception):
    """Stored bytes that are none of what an engine of this layout stores."""


@dataclass(frozen=True)
class Layout:
    """What an engine keeps of a token.

    Attributes:
        layers: that hold KV, in order.
        dtype: the number format.
        planes: 2 where keys and values lie apart; 1 where they lie together, or where there is but a latent.
        heads: of one layer, plane and rank.
        content: numbers of one token, head and plane.
        block: tokens of a block.
        ranks: that share the heads; each stores its own.

    """

    layers: tuple[str, ...]
    dtype: str
    planes: int
    heads: int
    content: int
    block: int
    ranks: int = 1

    @property
    def width(self) -> int:
        """Numbers of one token in one layer and plane of one rank."""
        return self.heads * self.content

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer of one rank, all planes."""
        return self.planes * self.width * _BYTES[self.dtype]

    def array(self, data: bytes, shape: Sequence[int]) -> Any:
        """Return stored bytes as numbers of the stored format, as they are; bfloat16 as the bits that it is.

        Raises:
            UnlikeError: they are more, or fewer.

        """
        import numpy as np

        kind = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}[self.dtype]
        found = np.frombuffer(data, kind) if len(data) % _BYTES[self.dtype] == 0 else None
        if found is None or found.size != int(np.prod(shape)):
            raise UnlikeError(f"{len(data):,} bytes are none of a stretch of {shape}")
        return found.reshape(tuple(shape))


def layout_from(told: Mapping[str, Any]) -> Layout | None:
    """Return the layout of which an engine's tensors tell; ``None`` for one that is not known here.

    Known are vLLM's tensors of a layer with keys and values together, (blocks, heads, tokens, both) or with heads and
    tokens the other way round, and apart, (2, blocks, ...) or (blocks, 2, ...). Source: vllm 0.32.0 wheel,
    v1/attention/backends/cpu_attn.py and v1/attention/backends/flash_attn.py.

    Args:
        told: ``block``, and ``ranks``: name, shape and number format of the layers of each.

    """
    ranks, block = told["ranks"], told["block"]
    layers = ranks[0]
    kinds = {(tuple(shape), dtype) for _, shape, dtype in layers}
    if len(kinds) != 1 or any(one != layers for one in ranks):  # ranks may have other layers each
        return None
    ((shape, dtype),) = kinds
    if dtype not in _BYTES:
        return None
    planes, sizes = 1, list(shape[1:])
    if len(shape) == _RANK_APART and 2 in shape[:2]:
        planes, sizes = 2, list(shape[2:])
    elif len(shape) != _RANK_FUSED:
        return None
    if block not in sizes[:2]:
        return None
    heads = sizes[1] if sizes[0] == block else sizes[0]
    return Layout(tuple(name for name, _, _ in layers), dtype, planes, heads, sizes[2], block, len(ranks))


def layer_errors(
    layout: Layout, stored: Sequence[Any] | None, computed: Sequence[Any], again: Sequence[Any] | None
) -> list[LayerError]:
    """Hold stored stretches against computed ones.

    Args:
        layout: of the engine that computed.
        stored: what lay in the store; ``None``: nothing that compares.
        computed: what it stores itself for the same tokens.
        again: the same once more, the prompt cut; ``None``: it could not be measured.

    """
    errors = _apart(layout, computed, stored)
    noises = _apart(layout, computed, again)
    return [LayerError(number, *pair) for number, pair in enumerate(zip(errors, noises, strict=True))]


def _apart(layout: Layout, computed: Sequence[Any], other: Sequence[Any] | None) -> list[float]:
    """Return the largest difference in each layer, relative to the largest magnitude that was computed there."""
    import numpy as np

    count = len(layout.layers)
    if other is None or [one.shape for one in computed] != [two.shape for two in other]:
        return [float("inf")] * count
    most: dict[int, Any] = {}
    largest: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for one, two in zip(computed, other, strict=True):
            first, second = _wide(layout, one), _wide(layout, two)
            difference = np.abs(first - second)
            for number, part in enumerate(_parts(layout, first.shape[2])):
                for found, numbers in ((most, difference), (largest, np.abs(first))):
                    here = numbers[part].reshape(count, -1).max(axis=1)
                    found[number] = np.maximum(found.get(number, here), here)
        each = [most[number] / np.maximum(largest[number], 1e-30) for number in most]
        worst = np.stack(each).max(axis=0)  # a NaN stays one
    return [float(one) if np.isfinite(one) else float("inf") for one in worst]


def _wide(layout: Layout, stretch: NDArray[Any]) -> NDArray[np.float32]:
    import numpy as np

    if layout.dtype == "bfloat16":
        return (stretch.astype(np.uint32) << 16).view(np.float32)
    return stretch.astype(np.float32)


def _parts(layout: Layout, tokens: int) -> Iterator[Any]:
    """Yield what is measured by its own largest magnitude: keys and values, of which one may be much the smaller.

    Where they lie together, an engine may keep them in halves of what it has of a token, or in halves of a block (vLLM
    on a CPU). Both are looked at, and the larger error counts: halves that mix them only make an error smaller.
    """
    import numpy as np

    everything = (slice(None), slice(None))
    if layout.planes > 1:
        yield from ((slice(None), [plane]) for plane in range(layout.planes))
        return
    in_a_head = np.arange(layout.ranks * layout.width) % layout.content < layout.content // 2
    in_a_block = np.arange(tokens) % layout.block < layout.block // 2
    yield from ((*everything, slice(None), half) for half in (in_a_head, ~in_a_head) if half.any())
    yield from ((*everything, half) for half in (in_a_block, ~in_a_block) if half.any())
