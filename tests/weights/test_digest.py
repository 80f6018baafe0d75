"""The encoding: fixed vectors, a second implementation from its description, and collisions that must not be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kvgate.weights.digest import TensorEntry, hash_tensor, root_digest

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def _entry(tensor: dict[str, object]) -> TensorEntry:
    data = _bytes(tensor["bytes"])
    return hash_tensor(str(tensor["name"]), str(tensor["dtype"]), tensor["shape"], data)  # type: ignore[arg-type]


def _bytes(spelled: object) -> bytes:
    """Return the bytes of a vector: hex, or a pattern's length (byte ``i`` is ``i % 251``)."""
    return bytes(i % 251 for i in range(spelled)) if isinstance(spelled, int) else bytes.fromhex(str(spelled))


@pytest.mark.parametrize("number", range(len(VECTORS["tensors"])))
def test_tensor_vectors(number: int) -> None:
    vector = VECTORS["tensors"][number]
    entry = _entry(vector)
    assert (entry.content, entry.digest) == (vector["content"], vector["digest"])


@pytest.mark.parametrize("number", range(len(VECTORS["roots"])))
def test_root_vectors(number: int) -> None:
    vector = VECTORS["roots"][number]
    entries = [_entry(VECTORS["tensors"][index]) for index in vector["tensors"]]
    assert root_digest(entries) == vector["root"]
    assert root_digest(reversed(entries)) == vector["root"]


def _described(tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> str:
    """Compute a root straight from the description, sharing no code with the product."""

    def field(data: bytes) -> bytes:
        return len(data).to_bytes(8, "little") + data

    text = field(b"kvgate/weights/v1") + len(tensors).to_bytes(8, "little")
    for name in sorted(tensors, key=lambda name: name.encode()):
        dtype, shape, data = tensors[name]
        sizes = b"".join(size.to_bytes(8, "little") for size in shape)
        parts = (b"kvgate/tensor/v1", name.encode(), dtype.encode(), sizes, blake3(data).digest())
        text += field(name.encode()) + field(blake3(b"".join(map(field, parts))).digest())
    return "blake3:" + blake3(text).hexdigest()


_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_TENSORS = st.dictionaries(
    _NAMES,
    st.tuples(st.sampled_from(["U8", "I8"]), st.lists(st.integers(0, 3), max_size=3).map(tuple), st.binary(max_size=4)),
    max_size=4,
)


@given(_TENSORS)
def test_the_description_is_the_implementation(tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    assert root_digest(hash_tensor(name, *rest) for name, rest in tensors.items()) == _described(tensors)


@given(_TENSORS, _TENSORS)
def test_different_sets_have_different_roots(
    old: dict[str, tuple[str, tuple[int, ...], bytes]], new: dict[str, tuple[str, tuple[int, ...], bytes]]
) -> None:
    roots = [root_digest(hash_tensor(name, *rest) for name, rest in side.items()) for side in (old, new)]
    assert (roots[0] == roots[1]) == (old == new)


def test_boundaries_between_fields_cannot_be_moved() -> None:
    """What a concatenation without lengths would confuse: each row must stand alone."""
    one = (1).to_bytes(8, "little").decode("latin-1")
    rows = [
        ("ab", "U8", (1,), b"c"),
        ("a", "bU8", (1,), b"c"),
        ("abU8", "", (1,), b"c"),
        ("ab", "U8" + one, (), b"c"),
        ("ab", "U8", (), b"c"),
        ("ab", "U8", (1, 1), b"c"),
        ("ab", "U8", (), (1).to_bytes(8, "little") + b"c"),
        ("ab", "U8", (256,), b"c"),
        ("ab\0", "U8", (1,), b"c"),
        ("ab", "U8", (1,), b"c\0"),
        ("ab", "I8", (1,), b"c"),
    ]
    assert len({hash_tensor(*row).digest for row in rows}) == len(rows)


def test_a_tensors_bytes_cannot_play_the_part_of_a_map() -> None:
    """A tensor that holds the encoding of another map, or of another tensor's header, is still only bytes."""
    inner = hash_tensor("w", "U8", (1,), b"x")
    field = len(b"kvgate/weights/v1").to_bytes(8, "little") + b"kvgate/weights/v1" + (1).to_bytes(8, "little")
    encoded = field + (1).to_bytes(8, "little") + b"w" + (32).to_bytes(8, "little") + bytes.fromhex(inner.digest[7:])
    assert hash_tensor("w", "U8", (len(encoded),), encoded).content == root_digest([inner])  # plain BLAKE3, both
    assert root_digest([hash_tensor("w", "U8", (len(encoded),), encoded)]) != root_digest([inner])


def test_a_map_binds_a_name_once() -> None:
    with pytest.raises(ValueError, match="two tensors with one name"):
        root_digest([hash_tensor("w", "U8", (1,), b"x"), hash_tensor("w", "U8", (1,), b"y")])


def test_names_swap_bytes_and_the_root_moves_but_contents_stay() -> None:
    old = [hash_tensor("a", "U8", (1,), b"x"), hash_tensor("b", "U8", (1,), b"y")]
    new = [hash_tensor("a", "U8", (1,), b"y"), hash_tensor("b", "U8", (1,), b"x")]
    assert root_digest(old) != root_digest(new)
    assert {entry.content for entry in old} == {entry.content for entry in new}
