"""Builds the tokenizer that transformers really builds, and says what it is; in the bounded child only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase as fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

from blake3 import blake3

from kvgate.corpora.files import listing, open_regular, read_text
from kvgate.corpora.fingerprint import fingerprint
from kvgate.corpora.templates.template import CONFIG
from kvgate.corpora.tokenizers.effective import canonical, written_out
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError

# Every file that a tokenizer class of transformers reads its vocabulary or rules from; templates apart.
_PATTERNS = (
    "tokenizer.json",
    "tokenizer.*.json",
    CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "tekken.json",
)
_MAX_FILE = 256 << 20  # the largest public one has 33 MB


class Folder:
    """The tokenizer files of a model folder, checked before any library reads them."""

    def __init__(self, path: Path) -> None:
        """Find, hash and check them.

        Raises:
            InputError: a file cannot be read, is too large, or is no strict JSON.

        """
        self.path = path
        found = [path / name for name in sorted(listing(path)) if any(fnmatch(name, one) for one in _PATTERNS)]
        self.files = {file.name: _digest(file) for file in found}
        contents = {file.name: _parsed(file) for file in found if file.suffix == ".json"}
        self.config: Mapping[str, Any] = contents.get(CONFIG, {})


def build(folder: Folder) -> Any:
    """Load the tokenizer as ``AutoTokenizer`` does, without remote code and without the network.

    Returns:
        The tokenizer, or a string that says why it cannot be built here.

    Raises:
        InputError: it needs code of the model repository, or the files are no tokenizer.

    """
    from transformers import AutoTokenizer
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    where = str(folder.path)
    if not folder.files:
        return "there is no tokenizer file in the folder"
    named = folder.config.get("tokenizer_class")
    if needs_code(folder.config) and not (
        isinstance(named, str) and any(tokenizer_class_from_name(name) for name in (named, named.removesuffix("Fast")))
    ):
        raise InputError(
            "the tokenizer needs code of the model repository (auto_map), which kvgate never runs",
            where=str(folder.path / CONFIG),
            hint="serve a tokenizer with a class of transformers itself; nothing else can be vouched for",
        )
    try:
        return AutoTokenizer.from_pretrained(where, trust_remote_code=False, local_files_only=True)
    except ImportError as error:
        return f"a package that its class needs is not installed: {_first_line(error)}"
    except MemoryError:
        raise
    except Exception as error:
        if "sentencepiece" in str(error) or "tiktoken" in str(error):
            return f"a package that its format needs is not installed: {_first_line(error)}"
        raise _unloadable(error, where) from None
    except BaseException as error:
        # A panic in native code is no Exception, so that it is not caught by accident.
        if type(error).__name__ != "PanicException":
            raise
        raise _unloadable(error, where) from None


def needs_code(config: Mapping[str, Any]) -> bool:
    """Tell whether tokenizer_config.json names tokenizer code of the model repository."""
    named = config.get("auto_map")
    return bool(named.get("AutoTokenizer") if isinstance(named, dict) else named)


def describe(tokenizer: Any) -> dict[str, Any]:
    """Return ``effective``, ``vocabulary`` and ``special_tokens`` of a tokenizer, and why one is missing.

    ``effective`` is of the parts that :mod:`kvgate.corpora.tokenizers.effective` keeps: everything that only names,
    pads or stops is left out (incident I14).
    """
    parts = written_out(tokenizer)
    return {
        "effective": None if isinstance(parts, str) else fingerprint(canonical(parts)),
        "vocabulary": _vocabulary(tokenizer),
        "special_tokens": _special_tokens(tokenizer),
        "unread": [("effective", parts)] if isinstance(parts, str) else [],
    }


def versions() -> dict[str, str]:
    """Return the versions of the libraries that render and encode in this environment."""
    return {name: metadata.version(name) for name in ("transformers", "tokenizers", "jinja2")}


def _vocabulary(tokenizer: Any) -> dict[str, Any] | None:
    try:
        vocabulary = tokenizer.get_vocab()
    except NotImplementedError:
        return None
    entries = sorted(vocabulary.items(), key=lambda entry: (entry[1], entry[0]))
    return {"size": len(entries), "digest": fingerprint(entries)}


def _special_tokens(tokenizer: Any) -> dict[str, Any]:
    named: dict[str, Any] = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    extra = [str(token) for token in getattr(tokenizer, "extra_special_tokens", None) or ()]
    return dict(sorted({**named, **({"extra_special_tokens": extra} if extra else {})}.items()))


def _digest(path: Path) -> str:
    hasher = blake3()
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > _MAX_FILE:
            raise InputError(f"{size:,} bytes are more than the {_MAX_FILE:,} that are read", where=str(path))
        while chunk := stream.read(1 << 20):
            hasher.update(chunk)
    return f"blake3:{hasher.hexdigest()}"


def _parsed(path: Path) -> dict[str, Any]:
    # Written by Python's json, which knows Infinity: model_max_length has been one.
    value = parse_json(read_text(path, _MAX_FILE), str(path), non_finite=True)
    if not isinstance(value, dict):
        raise InputError("not a JSON object", where=str(path))
    return value


def _unloadable(error: BaseException, where: str) -> InputError:
    return InputError(
        f"transformers cannot build a tokenizer from it: {type(error).__name__}: {_first_line(error)}",
        where=where,
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else ""
