"""Conversations on their way to the bounded child, some hundred at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from kvgate.corpora.child.bounded import Batch
from kvgate.corpora.conversations.conversation import Conversation
from kvgate.rules.errors import InputError

MULTI_TURN = "multi-turn"
"""The tag of conversations of which it is measured whether each turn begins like the one before it."""

_MOST = 256
_BYTES = 1 << 20


def batches(conversations: Iterable[Conversation]) -> Iterator[Batch]:
    """Yield conversations as :class:`kvgate.corpora.rendering.pipeline.Pipeline` takes them.

    Raises:
        InputError: one is nested too deeply to be written down.

    """
    names: list[str] = []
    items: list[str] = []
    size = 0
    for conversation in conversations:
        try:
            item = _item(conversation)
        except RecursionError:
            raise InputError("nested too deeply", where=f"conversation {conversation.id!r}") from None
        if items and (len(items) == _MOST or size + len(item) > _BYTES):
            yield _batch(names, items)
            names, items, size = [], [], 0
        names.append(conversation.id)
        items.append(item)
        size += len(item)
    if items:
        yield _batch(names, items)


def _batch(names: list[str], items: list[str]) -> Batch:
    return Batch(tuple(names), f"[{','.join(items)}]\n".encode("ascii"))


def _item(conversation: Conversation) -> str:
    # Written by hand, as the large part is JSON text already.
    turns = "true" if MULTI_TURN in conversation.tags else "false"
    return (
        f'{{"id":{json.dumps(conversation.id)},"input":"{conversation.input_digest}","turns":{turns},'
        f'"generated":{json.dumps(conversation.generated)},"conversation":{conversation.input_text}}}'
    )
