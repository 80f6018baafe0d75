"""Where a prompt lies: stretch by stretch under the connector's own names."""

from __future__ import annotations

from kvgate.probes.rehearsal.backend import Prompt
from kvgate.probes.rehearsal.filing import file_prompt, salt_of
from kvgate.stores.keys.schemes import SCHEMES
from kvgate.stores.keys.stored import Request
from tests.probes.rehearsal.pairs import OFFLOAD, TENANTS, adapter, deployment, own_key

_IDS = tuple(range(1000, 1200))
_PROMPT = Prompt("a", _IDS)


def test_stretches_are_the_connectors_own_names() -> None:
    one = deployment()
    filed = file_prompt(one, Prompt("a", _IDS))
    names = SCHEMES["lmcache-mp"].predict(one, Request(_IDS)).names
    assert filed.stretches is not None
    assert [stretch.end for stretch in filed.stretches] == [64, 128, 192]
    assert tuple(name for stretch in filed.stretches for name in stretch.names) == names


def test_names_of_the_whole_prompt_are_one_stretch() -> None:
    filed = file_prompt(deployment({"cache.connector": "vllm-example"}), Prompt("a", _IDS))
    assert filed.stretches is not None
    assert [stretch.end for stretch in filed.stretches] == [192]
    assert len(filed.stretches[0].names) == 32


def test_an_own_key_holds_what_its_fields_list_and_nothing_else() -> None:
    def names(*changes: dict[str, object], prompt: Prompt = _PROMPT) -> object:
        return file_prompt(deployment(*changes), prompt).stretches

    by_name = own_key("model.id")
    assert names(by_name) == names(by_name, {"model.revision": "1" * 40}, prompt=Prompt("a", (5, *_IDS[1:])))
    assert names(by_name) != names(by_name, prompt=Prompt("b", _IDS))
    by_tokens = own_key("model.id", "model.revision", "token_ids")
    assert names(by_tokens) == names(by_tokens, prompt=Prompt("b", _IDS))
    assert names(by_tokens) != names(by_tokens, prompt=Prompt("a", (5, *_IDS[1:])))
    assert names(by_tokens) != names(by_tokens, {"model.revision": "1" * 40})
    by_adapter = own_key("model.id", "lora")
    assert names(by_adapter) != names(by_adapter, prompt=Prompt("a", _IDS, adapter="billing"))


def test_an_adapter_is_in_the_names_where_the_connector_puts_it() -> None:
    for change, held in ((OFFLOAD, True), ({}, False)):
        one = deployment(change, adapter("a"))
        filed = [file_prompt(one, Prompt("a", _IDS, adapter=name)).stretches for name in (None, "billing")]
        assert (filed[0] != filed[1]) is held


def test_salts_are_what_requests_really_carry() -> None:
    assert salt_of(deployment(), "tenant") is None
    assert salt_of(deployment(TENANTS, {"cache.namespace": None}), "tenant") == "tenant"
    assert salt_of(deployment(TENANTS), "tenant") == "prod-a-tenant"
    assert salt_of(deployment(TENANTS, {"request_features": []}), "tenant") == "prod-a"


def test_unknown_parts_of_a_key_are_named() -> None:
    filed = file_prompt(deployment({"cache.connector": "no-such-store"}), Prompt("a", _IDS))
    assert filed.stretches is None
    assert "no-such-store" in filed.unknown[0]
