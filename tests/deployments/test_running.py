"""What a running server says of itself: as facts, against the files, and in a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvgate.deployments.capture import capture
from kvgate.deployments.launch import LaunchFile, parse_vllm, read_launch, resolve
from kvgate.deployments.launch.pools import as_pools
from kvgate.deployments.running import ask_running, running_fields
from kvgate.deployments.running_contradictions import contradictions_with
from kvgate.deployments.write import write
from kvgate.rules.errors import InputError
from kvgate.rules.manifest import parse_manifest, schema_leaves
from tests.corpora.engine_server import Engine, serving

from .conftest import MakeCheckpoint
from .running_server import (
    SGLANG_LINE,
    VLLM_LINE,
    Answers,
    sglang_answers,
    telling,
    vllm_answers,
)
from .test_capture import launched

pytestmark = pytest.mark.usefixtures("quick")

INFO = "/server_info?config_format=json"
CONFIG = f"{INFO}: vllm_config"
Serve = Callable[[Mapping[str, Any]], str]
Change = Callable[[Answers], object]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda answers: stack.enter_context(serving(Engine(telling(answers)))).url


@pytest.fixture
def checkpoint(make_checkpoint: MakeCheckpoint) -> Path:
    return make_checkpoint()


def _sglang() -> Any:
    return read_launch([LaunchFile("serve.sh", SGLANG_LINE.encode())])


def _at(name: str, value: Any) -> Change:
    """Change one field of vLLM's server info, below the configuration."""
    *sections, last = name.split(".")

    def change(answers: Answers) -> None:
        target = answers[INFO]["vllm_config"]
        for section in sections:
            target = target[section]
        target[last] = value

    return change


def _sglang_at(name: str, value: Any) -> Change:
    return lambda answers: answers["/server_info"].__setitem__(name, value)


def _card(**fields: Any) -> Change:
    return lambda answers: answers["/v1/models"]["data"][0].update(fields)


def test_what_a_vllm_tells(serve: Serve) -> None:
    url = serve(vllm_answers())
    running = ask_running(f"{url}/v1")
    assert {path: said.value for path, said in running.settings.items()} == {
        "engine.name": "vllm",
        "engine.version": "0.33.0",
        "precision.compute": "bfloat16",
        "engine.max_model_len": 512,
        "engine.block_size": 16,
        "precision.kv_cache": "fp8_e4m3",
        "engine.prefix_hash.algorithm": "sha256_cbor",
        "parallelism.tensor": 2,
        "parallelism.pipeline": 1,
        "parallelism.decode_context": 1,
        "parallelism.prefill_context": 1,
        "cache.connector": "vllm-offload-fs",
        "cache.location": "/kv/support",
    }
    told = running.settings["parallelism.tensor"].where
    assert told == f"{url}{CONFIG}.parallel_config.tensor_parallel_size"
    assert running.model is not None
    assert running.names is not None
    assert running.adapters is not None
    assert (running.model.value, running.names.value, running.adapters.value) == (
        *("/models/support", ["support"]),
        ["billing"],
    )
    assert running.silent == ()


def test_what_a_production_vllm_tells_whose_development_mode_is_off(serve: Serve) -> None:
    answers = vllm_answers()
    del answers[INFO]
    url = serve(answers)
    running = ask_running(url)
    assert running.silent == ("/server_info",)
    assert running.overrides is None
    assert "parallelism.tensor" not in running.settings
    said = running.settings["precision.kv_cache"]
    assert (said.value, said.where) == ("fp8_e4m3", f"{url}/metrics: vllm:cache_config_info{{cache_dtype}}")


def test_what_an_sglang_tells(serve: Serve) -> None:
    running = ask_running(serve(sglang_answers()))
    told = {path: said.value for path, said in running.settings.items()}
    assert told["cache.connector"] == "sglang-hicache-file"
    assert (told["engine.version"], told["parallelism.tensor"], told["engine.block_size"]) == ("0.5.23", 2, 64)
    assert "given" not in repr(running)


@pytest.mark.parametrize("line", ["vllm", "sglang"])
def test_what_agrees_says_nothing(serve: Serve, checkpoint: Path, line: str) -> None:
    """No word of a contradiction, and nothing of what was told gets in the way of a capture without the server."""
    launch, answers = (launched(VLLM_LINE), vllm_answers()) if line == "vllm" else (_sglang(), sglang_answers())
    how: Any = {"launch": launch, "sets": {"engine.version": answers["/version"]["version"]} if line == "vllm" else {}}
    asked, alone = capture(str(checkpoint), endpoint=serve(answers), **how), capture(str(checkpoint), **how)
    notes = [note for note in asked.notes if note not in alone.notes]
    assert [note.partition(":")[0] for note in notes] == ["what weights the running engine holds was not told"]
    if line == "vllm":
        assert asked.manifest == alone.manifest
    else:
        assert asked.manifest["engine"].pop("version") == "0.5.23"  # which no line of SGLang's says
        assert asked.manifest["tokenizer"]["renderer"].pop("engine_version") == "0.5.23"
        assert {**asked.manifest, "provenance": None} == {**alone.manifest, "provenance": None}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            _at("parallel_config.tensor_parallel_size", 4),
            rf"parallelism\.tensor is 2 in launch\.sh: --tensor-parallel-size, but 4 at URL{CONFIG}\.parallel_config",
        ),
        (_at("model_config.dtype", "torch.float16"), r"precision\.compute is bfloat16 in launch\.sh: --dtype, but f"),
        (
            _at("cache_config.cache_dtype", "fp8_e5m2"),
            r"precision\.kv_cache is fp8_e4m3 in launch\.sh: --kv-cache-dtype, but fp8_e5m2 at URL/server_info",
        ),
        (
            _at("cache_config.cache_dtype", "auto"),
            r"precision\.kv_cache is fp8_e4m3 in .*--kv-cache-dtype, but auto",
        ),
        (_at("model_config.hf_overrides", {}), r"model\.config is \{.*\} in launch\.sh: --hf-overrides, but none at"),
        (
            _at("model_config.hf_overrides", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
            r'but \{"rope_parameters":\{"factor":4,"rope_type":"linear"\}\} at URL',
        ),
        (_at("kv_transfer_config", None), r"cache\.connector is vllm-offload-fs in launch\.sh: --kv-t.*, but none at"),
        (
            _at(
                "kv_transfer_config.kv_connector_extra_config.secondary_tiers", [{"type": "fs", "root_dir": "/kv/old"}]
            ),
            r"cache\.location is /kv/support in launch\.sh: --kv-transfer-config, but /kv/old at URL",
        ),
        (_at("cache_config.block_size", 24), r"engine\.block_size is 16 in launch\.sh: --block-size, but 24 at"),
        (_at("model_config.revision", "b" * 40), None),  # what a line leaves open contradicts nothing
        (_card(id="other"), r'model\.served_name is support in launch\.sh: --served-model-name, but \["other"\] at'),
        (
            _card(root="/models/llama"),
            r"model\.id is /models/support in launch\.sh, but /models/llama at URL/v1/models",
        ),
        (
            lambda answers: answers["/v1/models"]["data"].pop(),
            r'adapters is \["billing"\] in launch\.sh: --lora-modules, but none at URL/v1/models: data\[\]\.parent',
        ),
    ],
)
def test_vllm_contradicts_the_files(serve: Serve, checkpoint: Path, change: Change, said: str | None) -> None:
    answers = vllm_answers()
    change(answers)
    url = serve(answers)
    if said is None:
        assert capture(str(checkpoint), launch=launched(VLLM_LINE), endpoint=url)
        return
    expected = said.replace("URL", url).replace("?", r"\?")
    with pytest.raises(InputError, match=rf"^--endpoint: .*{expected}") as caught:
        capture(str(checkpoint), launch=launched(VLLM_LINE), endpoint=url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            _sglang_at("tp_size", 4),
            r"parallelism\.tensor is 2 in serve\.sh: --tp-size, but 4 at URL/server_info: tp_size",
        ),
        (
            _sglang_at("hicache_storage_backend", None),
            r"cache\.connector is sglang-hicache-file in serve\.sh: --hicache",
        ),
        (_sglang_at("hicache_storage_backend", "nixl"), r"but sglang-hicache-nixl at URL/server_info: hicache_storage"),
        (
            _sglang_at("json_model_override_args", '{"rope_theta": 5}'),
            r'model\.config is none in .*, but \{"rope_theta',
        ),
        (
            lambda answers: answers["/model_info"].update(model_path="/models/b"),
            r"model\.id is /models/support in serve\.sh, but /models/b at URL/model_info: model_path",
        ),
    ],
)
def test_sglang_contradicts_the_files(serve: Serve, checkpoint: Path, change: Change, said: str) -> None:
    answers = sglang_answers()
    change(answers)
    url = serve(answers)
    with pytest.raises(InputError, match=said.replace("URL", url)):
        capture(str(checkpoint), launch=_sglang(), endpoint=url)


def test_an_older_sglang_has_other_names_for_its_answers(serve: Serve) -> None:
    answers = sglang_answers()
    for name in ("model_info", "server_info"):
        answers[f"/get_{name}"] = answers.pop(f"/{name}")
    running = ask_running(serve(answers))
    assert running.settings["parallelism.tensor"].value == 2
    assert running.model is not None
    assert running.model.value == "/models/support"


def test_every_contradiction_is_told_at_once(serve: Serve, checkpoint: Path) -> None:
    answers = vllm_answers()
    for name, value in {
        "pipeline_parallel_size": 2,
        "tensor_parallel_size": 8,
        "decode_context_parallel_size": 2,
    }.items():
        _at(f"parallel_config.{name}", value)(answers)
    with pytest.raises(InputError) as caught:
        capture(str(checkpoint), launch=launched(VLLM_LINE), endpoint=serve(answers))
    assert [
        part in str(caught.value)
        for part in ("parallelism.tensor", "parallelism.pipeline", "parallelism.decode_context")
    ] == ([True] * 3)


def test_a_default_type_that_was_told_by_its_name(serve: Serve, checkpoint: Path) -> None:
    """vLLM makes `auto` of bfloat16 for DeepSeek V3.2 (vllm/model_executor/models/config.py, 0.32.0)."""
    answers = vllm_answers()
    _at("cache_config.cache_dtype", "auto")(answers)
    line = VLLM_LINE.replace("--kv-cache-dtype fp8_e4m3", "--kv-cache-dtype bfloat16")
    captured = capture(str(checkpoint), launch=launched(line), endpoint=serve(answers))
    assert captured.manifest["precision"]["kv_cache"] == "bfloat16"


def test_a_type_that_the_files_leave_to_the_engine(serve: Serve, checkpoint: Path) -> None:
    """By the checkpoint's default it is bfloat16; a server that holds FP8 was started by another line."""
    line = VLLM_LINE.replace(" --kv-cache-dtype fp8_e4m3", "")
    answers = vllm_answers()
    url = serve(answers)
    said = rf"precision\.kv_cache is bfloat16 in launch\.sh, by the engine's default, but fp8_e4m3 at {url}"
    with pytest.raises(InputError, match=said):
        capture(str(checkpoint), launch=launched(line), endpoint=url)


@pytest.mark.parametrize(
    ("line", "change", "path", "value"),
    [
        # An old device has no bfloat16; nobody is told so but by the server.
        (" --dtype bfloat16", _at("model_config.dtype", "torch.float16"), "precision.compute", "float16"),
        (" --max-model-len 512", lambda _: None, "engine.max_model_len", 512),
        ("", _at("cache_config.block_size", 64), "engine.block_size", 64),  # raised for a kernel
        ("", _at("cache_config.block_size", 8), "engine.block_size", 8),  # the smallest of several groups
        ("", _at("cache_config.cache_dtype", "fp8_e4m3_x"), "precision.kv_cache", "fp8_e4m3_x"),
    ],
)
def test_what_the_engine_settles_is_taken_from_it(
    serve: Serve, checkpoint: Path, tmp_path: Path, line: str, change: Change, path: str, value: Any
) -> None:
    answers = vllm_answers()
    change(answers)
    captured = capture(str(checkpoint), launch=launched(VLLM_LINE.replace(line, "")), endpoint=serve(answers))
    file = write(captured, tmp_path / "out")
    manifest = parse_manifest(file.read_bytes(), file.name)
    assert (manifest.value(path), manifest.basis(path)) == (value, "observed")
    assert len([note for note in captured.notes if note.startswith(path)]) == 1
    if path == "precision.compute":
        assert manifest.value("precision.kv_cache") == "fp8_e4m3"


def test_a_type_that_follows_another_follows_what_was_observed(serve: Serve, checkpoint: Path) -> None:
    line = VLLM_LINE.replace(" --dtype bfloat16", "").replace(" --kv-cache-dtype fp8_e4m3", "")
    answers = vllm_answers()
    _at("model_config.dtype", "torch.float16")(answers)
    _at("cache_config.cache_dtype", "auto")(answers)
    answers["/metrics"] = ""
    captured = capture(str(checkpoint), launch=launched(line), endpoint=serve(answers))
    assert captured.manifest["precision"] == {"compute": "float16", "kv_cache": "float16", "kv_scales": None}


def test_what_the_files_do_not_tell_is_taken_from_the_server(serve: Serve, checkpoint: Path, tmp_path: Path) -> None:
    """A latest image, and parallel sizes from a variable."""
    line = f"docker run vllm/vllm-openai:latest --model {VLLM_LINE.removeprefix('vllm serve ')}"
    line = line.replace("--tensor-parallel-size 2", "--tensor-parallel-size $TP").replace(
        "docker run", "docker run -v $A:/kv"
    )
    captured = capture(str(checkpoint), launch=launched(line), endpoint=serve(vllm_answers()))
    file = write(captured, tmp_path / "out")
    manifest = parse_manifest(file.read_bytes(), file.name)
    for path, value in {"engine.version": "0.33.0", "parallelism.tensor": 2}.items():
        assert (manifest.value(path), manifest.basis(path)) == (value, "observed")
    assert not manifest.knows("engine.image")
    assert not manifest.knows("cache.location")


def test_without_files_the_server_speaks_for_itself(serve: Serve, checkpoint: Path, tmp_path: Path) -> None:
    captured = capture(str(checkpoint), endpoint=serve(vllm_answers()))
    file = write(captured, tmp_path / "out")
    manifest = parse_manifest(file.read_bytes(), file.name)
    for path, value in {"engine.version": "0.33.0", "parallelism.tensor": 2, "model.served_name": "support"}.items():
        assert (manifest.value(path), manifest.basis(path)) == (value, "observed")
    assert not manifest.knows("engine.args")
    assert manifest.value("cache.connector") == "vllm-offload-fs"
    assert not manifest.knows("cache.location")  # of a folder the server knows its own path, and no mount
    assert not manifest.knows("cache.tenancy")


def test_one_of_several_pools(serve: Serve) -> None:
    """Any of the pools may be the one that answers; what none of them is started with contradicts."""
    lines = [parse_vllm(VLLM_LINE.replace("size 2", f"size {size}"), source="serve.sh") for size in (4, 2)]
    facts = as_pools({"decode": lines[0], "prefill": lines[1]}, "serve.sh")
    settled = resolve(facts, {"model_type": "llama", "dtype": "bfloat16"})
    for size, contradicts in ((2, False), (4, False), (8, True)):
        answers = vllm_answers()
        _at("parallel_config.tensor_parallel_size", size)(answers)
        found = contradictions_with(ask_running(serve(answers)).settings, settled, facts, {})
        assert [one.path for one in found] == (["parallelism.tensor"] if contradicts else [])


@pytest.mark.parametrize("sets", [{"parallelism.tensor": 4}, {"parallelism": {"tensor": 4}}])
def test_what_is_declared_is_compared_as_well(serve: Serve, checkpoint: Path, sets: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"parallelism\.tensor is 4 in --set, but 2 at http"):
        capture(str(checkpoint), sets=sets, endpoint=serve(vllm_answers()))


def test_what_was_not_compared_is_said(serve: Serve, checkpoint: Path) -> None:
    answers = vllm_answers()
    del answers[INFO]
    captured = capture(str(checkpoint), launch=launched(VLLM_LINE), endpoint=serve(answers))
    (note,) = [note for note in captured.notes if "was not compared" in note]
    assert note.startswith(
        "the running server does not tell, so that it was not compared (no answer from /server_info)"
    )
    assert {"cache.connector", "parallelism.tensor", "precision.compute"} <= set(note.rpartition(": ")[2].split(", "))
    assert "precision.kv_cache" not in note


@pytest.mark.parametrize(
    "answers",
    [
        {"/v1/models": {"data": "none"}, INFO: [], "/metrics": "vllm:cache_config_info{block_size=\n" * 9},
        {"/v1/models": {"data": [None, {"id": 7}, {"id": "x\ny"}]}, INFO: {"vllm_config": {"model_config": "text"}}},
        {
            INFO: {
                "vllm_config": {"parallel_config": {"tensor_parallel_size": True}, "cache_config": {"block_size": -1}}
            }
        },
        {INFO: {"vllm_config": {"parallel_config": {"tensor_parallel_size": "9" * 400}, "cache_config": []}}},
        {"/metrics": 'vllm:cache_config_info{block_size="' + "9" * (1 << 17) + '"} 1\n'},
        {INFO: (500, {"error": "no"}), "/v1/models": (503, "busy"), "/metrics": b"<html>"},
    ],
)
def test_answers_that_are_none_tell_nothing(serve: Serve, answers: Answers) -> None:
    running = ask_running(serve({"/version": {"version": "0.33.0"}, **answers}))
    assert set(running.settings) - {"cache.connector"} == {"engine.name", "engine.version"}
    assert running.names is None


def test_another_engine_that_has_a_version_is_no_vllm(serve: Serve) -> None:
    """trtllm-serve answers at /version and lists models as its own."""
    answers = vllm_answers()
    _card(owned_by="tensorrt_llm")(answers)
    url = serve(answers)
    with pytest.raises(InputError, match=rf"^{url}/v1/models: neither vLLM nor SGLang answers here, but tensorrt_llm"):
        ask_running(url)


def test_what_a_server_says_without_end_is_cut(serve: Serve, checkpoint: Path) -> None:
    answers = vllm_answers()
    answers["/v1/models"]["data"] += [{"id": f"adapter-{n}", "parent": "support"} for n in range(2000)]
    with pytest.raises(InputError, match=r"adapters is .*\.\.\. \([0-9,]+ characters\) at http") as caught:
        capture(str(checkpoint), launch=launched(VLLM_LINE), endpoint=serve(answers))
    assert len(str(caught.value)) < 1000


def test_credentials_that_a_server_tells_get_nowhere(serve: Serve, checkpoint: Path) -> None:
    answers = vllm_answers()
    secret = "hf_abcdefghijklmnopqrst"
    _at("model_config.hf_overrides", {"token": secret})(answers)
    _card(id=secret)(answers)
    with pytest.raises(InputError) as caught:
        capture(str(checkpoint), launch=launched(VLLM_LINE), endpoint=serve(answers))
    assert secret not in str(caught.value)


def test_the_table_names_manifest_paths() -> None:
    table = running_fields()
    leaves = set(schema_leaves())
    assert {
        path for engine in table.engines.values() for path in (*engine.fields.values(), *engine.labels.values())
    } <= (leaves)
    assert set(table.resolved) <= leaves
