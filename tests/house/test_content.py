"""No tracked file names the machine it was written on, or the host of a package registry."""

from __future__ import annotations

import re

import pytest

from .repository import ROOT, tracked

# Split, so that this file does not name what it forbids.
_HOSTS = [("pypi", "org"), ("pythonhosted", "org"), ("registry.npmjs", "org"), ("npmjs", "com"), ("deb.debian", "org")]
_FOLDERS = ["home/[a-z]", "Users/[A-Za-z]", "work/[a-z]", "tmp/pytest-", "root/[.]pyenv"]
FORBIDDEN = re.compile(
    "|".join(
        [
            *(re.escape(f"{name}.{top}") for name, top in _HOSTS),
            *(rf"(?<![\w.$}}~-])/{folder}" for folder in _FOLDERS),
            re.escape(str(ROOT)),
        ]
    ).encode()
)


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    found = {name: FORBIDDEN.search((ROOT / name).read_bytes()) for name in tracked() if (ROOT / name).is_file()}
    assert {name: match[0] for name, match in found.items() if match} == {}


@pytest.mark.parametrize(
    "text",
    [
        f"see {ROOT}/rules",
        "open('/" + "home/somebody/x')",
        "PATH=/" + "Users/somebody",
        "https://files." + "pythonhosted" + ".org/packages",
        "index-url = https://" + "pypi" + ".org/simple",
    ],
)
def test_each_kind_is_found(text: str) -> None:
    assert FORBIDDEN.search(text.encode())


@pytest.mark.parametrize(
    "text", ["weights/home/a", "$HOME/x", "~/home/x", "https://example.org/home/x", "PyPI", "/data/home"]
)
def test_what_only_looks_like_it_is_not(text: str) -> None:
    assert not FORBIDDEN.search(text.encode())
