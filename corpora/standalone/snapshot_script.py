#!/usr/bin/env python3
"""Save what the transformers of this environment makes of conversations: rendered text and token ids.

    python kvgate_snapshot.py MODEL_FOLDER -o tokens.jsonl

One file, to be run inside a serving image, an old one too, so that a deployment's tokens are those of its own
library. It needs Python 3.8 and transformers 4.40 or newer, and nothing else; it loads nothing from a network and
runs no code of the model folder but its chat template, as the engine beside it does. kvgate reads what it writes
(`kvgate corpus compare`, `kvgate capture --renderer tokens.jsonl`).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import inspect
import json
import os
import random
import sys
import tempfile
import time
import zlib
from datetime import datetime as real_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "kvgate/snapshot/v1"
CLOCKS = ("2026-02-03T04:05:06", "2027-11-19T20:21:22")
OPTIONS = {
    "add_generation_prompt": True,
    "add_special_tokens": True,
    "parse_tool_arguments": True,
    "template_kwargs": {},
}

# The diagnostic corpus, packed: `kvgate corpus script` fills it in.
CORPUS = ""

# Methods of the wrapper by which a class changes ids behind the back of its backend.
_ENCODING = ("__call__", "_encode_plus", "apply_chat_template", "encode", "tokenize")
_SECONDS = 5.0  # between two lines of progress


class RefusedError(Exception):
    """An input cannot be used; the message says which and why."""


# ---- what is rendered ----


class Corpus:
    """Conversations, read from their file each time they are asked for; by default those that this script carries."""

    def __init__(self, path: Path | None) -> None:
        """Hash it."""
        self.name = "diagnostic" if path is None else path.stem
        self._path = path
        hasher = hashlib.sha256()
        for line in self._lines():
            hasher.update(line)
        self.digest = hasher.hexdigest()

    def _lines(self) -> Iterator[bytes]:
        if self._path is None:
            if not CORPUS:
                raise RefusedError("this copy carries no conversations: print it with `kvgate corpus script`")
            yield from zlib.decompress(base64.b64decode(CORPUS)).splitlines(keepends=True)
            return
        try:
            with self._path.open("rb") as stream:
                yield from stream
        except OSError as error:
            raise RefusedError(f"{self._path}: cannot be read: {error.strerror}") from None

    def conversations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield id and input of each line, the input as kvgate takes it into its digest."""
        seen: set[str] = set()
        hasher = hashlib.sha256()
        for number, line in enumerate(self._lines(), 1):
            hasher.update(line)
            if line.isspace():
                continue
            try:
                name, value = _conversation(line.decode("utf-8-sig" if number == 1 else "utf-8"), number)
            except (TypeError, ValueError) as error:
                raise RefusedError(f"{self._path}:{number}: {error}") from None
            if name in seen:
                raise RefusedError(f"{self._path}:{number}: the id {name!r} stands twice")
            seen.add(name)
            yield name, value
        if hasher.hexdigest() != self.digest:
            raise RefusedError(f"{self._path}: was changed while it was being read")


def _conversation(line: str, number: int) -> tuple[str, dict[str, Any]]:
    value = json.loads(line, object_pairs_hook=_once)
    if not isinstance(value, dict) or (value.get("messages") is None) == (value.get("prompt") is None):
        raise ValueError("needs either 'messages' or 'prompt'")
    name = value.get("id")
    return f"line-{number}" if name is None else name, {
        **{field: value.get(field) for field in ("messages", "prompt", "tools", "documents")},
        "template_kwargs": value.get("chat_template_kwargs") or {},
        "add_generation_prompt": value.get("add_generation_prompt"),
        "continue_final_message": bool(value.get("continue_final_message")),
    }


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


def input_digest(conversation: dict[str, Any]) -> str:
    """Return sixteen hex digits that are equal where the same thing is rendered."""
    text = json.dumps(conversation, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def with_parsed_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Turn the JSON text that the OpenAI API has for tool arguments into what templates expect, as vLLM does."""
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list):
        return message
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    elif not isinstance(arguments, (dict, list)):
        arguments = {}
    return {**call, "function": {**call["function"], "arguments": arguments}}


# ---- rendering ----


class Renderer:
    """The tokenizer of a model folder, as transformers here builds it, with template and options."""

    def __init__(self, folder: Path, template: str | None, options: dict[str, Any]) -> None:
        """Load it; without remote code, and without the network."""
        try:
            from transformers import AutoTokenizer
        except Exception as error:
            raise RefusedError(f"transformers cannot be imported here: {_words(error)}") from None
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        except Exception as error:
            raise RefusedError(f"{folder}: transformers cannot build a tokenizer from it: {_words(error)}") from None
        self._template = template
        self._options = options
        self._parameters = inspect.signature(self.tokenizer.apply_chat_template).parameters
        loaded = self.tokenizer.chat_template if template is None else template
        self.templates: dict[str, str] = {"default": loaded} if isinstance(loaded, str) else dict(loaded or {})
        self.reads_clock = any("strftime_now" in text for text in self.templates.values())
        if self.reads_clock:
            self._refuse_a_running_clock()

    def render(self, conversation: dict[str, Any], clock: str) -> dict[str, Any]:
        """Render and encode one conversation as if it were ``clock``."""
        try:
            with stopped(clock):
                if conversation["prompt"] is not None:
                    text, ids = self._complete(conversation["prompt"])
                else:
                    text, ids = self._chat(conversation)
        except MemoryError:
            raise
        except Exception as error:
            message = " ".join(str(error).split())[:200]
            return {"state": "render-error", "error": {"class": type(error).__name__, "message": message}}
        return {"state": "ok", "text": text, "ids": ids}

    def _complete(self, prompt: str) -> tuple[str, list[int]]:
        return prompt, list(self.tokenizer(prompt, add_special_tokens=self._options["add_special_tokens"])["input_ids"])

    def _chat(self, conversation: dict[str, Any]) -> tuple[str, list[int]]:
        messages = conversation["messages"]
        if self._options["parse_tool_arguments"]:
            messages = [with_parsed_arguments(message) for message in messages]
        generate = conversation["add_generation_prompt"]
        if generate is None:
            generate = self._options["add_generation_prompt"] and not conversation["continue_final_message"]
        arguments: dict[str, Any] = {
            **self._options["template_kwargs"],
            **conversation["template_kwargs"],
            "tools": conversation["tools"],
            "documents": conversation["documents"],
            "chat_template": self._template,
            "continue_final_message": conversation["continue_final_message"],
            "add_generation_prompt": generate,
        }
        # An old release passes on to the template what it has no parameter for, as its engine would have done.
        for name in ("tools", "documents"):
            if name not in self._parameters and arguments[name] is None:
                del arguments[name]
        if "continue_final_message" not in self._parameters and arguments.pop("continue_final_message"):
            raise NotImplementedError("this transformers cannot continue the final message")
        random.seed(0)
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        random.seed(0)
        direct = self.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **arguments)
        if list(direct) != ids:
            raise TextAndIdsDisagreeError("encoding the rendered text gives other ids than apply_chat_template")
        return text, ids

    def _refuse_a_running_clock(self) -> None:
        """Check that the clock which templates read here is the one that is stopped."""
        probe = "{{ strftime_now('%Y-%m-%dT%H:%M:%S') }}"
        with stopped(CLOCKS[0]):
            try:
                shown = self.tokenizer.apply_chat_template([], chat_template=probe, tokenize=False)
            except Exception:
                return  # a release whose templates have no clock
        if shown != CLOCKS[0]:
            raise RefusedError("the clock that this transformers gives to templates cannot be stopped")


class TextAndIdsDisagreeError(Exception):
    """Rendering to text and encoding it is not what rendering to ids gives."""


@contextlib.contextmanager
def stopped(clock: str) -> Iterator[None]:
    """Stop the clock that transformers gives to templates (``strftime_now``)."""
    try:
        from transformers.utils import chat_template_utils as module
    except ImportError:
        module = None
    if not hasattr(module, "datetime"):  # no clock in templates yet
        yield
        return
    moment = real_datetime.fromisoformat(clock)

    class Stopped(real_datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Stopped:
            return cls.fromisoformat(moment.isoformat()).replace(tzinfo=tz)

    before = module.datetime
    module.datetime = Stopped
    try:
        yield
    finally:
        module.datetime = before


# ---- what the tokenizer is ----


def effective(tokenizer: Any) -> str | None:
    """Return the digest of the tokenizer that was really built; ``None`` where it cannot be written out."""
    import transformers

    base = getattr(transformers, "TokenizersBackend", None) or transformers.PreTrainedTokenizerFast
    if not isinstance(tokenizer, base):
        return None
    methods = [name for name in _ENCODING if hasattr(base, name)]
    if not hasattr(transformers, "TokenizersBackend"):
        methods.append("_batch_encode_plus")
    cls = type(tokenizer)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    for outside in ("truncation", "padding"):
        backend.pop(outside, None)
    return fingerprint(
        {
            "backend": backend,
            "split_special_tokens": bool(getattr(tokenizer.backend_tokenizer, "encode_special_tokens", False)),
            "class": cls.__name__ if any(getattr(cls, name) is not getattr(base, name) for name in methods) else None,
        }
    )


def fingerprint(value: Any) -> str:
    """Return ``"blake3:<64 hex>"`` of a JSON value: keys sorted, ASCII only, no white space."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return "blake3:" + blake3_hex(text.encode("ascii"))


def blake3_hex(data: bytes) -> str:
    """Return the BLAKE3 digest; with NumPy, which transformers needs anyway, where the library is not there."""
    try:
        from blake3 import blake3
    except ImportError:
        return _blake3_numpy(data)
    digest: str = blake3(data).hexdigest()
    return digest


# BLAKE3 as its specification has it (BLAKE3-team/BLAKE3-specs): all chunks at once, then all nodes of a level at once.
_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_CHUNK, _BLOCK = 1024, 64


def _blake3_numpy(data: bytes) -> str:
    import numpy as np

    count = max(1, -(-len(data) // _CHUNK))
    padded = np.zeros(count * _CHUNK, dtype=np.uint8)
    padded[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    words = padded.view("<u4").astype(np.uint32).reshape(count, _CHUNK // _BLOCK, 16)
    whole = count - 1  # the last chunk has its own number of blocks, and its own length in the last of them
    last = len(data) - whole * _CHUNK
    alone = _ROOT if count == 1 else 0
    nodes = np.empty((8, count), dtype=np.uint32)
    if whole:
        value = _initial(whole)
        for block in range(_CHUNK // _BLOCK):
            flags = (_CHUNK_START if block == 0 else 0) | (_CHUNK_END if block == _CHUNK // _BLOCK - 1 else 0)
            value = _compress(value, words[:whole, block].T, np.arange(whole, dtype=np.uint64), _BLOCK, flags)
        nodes[:, :whole] = value
    value = _initial(1)
    blocks = max(1, -(-last // _BLOCK))
    for block in range(blocks):
        ends = block == blocks - 1
        flags = (_CHUNK_START if block == 0 else 0) | ((_CHUNK_END | alone) if ends else 0)
        length = last - block * _BLOCK if ends else _BLOCK
        value = _compress(value, words[whole:, block].T, np.array([whole], dtype=np.uint64), length, flags)
    nodes[:, whole:] = value
    while nodes.shape[1] > 1:
        pairs = nodes.shape[1] // 2
        message = np.concatenate((nodes[:, 0 : 2 * pairs : 2], nodes[:, 1 : 2 * pairs : 2]))
        root = _ROOT if nodes.shape[1] == 2 else 0
        joined = _compress(_initial(pairs), message, np.zeros(pairs, dtype=np.uint64), _BLOCK, _PARENT | root)
        nodes = np.concatenate((joined, nodes[:, 2 * pairs :]), axis=1)  # one left over goes up as it is
    return nodes[:, 0].astype("<u4").tobytes().hex()


def _initial(lanes: int) -> Any:
    import numpy as np

    return np.repeat(np.array(_IV, dtype=np.uint32)[:, None], lanes, axis=1)


def _compress(value: Any, message: Any, counter: Any, length: int, flags: int) -> Any:
    """Return the new chaining values: ``value`` 8 x lanes, ``message`` 16 x lanes, ``counter`` one for each lane."""
    import numpy as np

    lanes = counter.shape[0]
    fixed = np.array([*_IV[:4], 0, 0, length, flags], dtype=np.uint32)
    state = [*value, *(np.repeat(word, lanes) for word in fixed)]
    state[12] = (counter & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    state[13] = (counter >> np.uint64(32)).astype(np.uint32)
    words = list(message)
    for _ in range(7):
        for index, (a, b, c, d) in enumerate(_COLUMNS + _DIAGONALS):
            for word, turn_d, turn_b in ((words[2 * index], 16, 12), (words[2 * index + 1], 8, 7)):
                state[a] = state[a] + state[b] + word
                state[d] = _rotated(state[d] ^ state[a], turn_d)
                state[c] = state[c] + state[d]
                state[b] = _rotated(state[b] ^ state[c], turn_b)
        words = [words[place] for place in _PERMUTATION]
    return np.stack([state[lane] ^ state[lane + 8] for lane in range(8)])


def _rotated(word: Any, by: int) -> Any:
    import numpy as np

    return (word >> np.uint32(by)) | (word << np.uint32(32 - by))


# ---- the file ----


def snapshot(
    output: Path, renderer: Renderer, corpus: Corpus, options: dict[str, Any], unapplied: list[str], redact: bool
) -> int:
    """Render a corpus into ``output``, all of it or nothing, and return the number of conversations."""
    import jinja2
    import tokenizers
    import transformers

    clocks = CLOCKS if renderer.reads_clock else CLOCKS[:1]
    header = {
        "schema": SCHEMA,
        "corpus": {"id": f"{corpus.name}@{corpus.digest[:12]}", "digest": f"sha256:{corpus.digest}"},
        "renderer": {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__},
        "jinja2": jinja2.__version__,
        "made": "script",
        "options": options,
        "unapplied": unapplied,
        "template": fingerprint(renderer.templates) if renderer.templates else None,
        "tokenizer": effective(renderer.tokenizer),
        "clocks": list(clocks),
        **({"redacted": True} if redact else {}),
    }
    count, reported = 0, time.monotonic()
    used: set[int] = set()
    with beside(output) as stream:
        stream.write(_line(header))
        for name, conversation in corpus.conversations():
            renders = [renderer.render(conversation, clock) for clock in clocks]
            used.update(*(render.get("ids", ()) for render in renders))
            if redact:
                renders = [_redacted(render) for render in renders]
            stream.write(_line({"id": name, "input": input_digest(conversation), "renders": renders}))
            count += 1
            if time.monotonic() - reported > _SECONDS:
                reported = time.monotonic()
                sys.stderr.write(f"{count:,} conversations\n")
        known = sorted(used)
        pieces = {} if redact else {str(number): renderer.tokenizer.convert_ids_to_tokens(number) for number in known}
        stream.write(_line({"end": True, "conversations": count, "coverage": None, "pieces": pieces}))
    return count


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _redacted(render: dict[str, Any]) -> dict[str, Any]:
    if render["state"] == "ok":
        return {**render, "text": None, "digest": _text_digest(render["text"])}
    error = render["error"]
    return {**render, "error": {**error, "message": f"[redacted {_text_digest(error['message'])}]"}}


def _text_digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@contextlib.contextmanager
def beside(output: Path) -> Iterator[Any]:
    """Open a file beside ``output`` that takes its place once all is written, and is removed otherwise."""
    unfinished = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
        unfinished = Path(name)
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - a descriptor, not a path
            yield stream
            mask = os.umask(0o077)
            os.umask(mask)
            os.fchmod(stream.fileno(), 0o666 & ~mask)  # mkstemp makes private files; others read this one
        unfinished.replace(output)
        unfinished = None
    except OSError as error:
        raise RefusedError(f"{output}: cannot be written: {error.strerror}") from None
    finally:
        if unfinished is not None:
            unfinished.unlink()


# ---- the command line ----


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code: 0, or 3 where an input cannot be used (2: wrong call)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("folder", type=Path, metavar="MODEL_FOLDER", help="tokenizer files, config.json, chat template")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="where the snapshot goes (.jsonl)"
    )
    parser.add_argument(
        "--corpus", type=Path, metavar="FILE", help="JSONL of OpenAI requests, in place of the diagnostic corpus"
    )
    parser.add_argument("--chat-template", type=Path, metavar="FILE", help="a template that replaces the folder's")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="a rendering option, as in the manifest"
    )
    parser.add_argument("--redact", action="store_true", help="leave prompt text out; token ids stay")
    given = parser.parse_args(arguments)
    try:
        options, unapplied = parse_options(given.option)
        if not given.folder.is_dir():
            raise RefusedError(f"{given.folder}: not a folder")
        corpus = Corpus(given.corpus)
        if given.output.resolve() in [
            path.resolve() for path in (given.corpus, given.chat_template) if path is not None
        ]:
            raise RefusedError(f"{given.output}: is an input")
        template = None if given.chat_template is None else _text(given.chat_template)
        renderer = Renderer(given.folder, template, options)
        count = snapshot(given.output, renderer, corpus, options, unapplied, given.redact)
    except RefusedError as refused:
        sys.stderr.write(f"error: {refused}\n")
        return 3
    for name in unapplied:
        sys.stderr.write(f"note: the option {name} is not known here and was not applied\n")
    sys.stderr.write(f"{given.output}: {count:,} conversations\n")
    return 0


def parse_options(given: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options to apply, defaults filled in, and the names of those that are not known here."""
    options, unapplied = dict(OPTIONS), set()
    for text in given:
        name, equals, written = text.partition("=")
        try:
            value = json.loads(written)
        except ValueError:
            value = written
        if not equals:
            raise RefusedError(f"--option {text}: not NAME=VALUE")
        if name not in OPTIONS:
            unapplied.add(name)
            continue
        if type(value) is not type(OPTIONS[name]):
            kind = "an object" if isinstance(OPTIONS[name], dict) else "true or false"
            raise RefusedError(f"--option {name}: must be {kind}")
        options[name] = value
    return options, sorted(unapplied)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: cannot be read: {_words(error)}") from None


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
    sys.exit(main())
