"""What a launch line names beside the model: read where it is on this machine, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvgate.deployments.capture import Captured, capture
from kvgate.deployments.launch import parse_vllm
from kvgate.deployments.locating import Beside
from kvgate.rules.errors import InputError, UsageError

from .conftest import MakeCheckpoint
from .made import write_adapter

IMAGE = "vllm/vllm-openai:v0.33.0"


def read(model: Path, line: str, **beside: Any) -> Captured:
    return capture(str(model), launch=[parse_vllm(line, source="serve.sh")], beside=Beside(**beside))


def adapter(captured: Captured) -> dict[str, Any]:
    (entry,) = captured.manifest["adapters"]
    return dict(entry)


def lora(path: object, *mounts: str) -> str:
    run = f"docker run {' '.join(f'-v {one}' for one in mounts)} {IMAGE}" if mounts else "vllm serve"
    return f"{run} /models/m --enable-lora --lora-modules billing={path}"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The same path as the container sees it, with other bytes, and the folder that is mounted there."""
    return write_adapter(tmp_path / "seen" / "a", b"here"), write_adapter(tmp_path / "served" / "a", b"real")


@pytest.mark.usefixtures("quick")
def test_an_adapter_is_read_where_it_is_mounted_from(
    make_checkpoint: MakeCheckpoint, folders: tuple[Path, Path]
) -> None:
    model, (seen, served) = make_checkpoint(), folders
    wanted = adapter(read(model, lora(served)))["digest"]
    mounted = adapter(read(model, lora(seen, f"{served.parent}:{seen.parent}")))
    assert (mounted["path"], mounted["digest"]) == (str(seen), wanted)
    assert wanted != adapter(read(model, lora(seen)))["digest"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("mount", ["/elsewhere:/other", "volume:{seen}", "$WHERE:{seen}", "../served:{seen}"])
def test_what_is_not_known_to_be_here_is_read_only_when_it_is_given(
    make_checkpoint: MakeCheckpoint, folders: tuple[Path, Path], mount: str
) -> None:
    model, (seen, served) = make_checkpoint(), folders
    line = lora(seen, mount.format(seen=seen.parent))
    captured = read(model, line)
    assert "digest" not in adapter(captured)
    assert "give --adapter billing=FOLDER" in dict(captured.unknown)["adapters.billing.digest"]
    given = adapter(read(model, line, adapters={"billing": served}))
    assert (given["path"], given["rank"]) == (str(seen), 4)


@pytest.mark.usefixtures("quick")
def test_a_relative_path_is_none_of_this_machine(
    make_checkpoint: MakeCheckpoint, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, (seen, _) = make_checkpoint(), folders
    monkeypatch.chdir(seen.parent)
    captured = read(model, lora("a") + " --tokenizer ./a --chat-template a/adapter_config.json")
    unknown = dict(captured.unknown)
    assert "digest" not in adapter(captured)
    for path in ("adapters.billing.digest", "tokenizer", "chat_template"):
        assert "relative to the folder that the engine is started in" in unknown[path]
    assert "give --tokenizer" in unknown["tokenizer"]


@pytest.mark.usefixtures("quick")
def test_a_tokenizer_and_a_draft_are_read_where_they_are_mounted_from_or_given(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    model, served = make_checkpoint(), make_checkpoint("other")
    (tmp_path / "seen").mkdir()
    draft = f"""--speculative-config '{{"method":"eagle","model":"{tmp_path}/seen/{served.name}"}}'"""
    line = f"/models/m --tokenizer {tmp_path}/seen/{served.name} {draft}"
    mounted = read(model, f"docker run -v {served.parent}:{tmp_path}/seen {IMAGE} {line}").manifest
    assert mounted["tokenizer"]["path"] == str(served)
    assert mounted["engine"]["speculative"]["content"]["weights"]
    unmounted = read(model, f"docker run {IMAGE} {line}")
    assert "give --tokenizer FOLDER" in dict(unmounted.unknown)["tokenizer"]
    assert "give --draft FOLDER" in dict(unmounted.unknown)["engine.speculative"]
    given = read(model, f"docker run {IMAGE} {line}", tokenizer=served, draft=served).manifest
    assert (given["tokenizer"], given["engine"]["speculative"]) == (
        mounted["tokenizer"],
        mounted["engine"]["speculative"],
    )


@pytest.mark.usefixtures("quick")
def test_an_adapter_that_no_line_names_has_no_path(make_checkpoint: MakeCheckpoint, folders: tuple[Path, Path]) -> None:
    """Keys hold the path that the engine loads it from; where its files are here is in none."""
    captured = read(make_checkpoint(), "vllm serve /models/m --enable-lora", adapters={"billing": folders[0]})
    assert set(adapter(captured)) == {"name", "digest", "rank", "alpha"}


def test_what_nobody_names_cannot_be_given(make_checkpoint: MakeCheckpoint) -> None:
    model = make_checkpoint()
    for name in ("tokenizer", "draft"):
        with pytest.raises(UsageError, match="no launch line names one") as raised:
            read(model, "vllm serve /models/m", **{name: model})
        assert raised.value.where == f"--{name}"
    with pytest.raises(InputError, match="no such folder"):
        read(model, "vllm serve /models/m --tokenizer /t", tokenizer=Path("/nowhere/at/all"))
