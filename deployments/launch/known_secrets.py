"""Credentials that a line gives by their name, wherever else in the line they stand under another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.flags import flag_table, read_flags
from kvgate.deployments.launch.invocation import Invocation
from kvgate.rules.credentials import is_secret_name
from kvgate.rules.errors import InputError

_SHORTEST = 8  # characters; what is shorter may be any word
_REASON = "holds what is a credential elsewhere in the line, and was left out"


def without_known_secrets(facts: LaunchFacts, run: Invocation) -> LaunchFacts:
    """Return the facts without the values that the line also gives as a credential.

    Raises:
        InputError: one of them is the model's name, or another that a capture cannot be without.
    """
    secrets = frozenset(_secrets(run, facts.source))
    if not secrets:
        return facts
    held = [path for path, value in facts.values.items() if _holds(value, secrets)]
    for name in ("model", "overrides", "adapters", "tokenizer", "tokenizer_revision", "chat_template", "stores"):
        if _holds(getattr(facts, name), secrets):
            what = f"the {name.replace('_', ' ')} is or holds a credential of the line"
            raise InputError(what, where=facts.source, hint="keep credentials out of names")
    return replace(
        facts,
        values={path: value for path, value in facts.values.items() if path not in held},
        unknown=(*facts.unknown, *((path, _REASON) for path in held)),
        notes=tuple(note for note in facts.notes if not _holds(note, secrets)),
    )


def _secrets(run: Invocation, source: str) -> Iterator[str]:
    given: list[Any] = []
    if not run.worker:  # whose flags are not the engine's alone
        flags = flag_table(run.engine).flags
        line = read_flags(run.arguments, source, run.engine)
        given += [one.value for name, one in line.flags.items() if flags[name].use == "secret" and not one.expansions]
        given += [one.value for name, one in line.others.items() if is_secret_name(name) and not one.expansions]
    given += [word.text for name, word in run.environment.items() if is_secret_name(name) and not word.expansions]
    for value in given:
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and len(text) >= _SHORTEST:
                yield text


def _holds(value: Any, secrets: frozenset[str]) -> bool:
    if isinstance(value, str):
        return any(secret in value for secret in secrets)
    if isinstance(value, Mapping):
        return any(_holds(one, secrets) for pair in value.items() for one in pair)
    return isinstance(value, (list, tuple)) and any(_holds(one, secrets) for one in value)
