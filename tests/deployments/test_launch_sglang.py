"""SGLang command lines, to the facts in them."""

from __future__ import annotations

import json
import shlex
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgate.deployments.capture import capture
from kvgate.deployments.launch import LaunchFacts, LaunchFile, bare_facts, read_launch, resolve
from kvgate.deployments.launch.flags import flag_table
from kvgate.deployments.launch.sglang import _SET_BY_FLAGS
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import schema_leaves
from tests.deployments.unset import UNSET

SERVER = "python3 -m sglang.launch_server --model-path org/m --admin-api-key given"
SGLANG_UNSET: dict[str, Any] = {**UNSET, "engine.name": "sglang"}


def read(text: str, *more: LaunchFile) -> LaunchFacts:
    (facts,) = read_launch([LaunchFile("launch.sh", text.encode()), *more])
    return facts


def changed(flags: str, environment: str = "") -> dict[str, Any]:
    """Return the values that flags change, and ``...`` for those that they leave unknown."""
    values = read(f"{environment} {SERVER} {flags}").values
    paths = {*values, *SGLANG_UNSET}
    return {p: values.get(p, ...) for p in paths if values.get(p, ...) != SGLANG_UNSET.get(p, ...)}


def reason(facts: LaunchFacts, path: str) -> str:
    assert path not in facts.values
    return dict(facts.unknown)[path]


def test_a_line_without_flags_leaves_everything_at_its_default() -> None:
    facts = read(SERVER)
    assert (facts.model, facts.engine, facts.values) == ("org/m", "sglang", SGLANG_UNSET)
    assert facts.pending == ("precision.compute", "precision.kv_cache")
    assert facts.unknown == (("engine.version", "the launch line does not say it"),)
    assert bare_facts("sglang").values == SGLANG_UNSET


FLAGS: dict[str, dict[str, Any]] = {
    "--revision abc --served-model-name s": {"model.revision": "abc", "model.served_name": "s"},
    "--tp 4 --pp-size 2 --dp 8 --ep 4": {
        "parallelism.tensor": 4,
        "parallelism.pipeline": 2,
        "parallelism.data": 8,
        "parallelism.expert": 4,
    },
    "--tensor-parallel-size=4": {"parallelism.tensor": 4},
    "--dtype half": {"precision.compute": "half"},
    "--kv-cache-dtype bf16": {"precision.kv_cache": "bfloat16"},
    "--kv-cache-dtype fp8_e5m2": {"precision.kv_cache": "fp8_e5m2"},
    "--page-size 64 --context-length 32Ki": {"engine.block_size": 64, "engine.max_model_len": 32768},
    "--attention-backend fa3 --quantization fp8": {
        "engine.attention_backend": "fa3",
        "model.quantization": "fp8",
    },
    "--mem-fraction-static 0.8 --host 0.0.0.0 --port 1 --enable-metrics --random-seed 1": {},
    "--enable-hierarchical-cache --hicache-ratio 2 --hicache-mem-layout page_first": {"engine.kv_layout": "page_first"},
    "--enable-torch-compile --new-thing 3": {"engine.args": {"enable-torch-compile": True, "new-thing": "3"}},
    '--lora-paths a=/x \'{"lora_name":"b","lora_path":"/y"}\' /z': {
        "adapters": [{"name": "a", "path": "/x"}, {"name": "b", "path": "/y"}, {"name": "/z", "path": "/z"}],
        "request_features": ["lora"],
    },
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path org/d --speculative-num-steps 3": {
        "engine.speculative": {"method": "EAGLE3", "model": "org/d", "num_steps": 3}
    },
    "--default-chat-template-kwargs '{\"enable_thinking\": false}'": {
        "tokenizer.options": {"template_kwargs": {"enable_thinking": False}}
    },
    "--disaggregation-mode prefill": {"engine.args": {"disaggregation-mode": "prefill"}, "roles": ...},
}


@pytest.mark.parametrize("flags", FLAGS)
def test_what_a_flag_says(flags: str) -> None:
    assert changed(flags) == FLAGS[flags]


EXTRA = json.dumps(
    {"master_server_address": "h:50051", "extra_backend_tag": "ns", "tenant_id": "t", "prefetch_threshold": 1}
)
STORES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a folder": (
        "--hicache-storage-backend file",
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=/kv",
        {"cache.connector": "sglang-hicache-file", "cache.location": "/kv"},
    ),
    "the usual folder": (
        "--hicache-storage-backend=file",
        "",
        {"cache.connector": "sglang-hicache-file", "cache.location": "/tmp/hicache"},
    ),
    "a folder from the extra config": (
        '--hicache-storage-backend file --hicache-storage-backend-extra-config \'{"file_storage_path":"/x"}\'',
        "",
        {"cache.connector": "sglang-hicache-file", "cache.location": "/x"},
    ),
    "a folder of NIXL": (
        "--hicache-storage-backend nixl",
        "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR=/n",
        {"cache.connector": "sglang-hicache-nixl", "cache.location": "/n"},
    ),
    "Mooncake": (
        f"--hicache-storage-backend mooncake --hicache-storage-backend-extra-config {shlex.quote(EXTRA)}",
        "MOONCAKE_MASTER=other:1",
        {
            "cache.connector": "sglang-hicache-mooncake",
            "cache.location": "h:50051",
            "cache.namespace": "ns",
            "engine.args": {"hicache-storage-backend-extra-config": {"tenant_id": "t"}},
        },
    ),
    "Mooncake by its variable": (
        "--hicache-storage-backend mooncake",
        "MOONCAKE_MASTER=h:1",
        {"cache.connector": "sglang-hicache-mooncake", "cache.location": "h:1"},
    ),
    "Mooncake by a file": (
        "--hicache-storage-backend mooncake",
        "MOONCAKE_MASTER=h:1 SGLANG_HICACHE_MOONCAKE_CONFIG_PATH=/c",
        {
            "cache.connector": "sglang-hicache-mooncake",
            "cache.location": ...,
            "engine.args": {"SGLANG_HICACHE_MOONCAKE_CONFIG_PATH": "/c"},
        },
    ),
    "one without a profile": (
        "--hicache-storage-backend simm",
        "",
        {"cache.connector": "sglang-hicache-simm", "cache.location": ..., "cache.namespace": ...},
    ),
    "a backend from outside": (
        '--hicache-storage-backend "$BACKEND"',
        "",
        dict.fromkeys([path for path in SGLANG_UNSET if path.startswith("cache.")], ...),
    ),
    "LMCache": (
        "--enable-lmcache",
        "LMCACHE_REMOTE_URL=redis://h:1 LMCACHE_CHUNK_SIZE=64",
        {
            "cache.connector": "sglang-lmcache",
            "cache.location": "redis://h:1",
            "cache.chunk_size": 64,
            "cache.serde": "naive",
        },
    ),
    "FlexKV": (
        "--enable-flexkv",
        "",
        {
            **dict.fromkeys([path for path in SGLANG_UNSET if path.startswith("cache.")], ...),
            "cache.connector": "sglang-flexkv",
        },
    ),
}


@pytest.mark.parametrize("name", STORES)
def test_which_store_outlives_the_server(name: str) -> None:
    flags, environment, expected = STORES[name]
    assert changed(flags, environment) == expected


def test_the_extra_config_may_be_a_file() -> None:
    line = f"{SERVER} --hicache-storage-backend mooncake --hicache-storage-backend-extra-config @mc.json"
    facts = read(line, LaunchFile("mc.json", EXTRA.encode()))
    assert (facts.values["cache.location"], facts.values["cache.namespace"]) == ("h:50051", "ns")
    without = read(line)
    assert "not known" in reason(without, "cache.location")
    assert "not given" in reason(without, "engine.args")


def test_lmcaches_file_may_be_named_by_a_flag() -> None:
    facts = read(f"{SERVER} --enable-lmcache --lmcache-config-file lm.yaml", LaunchFile("lm.yaml", b"chunk_size: 4\n"))
    assert facts.values["cache.chunk_size"] == 4


@pytest.mark.parametrize("key", ["--api-key given", "--admin-api-key given", ""])
def test_without_a_key_strangers_may_change_weights_and_adapters(key: str) -> None:
    facts = read(f"python -m sglang.launch_server --model-path org/m --enable-lora {key}")
    if key:
        assert facts.values["weights.mutable"] is False
        assert facts.values["adapters"] == []
    else:
        assert "--admin-api-key" in reason(facts, "weights.mutable")
        assert "--admin-api-key" in reason(facts, "adapters")


@pytest.mark.parametrize(
    ("given", "kept"),
    [("chatml", False), ("/t/format.json", False), ("/t/t.jinja", True), ("t.jinja", True), ("'{{ m }}'", True)],
)
def test_a_template_of_sglangs_own_is_not_read(given: str, kept: bool) -> None:
    facts = read(f"{SERVER} --chat-template {given}")
    assert (dict(facts.unknown).get("chat_template") is None) == kept


FILES = {
    "--load-format gguf": "weights.checkpoint",
    "--tokenizer-mode slow": "tokenizer.effective",
    "--hf-chat-template-name x": "chat_template",
    "--quantization-param-path /x.json": "precision.kv_scales",
    "--enable-pd-role-switch": "roles",
    '--revision "$R"': "model.revision",
}


@pytest.mark.parametrize("flags", FILES)
def test_what_is_said_elsewhere_is_not_known(flags: str) -> None:
    assert reason(read(f"{SERVER} {flags}"), FILES[flags])


def test_a_config_file_is_read_and_the_line_wins() -> None:
    given = LaunchFile("c.yaml", b"tp-size: 2\npage-size: 32\nenable-metrics: false\n")
    facts = read(f"{SERVER} --config c.yaml --page-size 64", given)
    assert facts.values == {**SGLANG_UNSET, "parallelism.tensor": 2, "engine.block_size": 64}
    hidden = read(f"{SERVER} --config c.yaml")
    assert {path for path, why in hidden.unknown if "--config" in why} == set(_SET_BY_FLAGS)
    assert set(_SET_BY_FLAGS) <= {*schema_leaves(), "tokenizer", "chat_template", "weights.checkpoint"}


def test_the_official_image_says_the_release() -> None:
    facts = read("docker run lmsysorg/sglang:v0.5.23-cu129 sglang serve --model-path org/m")
    assert facts.values["engine.version"] == "0.5.23"
    other = read("docker run vllm/vllm-openai:v0.33.0 sglang serve --model-path org/m")
    assert "SGLang's own image" in reason(other, "engine.version")


AUTO: list[tuple[str, dict[str, Any], str | None, str | None]] = [
    ("", {"model_type": "llama", "dtype": "bfloat16"}, "bfloat16", "bfloat16"),
    ("", {"model_type": "llama", "dtype": "float32"}, "float16", "float16"),
    ("", {"model_type": "llama"}, "float16", "float16"),
    ("", {"model_type": "gemma2", "dtype": "float32"}, "bfloat16", "bfloat16"),
    ("--dtype half", {"model_type": "llama", "dtype": "bfloat16"}, "float16", "float16"),
    ("--kv-cache-dtype fp8_e4m3", {"model_type": "llama", "dtype": "bfloat16"}, "bfloat16", "fp8_e4m3"),
    ("", {"model_type": "deepseek_v3", "dtype": "bfloat16"}, "bfloat16", None),
    (
        "",
        {"model_type": "llama", "dtype": "bfloat16", "quantization_config": {"kv_cache_quant_algo": "FP8"}},
        "bfloat16",
        "fp8_e4m3",
    ),
    (
        "",
        {"model_type": "llama", "dtype": "bfloat16", "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}},
        "bfloat16",
        None,
    ),
]


@pytest.mark.parametrize(("flags", "config", "compute", "kv_cache"), AUTO)
def test_automatic_types_are_settled_as_sglang_does(
    flags: str, config: dict[str, Any], compute: str | None, kv_cache: str | None
) -> None:
    found = resolve(read(f"{SERVER} {flags}"), config).values
    assert (found.get("precision.compute"), found.get("precision.kv_cache")) == (compute, kv_cache)
    assert found["engine.max_model_len"] is None


def test_every_path_of_the_table_is_a_manifests() -> None:
    leaves = schema_leaves()
    for name, flag in flag_table("sglang").flags.items():
        assert (flag.use == "path") == (flag.path is not None), name
        assert (flag.use == "harmless") == (flag.why is not None), name
        if flag.path is not None:
            assert flag.path in leaves or flag.path.startswith("tokenizer.options."), name


SECRETS = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40).map(lambda text: f"k{text}")
PLACES = [
    "--api-key {}",
    "--ssl-keyfile-password={}",
    '--hicache-storage-backend file --hicache-storage-backend-extra-config \'{{"access_key":"{}"}}\'',
    '--lora-paths \'{{"lora_name":"a","lora_path":"/x","token":"{}"}}\'',
    "--otlp-traces-endpoint https://u:{}@h",
    "--tp {}",
]


@pytest.mark.parametrize("place", PLACES)
@given(secret=SECRETS)
def test_no_secret_gets_out(place: str, secret: str) -> None:
    try:
        told = repr(read(f"{SERVER} {place.format(secret)}"))
    except InputError as error:
        told = str(error)
    assert secret not in told


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--json-model-override-args '[1]'", "not a JSON object"),
        ("--hicache-storage-backend file --hicache-storage-backend-extra-config '[1]'", "not a JSON object"),
        ("--lora-paths '{\"a\": 1}'", "lora_name"),
        ("--page-size x", "needs an integer"),
    ],
)
def test_what_sglang_would_refuse_is_refused(flags: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(f"{SERVER} {flags}")


def test_a_line_without_a_model_is_refused() -> None:
    with pytest.raises(InputError, match="names no model") as caught:
        read("python -m sglang.launch_server --tp 2")
    assert "sglang.launch_server" in str(caught.value.hint)


@pytest.mark.usefixtures("quick")
def test_a_capture_of_a_server_of_sglang(make_checkpoint: Any, tmp_path: Path) -> None:
    facts = read(f"{SERVER} --hicache-storage-backend file --served-model-name s")
    captured = capture(str(make_checkpoint()), launch=[facts], snapshot_to=tmp_path / "t.jsonl", unsets=["roles"])
    manifest = captured.manifest
    assert manifest["engine"]["name"] == "sglang"
    assert manifest["cache"]["connector"] == "sglang-hicache-file"
    assert manifest["cache"]["version"] is None
    assert manifest["precision"]["compute"] == manifest["precision"]["kv_cache"] == "bfloat16"
