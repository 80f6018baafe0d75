"""Which template is in force: held against what transformers itself loads."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.templates.template import Templates, describe_templates, resolve_templates
from kvgate.rules.errors import InputError

from .conftest import MakeFolder

_NAMED = [{"name": "default", "template": "N"}, {"name": "tool_use", "template": "NT"}]
_PLACES: dict[str, tuple[Any, ...]] = {
    "config": (None, "C", _NAMED, [{"name": "rag", "template": "R"}]),
    "chat_template.jinja": (None, "F\r\n"),
    "additional_chat_templates/tool_use.jinja": (None, "AT"),
    "additional_chat_templates/default.jinja": (None, "AD"),
}


@pytest.mark.parametrize("choice", list(itertools.product(*_PLACES.values())))
def test_the_order_is_that_of_transformers(make_folder: MakeFolder, choice: tuple[Any, ...]) -> None:
    from transformers import AutoTokenizer

    config, *files = choice
    folder = make_folder(template=config)
    for name, text in zip(list(_PLACES)[1:], files, strict=True):
        if text is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8", newline="")
    found = resolve_templates(folder, json.loads((folder / "tokenizer_config.json").read_text()), None)
    loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).chat_template
    assert (dict(found.texts) if found else None) == ({"default": loaded} if isinstance(loaded, str) else loaded)


def test_an_override_beats_every_file(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(template=_NAMED)
    (folder / "chat_template.jinja").write_text("F")
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    by_file = resolve_templates(folder, {}, str(tmp_path / "mine.jinja"))
    by_text = resolve_templates(folder, {}, "{{ messages }}")
    assert by_file is not None
    assert by_text is not None
    assert by_file.texts == by_text.texts == {"default": "{{ messages }}"}
    assert (by_file.source, by_text.source) == ("mine.jinja", "literal")
    assert describe_templates(by_file).digest == describe_templates(by_text).digest


def test_the_clock_of_several_templates_is_the_fastest_of_them() -> None:
    def clock(**texts: str) -> str | None:
        return describe_templates(Templates(texts, "literal", dict.fromkeys(texts, "t"))).clock

    assert clock(default="a") is None
    assert clock(default="a", tool_use="{{ strftime_now('%Y') }}") == "year"
    assert clock(default="{{ strftime_now('%H') }}", tool_use="{{ strftime_now('%Y') }}") == "hour"


def test_variables_that_no_renderer_supplies() -> None:
    text = "{{ bos_token }}{{ messages }}{{ tools }}{% if enable_thinking %}{{ date_string }}{{ own_token }}{% endif %}"
    facts = describe_templates(Templates({"default": text}, "literal", {"default": "t"}))
    assert facts.unsupplied((), ()) == ("bos_token", "date_string", "enable_thinking", "own_token")
    assert facts.unsupplied(["bos_token", "own_token"], ["enable_thinking"]) == ("date_string",)


def test_the_digest_covers_every_named_template(make_folder: MakeFolder) -> None:
    folder = make_folder()
    facts = []
    for tools in ("{{ a }}", "{{ b }}"):
        templates = resolve_templates(folder, {"chat_template": {"default": "{{ d }}", "tool_use": tools}}, None)
        assert templates is not None
        facts.append(describe_templates(templates))
    assert facts[0].digest != facts[1].digest
    assert facts[0].tree != facts[1].tree
    assert facts[1].reads == ("b", "d")


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (1, "neither text nor a list"),
        ([1], "without a name"),
        ([{"name": "a"}], "'a' is not text"),
        ([{"name": "a", "template": "x"}, {"name": "a", "template": "y"}], "two chat templates are called 'a'"),
        ({"a": None}, "'a' is not text"),
        ("x" * (1 << 21), "more than 1,048,576"),
        ({str(n): "x" for n in range(100)}, "more than 64"),
    ],
)
def test_a_bad_entry_is_refused(tmp_path: Path, entry: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        resolve_templates(tmp_path, {"chat_template": entry}, None)
    assert caught.value.where == str(tmp_path / "tokenizer_config.json")


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        resolve_templates(tmp_path, {}, None)
    path.write_bytes(b"x" * (1 << 21))
    with pytest.raises(InputError, match="larger than"):
        resolve_templates(tmp_path, {}, None)
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        resolve_templates(tmp_path, {}, None)


@pytest.mark.parametrize("override", ["missing.jinja", "x" * 10_000, "a\0b"])
def test_an_override_that_is_neither_file_nor_text_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(InputError, match="neither a file nor template text"):
        resolve_templates(tmp_path, {}, override)
