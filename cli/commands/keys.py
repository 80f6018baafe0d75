"""``kvgate keys``: the names that connectors give entries, taken apart and foretold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvgate.rules.manifest import Manifest
    from kvgate.stores.keys.stored import StoredKey

NOT_KNOWN = 11
_MOST_STDIN = 64 << 20

Connector = Annotated[
    str | None,
    typer.Option("--connector", metavar="ID", help="Whose names they are. [default: any]", show_default=False),
]
ShowKeys = Annotated[
    bool, typer.Option("--show-keys", help="Show salts, tags and tenants, which are left out otherwise.")
]


def parse_keys(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Keys, or paths in the store's folder; '-' reads lines.")
    ],
    connector: Connector = None,
    show_keys: ShowKeys = False,
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Say what the names of stored entries say: model, namespace, ranks, hash, and what they cannot say.

    Exit 11 where one of them is of no known scheme.

    Examples:
      kvgate keys parse acme/support-8b@02010201@0@4f0c9d3e5a7b16284f0c9d3e5a7b16284f0c9d3e5a7b16284f0c9d3e5a7b1628
      redis-cli --scan | kvgate keys parse - -o json
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.cli.formats.privacy import Veil
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.cli.plain import harmless, visible
    from kvgate.stores.keys.schemes import readings

    wanted, veil = json_wanted(output), Veil(lifted=show_keys)
    known_connector(connector)
    found = [(name, readings(name, connector)) for name in _names(names)]
    unknown = any(not keys for _, keys in found)
    if wanted:
        rows = [
            {
                "name": veil.name(keys[0]) if keys else name,
                "readings": [_data(one, veil) for one in keys],
            }
            for name, keys in found
        ]
        console.emit(as_json(rows))
        return NOT_KNOWN if unknown else 0
    page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
    for name, keys in found:
        page.gap()
        if not keys:
            page.say(f"of no known scheme: {visible(name)}", hang=2)
        for key in keys:
            data = harmless(_data(key, veil))
            page.parts([(data["connector"], "bold"), (f"  {visible(veil.name(key))}", "")], hang=2)
            page.say(f"model: {data['model'] or 'not in the name'}", indent=2, hang=2)
            page.say(f"namespace: {data['namespace'] or 'none'}", indent=2, hang=2)
            for field, value in data["fields"].items():
                page.say(f"{field}: {value}", indent=2, hang=2)
            page.say(f"hash: {data['hash']}", indent=2, hang=2)
            page.say(f"not in the name: {', '.join(data['unsaid'])}", indent=2, hang=2)
    console.emit(page.text())
    return NOT_KNOWN if unknown else 0


def predict_keys(
    manifest: Annotated[str, typer.Argument(metavar="MANIFEST", help="A manifest, or a folder that holds one.")],
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The prompt's token ids: a JSON list, or {token_ids: [...]}.")
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(metavar="CONVERSATION", help="Or a conversation of the snapshot that the manifest names."),
    ] = None,
    salt: Annotated[str | None, typer.Option(metavar="SALT", help="The request's cache_salt.")] = None,
    adapter: Annotated[str | None, typer.Option(metavar="NAME", help="The adapter that answers.")] = None,
    show_keys: ShowKeys = False,
    output: Annotated[str, typer.Option("--output", "-o", metavar="text|json", help="How to print it.")] = "text",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the names alone.")] = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Print the names under which a prompt's entries lie once the deployment has stored them, one a line.

    Exit 11 where something is not known that they depend on: then nothing is foretold.

    Examples:
      kvgate keys predict release-8/ --tokens prompt.json
      kvgate keys predict release-8/ --snapshot plain-user --salt tenant-a --show-keys
    """
    from kvgate.cli import console
    from kvgate.cli.formats.privacy import Veil
    from kvgate.cli.listing import as_json, json_wanted
    from kvgate.cli.plain import visible
    from kvgate.inputs import load_manifest
    from kvgate.rules.errors import UsageError
    from kvgate.stores.keys.schemes import SCHEMES
    from kvgate.stores.keys.stored import Request

    wanted, veil = json_wanted(output), Veil(lifted=show_keys)
    if (tokens is None) == (snapshot is None):
        raise UsageError("give the prompt by --tokens FILE or by --snapshot CONVERSATION, one of them")
    deployment = load_manifest(manifest)
    connector = deployment.value("cache.connector")
    if connector not in SCHEMES:
        console.say(f"what {connector or 'its connector'} calls its entries is not known here")
        return NOT_KNOWN
    ids = _token_ids(tokens) if tokens is not None else _of_snapshot(deployment, str(snapshot))
    scheme = SCHEMES[connector]
    found = scheme.predict(deployment, Request(ids, salt=salt, adapter=adapter))
    names = None if found.names is None else [_veiled(name, scheme.parse(name), veil) for name in found.names]
    notes = []
    if salt is not None and names and scheme.predict(deployment, Request(ids, adapter=adapter)).names == found.names:
        notes.append("the salt is in none of these names: without it they are the same")
    if names is not None and names != list(found.names or ()):
        notes.append("salts, tags and tenants are left out (--show-keys shows them)")
    if wanted:
        told = {"assumed": list(found.assumed), "unknown": list(found.unknown), "notes": notes}
        console.emit(as_json({"connector": connector, "tokens": len(ids), "names": names, **told}))
    else:
        for sentence in found.unknown:
            console.say(f"not known: {sentence}")
        for sentence in () if quiet else (*(f"assumed: {one}" for one in found.assumed), *notes):
            console.say(sentence)
        if names == []:
            console.say("nothing of this prompt is stored: it is shorter than one chunk")
        console.emit("".join(f"{visible(name)}\n" for name in names or ()))
    return NOT_KNOWN if names is None else 0


def known_connector(connector: str | None, *, stored: bool = False) -> None:
    """Refuse a connector whose names are not known.

    Args:
        connector: its id; ``None``: any is meant.
        stored: only one whose entries lie in stores will do.

    Raises:
        UsageError: naming those that are.

    """
    from kvgate.rules.errors import UsageError
    from kvgate.stores.keys.schemes import SCHEMES, STORED

    known = STORED if stored else SCHEMES
    if connector is not None and connector not in known:
        in_memory = connector in SCHEMES
        what = f"{connector} stores nothing" if in_memory else f"the names of {connector!r} are not known"
        raise UsageError(what, where="--connector", hint=f"known: {', '.join(known)}")


def _data(key: StoredKey, veil: Any) -> dict[str, Any]:
    from kvgate.stores.keys.schemes import SCHEMES

    return {
        "connector": key.connector,
        "model": key.model,
        "namespace": veil.namespace(key.namespace),
        "fields": dict(key.fields),
        "hash": key.hash,
        "unsaid": sorted(SCHEMES[key.connector].unsaid),
    }


def _veiled(name: str, key: StoredKey | None, veil: Any) -> str:
    """Return what to show of a name that was foretold; one that is not taken apart may hold a salt anywhere."""
    return str(veil.name(key) if key is not None else veil.stranger(name) or "(redacted)")


def _names(given: list[str]) -> Iterator[str]:
    import sys

    from kvgate.rules.errors import InputError

    for name in given:
        if name != "-":
            yield name
            continue
        text = sys.stdin.buffer.read(_MOST_STDIN + 1)
        if len(text) > _MOST_STDIN:
            raise InputError(f"more than the {_MOST_STDIN:,} bytes allowed", where="standard input")
        yield from (line for line in text.decode("utf-8", "surrogateescape").split("\n") if line)


def _token_ids(path: Path) -> list[int]:
    from kvgate.corpora.files import read_text
    from kvgate.rules.document import MAX_BYTES, parse_json
    from kvgate.rules.errors import InputError

    found = parse_json(read_text(path, MAX_BYTES), str(path))
    if isinstance(found, dict) and set(found) == {"token_ids"}:
        found = found["token_ids"]
    if not isinstance(found, list) or not all(type(one) is int and 0 <= one < 1 << 32 for one in found):
        raise InputError("not a list of token ids", where=str(path), hint='[1, 15043, 29892] or {"token_ids": [...]}')
    return found


def _of_snapshot(manifest: Manifest, conversation: str) -> list[int]:
    from kvgate.corpora.snapshots.snapshot import open_snapshot
    from kvgate.inputs import sidecar_path
    from kvgate.rules.errors import InputError, UsageError

    named = sidecar_path(manifest, "tokenizer.snapshot")
    if named is None:
        raise InputError("names no snapshot", where=manifest.source, hint="--tokens FILE")
    for entry in open_snapshot(*named).entries():
        if entry.id == conversation:
            rendered = entry.renders[0]
            if not rendered.ok:
                raise InputError(f"{conversation} was not rendered", where=str(named[0]))
            return list(rendered.ids)
    raise UsageError(f"there is no conversation {conversation!r}", where=str(named[0]), hint="`kvgate corpus show`")
