"""``kvgate record verify``: derive a decision record again from the inputs it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvgate.checking import check
from kvgate.inputs import hash_file, read_bytes
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError
from kvgate.rules.packaged import data_from
from kvgate.rules.progress import Progress, silent
from kvgate.rules.record import differences, record_bytes
from kvgate.rules.record_schema import Record

_LIMIT = 64 << 20


def read_record(path: Path) -> dict[str, Any]:
    """Read a decision record.

    Raises:
        InputError: unreadable, or not a record.

    """
    data = read_bytes(path, _LIMIT)
    try:
        document = parse_json(data.decode("utf-8"), str(path))
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text", where=str(path)) from None
    data_from(document, str(path), Record)
    return dict(document)


def verify_record(path: str | Path, progress: Progress = silent) -> list[str]:
    """Derive a record again and compare it byte for byte.

    The inputs are read from where the record names them, relative to the current folder. Evidence that the
    check gathered itself is gathered again.

    Returns:
        What differs, one line each; empty where the record verifies.

    Raises:
        InputError: the record or an input it names is unreadable.

    """
    file = Path(path)
    recorded = read_record(file)
    predicate = recorded["predicate"]
    found = _changed_inputs(recorded)
    if found:
        return found
    options, sources = predicate["options"], predicate["sources"]
    derived = check(
        [one["name"] for one in predicate["baseline"]],
        recorded["subject"][0]["name"],
        evidence=[one["path"] for one in sources["evidence"]],
        corpora=[one["path"] for one in sources["corpora"]],
        rules=sources["rules"]["path"] if sources["rules"] else predicate["policies"]["pack"]["id"],
        sweep=sources["sweep"],
        strategy=options["strategy"],
        declare_clear=bool(options["declareClear"]),
        accept=options["accept"],
        waivers=sources["waivers"]["path"] if sources["waivers"] else None,
        as_of=options["asOf"],
        advisory=options["advisory"],
        progress=progress,
    ).record
    different = [f"{where}: differs from what the inputs give" for where in differences(recorded, derived)]
    if not different and read_bytes(file, _LIMIT) != record_bytes(derived):
        return ["the record is not in canonical form: its bytes were changed"]
    return different


def _changed_inputs(recorded: dict[str, Any]) -> list[str]:
    predicate = recorded["predicate"]
    named = [(one["name"], one["sha256"]) for one in predicate["baseline"]]
    named += [(one["name"], f"sha256:{one['digest']['sha256']}") for one in recorded["subject"]]
    sources = predicate["sources"]
    named += [(one["path"], one["sha256"]) for one in (*sources["evidence"], *sources["corpora"])]
    named += [(one["path"], one["sha256"]) for one in (sources["rules"], sources["waivers"]) if one]
    found = []
    for name, expected in named:
        if name in ("-", "<data>"):
            raise InputError(f"an input was not a file ({name}), so the record cannot be derived again", where=name)
        try:
            changed = hash_file(Path(name)) != expected
        except InputError as error:
            hint = error.hint or "inputs are read as they are named, from the folder that `kvgate check` ran in"
            raise InputError(error.message, where=error.where, hint=hint) from None
        if changed:
            found.append(f"{name}: its bytes are not those that the record was made from")
    return found
