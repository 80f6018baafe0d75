"""``kvgate explain``: what a rule says, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from kvgate.cli.options import Debug, NoColor

if TYPE_CHECKING:
    from kvgate.rules.pack import AdverseRule, Discharge, Obligation, Pack, Ruling


def explain(
    rule: Annotated[str, typer.Argument(metavar="RULE-ID", help="As reports name it; `kvgate rules list` has all.")],
    rules: Annotated[str, typer.Option(metavar="PACK", help="Rule pack: default, token-keyed, or a file.")] = "default",
    no_color: NoColor = False,
    debug: Debug = False,  # noqa: ARG001 - read by the guard
) -> int:
    """Say what a rule watches, demands and accepts, and why.

    Example:
      kvgate explain kv-dtype-changed
    """
    import sys

    from kvgate.cli import console
    from kvgate.cli.formats.page import Page
    from kvgate.inputs import load_pack

    pack, _ = load_pack(rules)
    page = Page(console.width(), color=console.colored(sys.stdout, no_color=no_color))
    found = _find(pack, rule)
    page.parts([(found.id, "bold"), (f"  {found.title}", "")], hang=2)
    page.gap()
    for name, values in _fields(found):
        for number, value in enumerate(values):
            page.say(f"{name if number == 0 else '':<14}{value}", hang=14)
    console.emit(page.text())
    return 0


def _find(pack: Pack, name: str) -> Ruling:
    import difflib

    from kvgate.rules.errors import UsageError

    known: dict[str, Ruling] = {one.id: one for one in (*pack.rules, *pack.adverse)}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 3)
    raise UsageError(
        f"there is no rule {name!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else "`kvgate rules list` has all",
    )


_DEMANDED: Mapping[Obligation, str] = {
    "separate": "separate: old entries out of the new deployment's reach, by a namespace of its own "
    "(`kvgate namespace NEW` prints the settings) or a key that holds what differs",
    "delete": "delete: the old entries deleted, and that declared (`kvgate check --declare clear`)",
}


def _otherwise(rule: Ruling) -> str:
    """Say what settles a finding whose rule names no condition."""
    from kvgate.rules.pack import AdverseRule, Rule

    if isinstance(rule, AdverseRule):
        answer = f"proved {rule.evidence} evidence on the same deployments that names it in `supersedes`"
        return f"{answer}, and looked at no less" if rule.stands else answer
    if isinstance(rule, Rule) and rule.self_fault:
        return "nothing but another deployment"
    return "no evidence: what it demands has to be met" if rule.obligations else "nothing needs to"


def _fields(rule: Ruling) -> list[tuple[str, list[str]]]:
    from kvgate.rules.pack import AdverseRule, Rule

    fields = [
        ("demands", [_DEMANDED[one] for one in rule.obligations] or ["nothing: it is harmless"]),
        ("answers", [f"KV still valid: {rule.kv_valid}; tokens equal: {rule.tokens_equal}"]),
        ("why", [rule.why]),
        ("settled by", [_discharge(one) for one in rule.discharged_by] or [_otherwise(rule)]),
    ]
    if isinstance(rule, AdverseRule):
        fields.insert(0, ("watches", [_refuted(rule)]))
    if rule.self_fault:
        fields.append(("self-fault", ["the deployment is unsafe by itself (exit 30); no boundary settles it"]))
    if isinstance(rule, Rule):
        watches = [f"{dimension}: {', '.join(kinds)}" for dimension, kinds in rule.watches.items()]
        fields.insert(0, ("watches", watches))
        if rule.may_be:
            fields.append(("not known", [f"may turn out to be {rule.may_be}: then no --accept settles it"]))
        fields += [("asymmetric", [rule.asymmetric])] if rule.asymmetric else []
    fields += [("fix", [rule.fix])] if rule.fix else []
    return [*fields, ("links", [_link(link) for link in rule.links] or ["none"])]


_WHERE = {"scratch": "in a store made for a test", "service": "where customers are served"}


def _refuted(rule: AdverseRule) -> str:
    """Say which refutations a rule answers."""
    found = f"evidence of the kind {rule.evidence} that is refuted"
    if rule.when.where is not None:
        found += f", seen {_WHERE[rule.when.where]}"
    if rule.when.only is not None:
        found += f", of {' and '.join(rule.when.only)} alone"
    return found


def _discharge(condition: Discharge) -> str:
    parts = []
    if condition.evidence is not None:
        parts.append(f"proved {condition.evidence} evidence")
    if condition.key == "separates":
        parts.append("the connector's key holds it")
    if condition.key == "token-ids":
        parts.append("it enters the key through the token ids")
    if condition.token_keyed:
        parts.append("the connector's keys are made of token ids")
    if condition.harmless_cell:
        parts.append("the connector profile says that the format makes it harmless for this model")
    if condition.upgrade:
        parts.append("a sourced row of the connector profile covers this version step, and tokens are proved")
    return " and ".join(parts)


def _link(link: str) -> str:
    repository, hash_sign, number = link.partition("#")
    return f"https://github.com/{repository}/issues/{number}" if hash_sign and number.isdecimal() else link
