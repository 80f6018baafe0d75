"""``kvgate fingerprint``: what weights are, whatever files they lie in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from kvgate.rules.progress import Progress


def fingerprint(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A checkpoint folder, or a LoRA adapter's.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the digest alone.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Hash the weights in a folder (safetensors).

    The digest is of the tensors: re-sharding and saving again do not change it. kv_digest is of those that
    persisted KV depends on, chosen by kv_rule.

    Example:
      kvgate fingerprint /models/llama
    """
    from kvgate.cli import console
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.cli.progress import shown

    wanted = json_wanted(output)
    with shown(quiet=quiet, no_color=no_color) as progress:
        facts = _adapter(path) if (path / "adapter_config.json").is_file() else _checkpoint(path, progress)
    if quiet:
        console.emit(f"{facts['digest']}\n")
    elif wanted:
        console.emit(as_json(facts))
    else:
        console.emit("".join(f"{name}: {value}\n" for name, value in facts.items()))
    return 0


def _checkpoint(folder: Path, progress: Progress) -> dict[str, Any]:
    from kvgate.deployments.config import effective_config, read_config
    from kvgate.weights.fingerprint import fingerprint_checkpoint

    config = effective_config(read_config(folder)).config if (folder / "config.json").exists() else None
    found = fingerprint_checkpoint(folder, config, progress)
    return {name: getattr(found, name) for name in ("digest", "kv_digest", "kv_rule", "layout", "tensors", "bytes")}


def _adapter(folder: Path) -> dict[str, Any]:
    from kvgate.weights.adapters import fingerprint_adapter

    found = fingerprint_adapter(folder)
    return {name: getattr(found, name) for name in ("digest", "rank", "alpha", "tensors", "bytes")}
