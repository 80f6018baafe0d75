"""What one launch line says about a deployment, before anybody has looked at the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvgate.deployments.launch.places import Place, on_the_host


@dataclass(frozen=True)
class LaunchFacts:
    """The facts in one launch line. Credentials are not among them: they are dropped while reading.

    Attributes:
        source: what to call the line (a file name, ``-``).
        engine: the engine it starts (``"vllm"``).
        model: what the engine is told to load, verbatim; ``None`` where the line leaves it to a variable.
        values: manifest paths to JSON values. ``None`` is known to be unset; a path that is not there is
            unknown, and :attr:`unknown` says why where the line is the reason.
        overrides: ``--hf-overrides`` (and the older RoPE flags), to be applied to ``config.json``.
        adapters: names of ``--lora-modules`` to their paths.
        tokenizer: another tokenizer than the model's (a path or repository); ``None``: the model's own.
        tokenizer_revision: its revision where given.
        chat_template: the path or the literal text of ``--chat-template``; ``None``: the checkpoint's own.
        remote_code: the line allows code from the checkpoint to run (``--trust-remote-code``).
        language_model_only: no image, audio or video can be sent (by flag, or by limits of 0).
        places: where on the host the folders and files are that a container's line names, by the path in it.
        image: the image reference that the line names; ``None``: it starts no container, or leaves that to a variable.
        stores: where blocks are kept, as the server sees it: before mounts make another place of it.
        neighbours: what the same files say of other servers, which are not meant.
        pending: manifest paths whose value was ``auto``, to be settled by :func:`resolve`.
        unknown: manifest paths that the line touches without telling the value, and why.
        ignored: flags that change neither KV, nor tokens, nor keys.
        notes: what else a reader of the capture should know, one sentence each.
    """

    source: str
    engine: str
    model: str | None
    values: Mapping[str, Any]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str | None = None
    tokenizer_revision: str | None = None
    chat_template: str | None = None
    remote_code: bool = False
    language_model_only: bool = False
    places: Mapping[str, Place] = field(default_factory=dict)
    image: str | None = None
    stores: tuple[str, ...] = ()
    neighbours: tuple[LaunchFacts, ...] = ()
    pending: tuple[str, ...] = ()
    unknown: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def place(self, path: str) -> Place:
        """Say where on the host something is that the line names."""
        return self.places.get(path) or on_the_host(path, None)
