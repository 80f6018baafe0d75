"""What is private and stands in an input appears in no output: streams, record, reports, manifest, sidecars."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.conftest import Capture, Kvgate, Ran
from tests.acceptance.releases import DECLARED, LMCACHE, LMCACHE_DECLARED, serve

TOKEN, PASSWORD, TENANT = "hf_" + "Qz7" * 11, "correct-horse-battery", "acme-bank-emea"
SECRETS = (TOKEN, PASSWORD, TENANT)
Silent = Callable[[Ran], None]
FORMATS = ("-o", "text", "-o", "json=out/r.json", "-o", "markdown=out/r.md", "-o", "github=out/r.txt")


@pytest.fixture
def silent(tmp_path: Path) -> Silent:
    """Assert that nothing private is in what a command printed, nor in what it wrote below ``out``."""
    (tmp_path / "out").mkdir()

    def call(ran: Ran) -> None:
        written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
        texts = [ran.out, ran.err, *(path.read_text() for path in written)]
        for secret in SECRETS:
            assert not [text for text in texts if secret in text]

    return call


def test_in_a_launch_line(kvgate: Kvgate, silent: Silent, base: Path, tmp_path: Path) -> None:
    extra = {"lmcache.remote_url": f"redis://kv:{PASSWORD}@cache-1:6379/0", "lmcache.remote_password": PASSWORD}
    store = {**LMCACHE, "kv_connector_extra_config": extra}
    flags = ("--api-key", TOKEN, "--otlp-traces-endpoint", f"https://u:{PASSWORD}@traces/{TOKEN}")
    line = serve(*flags, store=store).replace("docker run", f"HF_TOKEN={TOKEN} docker run -e HF_TOKEN={TOKEN}")
    (tmp_path / "serve.sh").write_text(f"export REDIS_PASSWORD={PASSWORD}\n{line}")
    told = [f"--set={path}={'null' if value is None else value}" for path, value in DECLARED.items()]
    told.append("--set=cache.version=0.5.6")
    ran = kvgate("capture", base, "--from", "serve.sh", *told, "-o", "out/one", env={"HF_TOKEN": TOKEN})
    assert ran.code == 0
    assert "out/one/manifest.yaml" in ran.out
    silent(ran)
    checked = kvgate("check", "out/one", "out/one", *FORMATS)
    assert (checked.code, checked.out.splitlines()[-1]) == (0, "verified-compatible-reuse")
    silent(checked)


@pytest.mark.parametrize(
    "location", [f"redis://kv:{PASSWORD}@cache-1/0", f"https://{TOKEN}@store/x", f"s3://b/x?token={TOKEN}"]
)
def test_in_a_manifest(kvgate: Kvgate, silent: Silent, tmp_path: Path, location: str) -> None:
    (tmp_path / "bad.yaml").write_text(
        f"schema: kvgate/manifest/v1\nmodel: {{id: m}}\ncache: {{location: '{location}'}}\n"
    )
    ran = kvgate("check", "bad.yaml", "bad.yaml", *FORMATS)
    assert (ran.code, ran.out) == (3, "")
    assert "credentials" in ran.err
    silent(ran)


def test_in_what_is_set(kvgate: Kvgate, silent: Silent, base: Path) -> None:
    ran = kvgate("capture", base, "--set", f"cache.location=redis://kv:{PASSWORD}@cache-1/0", "-o", "out/set", "-q")
    assert (ran.code, ran.out) == (2, "")
    silent(ran)


def test_a_tenant_in_evidence(kvgate: Kvgate, silent: Silent, capture: Capture, base: Path, tmp_path: Path) -> None:
    """The canary names whose marker was seen; the decision says that there is a leak, and not whose."""
    canary = {
        "schema": "kvgate/evidence/v1",
        "kind": "tenant-canary",
        "state": "refuted",
        "new": {"sections": {}},
        "scope": f"tenant:{TENANT}",
        "figures": {"tenant": TENANT, "seen": 3},
        "reason": f"a marker of {TENANT} was seen by another tenant",
    }
    (tmp_path / "canary.json").write_text(json.dumps(canary))
    captured = capture(base, serve(store=LMCACHE), sets=LMCACHE_DECLARED)
    ran = kvgate("check", captured, captured, "--evidence", "canary.json", *FORMATS)
    assert (ran.code, ran.out.splitlines()[-1]) == (20, "clear")
    silent(ran)
    record = json.loads((tmp_path / "out" / "r.json").read_text())["predicate"]
    (shown,) = (one for one in record["evidence"] if one["kind"] == "tenant-canary")
    assert (shown["scope"], shown["figures"]["seen"]) == ("tenant", 3)
    assert kvgate("record", "verify", "out/r.json").code == 0
