"""``kvgate fingerprint``: what weights are, whatever files they lie in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kvgate.cli.api_key import ApiKeyEnv
from kvgate.cli.options import Debug, NoColor

_NAMED = 20  # in text


def fingerprint(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="A checkpoint folder, a GGUF file, a LoRA adapter's folder, a tensor map, or a captured release.",
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
            from kvgate.cli.commands.published import facts_published

            facts = facts_published(path, compare, progress)
        else:
            from kvgate.cli.commands.stored import Stored

            stored = Stored(hash_cache, opaque_pickle, progress)
            facts = stored.one(Path(path), map_to) if compare is None else stored.both(Path(path), Path(compare))
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
