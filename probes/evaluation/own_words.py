"""Decidable prompts for a real model, in its own tokens: a reference stands in the cached part, and is asked for again.

Plain text that goes on where it began, and no instruction: whatever was trained on text repeats what stood behind the
same words before. A model that does not, without any store, decides nothing (the rehearsal asks it first).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

Encode = Callable[[Sequence[str]], tuple[tuple[int, ...], list[tuple[int, ...]]]]
"""Gives the ids that a tokenizer puts in front of every text, and those of each text without them.

Raises:
    CannotStageError: there is no tokenizer, or it cannot be built here.
"""

_LETTERS = ("ABCDEFGHIJKLMNOP", "0123456789", "QRSTUVWXYZ")
"""Of a reference, in order; none of them stands anywhere else in a prompt."""
_STATEMENT = "\nreference: {}\n"
_ROUND = (
    "the answer to every question below stands in a line of its own above, and it is named once more at the end; "
    "between both there is nothing that matters, and all that is to be done is to read on as the text goes on. "
)


def in_own_words(encode: Encode, label: str, length: int, most: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return a prompt of so many tokens, and its answer.

    Args:
        encode: of the model's tokenizer.
        label: what the reference is made of: another label, another answer.
        length: tokens in all.
        most: tokens of an answer at most.

    Returns:
        ``None`` where the tokenizer does not keep the reference apart from what stands round it.

    Raises:
        CannotStageError: there is no tokenizer.

    """
    hashed = hashlib.sha256(label.encode("utf-8", "surrogatepass")).digest()
    places = [hashed[number] % len(letters) for number, letters in enumerate(_LETTERS)]
    # One that differs from it in every letter: what both have in front is the question.
    told, stranger = (
        "".join(letters[(place + turn) % len(letters)] for place, letters in zip(places, _LETTERS, strict=True))
        for turn in (0, 1)
    )
    texts = [_STATEMENT.format(told), _STATEMENT.format(stranger), _ROUND]
    front, (statement, other, filler) = encode(texts)
    asked = next((at for at, (one, two) in enumerate(zip(statement, other, strict=False)) if one != two), 0)
    behind = next(
        (at for at, (one, two) in enumerate(zip(statement[::-1], other[::-1], strict=False)) if one != two), 0
    )
    answer = statement[asked : max(asked + 1, len(statement) - behind)][:most]
    room = length - len(front) - len(statement) - asked
    if not asked or not filler or room < 0:
        return None
    between = tuple(filler[number % len(filler)] for number in range(room))
    return (*front, *statement, *between, *statement[:asked]), answer
