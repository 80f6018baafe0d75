"""The same weights in other files, and other weights: from checkpoints to the verdict. A tied head is incident I21."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conftest import FORGET, Capture, Check, Edit, Kvgate
from tests.acceptance.releases import Checkpoints, serve

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
K_PROJ = "model.layers.2.self_attn.k_proj.weight"
TAIL = [
    "lm_head.weight",
    "model.norm.weight",
    "model.layers.3.self_attn.o_proj.weight",
    "model.layers.3.mlp.up_proj.weight",
]
DRAFT = serve("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}')


def test_the_same_deployment_captured_twice(kvgate: Kvgate, check: Check, base: Path, tmp_path: Path) -> None:
    """With the launch line and what it cannot say; nothing differs, so nothing is found."""
    (tmp_path / "serve.sh").write_text(serve())
    told = ("--set", "engine.accelerator=H200", "--set", "cache.tenancy=null", "--set", "inputs=null")
    for name in ("one", "two"):
        ran = kvgate("capture", base, "--from", "serve.sh", "--renderer", "here", *told, "-o", name, "-q")
        assert (ran.code, ran.out, ran.err) == (0, f"{name}/manifest.yaml\n", "")
    assert (tmp_path / "one" / "manifest.yaml").read_bytes() == (tmp_path / "two" / "manifest.yaml").read_bytes()
    answer = check("one", "two")
    assert (*answer,) == (REUSE, 0, [])
    assert answer.predicate["changes"] == []
    assert "NOTHING DIFFERS" in answer.report


def test_the_same_tensors_in_other_files(check: Check, capture: Capture, checkpoints: Checkpoints, base: Path) -> None:
    answer = check(capture(base), capture(checkpoints("resharded", files=3)))
    assert (*answer,) == (REUSE, 0, ["weights-layout-only"])
    assert {change["path"] for change in answer.predicate["changes"]} == {"tokenizer.path", "weights.checkpoint.layout"}
    assert "the same tensors in other files" in " ".join(answer.report.split())


def test_one_changed_byte_in_a_k_proj(check: Check, capture: Capture, checkpoints: Checkpoints, base: Path) -> None:
    answer = check(capture(base), capture(checkpoints.with_a_changed_byte(K_PROJ)))
    assert (*answer,) == (NEW, 10, ["weights-changed"])
    finding = answer.finding("weights-changed")
    assert finding["answers"] == {"kvValid": "no", "tokensEqual": "not affected", "keysSeparate": "no"}
    assert K_PROJ in finding["detail"]
    assert not finding["unverified"]
    assert answer.predicate["action"]["kind"] == "set"


@pytest.mark.parametrize("tensor", TAIL)
def test_a_tensor_after_the_last_key_and_value(
    check: Check, capture: Capture, checkpoints: Checkpoints, base: Path, tensor: str
) -> None:
    answer = check(capture(base), capture(checkpoints.with_a_changed_byte(tensor)))
    assert (*answer,) == (REUSE, 0, ["weights-tail-only"])
    finding = answer.finding("weights-tail-only")
    assert finding["why"] in " ".join(answer.report.split())
    assert "no persisted state depends on" in finding["detail"]


def test_with_speculation_every_tensor_counts(
    check: Check, capture: Capture, checkpoints: Checkpoints, base: Path
) -> None:
    changed = checkpoints.with_a_changed_byte("lm_head.weight")
    answer = check(capture(base, DRAFT), capture(changed, DRAFT))
    assert (*answer,) == (NEW, 10, ["weights-changed"])


@pytest.mark.parametrize("side", ["old", "new", "both"])
def test_without_knowing_of_speculation_every_tensor_counts(
    check: Check, capture: Capture, checkpoints: Checkpoints, base: Path, edit: Edit, side: str
) -> None:
    changed = checkpoints.with_a_changed_byte("lm_head.weight")
    pair = {"old": capture(base), "new": capture(changed)}
    for name, folder in pair.items():
        if side in (name, "both"):
            pair[name] = edit(folder, name, {"engine.speculative": FORGET})
    answer = check(pair["old"], pair["new"])
    assert answer.verdict == NEW
    assert answer.code in (10, 11)
    assert answer.open == ["speculation-changed", "weights-changed"]
    assert answer.finding("speculation-changed")["unverified"]


def test_a_tail_of_an_architecture_that_is_not_proved_counts(
    check: Check, capture: Capture, checkpoints: Checkpoints
) -> None:
    unproved = {"architectures": ["LlamaForSomethingElse"]}
    tensors = checkpoints.tensors()
    old = capture(checkpoints("unproved", tensors=tensors, config=unproved))
    tensors["lm_head.weight"][0, 0] += 1
    answer = check(old, capture(checkpoints("unproved-head", tensors=tensors, config=unproved)))
    assert (*answer,) == (NEW, 10, ["weights-changed"])
