"""Writing a captured manifest with its sidecars: all of it, or nothing."""

from __future__ import annotations

import copy
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kvgate.rules.errors import InputError

if TYPE_CHECKING:
    from kvgate.deployments.capture import Captured

MANIFEST = "manifest.yaml"
# A string that starts with a letter is a string to every YAML reader, these words apart; PyYAML itself quotes
# the ones it would read as something else.
_PLAIN = re.compile(r"[A-Za-z]")
_WORDS = frozenset(["y", "Y", "n", "N", "NaN", "Infinity"])


def write(captured: Captured, target: Path) -> Path:
    """Write the manifest and its sidecars.

    Args:
        captured: what :func:`kvgate.deployments.capture.capture` returned; its snapshot is copied from where it is.
        target: a file (``.yaml``, ``.yml``), the sidecars go beside it under its name; else a folder, made
            where it does not exist, for ``manifest.yaml``, ``weights.jsonl``, ``tokens.jsonl``,
            and ``served-0.jsonl`` for each rank of an engine that was asked.

    Returns:
        The manifest's path.

    Raises:
        InputError: the place cannot be written to. Nothing is left half-written.
    """
    from kvgate.weights.fingerprint import fingerprint_entries
    from kvgate.weights.tensor_map import write_map

    is_file = target.suffix in (".yaml", ".yml") and not target.is_dir()
    folder, name = (target.parent, target.name) if is_file else (target, MANIFEST)
    stem = f"{target.stem}." if is_file else ""
    manifest = copy.deepcopy(dict(captured.manifest))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".kvgate-", dir=folder))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(target)) from None
    try:
        sidecars = [f"{stem}weights.jsonl"]
        checkpoint = manifest.get("weights", {}).get("checkpoint")
        if checkpoint is not None and captured.weights is not None:
            sha256 = write_map(captured.weights, staging / sidecars[0])
            checkpoint["map"] = {"file": sidecars[0], "sha256": sha256}
        else:
            sidecars = []
        for rank, entry in zip(captured.served, manifest.get("weights", {}).get("served") or (), strict=False):
            sidecars.append(f"{stem}served-{rank.world.rank}.jsonl")
            sha256 = write_map(fingerprint_entries(rank.entries(), None), staging / sidecars[-1])
            entry["map"] = {"file": sidecars[-1], "sha256": sha256}
        if captured.tokens is not None and "tokenizer" in manifest:
            sidecars.append(f"{stem}tokens.jsonl")
            shutil.copyfile(captured.tokens.path, staging / sidecars[-1])
            manifest["tokenizer"]["snapshot"] = {
                "file": sidecars[-1],
                "sha256": captured.tokens.sha256,
                "corpus": captured.tokens.header.corpus,
                "renderer": dict(captured.tokens.header.renderer),
            }
        (staging / name).write_text(dump(manifest), encoding="utf-8")
        for file in (*sidecars, name):  # the manifest last: it vouches for the others
            (staging / file).replace(folder / file)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(target)) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder / name


def dump(manifest: Mapping[str, Any]) -> str:
    """Return the manifest as YAML that YAML 1.1 and 1.2 readers read alike, keys in the order given."""
    return yaml.dump(dict(manifest), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Quotes every string that some reader could take for something else, and uses no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    plain = _PLAIN.match(text) and text not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _string)
