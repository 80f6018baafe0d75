"""What tests over real tokenizers share: folders and captures, made once for all workers of a run."""

from __future__ import annotations

import os

import pytest

from tests.real.models import Releases


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    base = tmp_path_factory.getbasetemp()
    return Releases((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "real")
