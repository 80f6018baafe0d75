"""Launch lines of every shape, to the facts in them."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest

from kvgate.deployments.launch import LaunchFacts, parse_vllm
from kvgate.deployments.launch.flags import flag_table
from kvgate.deployments.launch.reading import LaunchFile, read_launch
from kvgate.deployments.launch.vllm import _SET_BY_FLAGS
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import schema_leaves
from tests.deployments.unset import UNSET

PENDING = ("precision.compute", "precision.kv_cache")
NO_VERSION = (("engine.version", "the launch line does not say it"),)
DIGEST = "sha256:" + "a" * 64


def read(text: str, **more: Any) -> LaunchFacts:
    return parse_vllm(text, source="launch.sh", **more)


def facts(**differences: Any) -> LaunchFacts:
    """Return the facts of ``vllm serve org/m`` with differences; ``values`` are laid over the unset ones."""
    values = {**UNSET, **differences.pop("values", {})}
    for path in differences.pop("without", ()):
        del values[path]
    stores = tuple(
        filter(None, [values.get("cache.location")])
    )  # outside a container the server sees what everybody sees
    whole: dict[str, Any] = {
        "model": "org/m",
        "pending": PENDING,
        "unknown": NO_VERSION,
        "stores": stores,
        **differences,
    }
    return LaunchFacts(source="launch.sh", engine="vllm", values=values, **whole)


LMCACHE = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
OFFLOAD = json.dumps(
    {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": 1 << 30,
            "block_size": 64,
            "secondary_tiers": [{"type": "fs", "root_dir": "/mnt/kv", "n_read_threads": 32}],
        },
    }
)

LINES: dict[str, tuple[str, LaunchFacts]] = {
    "the shortest": ("vllm serve org/m", facts()),
    "the module": ("python3 -m vllm.entrypoints.openai.api_server --model org/m", facts()),
    "a full path, a prompt and wrappers": (
        "$ exec nohup /opt/venv/bin/vllm serve org/m &",
        facts(values={"engine.args": {"program": "/opt/venv/bin/vllm"}}),
    ),
    "continued lines and comments": (
        "#!/bin/bash\nset -e\n# start\nvllm serve org/m \\\n  --tensor-parallel-size 2 \\\n  -pp=2 # two\n",
        facts(values={"parallelism.tensor": 2, "parallelism.pipeline": 2}),
    ),
    "windows line ends": ("vllm serve org/m \\\r\n -tp 4\r\n", facts(values={"parallelism.tensor": 4})),
    "underscores, an equals sign, an abbreviation": (
        "vllm serve org/m --tensor_parallel_size=2 --served_model_name support other --max-model 32k",
        facts(
            values={"parallelism.tensor": 2, "model.served_name": "support", "engine.max_model_len": 32000},
            notes=("--max-model was read as --max-model-len",),
        ),
    ),
    "the last of two counts": ("vllm serve org/m -tp 2 -tp 8", facts(values={"parallelism.tensor": 8})),
    "no and its opposite": (
        "vllm serve org/m --no-enable-prefix-caching --enforce-eager --no-enforce-eager --disable-chunked-prefill",
        facts(
            values={"engine.args": {"enable-prefix-caching": False, "enforce-eager": False}},
            ignored=("enable-chunked-prefill",),
        ),
    ),
    "experts over tensor and data ranks": (
        "vllm serve org/m -tp 4 -dp 2 --enable-expert-parallel -dcp 2",
        facts(
            values={
                "parallelism.tensor": 4,
                "parallelism.data": 2,
                "parallelism.expert": 8,
                "parallelism.decode_context": 2,
            }
        ),
    ),
    "harmless flags are named": (
        "vllm serve org/m --gpu-memory-utilization 0.9 --max-num-seqs 64 --port 80 --seed 7",
        facts(ignored=("gpu-memory-utilization", "max-num-seqs", "port", "seed")),
    ),
    "types are settled later, or given": (
        "vllm serve org/m --dtype half --kv-cache-dtype fp8_e4m3 --quantization fp8 --block-size 32",
        facts(
            values={
                "precision.compute": "half",
                "precision.kv_cache": "fp8_e4m3",
                "model.quantization": "fp8",
                "engine.block_size": 32,
            },
            pending=(),
        ),
    ),
    "a pinned revision": ("vllm serve org/m --revision " + "0" * 40, facts(values={"model.revision": "0" * 40})),
    "memory decides the length": (
        "vllm serve org/m --max-model-len -1",
        facts(
            without=["engine.max_model_len"],
            unknown=(
                *NO_VERSION,
                ("engine.max_model_len", "--max-model-len auto is settled by the memory that is free at start"),
            ),
        ),
    ),
    "LoRA in both forms": (
        """vllm serve org/m --enable-lora --lora-modules billing=/a/b '{"name": "law", "path": "org/law"}' -tp 2""",
        facts(
            values={
                "adapters": [{"name": "billing", "path": "/a/b"}, {"name": "law", "path": "org/law"}],
                "request_features": ["lora"],
                "parallelism.tensor": 2,
            },
            adapters={"billing": "/a/b", "law": "org/law"},
        ),
    ),
    "adapters that come while serving": (
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve org/m --enable-lora",
        facts(
            values={"request_features": ["lora", "lora_hot_load"]},
            without=["adapters"],
            unknown=(
                *NO_VERSION,
                ("adapters", "VLLM_ALLOW_RUNTIME_LORA_UPDATING lets adapters be loaded while serving"),
            ),
        ),
    ),
    "template, tokenizer and rendering": (
        "vllm serve org/m --tokenizer org/t --tokenizer-revision v2 --chat-template ./t.jinja "
        "--chat-template-content-format openai --tokenizer-mode auto "
        """--default-chat-template-kwargs '{"enable_thinking": false}' --enable-prompt-embeds --trust-remote-code""",
        facts(
            values={
                "tokenizer.options": {"content_format": "openai", "template_kwargs": {"enable_thinking": False}},
                "request_features": ["prompt_embeds"],
            },
            tokenizer="org/t",
            tokenizer_revision="v2",
            chat_template="./t.jinja",
            remote_code=True,
        ),
    ),
    "overrides, dotted and as JSON": (
        """vllm serve org/m --hf-overrides '{"rope_parameters": {"rope_type": "linear", "factor": 2.0}}'
           --speculative-config.method eagle3 --speculative-config.num_speculative_tokens 3
           --attention-config.backend FLASH_ATTN --compilation-config.pass_config.fuse true""".replace("\n", " "),
        facts(
            values={
                "engine.speculative": {"method": "eagle3", "num_speculative_tokens": 3},
                "engine.attention_backend": "FLASH_ATTN",
                "engine.args": {"compilation-config": {"pass_config": {"fuse": True}}},
            },
            overrides={"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        ),
    ),
    "speculation by short flags": (
        "vllm serve org/m --spec-method ngram --spec-tokens 4",
        facts(values={"engine.speculative": {"method": "ngram", "num_speculative_tokens": 4}}),
    ),
    "weights that change": (
        """vllm serve org/m --weight-transfer-config '{"backend": "nccl"}'""",
        facts(values={"weights.mutable": True}),
    ),
    "a door to the weights": (
        "VLLM_SERVER_DEV_MODE=1 vllm serve org/m",
        facts(
            without=["weights.mutable"],
            unknown=(
                *NO_VERSION,
                (
                    "weights.mutable",
                    "VLLM_SERVER_DEV_MODE lets anybody who reaches the server change the weights",
                ),
            ),
        ),
    ),
    "the environment that keys and kernels depend on": (
        "export PYTHONHASHSEED=42\nexport VLLM_KV_CACHE_LAYOUT=LBHNC VLLM_LOGGING_LEVEL=DEBUG\n"
        "env FOO=1 VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/m --prefix-caching-hash-algo sha256_cbor",
        facts(
            values={
                "engine.prefix_hash.seed": "42",
                "engine.prefix_hash.algorithm": "sha256_cbor",
                "engine.kv_layout": "HND",
                "engine.args": {"VLLM_USE_V2_MODEL_RUNNER": "1"},
            },
            notes=("environment variables taken to change nothing: FOO",),
        ),
    ),
    "a container with a release tag and a digest": (
        f"docker run -d --rm --gpus all -p8000:8000 -v ~/c:/c --env=PYTHONHASHSEED=0 -e 'A=b c' "
        f"docker.io/vllm/vllm-openai:v0.33.0-cu130@{DIGEST} --model org/m",
        facts(
            values={
                "engine.image": DIGEST,
                "engine.version": "0.33.0",
                "engine.prefix_hash.seed": "0",
            },
            unknown=(),
            notes=("environment variables taken to change nothing: A",),
            image=f"docker.io/vllm/vllm-openai:v0.33.0-cu130@{DIGEST}",
        ),
    ),
    "a container with a moving tag": (
        "podman run -it vllm/vllm-openai:latest org/m",
        facts(
            without=["engine.image"],
            image="vllm/vllm-openai:latest",
            unknown=(
                ("engine.image", "the tag 'latest' does not pin the content; an image digest would"),
                ("engine.version", "the tag 'latest' names no release of vLLM's own image"),
            ),
        ),
    ),
    "a shell in a container": (
        f"docker run --entrypoint /bin/bash -e VLLM_KV_CACHE_LAYOUT registry:5000/serve@{DIGEST} "
        "-lc 'cd /w && PYTHONHASHSEED=1 vllm serve org/m --dtype bfloat16 2>&1 | tee log'",
        facts(
            values={"engine.image": DIGEST, "engine.prefix_hash.seed": "1", "precision.compute": "bfloat16"},
            without=["engine.kv_layout"],
            pending=("precision.kv_cache",),
            image=f"registry:5000/serve@{DIGEST}",
            unknown=(
                ("engine.version", "the image name names no release of vLLM's own image"),
                (
                    "engine.kv_layout",
                    "the environment variable VLLM_KV_CACHE_LAYOUT is set from outside the line",
                ),
            ),
        ),
    ),
    "LMCache in the process": (
        "LMCACHE_REMOTE_URL=redis://user:pw@cache-1:6379/0 LMCACHE_CHUNK_SIZE=128 LMCACHE_LOCAL_CPU=True "
        f"vllm serve org/m --kv-transfer-config '{LMCACHE}'",
        facts(
            values={
                "cache.connector": "lmcache",
                "cache.location": "redis://cache-1:6379/0",
                "cache.chunk_size": 128,
                "cache.serde": "naive",
            }
        ),
    ),
    "LMCache by a file": (
        f"LMCACHE_CONFIG_FILE=/etc/lmcache.yaml vllm serve org/m --kv-transfer-config '{LMCACHE}'",
        facts(
            values={"cache.connector": "lmcache", "engine.args": {"LMCACHE_CONFIG_FILE": "/etc/lmcache.yaml"}},
            without=["cache.location", "cache.chunk_size", "cache.serde"],
            unknown=(
                *NO_VERSION,
                *(
                    (f"cache.{name}", "the LMCache configuration file says it, and it was not given")
                    for name in ("location", "chunk_size", "serde")
                ),
            ),
        ),
    ),
    "LMCache as a server": (
        """vllm serve org/m --kv-transfer-config.kv_connector LMCacheMPConnector --kv-transfer-config.kv_role kv_both
           --kv-transfer-config '{"ignored": 1}'""".replace("\n", " "),
        facts(
            values={"cache.connector": "lmcache-mp"},
            without=["cache.location", "cache.chunk_size", "cache.serde"],
            unknown=(
                *NO_VERSION,
                *(
                    (f"cache.{name}", "the LMCache server says it, not the engine")
                    for name in ("location", "chunk_size", "serde")
                ),
            ),
        ),
    ),
    "tiered offload to files": (
        f"vllm serve org/m --kv-transfer-config '{OFFLOAD}'",
        facts(
            values={
                "cache.connector": "vllm-offload-fs",
                "cache.location": "/mnt/kv",
                "cache.namespace": "/mnt/kv",
                "cache.chunk_size": 64,
            }
        ),
    ),
    "tiered offload to an object store": (
        """vllm serve org/m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_connector_extra_config":
           {"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":80G,"secondary_tiers":[{"type":"obj","prefix":"p1",
           "store_config":{"bucket":"kv","endpoint_override":"s3:9000","access_key":"AK","secret_key":"SK"}}]}}'""",
        facts(
            values={
                "cache.connector": "vllm-offload-object",
                "cache.location": "http://s3:9000/kv",
                "cache.namespace": "p1",
            },
            notes=("--kv-transfer-config held a credential; it was left out",),
        ),
    ),
    "what a tier is told besides counts": (
        """vllm serve org/m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_connector_extra_config":
           {"spec_name":"TieringOffloadingSpec","more":2,"secondary_tiers":[{"type":"obj","prefix":"p1","codec":"lossy",
           "store_config":{"bucket":"kv","endpoint_override":"s3:9000","region":"eu","compression":"fp8"}}]}}'""",
        facts(
            values={
                "cache.connector": "vllm-offload-object",
                "cache.location": "http://s3:9000/kv",
                "cache.namespace": "p1",
                "engine.args": {
                    "kv-transfer-config": {
                        "secondary_tier": {"codec": "lossy", "store_config": {"compression": "fp8"}},
                        "kv_connector_extra_config": {"more": 2},
                    }
                },
            },
        ),
    ),
    "a bucket without its endpoint": (
        """vllm serve org/m --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_connector_extra_config":
           {"spec_name":"TieringOffloadingSpec","secondary_tiers":[{"type":"obj","prefix":"p1",
           "store_config":{"bucket":"kv"}}]}}'""",
        facts(
            values={
                "cache.connector": "vllm-offload-object",
                "cache.namespace": "p1",
                "engine.args": {"kv-transfer-config": {"secondary_tier": {"store_config": {"bucket": "kv"}}}},
            },
            without=["cache.location"],
            unknown=(*NO_VERSION, ("cache.location", "its store_config does not name bucket and endpoint")),
        ),
    ),
    "offload to memory alone": (
        "vllm serve org/m --kv-offloading-size 10",
        facts(
            values={"cache.connector": "OffloadingConnector"},
            notes=(
                "the connector OffloadingConnector is kept by its name: its memory does not outlive the worker "
                "unless a secondary tier is set",
            ),
        ),
    ),
    "offload by a flag, in place of the connector that is named": (
        """vllm serve org/m --kv-offloading-size 10 --kv-transfer-config '{"kv_connector":"ExampleConnector",
           "kv_role":"kv_consumer","kv_load_failure_policy":"fail"}'""",
        facts(
            values={
                "cache.connector": "OffloadingConnector",
                "engine.args": {"kv-transfer-config": {"kv_load_failure_policy": "fail"}},
            },
            notes=(
                "the connector OffloadingConnector is kept by its name: its memory does not outlive the worker "
                "unless a secondary tier is set",
            ),
        ),
    ),
    "the example connector and its knob": (
        """vllm serve org/m --kv-transfer-config '{"kv_connector":"ExampleConnector","kv_role":"kv_both",
           "kv_load_failure_policy":"recompute","kv_connector_extra_config":{"shared_storage_path":"/x","y":1}}'""",
        facts(
            values={
                "cache.connector": "vllm-example",
                "cache.location": "/x",
                "engine.args": {
                    "kv-transfer-config": {
                        "kv_load_failure_policy": "recompute",
                        "kv_connector_extra_config": {"y": 1},
                    }
                },
            }
        ),
    ),
    "half of a pair": (
        """vllm serve org/m --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'""",
        facts(
            values={
                "cache.connector": "vllm-nixl",
                "engine.args": {"kv-transfer-config": {"kv_role": "kv_consumer"}},
            },
            without=["roles"],
            unknown=(
                *NO_VERSION,
                ("roles", "the line starts one half of a prefill/decode pair; the other is not in it"),
            ),
        ),
    ),
    "a connector nobody described": (
        """vllm serve org/m --kv-transfer-config '{"kv_connector":"Mine","kv_connector_module_path":"my.kv"}'""",
        facts(
            values={
                "cache.connector": "Mine",
                "engine.args": {"kv-transfer-config": {"kv_connector_module_path": "my.kv"}},
            },
            notes=("the connector Mine is kept by its name: its class is loaded from another module",),
        ),
    ),
    "an unknown flag counts": (
        "vllm serve org/m --made-up a b --switch -tp 2",
        facts(
            values={"engine.args": {"made-up": ["a", "b"], "switch": True}, "parallelism.tensor": 2},
            notes=tuple(
                f"--{name} is not a flag of the vLLM versions kvgate has read; it is kept and counts"
                for name in ("made-up", "switch")
            ),
        ),
    ),
    "a value from outside": (
        'vllm serve org/m -tp "$TP" --revision $(cat rev) --load-format ${FORMAT:-auto}',
        facts(
            without=["parallelism.tensor", "model.revision", "engine.args"],
            unknown=(
                *NO_VERSION,
                ("engine.args", "--load-format is set to ${FORMAT...}, which the shell fills in"),
                ("model.revision", "--revision is set to $(...), which the shell fills in"),
                ("parallelism.tensor", "--tensor-parallel-size is set to $TP, which the shell fills in"),
                ("weights.checkpoint", "--load-format is set to ${FORMAT...}, which the shell fills in"),
            ),
        ),
    ),
    "quotes keep a dollar": (
        "vllm serve org/m --served-model-name '$HOME' --fingerprint-value a\\$b",
        facts(values={"model.served_name": "$HOME"}, ignored=("fingerprint-value",)),
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_launch_line_gives_exactly_these_facts(name: str) -> None:
    line, expected = LINES[name]
    found = read(line)
    assert dict(found.values) == dict(expected.values)
    assert found == expected


def test_a_model_from_outside_is_not_a_model() -> None:
    found = read('OTHER=org/m\nvllm serve "$MODEL" -tp 2')
    assert found.model is None
    assert found.values["parallelism.tensor"] == 2
    assert found.values["model.revision"] is None


def test_arguments_from_outside_leave_everything_open_that_the_line_does_not_set() -> None:
    found = read('vllm serve org/m "$@" -tp 2')
    reason = "the shell fills in $@, which may hold any flag"
    assert found.values["parallelism.tensor"] == 2
    assert {path for path, why in found.unknown if why == reason} == set(_SET_BY_FLAGS) - {"parallelism.tensor"}
    assert not {path for path, _ in found.unknown} & set(found.values)


@pytest.mark.parametrize(
    "outside", ['--port 80 "$@"', '"$@"', "--enforce-eager $ARGS", "--${NAME}=1", "--no-such-flag $ARGS"]
)
def test_arguments_from_outside_may_set_again_what_stands_before_them(outside: str) -> None:
    """Of a flag that is given twice the last counts."""
    found = read(f"vllm serve org/m -tp 2 --dtype half --served-model-name a {outside} --dtype float16")
    assert {"parallelism.tensor", "model.served_name"} <= dict(found.unknown).keys()
    assert "--tensor-parallel-size is followed by $" in dict(found.unknown)["parallelism.tensor"]
    assert found.values["precision.compute"] == "float16"


def test_what_a_hidden_flag_could_set_is_everything_a_line_can_set() -> None:
    from_environment = {"engine.prefix_hash.seed", "engine.kv_layout"}
    never_by_flag = {"engine.name", "engine.image", "tokenizer.options"}
    settable = {*UNSET, *PENDING} - from_environment - never_by_flag
    assert settable <= set(_SET_BY_FLAGS)


def test_a_file_of_flags_counts_below_the_line() -> None:
    content = (
        b"tensor-parallel-size: 8\ndtype: float16\nenable-lora: true\nhf-overrides: {a: 1}\nlora-modules: [x=/x]\n"
    )
    given = read("vllm serve org/m --config c.yaml -tp 2", files={"c.yaml": content})
    assert given.values["parallelism.tensor"] == 2
    assert given.values["precision.compute"] == "float16"
    assert given.values["request_features"] == ["lora"]
    assert given.overrides == {"a": 1}
    assert given.adapters == {"x": "/x"}
    unread = read("vllm serve org/m --config c.yaml -tp 2")
    assert unread.values["parallelism.tensor"] == 2
    assert dict(unread.unknown)["model.config"] == "--config c.yaml was not given, and it may set this"


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("vllm serve --config c.yaml", "org/file"),
        ("vllm serve org/a --config c.yaml", "org/a"),
        ("vllm serve --config c.yaml org/a", "org/a"),
        ("vllm serve --config c.yaml --model org/a", "org/a"),
        ("vllm serve $MODEL --config c.yaml", None),
        ("python -m vllm.entrypoints.openai.api_server --config c.yaml", "org/file"),
        ("python -m vllm.entrypoints.openai.api_server --config c.yaml --model org/a", "org/a"),
    ],
)
def test_the_model_that_the_line_names_wins_over_the_one_of_its_file(line: str, model: str | None) -> None:
    found = read(line, files={"c.yaml": b"model: org/file\nblock-size: 32\n"})
    assert found.model == model
    assert found.values["engine.block_size"] == 32
    assert not any("belong to no flag" in note for note in found.notes)


@pytest.mark.parametrize(
    "line",
    ["org/a --model org/b", "--model=org/b org/a", "--model org/a --model org/b", "--model=org/a -tp 2 --model org/b"],
)
def test_a_line_that_names_two_models_is_refused(line: str) -> None:
    with pytest.raises(InputError, match="two models"):
        read(f"vllm serve {line}")
    assert read("vllm serve $MODEL --model org/b").model == "org/b"
    assert read("python -m vllm.entrypoints.openai.api_server --model org/a --model org/b").model == "org/b"


@pytest.mark.parametrize(
    ("image", "backend", "connector"),
    [
        ("vllm/vllm-openai:v0.32.0", "lmcache", "lmcache-mp"),
        ("vllm/vllm-openai:v0.11.0", "lmcache", None),
        ("vllm/vllm-openai", "lmcache", None),
        ("vllm/vllm-openai", "native", "OffloadingConnector"),
        ("vllm/vllm-openai:v0.32.0", "$BACKEND", None),
        ("vllm/vllm-openai:v0.32.0", "other", None),
    ],
)
def test_the_connector_behind_a_flag_is_known_where_its_release_was_read(
    image: str, backend: str, connector: str | None
) -> None:
    found = read(f"docker run {image} org/m --kv-offloading-size 10 --kv-offloading-backend {backend}")
    assert found.values.get("cache.connector") == connector
    assert ("cache.connector" in dict(found.unknown)) == (connector is None)


@pytest.mark.parametrize("engine", ["vllm serve org/m", "python -m sglang.launch_server --model-path org/m"])
def test_only_one_file_of_flags_is_read_and_only_in_one_spelling(engine: str) -> None:
    files = {"c.yaml": b"dtype: float16\n", "d.yaml": b"dtype: bfloat16\n"}
    beside = LaunchFile("run.sh", f"{engine} --config c.yaml --config=d.yaml".encode(), files)
    assert read_launch([beside])[0].values["precision.compute"] == "float16"
    with pytest.raises(InputError, match="--config is given twice"):
        read_launch([LaunchFile("run.sh", f"{engine} --config c.yaml --config c.yaml".encode(), files)])
    (joined,) = read_launch([LaunchFile("run.sh", f"{engine} --config=c.yaml".encode(), files)])
    assert "not read by every release" in dict(joined.unknown)["precision.compute"]


def test_an_environment_file_leaves_open_what_a_variable_could_set() -> None:
    found = read(f"docker run --env-file x vllm/vllm-openai:v0.33.0@{DIGEST} org/m -tp 2")
    assert dict(found.unknown)["engine.prefix_hash.seed"] == "the file of --env-file was not given"
    assert "engine.args" not in found.values
    assert found.values["parallelism.tensor"] == 2


def test_the_attention_variable_counts_only_where_the_engine_reads_it() -> None:
    line = "docker run -e VLLM_ATTENTION_BACKEND=FLASHINFER vllm/vllm-openai:v{} org/m"
    path = "engine.attention_backend"
    assert read(line.format("0.11.0")).values[path] == "FLASHINFER"
    assert read(line.format("0.33.0")).values[path] is None
    assert path not in read(line.format("0.15.0")).values
    assert path not in read("VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve org/m").values


def test_every_path_of_the_flag_table_is_a_manifest_path() -> None:
    leaves = set(schema_leaves())
    for name, flag in flag_table("vllm").flags.items():
        assert (flag.use == "path") == (flag.path is not None), name
        assert (flag.use == "harmless") == (flag.why is not None), name
        if flag.path is not None:
            assert flag.path in leaves or flag.path.startswith("tokenizer.options."), name


TOKENIZER = {"tokenizer.files", "tokenizer.effective", "tokenizer.vocabulary", "tokenizer.special_tokens"}
OTHER_FILES: dict[str, set[str]] = {
    "--load-format pt": {"weights.checkpoint"},
    "--load-format mistral": {"weights.checkpoint"},
    "--load-format $F": {"weights.checkpoint", "engine.args"},
    "--load-format safetensors": set(),
    "--load-format AUTO": set(),
    "--config-format mistral": {"model.config"},
    "--config-format hf": set(),
    "--hf-config-path /cfg": {"model.config"},
    "--tokenizer-mode mistral": {*TOKENIZER, "chat_template"},
    "--tokenizer-mode slow": {*TOKENIZER, "chat_template"},
    "--tokenizer-mode my_own": {*TOKENIZER, "chat_template"},
    "--tokenizer-mode hf": set(),
    "--mm-encoder-fp8-scale-path /s.json": {"engine.args"},
    '--hf-overrides \'{"quantization_config_file":"/q.json"}\'': {"model.quantization"},
    "--generation-config /g": set(),
    "--served-model-name s": set(),
}


@pytest.mark.parametrize("flag", OTHER_FILES)
def test_what_is_read_from_files_that_no_capture_opens_is_unknown(flag: str) -> None:
    assert set(dict(read(f"vllm serve org/m {flag}").unknown)) - {"engine.version"} == OTHER_FILES[flag]


BOMB = "a" * 10_000_000
REFUSED = {
    "nothing": ("echo hello", "no launch line found"),
    "empty": ("", "no launch line found"),
    "two servers": ("vllm serve a & vllm serve b", "starts 2 servers"),
    "no model": ("vllm serve -tp 2", "names no model"),
    "an open quote": ("vllm serve org/m --x 'abc", "a quote (') is opened and never closed"),
    "an open substitution": ("vllm serve org/m --x $(abc", "a ( is opened and never closed"),
    "a trailing backslash": ("vllm serve org/m \\", "after a backslash"),
    "a NUL": ("vllm serve org/m \0", "holds a NUL"),
    "a here-document": ("vllm serve org/m <<EOF\nx\nEOF", "here-documents are not read"),
    "ANSI quoting": ("vllm serve org/m --x $'a'", "quoting is not read"),
    "ten megabytes": (f"vllm serve org/m --x {BOMB}", "is more than the"),
    "three shells": ("bash -c \"sh -c 'sh -c x'\"", "a shell starts a shell"),
    "a word for a number": ("vllm serve org/m -tp two", "--tensor-parallel-size needs an integer"),
    "a number too long": (f"vllm serve org/m -tp {'9' * 5000}", "--tensor-parallel-size needs an integer"),
    "no value": ("vllm serve org/m --dtype", "--dtype is given without a value"),
    "a value too many": ("vllm serve org/m --enforce-eager=true", "--enforce-eager takes no value"),
    "broken JSON": ("vllm serve org/m --hf-overrides '{\"a\":'", "not valid JSON"),
    "duplicate keys": ("""vllm serve org/m --hf-overrides '{"a":1,"a":2}'""", "stands twice"),
    "JSON without end": ("vllm serve org/m --hf-overrides '" + "[" * 100_000 + "'", "nested too deeply"),
    "dots without end": ("vllm serve org/m --hf-overrides" + ".a" * 40 + " 1", "nested too deeply"),
    "a text for an object": ("vllm serve org/m --kv-transfer-config x", "--kv-transfer-config is not a JSON object"),
    "a broken adapter": ("vllm serve org/m --lora-modules '{\"name\": 1}'", "--lora-modules takes name=path"),
    "no image": ("docker run -it", "names no image"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_line_that_cannot_be_read_gives_one_clear_error_quickly(name: str) -> None:
    line, message = REFUSED[name]
    started = time.process_time()
    with pytest.raises(InputError) as caught:
        read(line)
    assert message in caught.value.message
    assert caught.value.where is not None
    assert caught.value.where.startswith("launch.sh")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert time.process_time() - started < 3


BOMBS = {
    "aliases": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "duplicates": b"dtype: float16\ndtype: bfloat16\n",
    "a list": b"- a\n",
    "depth": b"a: " + b"[" * 10_000,
    "a tag": b"a: !!python/object/apply:os.system [id]\n",
    "binary": b"\xff\xfe\x00",
    "size": b"a: " + b"x" * 20_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_hostile_file_of_flags_gives_one_clear_error_quickly(name: str) -> None:
    started = time.process_time()
    with pytest.raises(InputError) as caught:
        read("vllm serve org/m --config c.yaml", files={"c.yaml": BOMBS[name]})
    assert "c.yaml" in str(caught.value)
    assert time.process_time() - started < 3


def test_nothing_in_a_line_is_run(tmp_path: Any) -> None:
    marker = tmp_path / "ran"
    found = read(f"vllm serve org/m --served-model-name $(touch {marker}) `touch {marker}` ; touch {marker}")
    assert "model.served_name" not in found.values
    assert not marker.exists()


SLOW = {
    "unknown flags": " ".join(f"--q{number}" for number in range(25_000)),
    "one flag often": "--abc " * 40_000,
    "tokens that are none": "--x " + "eyJaaaaaaaaa" * 20_000,
    "URLs that are none": "--x " + "://" * 80_000,
    "users that are none": "--x ://" + "@a" * 100_000,
    "keys that are none": "--x '" + "-----BEGIN A" * 20_000 + "'",
    "substitutions": "$(" * 100_000,
    "dotted keys": "--hf-overrides.a+ 1 " * 12_000,
    "many substitutions": "$(a) " * 50_000,
    "wrappers": "; " + "env A=1 nice " * 15_000,
    "commands": "; " + "a;" * 80_000,
    "shells": "; " + "bash x " * 30_000,
}


BEFORE_THE_SERVER = {"many substitutions", "wrappers", "commands"}


@pytest.mark.parametrize("name", SLOW)
def test_no_line_takes_long(name: str) -> None:
    started = time.process_time()
    with contextlib.suppress(InputError):
        if name in BEFORE_THE_SERVER:
            read(f"true {SLOW[name]}; vllm serve org/m")
        else:
            read(f"vllm serve org/m {SLOW[name]}")
    assert time.process_time() - started < 8
