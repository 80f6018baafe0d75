"""What the report tells to do, done; and what is not enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.conftest import Capture, Check, Edit, Kvgate
from tests.acceptance.releases import LMCACHE_DECLARED, LMCACHE_MP, Checkpoints, in_folder, serve, write_adapter

REUSE, NEW, CLEAR = "verified-compatible-reuse", "new-namespace", "clear"
K_PROJ = "model.layers.2.self_attn.k_proj.weight"
TENANTS = {"boundary": "tenant", "carried_by": "cache_salt"}


@pytest.fixture(scope="session")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "billing", seed=1)


@pytest.fixture(scope="session")
def other_billing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapters") / "billing", seed=2)


@pytest.fixture
def finetuned(checkpoints: Checkpoints) -> Path:
    return checkpoints.with_a_changed_byte(K_PROJ)


def test_the_printed_settings_in_the_launch_line(
    check: Check, kvgate: Kvgate, capture: Capture, base: Path, finetuned: Path
) -> None:
    """Red with the exact settings, edit, green with the same verdict."""
    old, new = capture(base), capture(finetuned)
    refused = check(old, new)
    assert (*refused,) == (NEW, 10, ["weights-changed"])
    (setting,) = refused.predicate["action"]["settings"]
    assert setting["path"] == "cache.namespace"
    assert kvgate("namespace", new, "-q").out == f"{setting['value']}\n"
    assert setting["value"] in refused.report

    again = capture(finetuned, serve(store=in_folder(f"/kv/support-assistant/{setting['value']}")))
    accepted = check(old, again)
    assert (accepted.verdict, accepted.code, accepted.open) == (NEW, 0, [])
    assert "weights-changed" in accepted.rules
    assert setting["value"] in accepted.finding("weights-changed")["met"]["separate"]


def test_the_printed_settings_in_the_manifest(
    check: Check, capture: Capture, edit: Edit, base: Path, finetuned: Path
) -> None:
    old, new = capture(base), capture(finetuned)
    settings = check(old, new).predicate["action"]["settings"]
    edited = edit(new, "edited", {setting["path"]: setting["value"] for setting in settings})
    answer = check(old, edited)
    assert (answer.verdict, answer.code, answer.open) == (NEW, 0, [])


def test_a_name_that_somebody_typed(check: Check, capture: Capture, base: Path, finetuned: Path) -> None:
    old = capture(base)
    answer = check(old, capture(finetuned, serve(store=in_folder("/kv/release-8"))))
    assert (answer.verdict, answer.code) == (NEW, 10)
    # The old entries are out of reach there; what lies under the new name is not known.
    assert "weights-changed" in answer.rules
    assert set(answer.open) == {"key-space-moved"}
    # Nor is it safe where nothing else differs: who knows what lies there.
    answer = check(old, capture(base, serve(store=in_folder("/kv/release-8"))))
    assert (answer.verdict, answer.code) == (NEW, 10)
    assert set(answer.rules) == {"key-space-moved"}


def test_a_kv_dtype_change_with_a_leak_needs_both(check: Check, capture: Capture, base: Path) -> None:
    """The MP key holds no dtype, so deleting while old workers go on writing keeps nothing apart."""
    declared = {**LMCACHE_DECLARED, "cache.tenancy": TENANTS}
    old = capture(base, serve(store=LMCACHE_MP), sets=declared)
    fp8 = serve("--kv-cache-dtype", "fp8_e4m3", store=LMCACHE_MP)
    new = capture(base, fp8, sets={**LMCACHE_DECLARED, "cache.tenancy": {"boundary": "shared", "carried_by": None}})
    both = ["kv-dtype-changed", "tenancy-widened"]
    answer = check(old, new)
    assert (*answer,) == (CLEAR, 20, ["kv-dtype-changed", "requests-changed", "tenancy-widened"])
    assert answer.open == both
    assert answer.predicate["action"]["kind"] == "clear"
    assert answer.predicate["action"]["settings"]

    declared_only = check("--declare", "clear", old, new)
    assert (declared_only.verdict, declared_only.code, declared_only.open) == (CLEAR, 10, ["kv-dtype-changed"])
    drained = check("--declare", "clear", "--strategy", "recreate", old, new)
    assert (drained.verdict, drained.code, drained.open) == (CLEAR, 0, [])


def test_two_steps_that_are_reuse_and_a_way_that_is_not(
    check: Check, capture: Capture, base: Path, billing: Path, other_billing: Path
) -> None:
    """An adapter goes in B, and its name comes back in C with other bytes: A's entries lie under that name."""
    launch = serve("--enable-lora", "--lora-modules", "billing=/adapters/billing")
    a = capture(base, launch, adapters={"billing": billing})
    b = capture(base, serve("--enable-lora"))
    c = capture(base, launch, adapters={"billing": other_billing})
    assert (*check(a, b),) == (REUSE, 0, ["adapter-set-changed"])
    assert (*check(b, c),) == (REUSE, 0, ["adapter-set-changed"])
    answer = check(a, b, c)
    assert (*answer,) == (NEW, 10, ["adapter-replaced", "adapter-set-changed"])
    assert answer.finding("adapter-replaced")["baseline"] == 0
    assert check(b, a, c).verdict == NEW
