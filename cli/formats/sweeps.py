"""What a sweep of two tokenizers showed, in a few lines for a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.cli.plain import marked, short

_LONGEST = 60  # characters of one string


def sweep_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Say what the figures of a sweep hold, their strings made harmless.

    Args:
        found: as :meth:`kvgate.corpora.sweeps.result.SweepResult.figures` gives them.

    Raises:
        KeyError: they are something else.
        TypeError: likewise.

    """
    yield f"swept: {found['strings']:,} strings, {found['divergent']:,} of which diverge"
    if found["otherMeanings"]:
        yield f"ids that stand for other text: {found['otherMeanings']:,}"
    for part in found["parts"]:
        yield f"the tokenizers differ: {part['part']}: {part['what']} ({part['count']:,})"
    for one in found["first"]:
        text = short(marked(one["text"]), _LONGEST)
        yield f"{one['group']}: '{text}', from token {one['at']:,} of {len(one['old']):,} (new: {len(one['new']):,})"
    for one in found["unswept"]:
        yield f"not swept: {one['what']}: {one['why']}"
