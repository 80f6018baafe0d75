"""Requests as production logs hold them."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest

from kvgate.corpora.conversations.conversation import Conversation
from kvgate.corpora.conversations.requests import parse_request
from kvgate.corpora.standalone import snapshot_script
from kvgate.rules.document import parse_document
from kvgate.rules.errors import InputError

_HI = [{"role": "user", "content": "hi"}]


def _parse(**fields: Any) -> Conversation:
    return parse_request(json.dumps(fields).encode(), 7, "f:7")


def _variables(**fields: Any) -> Any:
    return _parse(messages=_HI, **fields).template_kwargs


def test_a_chat_request_is_used_as_it_was_sent() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "name": "ana", "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        ]},
        {"role": "assistant", "content": None, "refusal": None, "annotations": [], "reasoning_content": "hm",
         "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}]
    one = _parse(
        model="m", messages=messages, tools=tools, tool_choice="auto", parallel_tool_calls=False, stream=True,
        stream_options={"include_usage": True}, n=2, user="u1", temperature=0.2, top_p=1, max_tokens=None, stop=["\n"],
        logit_bias={"1": -100}, response_format={"type": "json_object"}, seed=1, metadata={}, store=False,
        service_tier="auto", cache_salt="s", kv_transfer_params=None, top_k=20, chat_template=None, documents=None,
        chat_template_kwargs=None, add_special_tokens=False, continue_final_message=False,
    )  # fmt: skip
    assert one.id == "line-7"
    assert one.messages == tuple(messages)
    assert one.tools == tuple(tools)
    assert one.template_kwargs == {}
    assert one.add_generation_prompt is None


def test_no_tools_differ_from_an_empty_list() -> None:
    assert _parse(messages=_HI).tools is None
    assert _parse(messages=_HI, tools=None).tools is None
    assert _parse(messages=_HI, tools=[]).tools == ()


def test_a_line_of_a_batch_file_is_unwrapped() -> None:
    body = {"model": "m", "messages": _HI}
    one = _parse(custom_id="request-1", method="POST", url="/v1/chat/completions", body=body)
    assert (one.id, one.messages) == ("request-1", tuple(_HI))


def test_a_completion_may_hold_one_prompt_in_a_list() -> None:
    assert _parse(prompt=["a"]).prompt == _parse(prompt="a", add_special_tokens=True).prompt == "a"


def test_effort_is_a_template_variable_as_in_vllm() -> None:
    assert _variables(reasoning_effort="low") == {"reasoning_effort": "low", "enable_thinking": True}
    assert _variables(reasoning_effort="none") == {"reasoning_effort": "none", "enable_thinking": False}
    assert _variables(reasoning_effort=None) == {}
    given = _variables(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True, "reasoning_effort": "x"})
    assert given == {"reasoning_effort": "none", "enable_thinking": True}


def test_generated_ids_are_kept_and_not_rendered() -> None:
    answer = {"role": "assistant", "content": "Seven."}
    one = _parse(messages=[*_HI, {**answer, "generated_token_ids": [5, 6]}, *_HI])
    assert one.generated == {1: (5, 6)}
    assert one.messages == (*_HI, answer, *_HI)
    assert one.input_digest == _parse(messages=[*_HI, answer, *_HI]).input_digest


@pytest.mark.parametrize(
    "request_",
    [
        {"messages": _HI, "temperature": 1},
        {"messages": [{"role": "user", "content": None}], "tools": [], "continue_final_message": True, "id": "x"},
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": _HI}},
        {"prompt": ["one"], "tags": ["multi-turn"]},
        {"messages": _HI, "reasoning_effort": "none"},
        {"messages": _HI, "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False, "x": "é"}},
        {
            "messages": [{"role": "assistant", "content": "a", "generated_token_ids": [1]}],
            "documents": [{"title": "t"}],
        },
    ],
)
def test_the_script_takes_a_request_for_the_same_conversation(request_: dict[str, Any]) -> None:
    ours = parse_request(json.dumps(request_).encode(), 7, "f:7")
    theirs = snapshot_script.Conversation(json.dumps(request_), 7)
    assert (theirs.id, theirs.digest) == (ours.id, ours.input_digest)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "either 'messages' or 'prompt'"),
        ('{"messages": null}', "either 'messages' or 'prompt'"),
        ('{"prompt": "x", "messages": []}', "either 'messages' or 'prompt'"),
        ('{"prompt": "x", "prompt": "y"}', "stands twice"),
        ('{"prompt": 1}', "'prompt' must be a string"),
        ('{"prompt": [1, 2]}', "no token ids"),
        ('{"prompt": ["a", "b"]}', "one prompt a line"),
        ('{"prompt": "x", "add_special_tokens": false}', "rendered only as true here"),
        ('{"messages": [], "add_special_tokens": true}', "rendered only as false here"),
        ('{"messages": "x"}', "'messages' must be a list"),
        ('{"messages": ["x"]}', "'messages' must be a list of objects"),
        ('{"messages": [], "tools": {}}', "'tools' must be a list"),
        (
            '{"messages": [], "add_generation_promt": true}',
            "unknown field 'add_generation_promt'.*chat_template_kwargs",
        ),
        ('{"messages": [], "enable_thinking": true}', "unknown field 'enable_thinking'"),
        ('{"messages": [], "add_generation_prompt": 1}', "must be true or false"),
        ('{"messages": [], "chat_template_kwargs": {"tokenize": false}}', "not a template variable"),
        ('{"messages": [], "chat_template_kwargs": {"messages": []}}', "not a template variable"),
        ('{"messages": [], "chat_template": "{{ 1 }}"}', "--chat-template"),
        ('{"messages": [], "reasoning_effort": 1}', "must be a string"),
        ('{"input": "hi", "model": "m"}', "a Responses request"),
        ('{"messages": [], "tags": [1]}', "'tags' must be strings"),
        ('{"messages": [], "id": 1}', "'id' must be a string"),
        ('{"messages": [NaN]}', "NaN is not a JSON number"),
        ('{"messages": [{"generated_token_ids": [-1]}]}', "must be a list of token ids"),
        ('{"messages": [{"generated_token_ids": [true]}]}', "must be a list of token ids"),
        ('{"custom_id": 1, "body": {"messages": []}}', "'custom_id' must be a string"),
        ('{"custom_id": "x", "body": null}', "either 'messages' or 'prompt'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_cannot_be_rendered_is_named(line: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        parse_request(line.encode(), 2, "f:2")
    assert str(caught.value.where).startswith("f:2")


def test_a_field_stands_in_one_list_only() -> None:
    data = resources.files("kvgate.corpora").joinpath("data", "request_fields.yaml").read_bytes()
    document, _ = parse_document(data, "request_fields.yaml")
    assert document["inert"] == sorted(set(document["inert"]))
    assert not set(document["inert"]) & document["refused"].keys()
