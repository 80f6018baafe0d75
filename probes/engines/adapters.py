"""LoRA adapters of engines: the deployments' own, and random ones that stand in for them, as PEFT writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvgate.probes.embedded.stand_in import Side
from kvgate.probes.engines.program import Adapter
from kvgate.probes.rehearsal.backend import CannotStageError

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM 0.32.0 can be started with, but for 1
_RANK = _RANKS[0]  # of a stand-in's
_LOUD = 0.05


def adapter_flags(side: Side) -> list[str]:
    """Return the flags with which an engine takes a side's adapters.

    Raises:
        CannotStageError: one of them is larger than engines take.

    """
    if not side.adapters:
        return []
    largest = max(_rank_of(one) for one in side.adapters.values())
    rank = next((one for one in _RANKS if one >= largest), None)
    if rank is None:
        raise CannotStageError(f"an adapter's rank is {largest}, and engines take {_RANKS[-1]} at most")
    return ["--enable-lora", "--max-lora-rank", str(rank), "--max-cpu-loras", str(len(side.adapters))]


def lay_out_adapters(side: Side, folder: Path) -> dict[str, Adapter]:
    """Return a side's adapters for an engine; what stands in for them is written.

    Args:
        side: whose.
        folder: for what is written.

    Raises:
        CannotStageError: nothing stands in for an adapter of such a model.

    """
    found = {}
    for number, (name, made) in enumerate(sorted(side.adapters.items()), 1):
        if "folder" in made:
            place = Path(made["folder"])
        else:
            place = folder / f"adapter-{number}"
            _write(place, side.config, made)
        found[name] = Adapter(name, number, place)
    return found


def _rank_of(made: Mapping[str, Any]) -> int:
    if "folder" not in made:
        return _RANK
    settings = json.loads((Path(made["folder"]) / "adapter_config.json").read_text(encoding="utf-8"))
    return int(settings["r"])


def _write(folder: Path, config: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Write random matrices for the queries, keys and values of every layer."""
    import numpy as np
    from safetensors.numpy import save_file

    if not all(name in config for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim")):
        raise CannotStageError("the size of an adapter for this model is not known")
    heads, head = config["num_attention_heads"], config["head_dim"]
    sizes = {"q_proj": heads, "k_proj": config.get("num_key_value_heads") or heads}
    sizes["v_proj"] = sizes["k_proj"]
    draw = np.random.default_rng(made["seed"])
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, count in sizes.items():
            front = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("A", (_RANK, config["hidden_size"])), ("B", (count * head, _RANK))):
                tensors[f"{front}.lora_{part}.weight"] = draw.normal(0, _LOUD, shape).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": _RANK,
        "lora_alpha": _RANK * made["scale"],
        "target_modules": sorted(sizes),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
