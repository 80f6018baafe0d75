"""Compiles the kernels for an H200 (sm_90), which takes no GPU; prints their assembly and what it uses as JSON."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvgate.weights.device.kernels import hash_chunks, join_pairs
from kvgate.weights.device.tree import LIMITS

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def compiled(kernel: Any) -> dict[str, Any]:
    """Compile a kernel as a launch with the default limits does."""
    names = kernel.arg_names
    types = {"table": "*i64", "chains": "*i32", "LANES": "constexpr"}
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "i32") for name in names},
        constexprs={(names.index("LANES"),): LIMITS.lanes},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in ("table", "chains")},
    )
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        said = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    usage = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):([0-9]+)", said)}
    return {
        "ptx": found.asm["ptx"],
        "usage": {"registers": usage["REG"], "spilled": usage["STACK"] + usage["LOCAL"]},
    }


print(json.dumps({kernel.__name__: compiled(kernel) for kernel in (hash_chunks, join_pairs)}))
