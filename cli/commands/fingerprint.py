"""``kvgate fingerprint``: what weights are, whatever files they lie in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli.api_key import ApiKeyEnv
from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from kvgate.rules.progress import Progress
    from kvgate.weights.fingerprint import CheckpointFingerprint
    from kvgate.weights.kept_hashes import KeptHashes
    from kvgate.weights.tensor_map import TensorMap

_NAMED = 20  # in text
_SHOWN = ("digest", "kv_digest", "kv_rule", "layout", "tensors", "bytes")


def fingerprint(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]", help="A checkpoint folder, a GGUF file, a LoRA adapter's folder, or a tensor map."
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask a running vLLM instead of reading PATH: http://HOST:PORT, no proxy."),
    ] = None,
    api_key_env: ApiKeyEnv = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Say what differs in another one, the newer: 10 if anything does."),
    ] = None,
    hub: Annotated[
        bool,
        typer.Option(
            "--hub", help="PATH is org/name[@revision]: take what the hub publishes of its files, and fetch none."
        ),
    ] = False,
    hash_cache: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep hashes here, and do not read again what its size, times and inode call unchanged.",
        ),
    ] = None,
    opaque_pickle: Annotated[
        bool, typer.Option("--opaque-pickle", help="Hash pickle files as they are, without a look at their tensors.")
    ] = False,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output", "-o", metavar="text|json|map=FILE", help="How to print it; the tensor map. Repeatable."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the digest, or the outcome, alone.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Hash weights: safetensors, GGUF, what a hub publishes, or what a running engine serves with.

    The digest is of the tensors: re-sharding and saving again do not change it. kv_digest is of those that
    persisted KV depends on, chosen by kv_rule.

    Examples:
      kvgate fingerprint /models/llama -o map=llama.jsonl
      kvgate fingerprint llama.jsonl --compare /models/llama-new
      kvgate fingerprint org/name@v1 --compare org/name@v2 --hub
      kvgate fingerprint --endpoint http://127.0.0.1:8000 --compare /models/llama
    """
    from kvgate.cli import console
    from kvgate.cli.listing import as_json
    from kvgate.cli.progress import shown
    from kvgate.rules.errors import UsageError

    form, map_to = _outputs(output or ())
    if endpoint is not None:
        if path is not None or hub or hash_cache is not None or map_to is not None or opaque_pickle:
            raise UsageError("an engine says itself what it holds", where="--endpoint", hint="give it and --compare")
        from kvgate.cli.commands.served import fingerprint_served

        return fingerprint_served(endpoint, api_key_env, compare, form=form, quiet=quiet, no_color=no_color)
    if path is None:
        raise UsageError("give a folder or a server", where="PATH", hint="PATH, or --endpoint URL")
    _refuse_what_does_not_go_together(hub, hash_cache, map_to, compare, opaque=opaque_pickle)
    with shown(quiet=quiet, no_color=no_color) as progress:
        if hub:
            facts = _published(path, compare, progress)
        else:
            reader = _Reader(hash_cache, opaque_pickle, progress)
            facts = reader.one(Path(path), map_to) if compare is None else reader.both(Path(path), Path(compare))
    if quiet:
        console.emit(f"{facts.get('state', facts.get('digest', facts.get('commit')))}\n")
    elif form == "json":
        console.emit(as_json(facts))
    else:
        console.emit("".join(f"{line}\n" for line in _lines(facts)))
    return {"different": 10, "undecided": 11}.get(facts.get("state", ""), 0)


def _outputs(given: list[str] | tuple[()]) -> tuple[str, Path | None]:
    from kvgate.cli.listing import format_wanted
    from kvgate.rules.errors import UsageError

    form, map_to = None, None
    for text in given:
        name, equals, file = text.partition("=")
        if name == "map" and file and map_to is None:
            map_to = Path(file)
        elif equals or name == "map" or form is not None:
            raise UsageError(f"{text!r} is not one of text, json and map=FILE, once each", where="-o")
        else:
            form = format_wanted(name, ("text", "json"))
    return form or "text", map_to


def _refuse_what_does_not_go_together(
    hub: bool, hash_cache: Path | None, map_to: Path | None, compare: str | None, *, opaque: bool
) -> None:
    from kvgate.rules.errors import UsageError

    if hub and (hash_cache is not None or map_to is not None or opaque):
        raise UsageError("reads no file, so nothing is hashed", where="--hub", hint="leave the other options out")
    if map_to is not None and compare is not None:
        raise UsageError("would be the map of which side?", where=f"-o map={map_to}", hint="write it without --compare")


class _Reader:
    """Reads one side or both, with one file of kept hashes."""

    def __init__(self, hash_cache: Path | None, opaque: bool, progress: Progress) -> None:
        from kvgate.weights.kept_hashes import KeptHashes

        self._kept: KeptHashes | None = None if hash_cache is None else KeptHashes(hash_cache)
        self._opaque = opaque
        self._progress = progress

    def one(self, path: Path, map_to: Path | None) -> dict[str, Any]:
        """Return what is to be shown of one, and write its map where that is wanted."""
        from kvgate.rules.errors import UsageError
        from kvgate.weights.tensor_map import write_map

        if (path / "adapter_config.json").is_file():
            if map_to is not None:
                raise UsageError("an adapter's tensors have no map", where=f"-o map={map_to}")
            return _adapter(path)
        if path.suffix == ".jsonl":
            found, _ = self._side(path)
            return {"digest": found.digest, "tensors": len(found.entries)}
        print_ = self._checkpoint(path)
        if map_to is not None:
            write_map(print_, map_to)
        facts = {name: getattr(print_, name) for name in _SHOWN}
        if print_.metadata_digest is not None:
            facts |= {"metadata_digest": print_.metadata_digest, "metadata": dict(print_.metadata or {})}
        if self._kept is not None:
            facts["files_not_read_again"] = print_.kept
        return facts

    def both(self, old: Path, new: Path) -> dict[str, Any]:
        """Return what differs between two."""
        from kvgate.rules.errors import InputError
        from kvgate.weights.dtypes import GGUF, OPAQUE
        from kvgate.weights.tensor_map import compare_maps

        (before, old_facts), (after, new_facts) = self._side(old), self._side(new)
        opaque = [any(entry.dtype == OPAQUE for entry in side.entries) for side in (before, after)]
        if opaque[0] != opaque[1]:
            where = str((old, new)[opaque[1]])
            raise InputError("opaque files do not compare with tensors", where=where, hint="compare like with like")
        found = compare_maps(before, after)
        facts: dict[str, Any] = {
            "state": "equal",
            "old": before.digest,
            "new": after.digest,
            "same": found.equal,
            "added": list(found.added),
            "removed": list(found.removed),
            "changed": list(found.changed),
            "renamed": [{"from": source, "to": target} for source, target in found.renamed],
        }
        if before.digest != after.digest:
            facts["state"] = "undecided" if opaque[0] else "different"  # other files may hold the same tensors
        elif old_facts is None or new_facts is None:  # a map of GGUF tensors does not say what else the file says
            if any(entry.dtype.startswith(GGUF) for entry in before.entries):
                facts["state"] = "undecided"
        elif old_facts != new_facts:
            facts["state"] = "different"
        if old_facts is not None and new_facts is not None:
            keys = sorted(old_facts.keys() | new_facts.keys())
            facts["metadata"] = [key for key in keys if old_facts.get(key) != new_facts.get(key)]
        return facts

    def _side(self, path: Path) -> tuple[TensorMap, dict[str, Any] | None]:
        """Return the tensors at ``path``, and what GGUF says beside them."""
        from kvgate.weights.tensor_map import TensorMap, read_map

        if path.suffix == ".jsonl":
            return read_map(path, None), None
        found = self._checkpoint(path)
        facts = None if found.metadata is None else {**found.metadata, "digest of all": found.metadata_digest}
        return TensorMap(found.digest, found.entries), facts

    def _checkpoint(self, path: Path) -> CheckpointFingerprint:
        from kvgate.deployments.config import effective_config, read_config
        from kvgate.weights.fingerprint import fingerprint_checkpoint

        config = effective_config(read_config(path)).config if (path / "config.json").exists() else None
        return fingerprint_checkpoint(path, config, self._progress, kept=self._kept, opaque_pickle=self._opaque)


def _adapter(folder: Path) -> dict[str, Any]:
    from kvgate.weights.adapters import fingerprint_adapter

    found = fingerprint_adapter(folder)
    return {name: getattr(found, name) for name in ("digest", "rank", "alpha", "tensors", "bytes")}


def _published(path: str, compare: str | None, progress: Progress) -> dict[str, Any]:
    from dataclasses import asdict

    from kvgate.deployments.hub import split_repository
    from kvgate.deployments.published import compare_published, published
    from kvgate.rules.errors import UsageError

    sides = []
    for text in (path, *(() if compare is None else (compare,))):
        split = split_repository(text)
        if split is None:
            raise UsageError("is no org/name[@revision]", where=text)
        sides.append(published(*split))
    old = sides[0]
    if compare is None:
        files = {name: asdict(file) for name, file in old.weights.items()}
        return {"repo": old.repo, "commit": old.commit, "weights": files}
    new = sides[1]
    found = compare_published(old, new, progress)
    lists = {name: list(getattr(found, name)) for name in ("files", "added", "removed", "changed")}
    commits = {"old": f"{old.repo}@{old.commit}", "new": f"{new.repo}@{new.commit}"}
    return {"state": found.state, **commits, **lists, "bytes_to_fetch": found.fetch}


def _lines(facts: dict[str, Any]) -> list[str]:
    """Return facts as lines: what is a list or a table below its count."""
    from kvgate.cli.plain import visible

    lines = []
    for name, value in facts.items():
        if isinstance(value, (list, dict)):
            lines.append(f"{name}: {len(value)}")
            items = value if isinstance(value, list) else [f"{key}: {item}" for key, item in value.items()]
            lines += [f"  {visible(_item(item))}" for item in items[:_NAMED]]
            lines += [f"  and {len(items) - _NAMED} more (-o json names all)"] if len(items) > _NAMED else []
        else:
            lines.append(f"{name}: {visible(str(value))}")
    return lines


def _item(item: Any) -> str:
    return f"{item['from']} -> {item['to']}" if isinstance(item, dict) else str(item)
