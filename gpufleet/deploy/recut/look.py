"""Everything that a recut of one GPU rests on, looked at before it is planned."""

from __future__ import annotations

from contextlib import closing

from gpufleet.deploy.recut.model import GpuLook
from gpufleet.deploy.survey import survey
from gpufleet.deploy.tools import Tools
from gpufleet.errors import FactUnknown, PreflightFailed, UsageError
from gpufleet.hosts.gather import gather_holders, gather_offers
from gpufleet.hosts.model import GpuFact, HostFacts, Known, Unknown
from gpufleet.inventory.model import Host
from gpufleet.mig import boot_unit
from gpufleet.mig.boot_unit import BootSite
from gpufleet.mig.choose import Asked, choose, unread
from gpufleet.mig.seen import SeenGpu, see
from gpufleet.names import HostName
from gpufleet.remote.result import Lost


def look_at(tools: Tools, host: Host, asked: Asked) -> GpuLook:
    """One GPU of one host.

    Raises:
        HostUnreachable: the host was not reached.
        UsageError: the host has no such GPU, or several are meant.
        FactUnknown: something that a plan needs could not be read.
        PreflightFailed: somebody else is about to switch its mode.
    """
    transport, clock = tools.change.transport, tools.change.clock
    facts = survey(transport, [host], clock=clock, forks=1)[host.name]
    gpu = _one(asked, host.name, facts)
    where = f"{host.name}:{gpu.index}"
    offers = gather_offers(transport, [host], forks=1)[host.name]
    offered = Known(offers.value.get(gpu.index, ())) if isinstance(offers, Known) else offers
    seen = see(gpu, offered, facts.containers)
    if isinstance(seen, Unknown):
        raise unread(f"no plan without knowing what is there: {seen.reason}", where, host.name)
    refuse_pending(seen.value, where)
    return GpuLook(
        host=host,
        facts=facts,
        containers=tuple(facts.containers.value) if isinstance(facts.containers, Known) else (),
        seen=seen.value,
        holding=gather_holders(transport, host),
        boot=_boot(tools, host.name),
    )


def _one(asked: Asked, host: HostName, facts: HostFacts) -> GpuFact:
    if isinstance(facts.gpus, Unknown):
        raise unread(f"its GPUs could not be read: {facts.gpus.reason}", host, host)
    found = choose(asked, host, facts, facts.gpus.value)
    if len(found) == 1:
        return found[0]
    raise UsageError(
        f"{host} has {len(found)} such GPUs; one is changed at a time",
        hints=(f"name one of them: {', '.join(f'{host}:{one.index}' for one in found[:8])}",)
        if found
        else ("name a host that has GPUs",),
    )


def refuse_pending(seen: SeenGpu, where: str) -> None:
    """Raises PreflightFailed when a mode waits for a reset: somebody began something."""
    if seen.on == seen.pending:
        return
    number, word = (1, "on") if seen.on else (0, "off")
    raise PreflightFailed(
        f"MIG is {word} and will be {'off' if seen.on else 'on'} after a reset, which somebody else asked for",
        where=where,
        hints=(
            f"take it back: sudo nvidia-smi -i {seen.gpu.uuid} -mig {number}",
            f"or let it come true: sudo nvidia-smi -i {seen.gpu.uuid} --gpu-reset",
        ),
    )


def _boot(tools: Tools, host: HostName) -> BootSite:
    with closing(tools.change.transport.open(host)) as session:
        answer = session.run(boot_unit.look())
    seen = Unknown(answer.reason) if isinstance(answer, Lost) else boot_unit.read(answer)
    if isinstance(seen, Unknown):
        raise FactUnknown(f"what a boot brings back is not known: {seen.reason}", where=host)
    return seen.value
