"""Hashing a checkpoint against hashing its raw files, and against model-signing, in one run on files in page cache.

    pip install model-signing
    python benchmarks/hashing.py --bytes 4G [--rounds 5] [--folder DIR]

The yardstick is ``blake3`` with mmap over the whole files and the same threads. Aims, at 4 GB: the hashing phase takes
at most 1.1 times that; at most a third of model-signing's default through its Python API (where it is installed; the
whole commands are shown beside); 20,000 small tensors take at most 1.3 times the same bytes in 20; the command needs
less than 300 MB of anonymous memory. The contestants are interleaved, and the quickest round of each counts; the ratio
for small tensors is shown by neighbouring runs, too (the median), and by processor time: on a busy machine threads that
need the interpreter are kept waiting. Beside 4 GB in page cache twice it takes a minute.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from blake3 import blake3

from kvgate.rules.progress import silent
from kvgate.weights.checkpoint import open_checkpoint
from kvgate.weights.fingerprint import fingerprint_checkpoint
from kvgate.weights.hashing import hash_files

FILES = 4
FEW, MANY = 20, 20_000
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
THREADS = len(os.sched_getaffinity(0))
KVGATE = [sys.executable, "-c", "from kvgate.cli.main import main; main()", "fingerprint", "-q"]


def size(text: str) -> int:
    """Return the bytes that ``512M`` means."""
    unit = UNITS.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def write(folder: Path, total: int, tensors: int) -> Path:
    """Write ``total`` bytes in ``tensors`` tensors of equal size as :data:`FILES` safetensors files."""
    folder.mkdir()
    each = total // tensors // 2 * 2
    for file in range(FILES):
        names = [f"model.layers.{n // 200:03}.mlp.experts.{n % 200:03}.weight" for n in range(file, tensors, FILES)]
        header = {
            name: {"dtype": "BF16", "shape": [each // 2], "data_offsets": [at * each, (at + 1) * each]}
            for at, name in enumerate(names)
        }
        text = json.dumps(header).encode()
        with (folder / f"model-{file}.safetensors").open("wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            left, block = each * len(names), os.urandom(16 << 20)
            while left:
                left -= stream.write(block[:left])
    return folder


def raw(folder: Path) -> None:
    """Hash the files whole, as b3sum does."""
    for path in sorted(folder.iterdir()):
        blake3(max_threads=THREADS).update_mmap(path).digest()


def run(command: list[str]) -> None:
    """Run a command and drop what it says."""
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


class Times(NamedTuple):
    """Seconds that the runs of one contestant took, and those of the processor, in the order of the rounds."""

    wall: list[float]
    processor: list[float]


def measured(rounds: int, contestants: Mapping[str, Callable[[], object]]) -> dict[str, Times]:
    """Return the times of several interleaved runs of each."""
    times = {name: Times([], []) for name in contestants}
    gc.collect()
    gc.freeze()  # what was imported for other contestants is not kvgate's to look through
    for _ in range(rounds):
        for name, work in contestants.items():
            begin, processor = time.perf_counter(), time.process_time()
            work()
            times[name].wall.append(time.perf_counter() - begin)
            times[name].processor.append(time.process_time() - processor)
    return times


def anonymous(command: list[str]) -> int:
    """Return the most anonymous memory in bytes that a command's process was seen to have."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = max(peak, *(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon")), 0)
        time.sleep(0.002)
    return peak


def signing(folder: Path) -> dict[str, Callable[[], object]]:
    """Return model-signing's contestants: its hashing through the API, and its whole command."""
    if importlib.util.find_spec("model_signing") is None:
        print("model-signing is not installed: not compared")
        return {}
    hashing = importlib.import_module("model_signing.hashing")
    key, signature = folder.parent / "key.pem", folder.parent / "signature"
    run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)])
    command = [sys.executable, "-m", "model_signing", "sign", "key", str(folder), "--private_key", str(key)]
    return {
        "model-signing's hashing": lambda: hashing.Config().hash(folder),
        "command: model_signing sign key": lambda: run([*command, "--signature", str(signature)]),
    }


def main() -> None:
    """Print the times and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="512M", help="of one checkpoint; two are written")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where they are written, and removed again")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=wanted.folder) as scratch:
        few = write(Path(scratch, "few"), size(wanted.bytes), FEW)
        many = write(Path(scratch, "many"), size(wanted.bytes), MANY)
        found = measured(
            wanted.rounds,
            {
                "blake3 over the raw files": lambda: raw(few),
                "the hashing phase": lambda: hash_files(open_checkpoint(few), silent),
                f"fingerprint of {FEW} tensors": lambda: fingerprint_checkpoint(few, None),
                f"fingerprint of {MANY:,} tensors": lambda: fingerprint_checkpoint(many, None),
                "command: kvgate fingerprint": lambda: run([*KVGATE, str(few)]),
                **signing(few),
            },
        )
        memory = anonymous([*KVGATE, str(many)])
    raw_time = min(found["blake3 over the raw files"].wall)
    print(f"{size(wanted.bytes):,} bytes in {FILES} files, {THREADS} threads")
    for name, times in found.items():
        seconds = min(times.wall)
        print(f"{name:36} {seconds:7.3f} s {size(wanted.bytes) / seconds / 1e9:6.2f} GB/s {seconds / raw_time:6.2f} x")
    slow, quick = found[f"fingerprint of {MANY:,} tensors"], found[f"fingerprint of {FEW} tensors"]
    pairs = median(a / b for a, b in zip(slow.wall, quick.wall, strict=True))
    wall, processor = min(slow.wall) / min(quick.wall), min(slow.processor) / min(quick.processor)
    print(
        f"{MANY:,} tensors against {FEW}: {wall:.2f}, of neighbouring runs {pairs:.2f}, "
        f"in processor time {processor:.2f} (aim: at most 1.3)"
    )
    phase = min(found["the hashing phase"].wall)
    print(f"hashing phase against raw files: {phase / raw_time:.2f} (aim: at most 1.1)")
    if (other := found.get("model-signing's hashing")) is not None:
        print(f"model-signing against hashing phase: {min(other.wall) / phase:.2f} (aim: at least 3)")
    print(f"anonymous memory of the command at {MANY:,} tensors: {memory / 1e6:.0f} MB (aim: under 300)")


if __name__ == "__main__":
    main()
