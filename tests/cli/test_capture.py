"""``kvgate capture``, ``fingerprint`` and ``corpus``: real files, and the wiring in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

from kvgate.deployments.locating import Beside
from tests.cli.conftest import Run, in_process
from tests.weights.builders import Tensor, llama, words, write

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
SERVE = """\
docker run -e PYTHONHASHSEED=0 -e HF_TOKEN=hf_verysecretvalue \\
  vllm/vllm-openai:v0.33.0@sha256:{image} --model /models/m --served-model-name support \\
  --attention-backend FLASH_ATTN --block-size 16 --max-model-len 128 --api-key hunter2hunter2 \\
  --kv-transfer-config '{{"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}}'
"""
DECLARED = """\
capture:
  set:
    engine.accelerator: H200
    cache.version: "0.5.6"
    cache.tenancy: null
    cache.ttl: 30d
    cache.cleanup_owner: team-serving
    inputs: null
  unset: [cache, engine.prefix_hash]
"""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder: one layer, a word-level tokenizer, a template."""
    folder = write(tmp_path_factory.mktemp("model"), llama(1))
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "dtype": "bfloat16",
                "hidden_size": 8,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "vocab_size": 4,
                "max_position_embeddings": 512,
            }
        )
    )
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "user": 1, ":": 2, "hello": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "chat_template": TEMPLATE})
    )
    return folder


@pytest.fixture(scope="session")
def captures(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the same deployment was captured twice."""
    folder = tmp_path_factory.mktemp("captures")
    (folder / "serve.sh").write_text(SERVE.format(image="5" * 64))
    (folder / "kvgate.yaml").write_text(DECLARED)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("one", "two.yaml"):
            ran = in_process("capture", str(checkpoint), "--from", "serve.sh", "--renderer", "here", "-o", name)
            assert ran.code == 0, ran.err
    return folder


@pytest.fixture
def captured(captures: Path, tmp_path: Path) -> Path:
    """The same deployment captured twice; the folder is ``tmp_path``."""
    return shutil.copytree(captures, tmp_path, dirs_exist_ok=True)


def test_the_same_deployment_captured_twice_is_reuse(run: Run, captured: Path, checkpoint: Path) -> None:
    assert sorted(path.name for path in captured.iterdir()) == [
        *("kvgate.yaml", "one", "serve.sh", "two.tokens.jsonl", "two.weights.jsonl", "two.yaml")
    ]
    ran = run("check", "one", "two.yaml")
    assert (ran.code, ran.err) == (0, "")
    assert "NOTHING DIFFERS" in ran.out
    text = (captured / "two.yaml").read_text()
    assert "hunter2" not in text
    assert "verysecret" not in text
    manifest = yaml.safe_load(text)
    assert manifest["cache"]["cleanup_owner"] == "team-serving"
    assert manifest["engine"]["accelerator"] == "H200"

    compared = run("corpus", "compare", "one", "two.yaml", "--block-size", "4", "-o", "json")
    figures = json.loads(compared.out)
    assert (compared.code, figures["divergent"]) == (11 if figures["unexamined"]["count"] else 0, 0)
    assert figures["blocks"]["shared"] == figures["blocks"]["old"] > 0

    fingerprint = json.loads(run("fingerprint", str(checkpoint), "-o", "json").out)
    assert fingerprint["digest"] == manifest["weights"]["checkpoint"]["digest"]
    assert run("fingerprint", str(checkpoint), "-q").out == f"{fingerprint['digest']}\n"


def test_one_changed_tensor_and_one_changed_template(run: Run, captured: Path, checkpoint: Path) -> None:
    changed = captured / "changed"
    shutil.copytree(checkpoint, changed)
    tensors = llama(1)
    tensors["model.layers.0.self_attn.k_proj.weight"] = Tensor("BF16", (2,), words(1000, 1001))
    write(changed, tensors)
    ran = run("capture", str(changed), "--from", "serve.sh", "--renderer", "here", "-o", "new", "-q")
    assert (ran.code, ran.err, ran.out) == (0, "", "new/manifest.yaml\n")
    ran = run("check", "one", "new", "-o", "json=record.json")
    assert ran.code == 10
    assert "weights-changed" in ran.out
    assert "1 changed" in ran.out
    assert "model.layers.0.self_attn.k_proj.weight" in ran.out

    snapshot = run("corpus", "snapshot", str(changed), "--chat-template", "{{ messages }}", "-o", "t.jsonl")
    assert snapshot.code == 0
    assert json.loads(snapshot.out.removeprefix("snapshot: "))["file"] == "t.jsonl"
    compared = run("corpus", "compare", "two.tokens.jsonl", "t.jsonl")
    assert compared.code == 10
    assert "the rendered text differs" in compared.out


class Recorded:
    """Stands in for the capture itself, and remembers what it was asked."""

    def __init__(self) -> None:
        self.model = ""
        self.asked: Mapping[str, Any] = {}
        self.manifest: dict[str, Any] = {"schema": "kvgate/manifest/v1", "model": {"id": "m"}}
        self.weights = None
        self.served = ()
        self.tokens = None
        self.notes = ("a note",)
        self.unknown: tuple[tuple[str, str], ...] = (
            ("roles", "no launch line was given"),
            ("parallelism", "no launch line was given"),
            ("engine.version", "the image is named 'latest'"),
            ("adapters.billing.digest", "its files are not here"),
        )

    def __call__(self, model: str, **asked: Any) -> Recorded:
        self.model, self.asked = model, asked
        return self


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    stand_in = Recorded()
    monkeypatch.setattr("kvgate.deployments.capture.capture", stand_in)
    return stand_in


def test_what_is_asked_for_is_what_is_captured(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "kvgate.yaml").write_text(
        "capture:\n  set: {cache.ttl: 30d, cache.epoch: 1, engine.prefix_hash: null}\n  unset: [roles]\n"
    )
    ran = run(
        *("capture", "org/name", "--revision", "main", "--from", "-", "--adapter", "billing=a/b", "--renderer", "here"),
        *(
            "--tokenizer",
            "t",
            "--draft",
            "d",
            "--chat-template",
            "t.jinja",
            "--set",
            "cache.epoch=2",
            "--set",
            "engine.prefix_hash.seed=0",
        ),
        *("--set", "model.revision=010", "--unset", "adapters", "--endpoint", "http://127.0.0.1:8000", "-o", "out"),
        stdin=b"vllm serve org/name --block-size 32\n",
    )
    assert (ran.code, ran.out) == (0, "out/manifest.yaml\n")
    asked = dict(recorded.asked)
    (line,) = asked.pop("launch")
    assert line.values["engine.block_size"] == 32
    assert callable(asked.pop("progress"))
    assert not asked.pop("snapshot_to").parent.exists()  # what is left of it is a sidecar
    assert recorded.model == "org/name"
    assert asked == {
        "revision": "main",
        "beside": Beside({"billing": Path("a/b")}, Path("t"), Path("d"), "t.jinja"),
        "renderer": "here",
        # The command line wins over the configuration, at, below and above the same path.
        "sets": {"cache.ttl": "30d", "cache.epoch": 2, "engine.prefix_hash.seed": "0", "model.revision": "010"},
        "unsets": ["roles", "adapters"],
        "endpoint": "http://127.0.0.1:8000",
        "api_key": None,
        "kept": None,
        "opaque_pickle": False,
        "fetch_weights": True,
    }


def test_what_stays_unknown_is_said_most_useful_first(run: Run, recorded: Recorded) -> None:
    ran = run("capture", "m", "-o", "out")
    assert recorded.model == "m"
    lines = ran.err.splitlines()
    assert lines[0].startswith("configuration: no kvgate.yaml in this folder")
    assert lines[1] == "note: a note"
    assert lines[2].startswith("unknown: 4, most useful first")
    assert [line.split(":")[0].strip() for line in lines[3:]] == [
        *("engine.version", "adapters.billing.digest", "parallelism", "roles")
    ]
    assert lines[3].endswith("the image is named 'latest'; --set engine.version=VERSION")
    assert run("capture", "m", "-o", "out", "--quiet").err == ""


def test_a_reason_that_many_fields_share_is_said_once(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "kvgate.yaml").write_text("{}\n")
    shared = ("cache.serde", "engine.block_size", "weights.checkpoint", "engine.args")
    recorded.unknown = (
        *((path, "the chart's version: give Chart.yaml") for path in shared),
        ("engine.kv_layout", "set from outside"),
        ("inputs", "only the operator knows"),
    )
    ran = run("capture", "m", "--from", "-", "-o", "out", stdin=b"vllm serve m\n")
    assert ran.err.splitlines() == [
        "configuration: kvgate.yaml",
        "note: a note",
        "unknown: 6, most useful first (unknown equals nothing: a check refuses it where it counts)",
        "  4 fields: the chart's version: give Chart.yaml",
        "    weights.checkpoint, engine.block_size, engine.args, cache.serde",
        # What was done is not asked for: the launch line was given.
        "  engine.kv_layout: set from outside; --set engine.kv_layout=null",
        "  inputs: only the operator knows; --set inputs=null, or the digests",
    ]


def test_what_is_set_of_a_configured_mapping_replaces_that_part(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "kvgate.yaml").write_text(
        "capture:\n  set:\n    cache.tenancy: {boundary: tenant, carried_by: cache_salt}\n"
        "    engine.args: {a: 1, b: {c: 2, d: 3}}\n    engine.prefix_hash: null\n"
    )
    sets = ("cache.tenancy.carried_by=null", "engine.args.b.c=4", "engine.prefix_hash.seed=0")
    assert run("capture", "m", "-o", "out", *(word for one in sets for word in ("--set", one))).code == 0
    assert recorded.asked["sets"] == {
        "cache.tenancy.boundary": "tenant",
        "cache.tenancy.carried_by": None,
        "engine.args": {"a": 1, "b": {"c": 4, "d": 3}},
        "engine.prefix_hash.seed": "0",
    }
    assert run("capture", "m", "-o", "out", "--set", "cache.tenancy=null").code == 0
    assert recorded.asked["sets"]["cache.tenancy"] is None
    assert "cache.tenancy.boundary" not in recorded.asked["sets"]


def test_a_file_that_the_launch_line_names_is_read_beside_it(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "serve.sh").write_text("vllm serve m --config vllm.yaml\n")
    (tmp_path / "deploy" / "vllm.yaml").write_text("block-size: 64\n")
    assert run("capture", "m", "--from", "deploy/serve.sh", "-o", "out").code == 0
    assert recorded.asked["launch"][0].values["engine.block_size"] == 64


def test_a_launch_line_names_no_file_outside_its_folder(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "vllm.yaml").write_text("block-size: 64\n")
    (tmp_path / "deploy" / "serve.sh").write_text("vllm serve m --config ../vllm.yaml\n")
    assert run("capture", "m", "--from", "deploy/serve.sh", "-o", "out").code == 0
    unknown = dict(recorded.asked["launch"][0].unknown)
    assert unknown["engine.block_size"] == "--config ../vllm.yaml was not given, and it may set this"


POOLS = """apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  containers:
    - {name: engine, image: "vllm/vllm-openai:v0.33.0", args: [m, -tp, "$(TP)"], env: [{name: TP, value: "%d"}]}
---
"""


def test_deployment_files_are_read_together_and_a_name_chooses(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "prefill.yaml").write_text(POOLS % ("prefill", 2))
    (tmp_path / "decode.yaml").write_text(POOLS % ("decode", 4))
    files = ("--from", "prefill.yaml", "--from", "decode.yaml")
    assert run("capture", "m", *files, "-o", "out").code == 0
    (facts,) = recorded.asked["launch"]
    assert {role["name"]: role["set"]["parallelism.tensor"] for role in facts.values["roles"]} == {
        "prefill": 2,
        "decode": 4,
    }
    assert run("capture", "m", *files[:3], "decode.yaml#decode", "-o", "out").code == 0
    assert recorded.asked["launch"][0].values["parallelism.tensor"] == 4
    refused = run("capture", "m", "--from", "prefill.yaml#other", "-o", "out")
    assert (refused.code, "no server is called 'other'" in refused.err) == (3, True)
    assert run("capture", "m", "--from", "-", "-o", "out", stdin=(POOLS % ("p", 8)).encode()).code == 0
    assert recorded.asked["launch"][0].values["parallelism.tensor"] == 8


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--renderer", "there"], 2, "'there' is neither 'here' nor a snapshot"),
        (["--adapter", "billing"], 2, "is not NAME=PATH"),
        (["--adapter", "b=x", "--adapter", "b=y"], 2, "given twice"),
        (["--set", "engine.verson=1"], 2, "did you mean engine.version?"),
        (["--set", "foo=bar"], 2, "a path starts with release, model, weights, "),
        (["--set", "request_features=[tag]"], 2, "--set: request_features.0: Input should be 'lora', "),
        (["--set", "cache.tenancy={carried_by: x}"], 2, "--set: cache.tenancy.boundary: is required"),
        (["--set", "cache.tenancy.carried_by=x"], 2, "cache.tenancy.boundary is required beside it"),
        (["--set", "weights.hub.commit=main"], 2, "--set: weights.hub.commit: "),
        (["--set", "cache.location=redis://u:hunter2hunter2@h"], 2, "--set: cache.location"),
        (["--unset", "enginee"], 2, "'enginee' is not a manifest path"),
        (["--from", "missing.sh"], 3, "missing.sh: cannot be read"),
        (["--from", "."], 3, "not a regular file"),
        (["--from", "-"], 3, "-: "),
    ],
)
@pytest.mark.usefixtures("recorded")
def test_what_cannot_be_captured_is_said_before_any_work(
    run: Run, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    ran = run("capture", "m", "-o", "out", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert not (tmp_path / "out").exists()


def test_a_mistake_in_the_configured_paths_names_them(run: Run, recorded: Recorded, tmp_path: Path) -> None:
    (tmp_path / "kvgate.yaml").write_text("capture: {set: {engine.verson: x}}\n")
    ran = run("capture", "m", "-o", "out")
    assert ran.code == 2
    assert "kvgate.yaml: capture.set: 'engine.verson' is not a manifest path" in ran.err
    (tmp_path / "kvgate.yaml").write_text("capture: {set: {engine.block_size: many}}\n")
    ran = run("capture", "m", "-o", "out")
    assert (ran.code, "kvgate.yaml: capture.set: engine.block_size: " in ran.err) == (2, True)
    assert recorded.model == ""


def test_a_checkpoint_of_pickles_is_not_opened(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pickles").mkdir()
    (tmp_path / "pickles" / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n(S'touch owned'\ntR.")
    ran = run("fingerprint", "pickles")
    assert (ran.code, ran.out) == (3, "")
    assert "pickle" in ran.err
    assert not (tmp_path / "owned").exists()


def test_corpora_are_shown(run: Run, tmp_path: Path) -> None:
    (listed,) = json.loads(run("corpus", "list", "-o", "json").out)
    assert run("corpus", "list").out.startswith(f"{listed['id']}  {listed['conversations']} conversations\n  tags: ")
    shown = json.loads(run("corpus", "show", "-o", "json").out)
    assert len(shown["conversations"]) == listed["conversations"]
    first = shown["conversations"][0]
    assert first["why"] in run("corpus", "show").out
    assert json.loads(run("corpus", "show", "--id", first["id"]).out)["messages"]
    tag = first["tags"][0]
    some = json.loads(run("corpus", "show", "--tag", tag, "-o", "json").out)["conversations"]
    assert listed["tags"][tag] == len(some) < listed["conversations"]
    assert f"{len(some)} of {listed['conversations']} conversations" in run("corpus", "show", "--tag", tag).out
    assert run("corpus", "show", "--tag", tag, "--tag", "no such tag").code == 2
    (tmp_path / "own.jsonl").write_text('{"messages": [{"role": "user", "content": "\\u001b[31mhi"}]}\n')
    (tmp_path / "kvgate.yaml").write_text("check: {corpus: [own.jsonl]}\n")
    own = json.loads(run("corpus", "list", "own.jsonl", "-o", "json").out)[1]
    assert (own["source"], own["conversations"], own["tags"]) == ("own.jsonl", 1, {})
    assert f"{own['id']}  1 conversation  own.jsonl\n" in run("corpus", "list").out
    assert run("corpus", "list", "--no-config").out.count("conversations") == 1
    assert "hi" not in run("corpus", "show", "own.jsonl").out
    assert json.loads(run("corpus", "show", "own.jsonl", "--id", "line-1").out)["messages"][0]["role"] == "user"
    assert run("corpus", "show", "own.jsonl", "--id", "line-2").code == 2
    assert run("corpus", "show", "missing.jsonl").code == 3


def test_snapshots_without_anything_in_common_are_no_comparison(run: Run, captured: Path) -> None:
    lines = (captured / "two.tokens.jsonl").read_text().splitlines(keepends=True)
    footer = json.dumps({**json.loads(lines[-1]), "conversations": 1}) + "\n"
    (captured / "a.jsonl").write_text(lines[0] + lines[1] + footer)
    (captured / "b.jsonl").write_text(lines[0] + lines[2] + footer)
    ran = run("corpus", "compare", "a.jsonl", "b.jsonl")
    assert (ran.code, ran.out) == (3, "")
    assert "no conversation in common" in ran.err
    assert run("corpus", "compare", "a.jsonl", "two.tokens.jsonl").code == 11
    assert run("corpus", "compare", "a.jsonl", "serve.sh").code == 3
