"""Has transformers' own renderer note which branches of a template run. Used in the bounded child only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from kvgate.corpora.coverage.recording import Recorder, covering


@contextlib.contextmanager
def recording(texts: Mapping[str, str]) -> Iterator[Recorder | None]:
    """Let every template that transformers compiles from here on tell a recorder what runs of it.

    transformers makes its environment from the class that this name of its module holds, and sets up filters,
    extensions and globals itself. Source: huggingface/transformers, src/transformers/utils/chat_template_utils.py,
    5.24.0, ``_cached_compile_jinja_template``.

    Args:
        texts: the templates in force, by name.

    Returns:
        The recorder; ``None`` where this release of transformers makes its environment in another way: nothing is
        known of what ran then.

    """
    from transformers.utils import chat_template_utils

    base = getattr(chat_template_utils, "ImmutableSandboxedEnvironment", None)
    if base is None:
        yield None
        return
    recorder = Recorder(texts)
    chat_template_utils.ImmutableSandboxedEnvironment = covering(base, recorder)
    try:
        yield recorder
    finally:
        chat_template_utils.ImmutableSandboxedEnvironment = base
