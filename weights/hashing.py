"""Hashing the tensors of files: every core, bounded memory, and no digest of a file that moved meanwhile.

Tensors are hashed where they lie, through mmap. Small neighbours share a job, because a thread costs more
than a small tensor does; a large tensor is a job of its own that BLAKE3 itself spreads over the cores. Python runs
on one core at a time: so a job does no more for a tensor than to hash its bytes, and what follows from the hashes is
computed job by job, while the next ones are hashed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from blake3 import blake3

from kvgate.rules.errors import InputError
from kvgate.rules.progress import Progress
from kvgate.weights.digest import TensorEntry, tensor_entries
from kvgate.weights.files import open_stamped, read_exactly, stamp_of
from kvgate.weights.kept_hashes import KeptHashes
from kvgate.weights.mapped import Maps
from kvgate.weights.tensor_file import TensorFile, TensorRecord

STAGE = "hashing weights"
_JOB = 16 << 20  # bytes; small tensors are gathered up to this, larger ones are hashed by several threads
# BLAKE3 keeps Python's lock for less than 2 KiB (blake3 1.0.11). Whoever touches mapped bytes must not hold it
# (:mod:`kvgate.weights.mapped`), so what is small is read; a multiple, in case that bound moves.
_MAPPED = 16 << 10
_WINDOW = 32 << 20  # bytes between two looks at the file: what progress moves by, too


@dataclass(frozen=True)
class _Job:
    file: TensorFile
    tensors: tuple[TensorRecord, ...]  # neighbours


def hash_files(files: Iterable[TensorFile], progress: Progress, kept: KeptHashes | None = None) -> list[TensorEntry]:
    """Hash every tensor of ``files`` and return their entries in any order.

    Args:
        files: files whose headers were read; no file may change meanwhile.
        progress: counts bytes; it is called from the hashing threads, one call at a time.
        kept: hashes of files that need not be read where they did not change; each file is added when its last
            tensor is hashed, so that an interrupted run goes on from there.

    Raises:
        InputError: when a file cannot be read, or is not what it was when its header was read; when ``kept``
            contradicts itself or cannot be written.
    """
    files = tuple(files)
    entries: list[TensorEntry] = []
    unread = []
    for file in files:
        known = kept.entries(file) if kept is not None else None
        if known is None:
            unread.append(file)
        else:
            entries += known
    if kept is not None and unread:
        kept.require_writable()
    maps = Maps()
    run = _Run(progress, sum(tensor.end - tensor.begin for file in unread for tensor in file.tensors), maps)
    with maps, ThreadPoolExecutor(_cores()) as pool:
        submitted = [(file, [(job, pool.submit(run.hash_job, job)) for job in _jobs(file)]) for file in unread]
        try:
            for file, jobs in submitted:
                found: list[TensorEntry] = []
                for job, future in jobs:
                    maps.wait([future])
                    found += tensor_entries(job.tensors, future.result())
                entries += found
                if kept is not None:
                    _look_again(file)
                    kept.keep(file, found)
        except BaseException:
            run.stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            maps.wait([future for _, jobs in submitted for _, future in jobs])
            raise
        finally:
            if kept is not None:
                kept.write()
    for file in files:  # a file renamed over after its last job was hashed is a different checkpoint by now
        _look_again(file)
    return entries


def _cores() -> int:
    """Return the cores this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _jobs(file: TensorFile) -> Iterator[_Job]:
    gathered: list[TensorRecord] = []
    for tensor in file.tensors:
        if gathered and tensor.end - gathered[0].begin > _JOB:
            yield _Job(file, tuple(gathered))
            gathered = []
        gathered.append(tensor)
    if gathered:
        yield _Job(file, tuple(gathered))


def _look_again(file: TensorFile) -> None:
    descriptor, stamp = open_stamped(file.path)
    os.close(descriptor)
    if stamp != file.stamp:
        raise _changed(file)


def _changed(file: TensorFile) -> InputError:
    return InputError(
        "changed while it was read", where=str(file.path), hint="wait until the copy or download has finished"
    )


class _Run:
    """What the jobs of one call share."""

    def __init__(self, progress: Progress, total: int, maps: Maps) -> None:
        self.stopped = threading.Event()
        self._progress = progress
        self._total = total
        self._maps = maps
        self._done = 0
        self._lock = threading.Lock()

    def hash_job(self, job: _Job) -> list[bytes]:
        """Return the 32-byte BLAKE3 of the content of each tensor of a job."""
        begin, end = job.tensors[0].begin, job.tensors[-1].end
        descriptor, _ = open_stamped(job.file.path)
        try:
            self._look(job.file, descriptor)
            if begin == end:  # nothing cannot be mapped
                return [blake3().digest() for _ in job.tensors]
            with self._maps.stretch(descriptor, begin, end) as view:
                if end - begin > _JOB:
                    contents = [self._hash_large(job, descriptor, view)]
                else:
                    contents = [
                        blake3(
                            view[tensor.begin - begin : tensor.end - begin]
                            if tensor.end - tensor.begin >= _MAPPED
                            else read_exactly(descriptor, tensor.begin, tensor.end)
                        ).digest()
                        for tensor in job.tensors
                    ]
                    self._report(end - begin)
                self._look(job.file, descriptor)
        except OSError as error:
            raise InputError(f"cannot be read: {error}", where=str(job.file.path)) from error
        finally:
            os.close(descriptor)
        return contents

    def _hash_large(self, job: _Job, descriptor: int, view: memoryview) -> bytes:
        """Hash the one tensor of a job that is larger than jobs of several are."""
        (tensor,) = job.tensors
        hasher = blake3(max_threads=blake3.AUTO)
        for at in range(tensor.begin, tensor.end, _WINDOW):
            self._look(job.file, descriptor)
            upto = min(at + _WINDOW, tensor.end)
            with view[at - tensor.begin : upto - tensor.begin] as window:
                hasher.update(window)
            self._report(upto - at)
        return hasher.digest()

    def _look(self, file: TensorFile, descriptor: int) -> None:
        if self.stopped.is_set():
            raise InputError("stopped", where=str(file.path))
        if stamp_of(os.fstat(descriptor)) != file.stamp:
            raise _changed(file)

    def _report(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._progress(STAGE, self._done, self._total, "bytes")
