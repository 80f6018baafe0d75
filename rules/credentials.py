"""Telling credentials from settings: by the names they stand under, and by what they look like.

There is one list of names and one of looks, and two readers of them. Who reads a launch line drops what may be one
(:func:`is_secret_name`, :func:`is_secret`, :func:`looks_issued`): there a value is a setting, and one too many is
asked for again. Who reads what kvgate wrote refuses what is one (:func:`holds_credential`,
:func:`refuse_credentials`): there a text may be prose. Whatever is refused was dropped before.

Nothing here returns or shows a credential. Every search passes over a text once: an input chooses what is searched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kvgate.rules.errors import InputError

# A name is a credential's when one of its words says so; "tokens" and "tokenizer" are other words.
_WORDS = frozenset(
    {"token", "password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials", "apikey"}
    | {"auth", "authorization", "bearer", "cookie", "sas", "dsn", "sk"}
)
# Half of one: dropped where a setting has the name, and no credential where it stands in a file.
_HALVES = frozenset({"username"})
_PAIRS = frozenset(
    {(first, "key") for first in ("api", "access", "private", "secret", "account", "license", "encryption", "signing")}
    | {("shared", "key"), ("connection", "string"), ("api", "keys"), ("master", "key"), ("otlp", "headers")}
)
# Last words of names that speak about a credential and hold none: where it is read from, how long it lasts.
_ABOUT = frozenset(
    {"file", "path", "dir", "env", "var", "id", "ids", "index", "idx", "type", "mode", "count", "num", "size", "length"}
    | {"limit", "ttl", "timeout", "enabled", "required", "name"}
)
# Names under which a number is no setting either.
_NUMBERS = frozenset({"password", "passwd", "passphrase", "pwd", "secret", "apikey"})
# Words before "token" that make it a word of a model's vocabulary (tokenizer_config.json, config.json).
_OF_A_VOCABULARY = frozenset(
    {"bos", "eos", "pad", "unk", "sep", "cls", "mask", "image", "img", "video", "audio", "vision", "boi", "eoi", "boa"}
    | {"eoa", "bot", "eot", "start", "end", "begin", "stop", "think", "prefix", "suffix", "middle", "decoder", "box"}
    | {"newline", "special", "tool", "call", "fim", "placeholder", "speech", "patch", "row", "next"}
)
_OF_AN_ACCOUNT = frozenset(
    {"hf", "hub", "huggingface", "hugging", "face", "api", "access", "auth", "bearer", "refresh", "session", "security"}
    | {"github", "gh", "registry", "login", "user", "service", "admin"}
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

# What credentials look like wherever they stand (published formats of the issuers); a percent escape may stand before.
_ISSUED = re.compile(
    r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-Fa-f]{2}))(?:hf_[A-Za-z0-9]{16}|sk-[A-Za-z0-9_-]{16}|gh[pousr]_[A-Za-z0-9]{16}"
    r"|github_pat_[A-Za-z0-9_]{16}|glpat-[A-Za-z0-9_-]{16}|xox[abprs]-[A-Za-z0-9-]{10}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    # the base64 of {"alg":, {"typ": and {"kid":, with which a JSON web token starts
    r"|eyJ(?:hbGciOi|0eXAiOi|raWQiOi))"
    r"|(?i:\bauthorization\b\W{1,9}(?:bearer|basic|token)\s{1,9}\S)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
)
_HEADER = re.compile(r"(?i:\b(?:bearer|basic)\s{1,9}[A-Za-z0-9._~+/=-]{8})")
# In prose "basic" is followed by a word; sixteen characters with a digit among them are none.
_HEADER_IN_PROSE = re.compile(r"(?i:\b(?:bearer|basic)\s{1,9}(?=[A-Za-z._~+/=-]{0,99}[0-9])[A-Za-z0-9._~+/=-]{16})")
_QUERY = re.compile(r"(?<=[?&;])([A-Za-z0-9_.%-]{1,99})=[^&;#\s]")
_SIGNATURES = frozenset({"sig", "signature", "x-amz-signature", "x-goog-signature"})
# "NAME=VALUE", "--NAME VALUE" and "NAME: VALUE", with whatever quotes stand between; the value may be a name itself.
_ASSIGNED = re.compile(
    r"(?<![A-Za-z0-9_.-])(-{0,2})([A-Za-z][A-Za-z0-9_.-]{0,63})[\"']?(\s{0,3}[=:]\s{0,3}|\s{1,3})[\"']?(?=([^\s\"',;&]{1,99}))"
)
_NO_VALUE = re.compile(r"-|\*+$|[$<({\[]|(?i:null|none|true|false|yes|no|unset|redacted)$")
# What stands for a credential, or is a word of a vocabulary: "${HF_TOKEN}", "***", "<|pad|>", "[PAD]", a digest.
_STANDS_FOR_ONE = re.compile(
    r"(?:sha256|blake3):[0-9a-f]{64}|\*+|\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|<[^<>\s]{1,60}>|\[[A-Z_]{1,20}\]"
)
# Of a URL without its scheme: what stands between the user information and a host that has a port.
_HOST_AND_PORT = re.compile(r"@[^\s/@:?#]{1,255}:[0-9]{1,5}(?![0-9A-Za-z])")
_HOST_AND_WORD = re.compile(r"[^\s/?#@\[:]*:(?![0-9]{1,5}(?:[/?#]|$)|[/?#]|$)")
_STORES = ("redis", "rediss", "valkey", "valkeys", "memcached", "mongodb", "postgres", "postgresql", "mysql", "amqp")
# A URL with a slip in it (``redis:/:password@host``, ``redis:// :password@host``).
_SLIPPED = re.compile(r"(?<![A-Za-z0-9\]]):[^\s/@:]{1,256}@[A-Za-z0-9]")
_SCHEMELESS = re.compile(r"(?<![/:])//[^/@\s:]*:[^/@\s]*@")
_QUOTED = 200  # characters of a path, which a hostile input can make very long
_END_OF_URL = re.compile(r"[\s\"'`<>]")


def is_secret_name(name: str) -> bool:
    """Whether a flag, variable or key of this name may hold a credential (``HF_TOKEN``, ``secretKey``)."""
    words = _words(name)
    return (
        any(word in _WORDS | _HALVES for word in words)
        or any(pair in _PAIRS for pair in pairwise(words))
        or words[-1:] == ["pass"]
    )


def is_secret(name: str, value: Any) -> bool:
    """Whether what stands under a name in a launch line may be a credential because of the name.

    A number is none but under a name that says so plainly (``eos_token_id: 2``, ``password: 1234``).
    """
    if value is None or isinstance(value, bool):
        return False
    return _is_one(name, value, vocabulary=False) if isinstance(value, (int, float)) else is_secret_name(name)


def looks_issued(value: str) -> bool:
    """Whether a setting looks like a credential: as issuers spell theirs, or as a header carries it."""
    return _ISSUED.search(value) is not None or _HEADER.search(value) is not None


def holds_credential(text: str) -> bool:
    """Whether a credential stands in a text: in a URL, after a name, or as issuers spell theirs."""
    if _ISSUED.search(text) or _HEADER_IN_PROSE.search(text):
        return True
    if any(
        name.lower() in _SIGNATURES or _says_credential(_words(name), vocabulary=False) for name in _QUERY.findall(text)
    ):
        return True
    if "@" in text and (_SCHEMELESS.search(text) or _SLIPPED.search(text) or _in_a_url(text)):
        return True
    return any(_assigned(*match.groups()) for match in _ASSIGNED.finditer(text))


def refuse_credentials(
    document: Any,
    source: str,
    lines: Mapping[tuple[str, ...], int] | None = None,
    *,
    vocabulary: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
) -> None:
    """Refuse plain data in which a credential stands.

    Args:
        document: plain data.
        source: what to call it in the error.
        lines: the line of every mapping key by its path.
        vocabulary: dotted paths below which ``*_token`` names a word of the model's vocabulary.
        names: dotted paths whose keys are names that somebody gave (of files), not names of settings.

    Raises:
        InputError: naming the path, never the value; where a key is a credential, the path of what holds it.

    """
    found = _find(document, (), vocabulary, names)
    if found is None:
        return
    line = (
        next((lines[found[:end]] for end in range(len(found), 0, -1) if found[:end] in lines), None) if lines else None
    )
    raise InputError(
        f"{'.'.join(found)[:_QUOTED]} holds credentials" if found else "holds credentials",
        where=source if line is None else f"{source}:{line}",
        hint="leave user, password and tokens out; kvgate never needs them",
    )


def _find(
    value: Any, path: tuple[str, ...], vocabulary: tuple[str, ...], names: tuple[str, ...]
) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return path if holds_credential(value) else None
    if isinstance(value, Mapping):
        dotted = ".".join(path)
        lenient = any(f".{one}." in f".{dotted}." for one in vocabulary)  # in roles, too
        for key, item in value.items():
            if holds_credential(key):
                return path
            inside = (*path, key)
            if dotted not in names and _is_one(key, item, vocabulary=lenient):
                return inside
            if (found := _find(item, inside, vocabulary, names)) is not None:
                return found
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            if (found := _find(item, (*path, str(number)), vocabulary, names)) is not None:
                return found
    return None


def _is_one(name: str, value: Any, *, vocabulary: bool) -> bool:
    """Whether what stands under a name is a credential because of the name."""
    words = _words(name)
    if not _says_credential(words, vocabulary=vocabulary):
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return words[-1] in _NUMBERS or any(pair in _PAIRS for pair in pairwise(words))
    return any(not _STANDS_FOR_ONE.fullmatch(text) for text in _texts(value))


def _says_credential(words: list[str], *, vocabulary: bool) -> bool:
    """Whether a name is a credential's own, and not of something about one, nor of a word of a vocabulary."""
    if not words or words[-1] in _ABOUT:
        return False
    if any(pair in _PAIRS for pair in pairwise(words)) or any(word in _WORDS - {"token"} for word in words):
        return True
    if words[-1] == "pass":
        return True
    if "token" not in words:
        return False
    others = set(words) - {"token"}
    if others & _OF_AN_ACCOUNT:
        return True
    # "token-keyed" and "long-prefill-token-threshold" are about tokens of a prompt.
    return words[-1] == "token" and not (others and (vocabulary or others & _OF_A_VOCABULARY))


def _texts(value: Any) -> list[str]:
    """Return the texts in a value that are not empty."""
    if isinstance(value, str):
        return [value] if value else []
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    return []


def _assigned(dashes: str, name: str, between: str, value: str) -> bool:
    """Whether an assignment in a text is of a credential: a flag, a variable, or a clear name and a colon."""
    sign = between.strip()
    if (not sign and dashes != "--") or _NO_VALUE.match(value) or _STANDS_FOR_ONE.fullmatch(value):
        return False
    words = _words(name)
    if not _says_credential(words, vocabulary=False):
        return False
    clear = tuple(words[-2:]) in _PAIRS or words[-1] in _NUMBERS or bool(set(words) & _OF_AN_ACCOUNT)
    if dashes == "--":
        return clear or not value.isdecimal()
    if sign == "=":
        return clear or len(value) >= 16
    return clear and words != ["secret"]  # in prose a colon ends a clause: "secret: it is not known"


def _in_a_url(text: str) -> bool:
    """Whether a URL holds user information; a password may hold slashes, colons, question marks and more ``@``."""
    before, *rest = text.split("://")
    for part in rest:
        scheme = before[-16:].rpartition(" ")[2].lower()
        before = part
        end = _END_OF_URL.search(part)
        url = part[: end.start()] if end else part
        if "@" not in url:
            continue
        authority = re.split(r"[/?#]", url, maxsplit=1)[0]
        if (
            "@" in authority
            or scheme.endswith(_STORES)
            or _HOST_AND_WORD.match(authority)
            or authority.startswith(":")
            or _HOST_AND_PORT.search(url)
        ):
            return True
    return False


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(name)]
