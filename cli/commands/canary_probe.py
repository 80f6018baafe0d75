"""``kvgate canary probe``: does one tenant reach what another one's request left in the cache?"""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kvgate.cli.api_key import ApiKeyEnv, api_key, secret
from kvgate.cli.options import AnswerSeconds, AskedManifest, AskedPool, AskedServer, Debug, EvidenceOutput, NoColor

_EXITS = {"isolated": 0, "leaks": 10, "cannot tell": 11}


def probe_isolation(
    endpoint: AskedServer,
    field: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The field of a request that says whose it is; two values are made up for it."
        ),
    ] = "cache_salt",
    value: Annotated[
        list[str] | None, typer.Option(metavar="VALUE", help="A tenant's own value of the field. Twice.")
    ] = None,
    api_key_env: ApiKeyEnv = None,
    other_api_key_env: Annotated[
        str | None,
        typer.Option(
            "--other-api-key-env", metavar="NAME", help="The other tenant is who has this key; no field is sent then."
        ),
    ] = None,
    api: Annotated[str, typer.Option(metavar="PATH", help="The API that is asked.")] = "/v1/completions",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="As requests name it.")] = None,
    words: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1_000_000,
            help="Of a prefix: more than a block or chunk has. [default: 600, fewer where the model takes less]",
            show_default=False,
        ),
    ] = None,
    tries: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Prefixes; four requests each.")] = 20,
    settle: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=3600, help="For the store to be written in the background.")
    ] = 3,
    seconds: AnswerSeconds = 60,
    manifest: AskedManifest = None,
    pool: AskedPool = None,
    output: EvidenceOutput = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the outcome alone.")] = False,
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    r"""Send one prefix as two tenants, and say whether the second is served from what the first left.

    Cached tokens decide where the server tells them; else the time to the first token, by Mann and Whitney's test,
    where it is shown to tell the tenant's own hits from none.

    Exit codes:
      0   isolated
      10  leaks
      11  cannot tell: the server tells no cached tokens, and its times show nothing; or nothing is cached at all

    Examples:
      kvgate canary probe --endpoint http://127.0.0.1:8000
      kvgate canary probe --endpoint https://api.example.com --api /v1/chat/completions --model support \
        --api-key-env KEY_A --other-api-key-env KEY_B
    """
    from kvgate import __version__
    from kvgate.cli import console
    from kvgate.cli.formats.canary import isolation_data, isolation_page
    from kvgate.cli.formats.page import Page
    from kvgate.cli.listing import as_json
    from kvgate.cli.output import refuse_overwriting
    from kvgate.cli.probing import as_words, begin_asking, manifests_of, probe_outputs, write_evidence
    from kvgate.cli.progress import shown
    from kvgate.probes.canary import probe
    from kvgate.probes.canary.evidence import isolation_evidence
    from kvgate.probes.completions.replicas import together
    from kvgate.probes.completions.requests import APIS
    from kvgate.probes.completions.server import answering_server, open_client
    from kvgate.rules.errors import UsageError

    form, target = probe_outputs(output)
    if api not in APIS:
        raise UsageError(f"there is no API {api!r} here", where="--api", hint=", ".join(APIS))
    carried = _carried(field, value, by_key=other_api_key_env is not None)
    new, _ = manifests_of(manifest, None, target)
    if new is None and pool is not None:
        raise UsageError("is one of a manifest's", where="--pool", hint="--manifest MANIFEST")
    keys = [api_key(api_key_env), secret(other_api_key_env, "--other-api-key-env")]
    if other_api_key_env is None:
        keys[1] = keys[0]
    elif keys[0] == keys[1]:
        raise UsageError("both tenants have one key", where="--other-api-key-env")
    # One connection for both, where one key does for both: another one may lead to another replica.
    clients = [open_client(endpoint, key, seconds) for key in dict.fromkeys(keys)]
    by_field = None if other_api_key_env else field
    told = {"--api": api, "--words": words, "--settle": settle, "--tries": tries, "--model": model}
    told |= {"--field": by_field, "--api-key-env": api_key_env, "--other-api-key-env": other_api_key_env}
    told |= {"--manifest": manifest, "--pool": pool}
    command = shlex.join(["kvgate", "canary", "probe", "--endpoint", clients[0].url, *as_words(told)])
    missing = {"stored late": f"what a store keeps later than {settle:g} s after a request"}
    server_is = None
    if new is not None:
        refuse_overwriting([] if target is None else [target], [Path(new.source)])
        server_is = begin_asking(
            target, "tenant-canary", new, None, endpoint=endpoint, key=keys[0], pool=pool, command=command
        )
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(shown(quiet=quiet, no_color=no_color))
        servers = [answering_server(stack.enter_context(client)) for client in clients]
        for server in servers:
            server.look()
        first, other = (
            probe.asking_as(server, api, fields, model)
            for server, fields in zip((servers[0], servers[-1]), carried, strict=True)
        )
        seen = probe.probe_isolation(
            first,
            other,
            words=words or probe.fitting_words(servers[0]),
            tries=tries,
            omits_zero=servers[0].engine == "sglang",
            settles=settle,
            progress=progress,
        )
        found = replace(seen, who=together(server.look_again() for server in servers))
    if target is not None and new is not None and server_is is not None:
        missing |= server_is.missing
        engine, version = servers[0].engine, servers[0].version
        tools = {"kvgate": __version__} | ({engine: version or ""} if engine else {})
        evidence = isolation_evidence(found, new, asked=server_is.pools, missing=missing, tools=tools, command=command)
        write_evidence(target, evidence)
    if quiet:
        console.emit(f"{found.state}\n")
    elif form == "json":
        console.emit(as_json(isolation_data(found)))
    else:
        page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
        isolation_page(page, found)
        console.emit(page.text())
    return _EXITS[found.state]


def _carried(field: str, values: list[str] | None, *, by_key: bool) -> list[dict[str, Any]]:
    """Return the fields of each tenant's requests that say whose they are."""
    import secrets

    from kvgate.rules.errors import UsageError

    if by_key:
        if values:
            raise UsageError("tenants are told apart by their keys or by a field", where="--value")
        return [{}, {}]
    named = values or [f"kvgate-probe-{secrets.token_hex(16)}" for _ in range(2)]
    if len(named) != 2 or named[0] == named[1]:
        raise UsageError("there are two tenants, with a value each", where="--value")
    return [{field: each} for each in named]
