"""The effective tokenizer: it moves with everything that can move an id, and with nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.conversations.corpus import Corpus
from kvgate.corpora.tokenizers.backend import Folder, build, describe
from kvgate.rules.errors import InputError

from .conftest import MakeFolder, texts_of

_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}

Edit = Callable[[dict[str, Any]], object]


def _set(*path: Any) -> Edit:
    *way, key, value = path

    def edit(backend: dict[str, Any]) -> None:
        place: Any = backend
        for step in way:
            place = place[step]
        place[key] = value

    return edit


def _swap_merges(backend: dict[str, Any]) -> None:
    merges = backend["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]


def _swap_ids(backend: dict[str, Any]) -> None:
    vocab = backend["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]


def _append_token(backend: dict[str, Any]) -> None:
    backend["added_tokens"].append({"id": 5000, "content": "<tool_call>", **_ADDED, "special": False})


# Incident I14 and what is like it: names, padding, stopping, decoding, layout.
_INERT: dict[str, tuple[Edit | None, dict[str, Any]]] = {
    "eos token, another existing one": (None, {"eos_token": "<|eot_id|>"}),
    "pad token": (None, {"pad_token": "<|eot_id|>"}),
    "no pad token": (None, {"pad_token": None}),
    "model_max_length": (None, {"model_max_length": 10**30}),
    "clean-up after decoding": (None, {"clean_up_tokenization_spaces": True}),
    "padding side": (None, {"padding_side": "left", "truncation_side": "left"}),
    "chat template": (None, {"template": "{{ messages }}"}),
    "legacy name of the class": (None, {"tokenizer_class": "PreTrainedTokenizer"}),
    "another name of the class": (None, {"tokenizer_class": "TokenizersBackend"}),
    "a class nobody knows": (None, {"tokenizer_class": "NoSuchTokenizer"}),
    "an unused setting": (None, {"kvgate_unused": 1}),
    "stored truncation": (
        _set("truncation", {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}),
        {},
    ),
    "stored padding": (
        _set(
            "padding",
            {
                "strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None,
                "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>",
            },
        ),
        {},
    ),
    "order of keys": (lambda backend: backend.update(model=backend.pop("model")), {}),
}  # fmt: skip

_EFFECTIVE: dict[str, tuple[Edit | None, dict[str, Any]]] = {
    "two merges swapped": (_swap_merges, {}),
    "two ids exchanged": (_swap_ids, {}),
    "a merge less": (lambda backend: backend["model"]["merges"].pop(), {}),
    "a token appended": (_append_token, {}),
    "a special token appended by name": (None, {"eos_token": "<|new|>"}),
    "an extra special token": (None, {"extra_special_tokens": ["<|new|>"]}),
    "an extra special token, older name": (None, {"additional_special_tokens": ["<|new|>"]}),
    "rstrip of an added token": (_set("added_tokens", 2, "rstrip", True), {}),
    "lstrip of an added token": (_set("added_tokens", 2, "lstrip", True), {}),
    "single_word of an added token": (_set("added_tokens", 4, "single_word", True), {}),
    "normalized of an added token": (_set("added_tokens", 4, "normalized", False), {}),
    "rstrip, from the settings": (
        None,
        {"added_tokens_decoder": {"2": {"content": "<|im_end|>", **_ADDED, "rstrip": True}}},
    ),
    "normaliser": (_set("normalizer", {"type": "NFKC"}), {}),
    "no normaliser": (_set("normalizer", None), {}),
    "pre-tokenizer option": (_set("pre_tokenizer", "add_prefix_space", True), {}),
    "pre-tokenizer rule": (_set("pre_tokenizer", "use_regex", False), {}),
    "BOS rule": (
        _set(
            "post_processor",
            {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
            },
        ),
        {},
    ),
    "merges ignored": (_set("model", "ignore_merges", True), {}),
    "split_special_tokens": (None, {"split_special_tokens": True}),
    "class that rebuilds the backend": (None, {"tokenizer_class": "GPT2Tokenizer"}),
}  # fmt: skip


def _effective(folder: Path) -> str:
    effective = describe(build(Folder(folder)))["effective"]
    assert isinstance(effective, str)
    return effective


def _ids(folder: Path, corpus: Corpus) -> list[list[int]]:
    tokenizer = build(Folder(folder))
    texts = list(texts_of(corpus))
    return [*tokenizer(texts)["input_ids"], *tokenizer(texts, add_special_tokens=False)["input_ids"]]


@pytest.mark.parametrize("name", _INERT)
def test_what_cannot_change_an_id_keeps_it(make_folder: MakeFolder, diagnostic: Corpus, name: str) -> None:
    edit, config = _INERT[name]
    edited = make_folder(edit, **config)
    assert _effective(edited) == _effective(make_folder())
    assert _ids(edited, diagnostic) == _ids(make_folder(), diagnostic)


@pytest.mark.parametrize("name", _EFFECTIVE)
def test_what_can_change_an_id_changes_it(make_folder: MakeFolder, name: str) -> None:
    edit, config = _EFFECTIVE[name]
    assert _effective(make_folder(edit, **config)) != _effective(make_folder())


def test_a_class_that_encodes_its_own_way_is_part_of_it(make_folder: MakeFolder) -> None:
    tokenizer = build(Folder(make_folder()))
    before = describe(tokenizer)["effective"]

    class Renamed(type(tokenizer)):  # type: ignore[misc]
        pass

    class Overriding(type(tokenizer)):  # type: ignore[misc]
        def _encode_plus(self, *args: Any, **kwargs: Any) -> Any:
            return super()._encode_plus(*args, **kwargs)

    tokenizer.__class__ = Renamed
    assert describe(tokenizer)["effective"] == before
    tokenizer.__class__ = Overriding
    assert describe(tokenizer)["effective"] != before


def test_a_tokenizer_without_a_backend_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    facts = describe(build(Folder(tmp_path)))
    assert facts["effective"] is None
    assert facts["unread"] == [("effective", "ByT5Tokenizer has no backend that can be written out")]


def test_vocabulary_and_special_tokens(make_folder: MakeFolder) -> None:
    facts = describe(build(Folder(make_folder(extra_special_tokens=["<|new|>"]))))
    again = describe(build(Folder(make_folder())))
    assert facts["vocabulary"]["size"] == again["vocabulary"]["size"] + 1
    assert facts["vocabulary"]["digest"] != again["vocabulary"]["digest"]
    assert facts["special_tokens"] == {
        "eos_token": "<|im_end|>", "extra_special_tokens": ["<|new|>"], "pad_token": "<|im_end|>",
    }  # fmt: skip


def test_files_are_found_and_hashed(make_folder: MakeFolder) -> None:
    from blake3 import blake3

    folder = make_folder()
    for name in ("added_tokens.json", "special_tokens_map.json", "config.json", "chat_template.jinja", "vocab.json"):
        (folder / name).write_text("{}")
    files = Folder(folder).files
    assert set(files) == {
        "added_tokens.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json",
    }  # fmt: skip
    assert files["vocab.json"] == f"blake3:{blake3(b'{}').hexdigest()}"


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({"tokenizer_class": "CustomTokenizer", "auto_map": {"AutoTokenizer": ["code.Custom", None]}}, True),
        ({"tokenizer_class": None, "auto_map": {"AutoTokenizer": ["code.Custom", None]}}, True),
        ({"tokenizer_class": "CustomTokenizer", "auto_map": ["code.Custom", None]}, True),
        ({"tokenizer_class": "GPT2Tokenizer", "auto_map": {"AutoTokenizer": ["code.Custom", None]}}, False),
        ({"tokenizer_class": "CustomTokenizer", "auto_map": {"AutoConfig": "code.Config"}}, False),
    ],
)
def test_remote_code_is_refused_and_never_run(make_folder: MakeFolder, config: dict[str, Any], refused: bool) -> None:
    folder = make_folder(**config)
    ran = folder / "ran"
    (folder / "code.py").write_text(f"open({str(ran)!r}, 'w')")
    (folder / "config.json").write_text('{"model_type": "llama", "auto_map": {"AutoConfig": "code.Config"}}')
    if refused:
        with pytest.raises(InputError, match="needs code of the model repository"):
            build(Folder(folder))
    else:
        assert not isinstance(build(Folder(folder)), str)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", b'{"model": ', "not valid JSON"),
        ("tokenizer.json", b"\x80\x04\x95", "not UTF-8"),
        ("tokenizer.json", b"[]", "not a JSON object"),
        ("tokenizer.json", b'{"model": {"vocab": {"a": 0, "a": 1}}}', "'a' stands twice"),
        ("tokenizer.json", b'{"model": 1}', "cannot build a tokenizer"),
        ("tokenizer.json", b"[" * 200_000, "nested too deeply"),
        ("tokenizer_config.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b'{"eos_token": "a", "eos_token": "b"}', "'eos_token' stands twice"),
        ("tokenizer_config.json", b'{"padding_side": "up"}', "cannot build a tokenizer"),
        ("special_tokens_map.json", b"{", "not valid JSON"),
        ("vocab.json", b"\xff", "not UTF-8"),
    ],
)
def test_broken_files_are_refused(make_folder: MakeFolder, name: str, content: bytes, says: str) -> None:
    folder = make_folder()
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        build(Folder(folder))
    assert "\n" not in str(caught.value)
    assert str(caught.value.where).startswith(str(folder))


def test_python_writes_infinity(make_folder: MakeFolder) -> None:
    folder = make_folder()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": float("inf")}))
    assert _effective(folder) == _effective(make_folder())
