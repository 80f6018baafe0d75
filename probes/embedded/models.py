"""Building a model in the child: from a checkpoint's safetensors, or a stand-in's random weights from a seed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvgate.probes.embedded.blocks import empty_cache
from kvgate.probes.evaluation.copying import copying_model

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_LOUDER = {"q_": 12.0, "k_": 12.0, "kv_a": 12.0, "qkv": 12.0, "v_": 8.0, "kv_b": 8.0, "o_proj": 8.0}
"""What the matrices of a freshly initialised model are multiplied by, by the beginning of their names.

At their usual scale attention looks at everything alike, and every answer is much the same.
"""
_ELSE = 4.0

_ADAPTED = ("q_proj", "k_proj", "v_proj", "kv_a_proj_with_mqa", "kv_b_proj")


class Model:
    """A model that answers.

    Attributes:
        module: transformers' own.
        layers: how many hold KV.

    """

    def __init__(self, module: Any) -> None:
        self.module = module.eval()
        kinds = {type(layer) for layer in DynamicCache(config=module.config).layers}
        if strange := sorted(kind.__name__ for kind in kinds - {DynamicLayer, DynamicSlidingWindowLayer}):
            raise ValueError(f"some of its layers keep more than keys and values ({', '.join(strange)})")
        self.layers = int(module.config.get_text_config().num_hidden_layers)
        self.dtype = next(module.parameters()).dtype
        self._cache_name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"

    def empty(self, saved: str) -> Any:
        """Return an empty cache for it, in the format in which KV is stored."""
        return empty_cache(self.layers, saved)

    def compute(self, token_ids: list[int], cache: Any) -> Any:
        """Compute tokens behind what a cache holds, and return the log-probabilities after the last one."""
        ids = torch.tensor([token_ids])
        with torch.inference_mode():
            found = self.module(input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_name: cache})
            return torch.log_softmax(found.logits[0, -1].float(), -1)


def build(spec: Mapping[str, Any]) -> Model:
    """Build what a specification asks for.

    Args:
        spec: ``kind`` (``stand-in``, ``real``, ``copying``), ``dtype``, ``attention``, ``seed``, ``tail_seed``;
            ``config`` (a whole config) but for copying; ``folder`` for real; ``adapter``: ``None`` or its ``seed``,
            ``rank`` and ``scale``, or ``folder`` and ``scale``.

    """
    if spec["kind"] == "copying":
        return Model(copying_model(spec["seed"]).to(_DTYPES[spec["dtype"]]))
    module = _real(spec) if spec["kind"] == "real" else _stand_in(spec)
    if spec.get("adapter") is not None:
        _adapt(module, spec["adapter"])
    return Model(module.to(_DTYPES[spec["dtype"]]))


def _config(spec: Mapping[str, Any]) -> Any:
    fields = {name: value for name, value in spec["config"].items() if name not in ("dtype", "torch_dtype")}
    if fields["model_type"] not in CONFIG_MAPPING:
        raise ValueError(f"this transformers has no model of the type {fields['model_type']!r}")
    kind = CONFIG_MAPPING[fields["model_type"]]
    config = kind.from_dict({name: _as_asked(kind, name, value) for name, value in fields.items()})
    config._attn_implementation = spec["attention"]
    return config


def _as_asked(kind: Any, name: str, value: Any) -> Any:
    """Return a number as a config class wants it: canonical JSON writes 30 for 30.0, which strict classes refuse."""
    declared = (vars(one).get("__annotations__", {}).get(name) for one in kind.__mro__)
    wanted = str(next((one for one in declared if one is not None), ""))
    return float(value) if type(value) is int and "float" in wanted and "int" not in wanted else value


def _stand_in(spec: Mapping[str, Any]) -> Any:
    torch.manual_seed(spec["seed"])
    module = AutoModelForCausalLM.from_config(_config(spec), trust_remote_code=False)
    tail = torch.Generator().manual_seed(spec["tail_seed"])
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.startswith("lm_head"):
                parameter.copy_(torch.randn(parameter.shape, generator=tail) * 0.02)
            own = name.removesuffix(".weight").rpartition(".")[2]
            if own in ("q_norm", "k_norm"):
                parameter.add_(1.0)
            elif parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(next((by for start, by in _LOUDER.items() if own.startswith(start)), _ELSE))
    return module


def _real(spec: Mapping[str, Any]) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        spec["folder"],
        config=_config(spec),
        dtype=_DTYPES[spec["dtype"]],
        attn_implementation=spec["attention"],
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
    )


def _adapt(module: Any, adapter: Mapping[str, Any]) -> None:
    """Add a LoRA adapter's product to the matrices it is for, as an engine that merges it."""
    found = _trained(Path(adapter["folder"])) if "folder" in adapter else None
    made = torch.Generator().manual_seed(adapter.get("seed", 0))
    touched = 0
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            owner = name.removesuffix(".weight")
            if found is not None:
                pair = found.get(owner)
            elif owner.rpartition(".")[2] in _ADAPTED and parameter.ndim == 2:
                rank, (out, into) = adapter["rank"], parameter.shape
                pair = (torch.randn(rank, into, generator=made) * 0.05, torch.randn(out, rank, generator=made) * 0.05)
            else:
                pair = None
            if pair is not None:
                parameter.add_((pair[1].float() @ pair[0].float() * adapter["scale"]).to(parameter.dtype))
                touched += 1
    if not touched:
        raise ValueError("the adapter is for no matrix of this model")


@cache
def _trained(folder: Path) -> dict[str, tuple[Any, Any]]:
    """The pairs of matrices of a PEFT checkpoint, by the module they are for."""
    tensors = load_file(folder / "adapter_model.safetensors")
    prefix, first, second = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
    return {
        name.removeprefix(prefix).removesuffix(first): (tensors[name], tensors[name.removesuffix(first) + second])
        for name in tensors
        if name.endswith(first)
    }
