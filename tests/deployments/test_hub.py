"""The hub, through its own client, against a local server: what people expect of that library, and clear errors."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvgate.deployments.hub import obtain, split_repository
from kvgate.deployments.published import published
from kvgate.rules.errors import InputError

from .hub_server import Hub, Repository, serving

FIRST, SECOND = "a" * 40, "b" * 40
LARGE_FILE = bytes(range(256)) * 100
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": LARGE_FILE,
    "chat_template.jinja": b"x",
    "modeling.py": b"a = 1",
    "pytorch_model.bin": b"pickle",
    "training.pt": b"pickle",
    "README.md": b"words",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    repository = Repository({FIRST: FILES, SECOND: {**FILES, "config.json": b"{}"}}, {"main": SECOND, "v1.0": FIRST})
    with serving(Hub({"org/m": repository})) as running:
        yield running


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits between its attempts; the tests need not."""
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_a_branch_and_a_tag_become_a_commit(hub: Hub, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None, str]] = []

    def progress(stage: str, done: int, total: int | None, unit: str) -> None:
        told.append((stage, done, total, unit))

    main = obtain("org/m", None, progress, endpoint=hub.url, cache=tmp_path)
    tag = obtain("org/m", "v1.0", endpoint=hub.url, cache=tmp_path)
    pinned = obtain("org/m", FIRST, endpoint=hub.url, cache=tmp_path)
    assert (main.commit, tag.commit, pinned.commit) == (SECOND, FIRST, FIRST)
    assert (main.folder / "config.json").read_bytes() == b"{}"
    assert (tag.folder / "config.json").read_bytes() == FILES["config.json"]
    assert tag.folder == pinned.folder
    assert told
    assert told[-1][0] == "downloading"
    assert max(done for _, done, _, _ in told) >= len(LARGE_FILE)


def test_pickle_and_prose_are_not_fetched(hub: Hub, tmp_path: Path) -> None:
    found = obtain("org/m", None, endpoint=hub.url, cache=tmp_path)
    assert {path.name for path in found.folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "chat_template.jinja",
        "modeling.py",
    }
    assert not [path for _, path in hub.requests if path.endswith((".bin", ".pt", ".md"))]


def test_without_weights_no_tensor_is_fetched(hub: Hub, tmp_path: Path) -> None:
    found = obtain("org/m", None, weights=False, endpoint=hub.url, cache=tmp_path)
    assert not (found.folder / "model.safetensors").exists()
    assert (found.folder / "chat_template.jinja").exists()


def test_a_cut_connection_is_an_error_and_the_next_run_goes_on(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = 1000
    with pytest.raises(InputError, match="the download failed") as caught:
        obtain("org/m", None, endpoint=hub.url, cache=tmp_path)
    assert caught.value.where == "org/m"
    hub.cut_after = None
    found = obtain("org/m", None, endpoint=hub.url, cache=tmp_path)
    assert (found.folder / "model.safetensors").read_bytes() == LARGE_FILE


def test_a_hub_that_is_down_leaves_the_cache_in_force(hub: Hub, tmp_path: Path) -> None:
    obtain("org/m", None, endpoint=hub.url, cache=tmp_path)
    hub.broken = 503
    assert obtain("org/m", None, endpoint=hub.url, cache=tmp_path).commit == SECOND
    with pytest.raises(InputError, match="not in the cache"):
        obtain("org/other", None, endpoint=hub.url, cache=tmp_path)


def test_refusals_say_what_to_do(hub: Hub, tmp_path: Path) -> None:
    def refusal(repo: str, revision: str | None = None) -> InputError:
        with pytest.raises(InputError) as caught:
            obtain(repo, revision, endpoint=hub.url, cache=tmp_path)
        assert "\n" not in str(caught.value)
        assert hub.url not in str(caught.value)
        return caught.value

    missing = refusal("org/none")
    assert (missing.where, missing.message) == ("org/none", "there is no such repository, or it is private")
    assert missing.hint is not None
    assert "HF_TOKEN" in missing.hint
    assert refusal("org/m", "v9").message == "the repository has no such revision"
    assert refusal("org/m", "c" * 40).message == "the repository has no such revision"
    assert refusal("not a name").message == "cannot be the name of a repository"
    hub.repositories["org/m"].gated = True
    gated = refusal("org/m")
    assert "gated" in gated.message
    assert gated.hint is not None
    assert "HF_TOKEN" in gated.hint


def test_an_unreachable_hub_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not in the cache, and the hub cannot be reached"):
        obtain("org/m", None, endpoint="http://127.0.0.1:9", cache=tmp_path)


def test_a_cache_that_cannot_be_written_is_one_clear_error(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be stored|not in the cache"):
        obtain("org/m", None, endpoint=hub.url, cache=tmp_path / "file")


SCRIPT = """
import json, sys
from kvgate.deployments.hub import obtain
from kvgate.rules.errors import InputError
try:
    found = obtain("org/m", None)
    print(json.dumps([found.commit, str(found.folder)]))
except InputError as error:
    print(json.dumps([str(error)]))
"""


def _as_users_do(**settings: str) -> tuple[list[str], str]:
    """Run in a process of its own: the library reads its settings while it is imported."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**environment, **settings}, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout), done.stdout + done.stderr


def test_settings_token_and_offline_mode_are_the_librarys(hub: Hub, tmp_path: Path) -> None:
    token = "hf_" + "q" * 30
    hub.repositories["org/m"].token = token
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path)}
    refused, _ = _as_users_do(**settings)
    assert "there is no such repository, or it is private" in refused[0]
    found, output = _as_users_do(**settings, HF_TOKEN=token)
    assert found[0] == SECOND
    assert found[1].startswith(str(tmp_path))
    assert token in hub.tokens
    assert token not in output
    seen = len(hub.requests)
    offline, _ = _as_users_do(**settings, HF_HUB_OFFLINE="1")
    assert offline == found
    assert len(hub.requests) == seen
    nothing, _ = _as_users_do(HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "other"), HF_HUB_OFFLINE="1")
    assert "not in the cache" in nothing[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/m", ("org/m", None)),
        ("org/m@main", ("org/m", "main")),
        ("org/m@refs/pr/3", ("org/m", "refs/pr/3")),
        ("gpt2", ("gpt2", None)),
        ("/a/b", None),
        ("../x", None),
        ("a/b/c", None),
        ("org/..", None),
        ("s3://bucket/x", None),
        ("", None),
    ],
)
def test_what_can_name_a_repository(text: str, expected: tuple[str, str | None] | None) -> None:
    assert split_repository(text) == expected


def test_a_hub_that_says_nothing_is_not_waited_for(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection, as a proxy that drops packets does; what the cache holds counts then."""
    monkeypatch.setattr("kvgate.deployments.hub.SECONDS", 0.5)
    monkeypatch.setattr("kvgate.deployments.published.SECONDS", 0.5)
    obtain("org/m", "main", endpoint=hub.url, cache=tmp_path)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(20)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert obtain("org/m", "main", endpoint=url, cache=tmp_path).commit == SECOND
        with pytest.raises(InputError, match="not in the cache"):
            obtain("org/n", "main", endpoint=url, cache=tmp_path)
        with pytest.raises(InputError, match="does not answer within"):
            published("org/m", "main", endpoint=url)
