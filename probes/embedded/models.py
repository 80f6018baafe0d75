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
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvgate.probes.embedded.blocks import empty_cache
from kvgate.probes.evaluation.copying import copying_model

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_LOUDER = {
    **dict.fromkeys(("q_", "k_", "kv_a", "qkv", "Wqkv", "query", "c_attn"), 12.0),
    **dict.fromkeys(("v_", "kv_b", "o_proj"), 8.0),
}
"""What the matrices of a freshly initialised model are multiplied by, by the beginning of their names.

At their usual scale attention looks at everything alike, and every answer is much the same.
"""
_ELSE = 4.0
_SPREAD = 0.6
"""Of a stand-in's logits, at least: as an untied head has them. Some models scale theirs down, or tie a quiet head, and
what attention saw would be lost below the floor."""
_PROBED = 32  # tokens by which that is seen
_LARGEST = 64_000_000
"""Weights of a stand-in. One that is larger has a size under a name that is not known here."""

_KEPT = frozenset(kind.__name__ for kind in (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer))
"""Layers whose whole state is keys and values, or nothing: a dummy reads those of an earlier one."""

_NOT_THE_MODEL = frozenset({"dtype", "torch_dtype", "transformers_weights", "quantization_config", "auto_map"})
"""Fields of a config that name a format, other files, or code: all that is settled here, or never followed."""

_ADAPTED = ("q_proj", "k_proj", "v_proj", "kv_a_proj_with_mqa", "kv_b_proj")


class Model:
    """A model that answers.

    Attributes:
        module: transformers' own.
        layers: how many there are; those that read an earlier one's KV hold none.
        placed: the format and the device of its weights.

    """

    def __init__(self, module: Any, spread: float = 0.0) -> None:
        self.module = module.eval()
        kinds = [type(layer) for layer in DynamicCache(config=module.config).layers]
        if strange := sorted({kind.__name__ for kind in kinds} - _KEPT):
            raise ValueError(f"some of its layers keep more than keys and values ({', '.join(strange)})")
        self.layers = len(kinds)
        first = next(module.parameters())
        self.placed = {"dtype": first.dtype, "device": first.device}
        self._cache_name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
        self._louder = 1.0
        if spread:
            self._louder = max(1.0, spread / float(self._logits(list(range(_PROBED)), self.empty("float32")).std()))

    def empty(self, saved: str) -> Any:
        """Return an empty cache for it, in the format in which KV is stored."""
        return empty_cache(self.layers, saved)

    def compute(self, token_ids: list[int], cache: Any, *, copies: int = 1) -> Any:
        """Compute tokens behind what a cache holds, and return the log-probabilities after the last one.

        Args:
            token_ids: one or more.
            cache: see :meth:`empty`.
            copies: how many times over in one batch; the first one's answer is returned.

        """
        with torch.inference_mode():
            return torch.log_softmax(self._louder * self._logits(token_ids, cache, copies), -1)

    def _logits(self, token_ids: list[int], cache: Any, copies: int = 1) -> Any:
        ids = torch.tensor([token_ids] * copies, device=self.placed["device"])
        with torch.inference_mode():
            found = self.module(input_ids=ids, use_cache=True, logits_to_keep=1, **{self._cache_name: cache})
            return found.logits[0, -1].float()


def build(spec: Mapping[str, Any]) -> Model:
    """Build what a specification asks for.

    Args:
        spec: ``kind`` (``stand-in``, ``real``, ``copying``), ``dtype``, ``attention``, ``seed``, ``tail_seed``;
            ``device`` (``cpu`` where there is none);
            ``config`` (a whole config) but for copying; ``folder`` for real; ``adapter``: ``None`` or its ``seed``,
            ``rank`` and ``scale``, or ``folder`` and ``scale``.

    """
    made = {"copying": _copying, "real": _real, "stand-in": _stand_in}
    module = made[spec["kind"]](spec)
    if spec.get("adapter") is not None:
        _adapt(module, spec["adapter"])
    if spec["kind"] != "real":  # the library has read a real one in its format
        for parameter in module.parameters():  # buffers stay: RoPE turns by its frequencies in full
            parameter.data = parameter.data.to(_DTYPES[spec["dtype"]])
    module.to(spec.get("device", "cpu"))
    return Model(module, _SPREAD if spec["kind"] == "stand-in" else 0.0)


def _copying(spec: Mapping[str, Any]) -> Any:
    return copying_model(spec["seed"])


def _config(spec: Mapping[str, Any]) -> Any:
    fields = {name: value for name, value in spec["config"].items() if name not in _NOT_THE_MODEL}
    if fields["model_type"] not in CONFIG_MAPPING:
        raise ValueError(f"this transformers has no model of the type {fields['model_type']!r}")
    kind = CONFIG_MAPPING[fields["model_type"]]
    asked = {name: _as_asked(kind, name, value) for name, value in fields.items()}
    given = {name: value for name, value in asked.items() if value is not None or _may_be_unset(kind, name)}
    try:
        config = kind.from_dict(given)
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"no config of a {fields['model_type']!r}, at this size: {why}") from None
    config._attn_implementation = spec["attention"]
    return config


def _as_asked(kind: Any, name: str, value: Any) -> Any:
    """Return a number as a config class wants it: canonical JSON writes 30 for 30.0, which strict classes refuse."""
    if isinstance(value, list):
        return [_as_asked(kind, name, one) for one in value]
    if isinstance(value, Mapping):
        if value.keys() == {"__float__"}:  # as the library writes an infinity
            return float(value["__float__"])
        return {inner: _as_asked(kind, f"{name}.{inner}", one) for inner, one in value.items()}
    if isinstance(value, str) and value.startswith(("int:", "float:")):  # as a manifest writes what JSON has not
        return float(value.partition(":")[2])
    wanted = _declared(kind, name)
    return float(value) if type(value) is int and "float" in wanted and "int" not in wanted else value


def _may_be_unset(kind: Any, name: str) -> bool:
    wanted = _declared(kind, name)
    return not wanted or "None" in wanted or "Optional" in wanted


def _declared(kind: Any, name: str) -> str:
    """The type of a field, as its class has it; empty where it declares none."""
    declared = (vars(one).get("__annotations__", {}).get(name) for one in kind.__mro__)
    return str(next((one for one in declared if one is not None), ""))


def _stand_in(spec: Mapping[str, Any]) -> Any:
    config = _config(spec)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ValueError(f"in this transformers no language model of the type {config.model_type!r} stands by itself")
    with torch.device("meta"):
        size = sum(
            one.numel() for one in AutoModelForCausalLM.from_config(config, trust_remote_code=False).parameters()
        )
    if size > _LARGEST:
        raise ValueError(f"{size:,} weights: not every size in the config of a {config.model_type!r} is known here")
    torch.manual_seed(spec["seed"])
    module = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
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
    if (Path(spec["folder"]) / "adapter_config.json").exists():
        raise ValueError("the checkpoint's folder holds an adapter too, which the library would add to it")
    module, told = AutoModelForCausalLM.from_pretrained(
        spec["folder"],
        config=_config(spec),
        dtype=_DTYPES[spec["dtype"]],
        attn_implementation=spec["attention"],
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
    )
    # The library fills what is missing with random numbers, and leaves what is too much.
    for what in ("missing", "unexpected", "mismatched"):
        if odd := sorted(map(str, told[f"{what}_keys"])):
            raise ValueError(f"the checkpoint is none of this config: {len(odd)} {what} tensors, {odd[0]} one of them")
    return module


def _adapt(module: Any, adapter: Mapping[str, Any]) -> None:
    """Add a LoRA adapter's product to the matrices it is for, as an engine that merges it."""
    matrices = {name.removesuffix(".weight"): one for name, one in module.named_parameters() if one.ndim == 2}
    pairs = _trained(Path(adapter["folder"])) if "folder" in adapter else _drawn(matrices, adapter)
    if not pairs or not pairs.keys() <= matrices.keys():
        raise ValueError("the adapter is for matrices that this model has not")
    with torch.no_grad():
        for name, (first, second) in pairs.items():
            matrices[name].add_((second.float() @ first.float() * adapter["scale"]).to(matrices[name].dtype))


def _drawn(matrices: Mapping[str, Any], adapter: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Random pairs for what makes queries, keys and values."""
    made, rank = torch.Generator().manual_seed(adapter["seed"]), adapter["rank"]
    return {
        name: (
            torch.randn(rank, one.shape[1], generator=made) * 0.05,
            torch.randn(one.shape[0], rank, generator=made) * 0.05,
        )
        for name, one in matrices.items()
        if name.rpartition(".")[2] in _ADAPTED
    }


@cache
def _trained(folder: Path) -> dict[str, tuple[Any, Any]]:
    """The pairs of matrices of a PEFT checkpoint, by the module they are for."""
    tensors = load_file(folder / "adapter_model.safetensors")
    prefix, first, second = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
    found = {
        name.removeprefix(prefix).removesuffix(first): (
            tensors.pop(name),
            tensors.pop(name.removesuffix(first) + second),
        )
        for name in sorted(tensors)
        if name.endswith(first)
    }
    if tensors:
        raise ValueError(f"the adapter holds more than pairs of matrices: {min(tensors)}")
    return found
