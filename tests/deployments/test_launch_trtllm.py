"""TensorRT-LLM command lines and the file of settings beside them, to the facts in them.

The files are this project's own, of the shapes in ai-dynamo/dynamo at b6f88b1,
examples/backends/trtllm/engine_configs/deepseek-r1/disagg/simple/prefill.yaml, and in the description of KVBM for
TensorRT-LLM at d668df5, docs/kvbm/trtllm-setup.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvgate.deployments.capture import capture
from kvgate.deployments.launch import LaunchFacts, LaunchFile, bare_facts, read_launch, resolve
from kvgate.deployments.launch.flags import flag_table
from kvgate.deployments.launch.trtllm import _COMPILED, _SET_BY_FLAGS
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import schema_leaves
from tests.deployments.conftest import MakeCheckpoint
from tests.deployments.unset import UNSET

SERVER = "trtllm-serve org/m"
TRTLLM_UNSET: dict[str, Any] = {**UNSET, "engine.name": "tensorrt-llm"}
PREFILL = """
backend: pytorch
tensor_parallel_size: 4
moe_expert_parallel_size: 4
pipeline_parallel_size: 1
enable_attention_dp: true
max_batch_size: 1
max_seq_len: 8192
kv_cache_config: {free_gpu_memory_fraction: 0.75, dtype: fp8, tokens_per_block: 64, host_cache_size: 1000}
disable_overlap_scheduler: true
print_iter_log: true
cache_transceiver_config: {backend: UCX, max_tokens_in_buffer: 16384}
"""


def read(text: str, settings: str = "") -> LaunchFacts:
    """Read a line; ``x.yaml`` in it holds the settings."""
    beside = {"x.yaml": settings.encode()} if settings else {}
    (facts,) = read_launch([LaunchFile("launch.sh", text.encode(), beside)])
    return facts


def changed(facts: LaunchFacts) -> dict[str, Any]:
    """Return the values that a line changes, and ``...`` for those that it leaves unknown."""
    values = facts.values
    paths = {*values, *TRTLLM_UNSET}
    return {p: values.get(p, ...) for p in paths if values.get(p, ...) != TRTLLM_UNSET.get(p, ...)}


def reason(facts: LaunchFacts, path: str) -> str:
    assert path not in facts.values
    return dict(facts.unknown)[path]


@pytest.mark.parametrize("text", [SERVER, "trtllm-serve serve org/m", "python3 -m tensorrt_llm.commands.serve org/m"])
def test_a_line_without_flags_leaves_everything_at_its_default(text: str) -> None:
    facts = read(text)
    assert (facts.model, facts.engine, facts.values) == ("org/m", "tensorrt-llm", TRTLLM_UNSET)
    assert facts.pending == ("precision.compute", "precision.kv_cache")
    assert facts.unknown == (("engine.version", "the launch line does not say it"),)
    assert bare_facts("tensorrt-llm").values == TRTLLM_UNSET


FLAGS: dict[str, dict[str, Any]] = {
    "--revision abc --served_model_name s": {"model.revision": "abc", "model.served_name": "s"},
    "--tp_size 4 --pp_size 2 --ep_size 8": {
        "parallelism.tensor": 4,
        "parallelism.pipeline": 2,
        "parallelism.expert": 8,
    },
    "--max_seq_len 4096 --max_batch_size 8 --max_num_tokens 1 --max_beam_width 2": {"engine.max_model_len": 4096},
    "--kv_cache_free_gpu_memory_fraction 0.8 --host 0.0.0.0 --port 1 --log_level info --no-telemetry": {},
    "--kv_cache_dtype fp8": {"precision.kv_cache": "fp8_e4m3"},
    "--kv_cache_dtype nvfp4": {"precision.kv_cache": "nvfp4"},
    "--enable_attention_dp --new_thing 3": {"engine.args": {"enable-attention-dp": True, "new_thing": "3"}},
    "--cp_size 2": {
        "parallelism.decode_context": ...,
        "parallelism.prefill_context": ...,
        "engine.args": {"context-parallel-size": 2},
    },
    "--allow_request_chat_template": {"tokenizer.options": {"trust_request_chat_template": True}},
    "--server_role context": {"roles": ..., "engine.args": {"disaggregation-mode": "prefill"}},
    "--server_role GENERATION": {"roles": ..., "engine.args": {"disaggregation-mode": "decode"}},
    "--custom_module_dirs /x": {"engine.image": ...},
    "--set kv_cache_config.dtype=fp8 --set 'speculative_config={decoding_type: MTP}'": {
        "precision.kv_cache": "fp8_e4m3",
        "engine.speculative": {"method": "MTP"},
    },
}


@pytest.mark.parametrize("flags", FLAGS)
def test_what_a_flag_says(flags: str) -> None:
    assert changed(read(f"{SERVER} {flags}")) == FLAGS[flags]


SETTINGS: dict[str, dict[str, Any]] = {
    PREFILL: {
        "parallelism.tensor": 4,
        "parallelism.expert": 4,
        "engine.max_model_len": 8192,
        "engine.block_size": 64,
        "precision.kv_cache": "fp8_e4m3",
        "engine.args": {
            "backend": "pytorch",
            "enable-attention-dp": True,
            "disable-overlap-scheduler": True,
            "cache-transceiver-config": {"backend": "UCX", "max_tokens_in_buffer": 16384},
        },
    },
    "dtype: float16\nattn_backend: FLASHINFER\n": {
        "precision.compute": "float16",
        "engine.attention_backend": "FLASHINFER",
    },
    "pytorch_backend_config: {kv_cache_dtype: fp8, attn_backend: TRTLLM}\n": {
        "precision.kv_cache": "fp8_e4m3",
        "engine.attention_backend": "TRTLLM",
    },
    "quant_config: {quant_algo: FP8, kv_cache_quant_algo: FP8}\n": {
        "model.quantization": "fp8",
        "precision.kv_cache": "fp8_e4m3",
    },
    "speculative_config: {decoding_type: Eagle, max_draft_len: 3, speculative_model_dir: org/d}\n": {
        "engine.speculative": {"method": "Eagle", "num_speculative_tokens": 3, "model": "org/d"}
    },
    "enable_lora: true\nlora_config: {max_lora_rank: 8}\n": {
        "request_features": ["lora", "lora_hot_load"],
        "adapters": ...,
        "engine.args": {"lora-config": {"max_lora_rank": 8}},
    },
    "orchestrator_type: ray\n": {"weights.mutable": ..., "engine.args": {"orchestrator-type": "ray"}},
    "kv_cache_config: {enable_block_reuse: false, enable_partial_reuse: false, event_buffer_max_size: 9}\n": {
        "engine.args": {"kv-cache-config.enable-block-reuse": False}
    },
    "kv_cache_config: {never_seen: 1}\nneither_this: [a]\n": {
        "engine.args": {"kv_cache_config.never_seen": 1, "neither_this": ["a"]}
    },
    "tensor_parallel_size: ${TP}\n": {"parallelism.tensor": ...},
    "kv_cache_config:\n": {},
    "env_overrides: {TRTLLM_X: '1', TLLM_LOG_LEVEL: info, HF_TOKEN: sEcReT0}\n": {"engine.args": {"TRTLLM_X": "1"}},
    "kv_connector_config: {connector: lmcache-mp, server_url: 'tcp://h:1'}\n": {
        "cache.connector": "tensorrt-llm-lmcache-mp",
        "cache.location": ...,
        "cache.namespace": ...,
        "cache.chunk_size": ...,
        "cache.serde": ...,
        "engine.args": {"kv-connector-config": {"connector": "lmcache-mp"}},
    },
    "kv_connector_config: {connector_module: kvbm.trtllm_integration.connector, connector_worker_class: W}\n": {
        "cache.connector": "dynamo-kvbm"
    },
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("flag", ["--config", "--extra_llm_api_options"])
def test_what_the_file_of_settings_says(settings: str, flag: str) -> None:
    facts = read(f"{SERVER} {flag} x.yaml", settings)
    assert changed(facts) == SETTINGS[settings]
    assert "sEcReT0" not in repr(facts)


def test_overrides_of_the_config_and_the_template_reach_the_capture() -> None:
    facts = read(f"{SERVER} --chat_template /t.jinja --config x.yaml", "model_kwargs: {rope_theta: 5}\n")
    assert (facts.overrides, facts.chat_template) == ({"rope_theta": 5}, "/t.jinja")


def test_a_setting_of_line_and_file_is_known_where_both_say_the_same() -> None:
    same = read(f"{SERVER} --tp_size 4 --kv_cache_dtype fp8 --config x.yaml", PREFILL)
    assert (same.values["parallelism.tensor"], same.values["precision.kv_cache"]) == (4, "fp8_e4m3")
    other = read(f"{SERVER} --tp_size 2 --kv_cache_dtype nvfp4 --config x.yaml", PREFILL)
    for path, flag in (("parallelism.tensor", "tensor-parallel-size"), ("precision.kv_cache", "kv-cache-config.dtype")):
        said = "is given twice, with two values, and which of them counts depends on the release"
        assert reason(other, path) == f"--{flag} {said}"
    assert read(f"{SERVER} --config x.yaml", "model: org/other\n").model is None
    assert read(f"{SERVER} --config x.yaml", "model: org/m\n").model == "org/m"


def test_a_file_that_was_not_given_may_set_anything_the_line_sets_too() -> None:
    facts = read(f"{SERVER} --tp_size 2 --config /etc/x.yaml")
    said = "--config /etc/x.yaml was not given, and it may set this"
    assert {path for path, why in facts.unknown if why == said} == set(_SET_BY_FLAGS)
    assert set(_SET_BY_FLAGS) <= {*schema_leaves(), "tokenizer", "chat_template", "weights.checkpoint"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("- a\n", "is not a mapping of TensorRT-LLM's settings"),
        ("tensor_parallel_size: two\n", "tensor_parallel_size needs an integer"),
        ("tensor_parallel_size: true\n", "tensor_parallel_size needs an integer"),
        ("enable_attention_dp: 1\n", "enable_attention_dp needs true or false"),
        ("kv_cache_config: fp8\n", "kv_cache_config is not a mapping"),
        ("kv_cache_config: {dtype: 8}\n", "kv_cache_config.dtype needs a text"),
        ("speculative_config: MTP\n", "speculative_config is not a mapping"),
        ("a: 1\na: 2\n", "stands twice"),
        ("a: &x [1]\nb: [*x, *x]\n", "anchors and aliases are not allowed"),
        ("a: " + "[" * 3000 + "\n", "exceeded maximum nesting depth"),
    ],
)
def test_a_broken_file_of_settings_is_one_clear_error(settings: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(f"{SERVER} --config x.yaml", settings)
    assert "\n" not in str(caught.value)
    assert "x.yaml" in str(caught.value) or "launch.sh" in str(caught.value)


@pytest.mark.parametrize("command", ["disaggregated -c x.yaml", "mm_embedding_serve org/m"])
def test_what_serves_no_model_is_no_server(command: str) -> None:
    with pytest.raises(InputError, match="no launch line found"):
        read(f"trtllm-serve {command}")


def test_a_compiled_engine_says_nothing_of_its_weights() -> None:
    for backend in ("tensorrt", "trt"):
        facts = read(f"trtllm-serve /engines/x --backend {backend}")
        assert {path for path, why in facts.unknown if "compiled engine" in why} == set(_COMPILED)
    old = read("docker run nvcr.io/nvidia/tensorrt-llm/release:0.20.0 trtllm-serve /engines/x")
    assert "TensorRT-LLM 0.20.0 may run a compiled engine" in reason(old, "weights.checkpoint")
    new = read("docker run nvcr.io/nvidia/tensorrt-llm/release:1.2.1 trtllm-serve org/m")
    assert (new.values["engine.version"], [p for p, _ in new.unknown]) == ("1.2.1", ["engine.image"])


@pytest.mark.usefixtures("quick")
def test_a_folder_of_a_compiled_engine_is_captured_without_weights(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    folder = make_checkpoint()
    (folder / "model.safetensors").rename(folder / "rank0.engine")
    captured = capture(str(folder), launch=[read(SERVER)], snapshot_to=tmp_path / "t.jsonl")
    unknown = dict(captured.unknown)
    assert captured.weights is None
    for path in ("weights.checkpoint", "model.config", "model.quantization", "precision.compute"):
        assert "an engine that TensorRT-LLM compiled" in unknown[path]


AUTO: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"model_type": "llama", "dtype": "bfloat16"}, "bfloat16", "bfloat16"),
    ({"model_type": "llama"}, "bfloat16", "bfloat16"),
    ({"model_type": "llama", "dtype": "float32"}, None, None),
    ({"dtype": "float16", "quantization_config": {"kv_cache_quant_algo": "FP8"}}, "float16", "fp8_e4m3"),
    (
        {"dtype": "float16", "quantization_config": {"quantization": {"kv_cache_quant_algo": "NVFP4"}}},
        "float16",
        "nvfp4",
    ),
    ({"dtype": "float16", "quantization_config": {"kv_cache_quant_algo": "INT8"}}, "float16", None),
    ({"dtype": "float16", "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "float16", None),
    ({"dtype": "bfloat16", "index_topk": 8}, "bfloat16", None),
]


@pytest.mark.parametrize(("config", "compute", "kv_cache"), AUTO)
def test_what_auto_means(config: dict[str, Any], compute: str | None, kv_cache: str | None) -> None:
    values = resolve(read(SERVER), config).values
    assert (values.get("precision.compute"), values.get("precision.kv_cache")) == (compute, kv_cache)
    assert "precision.compute" not in resolve(read(SERVER), config, accelerator="Tesla V100").values


KVBM: dict[str, tuple[Any, str]] = {
    "": (None, ""),
    "DYN_KVBM_CPU_CACHE_GB=4": (None, ""),
    "DYN_KVBM_DISK_CACHE_GB=8": ("/tmp", ""),
    "DYN_KVBM_DISK_CACHE_GB=8 DYN_KVBM_DISK_CACHE_DIR=/kv": ("/kv", ""),
    "DYN_KVBM_DISK_CACHE_GB=0 DYN_KVBM_DISK_CACHE_DIR=/kv": (None, ""),
    "DYN_KVBM_OBJECT_ENABLED=1 {BUCKET} DYN_KVBM_OBJECT_ENDPOINT=http://h:9000/": (
        "http://h:9000/b",
        "",
    ),
    "DYN_KVBM_OBJECT_ENABLED=true DYN_KVBM_OBJECT_BUCKET=b": ("s3://b", ""),
    "DYN_KVBM_OBJECT_ENABLED=1 DYN_KVBM_OBJECT_BUCKET=b DYN_KVBM_DISK_CACHE_GB=1": ("[s3://b + /tmp]", ""),
    "DYN_KVBM_OBJECT_ENABLED=1": (..., "DYN_KVBM_OBJECT_ENABLED is set, and DYN_KVBM_OBJECT_BUCKET is not"),
    "DYN_KVBM_OBJECT_ENABLED=$X": (..., "DYN_KVBM_OBJECT_ENABLED is set to $X"),
    "DYN_KVBM_OBJECT_ENABLED=1 {BUCKET} DYN_KVBM_OBJECT_ENDPOINT=http://u:sEcReT0@h": (
        "http://h/b",
        "",
    ),
}


@pytest.mark.parametrize("variables", KVBM)
@pytest.mark.parametrize(
    "server",
    [
        "trtllm-serve org/m --set kv_connector_config.connector=kvbm",
        "vllm serve org/m --kv-transfer-config "
        """'{"kv_connector":"DynamoConnector","kv_connector_module_path":"kvbm.vllm_integration.connector"}'""",
        "python3 -m dynamo.trtllm --model org/m --connector kvbm",
        "python3 -m dynamo.vllm --model org/m --connector kvbm",
    ],
)
def test_where_kvbm_keeps_blocks(variables: str, server: str) -> None:
    facts = read(f"{variables} {server}".replace("{BUCKET}", "DYN_KVBM_OBJECT_BUCKET=b"))
    location, why = KVBM[variables]
    assert facts.values["cache.connector"] == "dynamo-kvbm"
    assert facts.values.get("cache.location", ...) == location
    assert not why or reason(facts, "cache.location") == why
    assert "sEcReT0" not in repr(facts)
    assert not [name for name in facts.values.get("engine.args", {}) if name.startswith("DYN_KVBM")]


OPTIONS = ("skip_tokenizer_init", "tokenizer_mode", "trust_request_chat_template")


def test_no_setting_has_two_names_of_one_spelling() -> None:
    table = flag_table("tensorrt-llm")
    spelled = [name for flag, row in table.flags.items() for name in (flag, *row.also)]
    assert len(spelled) == len(set(spelled))
    assert {row.path for row in table.flags.values() if row.path} <= {
        *schema_leaves(),
        *(
            f"tokenizer.options.{name}"
            for name in ("skip_tokenizer_init", "tokenizer_mode", "trust_request_chat_template")
        ),
    }


@pytest.mark.usefixtures("quick")
def test_a_checkpoint_behind_it_is_a_whole_manifest(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    line = f"trtllm-serve {make_checkpoint()} --config x.yaml"
    captured = capture(str(tmp_path / "checkpoint"), launch=[read(line, PREFILL)], snapshot_to=tmp_path / "t.jsonl")
    assert captured.manifest["precision"] == {"compute": "bfloat16", "kv_cache": "fp8_e4m3", "kv_scales": None}
    assert captured.manifest["weights"]["checkpoint"]["digest"].startswith("blake3:")


@pytest.mark.usefixtures("quick")
def test_the_release_that_is_installed_here_counts(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "tensorrt_llm-1.2.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: 1.2.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    snapshot = tmp_path / "t.jsonl"
    captured = capture(str(make_checkpoint()), launch=[read(SERVER)], renderer="here", snapshot_to=snapshot)
    assert captured.manifest["engine"]["version"] == "1.2.1"
    assert captured.manifest["tokenizer"]["renderer"]["engine_version"] == "1.2.1"
