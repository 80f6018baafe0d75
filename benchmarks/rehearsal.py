"""What an embedded rehearsal costs beside the prefill and decode that it needs, in processor time of one run.

    python benchmarks/rehearsal.py MANIFEST [ROUNDS]

The same deployment twice, with a stand-in: every answer is timed as the back end gives it (names, restoring, storing,
comparing blocks), and again as the bare model computes it without any store. Models are built before. The quickest
round of each counts. Aim: at most 2.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from kvgate.inputs import load_manifest
from kvgate.probes.embedded.backend import EmbeddedBackend
from kvgate.probes.embedded.child import Child
from kvgate.probes.embedded.worker import Serving
from kvgate.probes.rehearsal.rehearse import rehearse


class _Here(Child):
    """Answers in this process, so that its processor time is the whole cost."""

    def __init__(self, folder: Path) -> None:
        self._serving = Serving(folder)
        self.scratch = folder
        self.requests: list[dict[str, Any]] = []

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        return self._serving.answer(request)


def main() -> None:
    """Measure, and print both times and their ratio."""
    manifest = load_manifest(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    torch.set_num_threads(1)
    whole, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        here = _Here(Path(folder))
        for _ in range(rounds + 1):
            here.requests.clear()
            began = time.process_time()
            seen = rehearse(manifest, manifest, lambda: EmbeddedBackend(manifest, manifest, child=here))
            whole.append(time.process_time() - began)
            asked = [one for one in here.requests if one["op"] == "generate"]
            began = time.process_time()
            for one in asked:
                _bare(here, one)
            bare.append(time.process_time() - began)
    # The first round builds the models.
    print(f"{seen.state}: {len(asked)} answers, {min(whole[1:]):.2f} s, bare {min(bare[1:]):.2f} s")
    print(f"ratio {min(whole[1:]) / min(bare[1:]):.2f}")


def _bare(here: _Here, request: dict[str, Any]) -> None:
    model = here._serving.model(request["model"])
    cache = model.empty(request["saved"])
    found = model.compute(request["token_ids"], cache)
    for _ in range(request["tokens"] - 1):
        found = model.compute([int(found.argmax())], cache)


if __name__ == "__main__":
    main()
