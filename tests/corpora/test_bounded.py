"""The child process itself: how its ends are told apart."""

from __future__ import annotations

import pytest

from kvgate.corpora.child.bounded import run_bounded
from kvgate.corpora.child.limits import Limits
from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.examine import describe_tokenizer
from kvgate.rules.errors import InputError

from .conftest import MakeFolder, Take, corpus_of


def test_a_defect_of_ours_is_no_fault_of_the_input() -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'no-such-job'"):
        run_bounded("no-such-job", {}, limits=Limits(), on_item=print)


def test_processor_time_is_limited(make_folder: MakeFolder, take: Take) -> None:
    folder = make_folder(template="{{ 9 ** (9 ** 9) }}")
    corpus = corpus_of(Conversation("a", messages=({"role": "user", "content": "hi"},)))
    with pytest.raises(InputError, match="used more than 3 s of processor time"):
        take(folder, corpus, limits=Limits(processor_seconds=3, render_seconds=60))


def test_a_start_that_takes_too_long_is_named(make_folder: MakeFolder) -> None:
    with pytest.raises(InputError, match=r"did not finish within 0\.01 s"):
        describe_tokenizer(make_folder(), limits=Limits(load_seconds=0.01))
