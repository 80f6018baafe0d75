"""A real Redis is read through: everything in one database, and what may not be read is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from kvgate.rules.errors import InputError
from kvgate.stores.scanning.inventory import Inventory, take_inventory
from kvgate.stores.scanning.locate import open_store
from tests.cli.conftest import in_process

from .servers import redis_server

PASSWORD = "hunter2-and-more"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def client(server: str) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(server)
    client.flushall()
    yield client
    client.close()


def scan(url: str) -> Inventory:
    return take_inventory(open_store(url))


def test_every_key_of_the_database_is_counted(server: str, client: redis.Redis) -> None:
    assert (scan(server).rows, scan(server).complete) == ([], True)
    client.mset({f"acme/8b@02{rank:02x}02{rank:02x}@0@{n:064x}": bytes(n) for n in range(2500) for rank in range(2)})
    client.mset(
        {f"acme/8b@1@0@{number:x}@bfloat16{part}": b"12" for number in range(5) for part in ("kv_bytes", "metadata")}
    )
    client.set(b"\xff\x00", b"strange")
    found = scan(server)
    rows = {row.connectors: row for row in found.rows}
    assert {name: row.entries for name, row in rows.items()} == {("lmcache-mp",): 5000, ("lmcache",): 10}
    assert rows["lmcache-mp",].bytes == sum(range(2500)) * 2
    assert rows["lmcache-mp",].oldest is None
    assert (found.strangers.entries, found.strange, found.complete) == (1, ["\udcff\x00"], False)
    assert found.notes == ["Redis does not keep when an entry was written."]
    assert scan(server.replace("/0", "/1")).rows == []


def test_what_is_no_value_could_not_be_read(server: str, client: redis.Redis) -> None:
    name = f"acme/8b@01000100@0@{7:064x}@tenant-a"
    client.lpush(name, "1")
    found = scan(server)
    assert (found.rows, found.unread, found.complete) == ([], 1, False)
    ran = in_process("stores", "scan", server)
    assert (ran.code, "tenant-a" in ran.out) == (11, False)
    assert "COULD NOT BE READ" in ran.out
    assert "acme/8b@01000100@0@" in ran.out


def test_nothing_is_written(server: str, client: redis.Redis) -> None:
    client.set("a", "1")
    before = client.info("commandstats")
    scan(server)
    after = client.info("commandstats")
    asked = {name for name in after if after[name]["calls"] != before.get(name, {"calls": 0})["calls"]}
    shaking_hands = {"hello", "client", "select"}
    assert {name.removeprefix("cmdstat_") for name in asked} <= {"scan", "strlen", "dbsize", "info", *shaking_hands}


def test_a_password_is_used_and_never_shown(
    server: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client.set(f"acme/8b@01000100@0@{7:064x}", "1")
    client.config_set("requirepass", PASSWORD)
    try:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
        place = server.removeprefix("redis://")
        for arguments in (
            [f"redis://:{PASSWORD}@{place}"],
            [f"{server}?password={PASSWORD}"],
            [server, "--password-env", "STORE_PASSWORD"],
        ):
            ran = in_process("stores", "scan", *arguments, "-o", "json")
            assert (ran.code, json.loads(ran.out)["location"]) == (0, server), ran.err
            assert PASSWORD not in ran.out + ran.err
        for wrong in (server, f"redis://:{PASSWORD}x@{place}"):
            ran = in_process("stores", "scan", wrong)
            assert (ran.code, ran.out, PASSWORD in ran.err) == (3, "", False)
            assert server in ran.err
    finally:
        client.config_set("requirepass", "")


def test_what_the_server_forbids_is_not_taken_for_nothing(server: str, client: redis.Redis) -> None:
    client.set(f"acme/8b@01000100@0@{7:064x}", "1")
    client.acl_setuser("sizes", enabled=True, nopass=True, keys=["*"], commands=["+scan", "+dbsize", "+info"])
    client.acl_setuser("nothing", enabled=True, nopass=True, keys=["*"], commands=["+info"])
    place = server.removeprefix("redis://")
    found = scan(f"redis://sizes:any@{place}")
    assert (found.rows, found.unread, found.complete) == ([], 1, False)
    with pytest.raises(InputError, match="cannot be read"):
        scan(f"redis://nothing:any@{place}")
