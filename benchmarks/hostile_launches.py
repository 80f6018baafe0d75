"""Read generated hostile launch files, as many as one likes, and say what harm they did.

    python -m benchmarks.hostile_launches [COUNT] [FIRST] [EVERY]

Every file is read; every hundredth (or EVERY) that starts one server is also captured with the command, on a small
checkpoint, and checked against itself. Ends with 1 where a file did harm, and names it by its number.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.releases import Checkpoints
from tests.deployments.hostile_launch import CANARY, harm_of_the_command, make, read


def harm(number: int, folder: Path, model: Path, seen: Counter[str], *, command: bool) -> Iterator[str]:
    """Yield what one file did that it must not."""
    canary = folder / CANARY
    hostile = make(number, canary)
    try:
        facts, said = read(hostile)
    except AssertionError as error:
        yield str(error)
        return
    except Exception as error:
        yield f"{type(error).__name__}: {error}"
        return
    seen[facts.engine if facts is not None else "refused"] += 1
    if hostile.secret in said:
        yield "a credential was said"
    if command and facts is not None:
        seen["captured"] += 1
        yield from harm_of_the_command(hostile, model, folder / str(number), canary)[0]
    elif canary.exists():
        yield "a command of the file was run"
    canary.unlink(missing_ok=True)


def main() -> int:
    """Go through the files; return the exit code."""
    given = [int(value) for value in sys.argv[1:4]]
    count, first, every = (*given, *(1_000, 0, 100)[len(given) :])
    seen: Counter[str] = Counter()
    slowest, harmful = (0.0, 0), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = Checkpoints(folder)("base")
        for number in range(first, first + count):
            started = time.process_time()
            for what in harm(number, folder, model, seen, command=number % every == 0):
                harmful += 1
                print(f"{number}: {what}")
            slowest = max(slowest, (time.process_time() - started, number))
    print(f"{count:,} files: {dict(seen)}; slowest {slowest[0]:.1f} s (number {slowest[1]}); harmful {harmful}")
    return 1 if harmful else 0


if __name__ == "__main__":
    raise SystemExit(main())
