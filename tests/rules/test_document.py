"""Parsing what people hand in: every class of bad input is one clear line with file, line and path, at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgate.rules.document import MAX_BYTES, TwoWays, parse_document, parse_foreign_documents, parse_json
from kvgate.rules.errors import InputError


def refused(text: str | bytes, source: str = "m.yaml") -> InputError:
    with pytest.raises(InputError) as caught:
        parse_document(text.encode() if isinstance(text, str) else text, source)
    error = caught.value
    assert "\n" not in str(error)
    assert len(str(error)) < 1000
    return error


def attempt(data: bytes) -> tuple[Any, dict[tuple[str, ...], int]] | InputError:
    """Parse, or return the refusal: anything else that is raised is a failure."""
    try:
        return parse_document(data, "m.yaml")
    except InputError as error:
        return error


def value(text: str) -> Any:
    return parse_document(text.encode(), "m.yaml")[0]


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "m.yaml:3", "the key a stands twice (first in line 1)"),
        ("x:\n  a: 1\n  a: 3\n", "m.yaml:3", "the key x.a stands twice (first in line 2)"),
        ("x: {a: 1, 'a': 2}\n", "m.yaml:1", "the key x.a stands twice (first in line 1)"),
        ('{"a": 1,\n "a": 2}', "m.yaml", "the key 'a' stands twice in one object"),
        ("a: [1, 2\n", "m.yaml:2", "not valid YAML: did not find expected ',' or ']'"),
        ("a: 'b\n", "m.yaml:2", "not valid YAML: found unexpected end of stream"),
        ("a:\n\tb: 1\n", "m.yaml:2", "not valid YAML: found character that cannot start any token"),
        ("a: b: c\n", "m.yaml:1", "not valid YAML: mapping values are not allowed in this context"),
        ("a: 1\n---\nb: 2\n", "m.yaml:2", "holds a second document"),
        ("a: &x [1]\nb: *x\n", "m.yaml:1", "anchors and aliases are not allowed"),
        ("a: *x\n", "m.yaml:1", "anchors and aliases are not allowed"),
        ("a: !!python/object/apply:os.system [ls]\n", "m.yaml:1",
         "the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed"),
        ("a: !!str 010\n", "m.yaml:1", "the tag 'tag:yaml.org,2002:str' is not allowed"),
        ("a: !x 1\n", "m.yaml:1", "the tag '!x' is not allowed"),
        ("? [a]\n: 1\n", "m.yaml:1", "a mapping key must be a plain string"),
        ("a: .nan\n", "m.yaml:1", "a: .nan is not a number kvgate can compare"),
        ("a: [1, -.inf]\n", "m.yaml:1", "a.1: -.inf is not a number kvgate can compare"),
        ("a: 1e999\n", "m.yaml:1", "a: 1e999 is too large for a number"),
        ('{"a": NaN}', "m.yaml", "NaN is not a JSON number"),
        ('{"a": -Infinity}', "m.yaml", "-Infinity is not a JSON number"),
        ("a: Infinity", "m.yaml:1", "a: Infinity is not a number kvgate can compare"),
        ("a: NaN", "m.yaml:1", "a: NaN is not a number kvgate can compare"),
        ("NO: 1", "m.yaml:1", "the key NO is read differently by different YAML tools"),
        ("a:\n  <<: {b: 1}", "m.yaml:2", "the key a.<< is read differently by different YAML tools"),
        ('{"a": 1e999}', "m.yaml", "1e999 is too large for a number"),
        ('{"a": 1,}', "m.yaml:1", "not valid JSON: Illegal trailing comma before end of object"),
        ('{"a":\n1]', "m.yaml:2", "not valid JSON: Expecting ',' delimiter"),
        ('{"a": "\\ud800"}', "m.yaml", "holds half a surrogate pair, which is no character"),
        ('{"\\udfff": 1}', "m.yaml", "holds half a surrogate pair, which is no character"),
        ("", "m.yaml", "is empty"),
        ("# only a comment\n", "m.yaml", "is empty"),
        ("a: \x00", "m.yaml", "holds a NUL byte"),
        ("a: \x07\n", "m.yaml", "not valid YAML: control characters are not allowed"),
    ],
    ids=lambda item: repr(item)[:40],
)  # fmt: skip
def test_refused(text: str, where: str, message: str) -> None:
    error = refused(text)
    # Python's json words a trailing comma in its own way from version to version.
    assert error.where == where
    assert error.message == message or (text == '{"a": 1,}' and error.message.startswith("not valid JSON: "))


@pytest.mark.parametrize(
    "scalar",
    ["010", "00", "-012", "08", "0x1F", "0o17", "0b101", "1_000", "1:30", "190:20:30", "NO", "no", "Yes", "y", "N",
     "on", "OFF", "2026-11-29", "2026-1-2", "2026-11-29 10:00:00"],
)  # fmt: skip
def test_a_scalar_that_is_read_two_ways_is_refused_with_the_way_out(scalar: str) -> None:
    error = refused(f"model:\n  revision: {scalar}\n")
    assert error.where == "m.yaml:2"
    assert error.message == f"model.revision: {scalar} is read differently by different YAML tools"
    assert error.hint == f'quote it if a string is meant: "{scalar}"'
    assert value(f'a: "{scalar}"') == {"a": scalar}
    assert value(f"a: '{scalar}'") == {"a": scalar}
    assert value(f"a: |-\n  {scalar}\n") == {"a": scalar}


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        ("1", 1), ("-1", -1), ("+1", 1), ("0", 0), ("1.5", 1.5), ("1.", 1.0), (".5", 0.5), ("1e-05", 1e-05),
        ("1E5", 1e5), ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("'null'", "null"),
        # What looks like a number and is none: a model's name, a commit, a version.
        ("e5", "e5"), ("E5", "E5"), ("-e5", "-e5"), (".e5", ".e5"), (".", "."), ("-", None), ("+", "+"), ("-.", "-."),
        ("0.33.0", "0.33.0"), ("2026.11.2", "2026.11.2"), ("0e9e39f2", "0e9e39f2"), ("1e5e", "1e5e"),
        ("nan", "nan"), ("inf", "inf"), ("tRUE", "tRUE"), ("NULLs", "NULLs"),
        ("a#b", "a#b"), ("a # b", "a"), ("٣", "٣"), ("１", "１"),
    ],
)  # fmt: skip
def test_plain_scalars(scalar: str, expected: object) -> None:
    if scalar == "-":
        assert value("a:\n  - \n") == {"a": [None]}
        return
    found = value(f"a: {scalar}\n")["a"]
    assert found == expected
    assert type(found) is type(expected)


def test_lines_of_every_key() -> None:
    found, lines = parse_document(b"a:\n  b:\n    - c: 1\n    - {c: 2,\n       d: 3}\n", "m")
    assert found == {"a": {"b": [{"c": 1}, {"c": 2, "d": 3}]}}
    assert lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "b", "0", "c"): 3,
        ("a", "b", "1", "c"): 4,
        ("a", "b", "1", "d"): 5,
    }


def test_json_and_a_byte_order_mark() -> None:
    assert value('  {"a": [1, 1.5, true, null, "x"]}') == {"a": [1, 1.5, True, None, "x"]}
    assert parse_document("\ufeffa: 1\n".encode(), "m")[0] == {"a": 1}
    assert parse_document('\ufeff{"a": 1}'.encode(), "m")[0] == {"a": 1}
    assert value("--- {a: 1}\n") == {"a": 1}
    assert value('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_what_python_wrote_may_hold_infinity_where_that_is_asked_for() -> None:
    assert parse_json('{"a": Infinity}', "config.json", non_finite=True) == {"a": float("inf")}
    assert parse_json('{"a": 1e999}', "config.json", non_finite=True) == {"a": float("inf")}


@pytest.mark.parametrize(
    "data", [b"\xff\xfea\x00", b"a: \xe9\n", "a: 1".encode("utf-16"), b"\x80\x04\x95pickle", b"\x7fELF\x02"]
)
def test_what_is_no_text(data: bytes) -> None:
    error = refused(data)
    assert error.message.startswith(("not UTF-8 text", "holds a NUL byte", "not valid YAML"))
    assert error.where == "m.yaml"


# ---- bounded ----

_LEVELS = 10


def bomb() -> str:
    """Nine levels of nine aliases each: a billion entries where aliases are followed."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, _LEVELS)]
    return "\n".join(lines)


HOSTILE = {
    "too large": b"x" * (20 << 20),
    "alias bomb": bomb().encode(),
    "deep flow": b"a: " + b"[" * 1_000_000,
    "deep blocks": b"- " * 1_000_000,
    "deep questions": b"? " * 1_000_000,
    "deep JSON": b'{"a":' * 1_000_000,
    "deep JSON lists": b"[" * 1_000_000,
    "many digits": b"a: " + b"1" * 1_000_000,
    "many JSON digits": b'{"a": ' + b"1" * 1_000_000 + b"}",
    "a long time": b"a: " + b"1:1" * 1_000_000,
    "a long tag": b"a: !" + b"x" * 1_000_000 + b" 1",
    "a long twin": b"%s: 1\n%s: 2\n" % ((b"k" * 100,) * 2) + b"%s: 1\n" % (b"k" * 1_000_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_are_refused_at_once_and_in_little_memory(name: str) -> None:
    data = HOSTILE[name]
    tracemalloc.start()
    started = time.process_time()
    try:
        refused(data)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 10  # seconds
    assert used < 10 * MAX_BYTES


MANY = {
    "many values": b"a: [" + b"1, " * 600_000 + b"1]",
    "many keys": b"{? " + b", ? ".join(b"%d" % i for i in range(600_000)) + b"}",
}
REFUSED = """
import sys, time
from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError

def peak():  # of this process alone, in KiB (proc(5))
    status = open("/proc/self/status").read()
    return int(status.partition("VmHWM:")[2].split()[0])

data = sys.stdin.buffer.read()
before, started = peak(), time.process_time()
try:
    parse_document(data, "m.yaml")
except InputError:
    print((peak() - before) * 1024, time.process_time() - started)
"""


@pytest.mark.parametrize("name", MANY)
def test_half_a_million_values_are_refused_at_once_and_in_little_memory(name: str) -> None:
    """In a process of their own: to trace every allocation of that many takes ten times as long."""
    done = subprocess.run([sys.executable, "-c", REFUSED], input=MANY[name], capture_output=True, check=True)
    used, seconds = map(float, done.stdout.split())
    assert 0 < used < 10 * MAX_BYTES
    assert seconds < 10


def test_the_size_limit_is_exact() -> None:
    head = b"a: "
    assert len(parse_document(head + b"x" * (MAX_BYTES - len(head)), "m")[0]["a"]) == MAX_BYTES - len(head)
    refused(head + b"x" * (MAX_BYTES - len(head) + 1))


# ---- anything at all ----


@settings(max_examples=300, deadline=2000)
@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    match attempt(data):
        case InputError() as error:
            assert (error.where or "").startswith("m.yaml")
        case found, _:
            json.dumps(found, allow_nan=False)


_PIECES = st.sampled_from(
    [":", " ", "\n", "  ", "- ", "a", "b", "{", "}", "[", "]", ",", "&x", "*x", "!t", "|", ">", "'", '"', "#", "?",
     "1", "0", ".", "e", "-", "+", "_", "no", "~", "null", "true", "---", "...", "%YAML 1.1", "\t", "\\", "<<", "é",
     ".nan", ".inf", "1e999", "\r", "\x85", "\u2028"]
)  # fmt: skip


@settings(max_examples=500, deadline=2000)
@given(st.lists(_PIECES, max_size=30).map("".join))
def test_anything_like_yaml_parses_or_is_refused(text: str) -> None:
    match attempt(text.encode()):
        case InputError() as error:
            assert "\n" not in str(error)
        case found, lines:
            json.dumps(found, allow_nan=False)
            assert all(1 <= line <= len(text) + 1 for line in lines.values())


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc:# -", min_size=1, max_size=4), inner,
                                                                max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=200, deadline=2000)
@given(_VALUES)
def test_what_is_written_as_json_is_read_back(written: Any) -> None:
    document = {"a": written}
    assert parse_document(json.dumps(document).encode(), "m.json")[0] == document


@settings(max_examples=200, deadline=2000)
@given(_VALUES)
def test_what_pyyaml_quotes_is_read_back(written: Any) -> None:
    """Never as anything else: PyYAML writes YAML 1.1, of which some scalars are refused here."""
    document = {"a": written}
    match attempt(yaml.safe_dump(document, allow_unicode=True).encode()):
        case InputError() as error:
            said = ("anchors", "read differently", "not valid YAML", "not a number", "too large for a number")
            assert any(words in error.message for words in said)
        case found, _:
            assert found == _numbers_of_yaml_1_2(document)


def _numbers_of_yaml_1_2(value: Any) -> Any:
    """Read what PyYAML leaves bare and only YAML 1.2 calls a number (``1e5``) as the number that it is here."""
    if isinstance(value, dict):
        return {key: _numbers_of_yaml_1_2(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers_of_yaml_1_2(item) for item in value]
    bare = isinstance(value, str) and re.fullmatch(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]*)?[eE][-+]?[0-9]+", value)
    return float(value) if bare else value


def test_every_document_of_a_file_for_another_program_is_read_with_its_line() -> None:
    text = b"# head\n---\na: 0755\nb: no\n---\n---\n[1, 'x']\n...\n"
    found = parse_foreign_documents(text, "x")
    assert found == [({"a": "0755", "b": "no"}, 3), ([1, "x"], 7)]
    assert all(isinstance(found[0][0][key], TwoWays) for key in "ab")
    assert parse_foreign_documents(b'{"a": [1]}', "x") == [({"a": [1]}, 1)]
    assert parse_foreign_documents(b"# nothing\n", "x") == []


@pytest.mark.parametrize("text", ["a: &x 1", "a: !!str 1", "a: 1\na: 2", "a: .nan", "---\n[", "no: 1", "a: \0"])
def test_a_file_for_another_program_is_read_as_strictly(text: str) -> None:
    with pytest.raises(InputError):
        parse_foreign_documents(text.encode(), "x")


TOKEN = "sk-" + "abcdefghijklmnop0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"{TOKEN}: .nan",
        f"{TOKEN}: 1e999",
        f"a: {{{TOKEN}: 1, {TOKEN}: 2}}",
        f"a: !<{TOKEN}> 1",
        f'{{"{TOKEN}": 1, "{TOKEN}": 2}}',
    ],
)
def test_an_error_quotes_no_credential(text: str) -> None:
    for parse in (parse_document, parse_foreign_documents):
        with pytest.raises(InputError) as caught:
            parse(text.encode(), "x")
        assert TOKEN[3:] not in str(caught.value)
    if text.startswith("{"):
        with pytest.raises(InputError) as caught:
            parse_json(text, "x")
        assert TOKEN[3:] not in str(caught.value)
