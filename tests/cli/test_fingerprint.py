"""``kvgate fingerprint``: two sides, tensor maps, kept hashes, pickle as it is, and the hub."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvgate.deployments import config
from kvgate.deployments import published as publications
from kvgate.rules.errors import InputError
from kvgate.weights import hashing, kept_hashes
from kvgate.weights.fingerprint import Fingerprint, fingerprint_checkpoint
from kvgate.weights.tensor_map import write_map
from tests.acceptance.releases import write_adapter
from tests.cli.conftest import Run
from tests.deployments.hub_server import Hub, Repository, serving
from tests.weights.builders import Tensor, encode, llama, words, write, write_shards


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write(tmp_path / "old", llama())


def test_the_map_is_written_and_stands_for_the_folder(run: Run, old: Path, tmp_path: Path) -> None:
    ran = run("fingerprint", "old", "-o", "json", "-o", "map=old.jsonl")
    assert ran.code == 0, ran.err
    facts = json.loads(ran.out)
    (tmp_path / "gone").mkdir()
    shutil.move(old, tmp_path / "gone")
    assert run("fingerprint", "old.jsonl", "-q").out == f"{facts['digest']}\n"
    names = list(llama())
    write_shards(tmp_path / "resharded", llama(), [names[::2], names[1::2]])
    ran = run("fingerprint", "old.jsonl", "--compare", "resharded")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "state: equal")


def test_adapters_compare_with_adapters_alone(run: Run, old: Path, tmp_path: Path) -> None:  # noqa: ARG001
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_adapter(tmp_path / name, seed)
    ran = run("fingerprint", "one", "--compare", "same")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "state: equal"), ran.err
    assert run("fingerprint", "one", "--compare", "other").code == 10
    ran = run("fingerprint", "old", "--compare", "one")
    assert (ran.code, "an adapter does not compare with a model" in ran.err) == (3, True)


def test_what_differs_is_named(run: Run, old: Path, tmp_path: Path) -> None:
    tensors = llama()
    tensors["model.norm.weight"] = Tensor("BF16", (2,), words(1000, 1001))
    tensors["added\x1b[31m"] = Tensor("U8", (1,), b"x")
    tensors["head"] = tensors.pop("lm_head.weight")
    del tensors["model.layers.0.input_layernorm.weight"]
    write(tmp_path / "new", tensors)
    ran = run("fingerprint", "old", "--compare", "new", "-o", "json")
    found = json.loads(ran.out)
    assert (ran.code, found["state"], found["same"]) == (10, "different", len(llama()) - 3)
    assert {name: found[name] for name in ("added", "removed", "changed", "renamed")} == {
        "added": ["added\x1b[31m"],
        "removed": ["model.layers.0.input_layernorm.weight"],
        "changed": ["model.norm.weight"],
        "renamed": [{"from": "lm_head.weight", "to": "head"}],
    }
    ran = run("fingerprint", str(old), "--compare", "new")
    assert ran.code == 10
    assert "renamed: 1\n  lm_head.weight -> head\n" in ran.out
    assert "\x1b" not in ran.out
    assert run("fingerprint", "old", "--compare", "new", "-q").out == "different\n"


def test_text_names_some_and_counts_all(run: Run, old: Path, tmp_path: Path) -> None:  # noqa: ARG001
    write(tmp_path / "new", {**llama(), **{f"t{number:02}": Tensor("U8", (0,), b"") for number in range(30)}})
    ran = run("fingerprint", "old", "--compare", "new")
    assert "added: 30\n  t00\n" in ran.out
    assert "  t19\n  and 10 more (-o json names all)\n" in ran.out


def test_kept_hashes_are_used_and_said(run: Run, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_hashes, "_SETTLED_NS", -(10**12))
    assert "files_not_read_again" not in run("fingerprint", "old").out
    assert "files_not_read_again: 0\n" in run("fingerprint", "old", "--hash-cache", "hashes").out
    assert "files_not_read_again: 1\n" in run("fingerprint", "old", "--hash-cache", "hashes").out
    ran = run("fingerprint", "old", "--hash-cache", str(old / "model.safetensors"))
    assert (ran.code, "not a sound kvgate/kept-hashes/v1 file" in ran.err) == (3, True)
    assert (old / "model.safetensors").read_bytes() == encode(llama())
    assert (tmp_path / "hashes").exists()


def test_pickle_is_hashed_as_it_is_where_asked(run: Run, old: Path, tmp_path: Path) -> None:  # noqa: ARG001
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    assert run("fingerprint", "a").code == 3
    facts = json.loads(run("fingerprint", "a", "--opaque-pickle", "-o", "json").out)
    assert facts["kv_rule"] == "opaque"
    assert run("fingerprint", "a", "--compare", "b", "--opaque-pickle", "-q").out == "equal\n"
    (tmp_path / "b" / "pytorch_model.bin").write_bytes(b"saved again")
    ran = run("fingerprint", "a", "--compare", "b", "--opaque-pickle", "-q")
    assert (ran.code, ran.out) == (11, "undecided\n")
    run("fingerprint", "a", "--opaque-pickle", "-o", "map=a.jsonl")
    ran = run("fingerprint", "old", "--compare", "a.jsonl")
    assert (ran.code, "opaque files do not compare with tensors" in ran.err) == (3, True)
    assert not (tmp_path / "owned").exists()


def _gguf(path: Path, base: float) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_rope_freq_base(base)
    writer.add_tensor("w", np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_what_gguf_says_beside_its_tensors_counts(run: Run, tmp_path: Path) -> None:
    _gguf(tmp_path / "a.gguf", 10000.0)
    _gguf(tmp_path / "b.gguf", 500000.0)
    facts = json.loads(run("fingerprint", "a.gguf", "-o", "json", "-o", "map=a.jsonl").out)
    assert facts["metadata"]["llama.rope.freq_base"] == 10000.0
    ran = run("fingerprint", "a.gguf", "--compare", "b.gguf", "-o", "json")
    found = json.loads(ran.out)
    assert (ran.code, found["state"], found["old"] == found["new"]) == (10, "different", True)
    assert "llama.rope.freq_base" in found["metadata"]
    assert run("fingerprint", "a.gguf", "--compare", "a.gguf").code == 0
    assert run("fingerprint", "a.jsonl", "--compare", "b.gguf").code == 11, "a map holds no metadata"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    tensors = {"w": Tensor("U8", (20_000,), b"w" * 20_000)}
    changed = {"w": Tensor("U8", (20_000,), b"v" * 20_000)}
    shaped = {"w": Tensor("U8", (2, 10_000), b"w" * 20_000)}
    revisions = {
        letter * 40: {"model.safetensors": encode(one), "README.md": letter.encode()}
        for letter, one in {"a": tensors, "b": tensors, "c": changed, "d": shaped}.items()
    }
    with serving(Hub({"org/m": Repository(revisions, {letter: letter * 40 for letter in "abcd"})})) as running:
        for name in ("published", "compare_published"):  # the client takes HF_ENDPOINT when it is first imported
            monkeypatch.setattr(publications, name, partial(getattr(publications, name), endpoint=running.url))
        yield running


@pytest.mark.parametrize(("new", "code", "state"), [("b", 0, "equal"), ("c", 11, "undecided"), ("d", 10, "different")])
def test_two_revisions_on_the_hub(new: str, code: int, state: str, run: Run, hub: Hub) -> None:
    ran = run("fingerprint", "org/m@a", "--compare", f"org/m@{new}", "--hub", "-o", "json")
    assert (ran.code, ran.err) == (code, "")
    found = json.loads(ran.out)
    assert (found["state"], found["old"]) == (state, f"org/m@{'a' * 40}")
    size = len(encode({"w": Tensor("U8", (20_000,), b"v" * 20_000)}))
    if state == "undecided":
        assert found["bytes_to_fetch"] == 2 * size
    assert not [path for verb, path in hub.requests if state == "equal" and verb == "GET" and "resolve" in path]


def test_one_revision_on_the_hub(run: Run, hub: Hub) -> None:
    facts = json.loads(run("fingerprint", "org/m@a", "--hub", "-o", "json").out)
    assert (facts["repo"], facts["commit"]) == ("org/m", "a" * 40)
    (file,) = facts["weights"].values()
    assert file["digest"].startswith("sha256:")
    assert hub.sent == 0


def test_a_map_has_a_name_that_it_can_be_read_by(run: Run, old: Path, tmp_path: Path) -> None:  # noqa: ARG001
    ran = run("fingerprint", "old", "-o", "map=old.json")
    assert (ran.code, "old.jsonl" in ran.err) == (2, True)
    assert not (tmp_path / "old.json").exists()


def test_a_map_is_not_written_over_what_it_is_of(run: Run, old: Path) -> None:
    before = (old / "model.safetensors").read_bytes()
    ran = run("fingerprint", "old", "-o", "map=old/model.safetensors")
    assert (ran.code, "would overwrite" in ran.err) == (2, True)
    assert (old / "model.safetensors").read_bytes() == before
    run("fingerprint", "old", "-o", "map=old.jsonl")
    assert run("fingerprint", "old.jsonl", "-o", "map=again.jsonl").code == 2


def test_scales_of_the_kv_cache_are_shown(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "fp8", {**llama(), "model.layers.0.self_attn.k_scale": Tensor("F32", (), bytes(4))})
    assert json.loads(run("fingerprint", "fp8", "-o", "json").out)["kv_scales"].startswith("blake3:")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "yaml"], "there is no format 'yaml'"),
        (["-o", "map"], "'map' is not one of"),
        (["-o", "map="], "'map=' is not one of"),
        (["-o", "json=x"], "'json=x' is not one of"),
        (["-o", "json", "-o", "text"], "'text' is not one of"),
        (["-o", "map=a", "-o", "map=b"], "'map=b' is not one of"),
        (["-o", "map=a", "--compare", "b"], "the map of which side"),
        (["--hub", "--hash-cache", "h"], "reads no file"),
        (["--hub", "-o", "map=x"], "reads no file"),
        (["--hub", "--opaque-pickle"], "reads no file"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(run: Run, arguments: list[str], message: str) -> None:
    ran = run("fingerprint", "org/m", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_configuration_of_an_adapter_that_is_no_file_is_said_to_be_none(run: Run, old: Path) -> None:
    os.mkfifo(old / "adapter_config.json")
    ran = run("fingerprint", "old")
    assert (ran.code, "adapter_config.json: not a regular file" in ran.err) == (3, True), ran.err


def _release(folder: Path, found: Fingerprint, *, mapped: bool = True) -> Path:
    """Write what capture leaves of a release: a manifest and its sidecar."""
    folder.mkdir()
    sha256 = write_map(found, folder / "weights.jsonl") if mapped else None
    named = {"file": "weights.jsonl", "sha256": sha256} if mapped else None
    checkpoint = {"digest": found.digest, "map": named}
    document = {"schema": "kvgate/manifest/v1", "model": {"id": "m"}, "weights": {"checkpoint": checkpoint}}
    (folder / "manifest.yaml").write_text(json.dumps(document))
    return folder


def test_a_captured_release_stands_for_its_weights(run: Run, old: Path, tmp_path: Path) -> None:
    found = fingerprint_checkpoint(old, None)
    _release(tmp_path / "release-7", found)
    for path in ("release-7", "release-7/manifest.yaml"):
        facts = json.loads(run("fingerprint", path, "-o", "json").out)
        assert facts == {"digest": found.digest, "tensors": len(found.entries)}
    assert run("fingerprint", "release-7", "--compare", "old").code == 0
    assert run("fingerprint", "release-7", "-o", "map=x.jsonl").code == 2
    (tmp_path / "release-7" / "weights.jsonl").write_text("")
    ran = run("fingerprint", "release-7")
    assert (ran.code, "has another digest than the manifest says" in ran.err) == (3, True)
    _release(tmp_path / "release-8", found, mapped=False)
    ran = run("fingerprint", "release-8")
    assert (ran.code, "names no tensor map" in ran.err) == (3, True)


def test_a_manifest_beside_the_weights_hides_none(run: Run, old: Path, tmp_path: Path) -> None:
    digest = run("fingerprint", "old", "-q").out
    write(tmp_path / "other", {"a": Tensor("U8", (1,), b"a")})
    release = _release(tmp_path / "release", fingerprint_checkpoint(tmp_path / "other", None))
    for path in release.iterdir():
        shutil.copy(path, old)
    assert run("fingerprint", "old", "-q").out == digest


@pytest.mark.parametrize("option", [["-o", "map=nowhere/m.jsonl"], ["--hash-cache", "nowhere/h"]])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    run: Run, old: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    monkeypatch.setattr(hashing, "_jobs", lambda _: pytest.fail("hashed first"))
    ran = run("fingerprint", str(old), *option)
    assert (ran.code, "cannot be written: No such file or directory" in ran.err) == (3, True), ran.err


def test_a_link_is_followed_once(run: Run, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that is switched meanwhile is not half of each."""
    write(tmp_path / "next", {"a": Tensor("U8", (1,), b"a")})
    (old / "config.json").write_text("{}")
    (tmp_path / "current").symlink_to("old")
    digest = run("fingerprint", "old", "-q").out
    read = config.read_config

    def switched(folder: Path) -> Any:
        found = read(folder)
        (tmp_path / "current").unlink()
        (tmp_path / "current").symlink_to("next")
        return found

    monkeypatch.setattr(config, "read_config", switched)
    assert run("fingerprint", "current", "-q").out == digest


def test_a_digest_is_not_lost_with_the_file_of_hashes(run: Run, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_hashes, "_SETTLED_NS", -(10**12))
    digest = run("fingerprint", str(old), "-q").out

    def full(path: Path, *_: object, **__: object) -> None:
        raise InputError("cannot be written: No space left on device", where=str(path))

    monkeypatch.setattr(kept_hashes, "write_whole", full)
    ran = run("fingerprint", str(old), "-q", "--hash-cache", "hashes")
    assert (ran.code, ran.out) == (0, digest)
    assert ran.err == "the hashes are not kept: hashes: cannot be written: No space left on device\n"


def test_a_head_that_nothing_says_to_be_tied_is_explained(run: Run, tmp_path: Path) -> None:
    tensors = llama()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tied = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True})
    (write(tmp_path / "said", tensors) / "config.json").write_text(tied)
    write(tmp_path / "unsaid", tensors)
    ran = run("fingerprint", "said", "--compare", "unsaid")
    assert ran.code == 10
    assert "note: unsaid has no config.json, so nothing says that lm_head.weight is tied to the embedding\n" in ran.out
    (tmp_path / "unsaid" / "config.json").write_text(tied)
    ran = run("fingerprint", "said", "--compare", "unsaid")
    assert (ran.code, "note:" in ran.out) == (0, False)


def test_whether_kv_depends_on_what_differs_is_said(run: Run, tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}
    changes = {"old": None, "head": "lm_head.weight", "keys": "model.layers.0.self_attn.k_proj.weight"}
    rule = ""
    for name, changed in changes.items():
        tensors = llama()
        if changed is not None:
            one = tensors[changed]
            tensors[changed] = Tensor(one.dtype, one.shape, bytes(len(one.data)))
        found = fingerprint_checkpoint(write(tmp_path / f"{name}-files", tensors), config)
        kv = {"kv_digest": found.kv_digest, "kv_rule": (rule := found.kv_rule)}
        release = _release(tmp_path / name, found) / "manifest.yaml"
        document = json.loads(release.read_text())
        document["weights"]["checkpoint"] |= kv
        document["model"]["config"] = config
        release.write_text(json.dumps(document))

    def told(old: str, new: str) -> tuple[str, str, str]:
        facts = json.loads(run("fingerprint", old, "--compare", new, "-o", "json").out)
        return facts["state"], facts["kv_tensors"], facts["kv_rule"]

    assert told("old", "old") == ("equal", "equal", rule)
    assert told("old", "head") == ("different", "equal", rule)
    assert told("old", "keys") == ("different", "different", rule)
    assert told("old", "head/weights.jsonl") == ("different", "not known", f"{rule} and not known")
    state, tensors_of_kv, rules = told("old", "head-files")  # no config.json: every tensor counts
    assert (state, tensors_of_kv, rule in rules, "all-tensors" in rules) == ("different", "not known", True, True)
    assert told("old-files", "head-files")[:2] == ("different", "different")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.gguf"], "there is no such file or folder"),
        (["config.json"], "is no checkpoint"),
        (["missing.gguf", "--hub"], "is no org/name[@revision]"),
    ],
)
def test_what_is_no_checkpoint_is_said_to_be_none(run: Run, arguments: list[str], words: str) -> None:
    Path("config.json").write_text("{}")
    ran = run("fingerprint", *arguments)
    assert (ran.code in (2, 3), words in ran.err) == (True, True), ran.err
