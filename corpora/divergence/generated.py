"""Generated text: does it re-tokenize to the ids that were generated?

An engine's cache holds the ids that it generated. The next turn sends them back as text; where the template or the
tokenizer makes other ids of it, the blocks of the answer are not found again.

Measured while rendering, where the renderer is at hand; this module only needs the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvgate.corpora.divergence.beginning import common
from kvgate.corpora.divergence.stability import Render, cut
from kvgate.rules.errors import InputError


@dataclass(frozen=True)
class Answer:
    """One generated answer, in the chat that goes on after it.

    Attributes:
        message: index of the message.
        tokens: how many ids were generated.
        place: the index at which they have to stand in the rendering of the whole chat; ``None``: what
            stands in front of the answer is itself rendered in another way, or not at all.
        shared: how many of them stand there.

    """

    message: int
    tokens: int
    place: int | None
    shared: int

    @property
    def same(self) -> bool:
        """Whether the text gives all the ids back."""
        return self.place is not None and self.shared == self.tokens


def measure_answers(
    conversation: Mapping[str, Any], generated: Mapping[int, Sequence[int]], whole: Sequence[int], render: Render
) -> list[Answer]:
    """Look for generated ids where they have to stand.

    Args:
        conversation: as ``Conversation.input()`` gives it, without the ids.
        generated: the ids by index of their message.
        whole: the token ids of the whole chat.
        render: the same renderer, on the same date.

    """
    answers = []
    for message, ids in sorted(generated.items()):
        asked = render(cut(conversation, message, prompt=True)) if message else None
        if asked is None or list(whole[: len(asked)]) != list(asked):
            answers.append(Answer(message, len(ids), None, 0))
        else:
            answers.append(Answer(message, len(ids), len(asked), common(list(ids), list(whole[len(asked) :]))))
    return answers


def answers_as_data(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return answers as a snapshot holds them."""
    return [asdict(answer) for answer in answers]


def answers_from(data: Sequence[Any], where: str) -> tuple[Answer, ...]:
    """Return answers from a snapshot.

    Raises:
        InputError: they have another shape.

    """
    return tuple(_answer(item, where) for item in data)


def _answer(item: Any, where: str) -> Answer:
    if not isinstance(item, dict) or item.keys() != {"message", "tokens", "place", "shared"}:
        raise InputError("a generated answer has 'message', 'tokens', 'place' and 'shared'", where=where)
    numbers = [item["message"], item["tokens"], item["shared"], item["place"] or 0]
    if not all(type(number) is int and number >= 0 for number in numbers) or item["shared"] > item["tokens"]:
        raise InputError("a field of a generated answer has the wrong type", where=where)
    return Answer(**item)
