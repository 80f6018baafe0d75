"""The script that runs where kvgate is not: in releases of transformers that serving images have."""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.corpora.conversations.corpus import Corpus
from kvgate.corpora.examine import take_snapshot
from kvgate.corpora.snapshots.snapshot import SnapshotFile, open_snapshot
from kvgate.corpora.standalone.printed import CARRIED, snapshot_script
from tests.house.repository import ROOT
from tests.renderers.install import Renderer, renderer

from .conftest import CHATML, MakeFolder

SCRIPT = ROOT / "corpora" / "standalone" / "snapshot_script.py"
_CLOCK = "Today: {{ strftime_now('%d %B %Y, %H:%M') }}\n" + CHATML
_TOOLS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    + CHATML
    + "{% for message in messages %}{% for call in message.tool_calls or [] %}"
    "{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
)


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kvgate_snapshot", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = _loaded()


@pytest.fixture(scope="session")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "kvgate_snapshot.py"
    path.write_text(snapshot_script(), encoding="utf-8")
    return path


@pytest.fixture
def run(printed: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the printed script, in one of the other releases or (``None``) with this environment's."""

    def call(release: Renderer | None, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I"] if release is None else release.command
        return subprocess.run(
            [*command, str(printed), *map(str, arguments)],
            cwd=tmp_path,
            env=None if release is None else release.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


def _snapshot(run: Any, release: Renderer | None, folder: Path, tmp_path: Path, *more: str | Path) -> SnapshotFile:
    done = run(release, folder, "-o", "script.jsonl", *more)
    assert done.returncode == 0, done.stderr
    return open_snapshot(tmp_path / "script.jsonl", None)


@pytest.mark.parametrize(("template", "redact"), [(_CLOCK, False), (_TOOLS, True)], ids=["clock", "tools, redacted"])
def test_it_says_what_kvgate_says(
    run: Any, make_folder: MakeFolder, diagnostic: Corpus, tmp_path: Path, template: str, redact: bool
) -> None:
    folder = make_folder(template=template)
    theirs = _snapshot(run, None, folder, tmp_path, *(["--redact"] if redact else []))
    ours = take_snapshot(folder, diagnostic, tmp_path / "ours.jsonl", redact=redact)
    assert theirs.header.made == "script"
    assert {**vars(theirs.header), "made": "here"} == vars(ours.header)
    assert list(theirs.entries()) == list(ours.entries())
    assert theirs.footer == ours.footer
    assert theirs.footer.coverage is not None
    assert any(entry.turns for entry in theirs.entries())
    assert (theirs.footer.pieces == {}) == redact


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("4.40.2", {"transformers": "4.40.2", "tokenizers": "0.19.1"}),
        ("4.57.6", {"transformers": "4.57.6", "tokenizers": "0.22.2"}),
    ],
)
def test_it_speaks_with_the_library_of_its_image(
    run: Any,
    make_folder: MakeFolder,
    old_merges: Callable[[dict[str, Any]], None],
    diagnostic: Corpus,
    tmp_path: Path,
    name: str,
    versions: Mapping[str, str],
) -> None:
    folder = make_folder(old_merges, template=_CLOCK if name != "4.40.2" else CHATML)
    found = _snapshot(run, renderer(name), folder, tmp_path)
    assert found.header.renderer == versions
    assert found.header.template is not None
    assert found.header.tokenizer is not None
    assert found.footer.coverage is not None
    assert [entry.id for entry in found.entries()] == [one.id for one in diagnostic.conversations()]
    errors = Counter(entry.renders[0].error for entry in found.entries() if not entry.renders[0].ok)
    assert sum(errors.values()) < 0.2 * found.footer.conversations, errors
    plain = next(entry for entry in found.entries() if entry.id == "plain-user")
    dates = [str(render.text).partition("<")[0].strip() for render in plain.renders]
    assert dates == ([""] if name == "4.40.2" else ["Today: 03 February 2026, 04:05", "Today: 19 November 2027, 20:21"])
    here = take_snapshot(folder, diagnostic, tmp_path / "here.jsonl")
    assert here.header.template == found.header.template
    assert here.footer.coverage == found.footer.coverage
    again = next(entry for entry in here.entries() if entry.id == "plain-user")
    assert [render.ids for render in again.renders] == [render.ids for render in plain.renders]


@pytest.fixture
def old_merges() -> Callable[[dict[str, Any]], None]:
    """Write merges as text, which every release of tokenizers reads."""

    def edit(backend: dict[str, Any]) -> None:
        backend["model"]["merges"] = [" ".join(pair) for pair in backend["model"]["merges"]]

    return edit


def test_it_carries_what_it_imports() -> None:
    """Where the script runs there is no kvgate, no BLAKE3 and no torch."""
    release = renderer("4.57.6")
    probe = "import importlib.util as u; print([n for n in ('kvgate', 'blake3', 'torch') if u.find_spec(n)])"
    done = subprocess.run(
        [*release.command, "-c", probe], env=release.environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    carried = {name: ROOT / f"{name.removeprefix('kvgate.').replace('.', '/')}.py" for name in CARRIED}
    imported = {name for path in (SCRIPT, *carried.values()) for name in _imported(path)}
    assert imported == set(carried)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvgate"):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("kvgate"))


@given(st.binary(max_size=3000) | st.integers(0, 40).map(lambda size: bytes(range(256)) * 4 * size))
def test_blake3_without_the_library(data: bytes) -> None:
    from blake3 import blake3

    assert script._blake3_numpy(data) == blake3(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 64, 65, 1023, 1024, 1025, 2048, 2049, 3073, 7168, 31744, 102400])
def test_blake3_at_the_borders_of_blocks_chunks_and_levels(size: int) -> None:
    from blake3 import blake3

    data = (b"%d," % size) * (size // 2 + 1)
    assert script._blake3_numpy(data[:size]) == blake3(data[:size]).hexdigest()


def test_own_corpora_options_and_templates(run: Any, make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder()
    (tmp_path / "own.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "Größe"}]}\n\n{"id": "x", "prompt": "a", "temperature": 0}\n'
    )
    (tmp_path / "other.jinja").write_text("{{ greeting }}{{ messages[0].content }}{{ add_generation_prompt }}")
    found = _snapshot(
        run,
        None,
        folder,
        tmp_path,
        *("--corpus", "own.jsonl", "--chat-template", "other.jinja"),
        *("--option", "add_generation_prompt=false", "--option", 'template_kwargs={"greeting": "Hello "}'),
        *("--option", "content_format=auto"),
    )
    assert [(entry.id, entry.renders[0].text) for entry in found.entries()] == [
        ("line-1", "Hello GrößeFalse"),
        ("x", "a"),
    ]
    assert found.header.corpus.startswith("own@")
    assert found.header.unapplied == ("content_format",)
    assert found.header.options["template_kwargs"] == {"greeting": "Hello "}
    assert (tmp_path / "script.jsonl").stat().st_mode & 0o777 == (tmp_path / "own.jsonl").stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent", "-o", "x.jsonl"], "absent: not a folder"),
        (["{folder}", "-o", "none/x.jsonl"], "cannot be written: No such file or directory"),
        (["{folder}", "-o", "x.jsonl", "--corpus", "absent.jsonl"], "absent.jsonl: cannot be read"),
        (["{folder}", "-o", "x.jsonl", "--corpus", "bad.jsonl"], "bad.jsonl:2: a key stands twice in one object"),
        (["{folder}", "-o", "x.jsonl", "--corpus", "twice.jsonl"], "twice.jsonl:2: the id 'a' stands twice"),
        (["{folder}", "-o", "x.jsonl", "--corpus", "neither.jsonl"], "neither.jsonl:1: needs either"),
        (["{folder}", "-o", "bad.jsonl", "--corpus", "bad.jsonl"], "bad.jsonl: is an input"),
        (["{folder}", "-o", "x.jsonl", "--chat-template", "absent.jinja"], "absent.jinja: cannot be read"),
        (["{folder}", "-o", "x.jsonl", "--option", "add_special_tokens=maybe"], "add_special_tokens: must be true"),
        (["{empty}", "-o", "x.jsonl"], "transformers cannot build a tokenizer from it"),
    ],
)
def test_what_it_refuses(
    make_folder: MakeFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    folder = make_folder()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(script, "CORPUS", base64.b64encode(zlib.compress(b'{"prompt": "a"}')).decode())
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text('{"id": "a", "prompt": "a"}\n{"prompt": "b", "prompt": "c"}\n')
    (tmp_path / "twice.jsonl").write_text('{"id": "a", "prompt": "a"}\n{"id": "a", "prompt": "c"}\n')
    (tmp_path / "neither.jsonl").write_text('{"id": "a"}\n')
    before = sorted(tmp_path.iterdir())
    assert script.main([text.format(folder=folder, empty=tmp_path / "empty") for text in arguments]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert len(err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_copy_without_its_corpus_says_where_to_get_it(make_folder: MakeFolder, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(make_folder()), "-o", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "print it with `kvgate corpus script`" in done.stderr


def test_the_printed_file_is_source_that_old_pythons_read() -> None:
    source = snapshot_script()
    ast.parse(source, feature_version=(3, 8))
    assert max(map(len, source.splitlines())) <= 120
    for name in CARRIED:
        ast.parse((ROOT / f"{name.removeprefix('kvgate.').replace('.', '/')}.py").read_text(), feature_version=(3, 10))
    assert json.loads(json.dumps(script.OPTIONS)) == script.parse_options([])[0]
