"""`gpufleet proxy`: serve pools at one OpenAI-compatible address, check what would be served, ask a running proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from gpufleet.cli import proxy_options as options
from gpufleet.cli.console import Answer, finish, note, table, warn
from gpufleet.cli.settings import current
from gpufleet.errors import CannotServe, ExitCode

if TYPE_CHECKING:
    from gpufleet.pools.routes import RouteTable
    from gpufleet.proxy.config import Address, ProxyConfig
    from gpufleet.proxy.run.server import Started

app = typer.Typer(
    no_args_is_help=True,
    help="Serve pools at one OpenAI-compatible address.",
    rich_markup_mode=None,
    add_completion=False,
)

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@app.command()
def serve(
    context: typer.Context,
    listen: options.Listen = "127.0.0.1:8080",
    admin: options.Admin = "127.0.0.1:8081",
    config: options.Config = None,
    routes: options.Routes = None,
    routes_from: options.RoutesFrom = "",
    tunnel: options.Tunnel = False,
    allow_anonymous: options.AllowAnonymous = False,
    wait_for_routes: options.WaitForRoutes = False,
    health_every: options.HealthEvery = 5.0,
    drain: options.Drain = 600.0,
    certificate: options.Certificate = None,
    private_key: options.PrivateKey = None,
    connections: options.Connections = 100_000,
    access_log: options.AccessLog = "",
    access_share: options.AccessShare = 1.0,
    trace: options.Trace = False,
    workers: options.Workers = 1,
    take_over: options.TakeOver = False,
    handover: options.Handover = None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; a second one does not wait for requests in flight. SIGHUP reads files again."""
    # What these say is read from the context, which knows whether it was said or is a default.
    del listen, admin, routes, allow_anonymous, wait_for_routes, health_every, drain, certificate, private_key
    del connections, access_log, access_share, trace, workers, take_over, handover
    import logging
    from dataclasses import replace
    from pathlib import Path

    from gpufleet.cli.proxy_reach import reached_routes
    from gpufleet.cli.proxy_settings import configured
    from gpufleet.proxy.run.server import run as run_alone
    from gpufleet.proxy.run.supervisor import run as run_workers

    settings = current()
    wanted = configured(context, settings, config)
    level = logging.WARNING if settings.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    run = run_workers if wanted.workers > 1 else run_alone
    source, target = Path(wanted.routes), settings.state_dir / f"proxy-{wanted.listen.port}-routes.json"
    with reached_routes(settings, source, routes_from=routes_from, tunnel=tunnel, target=target) as path:
        run(replace(wanted, routes=str(path)), on_started=lambda started: _greet(wanted, started))
    raise finish(Answer(command="proxy serve", fields={"stopped": True}, text=""))


def _greet(config: ProxyConfig, started: Started) -> None:
    scheme = "https" if config.certificate else "http"
    note(f"serving at {scheme}://{started.listen}/v1, status at http://{started.admin}/")
    if not len(started.state.directory) and not config.allow_anonymous:
        warn("there is no token, so every request is refused; make one with `gpufleet token create NAME`")
    if config.listen.host not in _LOOPBACK and not config.certificate:
        warn(f"{config.listen} is reached from other machines, without TLS: give it one with --certificate")
    if config.admin.host not in _LOOPBACK:
        warn(f"{config.admin} is reached from other machines, and whoever reaches it may drain members")


@app.command()
def check(context: typer.Context, config: options.Config = None, routes: options.Routes = None) -> None:
    """Read proxy.yaml and the route table as `serve` would: what is wrong with them, or what would be served."""
    del routes  # in the context
    from gpufleet.cli.proxy_settings import config_path, configured
    from gpufleet.proxy.run.fleet import TableRefused, check
    from gpufleet.proxy.run.key_reference import resolve
    from gpufleet.proxy.run.routes_file import RoutesFile, RoutesUnreadable
    from gpufleet.proxy.run.tls import Certificate

    wanted = configured(context, current(), config)
    path, file = wanted.routes, config_path(current(), config)
    try:
        table_ = RoutesFile(path).read()
        check(table_)
        for pool in table_.pools:
            for endpoint in pool.endpoints:
                if endpoint.key is not None:
                    resolve(endpoint.key)
    except (RoutesUnreadable, TableRefused, ValueError) as error:
        raise CannotServe(str(error), where=path, hints=("deploy a pool: `gpufleet pool deploy`",)) from None
    if not table_.pools:
        raise CannotServe(
            "the route table names no pool", where=path, hints=("deploy a pool: `gpufleet pool deploy`",)
        )
    if wanted.certificate:
        Certificate(wanted.certificate, wanted.private_key)
    fields = {
        "config": str(file) if file is not None else None,
        "listen": str(wanted.listen),
        "admin": str(wanted.admin),
        "routes": path,
        "generation": table_.generation,
        "pools": _pools(table_),
    }
    raise finish(Answer(command="proxy check", fields=fields, text=_pools_text(table_)))


def _pools(routes: RouteTable) -> list[dict[str, Any]]:
    return [
        {
            "pool": pool.name,
            "algorithm": pool.algorithm,
            "models": pool.models,
            "members": len(pool.endpoints),
            "endpoints": [
                {
                    "replica": endpoint.id,
                    "endpoint": endpoint.url,
                    "weight": endpoint.weight,
                    "state": endpoint.state,
                    "key": endpoint.key is not None,
                }
                for endpoint in pool.endpoints
            ],
        }
        for pool in routes.pools
    ]


def _pools_text(routes: RouteTable) -> str:
    rows = [
        (pool.name, pool.algorithm, ", ".join(pool.models), *member)
        for pool in routes.pools
        for member in (
            [(one.id, one.url, str(one.weight), one.state) for one in pool.endpoints]
            or [("none", "every request is answered 503", "", "")]
        )
    ]
    return table(("POOL", "ALGORITHM", "MODELS", "REPLICA", "ENDPOINT", "WEIGHT", "STATE"), rows)


@app.command()
def status(admin: options.Admin = "127.0.0.1:8081") -> None:
    """Ask a running proxy for its members, their health and their requests in flight."""
    from gpufleet.cli.proxy_settings import address

    page = _ask(address("--admin", admin))
    rows = [
        (
            pool["pool"],
            member["replica"],
            member["endpoint"],
            member["state"],
            member["health"],
            str(member["in_flight"]),
        )
        for pool in page["pools"]
        for member in pool["members"]
    ]
    heads = ("POOL", "REPLICA", "ENDPOINT", "STATE", "HEALTH", "IN FLIGHT")
    raise finish(
        Answer(
            command="proxy status", fields={"admin": admin, **page}, text=table(heads, rows), exit=ExitCode.OK
        )
    )


def _ask(address: Address) -> dict[str, Any]:
    import http.client
    import json

    connection = http.client.HTTPConnection(address.host, address.port, timeout=5.0)
    try:
        connection.request("GET", "/admin/members")
        answer = connection.getresponse()
        page = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CannotServe(
            f"no proxy answers: {getattr(error, 'strerror', None) or type(error).__name__}",
            where=str(address),
            hints=("start one with `gpufleet proxy serve`, or name its address with --admin",),
        ) from None
    finally:
        connection.close()
    if answer.status != 200 or "pools" not in page:
        raise CannotServe("what answers there is no gpufleet proxy", where=str(address))
    return dict(page)
