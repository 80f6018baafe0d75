"""How long rendering and encoding many short chats takes, as ratios within one run, and how much memory.

    python benchmarks/rendering.py FOLDER [COUNT] [ROUNDS]

FOLDER is a model folder (tests/real/fetch.py lays some out); COUNT chats are made by short_chats.py. Every way runs in
a process of its own, the ways are interleaved, and the quickest round of each counts. Loading the tokenizer is left
out except for the last, which is the whole command. The ratios need processors that nobody else uses: where the
processor time of the batched ways is not near twice their time, somebody does.

Aims: at least 2 times faster than apply_chat_template chat by chat, at most 1.6 times bare encode_batch of the same
texts, and memory that does not grow with the number of chats.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHUNK = 1024
WAYS = ("direct", "encode", "rendered", "pipeline", "snapshot")


def loaded(folder: Path) -> Any:
    """Return the tokenizer, without torch, as the bounded child loads it."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def direct(folder: Path, chats: Path) -> Callable[[], object]:
    """Call apply_chat_template for each chat."""
    tokenizer = loaded(folder)
    inputs = [json.loads(line)["messages"] for line in chats.open(encoding="utf-8")]

    def run() -> int:
        return sum(
            len(tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)) for one in inputs
        )

    return run


def encode(folder: Path, chats: Path) -> Callable[[], object]:
    """Encode texts that are rendered already."""
    tokenizer = loaded(folder)
    inputs = (json.loads(line)["messages"] for line in chats.open(encoding="utf-8"))
    texts = [tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) for one in inputs]
    backend = tokenizer.backend_tokenizer

    def run() -> int:
        return sum(
            len(one.ids)
            for start in range(0, len(texts), CHUNK)
            for one in backend.encode_batch(texts[start : start + CHUNK], add_special_tokens=False)
        )

    return run


def rendered(folder: Path, chats: Path) -> Callable[[], object]:
    """Do what "direct" does, in the pipeline's way: render, encode, record coverage, and write no line."""
    return pipeline(folder, chats, lines=False)


def pipeline(folder: Path, chats: Path, *, lines: bool = True) -> Callable[[], object]:
    """Do what the bounded child does: render, encode, record coverage, write the lines down."""
    import gc
    import os

    from kvgate.corpora.child.feeding import batches
    from kvgate.corpora.child.position import Position, shared
    from kvgate.corpora.conversations.corpus import load_corpus
    from kvgate.corpora.coverage.installed import recording
    from kvgate.corpora.rendering.options import render_options
    from kvgate.corpora.rendering.pipeline import Pipeline
    from kvgate.corpora.rendering.renderer import CLOCKS, Renderer
    from kvgate.corpora.sweeps.encoder import Encoder
    from kvgate.corpora.templates.template import describe_templates, resolve_templates
    from kvgate.corpora.tokenizers.backend import Folder
    from kvgate.corpora.tokenizers.effective import leaves_encoding_to_its_backend

    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = loaded(folder)
    templates = resolve_templates(folder, Folder(folder).config, None)
    assert templates is not None
    facts = describe_templates(templates)
    feed = [batch.line for batch in batches(load_corpus(chats).conversations())]
    gc.collect()
    gc.freeze()
    does = leaves_encoding_to_its_backend(tokenizer)
    options, _ = render_options({})

    class Unwritten(Pipeline):
        def _line(self, draft: Any, clock: Any) -> bytes:  # noqa: ARG002
            return b""

    work = (Pipeline if lines else Unwritten)(
        Renderer(tokenizer, None, options, str(folder), 16 << 20, random=facts.reads_chance),
        Encoder(tokenizer, direct=does),
        CLOCKS[: 2 if facts.reads_clock else 1],
        direct=does,
        redact=False,
        position=Position(shared()),
    )

    def run() -> int:
        written = 0

        def take(data: bytes, count: int) -> None:  # noqa: ARG001 - lines are handed over so
            nonlocal written
            written += len(data)

        with recording(facts.texts) as recorder:
            work.run((json.loads(line) for line in feed), take, recorder)
        return written

    return run


def snapshot(folder: Path, chats: Path) -> Callable[[], object]:
    """Do all of it: check the corpus, start the child, load, render, encode, write the file, open it."""

    def run() -> int:
        from kvgate.corpora.conversations.corpus import load_corpus
        from kvgate.corpora.examine import take_snapshot

        with tempfile.TemporaryDirectory() as scratch:
            return take_snapshot(folder, load_corpus(chats), Path(scratch) / "snapshot").footer.conversations

    return run


def measure(way: str, folder: Path, chats: Path) -> None:
    """Run one way once; print seconds, processor seconds, and the largest memory in MiB of this process or a child."""
    run = {"direct": direct, "encode": encode, "rendered": rendered, "pipeline": pipeline, "snapshot": snapshot}[way](
        folder, chats
    )
    began, used = time.perf_counter(), _processor_seconds()
    run()
    seconds, used = time.perf_counter() - began, _processor_seconds() - used
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(seconds, used, peak / 1024)


def _processor_seconds() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def main() -> None:
    """Measure and print."""
    if sys.argv[1] in WAYS:
        measure(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
        return
    folder = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    best = dict.fromkeys(WAYS, (float("inf"), 0.0, 0.0))
    with tempfile.TemporaryDirectory() as scratch:
        few, many = Path(scratch) / "few.jsonl", Path(scratch) / "many.jsonl"
        for number, file in ((count // 10, few), (count, many)):
            maker = Path(__file__).with_name("short_chats.py")
            subprocess.run([sys.executable, str(maker), str(number), str(file)], check=True)
        for _ in range(rounds):
            for way in WAYS:
                best[way] = min(best[way], _once(way, folder, many))
        small = _once("snapshot", folder, few)
    for way, (seconds, used, peak) in best.items():
        print(
            f"{way:<9} {seconds:6.2f} s  {best['direct'][0] / seconds:5.2f} x direct  "
            f"{seconds / best['encode'][0]:5.2f} of encode  {used:6.2f} s of processor time  {peak:5.0f} MiB"
        )
    print(f"snapshot of a tenth: {small[0]:.2f} s, {small[2]:.0f} MiB")


def _once(way: str, folder: Path, chats: Path) -> tuple[float, float, float]:
    done = subprocess.run(
        [sys.executable, __file__, way, str(folder), str(chats)], check=True, stdout=subprocess.PIPE, text=True
    )
    seconds, used, peak = map(float, done.stdout.split())
    return seconds, used, peak


if __name__ == "__main__":
    main()
