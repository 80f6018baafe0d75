"""Telling credentials from settings: what is found, what only looks like one, and that a search is one pass."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kvgate.rules.credentials import holds_credential, refuse_credentials
from kvgate.rules.errors import InputError
from tests.rules.clean import clean

# Put together, so that no scanner takes this file for a leak.
AWS = "AKIA" + "IOSFODNN7EXAMPLE"
OPENAI = "sk-" + "abcdefghijklmnop0123456789"
HUB = "hf_" + "Qz7" * 11

FOUND = [
    "redis://:p/w@h:1",
    "redis://:p/w@h",
    "redis://user:p:q@h",
    "redis://user:12/3@h:6379/0",
    "redis://:123/x@h",
    "rediss://tok/en@h",
    "lm://u:p/w/x@cache-1:65432",
    "https://u:p?x@h",
    "https://u:p#x@h:1",
    "redis://h1:1,redis://:p/w@h2:2",
    "https://h/x?token=a",
    "https://account.blob/x?sv=1&sig=ab",
    OPENAI,
    HUB,
    AWS,
    "ghp_" + "a" * 36,
    "Authorization: Bearer xyz",
    "a header of Bearer abcdefgh1jklmnopqr",
    "-----BEGIN RSA " + "PRIVATE KEY-----",
    "kvgate rehearse --api-key abc",
    "kvgate rehearse --hf-token=abc",
    "HF_TOKEN=abc vllm serve",
    "export AWS_SECRET_ACCESS_KEY=abc",
    "password=hunter2",
    '{"password": "hunter2"}',
    "AccountKey=abc;x",
]
HARMLESS = [
    "redis://cache-1:6379/0",
    "acme/support-8b@0e9e39f",
    "hf://acme/support-8b@main",
    "/models/a:b@c",
    "file:///a:b@c",
    "team@example.com",
    "git@host:a/b",
    "// note: see a@b",
    "http://[::1]:80/x",
    "http://[fe80::1]:80/x@v1",
    "http://h:8080/m@v1",
    "docker://registry:5000/image@sha256:" + "0123456789abcdef" * 4,
    "/mnt/disk-nvme-cache-pool-number-1",
    "a basic comparison of everything",
    "bearer of bad news everywhere",
    "--max-num-batched-tokens 8192 --tokenizer x",
    "--api-key $API_KEY --hf-token ${HF_TOKEN}",
    "--api-key-file /run/x",
    "first divergent token: <s>",
    "pad_token=<pad> token=7",
    "secret: nothing is known",
    "{% set eos_token = 'abcdefghijklmnopqrst' %}",
    "12 of 40 conversations diverge; first: a-b at token 3",
]


@pytest.mark.parametrize("text", FOUND)
def test_a_credential_is_found_in_a_text(text: str) -> None:
    assert holds_credential(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_one_is_left_alone(text: str) -> None:
    assert not holds_credential(text)


@pytest.mark.parametrize(
    "piece",
    ["//", ":", "://", "//a", "?", "x@", "@", "-", "a", "a=", "a ", "&a", "bearer ", "=' ", "authorization ", "sk-",
     "://a@ ", "--a ", "basic a", "@a:1", "AKIA", "eyJ", "-----BEGIN "],
)  # fmt: skip
@pytest.mark.parametrize("start", ["", "://:", "basic "])
def test_a_search_is_one_pass(start: str, piece: str) -> None:
    started = time.process_time()
    holds_credential(start + piece * (400_000 // len(piece)))
    assert time.process_time() - started < 3  # a second pass for every character would take minutes


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("engine.args", {"api-key": "x1"}),
        ("engine.args", {"aws": AWS}),
        ("engine.args", {"h": "Authorization: Bearer abc"}),
        ("engine.args", {"hf_token": "x1"}),
        ("engine.args", {"kv": {"redisPassword": "x1"}}),
        ("engine.args", {"password": 1234}),
        ("engine.args", {"secrets": ["x1"]}),
        ("engine.args", {"token": "x1"}),
        ("engine.speculative", {"model": {"accessKey": "x1"}}),
        ("model.config", {"hub_token": "x1"}),
        ("model.config", {"auth": {"user": "x1"}}),
        ("tokenizer.options", {"api_key": "x1"}),
        ("cache.location", "redis://:p/w@h:1"),
        ("release.owner", OPENAI),
        ("roles", [{"name": "p", "set": {"engine.args": {"cookie": "x1"}}}]),
    ],
)
def test_a_manifest_with_one_is_refused_by_name_and_by_looks(path: str, value: Any) -> None:
    with pytest.raises(InputError, match="holds credentials") as caught:
        clean({path: value})
    assert caught.value.message.startswith(path)
    said = str(caught.value)
    assert not [secret for secret in ("x1", "1234", AWS, OPENAI, "p/w", "abc") if secret in said]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.config", {"bos_token": "<s>", "eos_token_id": 2, "num_experts_per_tok": 8, "use_auth_token": None}),
        ("model.config", {"fim_middle_token": "middle", "box_start_token": "b", "image_token_index": 32000}),
        ("model.config", {"token_type_ids": "x", "num_key_value_heads": 8, "pad_token_id": [1, 2]}),
        ("tokenizer.special_tokens", {"bos_token": "<s>", "pad_token": {"content": "pad"}, "anything_token": "w"}),
        ("engine.args", {"max-num-batched-tokens": 8192, "eos_token": "end", "stop_token_ids": [1], "tokenizer": "x"}),
        ("engine.args", {"api-key": None, "enable-auth": True, "api-key-file": "/run/x", "hf-token": "${HF_TOKEN}"}),
        ("engine.args", {"token": 7, "token_ids": ["a"], "token-keyed": "yes", "dbo-decode-token-threshold": "32"}),
        ("tokenizer.files", {"secret/token": "blake3:" + "0" * 64}),
        ("inputs.system_prompts", {"secret": "sha256:" + "0" * 64}),
    ],
)
def test_a_manifest_that_speaks_of_tokens_is_taken(path: str, value: Any) -> None:
    assert clean({path: value}).knows(path)


def test_the_error_names_line_and_path_before_anything_else_is_said_with_the_document_s_words() -> None:
    document = {"schema": HUB, "unknown": {"deep": [{"password": "x1"}]}}
    with pytest.raises(InputError) as caught:
        refuse_credentials(document["unknown"], "f.yaml", {("deep",): 3})
    assert (caught.value.where, caught.value.message) == ("f.yaml:3", "deep.0.password holds credentials")
    with pytest.raises(InputError) as caught:
        clean({"schema": HUB})
    assert HUB not in str(caught.value)
