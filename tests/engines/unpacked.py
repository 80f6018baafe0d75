"""The worker extension in a vLLM on the CPU that leaves linear layers as they are loaded, as on a GPU.

vLLM's CPU build packs them into objects of oneDNN that nobody can read. One switch of its own turns that off.
"""

from __future__ import annotations

import vllm._custom_ops as operations

from kvgate.weights.served.vllm_worker import FingerprintExtension

operations._supports_onednn = False

__all__ = ["FingerprintExtension"]
