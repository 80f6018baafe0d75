"""How fast the weights on a CUDA device are hashed: a model's worth of bf16, in few tensors and in thousands.

    pip install '.[gpu]'
    python benchmarks/gpu_hashing.py                        16 GB: takes a minute on an H200, and 17 GB of its memory
    python benchmarks/gpu_hashing.py --gigabytes 64 --rounds 10
    TRITON_INTERPRET=1 python benchmarks/gpu_hashing.py --interpret     a few KB without a GPU: that it runs, no figures

Ratios within one run: the same bytes are also read once by a reduction of torch, which is about as fast as the
device's memory is. Aim on an H200: 0.8 TB/s in few tensors; BLAKE3's arithmetic allows 1.2 to 1.6 TB/s there, a
read takes 4.3 TB/s. For each set of tensors it prints

* the throughput of the whole pass by the device's clock: tables, chunks, joining, digests (the kernels alone are no
  slower);
* the time that the host was busy with it, which bounds thousands of small tensors;
* what the pass allocates at most beside the tensors;
* whether the digests of the first and the last tensor are those that the host computes from a copy.

The exit code is 1 where there is no device, or a digest is wrong. It has not run on a GPU yet: there was none.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from blake3 import blake3

from kvgate.rules.progress import silent
from kvgate.weights.device.contents import hash_contents
from kvgate.weights.device.memory import copy_in_order, host_bytes

AIM = 0.8  # TB/s


class Taken(NamedTuple):
    """Seconds of the quickest of several runs: by the device's clock, and of the host until it had handed all over."""

    device: float
    host: float


class Bench:
    """Hashes and measures on one device; in Triton's interpreter it only hashes."""

    def __init__(self, rounds: int, *, interpret: bool) -> None:
        self.rounds = rounds
        self.device = torch.device("cpu" if interpret else "cuda")
        self.interpret = interpret

    def hash(self, tensors: list[torch.Tensor]) -> list[bytes]:
        """Hash as the product does; on the CPU the kernels have to be asked for."""
        if not self.interpret:
            return hash_contents(tensors, silent)
        from kvgate.weights.device.launches import hash_resident

        return hash_resident(tensors, lambda _: None)

    def taken(self, work: Callable[[], object]) -> Taken:
        """Run it some times; the first one compiles and does not count."""
        work()
        best = Taken(float("inf"), float("inf"))
        for _ in range(self.rounds):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            started = time.perf_counter()
            begin.record()
            work()
            end.record()
            host = time.perf_counter() - started
            torch.cuda.synchronize()
            best = Taken(min(best.device, begin.elapsed_time(end) / 1e3), min(best.host, host))
        return best

    def beside(self, work: Callable[[], object]) -> int:
        """Return the most bytes that a run allocates beside what is there."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = int(torch.cuda.memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated()) - before

    def made(self, sizes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        """Return tensors of bf16 with random values."""
        return [torch.empty(size, dtype=torch.bfloat16, device=self.device).normal_() for size in sizes]


def shapes(total: int, thousands: int) -> dict[str, list[tuple[int, ...]]]:
    """Return sets of tensor shapes, each about ``total`` bytes of bf16."""
    elements = total // 2
    width = min(4096, max(1, elements // 32 // 8))
    narrow = min(512, max(1, elements // thousands // 8))
    return {
        "32 tensors": [(elements // 32 // width, width)] * 32,
        f"{thousands:,} tensors": [(elements // thousands // narrow, narrow)] * thousands,
        f"{thousands:,} with ragged ends": [(max(1, elements // thousands - 3),)] * thousands,
        "one tensor": [(elements,)],
    }


def right(tensors: list[torch.Tensor], hashes: list[bytes]) -> bool:
    """Say whether the first and the last tensor have the digest that the host computes."""
    host = torch.device("cpu")
    return len(hashes) == len(tensors) and all(
        blake3(host_bytes(copy_in_order(tensors[at], 0, tensors[at].nbytes, host)), max_threads=blake3.AUTO).digest()
        == hashes[at]
        for at in {0, len(tensors) - 1}
    )


def measure(bench: Bench, name: str, tensors: list[torch.Tensor], read: float) -> bool:
    """Print a line about one set of tensors and say whether the digests are right.

    Args:
        bench: what measures.
        name: what the set is called.
        tensors: the set.
        read: the bytes that one read takes in a second.
    """
    size = sum(tensor.nbytes for tensor in tensors)
    sound = right(tensors, bench.hash(tensors))
    verdict = "equal to the host" if sound else "WRONG DIGEST"
    if bench.interpret:
        print(f"{name:<28} {size:,} bytes  {verdict}")
        return sound
    extra = bench.beside(lambda: bench.hash(tensors))
    ours = bench.taken(lambda: bench.hash(tensors))
    print(
        f"{name:<28} {size / 1e9:6.2f} GB  {size / ours.device / 1e12:6.3f} TB/s  "
        f"{read * ours.device / size:6.2f} reads  host {ours.host * 1e3:7.1f} ms  "
        f"{extra / 2**20:6.0f} MiB beside  {verdict}"
    )
    return sound


def main() -> int:
    """Measure every set on the first device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=16.0, help="of each set of tensors")
    parser.add_argument("--thousands", type=int, default=20_000, help="how many the small tensors are")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--interpret", action="store_true", help="a few KB in Triton's interpreter: proof-reading")
    wanted = parser.parse_args()
    if wanted.interpret:
        if os.environ.get("TRITON_INTERPRET") != "1":
            parser.error("--interpret needs TRITON_INTERPRET=1 in the environment")
        total, thousands = 80_000, 5
        print("Triton's interpreter: the digests count, the figures do not")
    elif torch.cuda.is_available():
        total, thousands = int(wanted.gigabytes * 1e9), wanted.thousands
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, the quickest of {wanted.rounds} rounds")
    else:
        print("no CUDA device here: nothing was measured")
        return 1
    bench = Bench(wanted.rounds, interpret=wanted.interpret)
    read = 0.0
    if not wanted.interpret:
        whole = torch.zeros(total // 2, dtype=torch.int16, device=bench.device)
        read = whole.nbytes / bench.taken(whole.amax).device
        del whole
        print(f"one read by torch: {read / 1e12:.2f} TB/s; aim for 32 tensors of 16 GB on an H200: {AIM} TB/s")
    sound = True
    for name, sizes in shapes(total, thousands).items():
        tensors = bench.made(sizes)
        sound &= measure(bench, name, tensors, read)
        if name.startswith("32 "):
            sound &= measure(bench, f"{name}, transposed", [tensor.t() for tensor in tensors], read)
        del tensors
        if not wanted.interpret:
            torch.cuda.empty_cache()
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
