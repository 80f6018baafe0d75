"""Telling credentials from settings, so that none of them ever gets past the reading of a launch line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kvgate.rules.canonical import sha256

# A name is a credential's when one of its words says so; "tokens" and "tokenizer" are other words.
_SECRET_WORDS = {
    "token",
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "apikey",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "sas",
}
_SECRET_PAIRS = {
    ("api", "key"),
    ("access", "key"),
    ("private", "key"),
    ("secret", "key"),
    ("account", "key"),
    ("license", "key"),
    ("encryption", "key"),
    ("signing", "key"),
    ("shared", "key"),
    ("connection", "string"),
    ("api", "keys"),
}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# What credentials look like wherever they stand (published formats of the issuers).
_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{16}|sk-[A-Za-z0-9_-]{16}|gh[pousr]_[A-Za-z0-9]{16}|github_pat_[A-Za-z0-9_]{16}"
    r"|glpat-[A-Za-z0-9_-]{16}|xox[abprs]-[A-Za-z0-9-]{10}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    # the base64 of {"alg":, {"typ": and {"kid":, with which a JSON web token starts
    r"|eyJ(?:hbGciOi|0eXAiOi|raWQiOi)|(?i:bearer|basic)\s{1,9}[A-Za-z0-9._~+/=-]{8}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
)
_USER_INFO = re.compile(r"(?<=://)[^/?#\s@]*(?:@[^/?#\s@]*)*@")
_QUERY = re.compile(r"(?<=[?&;])([A-Za-z0-9_.%-]+)=[^&;#\s]*[&;]?")

# Texts that say nothing of whose deployment it is: numbers, switches, efforts, and paths.
_PLAIN = re.compile(
    r"[-+]?[0-9][0-9.,:x*]{0,31}|(?:/[\w.@+-]+)+/?|sha256:[0-9a-f]{64}"
    r"|(?i:true|false|yes|no|on|off|none|null|auto|default|enabled?|disabled?|minimal|min|low|medium|high|max|xhigh"
    r"|spawn|fork|all|always|never|text|json|string|openai|system|user|assistant|tool|developer)"
)


def without_text(value: Any) -> Any:
    """Return a JSON value with its free text as digests: it can be compared, and shows nobody's prompt or name."""
    if isinstance(value, Mapping):
        return {key: without_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_text(item) for item in value]
    if isinstance(value, str) and value and not _PLAIN.fullmatch(value):
        return sha256(value.encode("utf-8", "surrogatepass"))
    return value


def is_secret_name(name: str) -> bool:
    """Whether a flag, variable or key of this name holds a credential (``HF_TOKEN``, ``secretKey``)."""
    words = [word.lower() for word in _WORD.findall(name)]
    return any(word in _SECRET_WORDS for word in words) or any(pair in _SECRET_PAIRS for pair in pairwise(words))


def clean_text(text: str) -> str | None:
    """Return ``text`` without the credentials of the URLs in it; ``None`` where it is a credential itself."""
    if _SHAPES.search(text):
        return None
    without = _USER_INFO.sub("", text)
    if any(_holds_user_info(word) for word in without.split()):
        return None
    without = _QUERY.sub(lambda match: "" if is_secret_name(match[1]) else match[0], without)
    return without.rstrip("?&") if without != text and "?" in text else without


def _holds_user_info(word: str) -> bool:
    """Whether a URL still holds an ``@`` behind a colon: it may end a password that has a slash in it."""
    start, end = word.find("://"), word.rfind("@")
    return 0 <= start < end and ":" in word[start + 3 : end]


def clean(value: Any, name: str = "") -> tuple[Any, bool]:
    """Return ``value`` without credentials, and whether something was dropped.

    A mapping loses the keys that hold one, a list the entries; a value that is one becomes ``None``.

    Args:
        value: a JSON value.
        name: what it is called; a number or a boolean is never taken for a credential (``eos_token_id``).
    """
    if isinstance(value, Mapping):
        kept: dict[str, Any] = {}
        dropped = False
        for key, item in value.items():
            cleaned, lost = clean(item, key)
            dropped = dropped or lost or _is_text_secret(key, item)
            if not _is_text_secret(key, item) and not (lost and cleaned is None):
                kept[key] = cleaned
        return kept, dropped
    if isinstance(value, list):
        pairs = [clean(item, name) for item in value]
        return [item for item, lost in pairs if not (lost and item is None)], any(lost for _, lost in pairs)
    if isinstance(value, str):
        if is_secret_name(name):
            return None, True
        text = clean_text(value)
        return text, text != value
    return value, False


def _is_text_secret(key: str, item: Any) -> bool:
    return clean_text(key) != key or (is_secret_name(key) and not isinstance(item, (bool, int, float, type(None))))
