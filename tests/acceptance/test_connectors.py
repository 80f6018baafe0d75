"""The same change in front of several connectors: what their own keys hold decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Capture, Check
from tests.acceptance.releases import (
    FS,
    LMCACHE,
    LMCACHE_DECLARED,
    LMCACHE_MP,
    TEMPLATE,
    Checkpoints,
    own_store,
    serve,
)

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
STORES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "vllm-offload-fs": (FS, {}),
    "lmcache": (LMCACHE, LMCACHE_DECLARED),
    "lmcache-mp": (LMCACHE_MP, LMCACHE_DECLARED),
}
FP8 = ("--kv-cache-dtype", "fp8_e4m3")
OTHER_TEMPLATE = TEMPLATE.replace("assistant\\n", "assistant:\\n")


@pytest.fixture(scope="session")
def deploy(capture: Capture, base: Path) -> Any:
    """Capture a deployment in front of a connector, its flags as given."""

    def call(connector: str, *flags: str, model: Path = base, **how: Any) -> Path:
        store, declared = STORES[connector]
        return capture(model, serve(*flags, store=store), sets=declared, **how)

    return call


@pytest.mark.parametrize(("connector", "code"), [("vllm-offload-fs", 0), ("lmcache-mp", 10)])
def test_another_kv_dtype(check: Check, deploy: Any, connector: str, code: int) -> None:
    answer = check(deploy(connector), deploy(connector, *FP8))
    assert (*answer,) == (NEW, code, ["kv-dtype-changed"])
    separate = answer.finding("kv-dtype-changed")["answers"]["keysSeparate"]
    assert separate == ("yes" if code == 0 else "no")


@pytest.mark.parametrize("connector", ["vllm-offload-fs", "lmcache-mp"])
def test_another_template_in_front_of_keys_made_of_token_ids(
    check: Check, deploy: Any, checkpoints: Checkpoints, connector: str
) -> None:
    other = checkpoints("template", template=OTHER_TEMPLATE)
    pair = deploy(connector), deploy(connector, model=other)
    answer = check(*pair)
    assert (*answer,) == (NEW, 0, ["template-changed"])
    finding = answer.finding("template-changed")
    assert finding["answers"] == {"kvValid": "yes", "tokensEqual": "no", "keysSeparate": "through token ids"}
    assert answer.predicate["action"]["kind"] == "none"
    (tokens,) = answer.predicate["tokens"]
    assert tokens["divergent"] > 0
    assert "template-changed" in answer.report

    assert (*check("--rules", "token-keyed", *pair),) == (REUSE, 0, ["template-changed"])


@pytest.mark.parametrize(
    ("key_fields", "code"),
    [(["chat_template_version"], 10), (["token_ids", "namespace"], 0), (["chat_template.digest"], 0)],
)
def test_another_template_in_front_of_an_own_store(
    check: Check, capture: Capture, checkpoints: Checkpoints, base: Path, key_fields: list[str], code: int
) -> None:
    """The version of a template that its key holds is a name, and stays; its digest or the token ids do not."""
    other = checkpoints("template", template=OTHER_TEMPLATE)
    old, new = (capture(model, serve(store=None), sets=own_store(*key_fields)) for model in (base, other))
    answer = check(old, new)
    assert answer.verdict == NEW
    assert answer.code == code
    assert "template-changed" in answer.rules
    assert answer.open == ([] if code == 0 else ["template-changed"])


@pytest.mark.parametrize("first", [False, True])
def test_lora_requests_over_a_connector_that_ignores_them(check: Check, deploy: Any, first: bool) -> None:
    new = deploy("lmcache", "--enable-lora")
    answer = check("--first", new) if first else check(deploy("lmcache"), new)
    assert answer.verdict == NEW
    assert answer.code == 30
    assert "fault-unseparated-requests" in answer.rules
    assert answer.finding("fault-unseparated-requests")["selfFault"]
    accepted = ["--accept", "new-namespace", "--declare", "clear"]
    assert check(*accepted, *(["--first"] if first else [deploy("lmcache")]), new).code == 30


@pytest.mark.parametrize(
    ("flags", "rules"),
    [
        (("--data-parallel-size", "4"), ["replicas-changed"]),
        (("--max-num-seqs", "64", "--max-num-batched-tokens", "4096"), []),  # a capture leaves such flags out
        (("--gpu-memory-utilization", "0.8"), []),
    ],
)
def test_what_changes_no_block_is_reuse(check: Check, deploy: Any, flags: tuple[str, ...], rules: list[str]) -> None:
    assert (*check(deploy("lmcache-mp"), deploy("lmcache-mp", *flags)),) == (REUSE, 0, rules)
