"""The bypass diff: what it sends, what it makes of the answers, and what it does with servers that misbehave."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.endpoints.client import Client
from kvgate.probes.bypass.diff import BypassDiff, bypass_diff
from kvgate.probes.bypass.methods import Method, choose_method
from kvgate.probes.bypass.noise import alike
from kvgate.probes.completions.requests import Request, marks_breakpoints, read_requests
from kvgate.probes.completions.server import answering_server
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.evidence import Evidence
from tests.cli.conftest import MakeManifest, Run
from tests.corpora.engine_server import Engine, dribbling, serving
from tests.rules.clean import FORGET, clean

from .toy import Toy, running

TOLERANCE = 0.4
COMPLETION = {"prompt": "once upon a time"}
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
MARKED = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "long", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "hello"}],
}


def read(folder: Path, *lines: Any) -> tuple[Request, ...]:
    file = folder / "requests.jsonl"
    file.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return read_requests(file)


@pytest.fixture
def diff(tmp_path: Path) -> Callable[..., BypassDiff]:
    def of(toy: Toy, *lines: Any, method: str = "auto", held: bool = True, **more: Any) -> BypassDiff:
        toy.held = held
        requests = read(
            tmp_path, *(lines or (COMPLETION, {"custom_id": "c", "url": "/v1/completions", "body": COMPLETION}))
        )
        with running(toy) as url, Client(url) as client:
            server = answering_server(client)
            return bypass_diff(server, requests, choose_method(method, server, requests), TOLERANCE, **more)

    return of


Diff = Callable[..., BypassDiff]


@pytest.mark.parametrize(
    ("toy", "verdict", "outcomes"),
    [
        (Toy(), "cache not implicated", {"match"}),
        (Toy(shift=0.3), "cache not implicated", {"match"}),
        (Toy(wrong=True), "cache implicated", {"differs"}),
        (Toy(wrong=True, tells=False), "cache implicated", {"differs"}),
        (Toy(shift=0.5), "cache implicated", {"differs"}),  # the same words, and yet another context
        (Toy(gap=0.2, flips=2), "cannot tell", {"near-tie"}),  # nothing was compared whole
        (Toy(gap=3.0, flips=2), "cache implicated", {"differs"}),
        (Toy(drifts=True), "cannot tell", {"unstable"}),
        (Toy(wrong=True, logs=False), "cannot tell", {"unclear"}),
        (Toy(logs=False), "cannot tell", {"unclear"}),  # equal words prove little
        (Toy(tells=False), "cannot tell", {"not told"}),
        (Toy(caches=False), "cannot tell", {"not reused"}),
    ],
)
def test_what_answers_say(diff: Diff, toy: Toy, verdict: str, outcomes: set[str]) -> None:
    found = diff(toy, COMPLETION)
    assert (found.verdict, set(found.counts)) == (verdict, outcomes), found.rows


def test_near_ties_flip_nothing(diff: Diff) -> None:
    """Beside a request that was compared whole, one at which two tokens are as likely decides nothing."""
    toy = Toy(gap=0.2)
    answered = toy.answer

    def flipping(method: str, path: str, body: Any) -> Any:
        toy.flips = 1 if body and body.get("prompt") == "tie" else None
        return answered(method, path, body)

    toy.answer = flipping  # type: ignore[method-assign]
    found = diff(toy, COMPLETION, {"prompt": "tie"})
    assert found.verdict == "cache not implicated"
    assert [row.outcome for row in found.rows] == ["match", "near-tie"]
    assert (found.rows[1].divergence, found.rows[1].unit) == (1, "token")


def test_where_the_first_difference_is(diff: Diff) -> None:
    (row,) = diff(Toy(flips=2), COMPLETION).rows
    assert (row.divergence, row.unit, row.cached, row.bypassed, row.prompt) == (2, "token", 96, 0, 120)
    assert row.difference == pytest.approx(3.0)


def test_one_that_differs_outweighs_all_that_do_not(diff: Diff) -> None:
    toy = Toy()
    answered = toy.answer

    def sometimes(method: str, path: str, body: Any) -> Any:
        toy.wrong = bool(body) and body.get("prompt") == "stale"
        return answered(method, path, body)

    toy.answer = sometimes  # type: ignore[method-assign]
    toy.cached = {json.dumps(["1", None, None])}
    found = diff(toy, *({"prompt": f"{number}"} for number in range(5)), {"prompt": "stale"}, held=False)
    assert [row.there for row in found.rows][:3] == [False, True, False]
    assert (found.verdict, found.counts["match"]) == ("cache implicated", 5)
    assert found.why.startswith("1 of 6 requests differ, first line 6")


def test_content_decides_where_no_log_probabilities_are_told(diff: Diff) -> None:
    asked = {**COMPLETION, "expect": "10 11 12 13"}
    assert diff(Toy(wrong=True, logs=False), asked).verdict == "cache implicated"
    assert diff(Toy(logs=False), asked).verdict == "cache not implicated"
    assert diff(Toy(drifts=True, logs=False), asked).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("toy", "line", "method", "path", "without"),
    [
        (Toy(), COMPLETION, "vllm-skip", "/v1/completions", {"prompt_logprobs", "cache_salt"}),
        (Toy(), CHAT, "vllm-skip", "/v1/chat/completions", {"prompt_logprobs", "cache_salt"}),
        (Toy(), CHAT, "cache-salt", "/v1/chat/completions", {"cache_salt"}),
        (Toy("sglang"), COMPLETION, "sglang", "/generate", {"logprob_start_len", "cache_salt"}),
        (Toy("sglang"), CHAT, "sglang", "/generate", {"logprob_start_len", "cache_salt"}),
        (Toy(None), {**MARKED, "expect": "10 11"}, "breakpoint", "/v1/messages", set()),
    ],
)
def test_every_way_round_the_cache(
    diff: Diff, toy: Toy, line: dict[str, Any], method: Method, path: str, without: set[str]
) -> None:
    asked = "auto" if method != "cache-salt" else method
    found = diff(toy, {**line, "temperature": 1, "stream": True, "n": 3}, line, method=asked)
    assert (found.method, found.verdict) == (method, "cache not implicated"), found.rows
    sent = [body for each, body in toy.asked if each == path]
    bodies = [
        body for body in sent if without <= body.keys() and not (method == "breakpoint" and marks_breakpoints(body))
    ]
    assert len(bodies) == 2
    salts = {body["cache_salt"] for body in bodies if without}
    assert len(salts) == (2 if without else 0)
    # Nothing else differs: the tokens of the prompt are the same, and every answer is greedy.
    kept = [{name: value for name, value in body.items() if name not in without} for body in sent]
    if method != "breakpoint":
        assert all(body == kept[0] for body in kept)
    greedy = [body.get("sampling_params", body) for body in kept]
    assert all(body["temperature"] == 0 and not body.get("stream") and "n" not in body for body in greedy)


@pytest.mark.parametrize(
    ("more", "adapter"), [({}, None), ({"model": "m:billing", "lora_path": "x"}, "billing"), ({"lora_path": "x"}, "x")]
)
def test_an_adapter_is_asked_for_either_way(diff: Diff, more: dict[str, Any], adapter: str | None) -> None:
    toy = Toy("sglang")
    diff(toy, {**COMPLETION, **more})
    assert {body.get("lora_path") for path, body in toy.asked if path == "/generate"} == {adapter}


@pytest.mark.parametrize(
    ("names", "verdict"), [({"a": "m", "b": "other"}, "cannot tell"), ({"a": "m", "b": "m"}, "cache not implicated")]
)
def test_a_gateway_that_answers_with_another_model_clears_nothing(
    diff: Diff, names: dict[str, str], verdict: str
) -> None:
    toy = Toy()
    answered = toy.answer

    def other(method: str, path: str, body: Any) -> Any:
        status, data = answered(method, path, body)
        return status, {**data, "model": names[body["prompt"]]} if method == "POST" else data

    toy.answer = other  # type: ignore[method-assign]
    assert diff(toy, {"prompt": "a"}, {"prompt": "b"}).verdict == verdict


def test_log_probabilities_of_another_text_decide_nothing(diff: Diff) -> None:
    toy = Toy()
    answered = toy.answer

    def other(method: str, path: str, body: Any) -> Any:
        status, data = answered(method, path, body)
        if method == "POST" and "cache_salt" not in body:
            data["choices"][0]["text"] = "something else"
        return status, data

    toy.answer = other  # type: ignore[method-assign]
    assert diff(toy, COMPLETION).rows[0].outcome == "unclear"


def test_the_cache_is_asked_first(diff: Diff) -> None:
    """A store whose names hold no salt keeps what an answer without the cache leaves: it was not there before."""
    toy = Toy()
    diff(toy, *({"prompt": prompt} for prompt in "ab"))
    assert ["cache_salt" in body for _, body in toy.asked] == [False, True, False, True]
    found = diff(Toy(ignores=("cache_salt",)), *({"prompt": prompt} for prompt in "ab"), held=False)
    assert [row.there for row in found.rows] == [False, False]


def test_what_this_command_left_itself_clears_no_cache(diff: Diff) -> None:
    found = diff(Toy(), COMPLETION, held=False)
    assert (found.verdict, set(found.counts)) == ("cannot tell", {"match"})
    assert "nothing was there before" in found.why


def test_what_every_prompt_begins_with_is_no_entry_that_was_read(diff: Diff) -> None:
    """A header of 16 tokens is in everybody's cache; what the first request left is read by the second."""
    toy = Toy(old=0.5)
    answered, seen = toy.answer, set()

    def header(method: str, path: str, body: Any) -> Any:
        status, data = answered(method, path, body)
        if method == "POST" and "cache_salt" not in body and body["prompt"] not in seen:
            seen.add(body["prompt"])
            data["usage"]["prompt_tokens_details"]["cached_tokens"] = 16
        return status, data

    toy.answer = header  # type: ignore[method-assign]
    found = diff(toy, COMPLETION, held=False)
    assert (found.verdict, found.rows[0].there, found.rows[0].outcome) == ("cannot tell", False, "match")
    toy.caches = False
    assert diff(toy, {"prompt": "another"}, held=False).rows[0].outcome == "not reused"


def test_an_answer_without_a_token_is_nothing_to_compare(diff: Diff) -> None:
    toy = Toy(wrong=True)
    answered = toy.answer

    def empty(method: str, path: str, body: Any) -> Any:
        status, data = answered(method, path, body)
        return status, {**data, "choices": [{"text": ""}]} if "choices" in data else data

    toy.answer = empty  # type: ignore[method-assign]
    assert (diff(toy, COMPLETION).verdict, diff(toy, COMPLETION).rows[0].outcome) == ("cannot tell", "unclear")


@pytest.mark.parametrize(
    ("toy", "verdict", "noise"),
    [
        (Toy(), "cache not implicated", None),  # nothing to hold against anything
        (Toy(old=0.01), "cache not implicated", None),
        (Toy(old=0.2), "cannot tell", 0.0),  # a light fine-tune: more than this server's own entries give
        (Toy(shift=0.2), "cache not implicated", 0.2),  # its own entries give as much
        (Toy(shift=0.02, old=0.3), "cannot tell", 0.02),
        (Toy(old=0.5), "cache implicated", None),
        (Toy(old=0.2, tells=False), "cannot tell", None),
    ],
)
def test_small_differences_are_held_against_the_servers_own(
    diff: Diff, toy: Toy, verdict: str, noise: float | None
) -> None:
    toy.cached = {json.dumps(["once upon a time", None, None])}
    found = diff(toy, COMPLETION, held=False, step=0.016)
    assert (found.verdict, found.noise) == (verdict, pytest.approx(noise) if noise else noise), found.rows
    if noise == 0.0:
        assert "0.2 nats off, its own entries give 0" in found.why


@pytest.mark.parametrize(
    ("old", "changes", "verdict"),
    [
        (0.2, {}, "cache implicated"),  # what filled the cache computes alike, but for the weights
        (0.2, {"engine.accelerator": "A100"}, "cannot tell"),
        (0.2, {"engine.accelerator": FORGET}, "cannot tell"),
        (0.2, {"cache.serde": "cachegen"}, "cannot tell"),
        (0.01, {}, "cache not implicated"),
    ],
)
def test_entries_of_a_worker_that_computes_alike_are_no_further_off(
    diff: Diff, old: float, changes: dict[str, Any], verdict: str
) -> None:
    toy = Toy(old=old)
    toy.cached = {json.dumps(["once upon a time", None, None])}
    packed = {name: value for name, value in changes.items() if name == "cache.serde"}
    same = alike(clean(changes), clean(packed))
    assert diff(toy, COMPLETION, held=False, step=0.016, alike=same).verdict == verdict


def test_null_is_no_accelerator_that_two_have_in_common() -> None:
    null = clean({"engine.accelerator": None})
    assert alike(clean(), clean())
    assert not alike(null, null)


def test_a_salt_that_the_key_does_not_hold_is_no_way_round(diff: Diff) -> None:
    toy = Toy(ignores=("cache_salt",))
    toy.cached = {json.dumps([prompt, None, None]) for prompt in "ab"}
    found = diff(toy, {"prompt": "a"}, {"prompt": "b"}, method="cache-salt")
    assert (found.verdict, set(found.counts)) == ("cannot tell", {"not bypassed"})


def test_a_salt_in_the_prompt_is_refused_with_the_reason(diff: Diff) -> None:
    with pytest.raises(UsageError, match="it changes the tokens"):
        diff(Toy(), method="prompt-salt")


@pytest.mark.parametrize(
    ("toy", "line", "method", "message"),
    [
        (Toy(None), COMPLETION, "auto", "neither vLLM nor SGLang"),
        (Toy(), COMPLETION, "magic", "there is no method 'magic'"),
        (Toy(), COMPLETION, "breakpoint", "none for /v1/completions"),
        (Toy(), MARKED, "vllm-skip", "none for /v1/messages"),
        (Toy(None), {"url": "/v1/messages", "body": CHAT}, "breakpoint", "marks no cache_control"),
    ],
)
def test_methods_that_cannot_be_used(diff: Diff, toy: Toy, line: Any, method: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        diff(toy, line, method=method)


def test_a_server_that_fails_now_and_then_leaves_it_open(diff: Diff) -> None:
    toy = Toy(fails=[None, None, None, 500])
    found = diff(toy, *({"prompt": f"{number}"} for number in range(3)))
    assert found.verdict == "cannot tell"
    assert [row.outcome for row in found.rows] == ["match", "failed", "match"]
    assert "HTTP 500: no" in found.why
    toy = Toy(wrong=True, fails=[None, None, None, None, None, 500])
    assert diff(toy, *({"prompt": f"{number}"} for number in range(3))).verdict == "cache implicated"


def test_a_server_that_stops_answering_is_left_alone(diff: Diff) -> None:
    toy = Toy(fails=[None, None, None, *[503] * 90])
    found = diff(toy, *({"prompt": f"{number}"} for number in range(30)))
    assert (found.verdict, len(found.rows), found.not_sent) == ("cannot tell", 4, 26)
    with pytest.raises(InputError, match="HTTP 503"):
        diff(Toy(fails=[503] * 90))


@pytest.mark.parametrize(
    "data",
    [
        {"choices": []},
        {"choices": [{"text": 7}]},
        {"choices": [{"message": {"content": ["x"]}}]},
        {"choices": [{"text": "x", "logprobs": {"tokens": ["a"], "token_logprobs": ["b"]}}]},
        {"choices": [{"text": "x", "logprobs": {"tokens": [1], "token_logprobs": [-1.0]}}]},
        {"choices": [{"text": "x", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1.0]}}]},
        {"text": "x", "meta_info": {"output_token_logprobs": [[None, -3, ""]]}},
        {"content": [7]},
        [],
        "words",
        b"<html>",
        None,
    ],
)
def test_answers_that_are_none(data: Any, tmp_path: Path) -> None:
    def answer(method: str, path: str, _: Any) -> Any:
        return (200, {"version": "0.32.0"}) if path == "/version" else (200, data) if method == "POST" else (404, {})

    requests = read(tmp_path, COMPLETION)
    with serving(Engine(answer)) as engine, Client(engine.url) as client:
        server = answering_server(client)
        with pytest.raises(InputError, match=r"completion|HTTP 200"):
            bypass_diff(server, requests, "vllm-skip", TOLERANCE)


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_tolerance_under_which_everything_is_alike_is_refused(run: Run, number: str, tmp_path: Path) -> None:
    read(tmp_path, COMPLETION)
    ran = run("bypass", "--endpoint", "http://127.0.0.1:9", "--requests", "requests.jsonl", "--tolerance", number)
    assert (ran.code, "--tolerance" in ran.err) == (2, True)


def test_a_server_that_hangs_is_an_error_in_time(run: Run, tmp_path: Path) -> None:
    read(tmp_path, COMPLETION)
    toy = Toy()

    def hanging(handler: Any) -> None:
        if handler.command == "GET":
            status, data = toy.answer("GET", handler.path, None)
            body = json.dumps(data).encode()
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)
        else:
            dribbling(handler)

    with serving(Engine(toy.answer, raw=hanging)) as engine:
        ran = run("bypass", "--endpoint", engine.url, "--requests", "requests.jsonl", "--seconds", "1")
    assert (ran.code, "did not answer within 1 s" in ran.err) == (3, True), ran.err
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ran = run("bypass", "--endpoint", f"http://127.0.0.1:{free.getsockname()[1]}", "--requests", "requests.jsonl")
    assert (ran.code, "cannot be reached" in ran.err) == (3, True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "holds no request"),
        ("{", "requests.jsonl:1"),
        ("[]", "not a JSON object"),
        ('{"model": "m"}', "is no request"),
        ('{"custom_id": 7, "prompt": "x"}', "are texts"),
        ('{"custom_id": "a", "url": "/v1/embeddings", "body": {}}', "is no request"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": {}}', "without what it asks"),
        ('{"prompt": ["a", "b"]}', "several prompts"),
        ('{"custom_id": "a", "prompt": "x"}\n{"custom_id": "a", "prompt": "y"}', "stands twice"),
        ('{"prompt": "\\u0000"', "requests.jsonl:1"),
        ('{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}", "requests.jsonl:1"),
        ('{"messages": ' + "[" * 400 + "]" * 400 + "}", "nested|deep"),
    ],
)
def test_what_is_no_file_of_requests(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, line)


def test_the_command_writes_evidence_that_binds_and_holds_no_prompt(
    run: Run, manifest: MakeManifest, tmp_path: Path
) -> None:
    named = manifest("new.yaml")
    (tmp_path / "requests.jsonl").write_text(json.dumps({"custom_id": "secret name", "prompt": "secret words"}) + "\n")
    answers = {
        "/v1/models": {"data": [{"id": "support", "parent": None, "root": "acme/support-8b", "owned_by": "vllm"}]}
    }
    for toy, code, state, earlier in (
        (Toy(held=True), 0, "proved", ()),
        (Toy(held=True, wrong=True), 10, "refuted", ()),
        (Toy(held=True), 0, "proved", ("refuted.json",)),
        (Toy(tells=False), 11, "inconclusive", ("refuted.json",)),
    ):
        found = f"{state}.json"
        answered = toy.answer

        def answer(method: str, path: str, body: Any, answered: Any = answered) -> Any:
            if path == "/version":
                return 200, {"version": "0.33.0"}
            return (200, answers[path]) if path in answers else answered(method, path, body)

        toy.answer = answer  # type: ignore[method-assign]
        with running(toy) as url:
            call = ("bypass", "--endpoint", url, "--requests", "requests.jsonl", "--manifest", named)
            ran = run(*call, "-o", found, "--tolerance", "0.4", "-q", *(("--supersedes", *earlier) if earlier else ()))
        assert ran.code == code, ran.err
        text = (tmp_path / found).read_text()
        evidence = Evidence.model_validate(json.loads(text), by_alias=True)
        assert (evidence.kind, evidence.state, evidence.tools["vllm"]) == ("bypass-diff", state, "0.33.0")
        assert "secret" not in text.replace("kvgate bypass", "")
        given = [word for file in (found, *earlier) for word in ("--evidence", file)]
        checked = run("check", named, named, *given, "--no-config")
        refused = code == 10 or (bool(earlier) and state != "proved")
        assert (checked.code, "refuted-bypass-diff" in checked.out) == ((10, True) if refused else (0, False))


@pytest.mark.parametrize(
    ("toy", "code", "verdict"),
    [
        ({"started": (1.5,)}, 0, "cache not implicated"),
        ({"started": (1.5, 2.5)}, 11, "cannot tell"),
        ({"configurations": ("a", "b")}, 11, "cannot tell"),
        ({"started": (1.5, 2.5), "wrong": True}, 10, "cache implicated"),
    ],
)
def test_replicas_that_take_turns_clear_no_cache(
    run: Run, tmp_path: Path, toy: dict[str, Any], code: int, verdict: str
) -> None:
    read(tmp_path, COMPLETION)
    with running(Toy(held=True, **toy)) as url:
        ran = run("bypass", "--endpoint", url, "--requests", "requests.jsonl")
    assert (ran.code, ran.out.splitlines()[-1]) == (code, verdict), ran.out
    assert ("several processes answer" in ran.out) is (len(next(iter(toy.values()))) > 1)


def _of(toy: Toy, root: str) -> Toy:
    """Return a server that loaded a model from somewhere."""
    answered = toy.answer
    told = {
        "/version": {"version": "0.33.0"},
        "/v1/models": {"data": [{"id": "support", "parent": None, "root": root, "owned_by": "vllm"}]},
    }

    def answer(method: str, path: str, body: Any) -> Any:
        return (200, told[path]) if path in told else answered(method, path, body)

    toy.answer = answer  # type: ignore[method-assign]
    return toy


def test_a_server_is_held_against_each_pool(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    """What one pool reads answers nothing that another one does, and what they have in common is no server."""
    read(tmp_path, COMPLETION)
    sets = {"a": {"model.id": "acme/a"}, "b": {"model.id": "acme/b"}, "c": {"model.id": "acme/b"}}
    named = manifest("new.yaml", {"roles": [{"name": name, "set": one} for name, one in sets.items()]})

    def asked(root: str, *options: str, wrong: bool = False) -> tuple[Any, dict[str, Any]]:
        with running(_of(Toy(held=True, wrong=wrong), root)) as url:
            call = ("bypass", "--endpoint", url, "--requests", "requests.jsonl", "--manifest", named)
            ran = run(*call, "-o", "found.json", "-q", *options)
        return ran, json.loads((tmp_path / "found.json").read_text())

    ran, found = asked("acme/a", wrong=True)
    assert (ran.code, found["figures"]["pools"]) == (10, ["a"]), ran.err
    assert found["coverage"]["missing"]["pools"] == "all but one: a server of a was asked"
    (tmp_path / "found.json").rename(tmp_path / "refuted.json")
    supersedes = ("--supersedes", "refuted.json")
    for root, options, pools, said in (
        ("acme/a", (), ["a"], ""),
        ("acme/b", ("--pool", "b"), ["b"], "it is of pool b, and that is of a"),
        ("acme/b", (), ["b", "c"], "which pool was asked is not known"),
    ):
        ran, found = asked(root, *options, *supersedes)
        assert (ran.code, found["state"], found["figures"]["pools"]) == (0, "proved", pools), ran.err
        assert (bool(found["supersedes"]), said in ran.err) == (not said, True)
    for root, options, said in (
        ("acme/support-8b", (), "is not the deployment in new.yaml, pool a, and none of its other pools"),
        ("acme/a", ("--pool", "b"), "is not the deployment in new.yaml, pool b: model.id"),
    ):
        ran, found = asked(root, *options)
        assert (ran.code, said in " ".join(ran.err.split()), found["state"]) == (3, True, "not-run"), ran.err
    ran, _ = asked("acme/a", "--pool", "x")
    assert (ran.code, "pools: a, b or c" in ran.err) == (2, True)


def test_another_server_is_no_witness(run: Run, manifest: MakeManifest, tmp_path: Path) -> None:
    read(tmp_path, COMPLETION)
    named = manifest("new.yaml")
    with running(Toy()) as url:
        call = ("bypass", "--endpoint", url, "--requests", "requests.jsonl", "--manifest", named, "-o", "found.json")
        ran = run(*call)
    assert (ran.code, "is not the deployment in new.yaml" in ran.err) == (3, True), ran.err
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["state"], "the server is not the deployment" in found["reason"]) == ("not-run", True)
    with running(Toy(None, held=True)) as url:  # a gateway
        ran = run("bypass", "--endpoint", url, *call[3:], "--method", "cache-salt")
    assert ran.code == 0, ran.err
    assert "deployment" in json.loads((tmp_path / "found.json").read_text())["coverage"]["missing"]
    with running(Toy()) as url:
        ran = run("bypass", "--endpoint", url, "--requests", "requests.jsonl", "-o", "found.json")
    assert (ran.code, "--manifest MANIFEST" in ran.err) == (2, True)
