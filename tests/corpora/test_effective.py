"""What is left out of the effective tokenizer is proved to change no id; what cannot be known is not guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.sweeps.encoder import Encoder
from kvgate.corpora.sweeps.groups import plan
from kvgate.corpora.tokenizers.effective import INERT, canonical, written_out
from kvgate.corpora.tokenizers.inert import inert_classes
from kvgate.corpora.tokenizers.structure import structural_difference

from .trained import KINDS, Backend, byte_level, edited, loaded

_PROCESSOR: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}
_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
_ROBERTA = {
    "type": "RobertaProcessing",
    "sep": ["a", 1],
    "cls": ["b", 2],
    "trim_offsets": True,
    "add_prefix_space": True,
}

Edit = Callable[[Backend], object]


def _set(name: str, value: Any) -> Edit:
    return lambda backend: backend.update({name: value})


def _model(**settings: Any) -> Edit:
    return lambda backend: backend["model"].update(settings)


def _post(value: Any) -> Edit:
    return _set("post_processor", value)


def _splits(step: Any) -> Any:
    return {"type": "Sequence", "pretokenizers": [step]}


def _nothing(backend: Backend) -> None:
    pass


# By class of the list: pairs of edits that lead to two files which differ in it alone.
_CASES: dict[str, list[tuple[Edit, Edit]]] = {
    "format-version": [],  # there is one version, and the library reads no other: see the test below
    "stored-truncation": [
        (_nothing, _set("truncation", {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}))
    ],
    "stored-padding": [
        (
            _nothing,
            _set(
                "padding",
                {
                    "strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>",
                },
            ),
        )
    ],
    "decoder": [(_nothing, _set("decoder", None)), (_nothing, _set("decoder", {"type": "Fuse"}))],
    "trimmed-offsets": [
        (
            _set("pre_tokenizer", _BYTES),
            _set("pre_tokenizer", _splits(_BYTES | {"trim_offsets": False})),
        ),
    ],
    "nested-sequences": [
        (_nothing, _set("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}]})),
        (
            _set("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}]}),
            _set(
                "normalizer",
                {
                    "type": "Sequence",
                    "normalizers": [
                        {"type": "Sequence", "normalizers": [{"type": "NFD"}]},
                        {"type": "Sequence", "normalizers": []},
                        {"type": "Lowercase"},
                    ],
                },
            ),
        ),
        (_set("normalizer", None), _set("normalizer", {"type": "Sequence", "normalizers": []})),
    ],
    "nested-splits": [
        (
            _set("pre_tokenizer", _BYTES),
            _set("pre_tokenizer", _splits(_splits(_BYTES))),
        ),
    ],
    "post-processor-form": [
        (_post(_BYTES), _post(_BYTES | {"trim_offsets": False})),
        (_post(_PROCESSOR), _post({"type": "Sequence", "processors": [_BYTES, _PROCESSOR]})),
        (_post(_PROCESSOR), _post(_PROCESSOR | {"pair": _PROCESSOR["pair"][::-1]})),
        (_post(_ROBERTA), _post({"type": "BertProcessing", "sep": ["x", 1], "cls": ["y", 2]})),
        (
            _post(_BYTES),
            _post(_PROCESSOR | {"single": [{"Sequence": {"id": "A", "type_id": 3}}], "special_tokens": {}}),
        ),
    ],
    "empty-affixes": [
        (_model(continuing_subword_prefix=None), _model(continuing_subword_prefix="")),
        (_model(end_of_word_suffix=None), _model(end_of_word_suffix="")),
    ],
    "no-dropout": [(_model(dropout=None), _model(dropout=0.0))],
}  # fmt: skip


def test_the_list_and_the_code_name_the_same_classes_and_each_is_tried() -> None:
    assert list(inert_classes()) == list(INERT) == list(_CASES)
    assert all(one.why and one.id == name for name, one in inert_classes().items())


def test_there_is_one_version_of_the_format() -> None:
    with pytest.raises(Exception, match="version"):
        loaded(edited(byte_level(), _set("version", "1.1")))
    old = _parts(byte_level())
    new = old | {"version": "1.1"}
    assert canonical(old) == canonical(new)
    assert [one.inert for one in structural_difference(old, new)] == ["format-version"]


def _parts(backend: Backend, **settings: Any) -> dict[str, Any]:
    parts = written_out(loaded(backend, **settings))
    assert isinstance(parts, dict), parts
    return parts


@cache
def _texts(kind: str) -> list[str]:
    few = [chr(code) for code in range(0x20, 0x3000, 101)]
    planned = [group.strings for group in plan([_parts(KINDS[kind]())], few).groups if group.name != "borders"]
    return [text for group in planned for text in group[::3]]


@pytest.mark.parametrize(
    ("name", "case"), [(name, place) for name, cases in _CASES.items() for place in range(len(cases))]
)
def test_an_inert_difference_changes_no_id(name: str, case: int) -> None:
    # Where the model is a BPE over characters, affixes and dropout would show on every word.
    kind = "byte fallback" if name in ("empty-affixes", "no-dropout") else "byte-level"
    sides = [edited(KINDS[kind](), edit) for edit in _CASES[name][case]]
    old, new = (_parts(side) for side in sides)
    assert old != new
    assert canonical(old) == canonical(new)
    found = structural_difference(old, new)
    assert name in [one.inert for one in found]
    assert None not in [one.inert for one in found]
    encoders = [Encoder(loaded(side), direct=True) for side in sides]
    texts = _texts(kind)
    for special in (False, True):
        ids = encoders[0].ids(texts, special_tokens=special)
        assert ids == encoders[1].ids(texts, special_tokens=special)
        assert None not in ids


@pytest.mark.parametrize("edit", [_set("truncation", None), _set("padding", None)])
def test_what_the_library_stores_is_switched_off_by_a_call(edit: Edit) -> None:
    """The encoder goes round the wrapper; the wrapper itself, called as renderers call it, cuts and pads nothing."""
    stored = edited(byte_level(), lambda backend: [right(backend) for _, right in _stored()])
    texts = ["the cat sat on the mat", "a"]
    assert loaded(stored)(texts)["input_ids"] == loaded(edited(stored, edit))(texts)["input_ids"]
    assert Encoder(loaded(stored), direct=True).ids(texts, special_tokens=True) == loaded(stored)(texts)["input_ids"]


def _stored() -> list[tuple[Edit, Edit]]:
    return _CASES["stored-truncation"] + _CASES["stored-padding"]


@pytest.mark.parametrize(
    "processors",
    [
        [_PROCESSOR, {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}],
        [_PROCESSOR, _PROCESSOR],
    ],
)
def test_two_processors_that_add_something_are_kept_as_they_are(processors: list[Any]) -> None:
    parts = _parts(edited(byte_level(), _post({"type": "Sequence", "processors": processors})))
    assert canonical(parts)["post_processor"]["type"] == "Sequence"


def test_a_text_that_is_dropped_or_repeated_is_no_plain_frame() -> None:
    single = [{"Sequence": {"id": "A", "type_id": 0}}]
    twice = _parts(edited(byte_level(), _post(_PROCESSOR | {"single": single * 2})))
    once = _parts(edited(byte_level(), _post(_PROCESSOR | {"single": single})))
    assert canonical(twice) != canonical(once)
    (found,) = structural_difference(once, twice)
    assert (found.part, found.inert) == ("post-processor", None)


def test_random_merges_are_not_known() -> None:
    assert written_out(loaded(edited(byte_level(), _model(dropout=0.25)))) == (
        "its BPE drops merges at random (dropout 0.25): equal text has other ids each time"
    )


def test_entries_that_share_an_id_are_not_known(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    def share(backend: Backend) -> None:
        merged = {piece for merge in backend["model"]["merges"] for piece in (*merge, "".join(merge))}
        alone = next(piece for piece in backend["model"]["vocab"] if piece not in merged)
        backend["model"]["vocab"]["zzz"] = backend["model"]["vocab"][alone]

    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(edited(byte_level(), share)), encoding="utf-8")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file))
    assert written_out(tokenizer) == "1 entries of its vocabulary share their id with another"


def test_code_in_a_backend_is_not_known() -> None:
    from tokenizers.pre_tokenizers import PreTokenizer

    class Splitter:
        def pre_tokenize(self, text: Any) -> None:
            pass

    tokenizer = loaded(byte_level())
    tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Splitter())
    found = written_out(tokenizer)
    assert isinstance(found, str)
    assert found.startswith("TokenizersBackend has a backend that cannot be written out: ")


def test_what_only_the_wrapper_knows_is_part_of_it() -> None:
    base = byte_level()
    plain = canonical(_parts(base))
    assert canonical(_parts(base, split_special_tokens=True)) != plain
    assert canonical(_parts(base, chat_control_tokens=["<tool>"])) != plain
    assert canonical(_parts(base, chat_control_tokens=["<tool>", "<s>"])) == canonical(
        _parts(base, chat_control_tokens=["<s>", "<tool>"])
    )
    (found,) = structural_difference(_parts(base), _parts(base, split_special_tokens=True))
    assert (found.part, found.examples) == ("wrapper", ("split_special_tokens: false -> true",))


@pytest.mark.parametrize("kind", KINDS)
def test_canonical_leaves_its_argument_alone(kind: str) -> None:
    parts = _parts(KINDS[kind]())
    before = json.dumps(parts)
    canonical(parts)
    assert json.dumps(parts) == before
    assert structural_difference(parts, parts) == ()
