"""Prefix stability: does a chat, cut at the end of a turn, render to the beginning of what it renders to later?

Where it does not, the blocks that a turn filled are not the ones that the next turn asks for. Both sides of a
comparison are measured by themselves: an upgrade may mend it or break it (incident I09).

Measured while rendering, where the renderer is at hand; this module only needs the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvgate.corpora.divergence.beginning import common
from kvgate.rules.errors import InputError

MOST = 16
"""Turn ends of one conversation that are measured, evenly spread: each costs one rendering."""

Render = Callable[[Mapping[str, Any]], "list[int] | None"]
"""Returns the token ids of a conversation (as ``Conversation.input()`` gives it); ``None``: it does not render."""


@dataclass(frozen=True)
class Turn:
    """One end of a turn.

    Attributes:
        end: how many messages stand before it.
        prompt: the opening of an answer was asked for: this is what an engine was asked to go on from.
        tokens: how many ids the chat up to here renders to; ``None``: it does not render on its own.
        shared: how many of them are the beginning of the whole chat.

    """

    end: int
    prompt: bool
    tokens: int | None
    shared: int | None

    @property
    def stable(self) -> bool | None:
        """Whether all of them are; ``None``: it could not be measured."""
        return None if self.tokens is None else self.shared == self.tokens


def turn_ends(messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, bool]]:
    """Return where turns end within a chat: how many messages, and whether an answer comes next.

    Before an answer the engine was asked with the answer's opening; after one, the chat stands as it is. Ends
    between other messages (two questions in a row, parallel tool results) are no turn's.
    """
    ends = []
    for end in range(1, len(messages)):
        before, after = messages[end - 1].get("role"), messages[end].get("role")
        if before != "assistant" and after == "assistant":
            ends.append((end, True))
        elif before == "assistant" and after != "assistant":
            ends.append((end, False))
    if len(ends) <= MOST:
        return ends
    return [ends[index * (len(ends) - 1) // (MOST - 1)] for index in range(MOST)]


def cut(conversation: Mapping[str, Any], end: int, *, prompt: bool) -> dict[str, Any]:
    """Return the chat up to a message, with or without the opening of an answer."""
    return {
        **conversation,
        "messages": list(conversation["messages"][:end]),
        "add_generation_prompt": prompt,
        "continue_final_message": False,
    }


def measure_turns(conversation: Mapping[str, Any], whole: Sequence[int], render: Render) -> list[Turn]:
    """Render a chat up to the end of each turn and hold it against the whole.

    Args:
        conversation: as ``Conversation.input()`` gives it; a raw completion has no turns.
        whole: the token ids of all of it.
        render: the same renderer, on the same date.

    """
    if conversation.get("messages") is None:
        return []
    ids = list(whole)
    turns = []
    for end, prompt in turn_ends(conversation["messages"]):
        part = render(cut(conversation, end, prompt=prompt))
        turns.append(
            Turn(end, prompt, None, None) if part is None else Turn(end, prompt, len(part), common(list(part), ids))
        )
    return turns


def turns_as_data(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return turns as a snapshot holds them."""
    return [asdict(turn) for turn in turns]


def turns_from(data: Sequence[Any], where: str) -> tuple[Turn, ...]:
    """Return turns from a snapshot.

    Raises:
        InputError: they have another shape.

    """
    return tuple(_turn(item, where) for item in data)


def _turn(item: Any, where: str) -> Turn:
    if not isinstance(item, dict) or item.keys() != {"end", "prompt", "tokens", "shared"}:
        raise InputError("a turn has 'end', 'prompt', 'tokens' and 'shared'", where=where)
    tokens, shared = item["tokens"], item["shared"]
    measured = _count(tokens) and _count(shared) and shared <= tokens
    if not (
        _count(item["end"]) and isinstance(item["prompt"], bool) and (measured or (tokens is None and shared is None))
    ):
        raise InputError("a field of a turn has the wrong type", where=where)
    return Turn(**item)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
