"""HostFacts for every host at once: one session, one script, one answer a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from gpufleet.clock import Clock
from gpufleet.errors import FleetError, HostUnreachable
from gpufleet.hosts import nvml
from gpufleet.hosts.compose import compose
from gpufleet.hosts.model import Fact, HolderFacts, HostFacts, Known, Symptom, Unknown
from gpufleet.hosts.probes import holders, mig_tables, script
from gpufleet.hosts.probes.system import pairs
from gpufleet.inventory.model import Become, Connection, Host
from gpufleet.names import HostName
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Exit, Lost
from gpufleet.remote.sudo import SudoFailure, meaning
from gpufleet.remote.transport import Session, Transport

_ABSENT = frozenset({"driver-missing", "gpu-none"})
"""Symptoms that NVML disproves."""

Observer = Callable[[HostName, float], None]
DEFAULT_FORKS = 32


def gather(
    transport: Transport,
    hosts: Sequence[Host],
    *,
    clock: Clock,
    forks: int = DEFAULT_FORKS,
    observe: Observer = lambda _host, _seconds: None,
) -> Mapping[HostName, HostFacts | FleetError]:
    """Facts of each host, or why it was not reached. One host's trouble never hides another's answer.

    `observe` is told of each host when it is done, and how many seconds that took; it is called from several threads.
    """
    by_name = {host.name: host for host in hosts}

    def look(name: HostName) -> HostFacts:
        begun = clock.monotonic()
        try:
            return facts_of(transport, by_name[name], clock=clock)
        finally:
            observe(name, clock.monotonic() - begun)

    return fanout(tuple(by_name), look, forks=forks)


def facts_of(transport: Transport, host: Host, *, clock: Clock) -> HostFacts:
    """Facts of one host; raises HostUnreachable when it is not reached or does not answer to the end."""
    with closing(transport.open(host.name)) as session:
        facts = ask(session, host, clock=clock)
    return _with_nvml(facts) if host.connection is Connection.LOCAL else facts


Offers = Fact[Mapping[int, tuple[mig_tables.Offer, ...]]]


def gather_offers(
    transport: Transport, hosts: Sequence[Host], *, forks: int = DEFAULT_FORKS
) -> Mapping[HostName, Offers]:
    """What each host's GPUs can be cut into, by GPU index; Unknown with the reason where it could not be read."""
    by_name = {host.name: host for host in hosts}

    def look(name: HostName) -> Offers:
        if (
            by_name[name].connection is Connection.LOCAL
            and isinstance(own := nvml.offers(), Known)
            and own.value
        ):
            return own
        with closing(transport.open(name)) as session:
            answer = session.run(mig_tables.COMMAND)
        if isinstance(answer, Lost):
            return Unknown(answer.reason)
        return mig_tables.offers(script.parse(answer.stdout, answer.stderr))

    outcomes = fanout(tuple(by_name), look, forks=forks)
    return {
        name: Unknown(outcome.summary) if isinstance(outcome, FleetError) else outcome
        for name, outcome in outcomes.items()
    }


def gather_holders(transport: Transport, host: Host) -> HolderFacts:
    """Who may hold the GPUs of one host: as root where sudo goes, and else what is told without it."""
    with closing(transport.open(host.name)) as session:
        answer = session.run(holders.command(become=host.become is not Become.NEVER))
        if isinstance(answer, Exit) and answer.sudo_refused:
            answer = session.run(holders.command(become=False))
    return holders.read(answer)


def _with_nvml(facts: HostFacts) -> HostFacts:
    """GPUs of this machine from NVML; where it does not tell, from nvidia-smi's text."""
    seen = nvml.gpus()
    if isinstance(seen, Unknown) or not seen.value:
        return facts
    text = {gpu.uuid: gpu for gpu in facts.gpus.value} if isinstance(facts.gpus, Known) else {}
    if text and text.keys() != {gpu.uuid for gpu in seen.value}:
        return facts  # one of them sees a part: the host's own tool is what changes are made with
    return replace(
        facts,
        gpus=Known(tuple(nvml.merged(gpu, text.get(gpu.uuid, gpu)) for gpu in seen.value)),
        driver=seen.value[0].driver,
        symptoms=tuple(symptom for symptom in facts.symptoms if symptom.code not in _ABSENT),
    )


def ask(session: Session, host: Host, *, clock: Clock) -> HostFacts:
    """Facts over a session that is open already."""
    asked = script.command(runtime=host.runtime, runtime_path=host.runtime_path, become=host.become)
    answer = session.run(asked)
    if isinstance(answer, Lost):
        raise HostUnreachable(
            f"the facts did not arrive: {answer.reason}",
            where=host.name,
            hints=(f"look at the host: ssh {host.name}",),
        )
    sections = script.parse(answer.stdout, answer.stderr)
    if "runs" not in sections:
        raise HostUnreachable(
            f"the answer stops early, the shell ended with status {answer.code}",
            where=host.name,
            hints=("a login shell that allows no commands answers like this; try: ssh HOST /bin/sh -c true",),
        )
    noisy = bool(getattr(session, "noisy", False))  # only a login over SSH can be
    at = clock.now().isoformat(timespec="milliseconds")
    facts = compose(host.name, sections, at=at, noisy_login=noisy)
    if not _needs_password(host, facts):
        return facts
    again = _ask_as_root(session, host, sections)
    if isinstance(again, Symptom):
        return replace(facts, symptoms=(again, *facts.symptoms))
    return compose(host.name, sections, at=at, noisy_login=noisy, root_sections=again)


def _needs_password(host: Host, facts: HostFacts) -> bool:
    """Whether sudo's password, which we have, would open the runtime's socket."""
    return (
        isinstance(facts.runtime, Unknown)
        and host.sudo_password is not None
        and host.become is not Become.NEVER
        and any(symptom.code in {"runtime-refused", "sudo-refused"} for symptom in facts.symptoms)
    )


def _ask_as_root(
    session: Session, host: Host, sections: Mapping[str, script.Section]
) -> Mapping[str, script.Section] | Symptom:
    """The script once more through sudo, with the runtime where the first answer found it; or why not."""
    path = pairs(sections["runtime"].text).get("path") or host.runtime_path
    answer = session.run(
        script.command(runtime=host.runtime, runtime_path=path, become=host.become, as_root=True)
    )
    match answer:
        case Lost(reason=reason):
            return Symptom("runtime-silent", reason)
        case Exit(sudo_refused=slug) if slug:
            return Symptom("sudo-refused", meaning(SudoFailure(slug)))
        case _:
            return script.parse(answer.stdout, answer.stderr)
