"""Reading a folder through: whose entries lie there, and what could not be read is said and never nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvgate.rules.errors import InputError, UsageError
from kvgate.stores.scanning import inventory as module
from kvgate.stores.scanning.entries import Entry, Unread
from kvgate.stores.scanning.inventory import Inventory, take_inventory
from kvgate.stores.scanning.locate import open_store
from kvgate.stores.scanning.redis_store import without_credentials

HASHES = [f"{number:064x}" for number in range(3)]


def put(folder: Path, name: str, size: int = 10, at: int = 1_700_000_000) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (at, at))
    return path


def scan(folder: Path, connector: str | None = None) -> Inventory:
    return take_inventory(open_store(str(folder)), connector)


def test_entries_are_counted_by_whose_they_are(tmp_path: Path) -> None:
    for number, hashed in enumerate(HASHES):
        for rank in ("0x02000200", "0x02010201"):
            put(tmp_path, f"acme-SEP-8b@{rank}@0@{hashed}.data", 100, 1_700_000_000 + number)
    put(tmp_path, f"acme-SEP-8b@0x02000200@0@{HASHES[0]}@tenant.data", 7)
    put(tmp_path, f"acme-SEP-8b@0x01000100@0@{HASHES[0]}.data", 8)
    put(tmp_path, f"other@0x02000200@0@{HASHES[0]}.data", 9)
    found = scan(tmp_path)
    rows = {(row.model, row.namespace, row.layout["world_size"]): row for row in found.rows}
    assert {key: (row.entries, row.bytes) for key, row in rows.items()} == {
        ("acme/8b", None, 2): (6, 600),
        ("acme/8b", "tenant", 2): (1, 7),
        ("acme/8b", None, 1): (1, 8),
        ("other", None, 2): (1, 9),
    }
    most = found.rows[0]
    assert (most.connectors, most.oldest, most.newest) == (("lmcache-mp",), 1_700_000_000, 1_700_000_002)
    assert most.within == {"worker": {0, 1}, "local_worker": {0, 1}}
    assert (found.complete, found.strangers.entries, found.unread) == (True, 0, 0)


def test_a_digest_in_a_store_is_nobodys_entry(tmp_path: Path) -> None:
    """vLLM's block hashes stay in the engine's memory; a folder of blobs has names like them."""
    put(tmp_path, HASHES[0])
    put(tmp_path, HASHES[1][:32])
    found = scan(tmp_path)
    assert (found.rows, found.strangers.entries, found.complete) == ([], 2, False)
    assert {row.connectors for row in scan(tmp_path, "vllm-apc").rows} == {("vllm-apc",)}


def test_an_empty_folder_is_empty(tmp_path: Path) -> None:
    (tmp_path / "also" / "empty").mkdir(parents=True)
    found = scan(tmp_path)
    assert (found.rows, found.complete, found.strangers.entries) == ([], True, 0)


def test_what_is_of_no_known_scheme_is_listed_as_such(tmp_path: Path) -> None:
    put(tmp_path, "README", 5)
    put(tmp_path, f"acme@0x02000200@0@{HASHES[0]}.data.tmp", 6)
    put(tmp_path, f"{HASHES[0][:32]}/model.layers.0.self_attn.attn.safetensors", 7)
    assert [row.connectors for row in scan(tmp_path).rows] == [("vllm-example",)]
    found = scan(tmp_path, "lmcache-mp")
    assert (found.rows, found.complete) == ([], False)
    assert (found.strangers.entries, found.strangers.bytes, len(found.strange)) == (2, 11, 2)
    assert (found.others.entries, found.others.bytes) == (1, 7)


def test_what_is_no_file_is_counted_and_never_followed(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere", f"acme@0x02000200@0@{HASHES[0]}.data")
    store = tmp_path / "store"
    store.mkdir()
    (store / "link").symlink_to(tmp_path / "elsewhere")
    (store / "round").symlink_to(store)
    os.mkfifo(store / "pipe")
    found = scan(store)
    assert (found.rows, found.complete, found.unread) == ([], False, 3)
    assert {one.name: one.folder for one in found.first_unread} == {"link": False, "round": False, "pipe": False}


def test_a_folder_that_cannot_be_read_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, f"open/{HASHES[0][:32]}/layer.safetensors")
    put(tmp_path, f"closed/acme@0x02000200@0@{HASHES[0]}.data")
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = scan(tmp_path)
    assert (found.unread, found.complete) == (1, False)
    assert found.first_unread == [Unread("closed", "Permission denied", folder=True)]


def test_a_folder_deeper_than_the_system_names_is_said_to_be_unread(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(30):  # paths of 30 times 200 characters; the system takes 4096
            os.mkdir("d" * 200, dir_fd=descriptor)
            below = os.open("d" * 200, os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    finally:
        os.close(descriptor)
    found = scan(tmp_path)
    assert (found.unread, found.complete, found.first_unread[0].folder) == (1, False, True)


def test_names_that_are_no_text_are_read_as_they_are(tmp_path: Path) -> None:
    name = b"acme\xff\n@0x02000200@0@" + HASHES[0].encode() + b".data"
    with open(os.path.join(os.fsencode(tmp_path), name), "wb"):  # noqa: PTH118, PTH123
        pass
    (row,) = scan(tmp_path).rows
    assert row.model == "acme\udcff\n"


def test_memory_does_not_grow_with_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    class Many:
        location = "many"

        def entries(self) -> Iterator[Entry]:
            for number in range(5000):
                yield Entry(f"acme@02000200@0@{number:064x}@tenant{number}", 1, None)
                yield Entry(f"acme@{1 + number % 200:02x}{number % 200:02x}0101@0@{number:064x}", 1, None)
                yield Entry(f"stranger {number}", 1, None)

        def notes(self) -> list[str]:
            return []

        def partial(self) -> list[str]:
            return []

    monkeypatch.setattr(module, "MOST_ROWS", 100)
    said: list[int] = []
    found = take_inventory(Many(), progress=lambda _stage, done, _total, _unit: said.append(done))
    assert len(found.rows) == 100
    assert found.beyond.entries + sum(row.entries for row in found.rows) == 10_000
    assert (found.strangers.entries, len(found.strange)) == (5000, 20)
    assert all(len(values) <= 64 for row in found.rows for values in row.within.values())
    assert said == list(range(1000, 15_001, 1000))


@pytest.mark.parametrize("prefix", ["", "file://", "fs://localhost:0"])
def test_a_location_names_a_folder(tmp_path: Path, prefix: str) -> None:
    put(tmp_path, f"{HASHES[0][:32]}/layer.safetensors")
    assert len(take_inventory(open_store(f"{prefix}{tmp_path}")).rows) == 1


def test_what_is_not_there_is_not_empty(tmp_path: Path) -> None:
    put(tmp_path, "file")
    for name in ("missing", "file", "nul\0", "n" * 5000):
        with pytest.raises(InputError, match="cannot be read"):
            open_store(str(tmp_path / name))
    with pytest.raises(UsageError, match="s3://"):
        open_store("s3://bucket/kv")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hunter2@cache-1:6379/3", "redis://cache-1:6379/3"),
        ("redis://:hunter2@cache-1:6379/0?password=hunter2", "redis://cache-1:6379/0"),
        ("redis://:hun@ter2@cache-1:6379", "redis://cache-1:6379"),
        ("redis://[hunter2", "redis://..."),
        ("unix:///run/redis.sock?password=hunter2", "unix:///run/redis.sock"),
        ("redis://cache-1/0#hunter2", "redis://cache-1/0"),
        ("redis://user:pa/hunter2@[::1]:1/0", "redis://[::1]:1/0"),
        ("redis://:hun?ter2@cache-1:6379/0", "redis://..."),
        ("redis://:hun#ter2@cache-1:6379/0", "redis://..."),
        ("redis://cache-1?password=hun@ter2", "redis://..."),
        ("redis://user:hunter2", "redis://..."),
        ("redis:// :hunter2", "redis://..."),
    ],
)
def test_a_location_is_shown_without_credentials(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


@pytest.mark.parametrize("location", ["redis:/:hunter2@h:1", "redis:hunter2@h:1", "x:hunter2@://h", "a b :hunter2@h"])
def test_a_mistyped_url_is_refused_without_showing_it(location: str) -> None:
    with pytest.raises((UsageError, InputError)) as raised:
        open_store(location)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@127.0.0.1:1/0",
        "redis://:hunter2@127.0.0.1:99999/0",
        "redis://:hunter2@127.0.0.1:x/0",
        "redis://[hunter2",
        "redis://127.0.0.1:1/0?db=hunter2",
        "redis://:hunter2\n@127.0.0.1:1/0",
    ],
)
def test_a_server_that_cannot_be_asked_is_one_clear_error(url: str) -> None:
    with pytest.raises(InputError) as raised:
        take_inventory(open_store(url))
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
