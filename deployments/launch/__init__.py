"""Launch lines: what starts an engine, read without running any of it.

One module reads each kind of line and returns :class:`LaunchFacts`; whoever adds SGLang arguments or
Kubernetes files adds a module beside :mod:`~kvgate.deployments.launch.vllm` and nothing else.
"""

from __future__ import annotations

from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.resolve import resolve
from kvgate.deployments.launch.vllm import parse_vllm

__all__ = ["LaunchFacts", "parse_vllm", "resolve"]
