"""What an engine is started with for one deployment: a checkpoint under its own name, and flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from kvgate.probes.embedded.backend import Folders
from kvgate.probes.embedded.child import Child
from kvgate.probes.embedded.real import real_pair
from kvgate.probes.embedded.stand_in import Pair, Side, stand_in
from kvgate.probes.engines.adapters import adapter_flags
from kvgate.probes.engines.connectors import kind_of
from kvgate.probes.engines.serving import alone
from kvgate.probes.rehearsal.backend import CannotStageError
from kvgate.rules.compare.plain import rope_reads_length
from kvgate.rules.manifest import Manifest

_HEAD = 32  # the smallest size of a head that vLLM's attention on a CPU takes (0.32.0)
_BLOCK = 32  # and its blocks are a multiple of this
_RUN_CODE = frozenset({"VLLM_PLUGINS", "VLLM_LOGGING_CONFIG_PATH", "VLLM_USE_MODELSCOPE"})
_RANKS = 2  # that are started at most: each is a process of a gigabyte
_PROMPTS = 4  # of the longest kind, that a stand-in's own cache has room for
_FOREIGN = 0x5EED
_LONGEST = 8192 + 256


@dataclass(frozen=True)
class Launch:
    """How a deployment is started: as its launch file has it, or as its manifest amounts to.

    Attributes:
        arguments: of vLLM's server, in order.
        environment: what is set for it.

    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def pair_of(old: Manifest, new: Manifest, folders: Folders | None) -> Pair:
    """Return what stands for both deployments.

    Raises:
        CannotStageError: nothing does here.

    """
    pair = stand_in(old, new) if folders is None else real_pair(old, new, folders.adapters)
    if any(side.config.get("kv_lora_rank") is not None for side in (pair.old, pair.new)):
        raise CannotStageError(
            "multi-head latent attention: vLLM 0.32.0 continues no prompt of it from blocks on a CPU"
        )
    if folders is not None:
        return pair
    return replace(pair, old=_for_an_engine(pair.old), new=_for_an_engine(pair.new))


def _for_an_engine(side: Side) -> Side:
    """Give a stand-in heads that an engine's attention takes."""
    sizes: dict[str, int] = {"head_dim": _HEAD}
    if heads := side.config.get("num_attention_heads"):
        sizes["hidden_size"] = _HEAD * heads  # some models know no other size of a head
    return replace(side, config={**side.config, **sizes})


def checkpoint_name(manifest: Manifest) -> str:
    """Return what the model is called from inside its folder: names of entries hold what the engine is started with."""
    path = PurePosixPath(str(manifest.value("model.id")))
    parts = [part for part in path.parts if part not in ("/", "..")]
    return "/".join(parts) or "model"


def write_stand_in(child: Child, side: Side, folder: Path, *, foreign: bool) -> None:
    """Write a stand-in's checkpoint.

    Raises:
        CannotStageError: no such model can be built.

    """
    seeds = (_FOREIGN, _FOREIGN) if foreign else (side.seed, side.tail_seed)
    model = {
        "kind": "stand-in",
        "config": dict(side.config),
        "dtype": side.dtype,
        "attention": "eager",
        "seed": seeds[0],
        "tail_seed": seeds[1],
        "adapter": None,
    }
    folder.mkdir(parents=True)
    child.ask({"op": "write", "model": model, "folder": str(folder)})


def link_checkpoint(source: Path, side: Side, folder: Path) -> None:
    """Lay out the deployment's own checkpoint: its weights, and the config that its manifest has.

    Nothing else of it is there, so that no code of it can be run and no config but the one that was decided about.

    Args:
        source: the checkpoint.
        side: what the manifest says.
        folder: that is made.

    """
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.name.endswith((".safetensors", ".safetensors.index.json")):
            (folder / file.name).symlink_to(file.resolve())
    config = {name: value for name, value in side.config.items() if name != "auto_map"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def environment_of(launch: Launch) -> dict[str, str]:
    """Return the variables that an engine gets; nothing is looked up, so those of the hub are left out.

    Raises:
        CannotStageError: one of them makes it run code of the launch file's choice.

    """
    for name in launch.environment:
        if (name.startswith(("LD_", "PYTHON")) and name != "PYTHONHASHSEED") or name in _RUN_CODE:
            raise CannotStageError(f"{name} of the launch file is not set for what is started here")
    return {name: value for name, value in launch.environment.items() if not name.startswith("HF_")}


def all_ranks(manifest: Manifest) -> int:
    """Return how many ranks a deployment has in earnest, replicas aside."""
    sizes = manifest.value("parallelism") or {}
    return int(sizes.get("tensor") or 1) * int(sizes.get("pipeline") or 1)


def ranks_of(manifest: Manifest, side: Side) -> int:
    """Return how many ranks share a deployment's tensors when it is started by what its manifest says."""
    sizes = manifest.value("parallelism") or {}
    ranks = sizes.get("tensor") or 1
    if kind_of(manifest) == "example":
        return 1  # its ranks all write the same files
    heads = [side.config.get(name) for name in ("num_attention_heads", "num_key_value_heads")]
    divided = all(type(one) is int and one % ranks == 0 for one in heads)
    return int(ranks) if divided and ranks <= _RANKS and alone(sizes, but=("data", "tensor")) else 1


def planned(manifest: Manifest, side: Side, missing: dict[str, str], *, real: bool) -> Launch:
    """Return how a deployment is started by what its manifest says.

    Args:
        manifest: the deployment.
        side: what stands for it.
        missing: gets what of it is not staged, and why.
        real: whether the deployment's own weights answer.

    """
    found = ["--dtype", side.dtype, "--seed", "0", "--enforce-eager"]
    if side.saved != side.dtype:
        found += ["--kv-cache-dtype", side.saved]
    block = manifest.value("engine.block_size")
    if isinstance(block, int) and block % _BLOCK:
        missing["engine.block_size"] = f"blocks of {_BLOCK} tokens: vLLM on a CPU has none of {block}"
        block = _BLOCK
    found += ["--block-size", str(block or _BLOCK)]
    longest = manifest.value("engine.max_model_len") or _LONGEST
    # Cut, so that KV of it fits, where the length decides nothing.
    longest = longest if rope_reads_length(manifest) else min(longest, _LONGEST)
    found += ["--max-model-len", str(longest)]
    if not real:  # else it takes all memory that it may, and clears it first
        found += ["--num-gpu-blocks-override", str(_PROMPTS * -(-longest // (block or _BLOCK)))]
    ranks = ranks_of(manifest, side)
    if ranks > 1:
        found += ["--tensor-parallel-size", str(ranks)]
    sizes = manifest.value("parallelism") or {}
    if (sizes.get("tensor") or 1) != ranks or not alone(sizes, but=("data", "tensor")):
        missing["parallelism"] = "one rank: what differs between several is not staged"
    return Launch((*found, *adapter_flags(side)), {})
