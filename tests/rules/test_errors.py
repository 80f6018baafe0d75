"""An error is one line for a person, whatever an input put into the names in it."""

from __future__ import annotations

import pytest

from kvgate.rules.errors import InputError, KvgateError, UsageError


@pytest.mark.parametrize("kind", [KvgateError, InputError, UsageError])
@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\x1b[2Jb", "a\x00b", "a\u2028b", "a\x85b"])
def test_what_breaks_a_line_is_escaped(kind: type[KvgateError], text: str) -> None:
    error = kind(f"says {text}", where=f"file {text}", hint=f"see {text}")
    assert len(str(error).splitlines()) == 1
    assert str(error).isprintable()
    assert all("a\\" in part for part in (error.message, error.where or "", error.hint or "", error.args[0]))


def test_a_name_as_long_as_its_input_is_cut_in_the_middle() -> None:
    error = InputError("x" * 10_000, where="/f" + "y" * 10_000 + ":3", hint="z")
    assert len(str(error)) < 1_500
    assert (error.where or "").startswith("/fy")
    assert (error.where or "").endswith("y:3")
    assert str(InputError("ö is not a number", where="f:1", hint="write 1")) == "f:1: ö is not a number (write 1)"
