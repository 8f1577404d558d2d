"""`pool set --load-adapter` and `--unload-adapter`: what is typed, what is confirmed, what is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, confirm, note, warn
from gpufleet.cli.settings import current
from gpufleet.deploy.adapter_flow import carry_out_adapters, prepare_adapters
from gpufleet.errors import ExitCode, FleetError, Interrupted, UsageError
from gpufleet.inventory.model import Inventory
from gpufleet.names import PoolName
from gpufleet.pools import written
from gpufleet.pools.load import named, place_of, unknown
from gpufleet.pools.membership import set_adapters
from gpufleet.pools.mistakes import NAME


def answer(
    name: str,
    load: Sequence[str] | None,
    unload: Sequence[str] | None,
    alone: bool,
    dry_run: bool,
    check: bool,
) -> Answer:
    """Do it, or show it; `alone`: nothing else is to be set."""
    if not alone:
        raise UsageError("adapters are changed by a command of their own")
    load, unload = load or (), unload or ()
    wanted = dict(_pair(word) for word in load)
    both = sorted(set(wanted) & set(unload))
    if both:
        raise UsageError(f"{', '.join(both)} is to be loaded and unloaded", hints=("one after the other",))
    with wiring.fleet_tools(current()) as tools:
        if not NAME.fullmatch(name) or tools.store.record(PoolName(name)) is None:
            raise unknown(name, tuple(tools.store.names()))
        prepared = prepare_adapters(
            tools, PoolName(name), wanted, tuple(dict.fromkeys(unload)), command=f"pool set {name}"
        )
        lines = [f"  {step.host}: {step.title}" for step in prepared.plan.steps] or ["  no member is touched"]
        if dry_run or check:
            code = ExitCode.CHANGES if check and prepared.changes else ExitCode.OK
            steps = [
                {"host": step.host, "phase": step.phase, "title": step.title} for step in prepared.plan.steps
            ]
            return Answer(
                command="pool set",
                outcome="changes" if prepared.changes else "no_change",
                exit=code,
                fields={"pool": name, "steps": steps},
                text="\n".join((f"pool {name}:", *lines)),
            )
        if prepared.plan.steps:
            for line in lines:
                note(line)
            if not confirm(f"Change the adapters of pool {name}?"):
                raise Interrupted("not confirmed; nothing was changed")
        done = carry_out_adapters(tools, prepared)
        _into_file(tools.inventory, name, wanted, unload)
    text = f"pool {name}: " + (
        "nothing to do" if done.outcome == "no_change" else "adapters changed on all members"
    )
    return Answer(command="pool set", outcome=done.outcome, fields={"pool": name, **done.fields()}, text=text)


def _into_file(inventory: Inventory, name: str, load: Mapping[str, str], unload: Sequence[str]) -> None:
    """The same in the definition that a person wrote: a deploy of it would else take back what was done here."""
    place, defined = place_of(inventory, name), named(inventory, name)
    if place is None or defined is None:
        return
    try:
        if written.edit(place, name, defined, set_adapters(defined, load, unload)):
            note(f"{place}: changed, comments and order kept")
    except FleetError as error:  # the members have it: what is left is for a person to write
        words = ", ".join((*load, *(f"no {gone}" for gone in unload)))
        warn(f"{error}: write it into `lora` of pool {name} by hand ({words}); the next deploy goes by it")


def _pair(word: str) -> tuple[str, str]:
    name, equals, path = word.partition("=")
    if not equals:
        raise UsageError(
            f"`--load-adapter {word}` is not NAME=PATH", hints=("for example sql=/srv/adapters/sql",)
        )
    return name, path
