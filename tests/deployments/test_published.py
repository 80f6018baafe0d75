"""What the hub says of weights that nobody fetched, through its own client against a local server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from kvgate.deployments.published import Published, PublishedDifference, compare_published, published
from kvgate.rules.errors import InputError
from kvgate.weights import gguf as gguf_files

from .hub_server import Hub, Repository, serving

COMMITS = {letter: letter * 40 for letter in "0123456abcdef"}
BIG = 60_000
Tensors = dict[str, tuple[str, list[int], bytes]]
TENSORS: Tensors = {f"t{number}": ("U8", [BIG], bytes([number]) * BIG) for number in range(4)}


def _file(tensors: Tensors) -> bytes:
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _part(*names: str, **changed: tuple[str, list[int], bytes]) -> bytes:
    return _file({name: {**TENSORS, **changed}[name] for name in names})


WHOLE = {"model-1.safetensors": _part("t0", "t1"), "model-2.safetensors": _part("t2", "t3"), "config.json": b"{}"}
REVISIONS: dict[str, dict[str, bytes]] = {
    "a": WHOLE,
    "b": {**WHOLE, "config.json": b"{ }", "README.md": b"words"},
    "c": {"model.safetensors": _part("t0", "t1", "t2", "t3")},
    "d": {**WHOLE, "model-2.safetensors": _part("t2", "t3", t3=("U8", [BIG], bytes(BIG)))},
    "e": {
        **WHOLE,
        "model-2.safetensors": _part("t2", "t3", "t9", t3=("I8", [BIG], bytes(BIG)), t9=("U8", [BIG], b"9" * BIG)),
    },
    "f": {"pytorch_model.bin": b"x" * BIG, "config.json": b"{}"},
    "0": {**WHOLE, "pytorch_model.bin": b"x" * BIG, "optimizer.bin": b"y" * BIG},
    "1": {**WHOLE, "onnx/model.safetensors": _file({"t0": ("U8", [9], bytes(9))})},
    "2": {**WHOLE, "adapter_model.safetensors": _file({"base_model.t0": ("U8", [9], bytes(9))})},
    "3": {**WHOLE, "adapter_patch.safetensors": _file({"t8": ("U8", [9], bytes(9))})},
    "4": {f"shards/{name}": data for name, data in WHOLE.items()} | {"model.safetensors.index.json": b"{}"},
    "5": {**WHOLE, "whisper/model.safetensors": _file({"t8": ("U8", [9], bytes(9))})},
    "6": {**WHOLE, "whisper/model.safetensors": _file({"t8": ("U8", [9], b"123456789")})},
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    revisions = {COMMITS[letter]: files for letter, files in REVISIONS.items()}
    with serving(Hub({"org/m": Repository(revisions, {"main": COMMITS["a"], "v2": COMMITS["b"]})})) as running:
        yield running


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


Compare = Callable[[str, str], PublishedDifference]


@pytest.fixture
def compare(hub: Hub) -> Compare:
    def call(old: str, new: str) -> PublishedDifference:
        before, after = (published("org/m", COMMITS[letter], endpoint=hub.url) for letter in (old, new))
        return compare_published(before, after, endpoint=hub.url)

    return call


def test_a_revision_becomes_a_commit_with_the_digests_of_its_files(hub: Hub) -> None:
    found = published("org/m", "v2", endpoint=hub.url)
    assert (found.repo, found.commit) == ("org/m", COMMITS["b"])
    data = WHOLE["model-1.safetensors"]
    assert found.files["model-1.safetensors"].digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert found.files["model-1.safetensors"].bytes == len(data)
    blob = hashlib.sha1(b"blob 3\0{ }").hexdigest()
    assert found.files["config.json"].digest == f"git-blob:{blob}"
    assert hub.sent == 0, "no file was fetched"


def test_equal_files_are_proved_and_nothing_is_fetched(compare: Compare, hub: Hub) -> None:
    assert compare("a", "b") == PublishedDifference("equal")
    assert hub.sent == 0


def test_headers_that_differ_prove_a_difference(compare: Compare, hub: Hub) -> None:
    found = compare("a", "e")
    assert (found.state, found.added, found.removed, found.changed) == ("different", ("t9",), (), ("t3",))
    assert found.files == ("model-2.safetensors",)
    assert hub.sent <= 2 * 100_001, "the client asks for the first 100,001 bytes of a file"


@pytest.mark.parametrize(("new", "files"), [("c", 3), ("d", 1)])
def test_headers_that_are_equal_prove_nothing(new: str, files: int, compare: Compare) -> None:
    """Re-sharded: the same tensors. Changed bytes: not. Their headers are alike, so neither is said."""
    found = compare("a", new)
    assert (found.state, len(found.files), found.added, found.removed, found.changed) == (
        "undecided",
        files,
        (),
        (),
        (),
    )
    alone = {name: data for name, data in WHOLE.items() if name in found.files}
    theirs = {name: data for name, data in REVISIONS[new].items() if name in found.files}
    assert found.fetch == sum(map(len, [*alone.values(), *theirs.values()]))


def test_pickle_compares_by_its_files_alone(compare: Compare, hub: Hub) -> None:
    assert compare("f", "f").state == "equal"
    assert compare("a", "f").state == "undecided"
    assert hub.sent == 0


def test_pickle_beside_safetensors_is_no_difference(compare: Compare) -> None:
    assert compare("a", "0") == compare("0", "a") == PublishedDifference("equal")


@pytest.mark.parametrize("new", ["1", "2", "5"])
def test_what_no_loader_is_known_to_read_shows_no_difference(new: str, compare: Compare) -> None:
    """Nor does it leave two revisions equal: classes that read a subfolder by themselves are there."""
    found = compare("a", new)
    assert (found.state, found.added, found.removed, found.changed) == ("undecided", (), (), ())
    assert found.fetch > 0
    assert compare("5", "6").state == "undecided"


def test_a_tensor_in_a_file_that_is_called_an_adapter_counts(compare: Compare) -> None:
    found = compare("a", "3")
    assert (found.state, found.added) == ("different", ("t8",))


def test_an_index_may_name_files_in_subfolders(compare: Compare) -> None:
    assert compare("e", "4").state == compare("4", "e").state == "undecided"


def test_sha1_vouches_for_no_tensor(hub: Hub) -> None:
    found = published("org/m", "main", endpoint=hub.url)
    weak = {name: replace(file, digest=f"git-blob:{'1' * 40}") for name, file in found.files.items()}
    small = Published(found.repo, found.commit, weak)
    assert compare_published(small, small, endpoint=hub.url).state == "undecided"


def test_what_the_hub_refuses_is_an_error(hub: Hub) -> None:
    with pytest.raises(InputError, match="no such revision"):
        published("org/m", "v9", endpoint=hub.url)
    with pytest.raises(InputError, match="no such repository"):
        published("org/none", None, endpoint=hub.url)
    empty = Published("org/m", COMMITS["a"], {})
    with pytest.raises(InputError, match="holds no weights"):
        compare_published(empty, empty)


def test_offline_it_is_said_that_only_the_hub_can_tell(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        published("org/m", "main", endpoint=hub.url)
    assert not hub.requests


def test_a_header_that_is_none_is_an_error(hub: Hub) -> None:
    broken = {**WHOLE, "model-2.safetensors": b"\xff" * BIG}
    hub.repositories["org/m"] = Repository({COMMITS["a"]: WHOLE, COMMITS["d"]: broken}, {})
    old, new = (published("org/m", COMMITS[letter], endpoint=hub.url) for letter in "ad")
    with pytest.raises(InputError) as caught:
        compare_published(old, new, endpoint=hub.url)
    assert "model-2.safetensors" in str(caught.value.where)


def test_a_hub_without_digests_is_an_error(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from . import hub_server

    monkeypatch.setattr(hub_server, "_sibling", lambda path, _: {"rfilename": path})
    with pytest.raises(InputError, match="publishes no digests"):
        published("org/m", "main", endpoint=hub.url)


def _gguf(path: Path, base: float = 10000.0, shape: tuple[int, ...] = (5000,), fill: float = 1.0) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_rope_freq_base(base)
    writer.add_token_list([f"token {number}" for number in range(300)])
    writer.add_tensor("w", np.full(shape, fill, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture
def gguf_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(gguf_files, "_FIRST", 1000)  # less than the header, which is read on from there
    revisions = {
        COMMITS["a"]: {"m-Q4.gguf": _gguf(tmp_path / "a")},
        COMMITS["b"]: {"m-Q4.gguf": _gguf(tmp_path / "b", base=500000.0)},
        COMMITS["c"]: {"m-Q4.gguf": _gguf(tmp_path / "c", shape=(2, 2500))},
        COMMITS["d"]: {"m-Q4.gguf": _gguf(tmp_path / "d", fill=2.0)},
        COMMITS["e"]: {"m-Q8.gguf": _gguf(tmp_path / "e", fill=2.0)},
        COMMITS["f"]: {"m-Q4.gguf": b"x" * 20_000},
    }
    with serving(Hub({"org/m": Repository(revisions, {"main": COMMITS["a"]})})) as running:
        yield running


@pytest.mark.parametrize(
    ("new", "state", "changed"),
    [
        ("a", "equal", ()),
        ("b", "different", ("m-Q4.gguf: what it says beside its tensors",)),
        ("c", "different", ("m-Q4.gguf: w",)),
        ("d", "undecided", ()),
        ("e", "undecided", ()),
    ],
)
def test_headers_of_gguf_are_read_and_no_more(new: str, state: str, changed: tuple[str, ...], gguf_hub: Hub) -> None:
    before, after = (published("org/m", COMMITS[letter], endpoint=gguf_hub.url) for letter in ("a", new))
    found = compare_published(before, after, endpoint=gguf_hub.url)
    assert (found.state, found.changed) == (state, changed)
    size = before.weights["m-Q4.gguf"].bytes
    assert found.fetch == (0 if state == "equal" else size + next(iter(after.weights.values())).bytes)
    assert gguf_hub.sent < size, "of two files of this size"


def test_a_gguf_header_that_is_none_is_an_error(gguf_hub: Hub) -> None:
    before, after = (published("org/m", COMMITS[letter], endpoint=gguf_hub.url) for letter in "af")
    with pytest.raises(InputError, match="it does not begin with GGUF"):
        compare_published(before, after, endpoint=gguf_hub.url)


def test_without_the_package_gguf_is_undecided(gguf_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (published("org/m", COMMITS[letter], endpoint=gguf_hub.url) for letter in "ab")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert compare_published(before, after, endpoint=gguf_hub.url).state == "undecided"
    assert gguf_hub.sent == 0


def test_a_hub_that_cannot_be_reached_is_said_to_be_out_of_reach() -> None:
    with pytest.raises(InputError) as caught:
        published("org/m", None, endpoint="http://127.0.0.1:1")
    assert (caught.value.message, caught.value.where) == ("the hub cannot be reached", "org/m")
    assert "HF_ENDPOINT" in str(caught.value.hint)
