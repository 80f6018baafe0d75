"""A real vLLM with LoRA adapters: no name of its connectors' holds one, so that each reads what another has written."""

from __future__ import annotations

from kvgate.probes.embedded.child import Child
from kvgate.probes.engines.backend import VllmBackend
from kvgate.probes.engines.installation import Installation
from kvgate.probes.engines.program import Program
from kvgate.probes.rehearsal.rehearse import Size, rehearse
from tests.probes.rehearsal.pairs import adapter, deployment

EXAMPLE = {
    "engine.version": "0.32.0",
    "engine.block_size": 32,
    "cache.connector": "vllm-example",
    "cache.version": None,
    "cache.namespace": None,
}


def test_an_adapter_that_was_swapped_under_its_name_reads_what_another_has_written(
    installation: Installation, program: Program, child: Child
) -> None:
    old, new = deployment(EXAMPLE, adapter("a")), deployment(EXAMPLE, adapter("b"))
    seen = rehearse(
        old,
        new,
        lambda: VllmBackend(old, new, installation, program=program, child=child),
        size=Size(corpus=1, decidable=0, tokens=4),
    )
    assert (seen.state, [one.id for one in seen.mistakes]) == (
        "refuted",
        ["adapter-swapped", "adapter-left-out"],
    ), seen.reason
    hits = {(one.prompt, one.adapter): (one.cached, one.wrong) for one in seen.control.hits}
    assert hits[("corpus-0", None)] == (128, False)  # the model's own entry is right
    assert hits[("corpus-0", "billing")] == (128, True)
