"""The snapshot script as one file, with the diagnostic corpus inside."""

from __future__ import annotations

import base64
import textwrap
import zlib
from importlib import resources

_EMPTY = 'CORPUS = ""\n'
_WIDTH = 110


def snapshot_script() -> str:
    """Return the Python source of a program that takes a snapshot with nothing but transformers beside it.

    The corpus is packed, because an editor or a terminal that the file passes through may change what a corpus is
    full of: control characters, marks of direction, kinds of white space.
    """
    source = (resources.files("kvgate.corpora.standalone") / "snapshot_script.py").read_text(encoding="utf-8")
    corpus = (resources.files("kvgate.corpora") / "conversations" / "diagnostic.jsonl").read_bytes()
    packed = base64.b64encode(zlib.compress(corpus, 9)).decode("ascii")
    lines = "".join(f'    "{line}"\n' for line in textwrap.wrap(packed, _WIDTH))
    before, found, after = source.partition(_EMPTY)
    if not found:
        raise AssertionError("the script has no place for the corpus")
    return f"{before}CORPUS = (\n{lines})\n{after}"
