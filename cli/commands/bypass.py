"""``kvgate bypass``: is it the cache that changes the answers?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli.api_key import ApiKeyEnv, api_key
from kvgate.cli.options import AnswerSeconds, AskedManifest, AskedPool, AskedServer, Debug, EvidenceOutput, NoColor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvgate.rules.manifest import Manifest

_EXITS = {"cache not implicated": 0, "cache implicated": 10, "cannot tell": 11}


def bypass(
    endpoint: AskedServer,
    requests: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Requests, one JSON object a line: a body with prompt or messages, or a line of a batch file. A text "
            "`expect` beside it is one that a right answer contains.",
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            metavar="METHOD", help="How the cache is left out: auto, vllm-skip, cache-salt, sglang or breakpoint."
        ),
    ] = "auto",
    manifest: AskedManifest = None,
    pool: AskedPool = None,
    old: Annotated[
        str | None, typer.Option(metavar="MANIFEST", help="The deployment that filled the cache, for the evidence.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="NATS",
            min=0,
            help="How far log-probabilities of one computation may lie apart. [default: by the compute type]",
        ),
    ] = None,
    seconds: AnswerSeconds = 60,
    api_key_env: ApiKeyEnv = None,
    supersedes: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Evidence of a bypass that implicated the cache, and that this one answers. Repeatable.",
        ),
    ] = None,
    output: EvidenceOutput = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict alone.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Send each request twice, with the cache and without, and compare the answers.

    Requests cost what they cost: two answers each, three or four where they differ or nothing was cached yet.

    Exit codes:
      0   cache not implicated: answers came from it, and are the same without it
      10  cache implicated: an answer is another one without it, by more than arithmetic explains
      11  cannot tell: nothing was cached, the server does not tell, or answers vary by themselves

    Examples:
      kvgate bypass --endpoint http://127.0.0.1:8000 --requests sample.jsonl
      kvgate bypass --endpoint http://127.0.0.1:8000 --requests sample.jsonl --manifest release-8/ -o bypass.json
    """
    import sys

    from kvgate import __version__
    from kvgate.cli import console
    from kvgate.cli.answering import earlier_refutations
    from kvgate.cli.formats.bypass import bypass_data, bypass_page
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json
    from kvgate.cli.output import refuse_overwriting
    from kvgate.cli.probing import as_words, begin_asking, finite, manifests_of, probe_outputs, write_evidence
    from kvgate.cli.progress import shown
    from kvgate.probes.bypass.diff import bypass_diff
    from kvgate.probes.bypass.evidence import bypass_evidence, why_no_answer
    from kvgate.probes.bypass.methods import choose_method
    from kvgate.probes.bypass.tolerance import step_of, tolerance_of
    from kvgate.probes.completions.requests import read_requests
    from kvgate.probes.completions.server import answering_server, open_client
    from kvgate.rules.errors import UsageError

    form, target = probe_outputs(output)
    allowed = None if tolerance is None else finite(tolerance, "--tolerance")
    new, before = manifests_of(manifest, old, target)
    if new is None and supersedes:
        raise UsageError("an answer is evidence about a deployment", where="--supersedes", hint="--manifest MANIFEST")
    if new is None and pool is not None:
        raise UsageError("is one of a manifest's", where="--pool", hint="--manifest MANIFEST")
    earlier = [] if new is None else earlier_refutations(supersedes or (), ("bypass-diff",), before, new)
    key = api_key(api_key_env)
    client = open_client(endpoint, key, seconds)
    given = {
        "--manifest": manifest,
        "--pool": pool,
        "--old": old,
        "--api-key-env": api_key_env,
        "--tolerance": tolerance,
    }
    words = ["kvgate", "bypass", "--endpoint", client.url, "--requests", str(requests), *as_words(given)]
    words += [word for one in earlier for word in ("--supersedes", one.file)]
    command = shlex.join(words)
    server_is = None
    if target is not None:
        inputs = [*(one.source for one in (new, before) if one is not None), *(one.file for one in earlier)]
        refuse_overwriting([target], [requests, *map(Path, inputs)])
    if new is not None:
        server_is = begin_asking(
            target, "bypass-diff", new, before, endpoint=endpoint, key=key, pool=pool, command=command
        )
    readers = [] if server_is is None else [one.manifest for one in server_is.pools]
    asked = read_requests(requests)
    step = None  # who gives a tolerance wants no other
    if allowed is None:
        allowed, step = tolerance_of(_compute(readers)), step_of(_compute(readers))
    with client, shown(quiet=quiet, no_color=no_color) as progress:
        server = answering_server(client)
        found = bypass_diff(
            server, asked, choose_method(method, server, asked), allowed, progress, step, alike=_alike(readers, before)
        )
    if target is not None and new is not None and server_is is not None:
        tools = {"kvgate": __version__} | ({server.engine: server.version or ""} if server.engine else {})
        command = f"{command} --method {found.method}"
        evidence = bypass_evidence(
            found, new, before, asked=server_is.pools, missing=server_is.missing, tools=tools, command=command
        )
        reasons = [(one, why_no_answer(evidence, one.evidence)) for one in earlier]
        answered = [one.evidence.digest for one, why in reasons if why is None]
        write_evidence(target, evidence.model_copy(update={"supersedes": answered}))
        for one, why in reasons:
            console.say(f"answers {one.file}" if why is None else f"does not answer {one.file}: {why}")
    if quiet:
        console.emit(f"{found.verdict}\n")
    elif form == "json":
        console.emit(as_json(bypass_data(found)))
    else:
        page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
        bypass_page(page, found)
        console.emit(page.text())
    return _EXITS[found.verdict]


def _compute(readers: Sequence[Manifest]) -> str | None:
    """Return what the pools compute in that may have answered; ``None`` where it is not one type, or not known."""
    values: set[str | None] = {one.value("precision.compute") for one in readers}
    return values.pop() if len(values) == 1 else None


def _alike(readers: Sequence[Manifest], old: Manifest | None) -> bool:
    """Whether whatever filled the cache computes as whatever reads it does."""
    from kvgate.probes.bypass.noise import alike
    from kvgate.rules.pools import pools

    writers = () if old is None else pools(old)
    pairs = [alike(reader, writer.manifest) for reader in readers for writer in writers]
    return bool(pairs) and all(pairs)
