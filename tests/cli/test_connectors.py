"""``kvgate connectors`` and the page of documentation that is made of the profiles."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
import yaml

from kvgate.cli.formats.connectors import _FORMS
from kvgate.rules.keyforms import Form
from kvgate.rules.packaged import packaged_bytes
from kvgate.rules.profile import shipped_profiles
from tests.cli.conftest import MakeManifest, Run

ROOT = Path(__file__).parents[2]
PROFILES = shipped_profiles()


def test_the_page_in_the_documentation_is_current(run: Run) -> None:
    page = run("connectors", "list", "-o", "markdown").out
    assert (ROOT / "docs" / "connectors.md").read_text() == page, (
        "kvgate connectors list -o markdown > docs/connectors.md"
    )
    for name in PROFILES:
        assert f"\n## {name}\n" in page


def test_the_list(run: Run) -> None:
    listed = json.loads(run("connectors", "list", "-o", "json").out)
    assert [one["id"] for one in listed] == list(PROFILES)
    out = run("connectors", "list").out
    starts = [re.search(r"\S", line[len(name) :]) for name, line in zip(PROFILES, out.splitlines()[::2], strict=True)]
    assert len({len(name) + start.start() for name, start in zip(PROFILES, starts, strict=True) if start}) == 1
    for words in ("engine.version ==0.5.23", "commit 34ab141", "no one release"):
        assert words in out
    assert run("connectors", "list", "-o", "sarif").code == 2


@pytest.mark.parametrize("name", PROFILES)
def test_all_of_a_profile_is_shown(run: Run, name: str) -> None:
    profile = PROFILES[name]
    out = " ".join(run("connectors", "show", name).out.split())
    said = [profile.title, profile.key_format, profile.model_name, profile.source, profile.clearing.blast_radius]
    said += [cell.note for cell in (*profile.cells.values(), *profile.requests.values()) if cell.note]
    said += [row.source for row in profile.upgrades]
    said += [line for knob in profile.knobs or () for line in knob.how]
    said += [profile.isolation] if profile.isolation else []
    for words in said:
        # Long words are folded where the line ends.
        assert words.replace(" ", "") in out.replace(" ", "")
    assert json.loads(run("connectors", "show", name, "-o", "json").out) == profile.model_dump(
        mode="json", by_alias=True
    )


def test_conditions_are_shown(run: Run) -> None:
    out = run("connectors", "show", "vllm-umbp").out
    assert "only while cache.namespace is not set" in out
    assert "the name of the draft model alone" in out
    assert "entries end with the worker" in run("connectors", "show", "vllm-apc").out
    assert "at the place of lora" in run("connectors", "show", "flexkv").out
    assert "engine.prefix_hash.seed alone" in run("connectors", "show", "lmcache").out


def test_what_a_key_does_not_hold_stands_together_and_says_what_that_means(run: Run) -> None:
    lines = run("connectors", "show", "lmcache-mp").out.splitlines()
    heads = [line.strip() for line in lines if line.startswith("  ") and not line.startswith("   ") and ": " in line]
    heading = "not in the key: entries of two deployments that differ in it are shared"
    assert heads.count(heading) == 2  # of dimensions, and of what requests carry
    below = lines[lines.index(f"  {heading}") :]
    assert any(line.split()[:1] == ["precision.kv_cache"] for line in below)


def test_every_form_has_words() -> None:
    assert {*_FORMS} == {*get_args(Form)} - {"verbatim"}


def test_a_name_that_there_is_not(run: Run) -> None:
    ran = run("connectors", "show", "lmcache-pm")
    assert ran.code == 2
    assert "lmcache-mp" in ran.err


def test_the_schema_accepts_every_profile_and_no_other_key(run: Run) -> None:
    schema = json.loads(run("schema", "profile").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == "urn:kvgate:profile:v1"
    validator = jsonschema.Draft202012Validator(schema)
    for name in PROFILES:
        written = yaml.safe_load(packaged_bytes("profiles", f"{name}.yaml"))
        validator.validate(written)
        assert not validator.is_valid({**written, "knob": []})


def test_what_keeps_entries_apart_where_no_setting_does(run: Run, manifest: MakeManifest) -> None:
    store = {"cache.connector": "vllm-hf3fs", "cache.version": None}
    names = manifest("old.yaml", store), manifest("new.yaml", {**store, "model.config/rms_norm_eps": 1e-06})
    checked = run("check", *names)
    assert checked.code == 10
    for words in ("no known setting of this connector does", "What does: a metadata server of its own"):
        assert words in " ".join(checked.out.split())
    assert "a metadata server of its own" in " ".join(run("namespace", names[1]).out.split())
