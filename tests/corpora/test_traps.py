"""Files alone do not say what transformers builds: each known trap, by ids, with the effective tokenizer beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.conversations.corpus import Corpus
from kvgate.corpora.tokenizers.backend import Folder, build, describe

from .conftest import MakeFolder, texts_of

_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
_QWEN = {"config.json": {"model_type": "qwen2"}}


@dataclass(frozen=True)
class Trap:
    """One change of files, and whether it moves ids.

    Attributes:
        moves: whether ids are others, and so is the effective tokenizer.
        edit: what it does to tokenizer.json.
        settings: what it adds to tokenizer_config.json.
        files: further files, both sides' and then the changed side's.
        base: what both sides have in tokenizer_config.json.
        text: a text that shows it; ``None``: the diagnostic corpus does.

    """

    moves: bool
    edit: Callable[[dict[str, Any]], object] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    files: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    base: dict[str, Any] = field(default_factory=dict)
    text: str | None = None


def _digits(backend: dict[str, Any]) -> None:
    inner = backend["pre_tokenizer"]
    digits = {"type": "Digits", "individual_digits": True}
    backend["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, inner]}


def _begun(backend: dict[str, Any]) -> None:
    backend["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    }


_TRAPS = {
    "config.json chooses a class that rebuilds": Trap(True, base={"tokenizer_class": None}, files=({}, _QWEN)),
    "config.json names a type that chooses no class": Trap(
        False, base={"tokenizer_class": None}, files=({}, {"config.json": {"model_type": "llama"}})
    ),
    "a rebuilding class ignores the file's pre-tokenizer": Trap(
        False, edit=_digits, base={"tokenizer_class": None}, files=(_QWEN, {})
    ),
    "another class keeps the file's pre-tokenizer": Trap(True, edit=_digits, text="in 2026"),
    "a rebuilding class ignores the file's normaliser": Trap(
        False,
        edit=lambda backend: backend.update(normalizer={"type": "Lowercase"}),
        base={"tokenizer_class": None},
        files=(_QWEN, {}),
    ),
    "class, named in the settings": Trap(True, settings={"tokenizer_class": "GPT2Tokenizer"}),
    "prefix space, of a class that rebuilds": Trap(
        True, base={"tokenizer_class": "GPT2Tokenizer"}, settings={"add_prefix_space": True}
    ),
    "an added token, from the settings": Trap(
        True, settings={"added_tokens_decoder": {"7000": {"content": "<new>", **_PLAIN}}}, text="a <new> b"
    ),
    "rstrip of an added token, from the settings": Trap(
        True,
        settings={"added_tokens_decoder": {"2": {"content": "<|im_end|>", **_PLAIN, "rstrip": True}}},
        text="<|im_end|> a",
    ),
    "an additional special token": Trap(True, settings={"additional_special_tokens": ["<new>"]}, text="<new>"),
    "an extra special token": Trap(True, settings={"extra_special_tokens": ["<new>"]}, text="<new>"),
    "a BOS token that is in no vocabulary": Trap(True, settings={"bos_token": "<new>"}, text="<new>"),
    "special tokens split": Trap(True, settings={"split_special_tokens": True}, text="<|im_end|>"),
    "a BOS token asked for, of a class that goes by the file": Trap(
        False, base={"bos_token": "<s>"}, settings={"add_bos_token": True}
    ),
    "a BOS rule in the file": Trap(True, edit=_begun),
    "older file of added tokens": Trap(True, files=({}, {"added_tokens.json": {"<new>": 7000}}), text="<new>"),
    "older file of special tokens": Trap(
        True, files=({}, {"special_tokens_map.json": {"bos_token": "<new>"}}), text="<new>"
    ),
    "older files beside settings that name the tokens": Trap(
        False,
        base={"added_tokens_decoder": {"2": {"content": "<|im_end|>", **_PLAIN}}},
        files=({}, {"added_tokens.json": {"<new>": 7000}, "special_tokens_map.json": {"bos_token": "<new>"}}),
        text="<new>",
    ),
}


@pytest.mark.parametrize("name", _TRAPS)
def test_the_effective_tokenizer_moves_where_ids_do(make_folder: MakeFolder, diagnostic: Corpus, name: str) -> None:
    trap = _TRAPS[name]
    sides = [make_folder(**trap.base), make_folder(trap.edit, **{**trap.base, **trap.settings})]
    for place, folder in enumerate(sides):
        for files in trap.files[: place + 1]:
            _write(folder, files)
    tokenizers = [build(Folder(folder)) for folder in sides]
    texts = [*texts_of(diagnostic)] if trap.text is None else [trap.text]
    ids = [
        [tokenizer(texts, add_special_tokens=special)["input_ids"] for special in (False, True)]
        for tokenizer in tokenizers
    ]
    digests = [describe(tokenizer)["effective"] for tokenizer in tokenizers]
    assert (ids[0] != ids[1]) == trap.moves
    assert (digests[0] != digests[1]) == trap.moves
    assert None not in digests


def _write(folder: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


def test_a_raw_completion_parts_where_no_chat_does(make_folder: MakeFolder) -> None:
    """As between two revisions of Meta-Llama-3: the template writes its own BOS, and only the file's rule moved."""
    template = "{{ bos_token }}{{ messages[0].content }}"
    old, new = (build(Folder(make_folder(edit, bos_token="<s>", template=template))) for edit in (None, _begun))
    chat = [{"role": "user", "content": "hi"}]
    assert old.apply_chat_template(chat)["input_ids"] == new.apply_chat_template(chat)["input_ids"]
    assert [new.bos_token_id, *old("hi")["input_ids"]] == new("hi")["input_ids"]
    assert describe(old)["effective"] != describe(new)["effective"]
