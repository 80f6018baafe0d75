"""A checkpoint's ``config.json`` as the engine works with it: defaults, aliases and overrides settled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kvgate.corpora.files import read_bytes
from kvgate.rules.canonical import canonical, digest, sha256
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError

_MAX_BYTES = 8 * 1024 * 1024  # the largest published config.json, with a list for every layer, is under 1 MB
_MAX_CODE_BYTES = 32 * 1024 * 1024
_SECONDS = 60.0
_PROCESSOR_SECONDS = 15  # starting takes 1 to 3, building a real model's class a few milliseconds

# Not configuration: who wrote the file, where it was loaded from, what the library picked for itself.
_BOOKKEEPING = frozenset(
    {
        "transformers_version",
        "_name_or_path",
        "name_or_path",
        "_commit_hash",
        "_attn_implementation",
        "_attn_implementation_internal",
        "_attn_implementation_autoset",
        "_experts_implementation",
        "_experts_implementation_internal",
        "_output_attentions",
        "_auto_class",
    }
)
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
_CODE_DECLARED_IN = (
    "config.json",
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONSAFEPATH": "1",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class EffectiveConfig:
    """The configuration in force.

    Attributes:
        config: canonical JSON values; complete, with the defaults of the class where there is one.
        config_class: the class that filled them in, ``{"name": ..., "transformers": ...}``; ``None``: only
            the file's own fields are there.
        reason: why there was no class; ``None`` where there was.
    """

    config: Mapping[str, Any]
    config_class: Mapping[str, str] | None
    reason: str | None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object that a Python library wrote: bare ``NaN`` and ``Infinity`` and a BOM are accepted.

    Raises:
        InputError: missing, unreadable, too large, not UTF-8, not JSON, duplicate keys, not an object.
    """
    data = read_bytes(path, _MAX_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text (byte {error.start})", where=str(path)) from None
    value = parse_json(text, str(path), non_finite=True)
    if not isinstance(value, dict):
        raise InputError("not a JSON object", where=str(path))
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's ``config.json``.

    ModelOpt up to 0.29 wrote the quantization into ``hf_quant_config.json`` instead; it counts as
    ``quantization_config``, as in vLLM (vllm/transformers_utils/config.py ``get_config``, 0.33.0).

    Raises:
        InputError: see :func:`read_json_object`; also where ``model_type`` is no name.
    """
    if not (folder / "config.json").exists():
        raise InputError("holds no config.json", where=str(folder), hint="give a checkpoint folder or a hub repository")
    config = read_json_object(folder / "config.json")
    if not isinstance(config.get("model_type"), (str, type(None))):
        raise InputError("model_type is not a string", where=str(folder / "config.json"))
    beside = folder / "hf_quant_config.json"
    if config.get("quantization_config") is None and beside.exists():
        config["quantization_config"] = read_json_object(beside)
    return config


def effective_config(raw: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> EffectiveConfig:
    """Fill in class defaults, resolve aliases and apply ``--hf-overrides``.

    The class is transformers' own for the ``model_type``; code from the checkpoint is never loaded, nothing
    is downloaded, and a child process bounds what the class does with the numbers.

    Args:
        raw: the parsed ``config.json``.
        overrides: what the launch line lays over it.

    Raises:
        InputError: the fields make the class use more memory or time than any real model's.
    """
    overrides = overrides or {}
    answer = _ask({"fields": dict(raw), "overrides": dict(overrides), "seconds": _PROCESSOR_SECONDS})
    if "config" in answer:
        return EffectiveConfig(
            _tidy(answer["config"]), {"name": answer["name"], "transformers": answer["transformers"]}, None
        )
    return EffectiveConfig(_tidy(_overridden(raw, overrides)), None, answer["reason"])


def _ask(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvgate.deployments.config_worker"],
            input=json.dumps(request).encode("ascii"),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            cwd="/",
            env={
                **{name: value for name, value in os.environ.items() if "TOKEN" not in name},
                **_ENVIRONMENT,
            },
        )
    except subprocess.TimeoutExpired:
        raise _implausible("time") from None
    if done.returncode == -signal.SIGXCPU:
        raise _implausible("time")
    if done.returncode < 0:  # an allocation that the limit refuses ends native code
        raise _implausible("memory")
    if done.returncode != 0:
        detail = done.stderr.decode("utf-8", "replace")[-2000:]
        raise RuntimeError(f"the config process ended with {done.returncode}: {detail}")
    answer = cast("dict[str, Any]", json.loads(done.stdout))
    if answer.get("memory"):
        raise _implausible("memory")
    return answer


def _implausible(resource: str) -> InputError:
    return InputError(
        f"its numbers make the config class need more {resource} than any real model's",
        where="config.json",
        hint="is num_hidden_layers right?",
    )


def _overridden(raw: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Lay overrides over plain fields, where no class says which of them are nested configs."""
    merged = dict(raw)
    for key, value in overrides.items():
        before = merged.get(key)
        nested = isinstance(before, Mapping) and isinstance(value, Mapping) and key.endswith("_config")
        merged[key] = _overridden(before, value) if nested else value  # type: ignore[arg-type]
    return merged


def _tidy(config: Mapping[str, Any]) -> dict[str, Any]:
    """Drop bookkeeping at every level that is a config, name the dtype one way, spell values one way."""
    tidied: dict[str, Any] = {}
    for key, value in config.items():
        if key in _BOOKKEEPING:
            continue
        is_config = isinstance(value, Mapping) and key.endswith("_config") and key != "quantization_config"
        tidied[key] = _tidy(value) if is_config else value
    if (old := tidied.pop("torch_dtype", None)) is not None and tidied.get("dtype") is None:
        tidied["dtype"] = old
    return cast("dict[str, Any]", canonical(tidied))


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part that describes the language model: ``text_config``, else the whole."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def is_multimodal(config: Mapping[str, Any]) -> bool:
    """Whether the model takes images, audio or video: it has a config for another modality than text."""
    return any(
        isinstance(config.get(f"{part}_config"), Mapping) for part in ("vision", "audio", "video", "image", "speech")
    )


def processor_digest(folder: Path) -> str | None:
    """Return the digest of the files that turn media into model input; ``None`` where there are none.

    Raises:
        InputError: one of them is not a JSON object.
    """
    found: dict[str, Any] = {}
    for name in _PROCESSOR_FILES:
        if (folder / name).exists():
            content = read_json_object(folder / name)
            found[name] = {key: value for key, value in content.items() if key not in _BOOKKEEPING}
    return digest(found) if found else None


def code_digest(folder: Path) -> tuple[str | None, str | None]:
    """Return the digest of the Python files that ``trust_remote_code`` would run, or why there is none.

    Returns:
        ``(digest, None)``; ``(None, None)`` where there is no code and no file asks for any; ``(None, reason)``
        where the code lies in another repository. Code that no file asks for counts as well: a class of the
        engine or of another file may import it.

    Raises:
        InputError: a file that declares code is unreadable, or the code is implausibly large.
    """
    asked: list[str] = []
    for name in _CODE_DECLARED_IN:
        if (folder / name).exists():
            declared = read_json_object(folder / name).get("auto_map")
            asked += _strings(declared)
    if any("--" in reference for reference in asked):
        return None, "its auto_map names code in another repository"
    files: dict[str, str] = {}
    left = _MAX_CODE_BYTES
    for path in sorted(folder.rglob("*.py")):
        data = read_bytes(path, left)
        left -= len(data)
        files[path.relative_to(folder).as_posix()] = sha256(data)
    if files:
        return digest(files), None
    return None, ("its auto_map names code that is not in the folder" if asked else None)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return []
