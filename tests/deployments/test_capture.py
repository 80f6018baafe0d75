"""A deployment becomes a manifest: from a folder or a hub, with a launch line or without."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from kvgate.deployments.capture import Captured, capture
from kvgate.deployments.launch import parse_vllm
from kvgate.deployments.locating import Beside
from kvgate.deployments.write import write
from kvgate.rules.errors import InputError, UsageError
from kvgate.rules.manifest import Manifest, parse_manifest

from .conftest import MakeCheckpoint
from .hub_server import Hub, Repository, serving
from .made import write_adapter

IMAGE = "sha256:" + "a" * 64
LINE = f"docker run vllm/vllm-openai:v0.33.0@{IMAGE} /models/m -tp 2"
OFFLOAD = (
    """ --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"spec_name":"""
    """"TieringOffloadingSpec","cpu_bytes_to_use":1,"secondary_tiers":[{"type":"fs","root_dir":"/mnt/kv"}]}}'"""
)


def launched(line: str) -> Any:
    return [parse_vllm(line, source="launch.sh")]


def read(captured: Captured, folder: Path) -> Manifest:
    path = write(captured, folder)
    return parse_manifest(path.read_bytes(), str(path))


def reason(captured: Captured, path: str) -> str:
    return dict(captured.unknown)[path]


def test_a_folder_with_its_launch_line(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = make_checkpoint()
    told: set[str] = set()
    captured = capture(
        str(folder),
        launch=launched(LINE + OFFLOAD),
        sets={"engine.accelerator": "H200", "cache.ttl": "30d", "release.name": "support"},
        unsets=["cache.tenancy", "inputs"],
        snapshot_to=tmp_path / "snapshot",
        progress=lambda stage, *_: told.add(stage),
    )
    manifest = read(captured, tmp_path / "out")
    assert manifest.value("model.id") == "/models/m"
    assert manifest.value("model.config_class") == {"name": "LlamaConfig", "transformers": _version("transformers")}
    assert manifest.value("model.config")["dtype"] == "bfloat16"
    assert manifest.value("weights.checkpoint.kv_rule") == "1/llama"
    assert manifest.value("weights.checkpoint.tensors") == 12
    assert manifest.value("precision") == {"compute": "bfloat16", "kv_cache": "bfloat16", "kv_scales": None}
    assert manifest.value("parallelism.tensor") == 2
    assert manifest.value("engine.image") == IMAGE
    assert manifest.value("engine.version") == "0.33.0"
    assert manifest.value("engine.max_model_len") == 512
    assert manifest.value("cache.connector") == "vllm-offload-fs"
    assert manifest.value("cache.location") == "/mnt/kv"
    assert manifest.value("chat_template.source") == "tokenizer_config.json"
    assert manifest.value("tokenizer.vocabulary.size") == 260
    assert manifest.value("tokenizer.renderer") == {
        "engine": "vllm",
        "engine_version": "0.33.0",
        "transformers": None,
        "tokenizers": None,
    }
    assert manifest.value("adapters") == {}
    assert manifest.value("request_features") == []
    for path in ("inputs", "cache.tenancy", "cache.version", "engine.packages", "weights.served", "roles"):
        assert manifest.knows(path), path
        assert manifest.value(path) is None, path
    assert manifest.basis("weights.checkpoint.digest") == "computed"
    assert manifest.basis("tokenizer.effective") == "computed"
    assert manifest.basis("model.config") == "computed"
    assert manifest.basis("tokenizer.renderer.transformers") == "declared"
    assert manifest.basis("parallelism.tensor") == "declared"
    assert [path for path, _ in captured.unknown] == ["cache.cleanup_owner"]
    assert {"rendering conversations"} <= told


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


def test_the_same_deployment_gives_the_same_manifest(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = make_checkpoint()
    first, second = (
        read(capture(str(folder), launch=launched(LINE), snapshot_to=tmp_path / f"{name}.jsonl"), tmp_path / name)
        for name in "ab"
    )
    assert first.sha256 == second.sha256
    for name in ("weights.jsonl", "tokens.jsonl"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.usefixtures("quick")
def test_without_a_launch_line_what_it_would_say_is_unknown(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    captured = capture(str(make_checkpoint()), snapshot_to=tmp_path / "snapshot")
    manifest = read(captured, tmp_path / "out.yaml")
    for path in (
        "engine.name",
        "engine.args",
        "parallelism.tensor",
        "precision.compute",
        "adapters",
        "cache.connector",
        "request_features",
        "tokenizer.options",
        "tokenizer.renderer",
        "model.quantization",
        "weights.mutable",
    ):
        assert not manifest.knows(path), path
    assert reason(captured, "engine") == "no launch line was given (--from)"
    assert manifest.knows("model.config")
    assert manifest.knows("weights.checkpoint.digest")
    assert manifest.knows("chat_template.tree")
    assert manifest.value("tokenizer.snapshot.file") == "out.tokens.jsonl"
    assert manifest.value("weights.checkpoint.map.file") == "out.weights.jsonl"


@pytest.mark.usefixtures("quick")
def test_sections_declared_unset_are_at_the_engines_defaults(make_checkpoint: MakeCheckpoint) -> None:
    captured = capture(
        str(make_checkpoint()),
        unsets=[
            "engine",
            "precision",
            "parallelism",
            "adapters",
            "weights.mutable",
            "cache",
            "inputs",
            "model.quantization",
        ],
        sets={"engine.name": "vllm", "engine.version": "0.33.0", "parallelism.tensor": 4},
        renderer="here",
    )
    manifest = captured.manifest
    assert manifest["engine"]["version"] == "0.33.0"
    assert manifest["engine"]["args"] == {}
    assert manifest["engine"]["prefix_hash"] == {"algorithm": None, "seed": None}
    assert "image" not in manifest["engine"]
    assert manifest["precision"] == {"compute": "bfloat16", "kv_cache": "bfloat16", "kv_scales": None}
    assert manifest["parallelism"] == {
        "tensor": 4,
        "pipeline": 1,
        "data": 1,
        "expert": 1,
        "decode_context": 1,
        "prefill_context": 1,
    }
    assert manifest["adapters"] == []
    assert manifest["weights"]["mutable"] is False
    assert manifest["cache"]["connector"] is None
    assert manifest["cache"]["tenancy"] is None
    assert manifest["inputs"] is None
    assert manifest["tokenizer"]["renderer"]["transformers"] == _version("transformers")
    assert {path for path, _ in captured.unknown} == {
        "engine.image",
        "request_features",
        "roles",
        "model.served_name",
        "tokenizer.options",
    }


@pytest.mark.usefixtures("quick")
def test_what_the_operator_sets_stands_above_everything(make_checkpoint: MakeCheckpoint) -> None:
    captured = capture(
        str(make_checkpoint()),
        launch=launched("vllm serve /m -tp $TP"),
        sets={
            "parallelism.tensor": 8,
            "model.id": "org/m",
            "cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"},
            "inputs.system_prompts": {"a": IMAGE},
            "model.config.made_up": 1,
            "request_features": ["cache_salt"],
        },
    )
    assert captured.manifest["parallelism"]["tensor"] == 8
    assert captured.manifest["model"]["id"] == "org/m"
    assert captured.manifest["model"]["config"]["made_up"] == 1
    assert captured.manifest["inputs"]["system_prompts"] == {"a": IMAGE}
    assert captured.manifest["request_features"] == ["cache_salt"]
    assert not {"parallelism.tensor", "cache.tenancy"} & dict(captured.unknown).keys()


@pytest.mark.parametrize("path", ["made.up", "engine.nonsense", "schema", "provenance", ""])
def test_a_path_that_is_none_is_a_wrong_call_before_any_work(path: str) -> None:
    with pytest.raises(UsageError):
        capture("/nowhere", sets={path: 1})
    with pytest.raises(UsageError):
        capture("/nowhere", unsets=[path])


@pytest.mark.usefixtures("quick")
def test_a_set_value_of_the_wrong_type_is_refused(make_checkpoint: MakeCheckpoint) -> None:
    with pytest.raises(InputError, match=r"parallelism\.tensor"):
        capture(str(make_checkpoint()), sets={"parallelism.tensor": "two"})


@pytest.mark.usefixtures("quick")
def test_variables_in_the_line_leave_their_part_unknown(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    captured = capture(
        str(make_checkpoint()),
        launch=launched('vllm serve /m --hf-overrides "$O" --tokenizer $T --chat-template $C'),
        snapshot_to=tmp_path / "snapshot",
    )
    assert "config" not in captured.manifest["model"]
    assert "tokenizer" not in captured.manifest
    assert "chat_template" not in captured.manifest
    assert captured.tokens is None
    assert captured.manifest["weights"]["checkpoint"]["kv_rule"] == "1/all-tensors"
    assert reason(captured, "model.config") == "--hf-overrides is set to $O, which the shell fills in"


@pytest.mark.usefixtures("quick")
def test_overrides_reach_the_config(make_checkpoint: MakeCheckpoint) -> None:
    line = """vllm serve /m --hf-overrides '{"rope_parameters":{"rope_type":"linear","factor":2.0,"rope_theta":1.0}}'"""
    captured = capture(str(make_checkpoint()), launch=launched(line))
    assert captured.manifest["model"]["config"]["rope_parameters"]["factor"] == 2
    assert captured.manifest["engine"]["max_model_len"] == 1024


@pytest.mark.usefixtures("quick")
def test_the_template_of_the_line_and_of_the_call(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    folder = make_checkpoint()
    own = capture(str(folder), launch=launched("vllm serve /m")).manifest["chat_template"]
    literal = capture(str(folder), launch=launched("vllm serve /m --chat-template '{{ messages }}'"))
    assert literal.manifest["chat_template"]["digest"] != own["digest"]
    line = launched("vllm serve /m --chat-template examples/t.jinja")
    elsewhere = capture(str(folder), launch=line, snapshot_to=tmp_path / "elsewhere")
    assert "chat_template" not in elsewhere.manifest
    assert "examples/t.jinja" in reason(elsewhere, "chat_template")
    assert elsewhere.tokens is None
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}")
    given = capture(str(folder), launch=line, beside=Beside(chat_template=str(file)), snapshot_to=tmp_path / "given")
    assert given.manifest["chat_template"]["tree"] == literal.manifest["chat_template"]["tree"]
    assert given.tokens is not None


@pytest.mark.usefixtures("quick")
def test_adapters_are_fingerprinted_where_their_files_are(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    here = write_adapter(tmp_path / "here")
    line = f"vllm serve /m --enable-lora --lora-modules billing={here} law=org/law support=/elsewhere/s"
    captured = capture(str(make_checkpoint()), launch=launched(line), beside=Beside({"support": here, "more": here}))
    adapters = {entry["name"]: entry for entry in captured.manifest["adapters"]}
    assert adapters["billing"]["rank"] == 4
    assert adapters["billing"]["alpha"] == 8
    assert adapters["support"] == {**adapters["billing"], "name": "support", "path": "/elsewhere/s"}
    assert adapters["more"]["digest"] == adapters["billing"]["digest"]
    assert "digest" not in adapters["law"]
    assert "give --adapter law=FOLDER" in reason(captured, "adapters.law.digest")
    assert captured.manifest["request_features"] == ["lora"]


@pytest.mark.usefixtures("quick")
def test_adapters_that_come_while_serving_stay_unknown(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    line = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve /m --enable-lora --lora-modules a="
    line += str(write_adapter(tmp_path / "a"))
    captured = capture(str(make_checkpoint()), launch=launched(line))
    assert "adapters" not in captured.manifest
    assert "loaded while serving" in reason(captured, "adapters")


@pytest.mark.usefixtures("quick")
def test_scales_of_an_fp8_cache_come_from_the_checkpoint(make_checkpoint: MakeCheckpoint) -> None:
    line = "vllm serve /m --kv-cache-dtype fp8"
    scales = {"model.layers.0.self_attn.k_scale": b"\0\0\0\1", "model.layers.0.self_attn.v_scale": b"\0\0\0\2"}

    def found(name: str, tensors: dict[str, bytes]) -> Any:
        return capture(str(make_checkpoint(name, tensors)), launch=launched(line)).manifest["precision"]["kv_scales"]

    assert found("without", {}) is None
    assert re.fullmatch("blake3:[0-9a-f]{64}", found("with", scales))
    assert found("other", {**scales, "model.layers.0.self_attn.v_scale": b"\0\0\0\3"}) != found("again", scales)


@pytest.mark.usefixtures("quick")
def test_remote_code_counts_where_it_may_run(make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint(auto_map={"AutoModel": "modeling.M"})
    (folder / "modeling.py").write_text("a = 1")
    assert capture(str(folder), launch=launched("vllm serve /m")).manifest["model"]["code"] is None
    with_code = capture(str(folder), launch=launched("vllm serve /m --trust-remote-code")).manifest["model"]["code"]
    assert with_code is not None
    assert capture(str(folder)).manifest["model"]["code"] == with_code


@pytest.fixture
def hub(make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from functools import partial

    from kvgate.deployments import hub as module

    folder = make_checkpoint()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    commits = {"main": "b" * 40, "v1": "a" * 40, "tuned": "c" * 40}
    parents = {"b" * 40: "a" * 40, "c" * 40: "a" * 40}
    state = Hub({"org/m": Repository(dict.fromkeys(commits.values(), files), commits, parents=parents)})
    with serving(state):
        there = partial(module.obtain, endpoint=state.url, cache=tmp_path / "cache")
        monkeypatch.setattr("kvgate.deployments.capture.obtain", there)
        monkeypatch.setattr("kvgate.deployments.locating.obtain", there)
        monkeypatch.setattr("kvgate.deployments.locating.history", partial(module.history, endpoint=state.url))
        yield state


@pytest.mark.usefixtures("quick")
def test_a_repository_of_gguf_alone_is_not_fetched(hub: Hub) -> None:
    hub.repositories["org/q"] = Repository({"c" * 40: {"q.gguf": b"GGUF", "config.json": b"{}"}}, {"main": "c" * 40})
    with pytest.raises(InputError, match="no safetensors in this repository") as caught:
        capture("org/q")
    assert caught.value.where == f"org/q@{'c' * 40}"
    assert "capture it by its path" in (caught.value.hint or "")


@pytest.mark.usefixtures("quick", "hub")
def test_a_hub_repository() -> None:
    plain = capture("org/m@v1").manifest
    assert plain["model"]["id"] == "org/m"
    assert plain["model"]["revision"] == "a" * 40
    assert plain["weights"]["hub"]["repo"] == "org/m"
    assert plain["weights"]["hub"]["commit"] == "a" * 40
    assert "files" not in plain["weights"]["hub"], "nobody held what was hashed against them"
    assert plain["tokenizer"]["path"] == f"org/m@{'a' * 40}"
    floating = capture("org/m", launch=launched("vllm serve org/m")).manifest
    assert floating["model"]["revision"] is None  # what is served floats, whatever was fetched today
    assert floating["weights"]["hub"]["commit"] == "b" * 40
    pinned = capture("org/m", launch=launched(f"vllm serve org/m --revision {'a' * 40}")).manifest
    assert pinned["model"]["revision"] == pinned["weights"]["hub"]["commit"] == "a" * 40
    with pytest.raises(InputError, match="pins aaaaaaaaaaaa"):
        capture("org/m@main", launch=launched(f"vllm serve org/m --revision {'a' * 40}"))
    with pytest.raises(UsageError, match="two revisions"):
        capture("org/m@main", revision="v1")


ANOTHER = {
    "a branch": ("org/m@v1", "vllm serve org/m --revision main", "starts main, now bbbbbbbbbbbb"),
    "a tag": ("org/m@main", "vllm serve org/m --revision v1", "starts v1, now aaaaaaaaaaaa"),
    "the default branch": ("org/m@v1", "vllm serve org/m", "starts the default branch, now bbbbbbbbbbbb"),
    "a commit": (f"org/m@{'b' * 40}", "vllm serve org/m --revision tuned", "starts tuned, which never stood for it"),
    "a repository": ("org/m", "vllm serve org/n", "starts org/n, another repository"),
}


@pytest.mark.usefixtures("quick", "hub")
@pytest.mark.parametrize(("model", "line", "message"), ANOTHER.values(), ids=ANOTHER)
def test_a_checkpoint_that_the_launch_line_does_not_start_is_refused(model: str, line: str, message: str) -> None:
    """A line that was bumped while the capture command was not: the digests would be of what nobody serves."""
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        capture(model, launch=launched(line))
    assert (caught.value.where, bool(caught.value.hint)) == ("org/m", True)


@pytest.mark.usefixtures("quick", "hub")
@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("org/m@main", "vllm serve org/m"),
        ("org/m@main", f"vllm serve org/m --revision {'b' * 40}"),
        (f"org/m@{'a' * 40}", "vllm serve Org/M --revision v1"),
        (f"org/m@{'a' * 40}", "vllm serve org/m"),
        (f"org/m@{'a' * 40}", "vllm serve org/m --revision tuned"),
        ("org/m@v1", "vllm serve /models/m"),
        ("org/m@v1", "vllm serve /models/m --revision main"),
    ],
)
def test_two_names_of_one_commit_are_one_checkpoint(model: str, line: str) -> None:
    manifest = capture(model, launch=launched(line)).manifest
    assert manifest["weights"]["hub"]["commit"] == ("a" if "@v1" in model or "aaa" in model else "b") * 40


@pytest.mark.usefixtures("quick")
def test_a_tokenizer_from_another_repository(hub: Hub, make_checkpoint: MakeCheckpoint) -> None:
    captured = capture(
        str(make_checkpoint("local")), launch=launched("vllm serve /m --tokenizer org/m --tokenizer-revision v1")
    )
    assert captured.manifest["tokenizer"]["path"] == f"org/m@{'a' * 40}"
    assert not [path for _, path in hub.requests if path.endswith(".safetensors")]


def test_bad_checkpoints_give_one_clear_error(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        capture("/nowhere/at/all")
    with pytest.raises(InputError, match="holds no config"):
        capture(str(tmp_path))
    pickle = make_checkpoint("pickle")
    (pickle / "model.safetensors").rename(pickle / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickle"):
        capture(str(pickle))
    with pytest.raises(UsageError, match="a revision was given"):
        capture(str(make_checkpoint("folder")), revision="main")
    with pytest.raises(InputError, match="more than one server"):
        capture(str(make_checkpoint("two")), launch=launched("vllm serve a") + launched("vllm serve b"))


def _draft_line(draft: str, **more: str) -> str:
    config = {"method": "eagle3", "model": draft, "num_speculative_tokens": 3, **more}
    return f"vllm serve /m --speculative-config '{json.dumps(config)}'"


@pytest.mark.usefixtures("quick")
def test_a_draft_model_counts_by_its_content(make_checkpoint: MakeCheckpoint) -> None:
    folder = str(make_checkpoint("target"))
    draft = make_checkpoint("draft")

    def found(line: str) -> Any:
        return capture(folder, launch=launched(line)).manifest["engine"].get("speculative", "unknown")

    first = found(_draft_line(str(draft)))
    assert first["num_speculative_tokens"] == 3
    assert re.fullmatch("blake3:[0-9a-f]{64}", first["content"]["weights"])
    (draft / "config.json").write_text((draft / "config.json").read_text().replace("512", "1024"))
    changed = found(_draft_line(str(draft)))
    assert changed["content"]["weights"] == first["content"]["weights"]
    assert changed["content"]["config"] != first["content"]["config"]
    masks = []
    for mask in (b"one", b"other"):
        (draft / "mask_embedding.pt").write_bytes(mask)
        masks.append(found(_draft_line(str(draft)))["content"])
    assert masks[0]["weights"] == masks[1]["weights"] == first["content"]["weights"]
    assert len({"", masks[0]["pickle"], masks[1]["pickle"]}) == 3
    (draft / "model.safetensors").write_bytes(b"broken")
    assert found(_draft_line(str(draft))) == "unknown"
    for draft_name in ("/models/eagle", "org/eagle"):
        assert found(_draft_line(draft_name)) == "unknown"
        assert found(_draft_line(draft_name, revision="main")) == "unknown"
    assert found(_draft_line("/models/eagle", revision="0" * 40)) == "unknown"
    assert found(_draft_line("org/eagle", revision="0" * 40))["revision"] == "0" * 40
    assert found("vllm serve /m --spec-model org/eagle") == "unknown"
    for own in ("vllm serve /m --spec-method ngram --spec-model '[ngram]'", "vllm serve /m --spec-model /m"):
        assert "content" not in found(own)


@pytest.mark.usefixtures("quick")
def test_a_config_that_is_read_elsewhere_leaves_what_follows_from_it_unknown(make_checkpoint: MakeCheckpoint) -> None:
    captured = capture(str(make_checkpoint()), launch=launched(f"{LINE} --hf-config-path /cfg"))
    for path in ("model.config", "model.quantization", "engine.max_model_len", "precision.compute"):
        assert "--hf-config-path /cfg" in reason(captured, path)
    assert "precision" not in captured.manifest or "compute" not in captured.manifest["precision"]
    assert captured.manifest["weights"]["checkpoint"]["kv_rule"] == "1/all-tensors"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["tekken.json", "tokenizer.model.v3"])
def test_mistrals_own_tokenizer_is_not_the_one_that_is_examined(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, name: str
) -> None:
    folder = make_checkpoint()
    (folder / name).write_text("{}")
    captured = capture(str(folder), launch=launched(LINE), snapshot_to=tmp_path / "snapshot")
    assert captured.tokens is None
    assert captured.manifest["tokenizer"].keys() <= {"path", "options", "renderer"}
    assert "chat_template" not in captured.manifest
    assert name in reason(captured, "tokenizer.effective")


@pytest.mark.usefixtures("quick")
def test_a_tokenizer_of_another_mode_is_not_examined(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    line = launched(f"{LINE} --tokenizer-mode mistral")
    captured = capture(str(make_checkpoint()), launch=line, snapshot_to=tmp_path / "snapshot")
    assert captured.tokens is None
    assert "effective" not in captured.manifest["tokenizer"]
    assert "--tokenizer-mode mistral" in reason(captured, "chat_template")


@pytest.mark.usefixtures("quick")
def test_mistrals_own_weights_and_config_beside_the_usual_ones(make_checkpoint: MakeCheckpoint) -> None:
    folder = make_checkpoint()
    (folder / "params.json").write_text("{}")
    assert "config" in capture(str(folder), launch=launched(LINE)).manifest["model"]
    header = json.dumps({"tok_embeddings.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "consolidated.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"abcd")
    captured = capture(str(folder), launch=launched(LINE))
    assert "config" not in captured.manifest["model"]
    assert "checkpoint" not in captured.manifest["weights"]
    assert "params.json" in reason(captured, "precision.compute")


@pytest.mark.usefixtures("quick")
def test_code_before_the_server_leaves_its_packages_and_renderer_unknown(make_checkpoint: MakeCheckpoint) -> None:
    line = f"docker run --entrypoint bash vllm/vllm-openai:v0.33.0@{IMAGE} -c 'pip install x; vllm serve /m'"
    captured = capture(str(make_checkpoint()), launch=launched(line))
    assert not {"image", "packages", "version"} & captured.manifest["engine"].keys()
    assert "renderer" not in captured.manifest["tokenizer"]
    assert "`pip`" in reason(captured, "tokenizer.renderer")
    said = {"engine.image": IMAGE, "engine.packages": "blake3:" + "0" * 64}
    told = capture(str(make_checkpoint("b")), launch=launched(line), sets=said, renderer="here").manifest
    assert told["engine"]["image"] == IMAGE
    assert told["tokenizer"]["renderer"]["transformers"] == _version("transformers")


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a namespace": ({"cache.namespace": "kvg1-x"}, 'is declared to be "kvg1-x", but the launch line says "/mnt/kv"'),
    "inside a section": ({"cache": {"location": "/mnt/other"}}, 'the launch line says "/mnt/kv"'),
    "a number": ({"parallelism.tensor": 8}, "is declared to be 8, but the launch line says 2"),
    "to be unset": ({"cache.connector": None}, 'is declared to be null, but the launch line says "vllm-offload-fs"'),
    "an image": ({"engine.image": "sha256:" + "b" * 64}, IMAGE),
    "an argument": ({"engine.args.enforce-eager": False}, "the launch line says true"),
    "with a credential": ({"cache.location": "redis://:p/w0rd@c"}, "is declared to be another value"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_contradicts_the_launch_line_is_refused_before_any_work(name: str) -> None:
    sets, message = CONTRADICTIONS[name]
    with pytest.raises(UsageError) as caught:
        capture("/nowhere", launch=launched(f"{LINE}{OFFLOAD} --enforce-eager"), sets=sets)
    assert message in str(caught.value)
    assert "w0rd" not in str(caught.value)
    assert "change launch.sh" in str(caught.value)


@pytest.mark.usefixtures("quick")
def test_what_the_line_says_too_or_does_not_say_may_be_declared(make_checkpoint: MakeCheckpoint) -> None:
    sets = {
        "cache.location": "/mnt/kv",
        "engine.block_size": 16,
        "engine.args.made-up": 1,
        "request_features": ["cache_salt"],
        "precision.compute": "float16",
        "weights.mutable": True,
    }
    captured = capture(str(make_checkpoint()), launch=launched(f"{LINE}{OFFLOAD} --enforce-eager"), sets=sets)
    assert captured.manifest["engine"]["args"] == {"enforce-eager": True, "made-up": 1}
    assert captured.manifest["precision"]["compute"] == "float16"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("tenancy", "sets", "carried"),
    [
        ({"boundary": "tenant", "carried_by": "cache_salt"}, {}, ["cache_salt"]),
        ({"boundary": "tenant", "carried_by": "cache_salt"}, {"request_features": []}, []),
        ({"boundary": "tenant", "carried_by": "account"}, {}, []),
        (None, {}, []),
    ],
)
def test_requests_carry_the_declared_boundary_unless_the_operator_says_otherwise(
    make_checkpoint: MakeCheckpoint, tenancy: Any, sets: dict[str, Any], carried: list[str]
) -> None:
    captured = capture(
        str(make_checkpoint()), launch=launched("vllm serve /m"), sets={"cache.tenancy": tenancy, **sets}
    )
    assert captured.manifest["request_features"] == carried


@pytest.mark.usefixtures("quick")
def test_the_engine_that_is_installed_here_says_its_version(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(make_checkpoint())
    assert "version" not in capture(folder, launch=launched("vllm serve /m"), renderer="here").manifest["engine"]
    installed = tmp_path / "vllm-0.33.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    manifest = capture(folder, launch=launched("vllm serve /m"), renderer="here").manifest
    assert manifest["engine"]["version"] == "0.33.0"
    assert manifest["tokenizer"]["renderer"]["engine_version"] == "0.33.0"
    elsewhere = capture(folder, launch=launched("vllm serve /m")).manifest
    assert "version" not in elsewhere["engine"]


TAGGED = "docker run lmcache/vllm-openai:{} vllm serve /m"


@pytest.mark.usefixtures("quick")
def test_an_image_that_is_named_is_not_declared_away(make_checkpoint: MakeCheckpoint) -> None:
    """Null says that no image serves; two that are only known by their tags would be equal then."""
    folder, digest = str(make_checkpoint()), f"sha256:{'5' * 64}"
    for declared in (
        {"sets": {"engine.image": None}},
        {"sets": {"engine": {"image": None}}},
        {"unsets": ["engine.image"]},
    ):
        with pytest.raises(UsageError, match="names lmcache/vllm-openai:v1") as caught:
            capture(folder, launch=launched(TAGGED.format("v1")), **declared)
        assert "sha256:DIGEST" in (caught.value.hint or "")
    assert (
        capture(folder, launch=launched("vllm serve /m"), sets={"engine.image": None}).manifest["engine"]["image"]
        is None
    )
    plain = capture(folder, launch=launched(TAGGED.format("v1")), unsets=["engine"]).manifest["engine"]
    assert "image" not in plain
    pinned = capture(folder, launch=launched(TAGGED.format("v1")), sets={"engine.image": digest}).manifest["engine"]
    assert pinned["image"] == digest


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("connector", ["LMCacheMPConnector", "LMCacheConnectorV1"])
def test_the_engines_image_does_not_say_that_a_connector_has_no_version(
    connector: str, make_checkpoint: MakeCheckpoint
) -> None:
    """Its server runs in another image, and a profile speaks for versions: what nobody said stays unknown."""
    transfer = json.dumps({"kv_connector": connector, "kv_role": "kv_both"})
    line = f"docker run vllm/vllm-openai:v0.33.0@sha256:{'5' * 64} --model /m --kv-transfer-config '{transfer}'"
    captured = capture(str(make_checkpoint()), launch=launched(line))
    assert "version" not in captured.manifest["cache"]
    assert "cache.version" in {path for path, _ in captured.unknown}
