"""Runs the kernels in Triton's interpreter, as a process of its own (the mode is chosen when Triton is imported).

Prints a JSON object: what was hashed → [the digest from the kernels, the digest it must have].
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from blake3 import blake3
from reference import chunk, parent  # type: ignore[import-not-found]  # beside this script

from kvgate.weights.device.kernels import hash_chunks, join_pairs
from kvgate.weights.device.launches import hash_resident
from kvgate.weights.device.tree import Limits

found: dict[str, tuple[str, str]] = {}


def pattern(size: int, salt: int = 0) -> torch.Tensor:
    """Return bytes that are others in every block."""
    return ((torch.arange(size, dtype=torch.int64) * 2654435761 + salt) >> 7).to(torch.uint8)


def raw(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes in C order by another way than the product's."""
    if not tensor.is_contiguous() and tensor.element_size() == 1:
        tensor = tensor.view(torch.uint8)  # torch cannot copy all of its types
    plain = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    data: bytes = plain.view(torch.uint8).numpy().tobytes()
    return data


def add(group: str, tensors: dict[str, torch.Tensor], limits: Limits) -> None:
    """Hash all of a group in one call."""
    told: list[int] = []
    digests = hash_resident(list(tensors.values()), told.append, limits)
    for (name, tensor), digest in zip(tensors.items(), digests, strict=True):
        found[f"{group}: {name}"] = (digest.hex(), blake3(raw(tensor)).hexdigest())
    found[f"{group}: bytes told"] = (str(sum(told)), str(sum(tensor.nbytes for tensor in tensors.values())))


def sizes() -> dict[str, torch.Tensor]:
    """Return the edges of blocks, chunks and subtrees."""
    edges = {0, 1, 63, 64, 65, 1023, 1024, 1025, 3072, 5 * 1024, 7 * 1024 + 1, 1 << 20}
    edges |= {(1 << power) + by for power in range(11, 16) for by in (-1, 0, 1)}
    # The largest first: only programs whose chunks are all whole take the fast path.
    return {f"{size} bytes": pattern(size, size) for size in sorted(edges, reverse=True)}


def dtypes() -> dict[str, torch.Tensor]:
    """Return 96 bytes of every type that torch has: the quantized ones keep their values elsewhere."""
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    plain = [dtype for dtype in every if not str(dtype).startswith("torch.q")]
    return {str(dtype): pattern(96, 5).view(dtype) for dtype in sorted(plain, key=str)}


def strides() -> dict[str, torch.Tensor]:
    """Return tensors that do not lie in one run of aligned bytes."""
    words = pattern(40 * 24 * 8).view(torch.int16)
    matrix = words[: 40 * 24].view(torch.bfloat16).view(40, 24)
    cube = words[:1000].view(10, 10, 10)
    pairs = pattern(8 * 60).view(torch.float32).nan_to_num().view(torch.complex64).view(6, 10)
    wide = torch.view_as_complex(torch.arange(120, dtype=torch.float64).view(6, 10, 2))
    return {
        "transposed": matrix.t(),
        "transposed, 4 KiB rows": pattern(5 * 4096).view(torch.int16).view(5, 2048).t(),
        "every second column": matrix[:, ::2],
        "a column": matrix[:, 3],
        "permuted": cube.permute(2, 0, 1),
        "a window": cube[2:5, 1:9, 3:4],
        "expanded": matrix[:1].expand(90, 24),
        "expanded scalar": matrix[0, 0].expand(3, 700),
        "transposed fp8": pattern(60).view(torch.float8_e4m3fn).view(6, 10).t(),
        "transposed fp4": pattern(60).view(torch.float4_e2m1fn_x2).view(6, 10).t(),
        "transposed complex": pairs.t(),
        "transposed complex128": wide.t(),
        "conjugated": pairs.conj(),
        "imaginary part of conjugated": pairs.conj().imag,
        "empty, transposed": matrix[:0].t(),
        "scalar": matrix[3, 5],
        **{f"{by} bytes into the memory": pattern(3000 + by)[by:] for by in (1, 2, 3, 4, 8, 15)},
        "2 bytes into the memory, bf16": words[1:2001].view(torch.bfloat16),
    }


def vectors() -> dict[str, torch.Tensor]:
    """Return the tensors of the repository's vectors."""
    tensors = json.loads((Path(__file__).parent / "vectors.json").read_text())["tensors"]
    spelled = {tensor["content"]: tensor["bytes"] for tensor in tensors}
    return {
        content: torch.tensor(
            [i % 251 for i in range(data)] if isinstance(data, int) else list(bytes.fromhex(data)), dtype=torch.uint8
        )
        for content, data in spelled.items()
    }


def node(chains: torch.Tensor) -> str:
    """Return the first slot's bytes in hex."""
    return bytes(chains[0].view(torch.uint8).tolist()).hex()


def far() -> None:
    """Hash a chunk and join a pair 2**43 bytes into a segment, whose first slot is that far before this memory."""
    index, base = 1 << 33, (1 << 32) - 5
    # Words, so that the memory is aligned as a device's: the fast path is wanted, too.
    for name, size in (("whole chunk", 1024), ("ragged chunk", 1000)):
        data = pattern(size, 9)
        begin = data.data_ptr() - index * 1024
        rows = [[-index, 1], [begin, 0], [index * 1024 + size, 0], [base, 0], [1, 0]]
        chains = torch.zeros((1, 8), dtype=torch.int32)
        hash_chunks[(1,)](torch.tensor(rows), 2, 1, 1, chains, LANES=1)
        found[f"far: {name}"] = (node(chains), chunk(raw(data), base + index).hex())
    pair = pattern(64, 11).view(torch.int32).view(2, 8).clone()
    expected = parent(raw(pair[0]), raw(pair[1])).hex()
    join_pairs[(1,)](torch.tensor([[-index, 2], [0, 0], [0, 0], [0, 0], [1, 0]]), 2, 1, 0, 1 + index, pair, LANES=1)
    found["far: pair"] = (node(pair), expected)


# A program of the interpreter takes about a second, however many lanes it has: few launches, wide ones.
add("one launch", {**sizes(), **dtypes(), **strides(), **vectors()}, Limits(lanes=1024))
# The same trees from subtrees of 16 chunks, in several batches.
narrow = Limits(piece=16, batch=256, staging=32 * 1024, lanes=256)
some = {f"{size} bytes": pattern(size, 3) for size in (131073, 65536, 40000, 17 * 1024, 1024, 1, 0)}
add("subtrees", {**some, "transposed": pattern(24000).view(torch.int32).view(60, 100).t()}, narrow)
far()
print(json.dumps(found))
