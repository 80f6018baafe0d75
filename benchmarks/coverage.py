"""What it costs to record which branches of a chat template run: rendering and compiling, as ratios in one run.

Run: ``python benchmarks/coverage.py [TEMPLATE.jinja]...`` (without any: the examples that the tests hold). Both sides
render the diagnostic conversations with transformers' own function, turn by turn, so that the machine cancels out; the
quickest round of each counts. Aim: rendering at most 1.09 times as long, on the mean of the templates. Comparing two
templates is measured too: it must not be felt beside importing transformers.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.utils import chat_template_utils

from kvgate.corpora.conversations.corpus import load_corpus
from kvgate.corpora.coverage.changes import uncovered_changes
from kvgate.corpora.coverage.recording import Recorder, covering

EXAMPLES = Path(__file__).parents[1] / "tests" / "corpora" / "coverage" / "examples"
ROUNDS = 40


def compiled(text: str, *, recorded: bool) -> Any:
    """Compile a template as transformers does, with or without a recorder, and with nothing else."""
    base = chat_template_utils.ImmutableSandboxedEnvironment
    if recorded:
        chat_template_utils.ImmutableSandboxedEnvironment = covering(base, Recorder({"default": text}))
    try:
        return chat_template_utils._cached_compile_jinja_template(text)
    finally:
        chat_template_utils.ImmutableSandboxedEnvironment = base


def seconds(work: Callable[[], object]) -> float:
    """Return how much processor time one run takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def renders(template: Any, inputs: list[dict[str, Any]]) -> Callable[[], None]:
    """Return what renders every input that this template renders at all."""
    fitting = []
    for one in inputs:
        try:
            template.render(**one)
        except Exception:
            continue
        fitting.append(one)

    def work() -> None:
        for one in fitting:
            template.render(**one)

    return work


def main() -> None:
    """Measure and print."""
    inputs = [
        {
            "messages": [
                {key: value for key, value in message.items() if value is not None} for message in one.messages
            ],
            "tools": None if one.tools is None else list(one.tools),
            "documents": None,
            "add_generation_prompt": one.add_generation_prompt is not False,
            "bos_token": "<s>",
            "eos_token": "</s>",
            **one.template_kwargs,
        }
        for one in load_corpus("diagnostic").conversations()
        if one.messages is not None
    ]
    files = [Path(name) for name in sys.argv[1:]] or sorted(EXAMPLES.glob("*.jinja"))
    rendering, compiling = [], []
    for file in files:
        text = file.read_text(encoding="utf-8")
        best = {
            "plain": float("inf"),
            "recorded": float("inf"),
            "compile": float("inf"),
            "compile recorded": float("inf"),
        }
        plain, recorded = (renders(compiled(text, recorded=side), inputs) for side in (False, True))
        for _ in range(ROUNDS):
            best["plain"] = min(best["plain"], seconds(plain))
            best["recorded"] = min(best["recorded"], seconds(recorded))
        for _ in range(ROUNDS // 5):
            best["compile"] = min(best["compile"], seconds(lambda: compiled(text, recorded=False)))  # noqa: B023
            best["compile recorded"] = min(best["compile recorded"], seconds(lambda: compiled(text, recorded=True)))  # noqa: B023
        rendering.append(best["recorded"] / best["plain"])
        compiling.append(best["compile recorded"] / best["compile"])
        coverage = Recorder({"default": text}).coverage()
        other = Recorder({"default": text.replace("content", "text") + "x"}).coverage()
        compare = min(seconds(lambda: uncovered_changes(coverage, other)) for _ in range(3))  # noqa: B023
        print(
            f"{file.name:<30} {len(coverage.arms):>4} branches   render {best['plain'] / len(inputs) * 1e6:6.1f} us "
            f"x {rendering[-1]:4.2f}   compile {best['compile'] * 1e3:5.1f} ms x {compiling[-1]:4.2f}   "
            f"compare {compare * 1e3:5.1f} ms"
        )
    print(
        f"rendering: mean {statistics.mean(rendering):4.2f}, most {max(rendering):4.2f} (aim: a mean of at most 1.09)"
    )
    print(f"compiling: mean {statistics.mean(compiling):4.2f}, most {max(compiling):4.2f}")


if __name__ == "__main__":
    main()
