"""Write a corpus of short chats, the same on every machine: prose in many languages, code, and JSON.

    python benchmarks/short_chats.py COUNT FILE

One or two questions of some 280 bytes in all, a system prompt in every fourth: about 130 tokens rendered. Made of the
words in short_chats.txt, which are kvgate's own; half of the words are put together from two, so that an encoder's
memory of words is of as little use as with real text.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# A line for each language: its name and words.
LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
WORDS = {name: words.split() for name, _, words in (line.partition(":") for line in LINES)}
UNSPACED = {"chinese", "japanese", "thai"}


def word(draw: random.Random, language: str) -> str:
    """A word, or the beginning of one and the end of another."""
    first, second = draw.choices(WORDS[language], k=2)
    return (
        first if draw.random() < 0.5 else first[: draw.randint(1, len(first))] + second[-draw.randint(1, len(second)) :]
    )


def prose(draw: random.Random) -> str:
    """Some words of one language, with a number now and then."""
    language = draw.choice(sorted(WORDS))
    words = [word(draw, language) for _ in range(draw.randint(8, 20))]
    if draw.random() < 0.3:
        words.insert(draw.randrange(len(words)), str(draw.randrange(100_000)))
    return ("" if language in UNSPACED else " ").join(words) + draw.choice([".", "?", "!", " …", ""])


def code(draw: random.Random) -> str:
    """A function of a few lines."""
    name, value = draw.choice(WORDS["english"]), draw.randrange(1000)
    return (
        f"```python\ndef {name}_{value}(rows, *, limit={value}):\n    # {draw.choice(WORDS['german'])}\n"
        f"    found = [row for row in rows if row[{value % 7}] > {value / 8:.3f}]\n    return found[:limit]\n```"
    )


def record(draw: random.Random) -> str:
    """A line of JSON, as tools return it."""
    english = WORDS["english"]
    return json.dumps(
        {
            "id": f"{draw.getrandbits(64):016x}",
            draw.choice(english): draw.random(),
            "tags": draw.sample(english, 3),
            "ok": draw.random() < 0.5,
            "note": None if draw.random() < 0.5 else prose(draw),
        },
        ensure_ascii=draw.random() < 0.5,
    )


TEXTS: Sequence[Callable[[random.Random], str]] = [prose] * 6 + [code] * 2 + [record] * 2


def chats(count: int) -> Iterator[dict[str, Any]]:
    """Yield chats in the OpenAI format."""
    draw = random.Random(20261129)
    for number in range(count):
        messages = [{"role": "system", "content": prose(draw)}] if number % 4 == 0 else []
        for turn in range(draw.choice((1, 1, 2))):
            if turn:
                messages.append({"role": "assistant", "content": draw.choice(TEXTS)(draw)})
            messages.append({"role": "user", "content": draw.choice(TEXTS)(draw)})
        yield {"id": str(number), "messages": messages}


def main() -> None:
    """Write the corpus."""
    count, file = int(sys.argv[1]), Path(sys.argv[2])
    with file.open("w", encoding="utf-8") as stream:
        for chat in chats(count):
            stream.write(json.dumps(chat, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
