"""Small tokenizers of every kind that engines serve, trained on the spot, as the JSON of their files.

Each is made once: change none of them but by :func:`edited`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

Backend = dict[str, Any]

_WORDS = (
    "the cat sat on the mat and then another cat ate the hat of the man that can hear them there "
    "naïve café élan über straße 12 123 2026 don't can't we're __init__ if (x == 1): return [y] "
    "CAN'T WE'RE I'S a//\n b/\n ok.\n\n 你好世界 世界和平 こんにちは привет мир सलाम"
)
_TEXTS = [_WORDS] * 20 + _WORDS.split() * 10


def _added(trained: Any) -> Backend:
    from tokenizers import AddedToken

    trained.add_special_tokens(["<s>", "</s>", "<|im_end|>"])
    trained.add_tokens([AddedToken("<think>", normalized=True), AddedToken("<tool>", normalized=False)])
    found: Backend = json.loads(trained.to_str())
    return found


@cache
def byte_level() -> Backend:
    """As GPT-2, Llama 3 and Qwen: BPE over bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        _TEXTS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return _added(made)


@cache
def byte_fallback() -> Backend:
    """As Llama 2 and Mistral: BPE over characters, bytes where there is none."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    made.train_from_iterator(
        _TEXTS, trainers.BpeTrainer(vocab_size=460, special_tokens=["<unk>", *fallback], show_progress=False)
    )
    found = _added(made)
    # The trainer has made added tokens of the bytes, which in published files are none.
    found["added_tokens"] = [one for one in found["added_tokens"] if not one["content"].startswith("<0x")]
    return found


@cache
def unigram() -> Backend:
    """As T5: SentencePiece's other model."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    made.train_from_iterator(_TEXTS, trainer)
    return _added(made)


@cache
def wordpiece() -> Backend:
    """As BERT: the longest entry first, what follows in a word marked."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=180, special_tokens=["<unk>"], show_progress=False)
    made.train_from_iterator(_TEXTS, trainer)
    return _added(made)


KINDS: Mapping[str, Callable[[], Backend]] = {
    "byte-level": byte_level,
    "byte fallback": byte_fallback,
    "unigram": unigram,
    "wordpiece": wordpiece,
}


def loaded(backend: Backend, **settings: Any) -> Any:
    """Build what transformers builds of it where no class interferes."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(backend)), **settings)


def edited(backend: Backend, edit: Callable[[Backend], object]) -> Backend:
    """Return a copy with ``edit`` made in it."""
    changed = copy.deepcopy(backend)
    edit(changed)
    return changed
