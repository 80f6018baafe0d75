"""Tests of real engines: collected where ``KVGATE_VLLM`` names an environment that ``install.py`` made."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("KVGATE_VLLM") else ["test_*.py"]
