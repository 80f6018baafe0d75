"""Decidable prompts for a real model: in its own tokens, and it decides by them where it answers them by itself."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvgate.probes.embedded.backend import Folders
from kvgate.probes.embedded.child import Child
from kvgate.probes.evaluation.own_words import in_own_words
from kvgate.probes.evaluation.references import QUESTION, TOKENS, reference_token
from kvgate.probes.rehearsal.rehearse import Size
from tests.probes.rehearsal.conftest import Rehearse
from tests.probes.rehearsal.pairs import deployment, own_key
from tests.rules.clean import digest

_DOCUMENTS = {"inputs.document_sets": {"policies": digest("9")}}
_SIZE = Size(corpus=1, decidable=2, tokens=4)


def _letters(texts: Sequence[str]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    return (1,), [tuple(text.encode("ascii")) for text in texts]


def _words(texts: Sequence[str]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    known: dict[str, int] = {}
    return (), [tuple(known.setdefault(word, len(known)) for word in text.split()) for text in texts]


def test_the_answer_is_what_stood_behind_the_same_words_before() -> None:
    found = in_own_words(_letters, "a", 400, 8)
    assert found is not None
    ids, answer = found
    text = bytes(ids[1:]).decode("ascii")
    reference = bytes(answer).decode("ascii")
    assert (len(ids), ids[0], len(reference)) == (400, 1, 3)
    assert text.count(reference) == 1
    assert text.startswith(f"\nreference: {reference}\n")
    assert text.endswith("\nreference: ")
    assert in_own_words(_letters, "b", 400, 8) != found


def test_a_reference_that_is_one_token_is_an_answer_too() -> None:
    found = in_own_words(_words, "a", 100, 8)
    assert found is not None
    ids, answer = found
    assert len(answer) == 1
    assert ids[1:2] == answer
    assert ids[-1] == ids[0]


def test_a_tokenizer_that_says_the_same_for_all_decides_nothing() -> None:
    assert in_own_words(lambda texts: ((), [(1, 2, 3) for _ in texts]), "a", 100, 8) is None
    assert in_own_words(_letters, "a", 20, 8) is None  # nor a prompt without room


@pytest.fixture(scope="module")
def copying(child: Child, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A checkpoint that copies, with a tokenizer in which its references are text."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("copying")
    child.ask({"op": "write", "model": {"kind": "copying", "seed": 7, "dtype": "float32"}, "folder": str(folder)})
    vocabulary = {chr(code): code for code in range(256)} | {" ": QUESTION}
    for kind, letters in enumerate((string.ascii_uppercase[:16], string.digits, string.ascii_uppercase[16:])):
        vocabulary |= {letter: reference_token(kind, number) for number, letter in enumerate(letters)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="\x00"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder, json.loads((folder / "config.json").read_text())


def _deployment(config: dict[str, Any], *changes: dict[str, Any]) -> Any:
    single = {"precision.compute": "float32", "precision.kv_cache": "float32"}
    assert config["vocab_size"] == TOKENS
    return deployment(own_key("model.id"), {"model.config": config, "model.config_class": None}, single, *changes)


def test_a_real_model_that_can_tell_decides_and_a_wrong_document_is_caught(
    copying: tuple[Path, dict[str, Any]], rehearsed: Rehearse
) -> None:
    folder, config = copying
    one, other = _deployment(config), _deployment(config, _DOCUMENTS)
    folders = Folders(folder, folder)
    right = rehearsed(one, one, folders=folders, size=_SIZE)
    assert right.state == "proved", right.reason
    assert [hit.right for hit in right.equivalence.hits if hit.prompt.startswith("decidable")] == [True, True]
    wrong = rehearsed(one, other, folders=folders, size=_SIZE)
    assert wrong.state == "refuted"
    assert [hit.right for hit in wrong.isolation.hits if hit.prompt.startswith("decidable")] == [False, False]
    assert "left-out-of-key" in [mistake.id for mistake in wrong.mistakes]


def test_without_its_tokenizer_nothing_is_asked_that_decides(
    copying: tuple[Path, dict[str, Any]], tmp_path: Path, rehearsed: Rehearse
) -> None:
    folder, config = copying
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    one = _deployment(config)
    seen = rehearsed(one, one, folders=Folders(folder, tmp_path), size=_SIZE)
    assert not [hit for hit in seen.equivalence.hits if hit.prompt.startswith("decidable")]
    assert "tokenizer" in seen.missing["decidable"]
    assert seen.asked == 4
