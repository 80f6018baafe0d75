"""The child process of the embedded back end: holds models and scratch stores, and answers one request a line.

    python -m kvgate.probes.embedded.worker MEMORY LIFELINE SCRATCH

It ends when its input or the lifeline does, and takes the scratch folder with it: a parent that was killed leaves
nothing behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import sys
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvgate.probes.embedded.models import Model

_MODELS = 6  # that are kept: old and new, their adapters, one that was planted, and two that copy
_REAL = 2  # of those with the deployments' own weights
_TOP = 8


def main() -> None:
    """Serve requests until there are no more."""
    memory, lifeline, scratch = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    for name in ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):  # torch leaves a folder behind
        os.environ[name] = str(scratch / "torch")
    (scratch / "torch").mkdir()
    threading.Thread(target=_until_it_closes, args=(lifeline, scratch), daemon=True).start()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    serving = Serving(scratch)
    for line in sys.stdin:
        answers.write(json.dumps(serving.answer(json.loads(line))) + "\n")
        answers.flush()
    shutil.rmtree(scratch, ignore_errors=True)


def _until_it_closes(lifeline: int, scratch: Path) -> None:
    os.read(lifeline, 1)  # never written to: returns when the parent is gone
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


class Serving:
    """Holds the models, and the folder of the stores."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._models: OrderedDict[str, Model] = OrderedDict()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked; what goes wrong is an answer."""
        try:
            import torch

            torch.set_num_threads(1)
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
            torch.use_deterministic_algorithms(True, warn_only=True)
            job = {
                "versions": self._versions,
                "generate": self._generate,
                "compare": self._compare,
                "write": self._write,
                "encode": self._encode,
                "noise": self._noise,
            }[request["op"]]
            return job(request)
        except (MemoryError, RecursionError) as error:
            return {"failed": f"needs more memory than it may have ({type(error).__name__})"}
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}

    def _versions(self, _request: dict[str, Any]) -> dict[str, Any]:
        import torch
        import transformers

        found = {"torch": torch.__version__, "transformers": transformers.__version__}
        return {**found, "cuda": torch.cuda.get_device_name()} if torch.cuda.is_available() else found

    def model(self, spec: dict[str, Any]) -> Model:
        """Return the model of a specification, built once."""
        from kvgate.probes.embedded.models import build

        name = json.dumps(spec, sort_keys=True)
        if name not in self._models:
            while len(self._models) >= (_REAL if spec["kind"] == "real" else _MODELS):
                self._models.popitem(last=False)
            self._models[name] = build(spec)
        self._models.move_to_end(name)
        return self._models[name]

    def _generate(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        from kvgate.probes.embedded.blocks import Store

        model = self.model(request["model"])
        ids, saved = request["token_ids"], request["saved"]
        store = Store(self._scratch / request["store"], request["place"], saved)
        cache = model.empty(saved)
        with torch.inference_mode():
            read = store.restore(cache, request["read"], len(ids) - 1, model.placed)
            cached = int(cache.get_seq_length())
            found = model.compute(ids[cached:], cache)
            written = store.save(cache, request["write"]) if request["write"] else []
            tokens, top = [], []
            for step in range(request["tokens"]):
                likeliest = torch.topk(found, _TOP)
                top.append(dict(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)))
                tokens.append(int(likeliest.indices[0]))
                if step + 1 < request["tokens"]:
                    found = model.compute([tokens[-1]], cache)
        return {"token_ids": tokens, "top": top, "cached": cached, "read": read, "written": written}

    def _write(self, request: dict[str, Any]) -> dict[str, Any]:
        """Write a model as a checkpoint, for an engine to load."""
        self.model(request["model"]).module.save_pretrained(request["folder"])
        return {}

    def _noise(self, request: dict[str, Any]) -> dict[str, Any]:
        """Say how far a model is from itself, the worst of several prompts."""
        from kvgate.probes.embedded.noise import BATCHES, noise_of

        model = self.model(request["model"])
        found = [noise_of(model, ids, request["saved"], BATCHES) for ids in request["prompts"]]
        return {"logprob": max(one for one, _ in found), "kv": max(two for _, two in found)}

    def _encode(self, request: dict[str, Any]) -> dict[str, Any]:
        """Encode texts with a checkpoint's own tokenizer."""
        from kvgate.corpora.tokenizers.backend import Folder, build

        tokenizer = build(Folder(Path(request["folder"])))
        if isinstance(tokenizer, str):
            return {"failed": tokenizer}
        bare = [tokenizer.encode(text, add_special_tokens=False) for text in request["texts"]]
        whole = tokenizer.encode(request["texts"][0])
        front = whole[: whole.index(bare[0][0])] if bare[0] and bare[0][0] in whole else []
        return {"front": front, "texts": bare}

    def _compare(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        from kvgate.probes.embedded.blocks import Store
        from kvgate.probes.embedded.noise import apart

        model = self.model(request["model"])
        ids, saved = request["token_ids"], request["saved"]
        stored, whole, cut = (model.empty(saved) for _ in range(3))
        with torch.inference_mode():
            store = Store(self._scratch / request["store"], request["place"], saved)
            store.restore(stored, request["read"], len(ids), model.placed)
            if not (held := int(stored.get_seq_length())):
                return {"layers": None}
            model.compute(ids, whole)
            middle = max(1, held // 2)
            model.compute(ids[:middle], cut)
            model.compute(ids[middle:], cut)
            layers = [
                [
                    max(apart(a[:, :, :held], c[:, :, :held]) for a, c in zip(_kv(one), _kv(two), strict=True))
                    for two in (old, again)
                ]
                for old, one, again in zip(stored.layers, whole.layers, cut.layers, strict=True)
                if one.get_seq_length()  # a layer that reads another's KV holds none
            ]
        return {"layers": layers}


def _kv(layer: Any) -> tuple[Any, Any]:
    return layer.keys, layer.values


if __name__ == "__main__":
    main()
