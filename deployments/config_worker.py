"""The child process of :mod:`kvgate.deployments.config`: builds one config class from untrusted fields.

Class code turns numbers into lists (``layer_types`` from ``num_hidden_layers``), so a hostile file could take
all memory; here it meets a limit first. Reads one JSON request from standard input, writes one answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

MEMORY_BYTES = 1 << 30
_ANSWER_BYTES = 16 << 20


def build(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Build the class of ``fields["model_type"]`` and apply overrides as vLLM does.

    Source: vllm/transformers_utils/config.py ``get_config`` and vllm/config/model.py
    ``_apply_dict_overrides``, ``_update_nested`` (0.33.0): a scalar override is set on the finished object,
    before RoPE parameters are standardised; a mapping replaces a mapping, and is merged only into a nested
    config.

    Returns:
        ``{"config": ..., "name": ..., "transformers": ...}`` or ``{"reason": ...}`` where there is no class
        or it refuses the fields.
    """
    import transformers
    from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

    model_type = overrides.get("model_type", fields.get("model_type"))
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return {"reason": f"transformers {transformers.__version__} has no config class for its model_type"}
    given = {key: value for key, value in fields.items() if key != "model_type"}
    try:
        config = AutoConfig.for_model(model_type, **given)
        for key, value in overrides.items():
            if key != "model_type" and not isinstance(value, Mapping):
                setattr(config, key, value)
        if getattr(config, "rope_parameters", None) and hasattr(config, "standardize_rope_params"):
            config.standardize_rope_params()
        for key, value in overrides.items():
            if isinstance(value, Mapping):
                _override(config, key, value, PreTrainedConfig)
        whole = config.to_dict()
    except MemoryError:
        raise
    except Exception as error:
        # A class may refuse fields with anything; the message could quote the file, so only its kind is told.
        return {"reason": f"transformers {transformers.__version__} refuses its fields ({type(error).__name__})"}
    return {"config": whole, "name": type(config).__name__, "transformers": transformers.__version__}


def _override(target: Any, key: str, value: Mapping[str, Any], config_class: type) -> None:
    nested = getattr(target, key, None)
    if not isinstance(nested, config_class):
        setattr(target, key, dict(value))
        return
    for inner, item in value.items():
        there = getattr(nested, inner, None)
        if isinstance(item, Mapping) and isinstance(there, config_class):
            _override(nested, inner, item, config_class)
        elif isinstance(item, Mapping) and isinstance(there, dict):
            setattr(nested, inner, _merged(there, item))
        else:
            setattr(nested, inner, item)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        merged[key] = _merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged


def main() -> None:
    """Answer one request."""
    # Libraries print; only the answer may reach the pipe.
    answer_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    for which, value in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CPU, request["seconds"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(which, (value, resource.getrlimit(which)[1]))
    # Config classes need no torch, and loading it would double the time this takes.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        answer = json.dumps(build(request["fields"], request["overrides"])).encode("ascii")
    except MemoryError:
        answer = b'{"memory": true}'
    except (TypeError, ValueError) as error:  # something that JSON cannot hold
        answer = json.dumps({"reason": f"its config class holds more than data ({type(error).__name__})"}).encode()
    if len(answer) > _ANSWER_BYTES:
        answer = b'{"memory": true}'
    answer_to.write(answer)
    answer_to.flush()


if __name__ == "__main__":
    main()
