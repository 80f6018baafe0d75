"""Values of charts and KServe's services, from the files to the verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.deployments.launch.makers import kserve_presets
from tests.acceptance.conftest import Capture, Check, Kvgate
from tests.acceptance.releases import DECLARED, Checkpoints
from tests.deployments.made import IMAGE, model_spec, modelservice, service, service_config, stack, workload

REUSE, NEW = "verified-compatible-reuse", "new-namespace"
REMOTE = [{"name": "LMCACHE_REMOTE_URL", "value": "redis://cache-1:6379/0"}]
MOUNT = [{"name": "kv", "mountPath": "/kv"}]
CLAIM = [{"name": "kv", "persistentVolumeClaim": {"claimName": "kv-claim"}}]
NATIVE = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs", "root_dir": "/kv"}]}
LLM_D = {
    "spec_name": "SharedStorageOffloadingSpec",
    "spec_module_path": "llmd_fs_backend.spec",
    "shared_storage_path": "/kv",
    "block_size": 256,
}
SCRIPT = ["/bin/bash", "-c", 'eval "exec vllm serve /mnt/models ${VLLM_ADDITIONAL_ARGS} $@"', "--"]
FP8 = ("--kv-cache-dtype", "fp8")


def texts(files: Mapping[str, Any]) -> dict[str, str]:
    """The files as they lie on disk."""
    plain: dict[str, Any] = json.loads(json.dumps(files))
    return {
        name: one if isinstance(one, str) else yaml.safe_dump_all(one if isinstance(one, list) else [one])
        for name, one in plain.items()
    }


def support(**vllm: Any) -> dict[str, Any]:
    """A model of the production stack with LMCache behind it."""
    config = {"enablePrefixCaching": True, **vllm}
    return model_spec(vllmConfig=config, lmcacheConfig={"enabled": True}, env=REMOTE)


def pool(extra: Mapping[str, Any], *flags: str, **changes: Any) -> dict[str, Any]:
    """A pool of llm-d's chart that keeps blocks on a claim."""
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    container = {"volumeMounts": MOUNT, "env": [{"name": "PYTHONHASHSEED", "value": "42"}]}
    return workload("--kv-transfer-config", json.dumps(config), *flags, container=container, volumes=CLAIM, **changes)


def test_values_of_the_production_stack(check: Check, capture: Capture, base: Path) -> None:
    declared = {"cache.version": "0.5.6"}  # an image of vLLM's own does not name LMCache's version
    old = capture(base, texts(stack(support())), sets=declared)
    tuned = texts(stack(support(maxNumSeqs=8, gpuMemoryUtilization=0.8)))
    assert (*check(old, capture(base, tuned, sets=declared)),) == (REUSE, 0, [])
    answer = check(old, capture(base, texts(stack(support(extraArgs=[*FP8]))), sets=declared))
    assert (*answer,) == (NEW, 0, ["kv-dtype-changed"])  # LMCache's keys hold the type of the cache
    assert "lmcache" in answer.report


def test_values_for_an_unknown_version_of_the_chart_are_no_evidence(check: Check, capture: Capture, base: Path) -> None:
    old = capture(base, texts(stack(support(tensorParallelSize=2), version=None)))
    answer = check(old, old)
    assert (answer.verdict, answer.code) == (NEW, 11)
    known = check(old, capture(base, texts(stack(support(tensorParallelSize=4), version=None))))
    assert (known.verdict, known.code) == (NEW, 10)
    assert "rank-layout-changed" in known.open


def test_a_type_of_blocks_in_llm_d_s_two_connectors(check: Check, capture: Capture, base: Path) -> None:
    declared = {"cache.version": "0.22"}
    for extra, sets, code in ((LLM_D, declared, 10), (NATIVE, {}, 0)):
        old, new = (capture(base, texts(modelservice(pool(extra, *flags))), sets=sets) for flags in ((), FP8))
        assert (*check(old, old),) == (REUSE, 0, [])
        assert (*check(old, new),) == (NEW, code, ["kv-dtype-changed"])


def test_pools_of_llm_d_are_checked_each(check: Check, capture: Capture, base: Path) -> None:
    def pools(tensor: int) -> dict[str, str]:
        decode, prefill = (pool(NATIVE, parallelism={"tensor": size}) for size in (tensor, 1))
        return texts(modelservice(decode, prefill))

    old = capture(base, pools(2))
    assert check(old, old).verdict == REUSE
    answer = check(old, capture(base, pools(4)))
    assert (answer.verdict, answer.code) == (NEW, 0)
    assert set(answer.rules) == {"rank-layout-changed", "roles-changed"}
    assert answer.open == []


def test_another_model_behind_kserve_s_one_path(
    check: Check, capture: Capture, checkpoints: Checkpoints, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = kserve_presets._table()
    digest = sha256("\0".join(SCRIPT).encode()).hexdigest()
    known = kserve_presets.Preset(name="template", release="0.20.0", tensor=True, offload=True)
    monkeypatch.setattr(kserve_presets, "_table", lambda: table.model_copy(update={"presets": {digest: known}}))
    main = {"name": "main", "image": IMAGE, "command": SCRIPT}
    preset = service_config("kserve-config-llm-template", template={"containers": [main]})
    offload = {"cpu": "1Gi", "secondary": [{"fileSystem": {"pvc": {"ref": {"name": "kv-claim"}}}}]}

    def captured(model: Path, uri: str) -> Path:
        one = service(model={"uri": uri}, kvCacheOffloading=offload)
        return capture(model, texts({"service.yaml": one, "preset.yaml": preset}))

    old = captured(base, "hf://org/m")
    assert yaml.safe_load((old / "manifest.yaml").read_text())["model"]["id"] == "/mnt/models"
    changed = checkpoints.with_a_changed_byte("model.layers.0.self_attn.k_proj.weight")
    answer = check(old, captured(changed, "hf://org/other"))
    assert (*answer,) == (NEW, 10, ["weights-changed"])
    # The path is all that the key knows of the model.
    assert answer.finding("weights-changed")["answers"]["keysSeparate"] == "no"


def test_a_service_without_its_preset_is_no_evidence(check: Check, capture: Capture, base: Path) -> None:
    old = capture(base, texts({"service.yaml": service({"image": IMAGE})}))
    answer = check(old, old)
    assert (answer.verdict, answer.code) == (NEW, 11)


def test_the_command_reads_values_with_their_chart(kvgate: Kvgate, base: Path, tmp_path: Path) -> None:
    secret = "hf_" + "s3cr3tv4lu3" * 2
    files = stack({**support(), "hf_token": secret}, model_spec(name="draft", modelURL="org/draft"))
    for name, text in texts(files).items():
        (tmp_path / name).write_text(text)
    declared = [f"--set={path}={json.dumps(value)}" for path, value in DECLARED.items()]
    arguments = ("capture", base, "--from", "values.yaml#support", "--from", "Chart.yaml", *declared, "-o", "out")
    ran = kvgate(*arguments)
    assert ran.code == 0, ran.err
    manifest = (tmp_path / "out" / "manifest.yaml").read_text()
    assert yaml.safe_load(manifest)["cache"]["location"] == "redis://cache-1:6379/0"
    assert secret not in manifest + ran.out + ran.err
    refused = kvgate("capture", base, "--from", "values.yaml", "--from", "Chart.yaml", "-o", "other")
    assert refused.code == 3
    assert "choose one: add #NAME" in refused.err
