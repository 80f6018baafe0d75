"""Public incidents from the files that were deployed to the verdict, in front of the report's connector and of others.

What keys hold decides: for every incident there is a connector in front of which the answer is another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.conftest import FORGET, Answer, Capture, Check, Edit, Kvgate
from tests.acceptance.launch_files import (
    LMCACHE,
    LMCACHE_MP,
    LMCACHE_REDIS,
    MOONCAKE,
    TIER,
    UMBP,
    Files,
    lmcache_server,
    sglang_pods,
    vllm_pods,
)
from tests.acceptance.releases import Checkpoints, own_store, write_adapter
from tests.cli.conftest import in_process

REUSE, NEW, CLEAR = "verified-compatible-reuse", "new-namespace", "clear"
K_PROJ = "model.layers.0.self_attn.k_proj.weight"
R1, R2 = "a" * 40, "b" * 40
LORA = ("--enable-lora", "--lora-modules", "billing=/adapters/billing")
TENANTS = {"cache.tenancy": {"boundary": "tenant", "carried_by": "cache_salt"}}
FOLDER = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"

# store, environment, what is declared because no file says it
_ENGINE: Mapping[str, tuple[Mapping[str, Any] | None, dict[str, str], dict[str, Any]]] = {
    "vllm-offload-fs": (TIER, {}, {}),
    "vllm-umbp": (UMBP, {}, {}),
    "vllm-mooncake": (MOONCAKE, {}, {"cache.location": "mooncake://master:50051"}),
    "lmcache": (LMCACHE, LMCACHE_REDIS, {"cache.version": "0.5.6"}),
    "lmcache-mp": (LMCACHE_MP, {}, {"cache.version": "0.5.6"}),
}


class Deployed:
    """Captures what a connector's files start."""

    def __init__(self, capture: Capture, base: Path) -> None:
        self._capture = capture
        self._base = base

    def __call__(
        self,
        connector: str,
        *flags: str,
        checkpoint: Path | None = None,
        env: Mapping[str, str] | None = None,
        sets: Mapping[str, Any] | None = None,
        adapters: Mapping[str, Path] | None = None,
        key_fields: tuple[str, ...] = (),
        **how: str,
    ) -> Path:
        """Capture a deployment of vLLM; ``key_fields``: of an application's own store, in front of no connector."""
        store, variables, declared = _ENGINE.get(connector, (None, {}, own_store("token_ids", *key_fields)))
        files: Files = {"deploy.yaml": vllm_pods(*flags, store=store, env={**variables, **(env or {})}, **how)}
        if connector == "lmcache-mp":
            files["lmcache.yaml"] = lmcache_server()
        declared = {**declared, **(sets or {})}
        return self._capture(checkpoint or self._base, files, sets=declared, adapters=adapters)

    def sglang(self, folder: str, *flags: str, checkpoint: Path | None = None, **how: Any) -> Path:
        """Capture a deployment of SGLang with the file backend."""
        sets = how.pop("sets", None)
        named = ("--served-model-name", "support", "--hicache-storage-backend", "file")
        text = sglang_pods(*named, *flags, env={FOLDER: folder}, **how)
        return self._capture(checkpoint or self._base, {"deploy.yaml": text}, sets=sets)


_IN_PROCESSES: set[str] = set()


@pytest.fixture
def check(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Check]:
    """Run ``kvgate check``: the first case of each incident in a process of its own, the others in this one."""
    name = request.function.__name__
    if name not in _IN_PROCESSES:
        _IN_PROCESSES.add(name)
        yield check
        return
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> Answer:
        ran = in_process("check", *map(str, arguments), "-o", "text", "-o", "json=record.json")
        predicate = json.loads((tmp_path / "record.json").read_bytes())["predicate"]
        assert (ran.code, ran.out.splitlines()[-1], ran.err) == (predicate["exitCode"], predicate["verdict"], "")
        return Answer(predicate["verdict"], ran.code, predicate, ran.out)

    yield call


@pytest.fixture(scope="session")
def deployed(capture: Capture, base: Path) -> Deployed:
    return Deployed(capture, base)


@pytest.fixture(scope="session")
def retrained(checkpoints: Checkpoints) -> Path:
    """The same model with one byte of one tensor changed."""
    return checkpoints.with_a_changed_byte(K_PROJ)


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return write_adapter(folder / "one", seed=1), write_adapter(folder / "two", seed=2)


def said(answer: Answer) -> tuple[str, int, set[str], set[str]]:
    """Return verdict, exit code, the rules of all findings, and of those that nothing meets."""
    return answer.verdict, answer.code, set(answer.rules), set(answer.open)


@pytest.mark.parametrize(
    ("connector", "key_fields", "rules", "still_open", "keys"),
    [
        ("vllm-offload-fs", (), {"model-name-inert", "weights-changed"}, {"weights-changed"}, "no"),
        ("lmcache-mp", (), {"model-name-inert", "weights-changed"}, {"weights-changed"}, "no"),
        # What it asks for is in the fingerprint: a commit, or a branch that a manifest holds as what it led to.
        ("vllm-umbp", (), {"model-name-moved", "weights-changed"}, {"model-name-moved", "weights-changed"}, "no"),
        # Old entries are out of reach; what lies under the other name is not known.
        ("own-store", ("model.revision",), {"model-name-moved", "weights-changed"}, {"model-name-moved"}, "yes"),
    ],
)
def test_i19_another_revision(
    check: Check,
    deployed: Deployed,
    retrained: Path,
    connector: str,
    key_fields: tuple[str, ...],
    rules: set[str],
    still_open: set[str],
    keys: str,
) -> None:
    """vllm-project/vllm#49261, #49266: the folder's fingerprint of the file tier holds no revision."""
    old, new = (
        deployed(connector, "--revision", revision, model="org/m", checkpoint=checkpoint, key_fields=key_fields)
        for revision, checkpoint in ((R1, None), (R2, retrained))
    )
    answer = check(old, new)
    assert said(answer) == (NEW, 10, rules, still_open)
    finding = answer.finding("weights-changed")
    assert (finding["answers"]["kvValid"], finding["answers"]["keysSeparate"]) == ("no", keys)


@pytest.mark.parametrize(
    ("connector", "code"), [("vllm-offload-fs", 10), ("lmcache", 10), ("vllm-umbp", 10), ("own-store", 0)]
)
def test_i20_a_repository_made_anew_under_its_name(
    check: Check, deployed: Deployed, edit: Edit, retrained: Path, connector: str, code: int
) -> None:
    """noonghunna/club-3090#319, osaurus-ai/osaurus#1989, antirez/ds4#805: `main` on both sides is evidence of nothing.

    An application's store whose key holds the digest of the weights keeps them apart, once somebody knows it.
    """
    how: Any = {"model": "org/m", "key_fields": ("weights.checkpoint.digest",)}
    old, new = (deployed(connector, "--revision", "main", checkpoint=one, **how) for one in (None, retrained))
    answer = check(old, new)
    assert said(answer) == (NEW, code, {"weights-changed"}, {"weights-changed"} if code else set())

    unread = [edit(one, name, {"weights.checkpoint": FORGET}) for one, name in ((old, "old"), (new, "new"))]
    refused = check(*unread)
    assert said(refused) == (NEW, 11, {"weights-changed"}, {"weights-changed"})
    assert "a name that can move" in refused.finding("weights-changed")["detail"]


@pytest.mark.parametrize(
    ("connector", "code"), [("vllm-offload-fs", 10), ("vllm-umbp", 10), ("lmcache-mp", 10), ("own-store", 0)]
)
def test_i23_rope_by_an_override(check: Check, deployed: Deployed, connector: str, code: int) -> None:
    """vllm-project/vllm#56311, #56331: the factor stands in the launch line, and config.json is what it was."""
    old, new = (
        deployed(connector, "--hf-overrides", json.dumps({"rope_parameters": rope}), key_fields=("model.config",))
        for rope in ({"rope_type": "linear", "factor": factor, "rope_theta": 1000000.0} for factor in (1.0, 2.0))
    )
    answer = check(old, new)
    # vLLM multiplies the length that it allows by the factor, and says so nowhere.
    assert said(answer) == (
        *(NEW, code, {"config-changed", "length-limit-inert"}),
        {"config-changed"} if code else set(),
    )
    assert answer.finding("config-changed")["answers"]["kvValid"] == "no"


@pytest.mark.parametrize(
    ("connector", "code"),
    [("vllm-mooncake", 10), ("lmcache-mp", 10), ("lmcache", 0), ("vllm-offload-fs", 0), ("vllm-umbp", 0)],
)
@pytest.mark.parametrize(
    ("before", "after", "rules"),
    [
        (("--dtype", "float16"), ("--dtype", "bfloat16"), {"compute-dtype-changed", "kv-dtype-changed"}),
        ((), ("--kv-cache-dtype", "fp8_e4m3"), {"kv-dtype-changed"}),
    ],
)
def test_i27_auto_is_not_auto(
    check: Check,
    deployed: Deployed,
    connector: str,
    code: int,
    before: tuple[str, ...],
    after: tuple[str, ...],
    rules: set[str],
) -> None:
    """vllm-project/vllm#49438, #45767, sgl-project/sglang#33268, InternLM/lmdeploy#4930: pages of one size."""
    answer = check(deployed(connector, *before), deployed(connector, *after))
    assert said(answer) == (NEW, code, rules, rules if code else set())


def test_i27_in_front_of_sglang(check: Check, deployed: Deployed) -> None:
    """sgl-project/sglang#33268: its pages are raw bytes without a format."""
    old, new = (deployed.sglang("/kv/hicache", *flags) for flags in ((), ("--kv-cache-dtype", "fp8_e4m3")))
    assert said(check(old, new)) == (NEW, 10, {"kv-dtype-changed"}, {"kv-dtype-changed"})


@pytest.mark.parametrize(
    ("connector", "env", "code"),
    [
        ("vllm-offload-fs", {"VLLM_USE_V2_MODEL_RUNNER": "0"}, 10),  # one name for all sizes
        ("vllm-offload-fs", {}, 0),
        ("vllm-mooncake", {}, 10),
        ("lmcache", {}, 0),
        ("lmcache-mp", {}, 0),
    ],
)
def test_i29_more_ranks(check: Check, deployed: Deployed, connector: str, env: dict[str, str], code: int) -> None:
    """vllm-project/vllm#55191: reads of equal size return the values of other heads."""
    old, new = (deployed(connector, "--tensor-parallel-size", size, env=env) for size in "12")
    rules = {"rank-layout-changed"}
    assert said(check(old, new)) == (NEW, code, rules, rules if code else set())


@pytest.mark.parametrize(("connector", "code"), [("vllm-offload-fs", 10), ("lmcache", 10), ("vllm-umbp", 0)])
def test_i30_another_layout(check: Check, deployed: Deployed, connector: str, code: int) -> None:
    """vllm-project/vllm#55904: blocks of one size, and 48 tokens of garbage."""
    old, new = (deployed(connector, env={"VLLM_KV_CACHE_LAYOUT": layout}) for layout in ("NHD", "HND"))
    assert said(check(old, new)) == (NEW, code, {"format-changed"}, {"format-changed"} if code else set())


@pytest.mark.parametrize("connector", ["vllm-offload-fs", "vllm-umbp"])
def test_i30_another_runner(check: Check, deployed: Deployed, connector: str) -> None:
    """vllm-project/vllm#49440."""
    old, new = (deployed(connector, env={"VLLM_USE_V2_MODEL_RUNNER": runner}) for runner in "01")
    answer = check(old, new)
    assert (answer.verdict, answer.code) == (NEW, 10)
    assert "flag-unclassified" in answer.open


@pytest.mark.parametrize("connector", ["vllm-offload-fs", "vllm-umbp", "lmcache"])
def test_i30_nothing_but_another_tag(check: Check, deployed: Deployed, connector: str) -> None:
    """An image of one's own: no tag says what is in it, and an equal one would not either."""
    old, new = (deployed(connector, image=f"registry.example/vllm:{tag}") for tag in ("2026.10", "2026.11"))
    for pair in ((old, new), (new, new)):
        answer = check(*pair)
        assert (answer.verdict, answer.code) == (NEW, 11)
        assert "engine-changed" in answer.open
        assert {finding["answers"]["kvValid"] for finding in answer.predicate["findings"]} <= {"unknown", "yes"}


def test_i33_the_served_name_is_no_identity(check: Check, deployed: Deployed, retrained: Path) -> None:
    """sgl-project/sglang#24758: one served name, another path, one folder: 1,984 tokens of the other model."""
    old, new = (
        deployed.sglang("/kv/hicache", model=f"/models/{name}", checkpoint=one)
        for name, one in (("a", None), ("b", retrained))
    )
    answer = check(old, new)
    assert said(answer) == (NEW, 10, {"model-name-inert", "weights-changed"}, {"weights-changed"})
    assert answer.finding("weights-changed")["answers"]["keysSeparate"] == "no"


@pytest.mark.parametrize("connector", ["vllm-offload-fs", "lmcache", "lmcache-mp"])
def test_i33_where_the_path_is_in_the_key(check: Check, deployed: Deployed, retrained: Path, connector: str) -> None:
    """The other model is out of reach; whether somebody else wrote under the new path is not known."""
    old, new = (
        deployed(connector, "--served-model-name", "support", model=f"/models/{name}", checkpoint=one)
        for name, one in (("a", None), ("b", retrained))
    )
    answer = check(old, new)
    assert said(answer) == (NEW, 10, {"model-name-moved", "weights-changed"}, {"model-name-moved"})
    assert answer.finding("weights-changed")["answers"]["keysSeparate"] == "yes"


@pytest.mark.parametrize("connector", ["vllm-offload-fs", "vllm-mooncake"])
def test_i34_an_adapter_replaced_under_its_name(
    check: Check, deployed: Deployed, adapters: tuple[Path, Path], connector: str
) -> None:
    """vllm-project/vllm#42125, #48352: keys hold name and path, never the bytes.

    In a rolling update the new one must be filed apart. Swapped while serving, both wrote under one name.
    """
    old, new = (deployed(connector, *LORA, adapters={"billing": one}) for one in adapters)
    answer = check(old, new)
    assert said(answer) == (NEW, 10, {"adapter-replaced"}, {"adapter-replaced"})
    assert answer.finding("adapter-replaced")["scope"] == "adapter:billing"


def test_i34_an_adapter_swapped_while_serving(
    check: Check, deployed: Deployed, edit: Edit, adapters: tuple[Path, Path]
) -> None:
    """Which adapters such a server has no file says: their digests come from who loaded them."""
    hot = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    known = [deployed("vllm-offload-fs", *LORA, adapters={"billing": one}) for one in adapters]
    entries = [yaml.safe_load((one / "manifest.yaml").read_text())["adapters"] for one in known]
    old, new = (
        edit(
            deployed("vllm-offload-fs", *LORA, env=hot, adapters={"billing": adapters[0]}),
            str(number),
            {"adapters": entry, "provenance.adapters": "computed"},
        )
        for number, entry in enumerate(entries)
    )
    answer = check(old, new)
    assert (answer.verdict, answer.code) == (CLEAR, 20)
    assert "adapter-replaced-in-place" in answer.open


@pytest.mark.parametrize(
    ("connector", "expected"),
    [
        (
            "lmcache",
            (NEW, 30, {"adapter-set-changed", "fault-unseparated-requests", "requests-changed"}),
        ),
        (
            "lmcache-mp",
            (NEW, 30, {"adapter-set-changed", "fault-unseparated-requests", "requests-changed"}),
        ),
        ("vllm-offload-fs", (REUSE, 0, {"adapter-set-changed", "requests-changed"})),
    ],
)
def test_i34_adapters_switched_on(
    check: Check,
    deployed: Deployed,
    adapters: tuple[Path, Path],
    connector: str,
    expected: tuple[str, int, set[str]],
) -> None:
    """LMCache/LMCache#2961: its key holds no adapter, so the base model's blocks are hit by requests of the adapter."""
    answer = check(deployed(connector), deployed(connector, *LORA, adapters={"billing": adapters[0]}))
    assert said(answer)[:3] == expected


@pytest.fixture(scope="session")
def seeing(checkpoints: Checkpoints) -> Path:
    """The model with eyes: requests may carry images."""
    return checkpoints("seeing", config={"vision_config": {"model_type": "clip_vision_model", "hidden_size": 32}})


def test_i37_images_of_one_short_hash(check: Check, deployed: Deployed, seeing: Path, base: Path) -> None:
    """LMCache/LMCache#3301, #4783: two images that agree on four hex digits shared keys before 0.5.5."""
    old, new = (
        deployed("lmcache", checkpoint=seeing, sets={"cache.version": version}) for version in ("0.5.4", "0.5.6")
    )
    answer = check(old, new)
    assert said(answer)[:2] == (CLEAR, 20)
    assert answer.finding("producer-advisory")["scope"] == "media"
    # Text is filed as it was, and nothing is wrong with it.
    text = [deployed("lmcache", checkpoint=base, sets={"cache.version": version}) for version in ("0.5.4", "0.5.6")]
    assert said(check(*text)) == (REUSE, 0, {"connector-version-changed"}, set())
    # Another connector never shortened a hash.
    assert said(check(*(deployed("vllm-offload-fs", checkpoint=seeing) for _ in range(2)))) == (REUSE, 0, set(), set())


def _sglang(version: str) -> str:
    return f"lmsysorg/sglang:v{version}@sha256:{version[-2:] * 32}"


def test_i38_a_salt_that_is_dropped_below(check: Check, deployed: Deployed) -> None:
    """sgl-project/sglang#37160, LMCache/LMCache#4825: heard in the radix tree, and not in what is stored."""
    old, new = (
        deployed.sglang("/kv/hicache", image=_sglang(version), sets=TENANTS) for version in ("0.5.19", "0.5.23")
    )
    answer = check(old, new)
    assert (answer.verdict, answer.code) == (CLEAR, 20)
    finding = answer.finding("producer-advisory")
    assert (finding["scope"], finding["obligations"]) == ("tenant", ["delete"])
    # Released as it is, it goes on mixing them: no deletion makes it safe.
    again = check("--declare", "clear", "--strategy", "recreate", old, old)
    assert (again.verdict, again.code) == (CLEAR, 30)
    # From a release that files the salt there is nothing to delete.
    assert said(check(new, new)) == (REUSE, 0, set(), set())


@pytest.mark.parametrize(
    ("connector", "expected"),
    [
        ("lmcache", (CLEAR, 30, {"fault-tenant-boundary", "fault-unseparated-requests"})),
        ("lmcache-mp", (REUSE, 0, set())),
        ("vllm-offload-fs", (REUSE, 0, set())),
    ],
)
def test_i38_a_salt_in_front_of_others(
    check: Check, deployed: Deployed, connector: str, expected: tuple[str, int, set[str]]
) -> None:
    one = deployed(connector, sets=TENANTS)
    assert said(check(one, one))[:3] == expected


@pytest.mark.parametrize(
    ("folders", "rules"),
    [
        (("/kv/e1_w1", "/kv/e1_w1"), {"weights-changed"}),  # nobody moved the suffix: as I33
        (("/kv/e1_w1", "/kv/e1_w2"), {"weights-changed", "key-space-moved"}),
    ],
)
def test_i41_a_suffix_moved_by_hand(
    check: Check, deployed: Deployed, retrained: Path, folders: tuple[str, str], rules: set[str]
) -> None:
    """Tanguille/cluster#4213, #4636: `/hicache/<engine>_<weights>`, moved by hand, and what lies there nobody knows."""
    old, new = (deployed.sglang(folder, checkpoint=one) for folder, one in zip(folders, (None, retrained), strict=True))
    answer = check(old, new)
    assert said(answer) == (NEW, 10, rules, rules)
    # The name that the report prints is no other deployment's, and makes both safe.
    (setting,) = answer.predicate["action"]["settings"]
    moved = deployed.sglang(f"{folders[1]}/{setting['value'].rpartition('/')[2]}", checkpoint=retrained)
    done = check(old, moved)
    assert (done.verdict, done.code, done.open) == (NEW, 0, [])


def test_i41_folders_that_nobody_deletes(check: Check, deployed: Deployed) -> None:
    """vllm-project/vllm#52784, #55907: the tier's own digest moves, and what the old one holds stays for ever."""
    old, new = (deployed("vllm-offload-fs", "--kv-cache-dtype", dtype) for dtype in ("bfloat16", "fp8_e4m3"))
    answer = check(old, new)
    assert said(answer) == (NEW, 0, {"kv-dtype-changed"}, set())


def test_the_command_reads_the_files_as_these_tests_do(
    kvgate: Kvgate, deployed: Deployed, base: Path, tmp_path: Path
) -> None:
    """From two files on disk to the verdict, in processes of their own."""
    (tmp_path / "deploy.yaml").write_text(vllm_pods(store=LMCACHE_MP))
    (tmp_path / "lmcache.yaml").write_text(lmcache_server())
    declared = {"engine.accelerator": "H200", "cache.tenancy": "null", "inputs": "null", "cache.version": "0.5.6"}
    sets = [word for path, value in declared.items() for word in ("--set", f"{path}={value}")]
    files = ("--from", "deploy.yaml", "--from", "lmcache.yaml")
    ran = kvgate("capture", base, *files, "--renderer", "here", *sets, "-o", "old", "-q")
    assert (ran.code, ran.err) == (0, "")
    captured, alike = (
        yaml.safe_load((one / "manifest.yaml").read_text()) for one in (tmp_path / "old", deployed("lmcache-mp"))
    )
    assert captured == alike
    ran = kvgate("check", "old", deployed("lmcache-mp", "--kv-cache-dtype", "fp8_e4m3"), "-q")
    assert (ran.code, ran.out) == (10, f"{NEW}\n")
