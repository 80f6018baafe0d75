"""Runs in the engine's own Python, not in kvgate's: imports vLLM once, and forks an engine for each deployment.

    python vllm_program.py LIFELINE SCRATCH

It answers one request a line. Everything that it starts is in its process group, and ends with it; it ends when its
input or the lifeline does. An engine is made of the flags of vLLM's own server; what is left out is HTTP.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

_REFUSED = (
    *("worker_cls", "worker_extension_cls", "scheduler_cls", "logits_processors", "middleware", "additional_config"),
    *("io_processor_plugin", "reasoning_parser_plugin", "tool_parser_plugin", "model_class_overrides"),
    *("model_loader_extra_config", "hf_config_path", "config_format", "speculative_config", "spec_model"),
    *("logging_config", "log_config_file", "profiler_config", "otlp_traces_endpoint", "collect_detailed_traces"),
    *("kv_events_config", "ec_transfer_config", "weight_transfer_config", "nnodes", "data_parallel_address"),
)
_SHARED = "/dev/shm/"  # noqa: S108 - where it lies
_BEGUN = time.time()
_TOP = 8
_SECONDS = 30.0


def main() -> None:
    """Serve requests until there are no more."""
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry) != Path(__file__).parent]
    lifeline, scratch = int(sys.argv[1]), Path(sys.argv[2])
    os.environ["TMPDIR"] = str(scratch)  # each engine leaves a file there
    threading.Thread(target=_until_it_closes, args=(lifeline, scratch), daemon=True).start()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="ascii")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    try:
        _answer_lines(_Nursery().answer, answers)
    finally:  # also where there is nobody any more to be answered
        _leave(scratch)


def _until_it_closes(lifeline: int, scratch: Path) -> None:
    os.read(lifeline, 1)  # never written to: returns when the parent is gone
    _leave(scratch)


def _leave(scratch: Path) -> None:
    """End this process and all that it has started, and remove what they wrote once nobody writes any more."""
    group = os.getpgrp()
    shared: set[str] = set()
    with contextlib.suppress(Exception):  # whatever cannot be told of it, all must end
        shared = _shared({pid for pid, (_, its) in _processes().items() if its == group})
    try:
        if os.fork() == 0:
            os.setsid()
            os.killpg(group, signal.SIGKILL)
            _unlink(shared)
            shutil.rmtree(scratch, ignore_errors=True)
            os._exit(0)
        signal.pause()
    finally:
        os.killpg(group, signal.SIGKILL)


def _processes() -> dict[int, tuple[int, int]]:
    """Return parent and group of every process, where the system tells."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parent, group = stat.read_text().rpartition(")")[2].split()[1:3]
            found[int(stat.parent.name)] = int(parent), int(group)
    return found


def _family(pid: int) -> set[int]:
    """Return a process, and all that it has started and they have."""
    found, processes = {pid}, _processes()
    while more := {one for one, (parent, _) in processes.items() if parent in found} - found:
        found |= more
    return found


def _shared(family: set[int]) -> set[str]:
    """Return the memory and semaphores that ranks share, and nobody else: whoever is killed leaves them behind."""
    if not (found := _mapped(family)):
        return set()
    found -= _mapped(_processes().keys() - family)
    with contextlib.suppress(OSError):
        return {entry.path for entry in os.scandir(_SHARED) if entry.inode() in found and _own(entry)}
    return set()


def _own(entry: os.DirEntry[str]) -> bool:
    """Whether this program may have made a file: not somebody else, and not before it was there."""
    made = entry.stat(follow_symlinks=False)
    return made.st_uid == os.getuid() and made.st_ctime >= _BEGUN


def _mapped(processes: Iterable[int]) -> set[int]:
    """Return what is shared, by inode: a semaphore is mapped under another name than it has."""
    found = set()
    for pid in processes:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            parts = [line.split(maxsplit=5) for line in lines]
            found |= {int(part[4]) for part in parts if part[5:] and part[5].startswith(_SHARED)}
    return found


def _unlink(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _end_process(child: int) -> None:
    """End a process and its family."""
    family = _family(child)
    shared = _shared(family)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.waitpid(child, 0)
    _unlink(shared)


def _answer_lines(answer: Callable[[dict[str, Any]], dict[str, Any]], answers: Any) -> None:
    for line in sys.stdin:
        try:
            found = answer(json.loads(line))
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


class _Nursery:
    """Engines by their names, each a fork of this process with vLLM imported and nothing else done."""

    def __init__(self) -> None:
        self._engines: dict[str, tuple[int, Any, Any]] = {}
        self._servers: list[int] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        jobs = {"versions": self._versions, "start": self._start, "serve": self._serve, "end": self._end_all}
        return jobs.get(request["op"], self._ask)(request)

    def _versions(self, _request: dict[str, Any]) -> dict[str, Any]:
        import torch
        import vllm

        _import_what_engines_do()
        from vllm.platforms import current_platform

        found = {"vllm": vllm.__version__, "torch": torch.__version__, "device": current_platform.device_type}
        with contextlib.suppress(metadata.PackageNotFoundError):
            found["lmcache"] = metadata.version("lmcache")
        return found

    def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        self._end(request["engine"])
        (asks, asked), (says, said) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(asks, 0)
            for descriptor in (asks, asked, says):
                os.close(descriptor)
            with contextlib.suppress(BaseException):
                _engine(request, os.fdopen(said, "w", encoding="ascii"))
            os._exit(1)  # what connectors leave running would keep the process
        os.close(asks)
        os.close(said)
        self._engines[request["engine"]] = child, os.fdopen(asked, "w"), os.fdopen(says)
        return self._line(request["engine"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        _, asked, _ = self._engines[request["engine"]]
        try:
            asked.write(json.dumps(request) + "\n")
            asked.flush()
        except OSError:
            return self._ended(request["engine"])
        return self._line(request["engine"])

    def _line(self, name: str) -> dict[str, Any]:
        line = self._engines[name][2].readline()
        if not line:
            return self._ended(name)
        found: dict[str, Any] = json.loads(line)
        return found

    def _ended(self, name: str) -> dict[str, Any]:
        self._end(name)
        return {"failed": "the engine ended", "ended": True}

    def _end(self, name: str) -> None:
        child, *pipes = self._engines.pop(name, (0,))
        if child:
            for pipe in pipes:
                with contextlib.suppress(OSError):
                    pipe.close()
            _end_process(child)

    def _serve(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a server beside the engines: a program, or LMCache's in this Python."""
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(2, 1)
                os.chdir(request["folder"])
                os.environ.update(request["environment"])
                if "program" in request:
                    os.execv(request["program"], [request["program"], *request["arguments"]])  # noqa: S606
                sys.argv = ["lmcache", *request["arguments"]]
                runpy.run_module("lmcache.cli.main", run_name="__main__", alter_sys=True)
            os._exit(1)
        self._servers.append(child)
        return {}

    def _end_all(self, _request: dict[str, Any]) -> dict[str, Any]:
        for name in list(self._engines):
            self._end(name)
        while self._servers:
            _end_process(self._servers.pop())
        return {}


def _import_what_engines_do() -> None:
    import vllm.entrypoints.llm
    import vllm.model_executor.models.llama
    import vllm.v1.engine.core
    import vllm.v1.engine.llm_engine
    import vllm.v1.worker.gpu_model_runner  # noqa: F401 - the forks find it imported
    from vllm.platforms import current_platform

    # It goes through every module that there is, and fails at one of numba's, which LMCache imports: so before that.
    if hasattr(current_platform, "register_triton_kernel_overrides"):
        current_platform.register_triton_kernel_overrides()
        type(current_platform).register_triton_kernel_overrides = classmethod(lambda _: None)
    _server_parser()
    gc.collect()
    gc.freeze()  # an engine collects garbage again and again while it starts, through all of this each time


def _engine(request: dict[str, Any], answers: Any) -> None:
    os.chdir(request["folder"])
    os.environ.update(request["environment"])
    try:
        engine = _Engine(request["arguments"], request["transfer"])
    except BaseException as error:
        said = " ".join(str(error).split())[:300]
        answers.write(json.dumps({"failed": f"{type(error).__name__}: {said}", "ended": True}) + "\n")
        answers.flush()
        raise
    answers.write("{}\n")
    answers.flush()
    sys.stdin = os.fdopen(os.dup(0))
    _answer_lines(engine.answer, answers)


class _Engine:
    """One vLLM."""

    def __init__(self, arguments: list[str], transfer: dict[str, Any]) -> None:
        from vllm import LLM, EngineArgs
        from vllm.config import KVTransferConfig
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = _server_parser()(FlexibleArgumentParser())
        parsed = parser.parse_args(arguments)
        _refuse(parsed, parser.parse_args([]))
        parsed.kv_transfer_config = KVTransferConfig(**transfer)
        if parsed.enforce_eager:
            # No model is compiled then; what is left is the ranks of tokens, which would take seconds of each engine.
            import torch

            torch._dynamo.config.disable = True
        self._engine = LLM.from_engine_args(EngineArgs.from_cli_args(parsed))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._layout() if request["op"] == "layout" else self._ask(request)

    def _layout(self) -> dict[str, Any]:
        """Say what lies in the engine's own cache, which is how it is stored."""
        config = self._engine.llm_engine.vllm_config
        dtype = str(config.model_config.dtype).removeprefix("torch.")
        ranks = self._engine.collective_rpc(_caches)
        return {"block": config.cache_config.block_size, "dtype": dtype, "ranks": ranks}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one prompt and forget it: what is cached for the next one comes out of the store."""
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=request["tokens"],
            ignore_eos=True,
            detokenize=False,
            logprobs=_TOP,
            skip_reading_prefix_cache=True if request["skip"] else None,
        )
        prompt: dict[str, Any] = {"prompt_token_ids": request["token_ids"]}
        if request["salt"]:
            prompt["cache_salt"] = request["salt"]
        adapter = None if request["adapter"] is None else LoRARequest(*request["adapter"])
        found = self._engine.generate([prompt], sampling, use_tqdm=False, lora_request=adapter)[0]
        if not request["keep"]:
            self._forget()
        steps = [{int(token): one.logprob for token, one in step.items()} for step in found.outputs[0].logprobs]
        return {"token_ids": list(found.outputs[0].token_ids), "top": steps, "cached": found.num_cached_tokens}

    def _forget(self) -> None:
        """Empty the engine's own cache, once connectors have let go of what they store in their own time."""
        until = time.monotonic() + _SECONDS
        while not self._engine.reset_prefix_cache():
            if time.monotonic() > until:
                raise RuntimeError("the engine's own cache could not be emptied")
            self._engine.llm_engine.step()
            time.sleep(0.02)


def _refuse(parsed: Any, unset: Any) -> None:
    """Refuse what runs code of a launch file's choice, loads something else than safetensors, or reaches out."""
    others = {"load_format": ("safetensors",), "distributed_executor_backend": ("mp", "uni")}
    for name in (*_REFUSED, *others):
        value = getattr(parsed, name, None)
        if value != getattr(unset, name, None) and value not in others.get(name, ()):
            raise ValueError(f"--{name.replace('_', '-')} is not started here")
    parsed.trust_remote_code = False  # no code lies beside the weights


def _caches(worker: Any) -> list[tuple[str, list[int], str]]:
    """Return name, shape and number format of the KV tensor of each layer of one rank."""
    import torch

    layers = []
    for name, layer in worker.vllm_config.compilation_config.static_forward_context.items():
        held = getattr(layer, "kv_cache", None)
        held = held[0] if isinstance(held, list) and held else held  # older ones: for each virtual engine
        if isinstance(held, torch.Tensor) and held.numel():
            layers.append((name, list(held.shape), str(held.dtype).removeprefix("torch.")))
    return layers


def _server_parser() -> Any:
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # where it is from 0.32 on
    except ImportError:
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    return make_arg_parser


if __name__ == "__main__":
    main()
