"""``docker run`` and ``podman run`` lines: which words belong to the container tool, which to the engine.

Which options take no value: docker/cli, docs/reference/commandline/run.md, commit 03dc883 (the rows without a
type), and podman-run(1) for the ones that only podman has. An option that neither lists is taken to have one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvgate.deployments.launch.shell import Word
from kvgate.rules.errors import InputError

TOOLS = frozenset({"docker", "podman", "nerdctl"})

_LONG_WITHOUT_VALUE = frozenset(
    {
        "detach",
        "disable-content-trust",
        "init",
        "interactive",
        "no-healthcheck",
        "no-hosts",
        "oom-kill-disable",
        "privileged",
        "publish-all",
        "quiet",
        "read-only",
        "read-only-tmpfs",
        "replace",
        "rm",
        "rmi",
        "sig-proxy",
        "tls-verify",
        "tty",
        "unsetenv-all",
        "env-host",
        "http-proxy",
    }
)
_SHORT_WITHOUT_VALUE = frozenset("diPqt")
# registry/path:tag@digest; a colon before a slash is a port (distribution/reference grammar).
_REFERENCE = re.compile(r"(?P<name>[^@]+?)(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>[a-z0-9]+:[0-9a-f]{32,}))?")
_RELEASE_TAG = re.compile(r"v?(\d+\.\d+\.\d+(?:\.?(?:rc|post|dev)\d+)*)(?:-[\w.-]+)?")

# LMCache's own images: their tags are LMCache's releases (LMCache/LMCache docker/, docs "Docker installation").
_LMCACHE = frozenset({"lmcache/standalone", "lmcache/vllm-openai"})
_OFFICIAL = {
    "vllm/vllm-openai": "vllm",
    "vllm/vllm-openai-cpu": "vllm",
    "vllm/vllm-openai-rocm": "vllm",
    "lmsysorg/sglang": "sglang",
    "nvcr.io/nvidia/tensorrt-llm/release": "tensorrt-llm",
}


@dataclass(frozen=True, slots=True)
class Mount:
    """Something that a container line puts over a path of the image.

    Attributes:
        source: a path of the host, or the name of a volume; ``None``: something that ends with the container.
        target: the path inside the container.
        expansions: what the shell fills in, in either.
        volume: the source is the name of a volume.
    """

    source: str | None
    target: str
    expansions: tuple[str, ...] = ()
    volume: bool = False


@dataclass(frozen=True)
class ContainerRun:
    """One container, as ``docker run`` or a deployment file starts it.

    Attributes:
        image: the image reference.
        entrypoint: ``--entrypoint``; ``None``: the image's own.
        arguments: what follows the image.
        environment: ``-e NAME=value`` as ``(name, value)``; a value of ``None`` is set from outside, and not known.
        undisclosed: why further variables may be set that nobody sees (``--env-file``).
        mounts: what lies over the image's own files.
        altered: why the software may be another than the image's (``--volumes-from``).
        workdir: the working directory, where it may be another than the image's.
        files: files that are mounted and whose content is known, by their path in the container.
        hidden: why the command may have flags that the file does not show.
        notes: what a reader should know of how the container came about, one sentence each.
        writers: what else runs in the pod and may write to what this container reads: a digest of it, by its name.
        nodes: what it asks of the node it runs on: values of which that has one, by label.
    """

    image: Word
    entrypoint: Word | None
    arguments: tuple[Word, ...]
    environment: tuple[tuple[str, Word | None], ...]
    undisclosed: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    altered: tuple[str, ...] = ()
    workdir: Word | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    writers: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def completed_elsewhere(run: ContainerRun) -> ContainerRun:
    """Return a container whose file names no image: it changes one of another file, which may set anything else."""
    return replace(
        run,
        image=Word("", ("that another file names",)),
        undisclosed=(*run.undisclosed, "the file names no image: another one completes it, and may set any variable"),
        mounts=(Mount("", "/", ("another file says it",)), *run.mounts),
    )


def read_container_run(words: Sequence[Word], source: str) -> ContainerRun:
    """Read the words after ``docker run``.

    Raises:
        InputError: when there is no image.
    """
    at = 0
    entrypoint: Word | None = None
    environment: list[tuple[str, Word | None]] = []
    undisclosed: list[str] = []
    mounts: list[Mount] = []
    altered: list[str] = []
    workdir: Word | None = None
    while at < len(words) and words[at].text.startswith("-") and len(words[at].text) > 1:
        name, value, at = _option(words, at)
        if value is None:
            continue
        if name in ("e", "env"):
            key, has_value, text = value.text.partition("=")
            environment.append((key, Word(text, value.expansions) if has_value else None))
        elif name == "env-file":
            undisclosed[:] = ["the file of --env-file was not given"]
        elif name == "entrypoint":
            entrypoint = value
        elif name in ("v", "volume", "mount", "tmpfs"):
            mounts.append(_mount(name, value))
        elif name in ("volumes-from", "rootfs"):
            altered.append(f"--{name} mounts what the line does not show")
        elif name in ("w", "workdir"):
            workdir = value
    if at >= len(words):
        raise InputError("the container line names no image", where=source)
    return ContainerRun(
        words[at],
        entrypoint,
        tuple(words[at + 1 :]),
        tuple(environment),
        tuple(undisclosed),
        tuple(mounts),
        tuple(altered),
        workdir,
    )


def _mount(option: str, value: Word) -> Mount:
    """Read ``-v SOURCE:TARGET[:OPTIONS]``, ``--mount type=...,src=...,dst=...`` and ``--tmpfs TARGET``."""
    if option == "tmpfs":
        return Mount(None, value.text.partition(":")[0], value.expansions)
    if option == "mount":
        fields = dict(part.partition("=")[::2] for part in value.text.split(","))
        source = fields.get("source") or fields.get("src")
        target = fields.get("target") or fields.get("destination") or fields.get("dst") or "/"
        kind = fields.get("type", "volume")
        kept = source if kind in ("bind", "volume") else None
        if kept is not None and "subpath" in value.text:  # volume-subpath: another place in the volume
            return Mount(kept, target, (*value.expansions, "a sub-path"), kind == "volume")
        return Mount(kept, target, value.expansions, kind == "volume")
    source, colon, rest = value.text.partition(":")
    if not colon:
        return Mount(None, source, value.expansions)
    named = "/" not in source and not source.startswith((".", "~")) and not value.expansions
    return Mount(source, rest.partition(":")[0], value.expansions, named)


def _option(words: Sequence[Word], at: int) -> tuple[str, Word | None, int]:
    """Return the option's name, its value and where the next word starts."""
    word = words[at]
    text = word.text
    following = words[at + 1] if at + 1 < len(words) else None
    if text.startswith("--"):
        name, has_value, value = text[2:].partition("=")
        if has_value:
            return name, Word(value, word.expansions), at + 1
        return (name, None, at + 1) if name in _LONG_WITHOUT_VALUE else (name, following, at + 2)
    for index, letter in enumerate(text[1:], start=1):
        if letter not in _SHORT_WITHOUT_VALUE:
            rest = text[index + 1 :].removeprefix("=")
            return (letter, Word(rest, word.expansions), at + 1) if rest else (letter, following, at + 2)
    return text[1:], None, at + 1


@dataclass(frozen=True)
class Image:
    """What an image reference tells: ``digest`` pins the content, the tag of an ``engine``'s own image its release."""

    name: str
    tag: str | None
    digest: str | None
    version: str | None
    engine: str | None


def read_image(reference: str) -> Image:
    """Take an image reference apart; ``version`` only for an engine's own image (``vllm/vllm-openai:v0.33.0``)."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        return Image(reference, None, None, None, None)
    name, tag, digest = match["name"], match["tag"], match["digest"]
    engine = _OFFICIAL.get(name.removeprefix("docker.io/"))
    release = _RELEASE_TAG.fullmatch(tag) if tag and engine else None
    pinned = digest if digest and re.fullmatch(r"sha256:[0-9a-f]{64}", digest) else None
    return Image(name, tag, pinned, release[1] if release else None, engine)


def lmcache_release(reference: str) -> str | None:
    """Return the release of LMCache that one of its own images names (``lmcache/standalone:v0.5.6``), else nothing."""
    image = read_image(reference)
    own = image.name.removeprefix("docker.io/") in _LMCACHE
    release = _RELEASE_TAG.fullmatch(image.tag) if own and image.tag else None
    return release[1] if release else None
