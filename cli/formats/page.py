"""A page of text of a given width: indented paragraphs and lists, coloured or not, without trailing blanks."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from kvgate.cli.plain import harmless_line


class Page:
    """Collects lines; colour is decoration only, every word is there without it.

    Args:
        width: columns; long words are folded, so that no line is ever longer.
        color: whether ANSI colours may be used.

    """

    def __init__(self, width: int, *, color: bool) -> None:
        self.width = max(width, 40)
        self._lines: list[Text] = []
        self._console = Console(
            file=io.StringIO(),
            width=self.width,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def gap(self) -> None:
        """Leave one line empty."""
        if self._lines and self._lines[-1].plain:
            self._lines.append(Text(""))

    def heading(self, text: str) -> None:
        """Start a section."""
        self.gap()
        self.say(text, style="bold")

    def say(self, text: str, *, indent: int = 0, hang: int = 0, style: str = "") -> None:
        """Add a paragraph.

        Args:
            text: one line of any length.
            indent: blanks before each of its lines.
            hang: further blanks before all lines but the first.
            style: a Rich style.

        """
        self.parts([(text, style)], indent=indent, hang=hang)

    def parts(self, parts: list[tuple[str, str]], *, indent: int = 0, hang: int = 0) -> None:
        """Add a paragraph of differently styled parts."""
        text = Text.assemble(*parts, end="")
        # Wrapping a text that begins with the blanks of its continuation lines keeps every line inside the width.
        room = self.width - indent - hang
        first, rest = _first_line(text, self._console, self.width - indent)
        self._lines.append(Text(" " * indent) + first)
        for line in rest.wrap(self._console, room) if rest.plain else ():
            line.rstrip()
            self._lines.append(Text(" " * (indent + hang)) + line)

    def whole(self, text: str, *, indent: int = 0) -> None:
        """Add one line that is to be copied: it is never folded, whatever the width."""
        self._lines.append(Text(" " * indent + text))

    def row(self, parts: list[tuple[str, str]], *, indent: int = 0) -> None:
        """Add one line of a table, whose cells were made to fit: it is never folded."""
        line = Text(" " * indent) + Text.assemble(*parts, end="")
        line.rstrip()
        self._lines.append(line)

    def text(self) -> str:
        """Return the page."""
        for line in self._lines:
            self._console.print(line, soft_wrap=True)
        output = self._console.file
        assert isinstance(output, io.StringIO)  # noqa: S101 - made in the constructor
        return "".join(map(harmless_line, output.getvalue().splitlines(keepends=True)))


def _first_line(text: Text, console: Console, width: int) -> tuple[Text, Text]:
    lines = text.wrap(console, width)
    if len(lines) <= 1:
        return text, Text("")
    first = lines[0]
    cut = len(first.plain)
    first.rstrip()
    rest = text[cut:]
    while rest.plain[:1] == " ":
        rest = rest[1:]
    return first, rest
