"""What a check of two deployments with real vocabularies takes beyond what it cannot do without, in one run.

    python benchmarks/check_tokens.py OLD NEW [ROUNDS]

OLD and NEW are folders with tokenizer.json and tokenizer_config.json of two revisions with vocabularies of 128,000
entries that differ in more than what stands in front of a text (tests/real/fetch.py lays out deepseek_v3 and
deepseek_v3b). All processes are cold, they are interleaved, and the quickest round of each counts.

Aims: with snapshots at hand, at most 1.5 times (a check of equal digests + importing DeepDiff + parsing both
snapshots); with sweeps, at most 1.3 times (loading both through transformers + encoding the same strings).
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# As installed: from cached bytecode, without a terminal's settings.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
KVGATE = [sys.executable, "-c", "from kvgate.cli.main import main; main()"]
ACCEPTED = (0, 10, 11)
CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "vocab_size": 8,
}

PARSE = """
import json, sys
for file in sys.argv[1:]:
    with open(file, encoding="utf-8") as stream:
        for line in stream:
            json.loads(line)
"""
LOAD_AND_ENCODE = """
import json, sys, time
began = time.perf_counter()
with open(sys.argv[1], encoding="utf-8") as stream:
    groups = json.load(stream)
reading = time.perf_counter() - began
sys.modules["torch"] = None
from transformers import AutoTokenizer
tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in sys.argv[2:]]
for special, texts in groups:
    for tokenizer in tokenizers:
        for start in range(0, len(texts), 4096):
            tokenizer.backend_tokenizer.encode_batch(texts[start : start + 4096], add_special_tokens=special)
print(reading)
"""


def seconds(command: list[str], *, accepted: tuple[int, ...] = (0,)) -> float:
    """Run a command in a new process; return how long it took, less the seconds that it prints as not its own."""
    began = time.perf_counter()
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode not in accepted:
        raise RuntimeError(f"{command[:6]} exited with {done.returncode}: {done.stderr[-500:]}")
    return took - float(done.stdout) if command[1:3] == ["-c", LOAD_AND_ENCODE] else took


def model(tokenizer: Path, into: Path) -> Path:
    """Make a model folder of a tokenizer: with a config and one tensor."""
    into.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (into / name).symlink_to((tokenizer / name).resolve())
    (into / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (into / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")
    return into


def captured(folder: Path, into: Path) -> Path:
    """Capture it as users do."""
    seconds([*KVGATE, "capture", str(folder), "--no-config", "--renderer", "here", "-o", str(into)])
    return into


def swept(old: Path, new: Path) -> list[tuple[bool, list[str]]]:
    """Return the strings of a sweep of the two, by whether the tokenizer puts its own tokens round them."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers import AutoTokenizer

    from kvgate.corpora.sweeps.groups import plan
    from kvgate.corpora.sweeps.here import Side

    parts = [Side(AutoTokenizer.from_pretrained(str(folder))).parts for folder in (old, new)]
    work: Any = plan([one for one in parts if one is not None])
    return [(group.special_tokens, list(group.strings)) for group in work.groups]


def main() -> None:
    """Measure and print."""
    given = [Path(argument) for argument in sys.argv[1:3]]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        old, new = (model(folder, work / name) for folder, name in zip(given, ("old", "new"), strict=True))
        before, after = captured(old, work / "before"), captured(new, work / "after")
        strings = work / "strings.json"
        strings.write_text(json.dumps(swept(old, new)), encoding="utf-8")
        check = [*KVGATE, "check", "--no-config"]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import deepdiff": [sys.executable, "-c", "import deepdiff"],
            "parse both snapshots": [
                *(sys.executable, "-c", PARSE),
                *(str(folder / "tokens.jsonl") for folder in (before, after)),
            ],
            "check, equal digests": [*check, str(before), str(before)],
            "check, snapshots at hand": [*check, "--sweep", "never", str(before), str(after)],
            "load both, encode": [sys.executable, "-c", LOAD_AND_ENCODE, str(strings), str(old), str(new)],
            "check, with a sweep": [*check, "--sweep", "always", str(before), str(after)],
        }
        best = dict.fromkeys(commands, float("inf"))
        for _ in range(rounds):
            for name, command in commands.items():
                best[name] = min(best[name], seconds(command, accepted=ACCEPTED))
    for name, took in best.items():
        print(f"{name:<26} {took:7.3f} s")
    nothing = best["python -c pass"]
    least = best["check, equal digests"] + best["import deepdiff"] + best["parse both snapshots"] - 2 * nothing
    print(f"snapshots at hand: {best['check, snapshots at hand'] / least:.2f} (aim: at most 1.5)")
    print(f"with a sweep: {best['check, with a sweep'] / best['load both, encode']:.2f} (aim: at most 1.3)")


if __name__ == "__main__":
    main()
