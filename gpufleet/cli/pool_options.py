"""Arguments and options that several pool commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(metavar="NAME", help="The pool.")]
OptionalName = Annotated[str, typer.Argument(metavar="[NAME]", help="The pool; a file may say it instead.")]
Members = Annotated[
    list[str], typer.Argument(metavar="HOST/N...", help="Replicas, as `pool show` names them.")
]
File = Annotated[Path | None, typer.Option("--file", "-f", metavar="POOL.YAML", help="A pool definition.")]
Model = Annotated[str, typer.Option(metavar="NAME|PATH", help="What the engine loads.")]
Hosts = Annotated[list[str] | None, typer.Option(metavar="SELECTOR", help="Where; may be repeated.")]
Replicas = Annotated[int | None, typer.Option(metavar="N", help="How many.")]
Algorithm = Annotated[
    str, typer.Option(metavar="NAME", help="round-robin, least-busy, weighted-static, random, cache-aware.")
]
Image = Annotated[str, typer.Option(metavar="IMAGE", help="The engine's image.")]
EngineArg = Annotated[
    list[str] | None, typer.Option(metavar="WORD", help="One word for the engine; may be repeated.")
]
Gpus = Annotated[int | None, typer.Option(metavar="N", help="GPUs a replica takes.")]
Mig = Annotated[str, typer.Option(metavar="PROFILE", help="The MIG slice a replica takes.")]
Strategy = Annotated[
    str,
    typer.Option(metavar="NAME", help="all-at-once, rolling, canary, blue-green: how replicas are replaced."),
]
MaxUnavailable = Annotated[
    str, typer.Option(metavar="N|N%", help="Replicas that may be down at once while they are replaced.")
]
Canary = Annotated[str, typer.Option(metavar="N|N%", help="New replicas that are watched before the others.")]
CanaryTraffic = Annotated[
    int | None, typer.Option(metavar="PERCENT", help="Share of requests that the canaries get.")
]
Observe = Annotated[float | None, typer.Option(metavar="SECONDS", help="How long new replicas are watched.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
Check = Annotated[bool, typer.Option("--check", help="Exit with 3 if anything would change.")]
Commands = Annotated[
    bool, typer.Option("--commands", help="Show every command as it would be sent, secrets masked.")
]
