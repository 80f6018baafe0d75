"""The deployments' own weights: what of a pair is really there when both checkpoints answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvgate.probes.embedded.stand_in import Pair, Side
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.rules.change import same
from kvgate.rules.manifest import Manifest

_NOWHERE: Mapping[str, Path] = MappingProxyType({})

LARGEST = 4 << 30
"""Bytes of a checkpoint that is run on a CPU here."""

_FLOATS = frozenset({"float32", "float16", "bfloat16"})
_SAVED = frozenset({*_FLOATS, "fp8_e4m3", "fp8_e5m2"})
_PLAIN = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_alpha",
        "lora_dropout",
        "megatron_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
    }
)
"""Settings of PEFT (0.18) that an adapter may have and be no more than the product of two matrices, added: how it was
trained, and for which modules, which its tensors say too. Whatever else is set is another kind of adapter."""
_NOT: tuple[Any, ...] = (None, False, "none", {}, [])


def real_pair(old: Manifest, new: Manifest, adapters: Mapping[str, Path] = _NOWHERE) -> Pair:
    """Return both sides as their checkpoints and settings have them.

    Args:
        old: one side.
        new: the other.
        adapters: folders of those that lie elsewhere than their manifests say, by their digests.

    Raises:
        CannotStageError: one of them is nothing that runs here.

    """
    staged = {
        path: "the checkpoints themselves"
        for path, digest in (("weights", "weights.checkpoint.digest"), ("model.config", "model.config"))
        if same(old.get(digest), new.get(digest)) is False
    }
    for path in ("precision.compute", "precision.kv_cache"):
        if same(old.get(path), new.get(path)) is False:
            staged[path] = f"{old.value(path)} and {new.value(path)}"
    if same(old.get("adapters"), new.get("adapters")) is False:
        staged["adapters"] = "the adapters' own matrices"
    return Pair(_side(old, adapters), _side(new, adapters), staged, {})


def too_large(folder: Path) -> str | None:
    """Say why a checkpoint is not run here; ``None`` where it is."""
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    if not sizes:
        return "it holds no safetensors, and nothing else is opened"
    return f"its {sum(sizes):,} bytes are more than the {LARGEST:,} that are run" if sum(sizes) > LARGEST else None


def _side(manifest: Manifest, elsewhere: Mapping[str, Path]) -> Side:
    config = manifest.value("model.config")
    if not isinstance(config, Mapping) or not config.get("model_type"):
        raise CannotStageError("model.config is not known")
    if not manifest.unset("model.quantization") or config.get("quantization_config") is not None:
        raise CannotStageError("quantized weights are not run here")
    if not manifest.unset("model.code"):
        raise CannotStageError("the model has code of its own, which is never run")
    compute, saved = manifest.value("precision.compute"), manifest.value("precision.kv_cache")
    if compute not in _FLOATS or saved not in _SAVED:
        raise CannotStageError("precision.compute or precision.kv_cache is not known, or does not run here")
    adapters = {
        name: _adapter(name, elsewhere.get(str(entry.get("digest")), Path(str(entry.get("path")))))
        for name, entry in (manifest.value("adapters") or {}).items()
        if entry.get("removed") is not True
    }
    return Side(config, 0, 0, compute, saved, adapters)


def _adapter(name: str, folder: Path) -> dict[str, Any]:
    try:
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        scale = float(settings["lora_alpha"] / settings["r"])
        if not (folder / "adapter_model.safetensors").is_file():
            raise FileNotFoundError
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        raise CannotStageError(f"the adapter {name!r} has no readable PEFT checkpoint at {folder}") from None
    if more := sorted(one for one, value in settings.items() if one not in _PLAIN and value not in _NOT):
        raise CannotStageError(f"the adapter {name!r} is no plain LoRA: {', '.join(more)}")
    return {"folder": str(folder.resolve()), "scale": scale}
