"""`gpufleet lab`: a fleet of simulated hosts on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import lab_replay
from gpufleet.cli.console import Answer, finish, note
from gpufleet.cli.settings import current
from gpufleet.errors import ExitCode, UsageError
from gpufleet.paths import expanded

if TYPE_CHECKING:
    from gpufleet.lab.lab_files import LabFolder

app = typer.Typer(
    no_args_is_help=True,
    help="A fleet of simulated hosts on this machine, to learn and to test with; no GPU needed.",
    rich_markup_mode=None,
    add_completion=False,
)

Folder = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", help="Where its files go; `lab` in the state directory by default."),
]


def _folder(directory: Path | None) -> LabFolder:
    from gpufleet.lab.lab_files import LabFolder

    return LabFolder(expanded(directory or current().state_dir / "lab").absolute())


@app.command()
def up(
    hosts: Annotated[int, typer.Option(min=1, max=250, help="How many hosts.")] = 6,
    gpus: Annotated[str, typer.Option(metavar="NxBOARD", help="GPUs of each host.")] = "8xH100-80GB",
    directory: Folder = None,
) -> None:
    """Start simulated hosts in the background and write an inventory of them."""
    from gpufleet.lab import background
    from gpufleet.lab.fleet import parse_gpus

    try:
        parse_gpus(gpus)
    except ValueError as wrong:
        raise UsageError(str(wrong), where="--gpus") from None
    folder = _folder(directory)
    note(f"starting {hosts} hosts")
    lab = background.up(folder, hosts=hosts, gpus=gpus)
    raise finish(
        Answer(
            command="lab up",
            outcome="ok",
            exit=ExitCode.OK,
            fields={
                "inventory": str(folder.inventory),
                "ssh_config": str(folder.ssh_config),
                "pid": lab.pid,
                "hosts": hosts,
                "gpus": gpus,
            },
            text=f"{hosts} hosts are up. Use them with\n\n    gpufleet -i {folder.inventory} hosts check\n"
            f"    ssh -F {folder.ssh_config} gpu-01\n",
        )
    )


@app.command()
def status(directory: Folder = None) -> None:
    """Say whether simulated hosts run; exit status 8 when none do."""
    from gpufleet.lab import background

    folder = _folder(directory)
    lab = background.find(folder)
    alive = lab is not None and lab.alive
    fields: dict[str, object] = {"running": alive, "directory": str(folder.path)}
    text = "no lab runs"
    if lab is not None and alive:
        fields |= {"pid": lab.pid, "hosts": lab.hosts, "gpus": lab.gpus, "inventory": str(folder.inventory)}
        text = f"{lab.hosts} hosts with {lab.gpus} run; inventory {folder.inventory}"
    raise finish(
        Answer(
            command="lab status",
            outcome="ok" if alive else "no_change",
            exit=ExitCode.OK if alive else ExitCode.PREFLIGHT,
            fields=fields,
            text=text,
        )
    )


@app.command()
def down(directory: Folder = None) -> None:
    """End the simulated hosts and remove their files."""
    from gpufleet.clock import SystemClock
    from gpufleet.lab import background

    folder = _folder(directory)
    lab = background.down(folder, SystemClock())
    raise finish(
        Answer(
            command="lab down",
            outcome="ok" if lab is not None else "no_change",
            exit=ExitCode.OK,
            fields={"ended": lab is not None, "directory": str(folder.path)},
            text="the lab is down" if lab is not None else "no lab ran",
        )
    )


@app.command()
def replay(
    trace: lab_replay.Source,
    policy: lab_replay.Policies = None,
    members: lab_replay.Members = 8,
    cache: lab_replay.Cache = 512_000,
    prefill: lab_replay.Prefill = 16_000.0,
    decode: lab_replay.Decode = 0.025,
    speed_up: lab_replay.SpeedUp = 1.0,
    first: lab_replay.First = None,
    speeds: lab_replay.Speeds = "",
    seed: lab_replay.Seed = 1,
) -> None:
    """Compare balancing policies on a trace or on made traffic, in virtual time; the policies are those that the proxy runs."""
    raise finish(
        lab_replay.run(
            trace,
            policy=policy,
            members=members,
            cache=cache,
            prefill=prefill,
            decode=decode,
            speed_up=speed_up,
            first=first,
            speeds=speeds,
            seed=seed,
        )
    )


@app.command()
def demo() -> None:
    """Tell the main job in half a minute: deploy, serve, fail and roll back, lose a member; nothing is left behind."""
    from gpufleet.cli.lab_demo import demo as tell

    raise finish(tell(quiet=current().quiet))
