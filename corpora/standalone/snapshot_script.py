#!/usr/bin/env python3
"""Save what the transformers of this environment makes of conversations: rendered text and token ids.

    python kvgate_snapshot.py MODEL_FOLDER -o tokens.jsonl

One file, to be run inside a serving image, an old one too, so that a deployment's tokens are those of its own
library. It needs Python 3.8 and transformers 4.40 or newer, and nothing else; with Python 3.10 or newer it also says
which tokenizer was built and which branches of the template ran. It loads nothing from a network and runs no code of
the model folder but its chat template, as the engine beside it does. kvgate reads what it writes (`kvgate corpus
compare`, `kvgate capture --renderer tokens.jsonl`).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
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
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

SCHEMA = "kvgate/snapshot/v1"
CLOCKS = ("2026-02-03T04:05:06", "2027-11-19T20:21:22")
OPTIONS = {
    "add_generation_prompt": True,
    "add_special_tokens": True,
    "parse_tool_arguments": True,
    "template_kwargs": {},
}

# The diagnostic corpus, packed, and those modules of kvgate that do their work here as they do at home:
# `kvgate corpus script` fills them in.
CORPUS = ""
CARRIED: dict[str, str] = {}

_SECONDS = 5.0  # between two lines of progress


class RefusedError(Exception):
    """An input cannot be used; the message says which and why."""


class Carried(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of kvgate that this file carries, and the packages that they lie in."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - importlib's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Say where a module is, if it is here."""
        package = any(name.startswith(f"{fullname}.") for name in CARRIED)
        if fullname not in CARRIED and not package:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=__file__, is_package=package)

    def exec_module(self, module: ModuleType) -> None:
        """Run its source."""
        code = compile(CARRIED.get(module.__name__, ""), f"<{module.__name__}>", "exec")
        exec(code, vars(module))  # noqa: S102 - source of this very file


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

    def conversations(self) -> Iterator[Conversation]:
        """Yield what each line holds."""
        seen: set[str] = set()
        hasher = hashlib.sha256()
        for number, line in enumerate(self._lines(), 1):
            hasher.update(line)
            if line.isspace():
                continue
            try:
                found = Conversation(line.decode("utf-8-sig" if number == 1 else "utf-8"), number)
            except (TypeError, ValueError) as error:
                raise RefusedError(f"{self._path}:{number}: {error}") from None
            if found.id in seen:
                raise RefusedError(f"{self._path}:{number}: the id {found.id!r} stands twice")
            seen.add(found.id)
            yield found
        if hasher.hexdigest() != self.digest:
            raise RefusedError(f"{self._path}: was changed while it was being read")


class Conversation:
    """One line of a corpus.

    Attributes:
        id: its name.
        input: what is rendered, as kvgate takes it into its digest.
        turns: whether the stability of its turns is measured.

    """

    def __init__(self, line: str, number: int) -> None:
        """Read it; raises ``ValueError`` or ``TypeError`` where it is none."""
        value = json.loads(line, object_pairs_hook=_once)
        name = value.get("id") if isinstance(value, dict) else None
        if isinstance(value, dict) and "body" in value and value.keys() <= {"custom_id", "method", "url", "body"}:
            name, value = value.get("custom_id"), value["body"]  # a line of a batch file
        if not isinstance(value, dict) or (value.get("messages") is None) == (value.get("prompt") is None):
            raise ValueError("needs either 'messages' or 'prompt'")
        self.id: str = f"line-{number}" if name is None else name
        for message in value.get("messages") or ():
            if isinstance(message, dict):
                message.pop("generated_token_ids", None)
        if isinstance(value.get("prompt"), list):
            (value["prompt"],) = value["prompt"]
        variables = value.get("chat_template_kwargs") or {}
        if (effort := value.get("reasoning_effort")) is not None:  # as vLLM does
            variables = {"enable_thinking": effort != "none", **variables, "reasoning_effort": effort}
        self.turns = "multi-turn" in (value.get("tags") or ())
        self.input: dict[str, Any] = {
            **{field: value.get(field) for field in ("messages", "prompt", "tools", "documents")},
            "template_kwargs": variables,
            "add_generation_prompt": value.get("add_generation_prompt"),
            "continue_final_message": bool(value.get("continue_final_message")),
        }

    @property
    def digest(self) -> str:
        """Sixteen hex digits that are equal where the same thing is rendered."""
        text = json.dumps(self.input, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


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


def processors_template(file: Path) -> str:
    """Return the template of a multimodal model's processor; kvgate.corpora.templates.template says why it counts."""
    try:
        text = json.loads(file.read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"{file}: holds no chat template: {_words(error)}") from None
    if not isinstance(text, str):
        raise RefusedError(f"{file}: holds no chat template")
    return text


class Renderer:
    """The tokenizer of a model folder, as transformers here builds it, with template and options."""

    def __init__(self, folder: Path, template: str | None, options: dict[str, Any]) -> None:
        """Load it; without remote code, and without the network."""
        self.jinja2: str | None = None
        with contextlib.suppress(ImportError):
            import jinja2

            self.jinja2 = jinja2.__version__
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
        processors = folder / "chat_template.json"
        if template is None and processors.exists():
            self.templates["processor"] = processors_template(processors)
        self.reads_clock = any("strftime_now" in text for text in self.templates.values())
        if self.reads_clock:
            self._refuse_a_running_clock()

    def render(self, conversation: dict[str, Any], clock: str) -> dict[str, Any]:
        """Render and encode one conversation as if it were ``clock``."""
        try:
            with stopped(clock):
                if conversation["prompt"] is not None:
                    return {"state": "ok", "text": conversation["prompt"], "ids": self._complete(conversation)}
                text = self._apply(conversation, tokenize=False)
                ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
                direct = self._apply(conversation, tokenize=True, return_dict=False)
                if list(direct) != ids:
                    raise TextAndIdsDisagreeError("encoding the rendered text gives other ids than apply_chat_template")
                return {"state": "ok", "text": text, "ids": ids}
        except MemoryError:
            raise
        except Exception as error:
            message = " ".join(str(error).split())[:200]
            return {"state": "render-error", "error": {"class": type(error).__name__, "message": message}}

    def text(self, conversation: dict[str, Any], clock: str) -> str | None:
        """Render one conversation and encode nothing; ``None`` where it is an error."""
        if conversation["prompt"] is not None:
            return str(conversation["prompt"])
        try:
            with stopped(clock):
                return str(self._apply(conversation, tokenize=False))
        except MemoryError:
            raise
        except Exception:
            return None

    def pieces(self, used: set[int]) -> dict[str, str]:
        """Return the vocabulary's string for each id; one that it does not name is left out."""
        found = {str(number): self.tokenizer.convert_ids_to_tokens(number) for number in sorted(used)}
        return {number: piece for number, piece in found.items() if isinstance(piece, str)}

    def _complete(self, conversation: dict[str, Any]) -> list[int]:
        special_tokens = self._options["add_special_tokens"]
        return list(self.tokenizer(conversation["prompt"], add_special_tokens=special_tokens)["input_ids"])

    def _apply(self, conversation: dict[str, Any], **how: Any) -> Any:
        messages = conversation["messages"]
        if self._options["parse_tool_arguments"]:
            messages = [with_parsed_arguments(message) for message in messages]
        generate = conversation["add_generation_prompt"]
        if generate is None:
            generate = self._options["add_generation_prompt"] and not conversation["continue_final_message"]
        arguments: dict[str, Any] = {
            "tools": conversation["tools"],
            "documents": conversation["documents"],
            "continue_final_message": conversation["continue_final_message"],
        }
        # An old release passes on to the template what it has no parameter for, as its engine would have done.
        for name in ("tools", "documents"):
            if name not in self._parameters and arguments[name] is None:
                del arguments[name]
        if "continue_final_message" not in self._parameters and arguments.pop("continue_final_message"):
            raise NotImplementedError("this transformers cannot continue the final message")
        random.seed(0)
        return self.tokenizer.apply_chat_template(
            messages,
            chat_template=self._template,
            add_generation_prompt=generate,
            **arguments,
            **how,
            **{**self._options["template_kwargs"], **conversation["template_kwargs"]},
        )

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


@contextlib.contextmanager
def watched(tokenizer: Any, covering: Callable[[Any], Any]) -> Iterator[None]:
    """Have transformers make its template environments of another class, and compile all templates anew.

    transformers keeps compiled templates by their text, so that what was compiled before is forgotten on the way in
    and out. Old releases have no module of their own for templates and import the class where they use it.
    """
    from jinja2 import sandbox

    name = "ImmutableSandboxedEnvironment"
    try:
        from transformers.utils import chat_template_utils as library
    except ImportError:
        library = None
    place = library if hasattr(library, name) else sandbox
    compilers = [getattr(library, f"_{cached}compile_jinja_template", None) for cached in ("", "cached_")]
    compilers.append(getattr(type(tokenizer), "_compile_jinja_template", None))

    def forget() -> None:
        for compiler in compilers:
            getattr(compiler, "cache_clear", lambda: None)()

    before = getattr(place, name)
    forget()
    setattr(place, name, covering(before))
    try:
        yield
    finally:
        setattr(place, name, before)
        forget()


# ---- what the tokenizer is ----


def effective(tokenizer: Any) -> str | None:
    """Return the digest of the tokenizer that was really built; ``None`` where it cannot be written out."""
    import transformers

    if not hasattr(transformers, "TokenizersBackend"):  # its name before transformers 5
        transformers.TokenizersBackend = transformers.PreTrainedTokenizerFast
    try:
        from kvgate.corpora.tokenizers.effective import canonical, written_out

        parts = written_out(tokenizer)
        return None if isinstance(parts, str) else fingerprint(canonical(parts))
    except Exception as error:
        _say(f"it is not known which tokenizer was built: {_words(error)}")
        return None


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
    clocks = CLOCKS if renderer.reads_clock else CLOCKS[:1]
    header = {
        "schema": SCHEMA,
        "corpus": {"id": f"{corpus.name}@{corpus.digest[:12]}", "digest": f"sha256:{corpus.digest}"},
        "renderer": {name: sys.modules[name].__version__ for name in ("transformers", "tokenizers")},
        "jinja2": renderer.jinja2,
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
    texts: list[int | None] = []
    with beside(output) as stream:
        stream.write(_line(header))
        for conversation in corpus.conversations():
            renders = [renderer.render(conversation.input, clock) for clock in clocks]
            entry: dict[str, Any] = {"id": conversation.id, "input": conversation.digest, "renders": renders}
            used.update(*(render.get("ids", ()) for render in renders))
            texts.extend(hash(render["text"]) if render["state"] == "ok" else None for render in renders)
            if conversation.turns and renders[0]["state"] == "ok":
                turns = measured_turns(conversation.input, renders[0]["ids"], renderer, clocks[0])
                if turns is not None:
                    entry["turns"] = turns
            if redact:
                entry["renders"] = [_redacted(render) for render in renders]
            stream.write(_line(entry))
            count += 1
            if time.monotonic() - reported > _SECONDS:
                reported = time.monotonic()
                _say(f"{count:,} conversations")
        coverage = measured_coverage(renderer, corpus, clocks, texts)
        pieces = {} if redact else renderer.pieces(used)
        stream.write(_line({"end": True, "conversations": count, "coverage": coverage, "pieces": pieces}))
    return count


def measured_turns(
    conversation: dict[str, Any], whole: list[int], renderer: Renderer, clock: str
) -> list[dict[str, Any]] | None:
    """Say whether a chat, cut at the end of each turn, is the beginning of the whole; ``None``: not measured."""
    try:
        from kvgate.corpora.divergence.stability import measure_turns, turns_as_data
    except Exception:
        return None

    def alone(part: Any) -> list[int] | None:
        return renderer.render(dict(part), clock).get("ids")

    return turns_as_data(measure_turns(conversation, whole, alone))


def measured_coverage(
    renderer: Renderer, corpus: Corpus, clocks: Sequence[str], texts: list[int | None]
) -> dict[str, Any] | None:
    """Render everything once more to see which branches of the template run; ``None``: it cannot be seen here.

    A second time, because a template that is watched is compiled in another way: what is saved comes from a library
    that nobody touched, and where the second time gives another text, nothing is said.
    """
    try:
        from kvgate.corpora.coverage.recording import Recorder, covering

        recorder = Recorder(renderer.templates)
        same = True
        before = iter(texts)
        with watched(renderer.tokenizer, lambda base: covering(base, recorder)):
            for conversation in corpus.conversations():
                for clock in clocks:
                    text = renderer.text(conversation.input, clock)
                    recorder.settle(counts=text is not None)
                    same = next(before) in (None, hash(text)) and same
        coverage: dict[str, Any] = recorder.coverage().as_data()
    except RefusedError:
        raise
    except Exception as error:
        _say(f"it is not known which branches of the template ran: {_words(error)}")
        return None
    if not same:
        _say("it is not known which branches of the template ran: watched, it renders something else")
    return coverage if same else None


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
        _say(f"error: {refused}")
        return 3
    for name in unapplied:
        _say(f"note: the option {name} is not known here and was not applied")
    _say(f"{given.output}: {count:,} conversations")
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


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    sys.meta_path.insert(0, Carried())
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
    sys.exit(main())
