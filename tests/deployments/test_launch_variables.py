"""Variables of a script: put in where their value is known, and only there."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from kvgate.deployments.launch import LaunchFacts, parse_vllm


def read(text: str) -> LaunchFacts:
    return parse_vllm(text, source="serve.sh")


KNOWN = [
    'MODEL=org/m\nvllm serve "$MODEL"',
    "export MODEL=org/m; vllm serve ${MODEL}",
    "ORG=org NAME=m; MODEL=$ORG/$NAME; vllm serve $MODEL",
    "MODEL=m; vllm serve org/$MODEL",
    "MODEL=x; MODEL=org/m; vllm serve $MODEL",
    'MODEL=org/m; set -e; echo "$MODEL"; exec vllm serve "$MODEL"',
    "export MODEL=org/m; bash -c 'vllm serve $MODEL'",
    'MODEL=org/m; bash -c "vllm serve $MODEL"',
    "docker run -e MODEL=org/m --entrypoint bash vllm/vllm-openai:v0.33.0 -c 'vllm serve $MODEL'",
    "for i in 1 2; do sleep 1; done; MODEL=org/m; vllm serve $MODEL",
]


@pytest.mark.parametrize("text", KNOWN)
def test_a_known_variable_is_its_value(text: str) -> None:
    assert read(text).model == "org/m"


PASSED_ON = """MORE='--kv-transfer-config={"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'"""


@pytest.mark.parametrize("passed", [True, False])
def test_a_connector_in_a_variable_that_nobody_passes_on_is_noted(passed: bool) -> None:
    facts = read(f"export {PASSED_ON}; vllm serve m {'$MORE' if passed else ''}")
    noted = [note for note in facts.notes if note.startswith("MORE holds a connector, ")]
    assert (facts.values.get("cache.connector"), len(noted)) == (("lmcache", 0) if passed else (None, 1))


UNKNOWN = [
    "MODEL='a b'; vllm serve $MODEL",
    "MODEL='org/*'; vllm serve $MODEL",
    "MODEL=; vllm serve $MODEL",
    "MODEL=org/m; vllm serve ${MODEL%/}",
    "MODEL=org/m; vllm serve '$MODEL'\"$MODEL\"",
    "MODEL=org/m; MODEL=$(cat model); vllm serve $MODEL",
    "MODEL=org/m; if [ -f x ]; then MODEL=other/m; fi; vllm serve $MODEL",
    "MODEL=org/m; [ -f x ] && MODEL=other/m; vllm serve $MODEL",
    "MODEL=org/m; unset MODEL; vllm serve $MODEL",
    "MODEL=org/m; read MODEL; vllm serve $MODEL",
    "MODEL=org/m; source env.sh; vllm serve $MODEL",
    "MODEL=org/m; for MODEL in a b; do sleep 1; done; vllm serve $MODEL",
    "for MODEL in a b; do vllm serve $MODEL; done",
    "MODEL=org/m; bash -c 'vllm serve $MODEL'",  # not exported
    "MODEL=org/m vllm serve $MODEL",
    "MODEL='a;b'; bash -c \"vllm serve x$MODEL\"",
    "PWD=org/m; vllm serve $PWD",
    "docker run -e MODEL --entrypoint bash vllm/vllm-openai:v0.33.0 -c 'vllm serve $MODEL'",
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_a_variable_that_may_have_another_value_stays_unknown(text: str) -> None:
    assert read(text).model is None


def test_json_in_a_variable() -> None:
    config = {"kv_connector": "ExampleConnector", "kv_connector_extra_config": {"shared_storage_path": "/kv"}}
    text = f'CONFIG={shlex.quote(json.dumps(config))}\nvllm serve org/m --kv-transfer-config "$CONFIG"'
    assert read(text).values["cache.location"] == "/kv"


def connected(connector: str, extra: dict[str, object], *more: str) -> LaunchFacts:
    """Read a line whose connector's settings stand in double quotes, as where a shell is to fill something in."""
    config = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    quoted = json.dumps(config).replace("\\", "\\\\").replace('"', '\\"')
    return read(" ".join(["vllm serve org/m --kv-transfer-config", f'"{quoted}"', *more]))


def test_a_password_that_is_filled_in_hides_nothing_but_itself() -> None:
    extra = {"lmcache.remote_url": "redis://:${REDIS_PASSWORD}@cache-1:6379/0", "lmcache.chunk_size": 64}
    facts = connected("LMCacheConnectorV1", extra)
    plain = connected("LMCacheConnectorV1", {**extra, "lmcache.remote_url": "redis://cache-1:6379/0"})
    assert facts.values == plain.values
    assert facts.unknown == plain.unknown
    assert facts.values["cache.location"] == "redis://cache-1:6379/0"
    assert "REDIS_PASSWORD" not in repr(facts.values)


@pytest.mark.parametrize(
    ("connector", "extra", "known", "unknown"),
    [
        ("LMCacheConnectorV1", {"lmcache.remote_url": "redis://$HOST_IP:6379/0"}, "lmcache", "cache.location"),
        ("LMCacheConnectorV1", {"lmcache.chunk_size": "${CHUNK}"}, "lmcache", "cache.chunk_size"),
        ("LMCacheMPConnector", {"lmcache.mp.host": "tcp://$HOST_IP"}, "lmcache-mp", "engine.args"),
        ("ExampleConnector", {"shared_storage_path": "/kv/$POD"}, "vllm-example", "cache.location"),
    ],
)
def test_an_address_that_is_filled_in_leaves_the_connector_known(
    connector: str, extra: dict[str, object], known: str, unknown: str
) -> None:
    facts = connected(connector, extra)
    assert facts.values["cache.connector"] == known
    assert "which the shell fills in" in dict(facts.unknown)[unknown] or "is set to $" in dict(facts.unknown)[unknown]
    assert unknown not in facts.values
    assert not [value for value in facts.values.values() if "$" in repr(value)]
    (key, value), *_ = extra.items()
    settled = connected(connector, {key: re.sub(r"\$\{?\w+\}?", "9", str(value))})
    assert settled.values.keys() - facts.values.keys() == {unknown}


@pytest.mark.parametrize(
    ("connector", "extra", "more"),
    [
        ("$CONNECTOR", {"shared_storage_path": "/kv"}, ()),  # the connector itself
        ("LMCacheConnectorV1", {"lmcache.remote_url": "redis://$(ip):6379"}, ()),  # what a command prints
        ("LMCacheConnectorV1", {"lmcache.remote_url": "redis://${HOST%.*}:6379"}, ()),
        ("LMCacheConnectorV1", {"$KEY": "redis://cache-1:6379"}, ()),  # what is set
        ("OffloadingConnector", {"spec_name": "$SPEC", "secondary_tiers": [{"type": "fs", "root_dir": "/kv"}]}, ()),
        ("MooncakeStoreConnector", {"cache_prefix": "a", "more": "$MORE"}, ()),
        ("LMCacheConnectorV1", {"lmcache.remote_url": "redis://$H:1"}, ("--kv-offloading-size", "1")),
        ("LMCacheConnectorV1", {"lmcache.remote_url": "redis://$H:1"}, ("$MORE_FLAGS",)),
    ],
)
def test_what_may_be_more_than_an_address_leaves_the_store_unknown(
    connector: str, extra: dict[str, object], more: tuple[str, ...]
) -> None:
    facts = connected(connector, extra, *more)
    assert not [path for path in facts.values if path.startswith("cache.")]
    assert {"cache.connector", "cache.location", "engine.args"} <= dict(facts.unknown).keys()


def test_no_secret_gets_out_through_a_variable() -> None:
    secret = "k3y9fFh2LmQ8zT5vXw1B"
    assert secret not in repr(read(f'KEY={secret}; HF_TOKEN=$KEY vllm serve org/m --api-key "$KEY"'))


@pytest.mark.parametrize("line", ["A=$A$A", "export A=${A}${A}", "A=$A$A; bash -c 'B=$A'"])
def test_values_that_double_do_not_fill_the_memory(line: str) -> None:
    """60 lines would be 10^19 characters."""
    found = read("A=xxxxxxxxxx\n" + f"{line}\n" * 60 + "vllm serve org/m --foo $A")
    assert "--foo is set to $A" in dict(found.unknown)["engine.args"]


def test_many_variables_of_one_long_value_do_not_fill_the_memory() -> None:
    copies = "".join(f"V{at}=$A\n" for at in range(1_000))
    found = read(f"A={'x' * 50_000}\n{copies}vllm serve org/m --last $V999")
    assert "--last is set to $V999" in dict(found.unknown)["engine.args"]
