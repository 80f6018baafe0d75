"""What is not known equals nothing: no verdict but new-namespace, and the report says what to capture."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.conftest import FORGET, Capture, Check, Edit, Kvgate

NEW = "new-namespace"


def test_manifests_with_a_name_alone(check: Check, tmp_path: Path) -> None:
    for name in ("old.yaml", "new.yaml"):
        (tmp_path / name).write_text("schema: kvgate/manifest/v1\nmodel: {id: org/m}\n")
    answer = check("old.yaml", "new.yaml")
    assert (answer.verdict, answer.code) == (NEW, 11)
    assert all(finding["unverified"] for finding in answer.predicate["findings"])
    report = answer.report
    assert "kvgate capture MODEL --from LAUNCH_FILE" in report
    # Most useful first: the weights, then what a launch line says of the engine, then what only people know.
    order = [report.index(hint) for hint in ("capture the checkpoint itself", "engine.name=vllm", "--set inputs=null")]
    assert order == sorted(order)
    for acceptance in (["--accept", NEW], ["--declare", "clear", "--strategy", "recreate"]):
        assert check(*acceptance, "old.yaml", "new.yaml").code == 11


def test_the_same_branch_on_both_sides_proves_nothing(check: Check, capture: Capture, edit: Edit, base: Path) -> None:
    floating = {"model.revision": "main", "weights.checkpoint": FORGET, "weights.hub": FORGET}
    captured = capture(base)
    answer = check(edit(captured, "old", floating), edit(captured, "new", floating))
    assert (*answer,) == (NEW, 11, ["weights-changed"])
    finding = answer.finding("weights-changed")
    assert finding["unverified"]
    assert finding["settle"] in " ".join(answer.report.split())


def test_nothing_to_compare_is_no_verdict(kvgate: Kvgate, capture: Capture, base: Path) -> None:
    ran = kvgate("check", capture(base))
    assert (ran.code, ran.out) == (2, "")
    assert "--first" in ran.err
