"""Names what connectors store, by their own code: settings on stdin and names on stdout, as JSON.

Each case says which module here runs it. They are loaded when their first case comes: AIBrix's stands in for packages
that vLLM looks for.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

if __name__ == "__main__":
    named = [import_module(given["module"]).names(given) for given in json.load(sys.stdin)]
    sys.stdout.write("\n" + json.dumps(named) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the threads of some stay
