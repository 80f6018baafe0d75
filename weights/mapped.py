"""Stretches of files as memory, where a file may be cut while it is read.

The kernel answers a touch of mapped bytes that are no longer there with SIGBUS, and SIGBUS ends a process; looking at
the size first leaves the time in between. Reading into a buffer instead costs a fifth of the hashing. So while files
are mapped here, the signal is caught: zeros take the place of what is gone, whoever touched it goes on, and whatever
was computed from it is refused.

Python hears of a signal in the main thread, while the thread that touched the bytes tries again and again. So
it works where the main thread waits (:meth:`Maps.wait`) for others that touch them without holding Python's lock, as
hashing does from a certain size on. In a program that hashes from another thread than the main one, a file that is cut
in that moment ends the process, as it does everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

_FIXED = 0x10  # MAP_FIXED, which Python's mmap does not name; the same on Linux and the BSDs
_FAILED = ctypes.c_void_p(-1).value
_LOOK = 0.1  # seconds between two looks for a signal

_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class _Stretch:
    def __init__(self, descriptor: int, begin: int, end: int) -> None:
        self.start = begin - begin % mmap.ALLOCATIONGRANULARITY
        self.length = end - self.start
        self.lost = False
        found = _map(None, self.length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, self.start)
        if found == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.address: int = found

    def lose(self) -> None:
        """Put zeros in its place."""
        self.lost = True
        how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
        _map(self.address, self.length, mmap.PROT_READ, how, -1, 0)


class Maps:
    """The stretches that are mapped at a time; a context manager, within which losing one ends nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stretches: set[_Stretch] = set()
        self._before: Any = None
        self._signals: dict[int, Any] = {}

    def __enter__(self) -> Maps:
        if threading.current_thread() is threading.main_thread():
            # Nothing written in Python: the signal comes again before a line has run, and would be answered within it.
            before = signal.signal(signal.SIGBUS, self._signals.__setitem__)
            self._before = signal.SIG_DFL if before is None else before  # None: not installed by Python
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGBUS, self._before)

    @contextlib.contextmanager
    def stretch(self, descriptor: int, begin: int, end: int) -> Iterator[memoryview]:
        """Give bytes ``begin`` to ``end`` of an open file, at least one, as memory.

        Raises:
            OSError: it cannot be mapped, or some of it was gone when it was touched.
        """
        stretch = _Stretch(descriptor, begin, end)
        with self._lock:
            self._stretches.add(stretch)
        try:
            memory = (ctypes.c_ubyte * stretch.length).from_address(stretch.address)
            with memoryview(memory).cast("B") as whole, whole[begin - stretch.start :] as view:
                yield view
        finally:
            with self._lock:  # before its place is given back: zeros must not be put over another's
                self._stretches.remove(stretch)
            _unmap(stretch.address, stretch.length)
        if stretch.lost:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def wait(self, futures: Sequence[Future[Any]]) -> None:
        """Wait for threads that read stretches, and let them lose what a signal was about."""
        while left := [future for future in futures if not future.done()]:
            wait(left, timeout=_LOOK)
            if self._signals:
                self._signals.clear()
                self._lose()

    def _lose(self) -> None:
        """Lose every stretch, because the signal does not say which one it is about."""
        with self._lock:
            for stretch in self._stretches:
                stretch.lose()
