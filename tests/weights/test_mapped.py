"""A file that is cut while it is hashed is refused, and the process lives: the signal is answered, not feared."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blake3 import blake3

from kvgate.rules.errors import InputError
from kvgate.weights import hashing
from kvgate.weights.fingerprint import fingerprint_checkpoint
from kvgate.weights.mapped import Maps

from .builders import Tensor, encode

SIZE = 2 << 20


@pytest.mark.parametrize("tensors", [1, 100, 512])
def test_a_file_cut_between_two_looks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tensors: int) -> None:
    monkeypatch.setattr(hashing, "_JOB", SIZE // 4)
    monkeypatch.setattr(hashing, "_WINDOW", SIZE // 4)
    path = tmp_path / "model.safetensors"
    each = SIZE // tensors
    path.write_bytes(encode({f"t{number}": Tensor("U8", (each,), bytes(each)) for number in range(tensors)}))
    monkeypatch.setattr(hashing._Run, "_look", lambda *_: None)  # as if every look came right before the cut
    before = signal.getsignal(signal.SIGBUS)

    def progress(stage: str, done: int, total: int | None, unit: str) -> None:  # noqa: ARG001
        os.truncate(path, 10_000)

    with pytest.raises(InputError, match="cannot be read: "):
        fingerprint_checkpoint(tmp_path, None, progress)
    assert signal.getsignal(signal.SIGBUS) == before


def test_what_is_lost_is_said_of_every_stretch_of_that_time(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    with path.open("rb") as file, Maps() as maps, ThreadPoolExecutor(1) as pool:

        def read(begin: int) -> bytes:
            with maps.stretch(file.fileno(), begin, 100_000) as view:
                os.truncate(path, 0)
                return blake3(view).digest()

        future = pool.submit(read, 50_001)
        maps.wait([future])
        with pytest.raises(OSError, match="Input/output error"):
            future.result()


def test_a_stretch_is_what_lies_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(250)) * 100)
    with path.open("rb") as file, Maps() as maps, maps.stretch(file.fileno(), 4099, 9001) as view:
        assert bytes(view) == (bytes(range(250)) * 100)[4099:9001]


def test_what_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="Permission denied"):
        Maps().stretch(file.fileno(), 0, 10).__enter__()
