"""`pool drift`: what was asked for against what is seen, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.cli import pool_wishes as wishes
from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, note, table
from gpufleet.cli.settings import current
from gpufleet.deploy.drift.flow import Drifted, accept_boots, drift
from gpufleet.deploy.drift.model import Finding
from gpufleet.deploy.tools import Tools
from gpufleet.errors import ExitCode, SelectionError
from gpufleet.inventory.model import Host
from gpufleet.names import PoolName
from gpufleet.pools.load import unknown

COMMAND = "pool drift"


def run(name: str, *, accept: bool) -> Answer:
    """Look, and say what is not as asked."""
    with wiring.fleet_tools(current()) as tools:
        known = wishes.known_names(tools.inventory, tools.store)
        if name and name not in known:
            raise unknown(name, known)
        names = (PoolName(name),) if name else tools.store.names()
        looked = drift(tools, names, {pool: _selected(tools, pool) for pool in names})
        if accept:
            for one in looked:
                if accept_boots(tools, one):
                    note(f"pool {one.pool}: the boots seen now are known")
            looked = drift(tools, names, {pool: _selected(tools, pool) for pool in names})
    return _answer(looked)


def _selected(tools: Tools, name: PoolName) -> Sequence[Host]:
    """Hosts that the pool may be on; a selector that means nothing any more is told by the record's own hosts."""
    definition = wishes.base(tools.inventory, tools.store, name, None)
    try:
        return wiring.select(tools.inventory, definition.hosts) if definition else ()
    except SelectionError:
        return ()


def _answer(looked: Sequence[Drifted]) -> Answer:
    findings = [one for pool in looked for one in pool.findings]
    unseen = [one for pool in looked for one in pool.unknown]
    fields: dict[str, object] = {
        "pools": [
            {
                "pool": pool.pool,
                "replicas": pool.replicas,
                "drift": bool(pool.findings) if pool.findings or not pool.unknown else None,
            }
            for pool in looked
        ],
        "findings": [_row(one) for one in findings],
        "unknown": [_row(one) for one in unseen],
        "notes": [_row(one) for one in (one for pool in looked for one in pool.notes)],
    }
    code, outcome = ExitCode.OK, "no_change"
    if findings:
        code, outcome = ExitCode.CHANGES, "changes"
    elif unseen:
        code, outcome = ExitCode.UNREACHABLE, "failed"
        fields["error"] = {
            "code": "unreachable",
            "message": f"{len(unseen)} thing(s) could not be looked at; what could be is as asked",
            "where": ", ".join(dict.fromkeys(one.host for one in unseen)),
            "hints": list(dict.fromkeys(one.fix for one in unseen if one.fix)) or ["gpufleet hosts check"],
        }
    return Answer(command=COMMAND, outcome=outcome, exit=code, fields=fields, text=_text(looked))


def _row(one: Finding) -> dict[str, object]:
    return {
        "pool": one.pool,
        "host": one.host,
        "replica": one.replica,
        "code": one.code,
        "message": one.message,
        "asked": one.asked,
        "seen": one.seen,
        "hint": one.fix,
    }


def _text(looked: Sequence[Drifted]) -> str:
    if not looked:
        return "no pool was deployed from here"
    lines: list[str] = []
    for pool in looked:
        word = f"{len(pool.findings)} finding(s)" if pool.findings else "as asked"
        if pool.unknown:
            word = f"{word}, {len(pool.unknown)} unknown" if pool.findings else f"{len(pool.unknown)} unknown"
        lines.append(f"pool {pool.pool}: {pool.replicas} replica(s), {word}")
        rows = [
            (one.replica or one.host or "-", one.code, one.message, one.asked, one.seen)
            for one in (*pool.findings, *pool.unknown, *pool.notes)
        ]
        if rows:
            lines.append(table(("WHERE", "WHAT", "MESSAGE", "ASKED", "SEEN"), rows))
        fixes = dict.fromkeys(one.fix for one in (*pool.findings, *pool.unknown) if one.fix)
        lines += [f"hint: {fix}" for fix in fixes]
    return "\n".join(lines)
