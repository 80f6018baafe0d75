"""Public incidents of tokens, end to end: from files and libraries to verdict, cause and first divergence.

Where a report names releases that install side by side, each side is rendered by its own, with the script that runs
where kvgate is not. I06 and I14 are in test_incidents.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvgate.corpora.snapshots.snapshot import SnapshotFile, open_snapshot
from kvgate.corpora.standalone.printed import snapshot_script
from tests.corpora.engine_server import Engine, serving, vllm
from tests.renderers.install import renderer

from .conftest import Answer, Capture, Check, Edit, Kvgate
from .releases import TEMPLATE, Checkpoints, serve

REUSE = "verified-compatible-reuse"
NEW = "new-namespace"
CHAT = ("messages", "add_generation_prompt", "continue_final_message", "tools", "chat_template_kwargs")

Render = Callable[..., SnapshotFile]


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "kvgate_snapshot.py"
    path.write_text(snapshot_script(), encoding="utf-8")
    return path


@pytest.fixture
def render(script: Path, tmp_path: Path) -> Render:
    """Take a snapshot of a model folder with another release, as in an image that has it."""

    def call(folder: Path, release: str, *arguments: str) -> SnapshotFile:
        image = renderer(release)
        path = tmp_path / f"{folder.name}-{release}.jsonl"
        done = subprocess.run(
            [*image.command, str(script), str(folder), "-o", str(path), *arguments],
            env=image.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return open_snapshot(path, None)

    return call


def evidence(answer: Answer) -> dict[str, Any]:
    """The evidence of tokens in a record."""
    (found,) = [item for item in answer.predicate["evidence"] if item["kind"] == "token-identity"]
    return dict(found)


def causes(answer: Answer) -> set[str]:
    """The rules of the findings that demand something."""
    return {finding["rule"] for finding in answer.predicate["findings"] if finding["obligations"]}


def compared(answer: Answer) -> dict[str, Any]:
    """The figures of the one corpus that both sides rendered."""
    (found,) = evidence(answer)["figures"]["corpora"]
    return dict(found)


def first(answer: Answer) -> dict[str, Any]:
    """The first divergence."""
    found: dict[str, Any] = compared(answer)["first"][0]
    return found


def conversations(answer: Answer) -> set[str]:
    """The ids of divergent conversations that the record names."""
    return {name for kind in compared(answer)["kinds"] for name in kind["conversations"]}


# ---- libraries ----


def as_llama(vocabulary: dict[str, Any]) -> None:
    assert vocabulary["pre_tokenizer"]["type"] == "ByteLevel"


@pytest.fixture(scope="session")
def llama(checkpoints: Checkpoints) -> Path:
    """A checkpoint whose class is Llama's and whose tokenizer.json splits by ByteLevel, as DeepSeek's do."""
    return checkpoints("i01", tokenizer_config={"tokenizer_class": "LlamaTokenizerFast"}, tokenizer=as_llama)


def test_i01_an_image_moves_transformers_and_no_file_changes(
    kvgate: Kvgate, check: Check, render: Render, llama: Path, tmp_path: Path
) -> None:
    """huggingface/transformers#45488, #45920, RBLN-SW/rbln-model-zoo#87: 5.7 puts Metaspace in place of the file's."""
    declared = ("--set", "engine.accelerator=H200", "--set", "cache.tenancy=null", "--set", "inputs=null")
    for name, release, image in (("old", "4.57.6", "a"), ("new", "5.7.0", "b")):
        (tmp_path / "serve.sh").write_text(serve(image=f"vllm/vllm-openai:v0.33.0@sha256:{64 * image}"))
        tokens = render(llama, release).path
        ran = kvgate("capture", llama, "--from", "serve.sh", "--renderer", tokens, *declared, "-o", name, "--quiet")
        assert ran.code == 0, ran.err
    answer = check("old", "new")
    assert answer.verdict == NEW
    assert causes(answer) == {"engine-changed", "renderer-changed", "tokenizer-changed"}
    found = evidence(answer)
    assert (found["state"], found["figures"]["divergent"] > 100) == ("refuted", True)
    divergence = first(answer)
    assert (divergence["conversation"], divergence["sameText"]) == ("plain-user", True)
    tokens = answer.finding("tokenizer-changed")["answers"]
    assert tokens == {"kvValid": "yes", "tokensEqual": "no", "keysSeparate": "through token ids"}
    moved = answer.finding("renderer-changed")
    assert moved["path"] == "tokenizer.renderer.transformers"
    assert [moved[side]["value"] for side in ("old", "new")] == ["4.57.6", "5.7.0"]


def test_i01_one_library_for_both_sides_says_nothing(check: Check, capture: Capture, edit: Edit, llama: Path) -> None:
    """The false pass: both sides rendered by this environment, although the manifests name other releases."""
    taken = capture(llama)
    named = [
        edit(taken, name, {"tokenizer.renderer.transformers": release})
        for name, release in (("old", "4.57.6"), ("new", "5.7.0"))
    ]
    answer = check(*named)
    assert (answer.verdict, answer.code, evidence(answer)["state"]) == (NEW, 0, "inconclusive")
    assert causes(answer) == {"renderer-changed"}
    assert "one library rendered both sides although different ones serve" in evidence(answer)["reason"]
    assert "kvgate corpus script" in evidence(answer)["reason"]


def whole_word(vocabulary: dict[str, Any]) -> None:
    """Add a word that no merge makes: only a release that looks whole words up finds it."""
    vocabulary["model"]["vocab"]["ĠFlintshire"] = len(vocabulary["model"]["vocab"])
    vocabulary["model"]["ignore_merges"] = True


def test_i03_a_patch_release_of_tokenizers(
    check: Check, capture: Capture, render: Render, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """huggingface/tokenizers#1512: 0.19.1 reads ignore_merges, so that whole words become one token."""
    model = checkpoints("i03", tokenizer=whole_word)
    (tmp_path / "own.jsonl").write_text(
        '{"id": "plain", "prompt": "What is a tide?"}\n{"id": "word", "prompt": " Flintshire"}\n'
    )
    own = ("--corpus", str(tmp_path / "own.jsonl"), "--chat-template", str(model / "chat_template.jinja"))
    old, new = (
        capture(model, renderer=render(model, release, *own)) for release in ("4.40.2 with tokenizers 0.19.0", "4.40.2")
    )
    answer = check(old, new)
    assert (answer.verdict, answer.code, evidence(answer)["state"]) == (NEW, 0, "refuted")
    assert conversations(answer) == {"word"}, "one divergent conversation is enough"
    divergence = first(answer)
    assert (divergence["token"], divergence["newTokens"]) == (0, 1)
    assert divergence["oldTokens"] > 1
    assert "renderer-changed" in causes(answer)


def many_words(vocabulary: dict[str, Any]) -> None:
    words = vocabulary["model"]["vocab"]
    for number in range(len(words), 100_010):
        words[f"<word-{number}>"] = number


@pytest.mark.parametrize(
    ("model_type", "verdict"), [("mistral", NEW), ("qwen2", REUSE)], ids=["a: it counts", "b: it does nothing"]
)
def test_i04_the_same_edit_of_a_flag(
    check: Check, capture: Capture, checkpoints: Checkpoints, model_type: str, verdict: str
) -> None:
    """huggingface/transformers#42299, #42591: fix_mistral_regex is decided by what is built, not by the flag."""
    config = {"model_type": model_type, "architectures": ["AnyForCausalLM"]}
    old, new = (
        capture(
            checkpoints(
                f"i04-{model_type}-{name}",
                config=config,
                tokenizer=many_words,
                tokenizer_config={"fix_mistral_regex": True} if name == "new" else {},
            )
        )
        for name in ("old", "new")
    )
    answer = check(old, new)
    assert answer.verdict == verdict
    if verdict == REUSE:
        assert (answer.code, answer.rules) == (0, ["tokenizer-inert"])
    else:
        assert causes(answer) == {"tokenizer-changed"}
        assert evidence(answer)["state"] == "refuted"
        assert first(answer)["sameText"]


# ---- templates ----


def pair(check: Check, capture: Capture, checkpoints: Checkpoints, name: str, old: str, new: str, *more: str) -> Answer:
    """Check a template against another one."""
    launch = serve("--block-size", "16")
    sides = [
        capture(checkpoints(f"{name}-{side}", template=text), launch) for side, text in (("old", old), ("new", new))
    ]
    return check(*sides, *more)


THINK = TEMPLATE.replace("assistant\\n' }}\n{%- endif", "assistant\\n<think>\\n' }}\n{%- endif")


def test_i07_the_answer_opens_with_a_thought(check: Check, capture: Capture, checkpoints: Checkpoints) -> None:
    """hiyouga/LlamaFactory#6987: the old tokens are the beginning of the new ones, so full blocks go on matching."""
    answer = pair(check, capture, checkpoints, "i07", TEMPLATE, THINK)
    assert (answer.verdict, answer.code, answer.rules) == (NEW, 0, ["template-changed"])
    divergence = first(answer)
    assert divergence["token"] == divergence["oldTokens"] < divergence["newTokens"]
    blocks = compared(answer)["blocks"]
    assert blocks["shared"] == blocks["old"] > 0
    finding = answer.finding("template-changed")
    assert finding["answers"] == {"kvValid": "yes", "tokensEqual": "no", "keysSeparate": "through token ids"}
    reuse = pair(check, capture, checkpoints, "i07", TEMPLATE, THINK, "--rules", "token-keyed")
    assert (reuse.verdict, reuse.code) == (REUSE, 0)


THOUGHT = (
    "{%- for message in messages %}{{ '<|role|>' + message['role'] + '\\n' }}"
    "{%- if message['role'] == 'assistant' and KEEP %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}"
    "{{- (message['content'] or '') + '<|end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|role|>assistant\\n<think>\\n\\n</think>\\n' }}{% endif %}"
)


def test_i09_the_empty_thought_of_past_turns(check: Check, capture: Capture, checkpoints: Checkpoints) -> None:
    """QwenLM/Qwen3#1826: the old template drops it, so that no turn is the beginning of the next one."""
    old, new = THOUGHT.replace("KEEP", "loop.last"), THOUGHT.replace("KEEP", "true")
    answer = pair(check, capture, checkpoints, "i09", old, new)
    assert (answer.verdict, answer.code, answer.rules) == (NEW, 0, ["template-changed"])
    divergence = first(answer)
    assert 0 < divergence["token"] < divergence["oldTokens"]
    turns = compared(answer)["turns"]
    assert turns["mended"]["count"] > 20
    assert turns["broken"]["count"] == 0
    assert turns["old"]["held"] < 0.1 * turns["old"]["measured"]
    assert turns["new"]["held"] > 0.9 * turns["new"]["measured"]


CALLS = TEMPLATE.replace(
    "{%- endfor %}",
    "    {%- for call in message.tool_calls or [] %}\n"
    "        {{- call.function.name ~ '(' ~ (call.function.arguments FILTER) ~ ')' }}\n"
    "    {%- endfor %}\n{%- endfor %}",
)


def test_i10_arguments_written_as_json(check: Check, capture: Capture, checkpoints: Checkpoints) -> None:
    """fw-ai/cookbook#434: True and None become true and null; only conversations with tool calls see it."""
    old, new = CALLS.replace("FILTER", "| string"), CALLS.replace("FILTER", "| tojson")
    answer = pair(check, capture, checkpoints, "i10", old, new)
    assert (answer.verdict, answer.code, answer.rules) == (NEW, 0, ["template-changed"])
    assert not first(answer)["sameText"]
    assert "plain-user" not in conversations(answer)


TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}" + TEMPLATE


def test_i10_the_library_begins_to_leave_keys_and_letters_as_they_are(
    check: Check, capture: Capture, render: Render, checkpoints: Checkpoints
) -> None:
    """huggingface/transformers#31100: 4.40's tojson is jinja2's own, which sorts keys and escapes letters."""
    config = {"chat_template": TOOLS}
    model = checkpoints("i10-library", tokenizer_config=config, template=None)
    old, new = (capture(model, renderer=render(model, release)) for release in ("4.40.2", "4.57.6"))
    answer = check(old, new)
    assert (answer.verdict, answer.code, evidence(answer)["state"]) == (NEW, 0, "refuted")
    assert "renderer-changed" in causes(answer)
    named = conversations(answer)
    assert named
    assert all("tool" in name or "call" in name or "schema" in name for name in named), named
    assert not first(answer)["sameText"]


def test_i16_a_template_file_beside_the_configured_one(
    check: Check, capture: Capture, checkpoints: Checkpoints
) -> None:
    """huggingface/text-generation-inference#3247: transformers takes the file."""
    configured = {"chat_template": TEMPLATE}
    old = capture(checkpoints("i16-old", tokenizer_config=configured, template=None))
    new = capture(checkpoints("i16-new", tokenizer_config=configured, template=THINK))
    answer = check(old, new)
    assert (answer.verdict, answer.code) == (NEW, 0)
    assert causes(answer) == {"template-changed"}
    assert evidence(answer)["state"] == "refuted"


def test_i16_a_renderer_that_reads_the_other_one_is_refused(
    kvgate: Kvgate, render: Render, checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """An old release does not read the file: which template the engine takes is not known here."""
    model = checkpoints("i16-new", tokenizer_config={"chat_template": TEMPLATE}, template=THINK)
    (tmp_path / "serve.sh").write_text(serve())
    tokens = render(model, "4.40.2")
    ran = kvgate("capture", model, "--from", "serve.sh", "--renderer", tokens.path, "-o", "old")
    assert (ran.code, ran.out) == (3, "")
    assert "took another chat template than the one found here" in ran.err


def test_i16_tools_select_another_template_of_a_list(check: Check, capture: Capture, checkpoints: Checkpoints) -> None:
    """huggingface/swift-transformers#204: an empty list of tools selects it too."""
    named = [{"name": "default", "template": TEMPLATE}, {"name": "tool_use", "template": THINK}]
    old = capture(checkpoints("i16-one", tokenizer_config={"chat_template": TEMPLATE}, template=None))
    new = capture(checkpoints("i16-two", tokenizer_config={"chat_template": named}, template=None))
    answer = check(old, new)
    assert (answer.verdict, answer.code, evidence(answer)["state"]) == (NEW, 0, "refuted")
    assert causes(answer) == {"template-changed"}
    assert "plain-user" not in conversations(answer)


FIXED = "Today is 3 February 2026.\n" + TEMPLATE
CLOCK = "Today is {{ strftime_now('%-d %B %Y') }}.\n" + TEMPLATE


def test_i17_a_template_that_reads_the_clock(check: Check, capture: Capture, checkpoints: Checkpoints) -> None:
    """xorbitsai/inference#3941: reuse, and the report says when it ends."""
    model = checkpoints("i17-clock", template=CLOCK)
    answer = check(capture(model), capture(model, serve("--max-num-seqs", "32")))
    assert (answer.verdict, answer.code) == (REUSE, 0)
    assert "template-reads-clock" in answer.rules
    assert "cold at midnight" in answer.finding("template-reads-clock")["detail"]


def test_i17_a_fixed_date_becomes_the_clocks(check: Check, capture: Capture, checkpoints: Checkpoints) -> None:
    """oobabooga/textgen#6692: on the first of the two dates both are equal, by luck."""
    answer = pair(check, capture, checkpoints, "i17", FIXED, CLOCK)
    assert (answer.verdict, answer.code, evidence(answer)["state"]) == (NEW, 0, "refuted")
    assert causes(answer) == {"template-changed"}
    figures = compared(answer)
    assert 0 < figures["divergent"] <= figures["conversations"] / 2
    assert first(answer)["date"] == 1


# ---- tokens ----


def with_flag(vocabulary: dict[str, Any]) -> None:
    end = next(token for token in vocabulary["added_tokens"] if token["content"] == "<|end|>")
    end["rstrip"] = True


def with_token(vocabulary: dict[str, Any]) -> None:
    number = max(vocabulary["model"]["vocab"].values()) + 1
    vocabulary["added_tokens"].append({**vocabulary["added_tokens"][-1], "id": number, "content": "<tool_call>"})


@pytest.mark.parametrize("change", [with_flag, with_token], ids=["a: rstrip", "b: a new token"])
def test_i11_an_added_token(
    check: Check,
    capture: Capture,
    checkpoints: Checkpoints,
    base: Path,
    change: Callable[[dict[str, Any]], None],
) -> None:
    """huggingface/transformers#35973, #33371, huggingface/tokenizers#1358."""
    new = checkpoints(f"i11-{change.__name__}", tokenizer=change)
    answer = check(capture(base), capture(new))
    assert (answer.verdict, answer.code) == (NEW, 0)
    assert causes(answer) == {"tokenizer-changed"}
    assert evidence(answer)["state"] == "refuted"


def test_i13_the_second_bos_goes(capture: Capture, check: Check, kvgate: Kvgate, base: Path, tmp_path: Path) -> None:
    """vllm-project/vllm#55288, #16976: block 0 differs, so nothing of the old blocks is ever asked for again."""
    tail = list(range(105, 180))
    (tmp_path / "own.jsonl").write_text('{"id": "hello", "messages": [{"role": "user", "content": "Hello"}]}\n')
    captured = []
    for name, version, ids in (("old", "0.32.0", [2, 2, *tail]), ("new", "0.33.0", [2, *tail])):
        with serving(Engine(vllm(*CHAT, ids=ids, version=version))) as engine:
            ran = kvgate(
                *("corpus", "snapshot", "--endpoint", engine.url, "--corpus", "own.jsonl", "-o", f"{name}.jsonl", "-q")
            )
        assert ran.code == 0, ran.err
        tokens = open_snapshot(tmp_path / f"{name}.jsonl", None)
        image = f"vllm/vllm-openai:v{version}@sha256:{64 * version[3]}"
        captured.append(capture(base, serve("--block-size", "16", image=image), renderer=tokens))
    found = check(*captured)
    assert (found.verdict, found.code, evidence(found)["state"]) == (NEW, 10, "refuted")
    assert causes(found) >= {"engine-changed", "renderer-changed"}
    refuted = next(one for one in found.predicate["findings"] if one["answers"]["tokensEqual"] == "no")
    assert (refuted["rule"], refuted["answers"]["kvValid"]) == ("renderer-changed", "yes")
    assert first(found)["token"] == 1
    blocks = compared(found)["blocks"]
    assert (blocks["shared"], blocks["old"] > 0) == (0, True)
