"""What tests over real tokenizers share: folders and captures, made once for all workers of a run."""

from __future__ import annotations

import os
from typing import Any

import pytest

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.conversations.corpus import load_corpus
from tests.real.models import Releases
from tests.real.rendering import load


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    base = tmp_path_factory.getbasetemp()
    return Releases((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "real")


@pytest.fixture(scope="session")
def conversations() -> dict[str, Conversation]:
    return {one.id: one for one in load_corpus("diagnostic").conversations()}


@pytest.fixture(scope="session")
def tokenizer(releases: Releases) -> Any:
    """The smallest of the real ones; what it encodes are texts that templates of others wrote."""
    return load(releases.folder("mistral"))
