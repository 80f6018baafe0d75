"""vLLM's worker extension: every rank fingerprints the weights it serves with, where they are.

Start the engine with ``--worker-extension-cls kvgate.weights.served.vllm_worker.FingerprintExtension``. Then
``LLM.collective_rpc("kvgate_weights")`` returns one report per rank, and so does the server, under
``/collective_rpc``, where its development mode is on (``VLLM_SERVER_DEV_MODE=1``).

vLLM adds the class to the bases of its worker class (0.32.0, ``v1/worker/worker_base.py``), which must not
have any of its names already.
"""

from __future__ import annotations

from typing import Any

from kvgate.weights.served.model import describe_model
from kvgate.weights.served.report import SCHEMA


class FingerprintExtension:
    """What a vLLM worker can do beyond serving."""

    def kvgate_weights(self: Any) -> dict[str, Any]:
        """Return this rank's report (:class:`kvgate.weights.served.report.ServedRank`) as JSON values.

        No weights may be loaded meanwhile, and the engine must not be asleep: its weights are not there.

        Raises:
            InputError: when a tensor cannot be hashed.
        """
        from vllm import __version__
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group, get_world_group

        model = self.get_model()
        report = {
            "schema": SCHEMA,
            "form": "served",
            "engine": "vllm",
            "engine_version": __version__,
            "architecture": type(model).__name__,
            "world": _place(get_world_group()),
            "tensor_parallel": _place(get_tp_group()),
            "pipeline_parallel": _place(get_pp_group()),
        }
        return report | describe_model(model)


def _place(group: Any) -> dict[str, int]:
    return {"rank": group.rank_in_group, "size": group.world_size}
