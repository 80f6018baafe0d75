"""One child process for all rehearsals of a test process: importing torch takes longer than most of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

import pytest

from kvgate.probes.embedded.backend import EmbeddedBackend, Folders
from kvgate.probes.embedded.child import Child
from kvgate.probes.evaluation.prompts import Rendered
from kvgate.probes.rehearsal.rehearse import Size, rehearse
from kvgate.probes.rehearsal.seen import Rehearsal
from kvgate.rules.manifest import Manifest

Rehearse = Callable[..., Rehearsal]
SMALL = Size(corpus=1, decidable=1, tokens=4)
LEAST = Size(corpus=1, decidable=0, tokens=2)


@pytest.fixture(scope="session")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """The process, with no model in it yet; when all is over it has left nothing behind."""
    scratch = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(scratch))
        patched.setenv("TMPDIR", str(scratch))
        running = Child()
    yield running
    running.close()
    assert list(scratch.iterdir()) == []


@pytest.fixture(scope="session")
def rehearsed(child: Child) -> Rehearse:
    """Rehearse a pair with as little as shows it."""

    def run(
        old: Manifest,
        new: Manifest,
        *,
        folders: Folders | None = None,
        rendered: tuple[Rendered, Rendered] | None = None,
        size: Size = SMALL,
    ) -> Rehearsal:
        return rehearse(
            old, new, lambda: EmbeddedBackend(old, new, folders=folders, child=child), rendered=rendered, size=size
        )

    return run
