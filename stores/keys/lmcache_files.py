"""How LMCache makes a file's name of a key: in every store of files that is read again by another process.

Source: lmcache 0.5.6 wheel, v1/storage_backend/connector/fs_connector.py and v1/distributed/l2_adapters/
fs_l2_adapter.py. A model whose own name holds ``-SEP-`` cannot be told from one with a slash there.
"""

from __future__ import annotations

FILE = ".data"
_SLASH = "-SEP-"


def to_file(key: str) -> str:
    """Return the name of the file that holds a key's entry."""
    return key.replace("/", _SLASH) + FILE


def from_file(name: str) -> str | None:
    """Return the key of a file's name; ``None`` for one in a folder, where LMCache puts none."""
    return None if "/" in name else name.removesuffix(FILE).replace(_SLASH, "/")
