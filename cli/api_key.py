"""The API key or password of a server that is asked: by the name of the variable that holds it, never by value."""

from __future__ import annotations

from typing import Annotated

import typer

ApiKeyEnv = Annotated[
    str | None,
    typer.Option("--api-key-env", metavar="NAME", help="The environment variable that holds the server's API key."),
]


def api_key(name: str | None) -> str | None:
    """Return the key in an environment variable; ``None`` where none is named.

    Raises:
        UsageError: the variable holds nothing that can be sent as a key.

    """
    return secret(name, "--api-key-env")


def secret(name: str | None, option: str, what: str = "key") -> str | None:
    """Return what an environment variable holds; ``None`` where none is named.

    Raises:
        UsageError: it holds nothing that can be sent, naming the option that named it and what was looked for.

    """
    import os

    from kvgate.rules.errors import UsageError

    if name is None:
        return None
    value = os.environ.get(name, "").strip()
    if not value or not value.isprintable() or not value.isascii():
        raise UsageError(f"the variable {name} holds no {what}", where=option)
    return value
