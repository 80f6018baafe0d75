"""What engines read off a chat template before they render anything.

vLLM and SGLang decide by the template's syntax tree whether message content is handed over as text or as a list of
parts: they follow assignments and loops from ``messages`` to a loop over one message's content. So two templates that
print the same for equal input may still be given other input. Sources: vllm-project/vllm,
vllm/renderers/hf.py (``_detect_content_format`` and the functions it calls), 0.32.0; sgl-project/sglang adapts it.
vLLM also looks into the text, comments and all, for a role in quotes (``_detect_developer_role_support``, same file),
and SGLang for words of media: where one stands, message content is handed over as a list of parts (sgl-project/sglang,
python/sglang/srt/parser/jinja_template_utils.py, ``detect_jinja_template_content_format``, 0.5.23).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from kvgate.corpora.coverage.covered import Coverage
from kvgate.corpora.coverage.tree import Node, walk

# By kind: the parts that such a detection reads. Bodies count by what is in them.
_READ = {
    "For": (0, 1),
    "Assign": (0, 1),
    "AssignBlock": (0,),
    "Macro": (0, 1),
    "Call": (0, 1, 2, 3, 4),
    "Import": (0, 1),
}

_QUOTED = ("developer",)
_WORDS = ("audio", "image", "video", "vision")  # inside of other words too: "revision" holds one


def marks_of(text: str) -> tuple[str, ...]:
    """Return what an engine finds where it looks for words in a template's text, comments included."""
    quoted = [word for word in _QUOTED if f'"{word}"' in text or f"'{word}'" in text]
    return (*quoted, *(word for word in _WORDS if word in text))


def same_detection(old: Coverage, new: Coverage) -> bool:
    """Whether everything that such a detection can read is the same in the templates of both sides.

    Stricter than any detection is: loops, assignments, macros and calls must be the same ones, as often.
    """
    return old.templates.keys() == new.templates.keys() and all(
        before is not None
        and after is not None
        and before.marks == after.marks
        and _read(before.tree) == _read(after.tree)
        for before, after in ((old.templates[name], new.templates[name]) for name in old.templates)
    )


def _read(tree: Node) -> Counter[Hashable]:
    return Counter(
        (node.kind, tuple(node.parts[place] for place in _READ[node.kind])) for node in walk(tree) if node.kind in _READ
    )
