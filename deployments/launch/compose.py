"""Docker compose files: the service that runs the engine.

Source: compose-spec/compose-spec, 12-interpolation.md at 0a7f945, 05-services.md and 07-volumes.md.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.deployments.launch.containers import ContainerRun, Mount, completed_elsewhere
from kvgate.deployments.launch.invocation import servers_in_container
from kvgate.deployments.launch.nodes import RESOURCES
from kvgate.deployments.launch.objects import mapping
from kvgate.deployments.launch.secrets import clean_text
from kvgate.deployments.launch.servers import Server
from kvgate.deployments.launch.shell import MAX_FILLED, MAX_TEXT, Word, too_much_to_fill_in
from kvgate.rules.document import TwoWays, parse_foreign_documents
from kvgate.rules.errors import InputError

_MAX_SERVERS = 500  # each is read in milliseconds; a project is a few services
_USUAL_PLATFORM = "linux/amd64"  # another one is another image of one index
_RENDERED = "give what is deployed: the output of `docker compose config`"
_PROJECT = "the project's name, which is part of the volume's"
_VARIABLE = re.compile(r"\$(?:\$|\{([A-Za-z_][A-Za-z0-9_]*)[^}]{0,400}\}|([A-Za-z_][A-Za-z0-9_]*))")


def is_compose(text: str) -> bool:
    """Whether a file is a compose file, by its top-level keys; nothing is parsed."""
    return re.search(r"^services[ \t]*:", text, re.MULTILINE) is not None


def compose_servers(source: str, data: bytes) -> list[Server]:
    """Find every service of a compose file that starts an engine.

    Variables are filled in from outside, and ``env_file`` is not read: what they set is not known.

    Raises:
        InputError: not well-formed, several documents, a service or a value that is none.
    """
    try:
        documents = parse_foreign_documents(data, source)
    except InputError as error:
        raise InputError(error.message, where=error.where, hint=_RENDERED) from None
    if len(documents) != 1 or not isinstance(documents[0][0], Mapping):
        raise InputError("is not one compose file", where=source)
    project = documents[0][0]
    found: list[Server] = []
    for name, service in mapping(project.get("services")).items():
        where = f"{source}: service {clean_text(str(name)) or '...'}"
        if not isinstance(service, Mapping):
            raise InputError("is no service", where=where)
        servers = servers_in_container(_container(service, project, where), where)
        if len(servers) > 1:
            raise InputError("starts more than one server", where=where)
        if len(found) >= _MAX_SERVERS:
            raise InputError(f"more than {_MAX_SERVERS} services start a server", where=source, hint=_RENDERED)
        found += [Server(frozenset({name}), clean_text(str(name)) or "...", where, server) for server in servers]
    return found


def _container(service: Mapping[str, Any], project: Mapping[str, Any], where: str) -> ContainerRun:
    entrypoint = _words(service.get("entrypoint"), f"{where}: entrypoint")
    command = _words(service.get("command"), f"{where}: command")
    image = service.get("image")
    built = "build" in service
    undisclosed = ["the env_file was not read, and it may set any variable"] if service.get("env_file") else []
    if service.get("extends"):
        undisclosed.append("the service extends another, which may set any variable")
    altered = [f"`{key}` mounts what the file does not show" for key in ("volumes_from", "extends") if service.get(key)]
    if service.get("post_start"):
        altered.append("a post_start hook runs in the container, and what it changes is not known")
    notes = ("`develop.watch` may write into the container where it is started with --watch",)
    platform = service.get("platform")
    run = ContainerRun(
        image=Word("", ("that is built from a folder",)) if built else _word(image or "", f"{where}: image"),
        entrypoint=entrypoint[0] if entrypoint else None,
        arguments=(*entrypoint[1:], *command),
        environment=_environment(service.get("environment"), f"{where}: environment"),
        undisclosed=tuple(undisclosed),
        mounts=tuple(_mounts(service, project, where)),
        altered=tuple(altered),
        workdir=_word(service["working_dir"], f"{where}: working_dir") if service.get("working_dir") else None,
        notes=notes if mapping(service.get("develop")).get("watch") else (),
        nodes={} if platform in (None, _USUAL_PLATFORM) else {RESOURCES: (_word(platform, where).text,)},
    )
    return run if image or built else completed_elsewhere(run)


def _word(value: Any, where: str) -> Word:
    """Return a text with what Compose fills in marked; ``$$`` is a dollar sign."""
    if isinstance(value, TwoWays):
        raise InputError("is read differently by different YAML tools", where=where, hint="put it in quotes")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InputError("is not a text", where=where, hint="put it in quotes")
    if len(str(value)) > MAX_TEXT:
        raise InputError(f"more than the {MAX_TEXT:,} characters that a launch line may have", where=where)
    labels: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name is None:
            return "$"
        labels.append(f"${{{name}}}")
        return labels[-1]

    filled = _VARIABLE.sub(replaced, str(value))
    if len(labels) > MAX_FILLED:
        raise too_much_to_fill_in(where)
    return Word(filled, tuple(dict.fromkeys(labels)))


def _words(value: Any, where: str) -> list[Word]:
    """Return a command: a list of words, or a text that is split as a shell would, without being run by one."""
    if value is None:
        return []
    if isinstance(value, list):
        return [_word(item, where) for item in value]
    whole = _word(value, where)
    try:
        words = shlex.split(whole.text)
    except ValueError:
        raise InputError("ends inside a quote or after a backslash", where=where) from None
    return [Word(word, tuple(label for label in whole.expansions if label in word)) for word in words]


def _environment(value: Any, where: str) -> tuple[tuple[str, Word | None], ...]:
    """Return the variables of either form; one without a value is handed through from outside."""
    pairs: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list):
        for item in value:
            name, has_value, rest = str(item).partition("=")
            pairs.append((name, rest if has_value else None))
    elif value is not None:
        raise InputError("is neither a list nor a mapping", where=where)
    return tuple(
        (name, None if item is None else _word(item, f"{where}: {clean_text(name) or '...'}")) for name, item in pairs
    )


def _mounts(service: Mapping[str, Any], project: Mapping[str, Any], where: str) -> list[Mount]:
    found = []
    for item in _list(service.get("volumes")):
        if isinstance(item, Mapping):
            source, target = (item.get(key) for key in ("source", "target"))
            kind, sub = item.get("type"), mapping(item.get("volume")).get("subpath")
            if not isinstance(target, str):
                raise InputError("a volume without a target", where=where)
            kept = source if isinstance(source, str) and kind in ("bind", "volume") else None
            found.append(_mount(kept, target, project, named=kind == "volume", sub=sub))
            continue
        word = _word(item, f"{where}: volumes").text
        source, colon, rest = word.partition(":")
        named = "/" not in source and not source.startswith((".", "~", "$"))
        found.append(_mount(source if colon else None, rest.partition(":")[0] or source, project, named=named))
    found += [Mount(None, str(item).partition(":")[0]) for item in _strings(service.get("tmpfs"))]
    for key in ("configs", "secrets"):
        for item in _list(service.get(key)):
            target = mapping(item).get("target") or (f"/run/secrets/{item}" if key == "secrets" else f"/{item}")
            found.append(Mount(None, str(target)))
    return found


def _mount(source: str | None, target: str, project: Mapping[str, Any], *, named: bool, sub: Any = None) -> Mount:
    whole = _word(target, "")
    labels = list(whole.expansions)
    if source is not None:
        labels += _word(source, "").expansions
        if named:
            source, reason = _volume(source, project)
            labels += [reason] if reason else []
        if sub:
            labels.append("a sub-path")
    return Mount(source, whole.text, tuple(labels), named and source is not None)


def _volume(name: str, project: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return a volume's full name, which holds the project's where none is given; and why it is not known."""
    volume = mapping(mapping(project.get("volumes")).get(name))
    given = volume.get("name")
    if isinstance(given, str):
        return given, None if "$" not in given else "the volume's name is filled in"
    if volume.get("external"):
        return name, None
    own = project.get("name")
    if isinstance(own, str) and "$" not in own:
        return f"{own}_{name}", None
    return name, _PROJECT


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _strings(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, str) else _list(value)
