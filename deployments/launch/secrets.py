"""Dropping credentials, so that none of them ever gets past the reading of a launch line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvgate.rules.canonical import sha256
from kvgate.rules.credentials import holds_credential, is_secret, is_secret_name, looks_issued

_USER_INFO = re.compile(r"(?<=://)[^/?#\s@]*(?:@[^/?#\s@]*)*@")
# The beginning of JSON, or of what a shell leaves of it: no template, whose braces stand in pairs.
_STRUCTURE = re.compile(r"\s*(?:\{(?![{%#])|\[)")
_KEY = re.compile(r"[\[{,\"']*[A-Za-z][\w.-]*[\"']?:(?!//)")
_NAME_IN_IT = re.compile(r"([A-Za-z][\w.-]{0,63})[\"']?\s{0,3}[:=]")
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


def clean_text(text: str) -> str | None:
    """Return ``text`` without the credentials of the URLs in it; ``None`` where it is or still holds one."""
    if looks_issued(text):
        return None
    without = _USER_INFO.sub("", text)
    if any(_holds_user_info(word) for word in without.split()):
        return None
    without = _QUERY.sub(lambda match: "" if is_secret_name(match[1]) else match[0], without)
    without = without.rstrip("?&") if without != text and "?" in text else without
    return None if holds_credential(without) else without


def _holds_user_info(word: str) -> bool:
    """Whether a URL still holds an ``@`` behind a colon: it may end a password that has a slash in it."""
    start, end = word.find("://"), word.rfind("@")
    return 0 <= start < end and ":" in word[start + 3 : end]


def _names_one(text: str) -> bool:
    """Whether something in a text is called as a credential is: what stands under it may be nested in any way."""
    return any(is_secret_name(name) for name in _NAME_IN_IT.findall(text))


def clean(value: Any, name: str = "") -> tuple[Any, bool]:
    """Return ``value`` without credentials, and whether something was dropped.

    A mapping loses the keys that hold one, a list the entries; a value that is one becomes ``None``.

    Args:
        value: a JSON value.
        name: what it is called.
    """
    if is_secret(name, value):
        return None, True
    if isinstance(value, Mapping):
        kept: dict[str, Any] = {}
        dropped = False
        for key, item in value.items():
            cleaned, lost = clean(item, key) if clean_text(key) == key else (None, True)
            dropped = dropped or lost
            if not (lost and cleaned is None):
                kept[key] = cleaned
        return kept, dropped
    if isinstance(value, list):
        if any(isinstance(item, str) and _KEY.match(item) and _names_one(item) for item in value):
            return None, True  # a structure that the shell has split into words
        pairs = [clean(item, name) for item in value]
        return [item for item, lost in pairs if not (lost and item is None)], any(lost for _, lost in pairs)
    if isinstance(value, str):
        text = None if _STRUCTURE.match(value) and _names_one(value) else clean_text(value)
        return text, text != value
    return value, False
