"""Has the transformers of this process note which branches of a template run. Used in the bounded child only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from kvgate.corpora.coverage.recording import Recorder, covering
from kvgate.corpora.templates.sandbox import remembering


@contextlib.contextmanager
def recording(texts: Mapping[str, str]) -> Iterator[Recorder | None]:
    """Let every template that transformers compiles from here on tell a recorder what runs of it.

    transformers makes its environment from the class that a name of its module holds, and sets up filters, extensions
    and globals itself; it keeps compiled templates by their text, so those are forgotten on the way in and out.
    Source: huggingface/transformers, src/transformers/utils/chat_template_utils.py, 5.24.0,
    ``_cached_compile_jinja_template``.

    Args:
        texts: the templates in force, by name.

    Returns:
        The recorder; ``None`` where this release of transformers makes its environment in another way: nothing is
        known of what ran then.

    """
    from transformers.utils import chat_template_utils

    base = getattr(chat_template_utils, "ImmutableSandboxedEnvironment", None)
    forget = getattr(getattr(chat_template_utils, "_compile_jinja_template", None), "cache_clear", None)
    if base is None or forget is None:
        yield None
        return
    recorder = Recorder(texts)
    forget()
    chat_template_utils.ImmutableSandboxedEnvironment = covering(remembering(base), recorder)
    try:
        yield recorder
    finally:
        chat_template_utils.ImmutableSandboxedEnvironment = base
        forget()
