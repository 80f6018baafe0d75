"""The ``kvgate`` command."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from kvgate.cli import guard
from kvgate.cli.commands.bypass import bypass
from kvgate.cli.commands.canary_check import check_canaries
from kvgate.cli.commands.canary_mint import mint_canaries
from kvgate.cli.commands.canary_probe import probe_isolation
from kvgate.cli.commands.capture import capture
from kvgate.cli.commands.check import check
from kvgate.cli.commands.connectors import list_connectors, show_connector
from kvgate.cli.commands.corpus import list_corpora, show_corpus
from kvgate.cli.commands.corpus_compare import compare_snapshots
from kvgate.cli.commands.corpus_snapshot import print_script, snapshot_corpus
from kvgate.cli.commands.corpus_verify import verify_snapshot
from kvgate.cli.commands.explain import explain
from kvgate.cli.commands.fingerprint import fingerprint
from kvgate.cli.commands.keys import parse_keys, predict_keys
from kvgate.cli.commands.namespace import namespace
from kvgate.cli.commands.record import show_record, verify_record
from kvgate.cli.commands.rehearse import rehearse
from kvgate.cli.commands.rules import list_rules
from kvgate.cli.commands.schema import schema
from kvgate.cli.commands.stores import scan_store
from kvgate.cli.commands.sweep import sweep_corpus

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


_COMMANDS: Mapping[str, Callable[..., Any]] = {
    "capture": capture,
    "check": check,
    "explain": explain,
    "namespace": namespace,
    "fingerprint": fingerprint,
    "rehearse": rehearse,
    "bypass": bypass,
    "schema": schema,
}
_GROUPS: Mapping[str, tuple[str, Mapping[str, Callable[..., Any]]]] = {
    "rules": ("The rules that decide.", {"list": list_rules}),
    "connectors": (
        "What is known of the keys of each connector.",
        {"list": list_connectors, "show": show_connector},
    ),
    "corpus": (
        "Conversations, and what renderers make of them.",
        {
            "list": list_corpora,
            "show": show_corpus,
            "snapshot": snapshot_corpus,
            "script": print_script,
            "compare": compare_snapshots,
            "sweep": sweep_corpus,
            "verify": verify_snapshot,
        },
    ),
    "keys": ("The names of stored entries.", {"parse": parse_keys, "predict": predict_keys}),
    "stores": ("What lies in a store.", {"scan": scan_store}),
    "canary": (
        "Whether tenants reach each other's cache.",
        {"mint": mint_canaries, "check": check_canaries, "probe": probe_isolation},
    ),
    "record": ("Decision records.", {"show": show_record, "verify": verify_record}),
}


def build(asked: str | None = None) -> typer.Typer:
    """Return the application.

    Args:
        asked: the first word of the command line. Where it is a command, only that one is put together:
            Typer takes a millisecond and more for each.

    """
    app = _group(_help(_kvgate))
    app.callback()(_kvgate)
    known = asked in _COMMANDS or asked in _GROUPS
    for name, command in _COMMANDS.items():
        if name == asked or not known:
            _add(app, name, command)
    for name, (text, commands) in _GROUPS.items():
        if name == asked or not known:
            group = _group(text)
            for word, command in commands.items():
                _add(group, word, command)
            app.add_typer(group, name=name)
    return app


def _group(text: str) -> typer.Typer:
    return typer.Typer(
        help=text,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help needs no Rich, and reads the same in every log
        pretty_exceptions_enable=False,
        context_settings=_SETTINGS,
    )


def _add(group: typer.Typer, name: str, command: Callable[..., Any]) -> None:
    group.command(name, help=_help(command), short_help=_summary(command))(guard.guarded(command))


def _summary(command: Callable[..., Any]) -> str:
    """Return the docstring's first paragraph in one line; of a longer one Typer would show the beginning alone."""
    return " ".join((inspect.getdoc(command) or "").split("\n\n")[0].split())


def _help(command: Callable[..., Any]) -> str:
    """Return the docstring with its indented paragraphs marked to be kept as they are laid out."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(f"\b\n{text}" if "\n " in text or text[:1] == " " else text for text in paragraphs)


def _version(*, asked: bool) -> None:
    if asked:
        from kvgate import __version__

        typer.echo(f"kvgate {__version__}")
        raise typer.Exit


def _kvgate(
    version: Annotated[
        bool, typer.Option("--version", callback=lambda value: _version(asked=value), is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Decide whether a new deployment may read the KV cache that an old one stored.

    Verdicts: verified-compatible-reuse, new-namespace, clear.

      kvgate capture MODEL --from launch.sh -o new/     what a deployment is
      kvgate check old/ new/                            may it read the old cache?
      kvgate explain RULE-ID                            why
    """


def main() -> None:
    """Run the command line; the process ends with the command's exit code."""
    # A short process that mostly imports: collecting what imports leave behind is a tenth of its time.
    gc.set_threshold(100_000)
    try:
        build(sys.argv[1] if len(sys.argv) > 1 else None)(prog_name="kvgate")
    except KeyboardInterrupt:  # before a command was reached
        sys.exit(guard.INTERRUPTED)
    finally:
        gc.freeze()  # spares the interpreter's last collections


if __name__ == "__main__":
    main()
