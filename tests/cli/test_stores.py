"""``kvgate stores scan``: what lies in a folder, in words and as data. A Redis is read in ``tests/engines``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .conftest import MakeManifest, Run

HASHES = [f"{number:064x}" for number in range(3)]


def put(name: str, size: int = 2048) -> None:
    path = Path("kv") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (1_700_000_000, 1_700_000_000))


def test_what_stores_nothing_is_not_looked_for(run: Run) -> None:
    Path("kv").mkdir()
    ran = run("stores", "scan", "kv", "--connector", "vllm-apc")
    assert (ran.code, "vllm-apc stores nothing" in ran.err) == (2, True)


def test_a_store_is_counted_by_whose_entries_lie_there(run: Run) -> None:
    for hashed in HASHES:
        put(f"acme-SEP-8b@0x02000200@0@{hashed}.data")
        put(f"acme-SEP-8b@0x02010201@0@{hashed}@tenant-7.data")
    ran = run("stores", "scan", "kv")
    assert ran.code == 0
    assert ran.out == (
        "kv\n"
        "\n"
        "  acme/8b  lmcache-mp\n"
        "    namespace: none\n"
        "    world_size 2, local_world_size 2, group 0, worker 0, local_worker 0\n"
        "    3 entries, 6.0 KiB, written 2023-11-14T22:13:20Z\n"
        "\n"
        "  acme/8b  lmcache-mp\n"
        "    namespace: (redacted 1)\n"
        "    world_size 2, local_world_size 2, group 0, worker 1, local_worker 1\n"
        "    3 entries, 6.0 KiB, written 2023-11-14T22:13:20Z\n"
    )
    data = json.loads(run("stores", "scan", "kv", "-o", "json").out)
    assert [row["namespace"] for row in data["rows"]] == [None, "(redacted 1)"]
    assert [
        row["namespace"] for row in json.loads(run("stores", "scan", "kv", "-o", "json", "--show-keys").out)["rows"]
    ] == [
        None,
        "tenant-7",
    ]
    assert data["rows"][0] == {
        "connectors": ["lmcache-mp"],
        "namespace": None,
        "model": "acme/8b",
        "layout": {"world_size": 2, "local_world_size": 2, "group": 0},
        "within": {"worker": [0], "local_worker": [0]},
        "entries": 3,
        "bytes": 6144,
        "oldest": "2023-11-14T22:13:20Z",
        "newest": "2023-11-14T22:13:20Z",
    }
    assert (data["complete"], data["location"]) == (True, "kv")


def test_nothing_is_said_to_lie_there_only_where_that_is_known(run: Run) -> None:
    Path("kv").mkdir()
    ran = run("stores", "scan", "kv")
    assert (ran.code, "nothing lies there" in ran.out) == (0, True)
    (Path("kv") / "link").symlink_to("elsewhere")
    ran = run("stores", "scan", "kv")
    assert (ran.code, "nothing lies there" in ran.out, "COULD NOT BE READ" in ran.out) == (11, False, True)


def test_strangers_are_counted_and_named_only_where_asked(run: Run) -> None:
    put("notes\x1b[2J.txt", 5)
    for options, named in (([], False), (["--show-keys"], True)):
        ran = run("stores", "scan", "kv", *options)
        assert (ran.code, "OF NO KNOWN SCHEME" in ran.out, "1 entry, 5 bytes" in ran.out) == (11, True, True)
        assert ("notes\\x1b[2J.txt" in ran.out) == named
        assert "\x1b" not in ran.out


def test_names_that_cannot_be_read_hold_no_tenant(run: Run) -> None:
    Path("kv").mkdir()
    (Path("kv") / f"acme@0x02000200@0@{HASHES[0]}@tenant-7.data").symlink_to("elsewhere")
    (Path("kv") / "tenant-8").symlink_to("elsewhere")
    for output in ("text", "json"):
        ran = run("stores", "scan", "kv", "-o", output)
        assert (ran.code, "tenant" in ran.out, "acme@0x02000200" in ran.out) == (11, False, True)


def test_one_connectors_names_alone(run: Run) -> None:
    put(f"acme@0x02000200@0@{HASHES[0]}.data")
    assert run("stores", "scan", "kv", "--connector", "lmcache-mp").code == 0
    ran = run("stores", "scan", "kv", "--connector", "vllm-example", "-o", "json")
    data = json.loads(ran.out)
    assert (ran.code, data["others"]["entries"], data["strangers"]["entries"]) == (11, 1, 0)
    put("notes.txt")
    out = run("stores", "scan", "kv", "--connector", "vllm-example").out
    assert "OF ANOTHER CONNECTOR THAN THE ONE ASKED FOR\n  1 entry" in out
    assert "OF NO KNOWN SCHEME\n  1 entry" in out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["missing"], 3),
        (["s3://bucket/kv"], 2),
        (["redis://:hunter2@127.0.0.1:1/0"], 3),
        (["kv", "--connector", "none"], 2),
        (["kv", "--password-env", "NOT_SET_ANYWHERE"], 2),
        (["kv", "-o", "yaml"], 2),
    ],
)
def test_one_clear_line_of_what_is_wrong(run: Run, arguments: list[str], code: int) -> None:
    Path("kv").mkdir()
    ran = run("stores", "scan", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("error: ")
    assert "hunter2" not in ran.err


def test_entries_of_a_deployments_model_are_told_from_others(run: Run, manifest: MakeManifest) -> None:
    put(f"acme-SEP-support-8b@0x02000200@0@{HASHES[0]}.data")
    put(f"support-8b@0x02000200@0@{HASHES[0]}.data")
    put(f"{HASHES[0][:32]}/layer.safetensors")
    put(f"{HASHES[0]}_acme-support-8b_0_2.bin")
    given = ["stores", "scan", "kv", "--manifest", manifest("new.yaml", {"model.served_name": "acme/support-8b"})]
    rows = {
        (row["connectors"][0], row["model"]): row["ofTheModel"]
        for row in json.loads(run(*given, "-o", "json").out)["rows"]
    }
    assert rows == {
        ("lmcache-mp", "acme/support-8b"): True,
        ("lmcache-mp", "support-8b"): False,
        ("vllm-example", None): None,
        ("sglang-hicache-file", "acme-support-8b"): True,
    }
    out = run(*given).out
    assert "acme/support-8b  lmcache-mp  this deployment's model" in out
    assert "support-8b  lmcache-mp  another model" in out


def test_a_place_chosen_by_hand_is_taken_once_it_is_shown_to_hold_nothing(
    run: Run, manifest: MakeManifest, tmp_path: Path
) -> None:
    (tmp_path / "kv").mkdir()
    old = manifest("old.yaml", {"cache.location": "/kv/before", "roles": None})
    new = manifest("new.yaml", {"cache.location": str(tmp_path / "kv"), "roles": None})
    scan = ("stores", "scan", "kv", "--manifest", new, "--old", old, "-o", "shown.json", "-o", "json")
    check = ("check", old, new, "--quiet")
    assert run(*check).code == 10
    ran = run(*scan)
    assert (ran.code, json.loads(ran.out)["rows"]) == (0, [])
    assert ran.err == "shown.json: proved: nothing lies there, as seen from where it was read\n"
    evidence = json.loads(Path("shown.json").read_text())
    assert evidence["command"] == f"kvgate stores scan {tmp_path}/kv --manifest new.yaml"
    assert run(*check, "--evidence", "shown.json").code == 0

    put(f"acme-SEP-support-8b@0x02000200@0@{HASHES[0]}.data")
    ran = run(*scan)
    assert (ran.code, "inconclusive: 1 entry lies there" in ran.err) == (11, True)
    assert run(*check, "--evidence", "shown.json").code == 10


def test_evidence_of_a_store_is_about_a_deployment_and_spares_its_manifest(run: Run, manifest: MakeManifest) -> None:
    Path("kv").mkdir()
    name = manifest("new.json")
    assert "--manifest MANIFEST" in run("stores", "scan", "kv", "-o", "shown.json").err
    assert "would overwrite" in run("stores", "scan", "kv", "--manifest", name, "-o", name).err
    for option, value in (("--as", "volume:kv"), ("--old", name)):
        ran = run("stores", "scan", "kv", "--manifest", name, option, value)
        assert (ran.code, "none is written" in ran.err) == (2, True)


def test_no_password_is_shown_however_it_is_mistyped(run: Run, manifest: MakeManifest) -> None:
    Path("kv").mkdir()
    new = str(manifest("new"))
    for arguments in (
        ["redis://user:pa/hunter2@127.0.0.1:1/0"],
        ["redis:/:hunter2@h:1", "--manifest", new, "-o", "e.json"],
        ["kv", "--as", "redis://:hunter2@h:1/0", "--manifest", new, "-o", "e.json"],
    ):
        ran = run("stores", "scan", *arguments)
        assert ran.code in (2, 3)
        assert "hunter2" not in ran.out + ran.err
    assert not Path("e.json").exists()
