"""Canaries: references that nobody can make up, where they stand, and whose reference an answer holds."""

from __future__ import annotations

import io
import itertools
import json
import os
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from kvgate.corpora.conversations.corpus import Corpus
from kvgate.corpora.snapshots.snapshot import SnapshotFile
from kvgate.probes.canary.echoes import MAX_LINE, NAMED, Echoes, check_echoes
from kvgate.probes.canary.evidence import state_of
from kvgate.probes.canary.markers import FIELD, REFERENCE, Marker, Position, mint, read_markers
from kvgate.probes.canary.placing import placed
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.evidence import Evidence
from tests.cli.conftest import MakeManifest, Ran, Run, in_process

SECRET = "a secret of some length"
TENANTS = ("acme", "globex", "initech")
MARKERS = {marker.tenant: marker for marker in mint(TENANTS, SECRET)}
OWN, FOREIGN = (MARKERS[tenant].reference for tenant in TENANTS[:2])
CACHED = Position(first=20, end=40, prompt=100, block_size=16)


def echoed(reference: Any) -> str:
    return json.dumps({"answer": "ok", FIELD: reference})


def check(*lines: Any, markers: dict[str, Marker] = MARKERS) -> Echoes:
    written = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    return check_echoes(io.BytesIO(written), markers)


def answer(response: Any, tenant: str = "acme", **more: Any) -> dict[str, Any]:
    return {"tenant": tenant, "response": response, **more}


def test_a_reference_is_of_its_tenant_and_its_secret() -> None:
    assert {marker.reference for marker in mint(TENANTS, SECRET)} == {marker.reference for marker in MARKERS.values()}
    others = [mint(["acme"], SECRET + "."), mint(["acme "], SECRET)]
    assert len({OWN, *(one[0].reference for one in others)}) == 3
    assert all(REFERENCE.fullmatch(marker.reference) for marker in MARKERS.values())
    assert all(marker.reference in marker.instruction and FIELD in marker.instruction for marker in MARKERS.values())


@pytest.mark.parametrize(
    ("tenants", "secret", "message"),
    [
        ((), SECRET, "no tenant"),
        (("a", "a"), SECRET, "twice"),
        ((" ",), SECRET, "without a name"),
        (("a",), "x", "shorter"),
    ],
)
def test_what_is_not_minted(tenants: tuple[str, ...], secret: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mint(tenants, secret)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (echoed(OWN), "own"),
        ({"choices": [{"message": {"content": echoed(OWN)}}]}, "own"),
        ({"body": {"choices": [{"message": {"content": echoed(OWN)}}]}}, "own"),
        ({"choices": [{"text": f"```json\n{echoed(OWN)}\n```"}]}, "own"),
        (
            {"choices": [{"message": {"content": None, "tool_calls": [{"function": {"arguments": echoed(OWN)}}]}}]},
            "own",
        ),
        ({"content": [{"type": "text", "text": echoed(OWN)}]}, "own"),
        ({"content": [{"type": "tool_use", "name": "answer", "input": {FIELD: OWN}}]}, "own"),
        ({FIELD: OWN}, "own"),
        (echoed(FOREIGN), "foreign"),
        (echoed(OWN) + f" By the way, {FOREIGN}.", "foreign"),  # wherever it stands
        ({"choices": [{"message": {"content": echoed(OWN), "reasoning_content": FOREIGN}}]}, "foreign"),
        ({"choices": [{"text": echoed(OWN)}, {"text": echoed(FOREIGN)}]}, "foreign"),
        (echoed(FOREIGN[:-9]), "foreign"),  # cut off
        ({FIELD: OWN, "note": f"other:\n{FOREIGN}"}, "foreign"),
        (json.dumps({FIELD: OWN, "note": f"other:\n{FOREIGN}"}), "foreign"),
        ({"choices": [{"message": {"content": echoed(OWN), "reasoning": f"\t{FOREIGN}"}}]}, "foreign"),
        (echoed(OWN) + f"_{FOREIGN}", "foreign"),
        (echoed(OWN) + "x" + "kvc1-" + "a" * 26, "unknown"),
        (echoed(FOREIGN + "x"), "foreign"),
        (echoed(FOREIGN.upper()), "foreign"),
        ({"choices": [{"message": {"content": [{"type": "text", "text": echoed(FOREIGN)}]}}]}, "foreign"),
        ({"choices": [{"message": {"content": echoed(OWN), "refusal": FOREIGN}}]}, "foreign"),
        (echoed("kvc1-" + "a" * 26), "unknown"),
        (echoed(OWN[:-9]), "malformed"),
        (echoed(OWN[:-1]), "malformed"),
        (echoed(OWN + "a"), "malformed"),
        (echoed(OWN.upper()), "malformed"),
        (echoed(""), "malformed"),
        (echoed(None), "malformed"),
        (echoed(7), "malformed"),
        (f"It is {OWN}.", "malformed"),  # not in its field
        ({"content": "Dear customer", FIELD: OWN}, "own"),  # fields of its own, and no API's
        ({"body": echoed(OWN), "note": FOREIGN}, "foreign"),
        ({"content": [{"text": "Dear customer"}], FIELD: FOREIGN}, "foreign"),
        ({"content": [{"text": echoed(OWN), "citations": [{"cited_text": FOREIGN}]}]}, "foreign"),
        ([{"choices": [{"delta": {"content": echoed(OWN)}}]}], "own"),
        ([{"choices": [{"delta": {"content": echoed(FOREIGN)}}]}], "foreign"),
        ({"choices": [7]}, "missing"),
        ({"content": 7}, "missing"),
        ("I will not repeat that.", "missing"),
        ("", "missing"),
    ],
)
def test_whose_reference_an_answer_holds(response: Any, kind: str) -> None:
    assert check(answer(response)).counts == {kind: 1}


@pytest.mark.parametrize(
    "line",
    [
        b"{\n",
        b"[]\n",
        b'"x"\n',
        b'\xff{"tenant": "acme"}\n',
        b'{"tenant": "acme", "tenant": "globex", "response": ""}\n',
        {"tenant": "acme"},
        {"tenant": "nobody", "response": echoed(OWN)},
        {"tenant": ["acme"], "response": ""},
        {"tenant": "acme", "response": 7},
        b'{"tenant": "acme", "response": ' + b"[" * 100_000 + b"\n",
        b'{"tenant": "acme", "response": "' + b"x" * (MAX_LINE + 10) + b'"}\n',
    ],
)
def test_lines_that_are_no_answers_are_counted_apart_and_stop_nothing(line: Any) -> None:
    found = check(line, answer(echoed(FOREIGN)))
    assert (found.counts["unreadable"], found.counts["foreign"], found.total) == (1, 1, 2)


class Lines(io.BytesIO):
    """Lines that lie nowhere."""

    def __init__(self, *parts: tuple[int, dict[str, Any]]) -> None:
        super().__init__()
        repeated = (itertools.repeat(f"{json.dumps(line)}\n".encode(), count) for count, line in parts)
        self._lines = itertools.chain.from_iterable(repeated)

    def readline(self, _: int | None = -1, /) -> bytes:
        return next(self._lines, b"")


def test_one_answer_in_a_hundred_thousand_is_found_and_named() -> None:
    leak = answer(echoed(FOREIGN), request="req-77")
    rest = (2, answer("no", "globex")), (1, answer(echoed("kvc1-x"), "globex"))
    found = check_echoes(Lines((77_776, answer(echoed(OWN))), (1, leak), (22_220, answer(echoed(OWN))), *rest), MARKERS)
    assert found.total == 100_000
    assert found.counts == {"own": 99_996, "foreign": 1, "missing": 2, "malformed": 1}
    (named,) = found.leaks
    assert (named.request, named.line, named.expected, named.seen) == ("req-77", 77_777, "acme", "globex")


def test_answers_are_not_kept() -> None:
    long = answer(echoed(OWN) + "x" * 20_000)
    tracemalloc.start()
    check_echoes(Lines((500, long), (500, {**long, "tenant": "globex"}), (500, {**long, "tenant": "?"})), MARKERS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20  # of 30 MB


def test_every_leak_counts_and_the_first_are_named() -> None:
    found = check(*[answer(echoed(FOREIGN))] * (NAMED + 5))
    assert (found.counts["foreign"], len(found.leaks)) == (NAMED + 5, NAMED)
    assert found.leaks[0].request == "line 1"


PLACED = {tenant: Marker(tenant, marker.reference, CACHED) for tenant, marker in MARKERS.items()}
BOTH = (answer(echoed(OWN)), answer(echoed(FOREIGN), "globex"))


@pytest.mark.parametrize(
    ("lines", "allowed", "markers", "state"),
    [
        (BOTH, 0.0, PLACED, "proved"),
        (BOTH, 0.0, MARKERS, "inconclusive"),  # nobody has looked where they stand
        (BOTH, 0.0, {**PLACED, "acme": Marker("acme", OWN, Position(20, 40, 41, 16))}, "inconclusive"),
        (BOTH[:1], 0.0, PLACED, "inconclusive"),  # one tenant alone
        ((*BOTH, answer("no")), 0.0, PLACED, "inconclusive"),
        ((*BOTH, answer("no")), 0.5, PLACED, "proved"),
        ((*BOTH, answer(echoed("x"))), 0.0, PLACED, "inconclusive"),
        ((*BOTH, answer(echoed("kvc1-" + "a" * 26))), 1.0, PLACED, "inconclusive"),
        ((*BOTH, b"{\n"), 1.0, PLACED, "inconclusive"),
        ((answer("no"),), 1.0, PLACED, "inconclusive"),
        ((*BOTH, answer(echoed(FOREIGN)), b"{\n"), 1.0, MARKERS, "refuted"),  # whatever else is open
    ],
)
def test_what_answers_prove(lines: Any, allowed: float, markers: dict[str, Marker], state: str) -> None:
    assert state_of(check(*lines, markers=markers), markers, allowed)[0] == state


def test_no_answers_are_no_proof() -> None:
    with pytest.raises(InputError, match="holds no answer"):
        check(b"\n\n")


@pytest.mark.parametrize(
    ("position", "cached"),
    [
        (Position(20, 48, 49, 16), True),
        (Position(20, 48, 48, 16), False),  # the last token is computed again, and with it its block
        (Position(20, 49, 64, 16), False),
        (Position(20, 49, 65, 16), True),
        (Position(0, 1, 16, 16), False),
    ],
)
def test_what_is_cached_is_whole_blocks(position: Position, cached: bool) -> None:
    assert position.cached is cached


@dataclass
class Letters:
    """A renderer for which every letter is a token, behind a beginning of three."""

    drops: bool = False  # the system message

    def __call__(self, corpus: Corpus, _: Path) -> SnapshotFile:
        entries = []
        for one in corpus.conversations():
            said = [message["content"] for message in (one.messages or ())[self.drops :]]
            render = mock.Mock(ok=True, ids=list("".join(["<s>", *said]).encode()))
            entries.append(mock.Mock(id=one.id, renders=(render,)))
        return cast("SnapshotFile", mock.Mock(entries=lambda: entries))


def test_where_a_reference_stands_is_found_by_what_differs(tmp_path: Path) -> None:
    found = placed(tuple(MARKERS.values()), "You are a clerk. " * 9, 16, Letters(), tmp_path)
    for marker in found:
        place, text = marker.position, "<s>" + marker.instruction
        assert place is not None
        # All but the beginning, which is every reference's.
        assert (place.first, place.end) == (text.index(marker.reference) + 5, text.index(marker.reference) + 31)
        assert place.blocks == (place.first // 16, (place.end - 1) // 16)
        assert place.cached


@pytest.mark.parametrize(
    ("render", "size", "message"),
    [(Letters(drops=True), 16, "not in the prompt"), (Letters(), 512, "only the first 0 are cached")],
)
def test_a_reference_outside_what_is_cached_is_refused(
    render: Letters, size: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        placed(tuple(MARKERS.values()), "", size, render, tmp_path)


@pytest.fixture
def minted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tenants.txt").write_text("\n".join(TENANTS[1:]))
    ran = with_secret("canary", "mint", "--tenant", "acme", "--tenants", "tenants.txt", "-o", "canaries.jsonl")
    assert (ran.code, "3 references" in ran.out) == (0, True), ran.err
    return tmp_path / "canaries.jsonl"


def with_secret(*arguments: str) -> Ran:
    with mock.patch.dict(os.environ, {"CANARY": SECRET}):
        return in_process(*arguments, "--secret-env", "CANARY")


def test_what_is_minted_is_read_again(minted: Path) -> None:
    assert read_markers(minted) == MARKERS


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "",
        lambda _: "{}\n",
        lambda text: text + text,
        lambda text: text.replace("kvc1-", "kvc2-"),
        lambda text: text.replace('"position": null', '"position": {"tokens": [3, 2], "prompt": 9, "block_size": 4}'),
        lambda text: text.replace('"position": null', '"position": {"tokens": [1, 2], "prompt": 9, "block_size": 0}'),
        lambda _: "\x00" * 100,
    ],
)
def test_what_is_no_file_of_canaries(minted: Path, change: Any) -> None:
    minted.write_text(change(minted.read_text()))
    with pytest.raises(InputError):
        read_markers(minted)


@pytest.mark.usefixtures("minted")
def test_the_commands(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    answers = [answer(echoed(OWN), request="r1"), answer(echoed(FOREIGN), request="r2"), answer("no", "initech")]
    (tmp_path / "answers.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in answers))
    named = manifest("new.yaml")
    ran = run("canary", "check", "canaries.jsonl", "answers.jsonl", "--manifest", named, "-o", "found.json")
    assert ran.code == 10, ran.err
    assert "r2: expected tenant (redacted 1), seen tenant (redacted 2) (line 2)" in ran.out
    assert "1 missing: no reference (first: line 3)" in ran.out  # as the data and the manual call it
    assert not any(tenant in ran.out for tenant in TENANTS)
    assert ran.out.endswith("refuted\n")
    text = (tmp_path / "found.json").read_text()
    assert Evidence.model_validate(json.loads(text), by_alias=True).state == "refuted"
    assert not any(tenant in text for tenant in TENANTS)
    ran = run("check", named, named, "--evidence", "found.json", "--no-config")
    assert (ran.code, "refuted-tenant-canary" in ran.out) == (20, True)

    piped = in_process(
        "canary",
        "check",
        "canaries.jsonl",
        "-",
        "--show-tenants",
        "-o",
        "json",
        stdin=(tmp_path / "answers.jsonl").read_bytes(),
    )
    data = json.loads(piped.out)
    assert (piped.code, data["counts"]["foreign"], data["counts"]["missing"]) == (10, 1, 1)
    assert data["foreign"] == [{"line": 2, "request": "r2", "expected": "acme", "seen": "globex"}]


@pytest.mark.usefixtures("minted")
def test_usage() -> None:
    assert with_secret("canary", "mint", "--tenant", "a", "-o", "x.jsonl", "--block-size", "16").code == 2
    assert in_process("canary", "mint", "--tenant", "a", "-o", "x.jsonl", "--secret-env", "NOBODY").code == 2
    assert in_process("canary", "check", "canaries.jsonl", "missing.jsonl").code == 3
    assert in_process("canary", "check", "canaries.jsonl", "canaries.jsonl", "--allow-missing", "nan").code == 2
    assert in_process("canary", "check", "canaries.jsonl", "canaries.jsonl", "-o", "canaries.jsonl").code == 2
