"""What alters rendering besides template and tokenizer: the options that a deployment's requests default to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvgate.rules.errors import UsageError

_DEFAULTS: Mapping[str, Any] = {
    "add_generation_prompt": True,
    "add_special_tokens": True,
    "parse_tool_arguments": True,
    "template_kwargs": {},
}


def render_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options that the renderer applies, defaults filled in, and the names of those it does not.

    Applied are ``add_generation_prompt`` (where the conversation does not say), ``add_special_tokens`` (for
    raw completions), ``parse_tool_arguments`` (JSON text in tool calls becomes objects first, as vLLM
    does) and ``template_kwargs`` (variables for every conversation).

    Raises:
        UsageError: an option has the wrong type.

    """
    for name, default in _DEFAULTS.items():
        if name in options and not isinstance(options[name], type(default)):
            kind = "an object" if isinstance(default, dict) else "true or false"
            raise UsageError(f"the rendering option {name!r} must be {kind}")
    applied = {name: options.get(name, default) for name, default in _DEFAULTS.items()}
    return applied, tuple(sorted(options.keys() - _DEFAULTS.keys()))
