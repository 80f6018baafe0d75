"""What holds for every test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import settings

# How long one example takes says how busy the machine is, and nothing about the code.
settings.register_profile("kvgate", deadline=None)
settings.load_profile("kvgate")


@pytest.fixture(scope="session", autouse=True)
def configurations_are_filled_in_once() -> Iterator[None]:
    """Ask a class of configurations once what it makes of some fields: a process that imports transformers each time.

    What it makes of them follows from them alone. What it refuses is asked again; commands that are processes ask anew.
    """
    from kvgate.deployments import config

    ask, answers = config._ask, dict[str, str]()

    def once(request: Mapping[str, Any]) -> Any:
        key = json.dumps(request, sort_keys=True)
        if key not in answers:
            answers[key] = json.dumps(ask(request))
        return json.loads(answers[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "_ask", once)
        yield
