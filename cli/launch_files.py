"""The launch files that a rehearsal starts engines from, held against the manifests that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.rules.errors import InputError

if TYPE_CHECKING:
    from kvgate.deployments.launch import LaunchFacts
    from kvgate.probes.engines.sides import Launch
    from kvgate.rules.manifest import Manifest

_LARGEST = 1 << 20
_ELSEWHERE = "lmcache-server"  # settings of another process, which a file of its own starts
_UNSAID_IS_UNSET = frozenset({"cache.connector", "engine.speculative", "model.quantization"})
"""What a line that says nothing of it does not set; other values an operator may have declared."""


def read_launch_file(file: Path, manifest: Manifest) -> Launch:
    """Read the flags and variables that a launch line starts vLLM with.

    Raises:
        InputError: it cannot be read, is none of vLLM's, leaves something open, or starts another deployment.

    """
    from kvgate.corpora.files import read_bytes
    from kvgate.deployments.launch import LaunchFile, read_launch
    from kvgate.deployments.launch.invocation import find_invocation
    from kvgate.probes.engines.sides import Launch

    launch = LaunchFile(str(file), read_bytes(file, _LARGEST))
    found = find_invocation(launch.text(), str(file))
    if found.engine != "vllm":
        raise InputError(f"starts {found.engine}, and only vLLM is started here", where=str(file))
    words = [*found.arguments, *found.environment.values()]
    if open_ := sorted({one for word in words for one in word.expansions}):
        raise InputError(f"what stands for {', '.join(open_)} is not in the file", where=str(file))
    if any(word.text.partition("=")[0] == "--config" for word in found.arguments):
        raise InputError("--config names a file whose flags are not looked at", where=str(file), hint="write them out")
    for facts in read_launch([launch]):
        if other := next(_otherwise(facts, manifest), None):
            raise InputError(f"{other} in {manifest.source}", where=str(file), hint="capture it")
    variables = {name: word.text for name, word in found.environment.items()}
    return Launch(tuple(word.text for word in found.arguments), variables)


def _otherwise(facts: LaunchFacts, manifest: Manifest) -> Iterator[str]:
    """Yield where a line says otherwise than a manifest."""
    from kvgate.rules.change import alike
    from kvgate.rules.values import Known

    for path, value in facts.values.items():
        held = manifest.get(path)
        scalar = not isinstance(value, (dict, list))
        if not isinstance(held, Known) or not (scalar or path in _UNSAID_IS_UNSET):
            continue  # adapters and flags are looked at below; of lists an operator may know more
        if (value is not None or path in _UNSAID_IS_UNSET) and not alike(held.value, value):
            yield f"{path} is {value!r} here, and {held.value!r}"
    if manifest.knows("adapters"):
        named = {name for name, entry in (manifest.value("adapters") or {}).items() if not entry.get("removed")}
        if named != set(facts.adapters):
            yield f"adapters: {sorted(facts.adapters) or 'none'} here, and {sorted(named) or 'none'}"
    if manifest.knows("engine.args") and "engine.args" in facts.values:
        yield from _other_flags(facts.values["engine.args"] or {}, manifest.value("engine.args") or {})
    config = manifest.value("model.config")
    if facts.overrides and isinstance(config, dict) and not _has(config, facts.overrides):
        yield f"model.config: --hf-overrides here are {dict(facts.overrides)!r}, and it is otherwise"


def _other_flags(here: dict[str, Any], there: dict[str, Any]) -> Iterator[str]:
    from kvgate.rules.change import alike

    for name in sorted((here.keys() | there.keys()) - {_ELSEWHERE}):
        if name not in here or name not in there or not alike(here[name], there[name]):
            shown = [repr(one[name]) if name in one else "not set" for one in (here, there)]
            yield f"engine.args.{name} is {shown[0]} here, and {shown[1]}"


def _has(config: dict[str, Any], overrides: Any) -> bool:
    """Whether a config is what it is with overrides laid over it once more."""
    from kvgate.deployments.config import effective_config
    from kvgate.rules.change import alike
    from kvgate.rules.compare.maps import normal_config

    plain, overridden = (normal_config(effective_config(config, one).config) for one in (None, overrides))
    return alike(plain, overridden)
