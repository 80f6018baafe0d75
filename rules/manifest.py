"""A parsed, validated manifest: what is known of one deployment, by path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from kvgate.rules.canonical import canonical, canonical_json, sha256
from kvgate.rules.credentials import refuse_credentials
from kvgate.rules.document import parse_document
from kvgate.rules.dtypes import canonical_dtype
from kvgate.rules.errors import InputError
from kvgate.rules.schema import SCHEMA_ID, ManifestModel
from kvgate.rules.values import UNKNOWN, Basis, Field, Known

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# Lists whose entries have an identity become maps, so that adding one entry is one change
# (DeepDiff reports a prepended list entry as a change of every entry after it).
_KEYED_LISTS = {"adapters": "name", "roles": "name", "weights.served": "rank"}
_QUOTED = 200  # characters of a path, which a hostile manifest can make very long
_DTYPES = ("precision.compute", "precision.kv_cache")
_OF_THE_WHOLE = ("schema", "release", "roles", "provenance")
_SETS = ("request_features", "cache.key_fields", "chat_template.reads")
# Where "pad_token" is a word of the vocabulary, and where keys are names of files and inputs.
_VOCABULARY = ("model.config", "tokenizer.special_tokens", "tokenizer.options")
_NAMES = ("weights.hub.files", "tokenizer.files", "inputs.tool_schemas", "inputs.document_sets",
          "inputs.system_prompts", "provenance")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Manifest:
    """One deployment. Two are the same object or they are not: what is equal in them is for the comparisons to say.

    Attributes:
        data: the validated content; only what was written, nothing filled in.
        source: what to call it (the path it was read from, ``-``).
        sha256: digest of the bytes it was read from (of its canonical JSON where there were none).

    """

    data: Mapping[str, Any]
    source: str
    sha256: str
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def canonical(self) -> dict[str, Any]:
        """The content in canonical form: lists with identity as maps, sets sorted, numbers in one spelling."""
        return cast("dict[str, Any]", canonical(_keyed(self.data, "")))

    @cached_property
    def _provenance(self) -> Mapping[str, Basis]:
        return cast("Mapping[str, Basis]", self.data.get("provenance", {}))

    def basis(self, path: str) -> Basis:
        """Return where the value at ``path`` comes from: the longest prefix that provenance names, else declared."""
        while path:
            if (basis := self._provenance.get(path)) is not None:
                return basis
            path = path.rpartition(".")[0]
        return "declared"

    def get(self, path: str) -> Field:
        """Return the field at a dotted schema path (``engine.version``), in canonical form.

        A section that is ``null`` makes every path below it known to be unset.
        """
        found = self._found.get(path)
        if found is None:
            found = self._found[path] = self._find(path)
        return found

    @cached_property
    def _found(self) -> dict[str, Field]:
        return {}

    def _find(self, path: str) -> Field:
        value: Any = self.canonical
        for part in path.split("."):
            if value is None:
                break
            if not isinstance(value, dict) or part not in value:
                return UNKNOWN
            value = value[part]
        return Known(value, self.basis(path))

    def value(self, path: str) -> Any:
        """Return the value at ``path``, ``None`` where it is unset or unknown. Never use it to decide equality."""
        found = self.get(path)
        return found.value if isinstance(found, Known) else None

    def knows(self, path: str) -> bool:
        """Whether something is known at ``path`` (``null`` included)."""
        return isinstance(self.get(path), Known)

    def unset(self, path: str) -> bool:
        """Whether it is known that nothing is set at ``path``."""
        found = self.get(path)
        return isinstance(found, Known) and found.value is None

    def where(self, path: str) -> str:
        """Return ``source:line`` of a path, as near as the document tells."""
        parts = tuple(path.split("."))
        for end in range(len(parts), 0, -1):
            if (line := self.lines.get(parts[:end])) is not None:
                return f"{self.source}:{line}"
        return self.source


def parse_manifest(data: bytes, source: str) -> Manifest:
    """Parse and validate a manifest.

    Raises:
        InputError: naming source, line and path, for anything that is not a well-formed manifest.

    """
    document, lines = parse_document(data, source)
    return _validated(document, source, sha256(data), lines)


def manifest_from(document: Mapping[str, Any], source: str = "<data>") -> Manifest:
    """Validate a manifest given as plain data; its ``sha256`` is that of its canonical JSON.

    Raises:
        InputError: naming source and path.

    """
    try:
        digest_of_data = sha256(canonical_json(document))
    except RecursionError:
        raise InputError("nested too deeply", where=source) from None
    except (TypeError, ValueError) as error:
        raise InputError(str(error), where=source) from None
    return _validated(document, source, digest_of_data, {})


def refuse_value(path: str, value: Any, source: str) -> None:
    """Refuse a value that no manifest can hold at a path, whatever else stands in it.

    Args:
        path: a manifest path; what is required beside it may be missing.
        value: plain data.
        source: what to call the place that the value is from.

    Raises:
        InputError: the wrong type, a part of the value itself is missing, a credential; naming source and path.
    """
    document: Any = value
    for part in reversed(path.split(".")):
        document = {part: document}
    document = {"schema": SCHEMA_ID, **document}
    refuse_credentials(document, source, {}, vocabulary=_VOCABULARY, names=_NAMES)
    try:
        ManifestModel.model_validate(document)
    except ValidationError as error:
        depth = len(path.split("."))
        own = [one for one in _problems(error) if one["type"] != "missing" or len(one["loc"]) > depth]
        if own:
            raise _input_error(own[0], source, {}) from None


@cache
def schema_leaves() -> tuple[str, ...]:
    """Return every path of the schema that holds a value or a complete collection, in schema order."""
    return tuple(_leaves(ManifestModel, ""))


def _leaves(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        inner = _section_type(info.annotation)
        if inner is None:
            yield path
        else:
            yield from _leaves(inner, f"{path}.")


def _section_type(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    options = [arg for arg in getattr(annotation, "__args__", ()) if arg is not type(None)]
    if len(options) == 1 and isinstance(options[0], type) and issubclass(options[0], BaseModel):
        is_list = getattr(annotation, "__origin__", None) is list
        return None if is_list else options[0]
    return None


def _validated(document: Any, source: str, content: str, lines: Mapping[tuple[str, ...], int]) -> Manifest:
    if not isinstance(document, Mapping):
        raise InputError(
            "not a manifest: the document is not a mapping",
            where=source,
            hint=f"a manifest starts with 'schema: {SCHEMA_ID}'",
        )
    # First of all: what is wrong otherwise is said with words of the document.
    refuse_credentials(document, source, lines, vocabulary=_VOCABULARY, names=_NAMES)
    if document.get("schema") != SCHEMA_ID:
        found = repr(document["schema"])[:80] if "schema" in document else "nothing"
        raise InputError(
            f"not a kvgate manifest: 'schema' is {found}",
            where=_at(source, lines, ("schema",)),
            hint=f"write 'schema: {SCHEMA_ID}'",
        )
    try:
        ManifestModel.model_validate(document)
    except ValidationError as error:
        raise _input_error(_problems(error)[0], source, lines) from None
    manifest = Manifest(document, source, content, lines)
    _refuse_contradictions(manifest)
    for role in document.get("roles") or ():
        concerned = {"schema", "model", *(path.partition(".")[0] for path in role["set"])}
        pool = with_overrides({name: document[name] for name in concerned if name in document}, role["set"])
        try:
            ManifestModel.model_validate(pool)
            _refuse_contradictions(Manifest(pool, source, content))
        except (ValidationError, InputError) as error:
            problem = _input_error(_problems(error)[0], source, {}) if isinstance(error, ValidationError) else error
            said = f"roles: {role['name'][:_QUOTED]!r}: {problem.message}"
            raise InputError(said, where=manifest.where("roles"), hint=problem.hint) from None
    return manifest


# What says something of one value and nothing of another that a pool sets in its place: it is not known of that pool.
_SAID_OF = {
    "weights.checkpoint.digest": ("weights.checkpoint", "weights.served", "weights.hub"),
    "weights.hub.commit": ("weights.checkpoint", "weights.served", "weights.hub.files"),
    "tokenizer.files": ("tokenizer.effective", "tokenizer.built_by", "tokenizer.vocabulary", "tokenizer.special_tokens",
                        "tokenizer.snapshot"),
    "tokenizer.effective": ("tokenizer.files", "tokenizer.built_by", "tokenizer.vocabulary", "tokenizer.special_tokens",
                            "tokenizer.snapshot"),
    "chat_template.digest": ("chat_template", "tokenizer.snapshot"),
    "chat_template.tree": ("chat_template", "tokenizer.snapshot"),
    "engine.image": ("engine.packages",),
}  # fmt: skip


def with_overrides(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest's data as one of its pools has it: with what the pool sets, and no pools of its own.

    What a pool sets comes from where the list of pools does, whatever is said of the same path for all of them; and
    what is said for all of them about another value than the pool's own is not known of the pool.
    """
    data = dict(document)
    provenance: Mapping[str, Basis] = document.get("provenance") or {}
    kept = {name: basis for name, basis in provenance.items() if not any(_below(name, path) for path in overrides)}
    data["provenance"] = {**kept, **dict.fromkeys(overrides, provenance.get("roles", "declared"))}
    for path in overrides:
        for said in _SAID_OF.get(path, ()):
            if _walk(data, said) is not None:  # what is unset for all is so for each
                section, leaf = _own_section(data, said)
                del section[leaf]
    for path, value in overrides.items():
        section, leaf = _own_section(data, path)
        section[leaf] = value
    return {**data, "roles": None}


def _own_section(data: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    """Return the section that holds a path, copied since the other pools have it too, and the name in it."""
    *sections, leaf = path.split(".")
    for section in sections:
        inner = data.get(section)
        data[section] = dict(inner) if isinstance(inner, Mapping) else {}
        data = data[section]
    return data, leaf


def _below(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def _at(source: str, lines: Mapping[tuple[str, ...], int], path: tuple[str, ...]) -> str:
    for end in range(len(path), 0, -1):
        if (line := lines.get(path[:end])) is not None:
            return f"{source}:{line}"
    return source


def _problems(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_context=False)


def _input_error(first: ErrorDetails, source: str, lines: Mapping[tuple[str, ...], int]) -> InputError:
    # A union reports one problem for each of its branches; the branch labels are not manifest paths.
    path = tuple(
        str(part)
        for part in first["loc"]
        if not re.match(
            r"^(constrained-|function-|literal\[|list\[|dict\[|nullable|int$|float$|str$|bool$|json)", str(part)
        )
    )
    message, hint = first["msg"].removeprefix("Value error, "), None
    given = first.get("input")
    if first["type"] == "extra_forbidden":
        message, hint = "unknown key", "`kvgate schema manifest` prints the keys there are"
    elif first["type"] == "string_type" and isinstance(given, (int, float, bool)):
        message, hint = f"must be a string, but {given!r} is not one", f'quote it: "{given}"'
    elif first["type"] == "string_pattern_mismatch":
        message = "not a digest: 'blake3:' or 'sha256:' and 64 hex digits" if len(str(given)) < 200 else "not a digest"
    elif first["type"] == "missing":
        message = "is required"
    elif given is None:
        message = "cannot be null"
        hint = "leave it out where it is unknown"
    return InputError(f"{'.'.join(path)[:_QUOTED]}: {message}", where=_at(source, lines, path), hint=hint)


def _refuse_contradictions(manifest: Manifest) -> None:
    for path, key in _KEYED_LISTS.items():
        entries = _walk(manifest.data, path)
        names = [str(entry[key]) for entry in entries or ()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InputError(f"{path}: {twice[0]!r} stands twice", where=manifest.where(path))
    for path in manifest.data.get("provenance", {}):
        if not any(
            leaf == path or leaf.startswith(f"{path}.") or path.startswith(f"{leaf}.") for leaf in schema_leaves()
        ):
            raise InputError(f"provenance: {path!r} is not a manifest path", where=manifest.where("provenance"))
    leaves = set(schema_leaves())
    for role in manifest.data.get("roles") or ():
        for path in role["set"]:
            if path not in leaves:
                raise InputError(
                    f"roles: {role['name']!r} sets {path!r}, which is not a manifest path",
                    where=manifest.where("roles"),
                )
            if path.partition(".")[0] in _OF_THE_WHOLE:
                raise InputError(
                    f"roles: {role['name']!r} sets {path!r}, which no pool has for itself",
                    where=manifest.where("roles"),
                )


def _walk(data: Mapping[str, Any], path: str) -> Any:
    value: Any = data
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _keyed(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _keyed(item, f"{path}.{key}" if path else key) for key, item in value.items()}
    if isinstance(value, str) and path in _DTYPES:
        return canonical_dtype(value)
    if isinstance(value, list):
        if path in _SETS:
            return sorted(set(value))
        if (key := _KEYED_LISTS.get(path)) is not None:
            return {str(entry[key]): {k: v for k, v in entry.items() if k != key} for entry in value}
    return value
