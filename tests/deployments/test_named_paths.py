"""Adapters that are called as credentials are, and credentials that stand under an adapter's name."""

from __future__ import annotations

import shlex

import pytest

from kvgate.deployments.launch import LaunchFile, parse_vllm, read_launch


@pytest.mark.parametrize("name", ["auth", "my-secret", "token", "api_key"])
def test_an_adapter_may_be_called_as_a_credential_is(name: str) -> None:
    for path in ("/adapters/a", "org/lora"):
        lines = {
            "vllm": f"vllm serve org/m --enable-lora --lora-modules {name}={path} b=/b",
            "sglang": f"python -m sglang.launch_server --model-path org/m --lora-paths {name}={path} b=/b",
        }
        for line in lines.values():
            (facts,) = read_launch([LaunchFile("serve.sh", line.encode())])
            assert facts.adapters == {name: path, "b": "/b"}
            assert not [note for note in facts.notes if "credential" in note]


@pytest.mark.parametrize(
    "entry",
    [
        *("auth=hunter2", "auth=https://u:hunter2@h/p", "x=/a?token=hunter2", "{name: {token=hunter2"),
        *("auth=hf_hunter2hunter2hunter2", '{"name":"a","path":"https://u:hunter2@h"}'),
    ],
)
def test_what_stands_under_an_adapters_name_is_still_dropped(entry: str) -> None:
    line = f"vllm serve org/m --enable-lora --lora-modules billing=/adapters/b {shlex.quote(entry)}"
    facts = parse_vllm(line, source="serve.sh")
    assert "hunter2" not in repr(facts)
    assert "adapters" not in facts.values
