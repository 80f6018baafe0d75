"""`kvgate corpus snapshot --endpoint`, `script` and `verify`: renderers elsewhere, and the same one later."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.corpora.engine_server import RECORDED, Engine, recorded, serving, vllm

from .conftest import Run

ALL = ("messages", "add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs")
CORPUS = str(RECORDED / "conversations.jsonl")
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def model(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: number for number, word in enumerate(["[UNK]", "user", "assistant", ":", "tide", "What", "is", "a"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path / "model"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_a_server_is_asked(run: Run, stack: ExitStack, tmp_path: Path) -> None:
    _, answer = recorded("vllm-0.32.0.json")
    engine = stack.enter_context(serving(Engine(answer)))
    ran = run("corpus", "snapshot", "--endpoint", engine.url, "--corpus", CORPUS, "-o", "tokens.jsonl")
    assert ran.code == 0, ran.err
    sidecar = json.loads(ran.out.removeprefix("snapshot: "))
    assert sidecar["renderer"] == {"vllm": "0.32.0"}
    assert (tmp_path / "tokens.jsonl").is_file()
    again = run("corpus", "verify", "tokens.jsonl", "--endpoint", engine.url, "--corpus", CORPUS)
    assert (again.code, again.out.partition(":")[0]) == (0, "reproduced")


def test_the_key_comes_from_the_environment(run: Run, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = stack.enter_context(serving(Engine(vllm(*ALL))))
    command = ("corpus", "snapshot", "--endpoint", engine.url, "--corpus", CORPUS, "-o", "tokens.jsonl")
    monkeypatch.setenv("ENGINE_KEY", "sk-secret")
    ran = run(*command, "--api-key-env", "ENGINE_KEY")
    assert ran.code == 0
    assert {headers.get("Authorization") for headers in engine.headers} == {"Bearer sk-secret"}
    assert "sk-secret" not in ran.out + ran.err + Path("tokens.jsonl").read_text()
    missing = run(*command, "--api-key-env", "NO_SUCH_KEY")
    assert missing.code == 2
    assert "the variable NO_SUCH_KEY holds no key" in missing.err


def test_the_script_is_printed_or_written(run: Run) -> None:
    printed = run("corpus", "script")
    assert printed.code == 0
    ast.parse(printed.out)
    assert run("corpus", "script", "-o", "kvgate_snapshot.py").code == 0
    assert Path("kvgate_snapshot.py").read_text() == printed.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("snapshot", "-o", "x.jsonl"), "give a model folder or a server, and not both"),
        (("snapshot", "model", "--endpoint", "http://127.0.0.1:1", "-o", "x.jsonl"), "and not both"),
        (
            ("snapshot", "--endpoint", "http://127.0.0.1:1", "--chat-template", "t.jinja", "-o", "x.jsonl"),
            "a server renders with its own template",
        ),
    ],
)
def test_calls_that_are_refused(run: Run, arguments: tuple[str, ...], said: str) -> None:
    ran = run("corpus", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def _taken(run: Run, model: Path, *more: str) -> None:
    assert run("corpus", "snapshot", str(model), "--corpus", CORPUS, "-o", "tokens.jsonl", "-q", *more).code == 0


def test_what_is_reproduced_and_what_drifted(run: Run, model: Path) -> None:
    _taken(run, model, "--option", "add_generation_prompt=false", "--option", "content_format=auto", "--redact")
    verify = ("corpus", "verify", "tokens.jsonl", str(model), "--corpus", CORPUS)
    ran = run(*verify)
    assert (ran.code, ran.out) == (0, "reproduced: 7 renderings, every one as it was saved\n")
    (model / "chat_template.jinja").write_text(TEMPLATE.replace(": ", " "))
    ran = run(*verify)
    assert ran.code == 10
    assert ran.out == "drifted: 6 conversations give something else, chat first: the chat template is another\n"
    ran = run(*verify, "-o", "json")
    assert ran.code == 10
    found = json.loads(ran.out)
    assert (found["state"], found["divergent"][0]) == ("drifted", "chat")


def test_an_edited_snapshot_is_no_longer_reproduced(run: Run, model: Path) -> None:
    _taken(run, model)
    path = Path("tokens.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    entry = json.loads(lines[1])
    entry["renders"][0]["ids"][0] += 1
    path.write_text("".join([lines[0], json.dumps(entry) + "\n", *lines[2:]]))
    ran = run("corpus", "verify", "tokens.jsonl", str(model), "--corpus", CORPUS)
    assert ran.code == 10
    assert "are the same, so the snapshot or a library was edited" in ran.out


def test_what_cannot_be_said(run: Run, model: Path) -> None:
    _taken(run, model)
    ran = run("corpus", "verify", "tokens.jsonl", str(model))
    assert (ran.code, ran.out) == (11, "incomplete: 8 of its conversations were not asked again\n")
    path = Path("tokens.jsonl")
    header, _, rest = path.read_text().partition("\n")
    changed = json.loads(header)
    changed["renderer"]["transformers"] = "4.57.6"
    path.write_text(json.dumps(changed) + "\n" + rest)
    ran = run("corpus", "verify", "tokens.jsonl", str(model), "--corpus", CORPUS)
    assert ran.code == 11
    assert ran.out.startswith("another-renderer: jinja2 3.")
    assert "transformers 4.57.6 made it, and" in ran.out


def test_a_server_that_serves_another_tokenizer_has_drifted(run: Run, stack: ExitStack) -> None:
    engine = stack.enter_context(serving(Engine(vllm(*ALL))))
    assert run("corpus", "snapshot", "--endpoint", engine.url, "--corpus", CORPUS, "-o", "t.jsonl", "-q").code == 0
    engine.answer = vllm(*ALL, answers=lambda _: (200, {"tokens": [2]}))
    ran = run("corpus", "verify", "t.jsonl", "--endpoint", engine.url, "--corpus", CORPUS)
    assert ran.code == 10
    assert "the server has another tokenizer or template, or its template reads the clock" in ran.out
