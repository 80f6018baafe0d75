"""What reading a store proves about the deployment that will look there: little, and never more than was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvgate.rules.evidence import Evidence
from kvgate.rules.manifest import Manifest
from kvgate.rules.namespace import derive
from kvgate.stores.scanning.entries import Unread
from kvgate.stores.scanning.evidence import inventory_evidence
from kvgate.stores.scanning.inventory import Inventory, take_inventory
from kvgate.stores.scanning.locate import open_store, same_place
from tests.rules.clean import FORGET, clean

HASH = f"{7:064x}"


def put(folder: Path, salt: str = "", model: str = "acme-SEP-support-8b") -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{model}@0x02000200@0@{HASH}{salt and f'@{salt}'}.data").write_bytes(b"kv")


def deployed(folder: Path, **changes: Any) -> Manifest:
    return clean({"cache.location": str(folder), "roles": None} | {k.replace("__", "."): v for k, v in changes.items()})


def scanned(folder: Path) -> Inventory:
    folder.mkdir(exist_ok=True)
    return take_inventory(open_store(str(folder)))


def test_an_empty_place_is_proved_empty(tmp_path: Path) -> None:
    new = deployed(tmp_path / "kv")
    found = inventory_evidence(scanned(tmp_path / "kv"), new)
    assert (found.state, found.figures["entries"], found.supports(None, new)) == ("proved", 0, True)
    assert not found.supports(None, deployed(tmp_path / "other"))
    old = deployed(tmp_path / "before")
    bound = inventory_evidence(scanned(tmp_path / "kv"), new, old)
    assert bound.supports(old, new)
    assert not bound.supports(deployed(tmp_path / "another"), new)


def test_entries_under_the_derived_id_are_its_own_and_any_other_is_nobodys(tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    new = deployed(kv)
    derived = derive(new).id
    assert derived is not None
    put(kv, derived)
    found = inventory_evidence(scanned(kv), new)
    assert (found.state, found.figures["namespaces"]) == ("proved", [derived])
    put(kv, "tenant-7")
    for one in (inventory_evidence(scanned(kv), new), inventory_evidence(scanned(kv), deployed(kv, roles=FORGET))):
        assert one.state == "inconclusive"
        assert "namespaces" not in one.figures
        assert "tenant-7" not in str(one.as_data())


def test_entries_of_another_model_are_counted_and_out_of_reach(tmp_path: Path) -> None:
    kv = tmp_path / "kv"
    put(kv, model="other-SEP-model")
    found = inventory_evidence(scanned(kv), deployed(kv))
    assert (found.state, found.figures["entries"], found.figures["of other models"]) == ("proved", 0, 1)
    # How this deployment's model is spelled is not known, or another connector's names lie there.
    unknown = deployed(kv, cache__connector="vllm-example", cache__version=None)
    assert inventory_evidence(scanned(kv), unknown).state == "inconclusive"
    put(kv)
    assert inventory_evidence(scanned(kv), deployed(kv)).state == "inconclusive"


def unread(found: Inventory) -> None:
    found.unread, found.first_unread = 1, [Unread("a", "no permission", folder=True)]


def of_others(found: Inventory) -> None:
    found.others.entries = 1


def strange(found: Inventory) -> None:
    found.strangers.entries = 1


def partial(found: Inventory) -> None:
    found.partial = ["It is being written."]


def beyond(found: Inventory) -> None:
    found.beyond.entries = 1


@pytest.mark.parametrize("spoil", [unread, of_others, strange, partial, beyond])
def test_what_was_not_wholly_read_proves_nothing(spoil: Any, tmp_path: Path) -> None:
    found = scanned(tmp_path / "kv")
    spoil(found)
    evidence = inventory_evidence(found, deployed(tmp_path / "kv"))
    assert evidence.state == "inconclusive"
    assert evidence.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"cache.location": "/another/place"},
        {"cache.location": FORGET},
        {"cache.location": None},
        {"cache.connector": FORGET},
        {"cache.connector": "vllm-nixl"},
        {"roles": [{"name": "prefill", "set": {}}, {"name": "decode", "set": {}}]},
        {"roles": FORGET},
    ],
)
def test_where_else_a_deployment_may_look_proves_nothing(changes: dict[str, Any], tmp_path: Path) -> None:
    new = deployed(tmp_path / "kv", **{path.replace(".", "__"): value for path, value in changes.items()})
    evidence = inventory_evidence(scanned(tmp_path / "kv"), new)
    assert (evidence.state, evidence.coverage.missing != {}) == ("inconclusive", True)


def test_a_place_that_is_mounted_elsewhere_is_named_as_the_manifest_does(tmp_path: Path) -> None:
    new = deployed(Path("volume:prod/kv"))

    def state(called: str | None) -> str:
        found: Evidence = inventory_evidence(scanned(tmp_path / "kv"), new, called=called)
        return found.state

    assert [state(one) for one in (None, "volume:prod/other", "volume:prod/kv")] == [
        "inconclusive",
        "inconclusive",
        "proved",
    ]


ONE = {
    "/kv/a": ("/kv//a/", "file:///kv/a", "fs://host/kv/a"),
    "redis://h:6379/0": ("redis://h", "REDIS://H:6379", "rediss://u:p@h:6379/0/"),
}
OTHER = {
    "/kv/a": ("/kv/b", "kv/a", "/kv/a/../b", "redis://h/kv/a", "/kv"),
    "redis://h:6379/0": ("redis://h:6380/0", "redis://h/1", "redis://other/0", "s3://h:6379/0", "unix:///0"),
    "kv": ("kv",),
}


def test_spellings_of_one_place() -> None:
    assert all(same_place(one, other) and same_place(other, one) for one, others in ONE.items() for other in others)
    assert not any(same_place(one, other) for one, others in OTHER.items() for other in others)
