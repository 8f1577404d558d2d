"""`gpufleet token`: make, list, rotate and revoke bearer tokens for the proxy."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli.console import Answer, confirm, finish, note, table
from gpufleet.cli.settings import current
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.tokens.model import Token
    from gpufleet.tokens.store import TokenStore

app = typer.Typer(
    no_args_is_help=True,
    help="Make, list, rotate and revoke bearer tokens.",
    rich_markup_mode=None,
    add_completion=False,
)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@app.command()
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What the token is called in lists and reports.")
    ],
    tenant: Annotated[str, typer.Option(help="Whose requests these are.")] = "",
    group: Annotated[str, typer.Option(help="The tenant's group.")] = "",
    team: Annotated[str, typer.Option(help="The group's team.")] = "",
    class_: Annotated[str, typer.Option("--class", help="Priority class.")] = "standard",
    model: Annotated[
        list[str] | None, typer.Option("--model", help="A model it may use, repeatable; all by default.")
    ] = None,
    expires: Annotated[str, typer.Option(metavar="DURATION", help="30d, 12h, 90m; never by default.")] = "",
) -> None:
    """Make a token. It is printed once and stored only as a hash."""
    import os

    from gpufleet.clock import SystemClock
    from gpufleet.tokens.model import NAME, Principal, issue

    for option, value in (
        ("NAME", name),
        ("--tenant", tenant),
        ("--group", group),
        ("--team", team),
        ("--class", class_),
    ):
        if value and NAME.fullmatch(value) is None:
            raise UsageError(f"{option}: `{value}` is not letters, digits and . _ @ - (64 at most)")
    if not name:
        raise UsageError("NAME is empty")
    principal = Principal(
        name=name, tenant=tenant, group=group, team=team, class_=class_, models=frozenset(model or ())
    )
    secret, token = issue(
        principal, now=SystemClock().now().timestamp(), lifetime=_duration(expires), random_bytes=os.urandom
    )
    _store().add(token)
    raise finish(_shown_once("token create", secret.reveal(), token))


@app.command(name="list")
def list_() -> None:
    """List tokens, ended ones too; the tokens themselves are nowhere."""
    from gpufleet.clock import SystemClock

    now = SystemClock().now().timestamp()
    tokens = _store().all()
    rows = [
        (
            token.principal.name,
            token.id,
            f"…{token.hint}",
            token.status(now),
            token.principal.tenant or "-",
            token.principal.class_,
            ",".join(sorted(token.principal.models)) or "all",
            _moment(token.expires_at) or "never",
        )
        for token in tokens
    ]
    headers = ("NAME", "ID", "ENDS IN", "STATUS", "TENANT", "CLASS", "MODELS", "EXPIRES")
    raise finish(
        Answer(
            command="token list",
            fields={"tokens": [_fields(token, now) for token in tokens]},
            text=table(headers, rows) if rows else "no tokens; make one with `gpufleet token create NAME`",
        )
    )


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or id.")],
) -> None:
    """End a token now; proxies follow within a second."""
    from gpufleet.clock import SystemClock

    now = SystemClock().now().timestamp()
    if not confirm(f"Revoke `{name}`? Clients that use it are refused at once."):
        raise UsageError("not revoked")
    token = _store().revoke(name, now)
    raise finish(
        Answer(
            command="token revoke",
            fields={"token": _fields(token, now)},
            text=f"revoked {token.principal.name} ({token.id})",
        )
    )


@app.command()
def rotate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or id.")],
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the old token still works: 0s, 1h.")
    ] = "1h",
) -> None:
    """Put a new token in the place of one, with the same scope. It is printed once."""
    import os

    from gpufleet.clock import SystemClock
    from gpufleet.tokens.model import Principal, issue

    wait = _duration(grace) or 0.0
    secret, successor = issue(
        Principal(name=name), now=SystemClock().now().timestamp(), lifetime=None, random_bytes=os.urandom
    )
    token = _store().rotate(name, successor, grace=wait)
    note(f"the old token works for {grace} more" if wait else "the old token is revoked")
    raise finish(_shown_once("token rotate", secret.reveal(), token))


def _shown_once(command: str, text: str, token: Token) -> Answer:
    note("this token is shown once; gpufleet keeps only its hash")
    fields = {"token": text, "record": _fields(token, token.created_at)}
    return Answer(command=command, fields=fields, text=text, reveals=True)


def _fields(token: Token, now: float) -> dict[str, object]:
    principal = token.principal
    return {
        "id": token.id,
        "name": principal.name,
        "status": token.status(now),
        "hint": token.hint,
        "tenant": principal.tenant,
        "group": principal.group,
        "team": principal.team,
        "class": principal.class_,
        "models": sorted(principal.models),
        "created_at": _moment(token.created_at),
        "expires_at": _moment(token.expires_at),
        "revoked_at": _moment(token.revoked_at),
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _duration(text: str) -> float | None:
    """Seconds; None for nothing. Raises `UsageError`."""
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    if match is None:
        raise UsageError(f"`{text}` is not a duration", hints=("write a number and s, m, h, d or w: 30d",))
    return float(match[1]) * _SECONDS[match[2]]


def _store() -> TokenStore:
    from gpufleet.tokens.store import TokenStore

    return TokenStore(current().state_dir / "tokens.db")
