"""Launch files: what starts an engine, read without running any of it.

:func:`read_launch` tells the kinds of files apart. What starts a server is found as an
:class:`~kvgate.deployments.launch.invocation.Invocation`, whatever it stands in (a script, a pod); one module for each
engine makes :class:`LaunchFacts` of it.
"""

from __future__ import annotations

from kvgate.deployments.launch.facts import LaunchFacts
from kvgate.deployments.launch.reading import LaunchFile, bare_facts, read_launch
from kvgate.deployments.launch.resolve import resolve
from kvgate.deployments.launch.vllm import parse_vllm

__all__ = ["LaunchFacts", "LaunchFile", "bare_facts", "parse_vllm", "read_launch", "resolve"]
