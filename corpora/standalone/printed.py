"""The snapshot script as one file, with the diagnostic corpus and what it shares with kvgate inside."""

from __future__ import annotations

import base64
import textwrap
import zlib
from importlib import resources

CARRIED = (
    "kvgate.rules.errors",
    "kvgate.corpora.templates.syntax",
    "kvgate.corpora.tokenizers.effective",
    "kvgate.corpora.coverage.tree",
    "kvgate.corpora.coverage.wording",
    "kvgate.corpora.coverage.covered",
    "kvgate.corpora.coverage.detection",
    "kvgate.corpora.coverage.recording",
    "kvgate.corpora.divergence.beginning",
    "kvgate.corpora.divergence.stability",
)
"""Modules that the script imports, with all that they import of kvgate. They need the standard library and jinja2."""

_CORPUS = 'CORPUS = ""\n'
_MODULES = "CARRIED: dict[str, str] = {}\n"
_WIDTH = 110


def snapshot_script() -> str:
    """Return the Python source of a program that takes a snapshot with nothing but transformers beside it.

    The corpus is packed, because an editor or a terminal that the file passes through may change what a corpus is
    full of: control characters, marks of direction, kinds of white space. The modules stand there to be read.
    """
    corpus = (resources.files("kvgate.corpora.conversations") / "diagnostic.jsonl").read_bytes()
    packed = base64.b64encode(zlib.compress(corpus, 9)).decode("ascii")
    lines = "".join(f'    "{line}"\n' for line in textwrap.wrap(packed, _WIDTH))
    modules = "".join(f"CARRIED[{name!r}] = r'''\\\n{_source(name)}'''\n\n" for name in CARRIED)
    script = _source("kvgate.corpora.standalone.snapshot_script")
    for place, filled in ((_CORPUS, f"CORPUS = (\n{lines})\n"), (_MODULES, f"{_MODULES}\n{modules}")):
        if script.count(place) != 1:
            raise AssertionError(f"the script has no place for {place.partition(' ')[0]}")
        script = script.replace(place, filled)
    return script


def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    source = (resources.files(package) / f"{name}.py").read_text(encoding="utf-8")
    if "'''" in source:
        raise AssertionError(f"{module} cannot be quoted")
    return source
