"""How long ``kvgate --help`` and a check of two equal manifests take, as ratios to importing their libraries.

The yardstick is ``python -c "import typer, rich, pydantic, yaml"`` in the same run, so that the machine cancels out;
the commands are interleaved and the quickest of each counts. Aim: at most 1.5 for both. A Typer command that does
nothing is measured too: it loads pydantic's type adapters, which the yardstick does not, and cannot be had for less.

    python benchmarks/startup.py [ROUNDS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MANIFEST = Path(__file__).parent / "startup.yaml"
# As installed: from cached bytecode.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
KVGATE = [sys.executable, "-c", "from kvgate.cli.main import main; main()"]

NOTHING = """
import typer
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
@app.command()
def nothing(names: list[str]) -> None: ...
app()
"""


def seconds(command: list[str], folder: str) -> float:
    """Run a command once and return how long it took."""
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as folder:
        for name in ("old.yaml", "new.yaml"):
            (Path(folder) / name).write_bytes(MANIFEST.read_bytes())
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import typer, rich, pydantic, yaml": [sys.executable, "-c", "import typer, rich, pydantic, yaml"],
            "a Typer command that does nothing": [sys.executable, "-c", NOTHING, "old.yaml", "new.yaml"],
            "kvgate --help": [*KVGATE, "--help"],
            "kvgate check old.yaml new.yaml": [*KVGATE, "check", "old.yaml", "new.yaml", "--no-config"],
        }
        best = dict.fromkeys(commands, float("inf"))
        for _ in range(rounds):
            for name, command in commands.items():
                best[name] = min(best[name], seconds(command, folder))
    yardstick = best["import typer, rich, pydantic, yaml"]
    for name, took in best.items():
        print(f"{name:<36} {took * 1000:6.1f} ms   {took / yardstick:4.2f}")


if __name__ == "__main__":
    main()
