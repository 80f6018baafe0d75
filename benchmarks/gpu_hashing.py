"""How fast the weights on a CUDA device are hashed: a model's worth of bf16, in few tensors and in thousands.

Ratios within one run: the same bytes are also read once by a reduction of torch, which is about as fast as the
device's memory is. Aim on an H200: 0.8 TB/s in few tensors; BLAKE3's arithmetic allows 1.2 to 1.6 TB/s there, a
read takes 4.3 TB/s. Peak memory is what the pass allocates beside the tensors.

It has not run on a GPU yet: there was none.

    python benchmarks/gpu_hashing.py [GIGABYTES]     the default is 16
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from blake3 import blake3

from kvgate.rules.progress import silent
from kvgate.weights.device.contents import hash_contents
from kvgate.weights.device.memory import copy_in_order, host_bytes

ROUNDS = 5
THOUSANDS = 20_000


def seconds(work: Callable[[], object]) -> float:
    """Return the quickest of several runs, by the device's clock; the first one compiles and does not count."""
    work()
    taken = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return float(min(taken))


def shapes(gigabytes: float) -> dict[str, list[torch.Size]]:
    """Return sets of tensor shapes, each about ``gigabytes`` of bf16."""
    elements = int(gigabytes * 1e9) // 2
    return {
        "32 tensors": [torch.Size([elements // 32 // 4096, 4096])] * 32,
        f"{THOUSANDS:,} tensors": [torch.Size([elements // THOUSANDS // 512, 512])] * THOUSANDS,
        f"{THOUSANDS:,} tensors with ragged ends": [torch.Size([elements // THOUSANDS - 3])] * THOUSANDS,
        "one tensor": [torch.Size([elements])],
    }


def checked(tensors: list[torch.Tensor], hashes: list[bytes]) -> bool:
    """Say whether the first and the last tensor have the digest that the host computes."""
    host = torch.device("cpu")
    return all(
        blake3(host_bytes(copy_in_order(tensors[at], 0, tensors[at].nbytes, host)), max_threads=blake3.AUTO).digest()
        == hashes[at]
        for at in (0, -1)
    )


def measure(name: str, tensors: list[torch.Tensor]) -> bool:
    """Print a line about one set of tensors and say whether the digests are right."""
    size = sum(tensor.nbytes for tensor in tensors)
    right = checked(tensors, hash_contents(tensors, silent))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    ours = seconds(lambda: hash_contents(tensors, silent))
    extra = torch.cuda.max_memory_allocated() - before
    read = seconds(lambda: [tensor.view(torch.int16).amax() for tensor in tensors])
    print(
        f"{name:<36} {size / 1e9:5.1f} GB   {size / ours / 1e12:5.2f} TB/s   "
        f"read {size / read / 1e12:5.2f} TB/s, ratio {ours / read:5.2f}   "
        f"{extra / 2**20:6.0f} MiB beside   {'equal to the host' if right else 'WRONG DIGEST'}"
    )
    return right


def main() -> int:
    """Measure every set on the first device."""
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured")
        return 1
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    right = True
    for name, sizes in shapes(float(sys.argv[1]) if len(sys.argv) > 1 else 16).items():
        tensors = [torch.empty(size, dtype=torch.bfloat16, device="cuda").normal_() for size in sizes]
        right &= measure(name, tensors)
        transposed = [tensor.t() for tensor in tensors if tensor.dim() == 2]
        if name.startswith("32 ") and transposed:
            right &= measure(f"{name}, transposed", transposed)
        del tensors, transposed
        torch.cuda.empty_cache()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
