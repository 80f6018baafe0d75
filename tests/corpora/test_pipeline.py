"""Rendering and encoding in batches gives what transformers gives one by one, whatever the template and the options."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.corpora.child.feeding import batches
from kvgate.corpora.child.position import Position, shared
from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.coverage.installed import recording
from kvgate.corpora.rendering import pipeline as module
from kvgate.corpora.rendering.options import render_options
from kvgate.corpora.rendering.pipeline import Pipeline
from kvgate.corpora.rendering.renderer import CLOCKS, Renderer
from kvgate.corpora.snapshots.snapshot import Rendered, SnapshotEntry, entry_line, entry_of
from kvgate.corpora.sweeps.encoder import Encoder
from kvgate.corpora.tokenizers.effective import leaves_encoding_to_its_backend
from kvgate.rules.errors import InputError

from .conftest import CHATML, MakeFolder

_HI = ({"role": "user", "content": "hi"},)
_TEMPLATES = {
    "chatml": CHATML,
    "trims": "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}\n{% endfor %}",
    "everything": "{{ messages | tojson }}{{ tools | tojson }}{{ documents }}{{ add_generation_prompt }}{{ mode }}",
    "namespace": (
        "{% set n = namespace(count=0) %}{% for m in messages %}{% set n.count = n.count + 1 %}"
        "{% if m.role == 'system' %}{% continue %}{% endif %}{{ n.count }}{{ loop.last }}{{ m['content'] }}{% endfor %}"
    ),
    "macro": (
        "{% macro say(x) %}<|im_start|>{{ x }}{% endmacro %}{% for m in messages %}{{ say(m.content) }}{% endfor %}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "clock": "{{ strftime_now('%A %d %B %Y %H:%M:%S') }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "chance": "{{ [1, 2, 3, 4, 5, 6, 7, 8] | random }}{{ lipsum(n=1) }}{{ messages[0].content }}",
    "refuses": "{% for m in messages %}{{ m.content or raise_exception('empty: ' ~ loop.index) }}{% endfor %}",
    "undefined": "{% for m in messages %}{{ m.content.strip() }}{{ m.tool_calls[0].function.name }}{% endfor %}",
    "reasoning": "{% for m in messages %}{{ m.thinking }}{{ m.reasoning_content }}|{{ m.content }}{% endfor %}",
    "specials": "{{ eos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ bos_token }}",
}
_MESSAGES: tuple[tuple[Mapping[str, Any], ...], ...] = (
    _HI,
    ({"role": "system", "content": " é\u0301 <|im_end|> "}, *_HI),
    (*_HI, {"role": "assistant", "content": "  Well \n", "reasoning": "hm"}),
    (*_HI, {"role": "assistant", "content": None, "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": "{\"b\": [1, null, true]}"}}]},
        {"role": "tool", "content": "<s>"}),
    ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]},),
    ({"role": "user", "content": ""},),
    (),
)  # fmt: skip
_SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "closed": {"add_generation_prompt": False},
    "open": {"continue_final_message": True},
    "both": {"continue_final_message": True, "add_generation_prompt": True},
    "tools": {"tools": ({"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": "ü"}}},)},
    "variables": {"template_kwargs": {"mode": {"x": None}, "eos_token": "!"}, "documents": ({"title": "t"},)},
}
_CONVERSATIONS = [
    *(
        Conversation(f"{number}-{how}", messages=messages, **options)
        for number, messages in enumerate(_MESSAGES)
        for how, options in _SHAPES.items()
    ),
    *(Conversation(f"raw-{n}", prompt=text) for n, text in enumerate(("", " a", "<s>b", "\U0001f469\u200d\U0001f467"))),
]


def _saying(texts: Sequence[str]) -> list[Conversation]:
    return [Conversation(str(n), messages=({"role": "user", "content": text},)) for n, text in enumerate(texts)]


class Made:
    """A pipeline and what it made of conversations."""

    def __init__(self, folder: Path, *, direct: bool | None = None, redact: bool = False, **options: Any) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.template = self.tokenizer.chat_template
        self.options, _ = render_options(options)
        self.position = Position(shared())
        does = leaves_encoding_to_its_backend(self.tokenizer) if direct is None else direct
        self.pipeline = Pipeline(
            Renderer(self.tokenizer, None, self.options, "t", 10_000, random="random" in self.template),
            Encoder(self.tokenizer, direct=does),
            CLOCKS if "strftime_now" in self.template else CLOCKS[:1],
            direct=does,
            redact=redact,
            position=self.position,
        )

    def __call__(self, conversations: Sequence[Conversation]) -> list[SnapshotEntry]:
        lines: list[bytes] = []
        counts: list[int] = []

        def take(data: bytes, count: int) -> None:
            lines.extend(data.splitlines())
            counts.append(count)

        with recording({"default": self.template}) as recorder:
            self.pipeline.run((json.loads(batch.line) for batch in batches(conversations)), take, recorder)
        self.executed = {str(arm) for arm in recorder.coverage().arms if arm.executed} if recorder else None
        assert len(lines) == sum(counts) == len(conversations)
        clocks = 2 if "strftime_now" in self.template else 1
        return [entry_of(json.loads(line), "x", clocks) for line in lines]


@contextlib.contextmanager
def _at(clock: str) -> Iterator[None]:
    """Stop transformers' clock by means of its own."""
    from datetime import datetime

    from transformers.utils import chat_template_utils

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Stopped:  # noqa: ARG003
            return cls.fromisoformat(clock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chat_template_utils, "datetime", Stopped)
        yield


def _directly(made: Made, one: Conversation) -> tuple[str | None, list[int], str | None]:
    """Text, ids and the class of the error that transformers gives when nothing of kvgate is in between."""
    import random

    random.seed(0)
    try:
        if one.prompt is not None:
            return one.prompt, list(made.tokenizer(one.prompt)["input_ids"]), None
        generate = not one.continue_final_message if one.add_generation_prompt is None else one.add_generation_prompt
        arguments: dict[str, Any] = {
            "tools": None if one.tools is None else list(one.tools),
            "documents": None if one.documents is None else list(one.documents),
            "add_generation_prompt": generate,
            "continue_final_message": one.continue_final_message,
            **one.template_kwargs,
        }
        messages = [dict(message) for message in one.messages or ()]
        ids = made.tokenizer.apply_chat_template(messages, return_dict=False, **arguments)
        random.seed(0)
        return made.tokenizer.apply_chat_template(messages, tokenize=False, **arguments), list(ids), None
    except Exception as error:
        return None, [], type(error).__name__


@pytest.mark.parametrize("checked", [0, 10_000], ids=["batched", "checked"])
@pytest.mark.parametrize("name", _TEMPLATES)
def test_text_and_ids_are_those_of_untouched_transformers(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, name: str, checked: int
) -> None:
    monkeypatch.setattr(module, "CHECKED", checked)
    made = Made(make_folder(template=_TEMPLATES[name], bos_token="<s>"), parse_tool_arguments=False)
    entries = made(_CONVERSATIONS)
    rendered = 0
    for entry, one in zip(entries, _CONVERSATIONS, strict=True):
        for render, clock in zip(entry.renders, CLOCKS[: len(entry.renders)], strict=True):
            with _at(clock):
                text, ids, error = _directly(made, one)
            found = (render.text, render.ids.tolist(), None if render.error is None else render.error[0])
            assert found == (text, ids, error), one.id
            rendered += render.ok
    assert rendered >= 4  # the raw completions, whatever the template


@pytest.mark.parametrize("add", [True, False])
def test_raw_completions_get_the_tokenizers_prefix_in_batches_too(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, add: bool
) -> None:
    def with_bos(backend: dict[str, Any]) -> None:
        backend["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        }

    monkeypatch.setattr(module, "CHECKED", 0)
    made = Made(make_folder(with_bos), add_special_tokens=add)
    chat, raw = (one.renders[0].ids for one in made([Conversation("c", messages=_HI), Conversation("r", prompt="hi")]))
    assert (raw[0] == 0) is add
    assert chat[0] != 0


def test_stored_truncation_and_padding_are_off(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(backend: dict[str, Any]) -> None:
        backend["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
        backend["padding"] = {
            "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<s>",
        }  # fmt: skip

    monkeypatch.setattr(module, "CHECKED", 0)
    made = Made(make_folder(edit))
    (entry,) = made([Conversation("r", prompt="one two three four five")])
    assert entry.renders[0].ids.tolist() == list(made.tokenizer("one two three four five")["input_ids"])
    assert 2 < len(entry.renders[0].ids) < 64


def test_a_text_that_cannot_be_encoded_spoils_no_other(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKED", 0)
    texts = ["fine", "a\ud800b", "fine"]
    made = Made(make_folder())
    first, broken, last = made(
        [Conversation(str(n), messages=({"role": "user", "content": t},)) for n, t in enumerate(texts)]
    )
    assert broken.renders[0].error is not None
    assert first.renders[0].ids == last.renders[0].ids != array("I")


class _Odd:
    """An encoder that is wrong about one text."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder

    def ids(self, texts: Sequence[str], *, special_tokens: bool) -> list[Any]:
        found = self._encoder.ids(texts, special_tokens=special_tokens)
        return [[7] if "odd" in text else ids for text, ids in zip(texts, found, strict=True)]


def test_where_text_and_ids_disagree_once_all_are_checked(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKED", 2)
    made = Made(make_folder())
    made.pipeline._encoder = _Odd(made.pipeline._encoder)  # type: ignore[assignment]
    texts = ["odd", *["even"] * 299, "odd", "even"]
    entries = made(_saying(texts))
    failed = {entry.id: entry.renders[0].error for entry in entries if not entry.renders[0].ok}
    assert failed.keys() == {"0", "300"}
    assert {error[0] for error in failed.values() if error} == {"TextAndIdsDisagreeError"}


@pytest.mark.parametrize("odd", range(9))
def test_the_order_stays_where_checking_ends_or_goes_on(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, odd: int
) -> None:
    monkeypatch.setattr(module, "CHECKED", 4)
    monkeypatch.setattr(module, "_TEXT", 150)  # two conversations
    made = Made(make_folder())
    made.pipeline._encoder = _Odd(made.pipeline._encoder)  # type: ignore[assignment]
    entries = made(_saying(["odd" if n == odd else "even" for n in range(12)]))
    assert [entry.id for entry in entries] == [str(n) for n in range(12)]
    assert (not entries[odd].renders[0].ok) is (odd < 5)  # one more is rendered before the fourth is done


def test_a_class_with_an_encoding_of_its_own_is_always_checked(make_folder: MakeFolder) -> None:
    made = Made(make_folder(), direct=False)
    made.pipeline._encoder = _Odd(made.pipeline._encoder)  # type: ignore[assignment]
    texts = ["even"] * (module.CHECKED + 1) + ["odd"]
    entries = made(_saying(texts))
    assert [entry.id for entry in entries if not entry.renders[0].ok] == [str(module.CHECKED + 1)]


def test_much_text_is_encoded_in_pieces_and_stays_in_order(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECKED", 3)
    monkeypatch.setattr(module, "_TEXT", 500)
    made = Made(make_folder())
    conversations = [
        Conversation(str(n), messages=({"role": "user", "content": f"{n} " * (n % 90)},)) for n in range(700)
    ]
    entries = made(conversations)
    assert [entry.id for entry in entries] == [one.id for one in conversations]
    assert [entry.input for entry in entries] == [one.input_digest for one in conversations]
    assert entries[650].renders[0].text == f"<|im_start|>user\n{'650 ' * 20}<|im_end|>\n<|im_start|>assistant\n"
    moves, conversation, doing = made.position.get()
    assert (conversation, doing) == (699, "encoding")
    assert moves > 700


def test_output_without_bounds_ends_it(make_folder: MakeFolder) -> None:
    made = Made(make_folder(template="{{ messages[0].content * 1001 }}"))
    with pytest.raises(InputError, match="writes more than 10,000 characters"):
        made([Conversation("a", messages=({"role": "user", "content": "x" * 10},))])


def test_turns_and_generated_ids_are_recorded_where_asked_for(make_folder: MakeFolder) -> None:
    made = Made(make_folder())
    answer = made.tokenizer("Seven.", add_special_tokens=False)["input_ids"]
    messages = (
        {"role": "user", "content": "Name a prime."}, {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "Another."},
    )  # fmt: skip
    chat = Conversation("untagged", messages=messages)
    tagged = dataclasses.replace(chat, id="tagged", tags=("multi-turn",))
    given = dataclasses.replace(chat, id="generated", generated={1: tuple(answer)})
    wrong = dataclasses.replace(chat, id="wrong", generated={1: (answer[0], 1)})
    raw = Conversation("raw", prompt="x", tags=("multi-turn",))
    entries = {entry.id: entry for entry in made([chat, tagged, given, wrong, raw])}
    assert entries["untagged"].turns is None
    turns = entries["tagged"].turns
    assert turns is not None
    assert [(turn["end"], turn["shared"] == turn["tokens"]) for turn in turns] == [(1, True), (2, True)]
    assert entries["raw"].turns == ()
    assert entries["generated"].turns is None
    (same,), (other,) = entries["generated"].generated or (), entries["wrong"].generated or ()
    assert (same["message"], same["shared"], same["tokens"]) == (1, len(answer), len(answer))
    assert (other["shared"], other["tokens"]) == (1, 2)


def test_branches_count_where_the_rendering_does(make_folder: MakeFolder) -> None:
    """Not those of a failed rendering, nor those of a chat that was cut to see whether its prefix holds."""
    template = (
        "{% if messages|length == 1 %}{{ '1' }}{% endif %}{% if messages[0].content == 'no' %}"
        "{{ raise_exception('no') }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    made = Made(make_folder(template=template))
    long = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})
    entries = made([*_saying(["no"]), Conversation("long", tags=("multi-turn",), messages=long)])
    assert [entry.renders[0].ok for entry in entries] == [False, True]
    assert entries[1].turns
    ran = made.executed
    assert ran is not None
    assert any("else" in arm and "length" in arm for arm in ran)
    assert not any(arm.endswith("if messages|length == 1`") and "else" not in arm for arm in ran), ran
    assert not any("'no'" in arm and "else" not in arm for arm in ran), ran


def test_redacted_lines_hold_no_prompt_text(make_folder: MakeFolder) -> None:
    template = (
        "{{ raise_exception(messages[0].content) if messages[0].content == 'secret one' else messages[0].content }}"
    )
    folder = make_folder(template=template)
    conversations = [
        Conversation(str(n), messages=({"role": "user", "content": f"secret {n}"},)) for n in ("one", "two")
    ]
    open_, hidden = Made(folder)(conversations), Made(folder, redact=True)(conversations)
    assert "secret" in repr(open_)
    assert "secret" not in repr(hidden)
    assert [entry.renders[0].ids for entry in open_] == [entry.renders[0].ids for entry in hidden]
    assert hidden[1].renders[0].same_text(open_[1].renders[0])
    assert hidden[0].renders[0].error is not None


_TEXTS = st.text(st.characters(codec=None))


@given(
    st.builds(
        SnapshotEntry, _TEXTS, _TEXTS,
        st.lists(
            st.builds(
                Rendered, st.none() | _TEXTS,
                st.lists(st.integers(0, 2**32 - 1), max_size=4).map(lambda ids: array("I", ids)), st.none(),
                st.none() | _TEXTS,
            ),
            min_size=1, max_size=2,
        ).map(tuple),
    )
)  # fmt: skip
def test_the_line_written_by_hand_is_the_line_that_json_writes(entry: SnapshotEntry) -> None:
    renders = [
        {
            "state": "ok",
            "text": one.text,
            "ids": one.ids.tolist(),
            **({} if one.digest is None else {"digest": one.digest}),
        }
        for one in entry.renders
    ]
    data = {"id": entry.id, "input": entry.input, "renders": renders}
    assert entry_line(entry) == json.dumps(data, sort_keys=True, separators=(",", ":")).encode() + b"\n"
