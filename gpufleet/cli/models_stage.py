"""`models stage`: weights on hosts before any pool needs them, as one change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, confirm, finish, note, table
from gpufleet.cli.settings import current
from gpufleet.errors import ExitCode, Interrupted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpufleet.deploy.staging.flow import Prepared
    from gpufleet.deploy.staging.give import Spot
    from gpufleet.deploy.tools import Tools
    from gpufleet.names import HostName
    from gpufleet.pools.model import WeightsWish

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="ORG/NAME of the hub, hf://ORG/NAME@REVISION, s3://BUCKET/PREFIX, file:///DIRECTORY on this machine, or host:///DIRECTORY on the hosts.",
    ),
]
Hosts = Annotated[list[str] | None, typer.Option(metavar="SELECTOR", help="Where; may be repeated.")]
Revision = Annotated[str, typer.Option(metavar="REVISION", help="Branch, tag or commit of the hub.")]
Endpoint = Annotated[str, typer.Option(metavar="URL", help="Another hub, or the S3 service.")]
Region = Annotated[str, typer.Option(metavar="REGION", help="Of the S3 service.")]
Token = Annotated[str, typer.Option(metavar="REFERENCE", help="The hub's token: ${env:HF_TOKEN}.")]
AccessKey = Annotated[
    str, typer.Option(metavar="REFERENCE", help="Of the S3 service: ${env:AWS_ACCESS_KEY_ID}.")
]
SecretKey = Annotated[
    str, typer.Option(metavar="REFERENCE", help="Of the S3 service: ${env:AWS_SECRET_ACCESS_KEY}.")
]
Store = Annotated[str, typer.Option(metavar="DIRECTORY", help="On the hosts; ~/.gpufleet/models by default.")]
Shared = Annotated[bool, typer.Option("--shared", help="Every host sees the same store: one host writes.")]
Image = Annotated[
    str,
    typer.Option(
        metavar="IMAGE", help="An image with Python, by which hosts give the weights to each other."
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="Read again what is there, and mend what is damaged.")]
Stall = Annotated[
    int,
    typer.Option(
        metavar="SECONDS", min=1, max=86_400, help="How long a copy may bring nothing before it is ended."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and change nothing.")]
Check = Annotated[bool, typer.Option("--check", help="Exit with 3 if anything would change.")]

COMMAND = "models stage"


def register(app: typer.Typer) -> None:
    """Put the command into its group."""
    app.command(name="stage")(stage)


def stage(  # options, given by name
    model: Model,
    hosts: Hosts = None,
    revision: Revision = "",
    endpoint: Endpoint = "",
    region: Region = "",
    token: Token = "",
    access_key: AccessKey = "",
    secret_key: SecretKey = "",
    store: Store = "",
    shared: Shared = False,
    image: Image = "",
    verify: Verify = False,
    stall: Stall = 300,
    dry_run: DryRun = False,
    check: Check = False,
) -> None:
    """Bring a model's weights to hosts, whole and checked, or leave the hosts as they are.

    A copy that broke off goes on where it was; of two that stage the same at once one copies and the other waits.
    """
    from gpufleet.deploy.staging import flow, survey

    wish = _wish(
        model,
        revision,
        endpoint=endpoint,
        region=region,
        token=token,
        access_key=access_key,
        secret_key=secret_key,
        store=store,
        shared=shared,
    )
    with wiring.fleet_tools(current()) as tools:
        prepared = _prepared(
            tools, wish, hosts or (), verify=verify, image=image, stall=stall, command=f"{COMMAND} {model}"
        )
        planned = survey.rows(prepared.staging, prepared.hosts)
        if dry_run or check or not prepared.changes:
            outcome = "changes" if prepared.changes else "no_change"
            code = ExitCode.CHANGES if check and prepared.changes else ExitCode.OK
            raise finish(_answer(prepared, planned, outcome, code))
        note(_head(prepared))
        if not confirm(f"Stage on {len(prepared.staging.lacking(prepared.hosts))} host(s)?"):
            raise Interrupted("not confirmed; nothing was changed")
        run, done = flow.carry_out(tools.change, prepared)
    raise finish(_answer(prepared, done, "committed", ExitCode.OK, run or ""))


def _prepared(
    tools: Tools,
    wish: WeightsWish,
    hosts: Sequence[str],
    *,
    verify: bool,
    image: str,
    stall: int,
    command: str,
) -> Prepared:
    """Ask the source and the hosts, and plan."""
    from dataclasses import replace
    from pathlib import Path

    from gpufleet.deploy.staging import flow, survey
    from gpufleet.deploy.staging.spots import spots_of
    from gpufleet.deploy.staging.wish import source_of
    from gpufleet.deploy.survey import survey as survey_hosts
    from gpufleet.inventory.secrets import resolve

    chosen = wiring.select(tools.inventory, hosts)
    names = wiring.host_names(chosen)
    base = Path(tools.inventory.path).parent
    staging = survey.prepare(
        source_of(wish, lambda reference: resolve(reference, base)),
        names,
        store=wish.store,
        shared=wish.shared,
        verify=verify,
        transport=tools.change.transport,
        clock=tools.change.clock,
        forks=tools.change.forks,
        warn=tools.warn,
        state_dir=tools.change.state_dir,
    )
    staging = replace(staging, stall=float(stall))
    spots: Mapping[HostName, Spot] = {}
    if image:
        facts = survey_hosts(
            tools.change.transport, chosen, clock=tools.change.clock, forks=tools.change.forks
        )
        spots = spots_of(chosen, facts)
    elif len(staging.lacking(names)) > 1 and not wish.shared:
        note(
            f"{len(staging.lacking(names))} hosts read the source; with `--image IMAGE` they give to each other"
        )
    return flow.plan_of(staging, names, tools.change, command=command, image=image, spots=spots)


def _wish(model: str, revision: str, **typed: str | bool) -> WeightsWish:
    """What was typed, judged like the `weights` of a pool."""
    from gpufleet.located import Located, Problems, convert
    from gpufleet.pools.weights_document import WeightsDocument, check_weights, weights_of

    source = model if "://" in model else f"hf://{model}"
    written = {"from": f"{source}@{revision}" if revision else source, **typed}
    problems = Problems()
    place = Located.of({key: value for key, value in written.items() if value}, "the command line")
    document = convert(place, WeightsDocument, problems)
    check_weights(place, document, problems)
    problems.raise_if_any("the source of weights is wrong")
    wish = weights_of(document)[1]
    if wish is None:
        raise AssertionError("a document without a problem names a source")
    return wish


def _head(prepared: Prepared) -> str:
    from gpufleet.deploy.staging.survey import gib

    listing = prepared.staging.listing
    return (
        f"{listing.source.shown}, revision {listing.revision[:12]}: {len(listing.files)} files, "
        f"{gib(listing.size // 1024)}, into {prepared.staging.path}"
    )


def _answer(
    prepared: Prepared, rows: list[Mapping[str, object]], outcome: str, code: ExitCode, run: str = ""
) -> Answer:
    listing = prepared.staging.listing
    fields: dict[str, object] = {
        "model": listing.source.model,
        "revision": listing.revision,
        "files": len(listing.files),
        "bytes": listing.size,
        "path": prepared.staging.path,
        "hosts": rows,
    }
    if run:
        fields["run"] = run
    cells = [[str(row["host"]), str(row["status"]), str(row["path"])] for row in rows]
    text = f"{_head(prepared)}\n{table(('HOST', 'STATUS', 'PATH'), cells)}"
    return Answer(command=COMMAND, outcome=outcome, exit=code, fields=fields, text=text)
