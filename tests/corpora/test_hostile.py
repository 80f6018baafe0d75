"""Templates that attack: each costs one clear line and little time, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvgate.corpora.child.limits import Limits
from kvgate.corpora.conversations.conversation import Conversation
from kvgate.rules.errors import InputError

from .conftest import MakeFolder, Take, corpus_of

_MIB = 1 << 20
_TIGHT = Limits(render_seconds=0.5, template_bytes=256 * _MIB)
_ROOMY = Limits(render_seconds=8, template_bytes=256 * _MIB)  # so that memory or output ends it, on any machine
_HI = ({"role": "user", "content": "hi"},)
_CORPUS = corpus_of(Conversation("first", messages=_HI))
_FOREVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

_REFUSED = {
    "loops for ever": (_FOREVER, "did not finish within 0.5 s"),
    "computes for ever": ("{{ 9 ** (9 ** 9) }}", "did not finish within 0.5 s"),
    "macros in macros": (
        "{% macro m(n) %}{% for i in range(9) %}{{ m(n - 1) if n else '' }}{% endfor %}{% endmacro %}{{ m(50) }}",
        "did not finish within 0.5 s",
    ),
    "endless blind text": ("{{ lipsum(n=10000000) }}", "did not finish within 0.5 s"),
    "slices": ("{% for s in range(10)|slice(999999999) %}{% endfor %}", "did not finish within 0.5 s|more memory"),
    "two gigabytes": ("{{ messages[0].content * 2000000000 }}", "needs more memory than the limit of 256 MiB"),
    "two gigabytes while compiling": ("{{ 'a' * 2000000000 }}", "needs more memory"),
    "padding": ("{{ messages[0].content.ljust(2000000000) }}", "needs more memory"),
    "format width": ("{{ '%2000000000d' % messages|length }}", "needs more memory"),
    "doubling": (
        "{% set n = namespace(x='aaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "needs more memory",
    ),
    "output without end": ("{{ 'x' * 20000000 }}", "writes more than 16,777,216 characters"),
    "internals": ("{{ ''.__class__.__mro__ }}", "asks for Python internals"),
    "internals, in disguise": ("{% set c = '__cla' ~ 'ss__' %}{{ ''[c].x }}", "reaches for Python internals"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_it_is_refused_by_name_and_quickly(make_folder: MakeFolder, name: str, take: Take) -> None:
    template, says = _REFUSED[name]
    folder = make_folder(template=template)
    began = time.monotonic()
    with pytest.raises(InputError, match=says) as caught:
        take(folder, _CORPUS, limits=_TIGHT if "did not finish" in says else _ROOMY)
    assert time.monotonic() - began < 30  # seconds of rendering, the start of the child, a busy machine
    assert str(caught.value.where).startswith(str(folder / "tokenizer_config.json"))
    assert "\n" not in str(caught.value)
    assert "first" in str(caught.value) or "internals" in says or "writes" in says
    assert not _children()


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ range(999999999)|list }}", "OverflowError"),
        ("{% include '/etc/passwd' %}", "TypeError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ raise_exception('no') }}", "TemplateError"),
        ("{{ undefined.attribute }}", "UndefinedError"),
    ],
)
def test_what_the_renderer_itself_stops_is_a_result(
    make_folder: MakeFolder, template: str, error: str, take: Take
) -> None:
    (entry,) = take(make_folder(template=template), _CORPUS).entries()
    assert entry.renders[0].error is not None
    assert entry.renders[0].error[0] == error


def test_slow_conversations_add_up(make_folder: MakeFolder, take: Take) -> None:
    corpus = corpus_of(*(Conversation(str(n), messages=_HI) for n in range(20)))
    template = "{% for a in range(700) %}{% for b in range(9000) %}{% endfor %}{% endfor %}"
    with pytest.raises(InputError, match=r"took more than 2\.2 s in all"):
        take(make_folder(template=template), corpus, limits=Limits(render_seconds=30, render_total_seconds=0.2))


def test_ctrl_c_leaves_no_child(make_folder: MakeFolder, take: Take) -> None:
    def interrupt(stage: str, done: int, total: int | None, unit: str) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(make_folder(), _CORPUS, progress=interrupt)
    assert not _children()


def test_the_child_dies_with_its_parent_and_holds_no_token(make_folder: MakeFolder) -> None:
    folder = make_folder(template=_FOREVER)
    program = (
        "import pathlib, sys\n"
        "from kvgate.corpora.conversations.corpus import load_corpus\n"
        "from kvgate.corpora.examine import take_snapshot\n"
        "from kvgate.corpora.child.limits import Limits\n"
        "folder, to = map(pathlib.Path, sys.argv[1:])\n"
        "take_snapshot(folder, load_corpus('diagnostic'), to, limits=Limits(render_seconds=60))\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(folder.parent / "snapshot")],
        env={**os.environ, "HF_TOKEN": "hf_" + "secret"},
    )
    try:
        # Between being forked and running its own program a child still shows its parent's environment.
        (child,) = _wait(lambda: [one for one in _children(parent.pid) if _runs(one, "kvgate.corpora.child.worker")])
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        assert b"HF_HUB_OFFLINE=1" in variables
        assert not any(b"secret" in variable for variable in variables)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert _wait(lambda: not _alive(child))


def test_the_working_directory_is_not_on_the_import_path(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Take
) -> None:
    ran = tmp_path / "ran"
    folder = make_folder()
    for place in (folder, tmp_path):
        for name in ("json", "transformers", "jinja2", "kvgate"):
            (place / f"{name}.py").write_text(f"open({str(ran)!r}, 'w')")
    monkeypatch.chdir(folder)
    assert next(take(folder, _CORPUS).entries()).renders[0].ok
    assert not ran.exists()


def test_nothing_is_written_into_the_folder(make_folder: MakeFolder, take: Take) -> None:
    folder = make_folder()
    before = sorted(folder.rglob("*"))
    take(folder, _CORPUS)
    assert sorted(folder.rglob("*")) == before


def test_a_huge_vocabulary_file_stays_in_bounds(make_folder: MakeFolder, take: Take) -> None:
    folder = make_folder()
    with (folder / "vocab.json").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(InputError, match="more than the 268,435,456 that are read"):
        take(folder, _CORPUS)


def test_a_vocabulary_that_does_not_fit_is_refused(make_folder: MakeFolder, take: Take) -> None:
    folder = make_folder()
    nested = b'{"x": ' + b"[" * 900
    (folder / "vocab.json").write_bytes(nested + b"[]," * 8_000_000 + b"[]" + b"]" * 900 + b"}")
    with pytest.raises(InputError, match="loading the tokenizer needs more memory than the limit of 320 MiB"):
        take(folder, _CORPUS, limits=Limits(memory_bytes=320 * _MIB))


def test_a_named_pipe_is_not_waited_for(make_folder: MakeFolder, take: Take) -> None:
    folder = make_folder()
    os.mkfifo(folder / "vocab.json")
    with pytest.raises(InputError, match="not a regular file"):
        take(folder, _CORPUS)


def _children(parent: int | None = None) -> list[int]:
    path = Path(f"/proc/{parent or os.getpid()}/task")
    return [int(pid) for task in path.iterdir() for pid in (task / "children").read_text().split() if _alive(int(pid))]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _runs(process: int, module: str) -> bool:
    try:
        return module.encode() in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _wait(what: object, seconds: float = 20) -> list[int]:
    deadline = time.monotonic() + seconds
    while not (found := what()):  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found  # type: ignore[no-any-return]
