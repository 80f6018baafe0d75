"""vLLM's OpenAI server, whose engine and ranks are forks of it: on the CPU vLLM would have each import all of it anew.

python serve_openai.py --model FOLDER ...
"""

from __future__ import annotations

import multiprocessing
import runpy

from vllm.utils import system_utils

# vllm/platforms/cpu.py, 0.32.0, asks for "spawn"; elsewhere "fork" is what vLLM does by itself.
system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
