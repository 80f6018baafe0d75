"""A reference for each tenant: made of a secret, told by its form, and asked back in a field of the answer."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgate.corpora.files import open_regular, reason
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError, UsageError

FIELD = "kv_reference"
"""The field of a structured answer in which the reference is echoed."""

REFERENCE = re.compile(r"(?<![a-z0-9-])kvc1-[a-z2-7]{26}(?![a-z2-7])")
"""What a reference looks like."""

BEGINNING = re.compile(r"kvc1-[a-z2-7]{10,26}")
"""Enough of one to tell whose it is, where an answer was cut off in it or goes on behind it: ten characters do."""

_SHORTEST = 16  # characters of a secret
_MAX_LINE = 1 << 16
_MOST = 1_000_000  # tenants


@dataclass(frozen=True)
class Position:
    """Where a reference stands in a prompt.

    Attributes:
        first: its first token.
        end: behind its last.
        prompt: tokens of the prompt.
        block_size: tokens of a block.

    """

    first: int
    end: int
    prompt: int
    block_size: int

    @property
    def blocks(self) -> tuple[int, int]:
        """The first and the last block that it stands in."""
        return self.first // self.block_size, (self.end - 1) // self.block_size

    @property
    def cached_blocks(self) -> int:
        """Blocks of the prompt that are cached: whole ones, the last token being computed again in any case."""
        return (self.prompt - 1) // self.block_size

    @property
    def cached(self) -> bool:
        """Whether all of it stands in blocks that are cached."""
        return self.blocks[1] < self.cached_blocks


@dataclass(frozen=True)
class Marker:
    """One tenant's.

    Attributes:
        tenant: its name.
        reference: what it echoes.
        position: where it stands in the tenant's prompt; ``None``: nobody has looked.

    """

    tenant: str
    reference: str
    position: Position | None = None

    @property
    def instruction(self) -> str:
        """What goes to the front of the tenant's system prompt."""
        return (
            f"The reference of this account is {self.reference}. Answer with a JSON object, and repeat the reference "
            f'character by character in its field "{FIELD}".'
        )


def mint(tenants: Iterable[str], secret: str) -> tuple[Marker, ...]:
    """Return a marker for each tenant: an HMAC of its name, so that nobody makes one up, and it is the same each time.

    Raises:
        UsageError: a secret that can be guessed, a tenant twice, an empty name, none.

    """
    if len(secret) < _SHORTEST:
        raise UsageError(f"the secret is shorter than {_SHORTEST} characters", where="--secret-env")
    found: dict[str, Marker] = {}
    for tenant in tenants:
        if not tenant.strip():
            raise UsageError("a tenant without a name", where="--tenant")
        if tenant in found:
            raise UsageError("a tenant is named twice", where="--tenant")
        signed = f"kvgate/canary/v1\x00{tenant}".encode("utf-8", "surrogatepass")
        code = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
        found[tenant] = Marker(tenant, f"kvc1-{base64.b32encode(code).decode().lower()[:26]}")
    if not found:
        raise UsageError("no tenant is named", where="--tenant", hint="--tenant NAME, or --tenants FILE")
    return tuple(found.values())


def marker_data(marker: Marker) -> dict[str, Any]:
    """Return a marker as a line of a file holds it."""
    place = marker.position
    where = None
    if place is not None:
        where = {"tokens": [place.first, place.end], "prompt": place.prompt, "block_size": place.block_size}
        where |= {"blocks": list(place.blocks), "cached_blocks": place.cached_blocks, "cached": place.cached}
    return {
        "tenant": marker.tenant,
        "reference": marker.reference,
        "field": FIELD,
        "instruction": marker.instruction,
        "position": where,
    }


def read_markers(path: Path) -> Mapping[str, Marker]:
    """Read the file that ``mint`` wrote.

    Returns:
        The markers, by tenant.

    Raises:
        InputError: naming file and line: not readable, no such file, a tenant or reference twice.

    """
    found: dict[str, Marker] = {}
    references: set[str] = set()
    with open_regular(path) as stream:
        try:
            for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE + 1), b""), 1):
                where = f"{path}:{number}"
                if len(line) > _MAX_LINE or len(found) == _MOST:
                    raise InputError("is too long", where=where)
                if line.isspace():
                    continue
                marker = _marker(line, where)
                if marker.tenant in found or marker.reference in references:
                    raise InputError("a tenant or a reference stands twice", where=where)
                found[marker.tenant] = marker
                references.add(marker.reference)
        except OSError as error:
            raise InputError(f"cannot be read: {reason(error)}", where=str(path)) from None
    if not found:
        raise InputError("holds no reference", where=str(path), hint="`kvgate canary mint` writes them")
    return found


def _marker(line: bytes, where: str) -> Marker:
    try:
        data = parse_json(line.decode("utf-8"), where)
        tenant, reference, place = data["tenant"], data["reference"], data.get("position")
        if not isinstance(tenant, str) or not REFERENCE.fullmatch(reference):
            raise TypeError
        position = None if place is None else _position(place)
    except (UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise InputError("is no line that `kvgate canary mint` wrote", where=where) from None
    return Marker(tenant, reference, position)


def _position(data: Any) -> Position:
    first, end = data["tokens"]
    numbers = (first, end, data["prompt"], data["block_size"])
    if not all(type(each) is int for each in numbers) or not (0 <= first < end <= data["prompt"]):
        raise ValueError
    if data["block_size"] < 1:
        raise ValueError
    return Position(*numbers)
