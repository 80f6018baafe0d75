"""Real connectors store what a real vLLM computed: every name is read, exactly the names foretold are there, and the
settings that a check prints keep the entries of other weights out of reach.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvgate.corpora.endpoints.client import Client
from kvgate.corpora.snapshots.snapshot import open_snapshot
from kvgate.probes.engines.program import Program
from kvgate.probes.rehearsal.backend import Generation
from kvgate.stores.scanning.entries import Entry
from kvgate.stores.scanning.locate import open_store
from tests.acceptance.releases import DECLARED, make
from tests.cli.conftest import Ran, in_process

from .models import tiny_llama
from .servers import CHUNK, SECONDS, lmcache_server, redis_server, until

TENANT = "tenant-a"
VOCABULARY = make.VOCABULARY
FIRST, NEXT = ([(step * number + 3) % VOCABULARY for number in range(length)] for step, length in ((7, 100), (11, 129)))
IMAGE = "vllm/vllm-openai:v0.32.0@sha256:" + "5" * 64


@dataclass(frozen=True)
class Stored:
    """What two engines did, the second with other weights under the same name.

    Attributes:
        folder: what LMCache's server keeps in files, by its adapter in Python.
        native: the same, by its adapter in C++.
        redis: the URL of the Redis in which it keeps the same.
        example: the folder of vLLM's example connector.
        manifests: of the first deployment, of the second, and of the second with the printed setting.
        foretold: the names of the second prompt, before anybody had sent it.
        model: what both engines are started with.
        setting: what the check of the two printed, a path and its value.
        checked: the exit codes of the check, and of the check with that setting.
        answers: of the second engine: with the setting, and without.

    """

    folder: Path
    native: Path
    redis: str
    example: Path
    manifests: tuple[Path, Path, Path]
    foretold: list[str]
    model: Path
    setting: dict[str, Any]
    checked: tuple[int, int]
    answers: tuple[Generation, Generation]


def test_what_real_connectors_store_is_named_foretold_and_kept_apart(program: Program, tmp_path: Path) -> None:
    """One test, since what it looks at takes two engines and a server to come about."""
    work = tmp_path / "stores"
    work.mkdir()
    with serving(work, program) as stored:
        every_entry_of_the_server_is_named(stored)
        no_output_names_a_tenant_unless_asked(stored)
        exactly_the_names_foretold_are_there(stored, tmp_path)
        a_conversation_of_the_snapshot_is_foretold_like_any_prompt(stored, tmp_path)
        the_example_connector_writes_the_files_foretold(stored, tmp_path)
        the_printed_setting_keeps_stale_entries_out_of_reach(stored)


@contextmanager
def serving(work: Path, program: Program) -> Iterator[Stored]:
    model, folder, native, example = work / "models" / "live", work / "kv", work / "native", work / "example"
    example.mkdir()
    write_model(model, 0)
    with redis_server(work) as url:
        adapters: list[dict[str, Any]] = [
            {"type": "fs", "base_path": str(folder)},
            {"type": "fs_native", "base_path": str(native)},
            {"type": "resp", "host": "127.0.0.1", "port": int(url.split(":")[2].split("/")[0])},
        ]

        def stored_by(names_: set[str]) -> bool:
            files = {name for name in names_ if name.endswith(".data")}
            return files <= names(str(folder)) & names(str(native)) and names_ - files <= names(url)

        with lmcache_server(work, adapters) as (port, http):
            wait = {"lmcache.mp.mq_timeout": SECONDS}
            server = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port, **wait}
            served = transfer("LMCacheMPConnector", server)
            beside = transfer("ExampleConnector", {"shared_storage_path": str(example)})
            both = transfer("MultiConnector", {"connectors": [served, beside]})
            first = captured(work / "first", model, served, adapters)
            with engine(program, model, both) as ask:
                foretold = predict(first, NEXT, work)
                for ids, salt in ((FIRST, None), (FIRST[:70], TENANT), (NEXT, None)):
                    assert ask(ids, salt).cached == 0
                wanted = {*predict(first, FIRST, work), *predict(first, FIRST[:70], work, TENANT), *foretold}
                until(lambda: stored_by(wanted), work / "lmcache.log")

            write_model(model, 1)
            with Client(http) as client:  # what follows comes from the stores, not from the server's memory
                assert client.post("/cache/clear", {}).ok
            second = captured(work / "second", model, served, adapters)
            checked, setting = check(first, second)
            settled = edited(second, work / "settled", setting)
            again, _ = check(first, settled)
            with engine(program, model, served) as ask:
                answers = ask(FIRST, setting["value"]), ask(FIRST)
                salted = set(predict(settled, FIRST, work))
                until(lambda: stored_by(salted), work / "lmcache.log")
            manifests = (first, second, settled)
            yield Stored(folder, native, url, example, manifests, foretold, model, setting, (checked, again), answers)


@contextmanager
def engine(program: Program, model: Path, store: dict[str, Any]) -> Iterator[Callable[..., Generation]]:
    """Start an engine in front of a store, and yield what answers a prompt of token ids with a salt or none."""
    small = ["--dtype", "bfloat16", "--max-model-len", "256", "--block-size", "32", "--max-num-seqs", "1"]
    flags = ["--model", str(model), *small, "--enforce-eager", "--skip-tokenizer-init"]
    program.start("one", program.folder("one"), flags, {}, store)
    yield lambda ids, salt=None: program.generate("one", ids, 4, salt, skip=False)
    program.end()


def transfer(connector: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": settings}


def write_model(folder: Path, seed: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    tiny_llama(folder, seed, vocabulary=VOCABULARY, positions=256, scale=4)
    make.train().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(make.tokenizer_config()))
    (folder / "chat_template.jinja").write_text(make.TEMPLATE)


def captured(target: Path, model: Path, served: dict[str, Any], adapters: list[dict[str, Any]]) -> Path:
    """Capture a deployment from the lines that start its engine and its store's server."""
    tiers = " ".join(f"--l2-adapter '{json.dumps(adapter)}'" for adapter in adapters)
    line = f"docker run {IMAGE} --model {model} --dtype bfloat16 --max-model-len 256 --block-size 32"
    start = f"{line} --attention-backend CPU_ATTN --kv-transfer-config '{json.dumps(served)}'"
    script = target.with_suffix(".sh")
    script.write_text(f"lmcache server --eviction-policy LRU --chunk-size {CHUNK} {tiers} &\n{start}\n")
    sets = [f"--set={path}={json.dumps(value)}" for path, value in DECLARED.items()]
    told = ["--from", str(script), "--renderer", "here", *sets, "--set=cache.version=0.5.6"]
    ran = in_process("capture", str(model), *told, "-o", str(target), "--no-config")
    assert ran.code == 0, ran.err
    return target


def predict(manifest: Path, ids: list[int], work: Path, salt: str | None = None) -> list[str]:
    (work / "prompt.json").write_text(json.dumps(ids))
    salted = [] if salt is None else ["--salt", salt, "--show-keys"]
    ran = in_process("keys", "predict", str(manifest), "--tokens", str(work / "prompt.json"), *salted)
    assert ran.code == 0, ran.err
    return ran.out.splitlines()


def names(location: str) -> set[str]:
    found = set()
    for one in open_store(location).entries():
        assert isinstance(one, Entry), one
        found.add(one.name)
    return found


def check(old: Path, new: Path) -> tuple[int, dict[str, Any]]:
    ran = in_process("check", str(old), str(new), "-o", "json", "--no-config")
    settings = json.loads(ran.out)["predicate"]["action"]["settings"]
    return ran.code, settings[0] if settings else {}


def edited(captured: Path, target: Path, setting: dict[str, Any]) -> Path:
    shutil.copytree(captured, target)
    data = yaml.safe_load((target / "manifest.yaml").read_text())
    section, name = setting["path"].split(".")
    data[section][name] = setting["value"]
    (target / "manifest.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    return target


def scan(location: str, *options: str) -> dict[str, Any]:
    ran: Ran = in_process("stores", "scan", location, "-o", "json", *options)
    found: dict[str, Any] = json.loads(ran.out)
    assert (ran.code, found["complete"], found["unread"]["count"]) == (0, True, 0)
    return found


def every_entry_of_the_server_is_named(stored: Stored) -> None:
    for location in (str(stored.folder), str(stored.native), stored.redis):
        rows = {row["namespace"]: row for row in scan(location, "--show-keys")["rows"]}
        assert set(rows) == {None, TENANT, stored.setting["value"]}
        for row in rows.values():
            assert row["connectors"] == ["lmcache-mp"]
            assert row["model"] == str(stored.model)
            assert row["layout"] == {"world_size": 1, "local_world_size": 1, "group": 0}
            assert row["within"] == {"worker": [0], "local_worker": [0]}
        assert rows[None]["entries"] == len(FIRST) // CHUNK + len(NEXT) // CHUNK
        assert rows[TENANT]["entries"] == 70 // CHUNK
        # Two layers, keys and values, two heads of 32 numbers of two bytes, for each token.
        assert {row["bytes"] / row["entries"] for row in rows.values()} == {2 * 2 * 2 * 32 * 2 * CHUNK}


def no_output_names_a_tenant_unless_asked(stored: Stored) -> None:
    for location in (str(stored.folder), stored.redis):
        for told in ("text", "json"):
            ran = in_process("stores", "scan", location, "-o", told)
            assert TENANT not in ran.out + ran.err
            assert stored.setting["value"] in ran.out


def exactly_the_names_foretold_are_there(stored: Stored, tmp_path: Path) -> None:
    first, _, settled = stored.manifests
    foretold = [*predict(first, FIRST, tmp_path), *stored.foretold, *predict(first, FIRST[:70], tmp_path, TENANT)]
    foretold += predict(settled, FIRST, tmp_path)
    there = names(str(stored.folder)) | names(stored.redis)
    assert sorted(there) == sorted(foretold)
    assert names(str(stored.native)) == names(str(stored.folder))


def a_conversation_of_the_snapshot_is_foretold_like_any_prompt(stored: Stored, tmp_path: Path) -> None:
    manifest = stored.manifests[0]
    snapshot = open_snapshot(manifest / "tokens.jsonl", None)
    entry = max(snapshot.entries(), key=lambda entry: len(entry.renders[0].ids) if entry.renders[0].ok else 0)
    ran = in_process("keys", "predict", str(manifest), "--snapshot", entry.id)
    assert (ran.code, len(ran.out.splitlines()) > 2) == (0, True)
    assert ran.out.splitlines() == predict(manifest, list(entry.renders[0].ids), tmp_path)
    ran = in_process("keys", "predict", str(manifest), "--snapshot", "no such conversation")
    assert (ran.code, "kvgate corpus show" in ran.err) == (2, True)


def the_example_connector_writes_the_files_foretold(stored: Stored, tmp_path: Path) -> None:
    data = yaml.safe_load((stored.manifests[0] / "manifest.yaml").read_text())
    data["cache"] |= {"connector": "vllm-example", "version": None, "location": str(stored.example)}
    manifest = tmp_path / "example.yaml"
    del data["tokenizer"]["snapshot"], data["weights"]["checkpoint"]["map"]
    manifest.write_text(yaml.safe_dump(data))
    foretold = {name for ids in (FIRST, FIRST[:70], NEXT) for name in predict(manifest, ids, tmp_path)}
    assert names(str(stored.example)) == foretold
    (row,) = scan(str(stored.example))["rows"]
    assert (row["connectors"], row["model"], row["namespace"]) == (["vllm-example"], None, None)
    assert row["entries"] == 6


def the_printed_setting_keeps_stale_entries_out_of_reach(stored: Stored) -> None:
    assert stored.setting["path"] == "cache.namespace"
    assert stored.checked == (10, 0)
    assert in_process("namespace", str(stored.manifests[1]), "-q").out == f"{stored.setting['value']}\n"
    kept_apart, left_out = stored.answers
    assert (kept_apart.cached, left_out.cached) == (0, len(FIRST) // CHUNK * CHUNK)
    assert kept_apart.token_ids != left_out.token_ids  # the hit was wrong
