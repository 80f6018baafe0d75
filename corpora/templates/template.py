"""Which chat template is in force, and what it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.corpora.coverage.detection import marks_of
from kvgate.corpora.files import listing, read_text
from kvgate.corpora.fingerprint import fingerprint
from kvgate.rules.document import parse_json
from kvgate.rules.errors import InputError

if TYPE_CHECKING:
    from kvgate.corpora.templates.syntax import Period

FILE = "chat_template.jinja"
PROCESSOR_FILE = "chat_template.json"
PROCESSOR = "processor"
"""The name under which the template of a multimodal model's processor stands among the others."""
FOLDER = "additional_chat_templates"
CONFIG = "tokenizer_config.json"

# The largest of 792 public templates has 45.6 kB.
_MAX_TEMPLATE = 1 << 20
_MAX_NAMED = 64
_JINJA = "{}\n"
# What every rendering has, besides the special tokens. Source: huggingface/transformers,
# src/transformers/utils/chat_template_utils.py, ``render_jinja_template``, 5.24.0.
_SUPPLIED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


@dataclass(frozen=True)
class TemplateFacts:
    """The chat template of a deployment; there may be several, chosen by name.

    Attributes:
        texts: template text by name; ``default``, and ``tool_use`` where tools select another.
        source: the file it is read from, or ``literal`` where the launch line holds the text.
        digest: ``"blake3:..."`` over the named texts, wherever they came from.
        tree: ``"blake3:..."`` over their syntax trees, and over what engines look for in the text: other comments and
            layout that leaves no trace in the output do not count, so equal trees render equally.
        reads: variables that any of them looks up, sorted; the renderer's own functions left out.
        reads_clock: one of them asks for the time of day.
        clock: how long what they print of it stays the same, the shortest period of any (``day``: prefixes go cold
            at midnight); ``None``: they print nothing of it.
        reads_chance: one of them draws random text, so no rendering of it can be repeated.

    """

    texts: Mapping[str, str]
    source: str
    digest: str
    tree: str
    reads: tuple[str, ...]
    reads_clock: bool
    clock: Period | None
    reads_chance: bool

    def unsupplied(self, special_tokens: Iterable[str], variables: Iterable[str]) -> tuple[str, ...]:
        """Return the variables it looks up that renderers do not supply, sorted: undefined, unless a request sets them.

        Args:
            special_tokens: names of the tokenizer's special tokens (``bos_token`` ...), which are supplied.
            variables: names of the template variables that the deployment sets for every request.

        """
        return tuple(sorted(frozenset(self.reads) - _SUPPLIED - frozenset(special_tokens) - frozenset(variables)))


@dataclass(frozen=True)
class Templates:
    """Template texts by name, and where each was read, before anything is known about them."""

    texts: Mapping[str, str]
    source: str
    where: Mapping[str, str]


def resolve_templates(folder: Path, config: Mapping[str, Any], override: str | None) -> Templates | None:
    """Return the templates in force in a model folder, in the order of transformers 5; ``None``: none.

    An override (``--chat-template``) beats everything. ``chat_template.jinja`` and the files of
    ``additional_chat_templates/`` together replace what tokenizer_config.json holds, even where they
    name no default. Source: huggingface/transformers, src/transformers/tokenization_utils_base.py, 5.24.0,
    ``from_pretrained`` and ``get_chat_template``. A template that is a file is read with universal line
    ends, as transformers does.

    Args:
        folder: the model folder.
        config: the content of its tokenizer_config.json.
        override: the path of a template file, or template text (it holds a brace or a line end and is not
            the name of a file); the rule of vllm-project/vllm, vllm/entrypoints/chat_utils.py.

    Raises:
        InputError: a file cannot be read as UTF-8 text, or the entry in tokenizer_config.json is no template.

    """
    if override is not None:
        return _override(override)
    named: dict[str, str] = {}
    where: dict[str, str] = {}
    single = (folder / FILE).exists()
    if single:
        where["default"] = str(folder / FILE)
        named["default"] = _read(folder / FILE)
    more = folder / FOLDER
    extra = [name for name in sorted(listing(more)) if name.endswith(".jinja")] if more.is_dir() else []
    if len(extra) > _MAX_NAMED:
        raise InputError(f"more than {_MAX_NAMED} templates", where=str(more))
    for file in extra:
        name = file.removesuffix(".jinja")
        where[name] = str(more / file)
        named[name] = _read(more / file)
    if named:
        return Templates(named, FILE if single else FOLDER, where)
    return _configured(config.get("chat_template"), str(folder / CONFIG))


def with_processors(found: Templates | None, folder: Path) -> Templates | None:
    """Return the templates with that of the model's processor, which tokenizers do not read.

    vLLM takes it where a request has no tools, before the tokenizer's (vllm-project/vllm, vllm/renderers/hf.py,
    ``resolve_chat_template``, 0.32.0), and SGLang hands it to the tokenizer. It is kept in a JSON file by itself.

    Raises:
        InputError: the file cannot be read, or holds no template.

    """
    file = folder / PROCESSOR_FILE
    if not file.exists():
        return found
    content = parse_json(read_text(file, _MAX_TEMPLATE), str(file))
    text = content.get("chat_template") if isinstance(content, dict) else None
    if not isinstance(text, str):
        raise InputError("holds no chat template", where=str(file), hint='{"chat_template": TEXT} is expected')
    if found is None:
        return Templates({PROCESSOR: text}, PROCESSOR_FILE, {PROCESSOR: str(file)})
    return Templates({**found.texts, PROCESSOR: text}, found.source, {**found.where, PROCESSOR: str(file)})


def describe_templates(templates: Templates) -> TemplateFacts:
    """Parse the templates and say what they are. Runs in the bounded child only.

    Raises:
        InputError: one of them is no template, or asks for Python's internals.

    """
    from kvgate.corpora.templates.syntax import PERIODS, parse_template

    parsed = {name: parse_template(text, templates.where[name]) for name, text in templates.texts.items()}
    return TemplateFacts(
        texts=dict(templates.texts),
        source=templates.source,
        digest=fingerprint(dict(templates.texts)),
        tree=fingerprint(
            {name: {"tree": syntax.tree, "marks": marks_of(templates.texts[name])} for name, syntax in parsed.items()}
        ),
        reads=tuple(sorted(frozenset().union(*(syntax.reads for syntax in parsed.values())))),
        reads_clock=any(syntax.reads_clock for syntax in parsed.values()),
        clock=min((syntax.clock for syntax in parsed.values() if syntax.clock), key=PERIODS.index, default=None),
        reads_chance=any(syntax.reads_chance for syntax in parsed.values()),
    )


def _override(override: str) -> Templates:
    path = Path(override)
    try:
        is_file = path.exists()
    except (OSError, ValueError):  # too long for a name, or a NUL in it: text
        is_file = False
    if is_file:
        return Templates({"default": _read(path)}, path.name, {"default": str(path)})
    if not any(character in override for character in _JINJA):
        raise InputError(
            "the chat template is neither a file nor template text",
            where=override,
            hint="give the path as seen from here, or the text itself",
        )
    if len(override.encode("utf-8", "surrogatepass")) > _MAX_TEMPLATE:
        raise InputError(f"larger than the {_MAX_TEMPLATE:,} bytes that are read", where="--chat-template")
    return Templates({"default": override}, "literal", {"default": "--chat-template"})


def _read(path: Path) -> str:
    return read_text(path, _MAX_TEMPLATE).replace("\r\n", "\n").replace("\r", "\n")


def _configured(entry: Any, where: str) -> Templates | None:
    if entry is None:
        return None
    named: dict[str, Any]
    if isinstance(entry, str):
        named = {"default": entry}
    elif isinstance(entry, list):
        named = {}
        for item in entry:
            if not (isinstance(item, dict) and isinstance(item.get("name"), str)):
                raise InputError("'chat_template' lists something without a name", where=where)
            if item["name"] in named:
                raise InputError(f"two chat templates are called {item['name']!r}", where=where)
            named[item["name"]] = item.get("template")
    elif isinstance(entry, dict):
        named = dict(entry)
    else:
        raise InputError("'chat_template' is neither text nor a list of named templates", where=where)
    if len(named) > _MAX_NAMED:
        raise InputError(f"more than {_MAX_NAMED} templates", where=where)
    for name, text in named.items():
        if not isinstance(text, str):
            raise InputError(f"the chat template {name!r} is not text", where=where)
        if len(text) > _MAX_TEMPLATE:
            raise InputError(f"the chat template {name!r} has more than {_MAX_TEMPLATE:,} characters", where=where)
    return Templates(named, CONFIG, dict.fromkeys(named, where)) if named else None
