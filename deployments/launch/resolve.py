"""Settling what a launch line leaves to the checkpoint: ``auto`` types and the default context length.

Every rule is vLLM 0.33.0's, or SGLang's or TensorRT-LLM's where it says so; where the outcome depends on something
neither the line nor the config says, the value stays unknown with the reason.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvgate.deployments.config import is_multimodal, text_config
from kvgate.deployments.launch import trtllm_types
from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.sglang_types import compute_type, kv_type

_NAMES = {"half": "float16", "float": "float32"}
_SAFETENSORS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# vllm/config/model.py _FLOAT16_NOT_SUPPORTED_MODELS
_NO_FLOAT16 = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
# Compute capability below 8.0: no bfloat16 (vllm/platforms/cuda.py supported_dtypes).
_NO_BFLOAT16 = re.compile(r"\b(?:V100|P100|P40|P4|T4|GTX|TITAN|RTX 20\d\d|RTX [5-8]000(?! Ada))\b", re.IGNORECASE)
_PLAIN_KV = frozenset({"bfloat16", "float16", "float32"})
# vllm/transformers_utils/model_arch_config_convertor.py derive_max_model_len_and_key
_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
# RoPE types whose max_position_embeddings is already scaled (vllm/config/model.py _get_and_verify_max_len).
_ALREADY_SCALED = frozenset({"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})


def resolve(
    facts: LaunchFacts,
    config: Mapping[str, Any],
    *,
    tensor_dtypes: Iterable[str] = (),
    accelerator: str | None = None,
) -> LaunchFacts:
    """Settle the pending values of a launch line from the effective config.

    Args:
        facts: what :func:`parse_vllm` read.
        config: the effective config of the checkpoint.
        tensor_dtypes: dtypes of the checkpoint's tensors, as safetensors names them; for a config without.
        accelerator: the device, where it is known; without it a device with bfloat16 is assumed (and noted).
    """
    return _Resolution(facts, config, frozenset(tensor_dtypes), accelerator).resolved()


class _Resolution:
    def __init__(
        self,
        facts: LaunchFacts,
        config: Mapping[str, Any],
        tensor_dtypes: frozenset[str],
        accelerator: str | None,
    ) -> None:
        self._facts = facts
        self._config = config
        self._tensor_dtypes = tensor_dtypes
        self._accelerator = accelerator
        self._values = dict(facts.values)
        self._unknown = dict(facts.unknown)
        self._notes = list(facts.notes)

    def resolved(self) -> LaunchFacts:
        if "model.quantization" not in self._unknown:
            self._quantization()
        if "precision.compute" in self._facts.pending:
            self._settle("precision.compute", *self._compute())
        elif isinstance(given := self._values.get("precision.compute"), str):
            self._values["precision.compute"] = _NAMES.get(given, given)
        if "precision.kv_cache" in self._facts.pending:
            self._settle("precision.kv_cache", *self._kv_cache())
        self._kv_scales()
        if self._values.get("engine.max_model_len", 0) is None and self._facts.engine == "vllm":
            self._values["engine.max_model_len"] = self._length()
        features = self._values.get("request_features")
        if features is not None and is_multimodal(self._config) and not self._facts.language_model_only:
            self._values["request_features"] = [*features, "multimodal"]
        return dataclasses.replace(
            self._facts,
            values=self._values,
            unknown=tuple(self._unknown.items()),
            notes=tuple(self._notes),
            pending=(),
        )

    def _settle(self, path: str, value: str | None, reason: str | None) -> None:
        if value is not None:
            self._values[path] = value
        else:
            self._unknown[path] = reason or "it cannot be told"

    def _quantization(self) -> None:
        """Take the checkpoint's own method unless one is given (vllm/config/model.py _verify_quantization)."""
        if self._values.get("model.quantization") is not None:
            return
        declared = self._config.get("quantization_config") or self._config.get("compression_config")
        if not declared:
            self._values["model.quantization"] = None
        elif isinstance(declared, Mapping) and isinstance(method := declared.get("quant_method"), str) and method:
            self._values["model.quantization"] = method
        else:
            self._values.pop("model.quantization", None)
            self._unknown["model.quantization"] = "the checkpoint's quantization_config does not name its method"

    def _compute(self) -> tuple[str | None, str | None]:
        """Settle ``--dtype auto`` (vllm/config/model.py _resolve_auto_dtype, _get_and_verify_dtype)."""
        named = self._named_dtype()
        if self._facts.engine == "sglang":
            return compute_type(self._config, named), None
        if self._facts.engine == trtllm_types.ENGINE:
            old = self._accelerator is not None and _NO_BFLOAT16.search(self._accelerator) is not None
            return trtllm_types.compute_type(named, old=old)
        if named is None:
            return None, "--dtype auto, and neither the config nor one dtype of its tensors settles it"
        model_type = self._config.get("model_type")
        old = self._accelerator is not None and _NO_BFLOAT16.search(self._accelerator) is not None
        supported = [
            dtype
            for dtype in ("bfloat16", "float16", "float32")
            if not (dtype == "bfloat16" and old) and not (dtype == "float16" and model_type in _NO_FLOAT16)
        ]
        pooling = isinstance(args := self._values.get("engine.args"), Mapping) and args.get("runner") == "pooling"
        preferred = "float16" if pooling and "float16" in supported else supported[0]
        wanted = preferred if named == "float32" else named
        if self._accelerator is None and wanted == "bfloat16":
            self._notes.append("--dtype auto is bfloat16 on a device that has it (compute capability 8.0 or later)")
        return (wanted if wanted in supported else preferred), None

    def _named_dtype(self) -> str | None:
        for part in (
            self._config,
            text_config(self._config),
            self._config.get("vision_config"),
            self._config.get("encoder_config"),
        ):
            dtype = part.get("dtype") if isinstance(part, Mapping) else None
            if isinstance(dtype, str):
                return _NAMES.get(dtype.removeprefix("torch."), dtype.removeprefix("torch."))
        if self._tensor_dtypes <= set(_SAFETENSORS):
            # The type that holds all others without loss (vllm/utils/torch_utils.py common_broadcastable_dtype);
            # of bfloat16 and float16 neither holds the other.
            if "F32" in self._tensor_dtypes:
                return "float32"
            if len(self._tensor_dtypes) == 1:
                return _SAFETENSORS[next(iter(self._tensor_dtypes))]
        return None

    def _kv_cache(self) -> tuple[str | None, str | None]:
        """Settle ``--kv-cache-dtype auto``.

        Source: vllm/utils/torch_utils.py resolve_kv_cache_dtype_string, model_executor/layers/attention/
        attention.py, model_executor/models/config.py.
        """
        if self._facts.engine == "sglang":
            return kv_type(self._config, self._values.get("precision.compute"))
        if self._facts.engine == trtllm_types.ENGINE:
            return trtllm_types.kv_type(self._config, self._values.get("precision.compute"))
        if any("index_topk" in part for part in (self._config, text_config(self._config))):
            return None, "--kv-cache-dtype auto, and models with sparse attention choose their own by device"
        quantization = self._config.get("quantization_config")
        if isinstance(quantization, Mapping):
            declared, reason = _declared_kv(quantization)
            if declared is not None or reason is not None:
                return declared, reason
        compute = self._values.get("precision.compute")
        return compute, "--kv-cache-dtype auto follows the compute dtype, which is not known"

    def _kv_scales(self) -> None:
        path, kv_cache = "precision.kv_scales", self._values.get("precision.kv_cache")
        if path in self._values or path in self._unknown:
            return
        if kv_cache in _PLAIN_KV:
            self._values[path] = None
        elif isinstance(kv_cache, str) and kv_cache.endswith("_per_token_head"):
            self._values[path] = "stored-in-block"
        elif kv_cache is not None and not kv_cache.startswith("fp8"):
            self._unknown[path] = f"how {kv_cache} scales its values is not known"

    def _length(self) -> int | None:
        """Return the default of ``--max-model-len``; ``None`` where it depends on more than the config."""
        text = text_config(self._config)
        lengths = [
            text[key] for key in _LENGTH_KEYS if isinstance(text.get(key), int) and not isinstance(text[key], bool)
        ]
        args = self._values.get("engine.args")
        if not lengths or not isinstance(args, Mapping) or "disable-sliding-window" in args or "runner" in args:
            return None
        length: float = text.get("model_max_length") or min(lengths)
        ropes = list(_ropes(text.get("rope_parameters")))
        if ropes and "gemma3" not in str(text.get("model_type")):
            factors = [rope.get("factor", 1) for rope in ropes if rope.get("rope_type") not in _ALREADY_SCALED]
            factor = factors[-1] if factors else 1
            if factor is not None and not isinstance(factor, (int, float)):
                return None
            length *= factor or 1
        if any(rope.get("rope_type") == "longrope" for rope in ropes):
            original = text.get("original_max_position_embeddings", length)
            length = original if isinstance(original, int) else length
        return int(length) if 0 < length < 2**53 else None


def _ropes(parameters: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(parameters, Mapping):
        return
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    yield from (nested if nested and "rope_type" not in parameters else [parameters])


def _declared_kv(quantization: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the KV type that a quantized checkpoint asks for, or why it cannot be told; else two ``None``."""
    method = str(quantization.get("quant_method", ""))
    inner = quantization.get("quantization")
    inner = inner if isinstance(inner, Mapping) else quantization
    scheme = inner.get("kv_cache_scheme") or quantization.get("kv_cache_scheme")
    algorithm = inner.get("kv_cache_quant_algo") or quantization.get("kv_cache_quant_algo")
    if method.startswith("modelopt"):
        asked = scheme or algorithm
        if isinstance(asked, Mapping):
            if asked.get("dynamic") is False and asked.get("num_bits") == 8 and asked.get("type") == "float":
                return "fp8_e4m3", None
            return ("nvfp4", None) if asked.get("num_bits") == 4 and asked.get("type") == "float" else (None, None)
        return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(str(asked).lower()), None
    if method == "compressed-tensors" and isinstance(scheme, Mapping):
        if scheme.get("num_bits") == 8 and scheme.get("type") == "float":
            return "fp8", None
        return None, "the checkpoint's kv_cache_scheme is none that vLLM 0.33.0 takes"
    if any(key.startswith("kv_cache") and value for key, value in quantization.items()):
        return (
            None,
            f"the checkpoint ({method or 'unnamed method'}) declares a KV format that kvgate does not read",
        )
    return None, None
