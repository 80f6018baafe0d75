"""Snapshots that were taken elsewhere: those of the deployment are taken in, those of another one are refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.corpora.examine import describe_tokenizer
from kvgate.corpora.rendering.options import render_options
from kvgate.corpora.snapshots.snapshot import SnapshotFile, SnapshotHeader, SnapshotWriter
from kvgate.corpora.tokenizers.facts import TokenizerFacts
from kvgate.deployments.capture import capture
from kvgate.deployments.config import EffectiveConfig
from kvgate.deployments.launch import parse_vllm
from kvgate.deployments.write import write
from kvgate.rules.errors import InputError

SERVE = "docker run vllm/vllm-openai:v0.32.0 --model /models/m --max-model-len 128"
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
EFFECTIVE = "blake3:" + 64 * "e"

Take = Callable[..., SnapshotFile]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models

    folder = tmp_path_factory.mktemp("model")
    save_file({"model.embed_tokens.weight": np.zeros((2, 2), np.float16)}, folder / "model.safetensors")
    Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    return folder


@pytest.fixture(scope="module")
def facts(model: Path) -> TokenizerFacts:
    return describe_tokenizer(model)


@pytest.fixture(autouse=True)
def _examined_once(facts: TokenizerFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child processes that look at files and config are not what these tests are about."""
    monkeypatch.setattr("kvgate.deployments.capture.examine", lambda *_, **__: (facts, None))
    known = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    monkeypatch.setattr(
        "kvgate.deployments.capture.effective_config", lambda *_: EffectiveConfig(known, None, "not asked")
    )


@pytest.fixture
def template(facts: TokenizerFacts) -> str:
    assert facts.template is not None
    return facts.template.digest


@pytest.fixture
def take(tmp_path: Path, template: str) -> Take:
    """Write a snapshot without conversations, as the script writes it in an image with transformers 4.57.6."""

    def call(**changes: Any) -> SnapshotFile:
        header = SnapshotHeader(
            corpus="own@000000000000",
            corpus_digest="sha256:" + 64 * "0",
            renderer={"transformers": "4.57.6", "tokenizers": "0.22.2"},
            jinja2="3.1.6",
            made="script",
            options=render_options({})[0],
            unapplied=(),
            template=template,
            tokenizer=EFFECTIVE,
            clocks=("2026-02-03T04:05:06",),
        )
        with SnapshotWriter(tmp_path / "tokens.jsonl", dataclasses.replace(header, **changes)) as writer:
            return writer.finish(None, {})

    return call


ENDPOINT: dict[str, Any] = {
    "renderer": {"vllm": "0.32.0"},
    "jinja2": None,
    "made": "endpoint",
    "template": None,
    "tokenizer": None,
    "clocks": (),
}


def _captured(model: Path, snapshot: SnapshotFile, launch: str | None = SERVE, **how: Any) -> Any:
    lines = [] if launch is None else [parse_vllm(launch, source="serve.sh")]
    return capture(str(model), launch=lines, renderer=snapshot, **how)


def test_the_libraries_of_the_image_are_the_renderer(model: Path, take: Take, tmp_path: Path) -> None:
    found = _captured(model, take())
    tokenizer = found.manifest["tokenizer"]
    assert tokenizer["renderer"] == {
        "engine": "vllm",
        "engine_version": "0.32.0",
        "transformers": "4.57.6",
        "tokenizers": "0.22.2",
    }
    assert tokenizer["effective"] == EFFECTIVE
    provenance = found.manifest["provenance"]
    assert provenance["tokenizer.effective"] == "computed"
    assert provenance["tokenizer.renderer.transformers"] == "computed"
    written = yaml.safe_load(write(found, tmp_path / "out").read_text())
    assert written["tokenizer"]["snapshot"] == {
        "file": "tokens.jsonl",
        "sha256": take().sha256,
        "corpus": "own@000000000000",
        "renderer": {"transformers": "4.57.6", "tokenizers": "0.22.2"},
    }


def test_without_a_launch_line_too(model: Path, take: Take) -> None:
    found = _captured(model, take(options=render_options({"add_special_tokens": False})[0]), None)
    assert found.manifest["tokenizer"]["renderer"] == {"transformers": "4.57.6", "tokenizers": "0.22.2"}


def test_a_renderer_that_does_not_say_what_it_built_leaves_it_unknown(model: Path, take: Take) -> None:
    found = _captured(model, take(tokenizer=None))
    assert "effective" not in found.manifest["tokenizer"]
    assert "does not say which tokenizer was built" in dict(found.unknown)["tokenizer.effective"]


def test_a_server_that_was_asked(model: Path, take: Take, tmp_path: Path) -> None:
    launch = SERVE.replace(":v0.32.0", "")
    found = _captured(model, take(**ENDPOINT), launch)
    assert found.manifest["engine"]["version"] == "0.32.0"
    assert found.manifest["provenance"]["engine.version"] == "observed"
    assert found.manifest["tokenizer"]["renderer"]["engine_version"] == "0.32.0"
    assert found.manifest["tokenizer"]["renderer"]["transformers"] is None, "what the image holds"
    assert found.manifest["tokenizer"]["effective"] != EFFECTIVE, "what is built here, as without a snapshot"
    written = yaml.safe_load(write(found, tmp_path / "out").read_text())
    assert written["tokenizer"]["snapshot"]["renderer"] == {"vllm": "0.32.0"}


def test_a_server_does_not_stop_its_clock(
    model: Path, take: Take, facts: TokenizerFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any("clock" in note for note in _captured(model, take(**ENDPOINT)).notes)
    assert facts.template is not None
    reads = dataclasses.replace(facts, template=dataclasses.replace(facts.template, reads_clock=True))
    monkeypatch.setattr("kvgate.deployments.capture.examine", lambda *_, **__: (reads, None))
    assert any(
        "compares only with a snapshot of the same day" in note for note in _captured(model, take(**ENDPOINT)).notes
    )
    assert not any("same day" in note for note in _captured(model, take()).notes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"template": "blake3:" + 64 * "f"}, "another chat template"),
        ({"template": None}, "another chat template"),
        ({"options": render_options({"add_special_tokens": False})[0]}, "another add_special_tokens"),
        ({"options": render_options({"template_kwargs": {"mood": "calm"}})[0]}, "another template_kwargs"),
        ({"renderer": {"transformers": "4.57.6"}}, "does not say which tokenizers"),
        ({"renderer": {}}, "does not say which transformers"),
        ({"renderer": "here"}, "the same libraries build another tokenizer"),
        ({**ENDPOINT, "renderer": {"vllm": "0.33.0"}}, "vllm 0.33.0 was asked, and the launch line starts 0.32.0"),
        ({**ENDPOINT, "renderer": {"sglang": "0.5.23"}}, "sglang 0.5.23 was asked, and the launch line starts vllm"),
    ],
)
def test_a_snapshot_of_another_deployment_is_refused(
    model: Path, take: Take, facts: TokenizerFacts, changes: dict[str, Any], said: str
) -> None:
    if changes.get("renderer") == "here":
        changes = {"renderer": facts.renderer}
    with pytest.raises(InputError, match=said) as caught:
        _captured(model, take(**changes))
    assert str(caught.value).startswith(str(take(**changes).path))


def test_a_snapshot_that_is_not_taken_in_is_said_to_be_left_out(model: Path, take: Take) -> None:
    found = _captured(model, take(), f"{SERVE} --tokenizer-mode slow")
    assert found.tokens is None
    assert any("tokens.jsonl is left out: " in note for note in found.notes)
