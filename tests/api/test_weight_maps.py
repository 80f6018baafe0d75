"""A tensor map beside a manifest is read whatever it is compared with: a digest that it contradicts is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import kvgate
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import Manifest
from kvgate.weight_maps import tensor_map
from kvgate.weights.digest import hash_tensor
from kvgate.weights.fingerprint import Fingerprint, fingerprint_entries
from kvgate.weights.tensor_map import write_map
from tests.rules.clean import clean
from tests.weights.builders import llama, llama_config

CONFIG = llama_config()


def _print(seed: int = 0) -> Fingerprint:
    tensors = {name: tensor._replace(data=bytes(4 - seed) + bytes([seed]) * seed) for name, tensor in llama().items()}
    return fingerprint_entries([hash_tensor(name, *tensor) for name, tensor in tensors.items()], CONFIG)


def _manifest(folder: Path, found: Fingerprint, changes: Mapping[str, Any] | None = None) -> Manifest:
    """Return a manifest as capture writes it, and what somebody changed in it."""
    folder.mkdir(exist_ok=True)
    sha256 = write_map(found, folder / "weights.jsonl")
    checkpoint = {name: getattr(found, name) for name in ("digest", "kv_digest", "kv_rule")}
    checkpoint["map"] = {"file": "weights.jsonl", "sha256": sha256}
    base = {"model.config": CONFIG, **{f"weights.checkpoint.{name}": value for name, value in checkpoint.items()}}
    return clean({**base, **(changes or {})}, str(folder / "manifest.yaml"))


def test_a_map_is_that_of_its_manifest(tmp_path: Path) -> None:
    found = tensor_map(_manifest(tmp_path, _print()))
    assert found is not None
    assert found.digest == _print().digest


OTHER = {f"weights.checkpoint.{name}": getattr(_print(1), name) for name in ("digest", "kv_digest")}


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("digest", OTHER),
        ("kv_digest", {"weights.checkpoint.kv_digest": OTHER["weights.checkpoint.kv_digest"]}),
        ("kv_digest", {"weights.checkpoint.kv_rule": "1/mistral"}),
        ("kv_digest", {"weights.checkpoint.kv_rule": "1/all-tensors"}),
    ],
)
def test_what_the_old_side_has_cannot_be_claimed(tmp_path: Path, path: str, changes: dict[str, Any]) -> None:
    old = _manifest(tmp_path / "old", _print(1))
    new = _manifest(tmp_path / "new", _print(), changes)
    for sides in (([old], new), ([], new), ([new], old)):
        with pytest.raises(InputError, match=rf"weights\.checkpoint\.{path} is not that of the tensor map"):
            kvgate.check(*sides)


def test_every_tensor_may_count(tmp_path: Path) -> None:
    all_of_them = {"weights.checkpoint.kv_digest": _print().digest, "weights.checkpoint.kv_rule": "1/all-tensors"}
    assert tensor_map(_manifest(tmp_path, _print(), all_of_them)) is not None


@pytest.mark.parametrize("rule", ["0/llama", "2/llama", "x"])
def test_a_list_that_nobody_has_proves_nothing(tmp_path: Path, rule: str) -> None:
    invented = {
        "weights.checkpoint.kv_digest": OTHER["weights.checkpoint.kv_digest"],
        "weights.checkpoint.kv_rule": rule,
    }
    with pytest.raises(InputError, match="is of a list that this kvgate does not have"):
        tensor_map(_manifest(tmp_path, _print(), invented))


def test_the_map_of_a_rank_is_that_of_its_digest(tmp_path: Path) -> None:
    sha256 = write_map(_print(1), tmp_path / "served-0.jsonl")
    rank = {"rank": 0, "digest": _print(1).digest, "map": {"file": "served-0.jsonl", "sha256": sha256}}
    assert tensor_map(_manifest(tmp_path, _print(), {"weights.served": [rank]})) is not None
    rank["digest"] = _print().digest
    with pytest.raises(InputError, match=r"weights\.served\.0\.digest is not that of the tensor map"):
        tensor_map(_manifest(tmp_path, _print(), {"weights.served": [rank]}))


def test_a_map_larger_than_any_is_refused_unread(tmp_path: Path) -> None:
    manifest = _manifest(tmp_path, _print())
    with (tmp_path / "weights.jsonl").open("ab") as file:
        file.truncate(1 << 34)  # sparse: hashing it would take half a minute
    with pytest.raises(InputError, match="more than the 134,217,728 bytes allowed"):
        tensor_map(manifest)
