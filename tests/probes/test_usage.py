"""What servers say of their cache, in the fields of each API."""

from __future__ import annotations

from typing import Any

import pytest

from kvgate.probes.completions.usage import Usage, read_usage


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}, Usage(9, 4)),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}}, Usage(9, 0)),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": None}}, Usage(9)),  # not told is not none
        ({"usage": {"prompt_tokens": 9}}, Usage(9)),
        ({"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}}, Usage(9, 4)),
        ({"usage": {"prompt_tokens": 9, "prompt_cache_hit_tokens": 8}}, Usage(9, 8)),
        ({"usage": {"input_tokens": 9}}, Usage(9)),
        (
            {"usage": {"input_tokens": 2, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 7}},
            Usage(9, 0, 7),
        ),
        ({"usage": {"input_tokens": 2, "cache_read_input_tokens": 7}}, Usage(9, 7)),
        ({"meta_info": {"prompt_tokens": 9, "cached_tokens": 4}}, Usage(9, 4)),
        ({"usage": {"prompt_tokens": True, "prompt_tokens_details": {"cached_tokens": -4}}}, Usage()),
        ({"usage": {"prompt_tokens": 1 << 60, "prompt_tokens_details": {"cached_tokens": "4"}}}, Usage()),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 10}}}, Usage(9)),  # of nine?
        ({"usage": []}, Usage()),
        ({}, Usage()),
        ([], Usage()),
        (None, Usage()),
    ],
)
def test_usage(answer: Any, usage: Usage) -> None:
    assert read_usage(answer) == usage
