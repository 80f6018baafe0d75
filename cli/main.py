"""The ``kvgate`` command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from kvgate.cli import guard
from kvgate.cli.commands.capture import capture
from kvgate.cli.commands.check import check
from kvgate.cli.commands.connectors import list_connectors, show_connector
from kvgate.cli.commands.corpus import compare_corpora, list_corpora, show_corpus, snapshot_corpus
from kvgate.cli.commands.explain import explain
from kvgate.cli.commands.fingerprint import fingerprint
from kvgate.cli.commands.namespace import namespace
from kvgate.cli.commands.record import show_record, verify_record
from kvgate.cli.commands.rules import list_rules
from kvgate.cli.commands.schema import schema

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


def _group(text: str) -> typer.Typer:
    return typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None, context_settings=_SETTINGS)


app = typer.Typer(
    name="kvgate",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help needs no Rich, and reads the same in every log
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
)
_rules = _group("The rules that decide.")
_connectors = _group("What is known of the keys of each connector.")
_corpus = _group("Conversations, and what renderers make of them.")
_record = _group("Decision records.")


def _add(group: typer.Typer, name: str, command: Callable[..., Any]) -> None:
    group.command(name, help=_help(command))(guard.guarded(command))


def _help(command: Callable[..., Any]) -> str:
    """Return the docstring with its indented paragraphs marked to be kept as they are laid out."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(f"\b\n{text}" if "\n " in text or text[:1] == " " else text for text in paragraphs)


_add(app, "capture", capture)
_add(app, "check", check)
_add(app, "explain", explain)
_add(app, "namespace", namespace)
_add(app, "fingerprint", fingerprint)
_add(app, "schema", schema)
_add(_rules, "list", list_rules)
_add(_connectors, "list", list_connectors)
_add(_connectors, "show", show_connector)
_add(_corpus, "list", list_corpora)
_add(_corpus, "show", show_corpus)
_add(_corpus, "snapshot", snapshot_corpus)
_add(_corpus, "compare", compare_corpora)
_add(_record, "show", show_record)
_add(_record, "verify", verify_record)
app.add_typer(_rules, name="rules")
app.add_typer(_connectors, name="connectors")
app.add_typer(_corpus, name="corpus")
app.add_typer(_record, name="record")


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


app.callback(help=_help(_kvgate))(_kvgate)


def main() -> None:
    """Run the command line; the process ends with the command's exit code."""
    app()


if __name__ == "__main__":
    main()
