"""Stored KV of an engine: how it lies there, and how far two of it are apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvgate.probes.engines.layout import Layout, UnlikeError, layer_errors, layout_from

_FUSED = Layout(("a", "b"), "float32", planes=1, heads=2, content=8, block=4)
_APART = Layout(("a", "b"), "float32", planes=2, heads=2, content=4, block=4)
_TOKENS = 8


def _told(*shape: int, dtype: str = "bfloat16", block: int = 32, ranks: int = 1) -> dict[str, Any]:
    layers = [[name, list(shape), dtype] for name in ("a", "b")]
    return {"block": block, "dtype": "bfloat16", "ranks": [layers] * ranks}


@pytest.mark.parametrize(
    ("told", "layout"),
    [
        (_told(9, 2, 32, 64), Layout(("a", "b"), "bfloat16", 1, 2, 64, 32)),
        (_told(9, 32, 2, 64), Layout(("a", "b"), "bfloat16", 1, 2, 64, 32)),
        (_told(2, 9, 16, 8, 128, dtype="float16", block=16), Layout(("a", "b"), "float16", 2, 8, 128, 16)),
        (_told(9, 2, 16, 8, 128, dtype="float16", block=16), Layout(("a", "b"), "float16", 2, 8, 128, 16)),
        (_told(9, 2, 32, 64, dtype="uint8"), None),
        (_told(9, 2, 32, 64, ranks=2), Layout(("a", "b"), "bfloat16", 1, 2, 64, 32, ranks=2)),
        (
            {**_told(9, 2, 32, 64), "ranks": [[["a", [9, 2, 32, 64], "float16"]], [["b", [9, 2, 32, 64], "float16"]]]},
            None,
        ),
        (_told(9, 2, 48, 64), None),
        (_told(9, 64), None),
        ({**_told(9, 2, 32, 64), "ranks": [[]]}, None),
        (
            {**_told(9, 2, 32, 64), "ranks": [[["a", [9, 2, 32, 64], "float16"], ["b", [9, 4, 32, 64], "float16"]]]},
            None,
        ),
    ],
)
def test_what_an_engine_tells(told: dict[str, Any], layout: Layout | None) -> None:
    assert layout_from(told) == layout


def test_bytes_that_are_no_stretch_are_refused() -> None:
    layout = Layout(("a",), "bfloat16", 1, 1, 4, 4)
    assert layout.array(bytes(2 * 4 * 4), (1, 4, 4)).shape == (1, 4, 4)
    for size in (0, 2 * 4 * 4 - 2, 2 * 4 * 4 + 1, 4 * 4 * 4):
        with pytest.raises(UnlikeError):
            layout.array(bytes(size), (1, 4, 4))


def _stretch(layout: Layout, seed: int = 0) -> Any:
    """Keys of about 100 and values of about 1, as an engine lays them out that keeps them in halves of a block."""
    draw = np.random.default_rng(seed)
    shape = (len(layout.layers), layout.planes, _TOKENS, layout.width)
    found = draw.uniform(0.5, 1, shape).astype(np.float32)
    if layout.planes > 1:
        found[:, 0] *= 100
    else:
        found[:, :, np.arange(_TOKENS) % layout.block < layout.block // 2] *= 100
    return found


@pytest.mark.parametrize("layout", [_FUSED, _APART])
def test_a_value_counts_by_values_and_not_by_larger_keys(layout: Layout) -> None:
    computed, stored = _stretch(layout), _stretch(layout)
    stored[1, -1, -1, -1] += 0.1  # a value of the second layer
    first, second = layer_errors(layout, [stored], [computed], [computed])
    assert (first.error, first.noise, second.noise) == (0, 0, 0)
    assert second.error == pytest.approx(0.1, rel=0.2)


def test_keys_and_values_in_halves_of_a_head_are_told_apart_too() -> None:
    computed = np.ones((2, 1, _TOKENS, _FUSED.width), np.float32)
    computed[..., np.arange(_FUSED.width) % 8 < 4] = 100
    stored = computed.copy()
    stored[0, 0, 0, -1] = 1.1
    assert layer_errors(_FUSED, [stored], [computed], [computed])[0].error == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(("dtype", "kind"), [("float32", np.float32), ("float16", np.float16), ("bfloat16", None)])
def test_numbers_are_those_of_their_format(dtype: str, kind: Any) -> None:
    layout = Layout(("a",), dtype, 1, 1, 4, 4)
    values = np.array([1.5, -2.0, 0.25, 4.0] * 4, np.float32)
    other = values.copy()
    other[-1] = 3.0
    stored, computed = (
        (one.view(np.uint32) >> 16).astype("<u2").tobytes() if kind is None else one.astype(kind).tobytes()
        for one in (other, values)
    )
    first, second = (layout.array(one, (1, 1, 4, 4)) for one in (stored, computed))
    (found,) = layer_errors(layout, [first], [second], [second])
    assert (found.error, found.noise) == (0.25, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_is_infinitely_far(bad: float) -> None:
    computed, stored = _stretch(_FUSED), _stretch(_FUSED)
    stored[0, 0, 0, 0] = bad
    for pair in ((stored, computed), (computed, stored)):
        errors = [one.error for one in layer_errors(_FUSED, [pair[0]], [pair[1]], [pair[1]])]
        assert errors == [float("inf"), 0]


def test_what_does_not_compare_and_what_was_not_measured_is_infinitely_far() -> None:
    computed = _stretch(_FUSED)
    half = computed[:, :, :4]
    for stored in (None, [], [half], [computed, half]):
        found = layer_errors(_FUSED, stored, [computed], None)
        assert [(one.layer, one.error, one.noise) for one in found] == [
            (0, float("inf"), float("inf")),
            (1, float("inf"), float("inf")),
        ]
