"""LoRA adapters that an engine is started with: their flags, and what stands in for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from kvgate.probes.embedded.stand_in import Side
from kvgate.probes.engines.adapters import adapter_flags, lay_out_adapters
from kvgate.probes.rehearsal.backend import CannotStageError

_CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def _side(adapters: dict[str, Any], config: dict[str, Any] = _CONFIG) -> Side:
    return Side(config, 0, 0, "bfloat16", "bfloat16", adapters)


def _own(folder: Path, rank: int) -> dict[str, Any]:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return {"folder": str(folder), "scale": 2.0}


def test_a_side_without_adapters_takes_no_flags() -> None:
    assert adapter_flags(_side({})) == []


@pytest.mark.parametrize(("ranks", "largest"), [((4,), "8"), ((16, 8), "16"), ((9, 33), "64")])
def test_an_engine_takes_the_largest_rank(tmp_path: Path, ranks: tuple[int, ...], largest: str) -> None:
    side = _side({str(rank): _own(tmp_path / str(rank), rank) for rank in ranks})
    assert adapter_flags(side) == ["--enable-lora", "--max-lora-rank", largest, "--max-cpu-loras", str(len(ranks))]
    found = lay_out_adapters(side, tmp_path)
    assert {one.folder for one in found.values()} == {tmp_path / str(rank) for rank in ranks}
    assert sorted(one.number for one in found.values()) == list(range(1, len(ranks) + 1))


def test_an_adapter_that_no_engine_takes_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(CannotStageError):
        adapter_flags(_side({"large": _own(tmp_path / "large", 513)}))


def test_what_stands_in_for_adapters_is_another_one_for_another_digest(tmp_path: Path) -> None:
    made = [{"seed": seed, "rank": 4, "scale": 4.0} for seed in (1, 1, 2)]
    tensors = []
    for number, one in enumerate(made):
        found = lay_out_adapters(_side({"billing": one}), tmp_path / str(number))["billing"]
        settings = json.loads((found.folder / "adapter_config.json").read_text())
        assert settings["lora_alpha"] / settings["r"] == 4
        tensors.append(load_file(found.folder / "adapter_model.safetensors"))
    front = "base_model.model.model.layers.1.self_attn"
    assert tensors[0][f"{front}.k_proj.lora_B.weight"].shape == (64, 8)
    assert len(tensors[0]) == 2 * 2 * 3
    assert all((tensors[0][name] == tensors[1][name]).all() for name in tensors[0])
    assert not any((tensors[0][name] == tensors[2][name]).any() for name in tensors[0])


def test_of_a_model_of_unknown_sizes_nothing_stands_in(tmp_path: Path) -> None:
    with pytest.raises(CannotStageError):
        lay_out_adapters(_side({"billing": {"seed": 1, "rank": 4, "scale": 4.0}}, {"hidden_size": 128}), tmp_path)
