"""Whether pools that were given other locations file apart: only where the names say so, whoever reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.rules.places import may_be_one_folder, named_apart
from kvgate.rules.waivers import Waiver

from .clean import digest
from .deciding import decided

PREFIXED = frozenset({"", "file", "fs", "s3", "gs", "redis", "rediss"})

ONE_STORE = [
    ("redis://h:6379/0/a", "redis://h:6379/0/b"),
    ("redis://h/1/a", "redis://h/2/a"),
    ("redis://h/a", "redis://h/b"),
    ("redis://h/²", "redis://h/³"),
    (f"redis://h/{'1' * 5000}", f"redis://h/{'2' * 5000}"),
    ("redis://h/00", "redis://h/0"),
    ("redis://h//0", "redis://h/0"),
    ("redis://h", "redis://h/0/"),
    ("redis://h/1/../0", "redis://h/0"),
    ("redis://h/0?x=1", "redis://h/0?x=2"),
    ("redis://h/0#a", "redis://h/0"),
    ("redis://h.", "rediss://H:06379/0"),
    ("redis://user@h", "redis://other@h"),
    ("redis://h/1", "valkey://h"),
    ("redis://cache", "redis://cache.prod.svc"),
    ("redis://cache", "redis://10.0.0.1"),
    ("redis://cache", "redis://localhost"),
    ("redis://127.0.0.1", "redis://localhost"),
    ("redis://[::1]", "redis://127.0.0.2"),
    ("redis://[fd00:0::1]", "redis://[fd00::1]"),
    ("redis://[::ffff:10.0.0.1]", "redis://10.0.0.1"),
    ("redis-sentinel://h1,h2", "redis-sentinel://h2,h1"),
    ("redis-sentinel://h1", "redis-sentinel://h2"),
    ("redis://h1;redis://h2", "redis://h1;redis://h3"),
    ("lm://h:65432/a", "lm://h:65432/b"),
    ("lm://h", "lm://h:65432"),
    ("h:50051", "mooncakestore://h:50051"),
    ("https://h/a", "https://h/b"),
    ("https://bucket.s3.example", "s3://bucket"),
    ("s3://bucket", "gs://BUCKET/"),
    ("s3://bucket/a", "s3://bucket/a/b"),
    ("s3://bucket.s3.amazonaws.com", "s3://bucket"),
    ("/a,/b", "/a,/c"),
    ("/a:/b", "/a:/c"),
    ("/a,redis://h1", "/a,redis://h2"),
    ("[/a + /b]", "[/c + /a]"),
    ("[/a + /b]", "[/a +/c]"),
    ("file://a/kv", "file://b/kv"),
    ("/kv/a/../b", "/kv/b"),
    ("/kv//a/.", "/kv/a"),
    ("~/kv", "/srv/kv"),
    ("$KV", "/kv"),
    ("kv", "/srv/kv"),
    ("kv/a", "./kv/a"),
    ("volume:kv", "volume:kv/a"),
    ("volume:kv", "/kv"),  # where it is mounted
    ("volume:kv/a", "file:///srv/b"),
    ("unix:///r.sock", "unix:///r.sock?db=1"),
    ("unix:///r.sock", "unix:////r.sock"),
    ("unix:///r.sock", "redis://h"),
]
APART = [
    ("redis://h1:6379/0", "redis://h2:6379/0"),
    ("redis://h/0", "redis://h/1"),
    ("redis://h", "rediss://h/1"),
    ("redis://h:6379", "redis://h:6380"),
    ("redis://10.0.0.1", "redis://10.0.0.11"),
    ("redis://[fd00::1]:6379", "redis://[fd00::2]:6379"),
    ("redis://cache-0.cache.prod.svc", "redis://cache-1.cache.prod.svc"),
    ("lm://h1:65432", "lm://h2:65432"),
    ("h:50051", "h:50052"),
    ("s3://a/x", "s3://b/x"),
    ("s3://bucket/a", "s3://bucket/b"),
    ("s3://bucket/a", "redis://h"),
    ("/kv/a", "/kv/b"),
    ("/kv/a", "/kv/ab"),
    ("/kv", "redis://h"),
    ("file:///kv/a", "/kv/b"),
    ("[/a + redis://h/0]", "[/b + redis://h/1]"),
    ("kv/a", "kv/b"),
    ("volume:a/kv", "volume:b/kv"),
    ("volume:a/x", "volume:a/y"),
    ("unix:///a.sock", "unix:///b.sock"),
]


@pytest.mark.parametrize(("first", "second"), ONE_STORE)
def test_what_may_be_one_store_is_not_known_to_be_apart(first: str, second: str) -> None:
    assert not named_apart(first, second, PREFIXED)
    assert not named_apart(second, first, PREFIXED)


@pytest.mark.parametrize(("first", "second"), APART)
def test_what_somebody_filed_apart_is_apart(first: str, second: str) -> None:
    assert named_apart(first, second, PREFIXED)
    assert named_apart(second, first, PREFIXED)


@given(
    st.text(st.sampled_from(":/.,@[]~$?#+ -013aé²"), max_size=12).flatmap(
        lambda t: st.sampled_from([t, f"redis://{t}"])
    )
)
def test_no_location_is_apart_from_itself_and_none_breaks(location: str) -> None:
    assert not named_apart(location, location, PREFIXED)
    assert named_apart(location, "s3://other", PREFIXED) == named_apart("s3://other", location, PREFIXED)


def _exit_code(connector: str, first: str, second: str) -> int:
    """Pools whose pages have one size, and other numbers in them; the key says nothing of the compute dtype."""
    sets: dict[str, dict[str, Any]] = {
        "a": {"cache.location": first, "precision.compute": "float16"},
        "b": {"cache.location": second},
    }
    roles = [{"name": name, "set": one} for name, one in sets.items()]
    base = {"cache.connector": connector, "precision.kv_cache": "bfloat16", "roles": roles}
    return decided(base, base).exit_code


@pytest.mark.parametrize(
    ("connector", "first", "second", "exit_code"),
    [
        ("lmcache", "redis://h/0/a", "redis://h/0/b", 30),
        ("lmcache", "redis://h/0", "redis://h/1", 0),
        ("lmcache-mp", "redis://h/0", "redis://h/1", 30),  # its server has a host and a port, and no number
        ("lmcache-mp", "redis://h:1", "redis://h:2", 0),
        ("lmcache", "s3://bucket/a", "s3://bucket/b", 30),
        ("lmcache", "s3://a", "s3://b", 0),
        ("lmcache-mp", "s3://bucket/a", "s3://bucket/b", 0),
        ("lmcache-mp", "lm://h:1/a", "lm://h:1/b", 30),
        ("lmcache-mp", "/a,/b", "/a,/c", 30),
        ("lmcache-mp", "/b", "/c", 0),
    ],
)
def test_pools_with_other_kv_need_places_of_their_own(connector: str, first: str, second: str, exit_code: int) -> None:
    """A prefix, or the number of a database, is a place only under a connector that reads one."""
    assert _exit_code(connector, first, second) == exit_code


ONE_FOLDER = [("/kv/a", "/kv/a/"), ("/kv/a", "/kv//a"), ("/kv/a", "file:///kv/a"), ("kv/a", "./kv/a"),
              ("kv/a", "/kv/a"), ("volume:kv/a", "/srv/kv/a"), ("/kv/$A", "/kv/b")]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), ONE_FOLDER)
def test_a_folder_in_two_spellings_is_no_two_namespaces(first: str, second: str) -> None:
    assert may_be_one_folder(first, second)
    assert may_be_one_folder(second, first)


@pytest.mark.parametrize(
    ("first", "second"), [("/kv/a", "/kv/b"), ("/kv/a", "/kv/a/b"), ("prod", "prod-b"), ("a", None)]
)
def test_other_folders_and_other_names_are_namespaces_of_their_own(first: str, second: str | None) -> None:
    assert not may_be_one_folder(first, second)


@pytest.mark.parametrize(("second", "exit_code"), [("/kv/a/", 30), ("/kv/b", 0)])
def test_pools_in_one_folder_share_keys_however_it_is_written(second: str, exit_code: int) -> None:
    sets: dict[str, dict[str, Any]] = {
        "a": {"cache.namespace": "/kv/a", "precision.compute": "float16"},
        "b": {"cache.namespace": second},
    }
    roles = [{"name": name, "set": one} for name, one in sets.items()]
    base = {"cache.connector": "vllm-offload-fs", "cache.version": None, "precision.kv_cache": "bfloat16"}
    assert decided({**base, "roles": roles}, {**base, "roles": roles}).exit_code == exit_code


def test_who_waives_that_a_folder_moved_does_not_rely_on_its_having_moved() -> None:
    base = {"cache.connector": "vllm-offload-fs", "cache.version": None, "precision.kv_cache": "bfloat16"}
    old, new = ({**base, "cache.namespace": f"/kv/a{end}"} for end in ("", "/"))
    new["weights.checkpoint.digest"] = new["weights.checkpoint.kv_digest"] = digest("9")
    moved = Waiver(
        rule="key-space-moved", dimension="cache.namespace", old="/kv/a", new="/kv/a/", reason="a slash",
        owner="team", expires="2027-01-01",
    )  # fmt: skip
    decision = decided(old, new, waivers=[moved], as_of="2026-11-29")
    assert decision.exit_code == 10
    assert not decision.unused_waivers
