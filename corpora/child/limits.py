"""How much time, memory and output the child process that touches templates and tokenizer files may use."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The bounds of one child process. The defaults leave real models a wide margin.

    The largest real chat templates compile in 0.1 s and render in 0.5 ms (792 public templates measured with
    jinja2 3.1.6); the largest real tokenizers load in under 2 s and 1 GiB.

    Args:
        memory_bytes: what the child may allocate in all.
        template_bytes: what it may allocate beyond the loaded tokenizer once it handles a template.
        load_seconds: reading and building the tokenizer.
        parse_seconds: parsing the chat templates.
        render_seconds: rendering one conversation.
        encode_seconds: encoding one batch of rendered conversations.
        render_total_seconds: rendering and encoding in all, on top of 0.1 s for each conversation.
        sweep_seconds: encoding one batch of a sweep with both tokenizers.
        sweep_total_seconds: a whole sweep.
        processor_seconds: processor time of the whole child, on top of 0.5 s for each conversation; the last resort.
        text_bytes: the rendered text of one conversation, in characters.
        output_bytes: what the child writes in all, on top of 256 KiB and 64 times the size of each conversation.

    """

    memory_bytes: int = 4096 * _MIB
    template_bytes: int = 512 * _MIB
    load_seconds: float = 120.0
    parse_seconds: float = 5.0
    render_seconds: float = 5.0
    encode_seconds: float = 60.0
    render_total_seconds: float = 30.0
    sweep_seconds: float = 60.0
    sweep_total_seconds: float = 900.0
    processor_seconds: int = 3600
    text_bytes: int = 16 * _MIB
    output_bytes: int = 1024 * _MIB
