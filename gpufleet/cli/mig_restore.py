"""`mig restore`: a GPU as a run found it, or as somebody kept it with `mig show`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpufleet.cli import mig_recut, wiring
from gpufleet.cli.console import Answer
from gpufleet.cli.settings import current
from gpufleet.deploy.recut import snapshot
from gpufleet.deploy.recut.flow import RecutWish, recut_of, wanted_of
from gpufleet.deploy.recut.look import look_at
from gpufleet.deploy.recut.snapshot import GpuShot
from gpufleet.errors import UsageError
from gpufleet.mig.choose import Asked
from gpufleet.names import HostName, RunId

COMMAND = "mig restore"


def restore(word: str, source: str, wish: RecutWish, *, dry_run: bool, check: bool) -> Answer:
    """Look the former state up, and change the GPU to it as any other layout."""
    path = Path(source)
    with wiring.fleet_tools(current()) as tools:
        shot: GpuShot | None = None
        if not path.is_file():
            shot = snapshot.kept_by(current().state_dir, RunId(source))
        if word:
            host, asked = mig_recut.named(tools, word)
        elif shot is not None:
            host, asked = tools.inventory.hosts[HostName(shot.host)], Asked(shot.host, shot.uuid)
        else:
            raise UsageError(
                "name the GPU that is to be as it was kept in a file", hints=("for example gpu-01:0",)
            )
        look = look_at(tools, host, asked)
        uuid = look.seen.gpu.uuid
        if shot is None:
            shot = snapshot.in_file(path.read_bytes(), uuid, source)
        if shot.uuid != uuid:
            raise UsageError(
                f"run {source} changed GPU {shot.uuid} of {shot.host}, and this is {uuid}", where=word
            )
        layout = snapshot.layout_of(shot)
        wish = replace(wish, layout=layout, revive=snapshot.revived_of(shot))
        command = f"{COMMAND} {word} --from {source}".replace("  ", " ")
        recut = recut_of(tools, look, wanted_of(look, layout, ""), wish, command=command)
        return mig_recut.confirmed(tools, recut, COMMAND, dry_run=dry_run, check=check)
