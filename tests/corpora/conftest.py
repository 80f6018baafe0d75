"""Tokenizers for these tests are trained here, from the diagnostic corpus; nothing is downloaded."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.conversations.corpus import Corpus, load_corpus
from kvgate.corpora.examine import take_snapshot
from kvgate.corpora.snapshots.snapshot import SnapshotEntry, SnapshotFile, SnapshotHeader, SnapshotWriter
from kvgate.corpora.templates.template import Templates, describe_templates

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

MakeFolder = Callable[..., Path]
Take = Callable[..., SnapshotFile]


@pytest.fixture(scope="session")
def diagnostic() -> Corpus:
    return load_corpus("diagnostic")


@pytest.fixture(scope="session")
def backend_json(diagnostic: Corpus) -> dict[str, Any]:
    """A byte-level BPE tokenizer with 900 entries, as the JSON of its tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts_of(diagnostic)), trainer)
    tokenizer.add_tokens(["<think>"])
    loaded: dict[str, Any] = json.loads(tokenizer.to_str())
    return loaded


@pytest.fixture
def make_folder(tmp_path: Path, backend_json: dict[str, Any]) -> MakeFolder:
    """Write a model folder: the tokenizer, edited by ``edit``, and its settings."""
    count = iter(range(1000))

    def make(edit: Callable[[dict[str, Any]], object] | None = None, *, template: Any = CHATML, **config: Any) -> Path:
        folder = tmp_path / f"model-{next(count)}"
        folder.mkdir()
        backend = copy.deepcopy(backend_json)
        if edit is not None:
            edit(backend)
        (folder / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "model_max_length": 4096,
            **({} if template is None else {"chat_template": template}),
            **config,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def take(tmp_path: Path) -> Take:
    """Take a snapshot into a file of its own."""
    count = iter(range(1000))

    def take(folder: Path, corpus: Corpus, **arguments: Any) -> SnapshotFile:
        return take_snapshot(folder, corpus, tmp_path / f"snapshot-{next(count)}.jsonl", **arguments)

    return take


HEADER = SnapshotHeader(
    corpus="c@1",
    corpus_digest="sha256:1",
    renderer={"transformers": "5", "tokenizers": "0"},
    jinja2="3",
    made="here",
    options={},
    unapplied=(),
    template=None,
    tokenizer=None,
    clocks=(),
)


def saved(
    path: Path,
    *entries: SnapshotEntry,
    header: SnapshotHeader = HEADER,
    pieces: Mapping[int, str] = MappingProxyType({}),
) -> SnapshotFile:
    """Write a snapshot of these entries."""
    with SnapshotWriter(path, header) as writer:
        for entry in entries:
            writer.entry(entry)
        return writer.finish(None, pieces)


def corpus_of(*conversations: Conversation) -> Corpus:
    """A corpus that is in no file."""
    return Corpus("test", "sha256:" + "0" * 64, len(conversations), lambda: iter(conversations))


def texts_of(corpus: Corpus) -> Iterator[str]:
    """Every piece of plain text in a corpus."""
    for conversation in corpus.conversations():
        if conversation.prompt is not None:
            yield conversation.prompt
        for message in conversation.messages or ():
            if isinstance(message.get("content"), str):
                yield message["content"]


def tree_of(text: str) -> str:
    """The tree digest of one template."""
    return describe_templates(Templates({"default": text}, "literal", {"default": "t"})).tree
