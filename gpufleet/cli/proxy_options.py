"""The options of `gpufleet proxy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Routes = Annotated[
    Path | None,
    typer.Option(
        "--routes", metavar="PATH", help="The route table; routes.json of the state directory by default."
    ),
]
Admin = Annotated[
    str, typer.Option("--admin", metavar="HOST:PORT", help="Health, metrics, status page, drain.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="PATH",
        help="Settings in YAML; proxy.yaml beside the inventory when there is one.",
    ),
]
RoutesFrom = Annotated[
    str,
    typer.Option(
        "--routes-from",
        metavar="HOST",
        help="Take the route table from the copy on this host, and keep it fresh.",
    ),
]
Tunnel = Annotated[
    bool,
    typer.Option("--tunnel", help="Reach members over SSH, through their jump hosts; needs the inventory."),
]
Listen = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where clients send requests.")]
AllowAnonymous = Annotated[bool, typer.Option("--allow-anonymous", help="Serve requests without a key.")]
WaitForRoutes = Annotated[
    bool, typer.Option("--wait-for-routes", help="Start although there is nothing to serve yet.")
]
HealthEvery = Annotated[
    float, typer.Option("--health-every", metavar="SECONDS", min=0.1, help="Between two looks at a member.")
]
Drain = Annotated[
    float,
    typer.Option("--drain", metavar="SECONDS", min=0.0, help="What requests in flight get at the end."),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        metavar="PATH",
        help="Serve TLS with this PEM file; a renewed one is taken by itself.",
    ),
]
PrivateKey = Annotated[
    Path | None,
    typer.Option("--private-key", metavar="PATH", help="Its key, when that stands in a file of its own."),
]
Connections = Annotated[
    int,
    typer.Option("--connections", metavar="N", min=1, help="Connections at once; one more is answered 503."),
]
AccessLog = Annotated[
    str,
    typer.Option(
        "--access-log", metavar="PATH", help="One JSON line for each request; `-` is standard output."
    ),
]
AccessShare = Annotated[
    float,
    typer.Option(
        "--access-share",
        metavar="SHARE",
        min=0.0,
        max=1.0,
        help="How many of the requests that went well are written; failures all are.",
    ),
]
Trace = Annotated[
    bool, typer.Option("--trace", help="Start a trace (`traceparent`) for requests that bring none.")
]
Workers = Annotated[
    int,
    typer.Option("--workers", metavar="N", min=1, max=64, help="Processes that serve the port together."),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Take the port over from the proxy that runs: it finishes what it has, and no client is lost.",
    ),
]
Handover = Annotated[
    Path | None,
    typer.Option(
        "--handover",
        metavar="PATH",
        help="The socket over which proxies hand over; in the state directory, by port, by default.",
    ),
]
