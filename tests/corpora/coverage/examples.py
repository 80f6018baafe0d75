"""Chat templates in the manner of real ones, written for these tests: one file each in ``examples/``."""

from __future__ import annotations

from pathlib import Path

TEMPLATES = {
    file.stem: file.read_text(encoding="utf-8").removesuffix("\n")
    for file in sorted((Path(__file__).parent / "examples").glob("*.jinja"))
}
CHATML, THINKING = TEMPLATES["chatml"], TEMPLATES["thinking"]
ONE_LINE, HEADERS = TEMPLATES["one-line"], TEMPLATES["headers"]
