"""The whole way through the child process, held against transformers called directly."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.conversations.corpus import Corpus
from kvgate.corpora.examine import describe_tokenizer, examine
from kvgate.corpora.rendering.renderer import CLOCKS
from kvgate.corpora.snapshots.snapshot import SnapshotEntry, SnapshotFile
from kvgate.rules.errors import InputError

from .conftest import CHATML, MakeFolder, Take, corpus_of

_RICH = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for document in documents or [] %}{{ document.title }}: {{ document.text }}
{% endfor %}
{%- for message in messages %}
{%- if message.role == 'observer' %}{{ raise_exception('no observers') }}{% endif %}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content | trim }}
{%- else %}{% for part in message.content or [] %}{{ part.text or '<|image|>' }}{% endfor %}{% endif %}
{%- for call in message.tool_calls or [] %}
{{ call.function.name }}({% for key, value in call.function.arguments.items() -%}
{{ key }}={{ value | tojson }};{% endfor %})
{%- endfor %}
{%- if message.reasoning_content and not loop.last %}<think>{{ message.reasoning_content }}{% endif %}<|im_end|>
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>{% endif %}{% endif %}"""
_CLOCK = "Today: {{ strftime_now('%d %B %Y, %A') }}\n" + CHATML


@pytest.mark.parametrize("template", [CHATML, _RICH], ids=["chatml", "rich"])
def test_ids_are_those_of_apply_chat_template(
    make_folder: MakeFolder, diagnostic: Corpus, template: str, take: Take
) -> None:
    from transformers import AutoTokenizer

    folder = make_folder(template=template)
    entries = list(take(folder, diagnostic, options={"parse_tool_arguments": False}).entries())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert [entry.id for entry in entries] == [one.id for one in diagnostic.conversations()]
    succeeded = 0
    for entry, one in zip(entries, diagnostic.conversations(), strict=True):
        (render,) = entry.renders
        if render.error is not None:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the question
                _directly(tokenizer, one)
            assert type(caught.value).__name__ == render.error[0], one.id
        else:
            assert render.ids.tolist() == _directly(tokenizer, one), one.id
            succeeded += 1
    assert succeeded > 0.85 * len(entries)


def _directly(tokenizer: Any, one: Conversation) -> list[int]:
    if one.prompt is not None:
        return list(tokenizer(one.prompt)["input_ids"])
    generate = not one.continue_final_message if one.add_generation_prompt is None else one.add_generation_prompt
    return list(
        tokenizer.apply_chat_template(
            list(one.messages or ()),
            tools=None if one.tools is None else list(one.tools),
            documents=None if one.documents is None else list(one.documents),
            add_generation_prompt=generate,
            continue_final_message=one.continue_final_message,
            return_dict=False,
            **one.template_kwargs,
        )
    )


def test_the_same_folder_twice_gives_the_same_bytes(make_folder: MakeFolder, diagnostic: Corpus, take: Take) -> None:
    folder = make_folder(template=_CLOCK)
    first, again = take(folder, diagnostic), take(folder, diagnostic)
    assert first.path.read_bytes() == again.path.read_bytes()
    entries = list(first.entries())
    failed = {entry.id for entry in entries if not all(render.ok for render in entry.renders)}
    assert failed >= {"no-messages", "parts-texts"}
    assert len(entries) == first.footer.conversations == diagnostic.count
    assert {len(entry.renders) for entry in entries} == {2}


def test_a_clock_is_stopped_at_two_dates(make_folder: MakeFolder, tmp_path: Path) -> None:
    facts, snapshot = examine(make_folder(template=_CLOCK), corpus=_corpus("hi"), snapshot_to=tmp_path / "s")
    assert snapshot is not None
    assert snapshot.header.clocks == CLOCKS
    assert facts.template is not None
    assert facts.template.reads_clock
    texts = [render.text for render in _first(snapshot).renders]
    assert [str(text).partition("<")[0] for text in texts] == [
        "Today: 03 February 2026, Tuesday",
        "Today: 19 November 2027, Friday",
    ]


def test_facts(make_folder: MakeFolder) -> None:
    from importlib.metadata import version

    folder = make_folder()
    facts = describe_tokenizer(folder)
    assert facts.renderer == {name: version(name) for name in ("transformers", "tokenizers")}
    assert facts.jinja2 == version("jinja2")
    assert facts.template is not None
    assert facts.template.source == "tokenizer_config.json"
    assert facts.template.reads == ("add_generation_prompt", "messages")
    assert set(facts.files) == {"tokenizer.json", "tokenizer_config.json"}
    assert facts.vocabulary is not None
    assert facts.vocabulary.size == 901
    assert not facts.unread


def test_the_template_of_a_multimodal_models_processor_counts(make_folder: MakeFolder) -> None:
    """vLLM and SGLang render with it; tokenizers do not read the file."""
    folder = make_folder()
    alone = describe_tokenizer(folder).template
    found = []
    for text in ("{{ messages }}", "{{ messages }}!"):
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": text}))
        found.append(describe_tokenizer(folder).template)
    assert alone is not None
    assert all(one is not None and set(one.texts) == {"default", "processor"} for one in found)
    assert len({one.digest for one in (alone, *found) if one is not None}) == 3
    assert len({one.tree for one in (alone, *found) if one is not None}) == 3
    (folder / "chat_template.json").write_text("{}")
    with pytest.raises(InputError, match="holds no chat template"):
        describe_tokenizer(folder)


def test_the_moved_bos_rule_shows_in_raw_completions_only(
    make_folder: MakeFolder, diagnostic: Corpus, take: Take
) -> None:
    def with_bos(backend: dict[str, Any]) -> None:
        backend["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
        }

    old = take(make_folder(), diagnostic)
    new = take(make_folder(with_bos), diagnostic)
    shared = {}
    for before, after in zip(old.entries(), new.entries(), strict=True):
        one, other = before.renders[0], after.renders[0]
        if one.ids != other.ids:
            pairs = zip(one.ids, other.ids, strict=False)
            shared[before.id] = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            assert one.same_text(other)
    assert shared.keys() == {one.id for one in diagnostic.conversations() if one.prompt is not None}
    assert shared.pop("raw-begins-special") == 1  # it says "<s>" itself: one of two is shared
    assert set(shared.values()) == {0}


def test_tools_choose_the_template(make_folder: MakeFolder, take: Take) -> None:
    folder = make_folder(template=[{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}])
    corpus = corpus_of(
        Conversation("none", messages=_HI), Conversation("empty", messages=_HI, tools=()),
    )  # fmt: skip
    snapshot = take(folder, corpus)
    assert [entry.renders[0].text for entry in snapshot.entries()] == ["plain", "tools"]
    override = take(folder, corpus, template="{{ 'mine' }}")
    assert [entry.renders[0].text for entry in override.entries()] == ["mine", "mine"]


def test_tool_arguments_are_parsed_as_engines_do(make_folder: MakeFolder, take: Take) -> None:
    def chat(arguments: Any) -> tuple[dict[str, Any], ...]:
        return ({"role": "assistant", "tool_calls": [{"function": {"name": "f", **arguments}}]},)

    corpus = corpus_of(
        Conversation("text", messages=chat({"arguments": '{"b": 1, "a": null}'})),
        Conversation("object", messages=chat({"arguments": {"b": 1, "a": None}})),
        Conversation("broken", messages=chat({"arguments": "{"})),
        Conversation("missing", messages=chat({})),
        Conversation("no calls", messages=({"role": "assistant", "tool_calls": []},)),
    )
    template = (
        "{{ messages[0].tool_calls[0].function.arguments | tojson if messages[0].tool_calls is defined else 'none' }}"
    )
    snapshot = take(make_folder(template=template), corpus)
    assert [entry.renders[0].text for entry in snapshot.entries()] == [
        '{"b": 1, "a": null}', '{"b": 1, "a": null}', "{}", "{}", "none",
    ]  # fmt: skip


def test_options_reach_the_template(make_folder: MakeFolder, take: Take) -> None:
    folder = make_folder(template="{{ add_generation_prompt }}{{ mode }}")
    corpus = corpus_of(
        Conversation("a", messages=_HI),
        Conversation("b", messages=_HI, add_generation_prompt=True, template_kwargs={"mode": "own"}),
    )
    options = {"add_generation_prompt": False, "template_kwargs": {"mode": "all"}, "content_format": "auto"}
    snapshot = take(folder, corpus, options=options)
    assert [entry.renders[0].text for entry in snapshot.entries()] == ["Falseall", "Trueown"]
    assert snapshot.header.unapplied == ("content_format",)


def test_no_template_is_known_and_only_completions_are_examined(make_folder: MakeFolder, tmp_path: Path) -> None:
    corpus = corpus_of(Conversation("chat", messages=_HI), Conversation("raw", prompt="hi"))
    facts, snapshot = examine(make_folder(template=None), corpus=corpus, snapshot_to=tmp_path / "s")
    assert facts.template is None
    assert snapshot is not None
    chat, raw = (entry.renders[0] for entry in snapshot.entries())
    assert chat.error is not None
    assert chat.error[0] == "ValueError"
    assert raw.ok


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path, take: Take) -> None:
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    facts, snapshot = examine(tmp_path, corpus=_corpus("hi"), snapshot_to=tmp_path / "s")
    assert snapshot is None
    assert facts.effective is None
    assert facts.files == {}
    assert facts.unread == (("effective", "there is no tokenizer file in the folder"),)
    assert facts.template is not None
    with pytest.raises(InputError, match="no tokenizer file in the folder"):
        take(tmp_path, _corpus("hi"))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        describe_tokenizer(tmp_path / "missing")


def test_a_relative_template_and_folder(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, take: Take) -> None:
    folder = make_folder()
    (folder.parent / "mine.jinja").write_text("mine")
    monkeypatch.chdir(folder.parent)
    snapshot = take(Path(folder.name), _corpus("hi"), template="mine.jinja")
    assert _first(snapshot).renders[0].text == "mine"


def test_progress_counts_conversations(make_folder: MakeFolder, take: Take) -> None:
    seen: list[tuple[int, int | None, str]] = []
    take(
        make_folder(),
        _corpus("a", "b", "c"),
        progress=lambda stage, done, total, unit: seen.append((done, total, unit)),  # noqa: ARG005
    )
    assert seen == [(3, 3, "conversations")]


def test_a_lone_surrogate_is_an_error_of_that_conversation(make_folder: MakeFolder, take: Take) -> None:
    snapshot = take(make_folder(), _corpus("a\ud800b", "fine"))
    broken, fine = (entry.renders[0] for entry in snapshot.entries())
    assert broken.error is not None
    assert fine.ok


_HI = ({"role": "user", "content": "hi"},)


def _first(snapshot: SnapshotFile) -> SnapshotEntry:
    return next(snapshot.entries())


def _corpus(*contents: str) -> Corpus:
    one = Conversation("", messages=_HI)
    return corpus_of(
        *(
            dataclasses.replace(one, id=str(n), messages=({"role": "user", "content": content},))
            for n, content in enumerate(contents)
        )
    )
