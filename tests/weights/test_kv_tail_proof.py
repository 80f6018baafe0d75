"""The allow-list of ``kv_tail.yaml``, proved: perturb every stored tensor, compare cached state bitwise."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from kvgate.weights import tables
from kvgate.weights.digest import TensorEntry, hash_tensor
from kvgate.weights.tail import kv_selection

from .kv_models import VARIANTS, Saved, cached_state, perturbed, same, save

torch.set_num_threads(1)


def _entries(saved: Saved) -> list[TensorEntry]:
    return [
        hash_tensor(name, "F32", tuple(value.shape), value.contiguous().numpy().tobytes())
        for name, value in saved.tensors.items()
    ]


def unsafe(saved: Saved, names: Iterable[str]) -> list[str]:
    """Return the tensors among ``names`` whose value reaches cached state, or reaches nothing at all.

    A perturbation that changes no logits either proves nothing: the loader may have dropped the tensor.
    """
    state, logits = cached_state(saved, saved.tensors)
    found = []
    for name in names:
        moved, output = cached_state(saved, perturbed(saved.tensors, name))
        if not same(state, moved) or torch.equal(logits, output):
            found.append(name)
    return found


@pytest.mark.parametrize(
    ("model_type", "variant"), [(name, number) for name in VARIANTS for number in range(len(VARIANTS[name]))]
)
def test_allow_list_is_what_cached_state_ignores(model_type: str, variant: int, tmp_path: Path) -> None:
    saved = save(model_type, variant, tmp_path)
    selection = kv_selection(_entries(saved), saved.published)
    assert selection.rule == f"1/{model_type}"
    assert unsafe(saved, sorted(selection.harmless)) == []
    # and nothing more could be listed, except what another version of the library caches after (kv_b_proj)
    state, _ = cached_state(saved, saved.tensors)
    counting = sorted(saved.tensors.keys() - selection.harmless)
    inert = [name for name in counting if same(state, cached_state(saved, perturbed(saved.tensors, name))[0])]
    towers = ("vision_tower.", "multi_modal_projector.")  # text alone is run here; images go through them
    assert all(name.endswith("kv_b_proj.weight") or name.startswith(towers) for name in inert), inert


@pytest.mark.parametrize("model_type", VARIANTS)
def test_no_entry_is_dead(model_type: str, tmp_path: Path) -> None:
    family = tables.kv_tail().families[model_type]
    root = tables.kv_tail().roots[family.root]
    matched = set()
    for variant in range(len(VARIANTS[model_type])):
        saved = save(model_type, variant, tmp_path)
        for name in kv_selection(_entries(saved), saved.published).harmless:
            suffix = re.sub(rf"^{re.escape(root.layers)}\.1\.", "", name)
            matched.add(re.sub(r"experts\.[0-9]+\.", "experts.*.", suffix))
    assert matched == {*family.tail, *root.final, root.head}


def test_every_listed_type_is_proved() -> None:
    assert VARIANTS.keys() == tables.kv_tail().families.keys()


@pytest.mark.parametrize("grafted", ["self_attn.k_proj.weight", "self_attn.v_proj.weight", "input_layernorm.weight"])
def test_proof_catches_a_wrong_entry(grafted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tables.kv_tail()
    family = table.families["qwen3"]
    wrong = family.model_copy(update={"tail": (*family.tail, grafted)})
    mutant = table.model_copy(update={"families": {**table.families, "qwen3": wrong}})
    monkeypatch.setattr("kvgate.weights.tail.kv_tail", lambda: mutant)
    saved = save("qwen3", 0, tmp_path)
    harmless = kv_selection(_entries(saved), saved.published).harmless
    assert unsafe(saved, sorted(harmless)) == [f"model.layers.1.{grafted}"]


def test_proof_catches_a_tensor_the_loader_drops(tmp_path: Path) -> None:
    saved = save("llama", 0, tmp_path)
    saved.tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(4, 4)
    assert unsafe(saved, ["model.layers.7.mlp.up_proj.weight"]) == ["model.layers.7.mlp.up_proj.weight"]


def test_kv_b_proj_is_never_listed() -> None:
    families = tables.kv_tail().families.values()
    assert not [name for family in families for name in family.tail if "kv_b" in name]
