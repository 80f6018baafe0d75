"""What ``kvgate rehearse`` writes: where evidence goes, what makes it again, and what it must not write over."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.rules.manifest import Manifest

_SIDES = ("old", "new")
_SHOWN = ("output", "quiet", "no_color", "debug")  # what is written and how, which changes nothing that is seen


def command_of(command: Callable[..., int], given: Mapping[str, Any]) -> str:
    """Return the line that does the same again: every option that is not at its default.

    Args:
        command: the function behind it.
        given: its arguments, by name. None of them holds a secret: keys of APIs are given by the names of variables.

    """
    words = ["kvgate", command.__name__, *(str(given[side]) for side in _SIDES)]
    for name, parameter in inspect.signature(command).parameters.items():
        value = given[name]
        if name in (*_SIDES, *_SHOWN) or value is None or value == parameter.default:
            continue
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [option] if one is True else [option, f"{one:g}" if isinstance(one, float) else str(one)]
    return shlex.join(words)


def evidence_paths(output: Path, *, tear: bool) -> list[Path]:
    """Return where evidence of isolation goes, and beside it that about KV, and about torn entries if they were."""
    beside = ["kv-equivalence", *(["lifecycle-audit"] if tear else [])]
    return [output, *(output.with_name(f"{output.stem}.{kind}.json") for kind in beside)]


def refuse_losing(paths: Iterable[Path], old: Manifest, new: Manifest) -> None:
    """Refuse to write over a refutation of these deployments: whoever checks next would not hear of it.

    That KV differs is no reason: it does so wherever other weights are kept apart, and every run says so anew.

    Raises:
        UsageError: naming the file.

    """
    from kvgate.inputs import load_evidence
    from kvgate.rules.errors import InputError, UsageError

    for path in paths:
        if not path.is_file():
            continue
        try:
            held = [evidence for evidence, _, _ in load_evidence([path])]
        except InputError:
            continue  # no evidence: it is written over as any file is that is named
        if any(one.kind != "kv-equivalence" and one.speaks_against(old, new) for one in held):
            raise UsageError(
                "holds evidence that was refuted about these deployments, and would be lost",
                where=str(path),
                hint=f"write to another file: -o OTHER.json --supersedes {shlex.quote(str(path))}",
            )
