"""Comparing two tensor maps of 20,000 tensors against parsing both files as JSON, in one run.

Run: ``python benchmarks/tensor_maps.py``. The product side reads, verifies sha256, derives every tensor's
digest and the root, and compares; the other side only calls ``json.loads``. Aim: at most 3 times that.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kvgate.weights.digest import hash_tensor, root_digest
from kvgate.weights.fingerprint import Fingerprint
from kvgate.weights.tensor_map import compare_maps, read_map, write_map

TENSORS = 20_000
ROUNDS = 7


def best(work: Callable[[], object]) -> float:
    """Return the fastest of several runs in seconds: what is slower is the machine's doing."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def write(path: Path, salt: int) -> str:
    """Write a map of tensors whose every hundredth differs by ``salt``."""
    entries = []
    for number in range(TENSORS):
        name = f"model.layers.{number // 200:03}.mlp.experts.{number % 200}.down_proj.weight"
        data = hashlib.sha256(f"{number}{salt if number % 100 == 0 else ''}".encode()).digest()
        entries.append(hash_tensor(name, "BF16", (4, 4), data))
    entries.sort()
    root = root_digest(entries)
    return write_map(Fingerprint(root, root, "1/all-tensors", TENSORS, 0, tuple(entries)), path)


def main() -> None:
    """Print the times and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old.jsonl"), Path(folder, "new.jsonl")
        digests = write(old, 0), write(new, 1)

        def compare() -> None:
            difference = compare_maps(read_map(old, digests[0]), read_map(new, digests[1]))
            assert len(difference.changed) == TENSORS // 100

        def by_line() -> None:
            for path in (old, new):
                for line in path.read_bytes().splitlines():
                    json.loads(line)

        whole = [b"[" + b",".join(path.read_bytes().splitlines()) + b"]" for path in (old, new)]
        ours, lines = best(compare), best(by_line)
        text = best(lambda: [json.loads(document) for document in whole])
    print(f"read, verify and compare two maps of {TENSORS:,} tensors: {ours * 1e3:.0f} ms")
    print(f"json.loads line by line: {lines * 1e3:.0f} ms, ratio {ours / lines:.2f} (aim: at most 3)")
    print(f"json.loads of each file as one array: {text * 1e3:.0f} ms, ratio {ours / text:.2f}")


if __name__ == "__main__":
    main()
