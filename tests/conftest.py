"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# How long one example takes says how busy the machine is, and nothing about the code.
settings.register_profile("kvgate", deadline=None)
settings.load_profile("kvgate")
