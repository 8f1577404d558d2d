"""All sections of one host's answer put together: HostFacts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from gpufleet.hosts.model import ContainerFact, DiskFact, Fact, GpuFact, HostFacts, Known, Symptom, Unknown
from gpufleet.hosts.probes import (
    boot_layout,
    container,
    gpus,
    nvidia_smi,
    nvidia_table,
    nvidia_xml,
    runtime,
    system,
    topology,
)
from gpufleet.hosts.probes.script import Section
from gpufleet.names import HostName

Row = TypeVar("Row")

_DRIVER_SYMPTOMS = {9: "driver-down", 12: "driver-library", 18: "driver-mismatch"}


def compose(
    host: HostName,
    sections: Mapping[str, Section],
    *,
    at: str,
    noisy_login: bool,
    root_sections: Mapping[str, Section] | None = None,
) -> HostFacts:
    """Facts of one host. `root_sections` is a second answer, got with sudo's password, for what only root may see."""
    machine = sections.get("system")
    user = system.parse_value(machine, "user")
    seen = root_sections if root_sections is not None else sections
    engine = runtime.parse(
        seen, user=user.value if isinstance(user, Known) else "", root_shell=root_sections is not None
    )
    answers = _answers(sections, seen)
    listed, gpu_symptoms = _gpus(sections, answers)
    report = answers.report
    lease = system.parse_lease(sections.get("lease"))
    return HostFacts(
        host=host,
        at=at,
        hostname=system.parse_value(machine, "hostname"),
        kernel=system.parse_value(machine, "kernel"),
        architecture=system.parse_value(machine, "architecture"),
        boot_id=system.parse_value(machine, "boot_id"),
        user=user,
        home=system.parse_value(machine, "home"),
        sudo=system.parse_sudo(sections.get("sudo")),
        noisy_login=noisy_login,
        driver=_driver(listed, answers),
        cuda=report.value.cuda if isinstance(report, Known) else Unknown(report.reason),
        toolkit=engine.toolkit,
        cdi_devices=engine.cdi_devices,
        runtime=engine.runtime,
        gpus=listed,
        containers=_containers(seen, engine),
        disks=_disks(sections, seen),
        listening=system.parse_ports(sections.get("listening"), sections.get("sockets")),
        lease=Known(lease.value.line() if lease.value else "") if isinstance(lease, Known) else lease,
        open_runs=system.parse_runs(sections.get("runs")),
        boot_layout=boot_layout.parse(sections.get("boot")),
        symptoms=engine.symptoms + gpu_symptoms + _lease_symptoms(lease),
    )


def _disks(sections: Mapping[str, Section], seen: Mapping[str, Section]) -> Fact[tuple[DiskFact, ...]]:
    """What we saw ourselves, and what root saw beyond it: the runtime's data directory."""
    own, more = system.parse_disks(sections.get("disks")), system.parse_disks(seen.get("disks"))
    if isinstance(own, Unknown) or isinstance(more, Unknown):
        return more if isinstance(own, Unknown) else own
    paths = {disk.path for disk in own.value}
    return Known(own.value + tuple(disk for disk in more.value if disk.path not in paths))


def _lease_symptoms(lease: Fact[system.Lease | None]) -> tuple[Symptom, ...]:
    if isinstance(lease, Unknown) or lease.value is None:
        return ()
    held = lease.value
    if not held.stale:
        return (Symptom("lease-held", held.line()),)
    return (Symptom("lease-stale", f"{held.line()}, last heartbeat {held.age} s ago"),)


def _answers(sections: Mapping[str, Section], seen: Mapping[str, Section]) -> gpus.Answers:
    links = _said(sections, "topology")
    return gpus.Answers(
        topology=topology.parse(links.value) if isinstance(links, Known) else links,
        listed=_listed(sections.get("list")),
        query=_rows(_said(sections, "query"), nvidia_smi.QUERY_FIELDS, free="name"),
        report=_report(sections),
        gpu_instances=_table(seen, "lgi", nvidia_smi.parse_gpu_instances),
        compute_instances=_table(seen, "lci", nvidia_smi.parse_compute_instances),
        apps=_rows(_said(sections, "apps"), nvidia_smi.APPS_FIELDS, free="process_name"),
    )


def _report(sections: Mapping[str, Section]) -> Fact[nvidia_xml.XmlReport]:
    """The XML, or what the plain table tells in its place; then the reason is the one of the XML."""
    said = _said(sections, "report")
    report = nvidia_xml.parse_report(said.value) if isinstance(said, Known) else said
    if isinstance(report, Known) or "table" not in sections:
        return report
    said = _said(sections, "table")
    table = nvidia_table.parse_table(said.value) if isinstance(said, Known) else said
    return table if isinstance(table, Known) else report


def _said(sections: Mapping[str, Section], name: str) -> Fact[str]:
    """The text of a section. A status other than 0 does not spoil it: nvidia-smi ends with 15 for one lost GPU."""
    section = sections.get(name)
    if section is None:
        before = sections.get("list")
        return Unknown(
            before.reason() if before is not None and not before.ok else "nvidia-smi was not asked"
        )
    if section.status in {None, 124, 137} or not (section.ok or section.text.strip()):
        return Unknown(section.reason())
    return Known(section.text)


def _listed(section: Section | None) -> Fact[tuple[nvidia_smi.ListedGpu, ...]]:
    if section is None:
        return Unknown("nvidia-smi gave no answer")
    listing = nvidia_smi.parse_listing(section.text)
    if listing.gpus and section.status not in {124, 137}:
        return Known(listing.gpus)
    return Unknown(section.reason())


def _rows(text: Fact[str], fields: Sequence[str], *, free: str) -> Fact[tuple[Mapping[str, str], ...]]:
    if isinstance(text, Unknown):
        return text
    rows = nvidia_smi.parse_rows(text.value, fields, free=free)
    trouble = nvidia_smi.trouble_line(text.value)
    if not rows and trouble:
        return Unknown(f"nvidia-smi says: {trouble[:200]}")
    return Known(rows)


def _table(
    sections: Mapping[str, Section], name: str, parse: Callable[[str], Fact[tuple[Row, ...]]]
) -> Fact[tuple[Row, ...]]:
    section = sections.get(name)
    if section is None:
        return Unknown("not asked: no GPU said that MIG is enabled")
    rows = parse(section.text)
    if isinstance(rows, Known) and rows.value and not section.ok:
        return Unknown(section.reason())
    return rows


def _gpus(
    sections: Mapping[str, Section], answers: gpus.Answers
) -> tuple[Fact[tuple[GpuFact, ...]], tuple[Symptom, ...]]:
    """GPUs and what nvidia-smi complained of. No GPU is only what a host says whose PCI bus shows none either."""
    section = sections.get("list")
    evidence = _hardware(sections.get("system"))
    if section is None:
        return Unknown("nvidia-smi gave no answer"), ()
    if section.status is None:
        if evidence:
            return Unknown(f"nvidia-smi is not installed, and there is {evidence}"), (
                Symptom("driver-missing", evidence),
            )
        return Known(()), (
            Symptom("gpu-none", "nvidia-smi is not installed and no NVIDIA GPU is on the PCI bus"),
        )
    listing = nvidia_smi.parse_listing(section.text)
    if listing.says_none:
        if evidence:
            return Unknown(f"nvidia-smi finds no device, and there is {evidence}"), (
                Symptom("gpu-lost", evidence),
            )
        return Known(()), (Symptom("gpu-none", "nvidia-smi finds no device"),)
    facts = gpus.join(answers)
    if isinstance(facts, Unknown):
        code = _DRIVER_SYMPTOMS.get(section.status, _driver_symptom(section.text))
        return facts, (Symptom(code, section.reason()),)
    lost = tuple(
        Symptom("gpu-lost", line[:200]) for line in listing.other_lines if nvidia_smi.trouble_line(line)
    )
    return facts, lost


def _driver_symptom(text: str) -> str:
    if "version mismatch" in text:
        return "driver-mismatch"
    return "driver-down" if "communicate with the NVIDIA driver" in text else "driver-silent"


def _hardware(section: Section | None) -> str:
    """What speaks for an NVIDIA GPU without nvidia-smi, in words; empty when nothing does."""
    if section is None:
        return ""
    values = system.pairs(section.text)
    count = values.get("nvidia_devices", "0")
    if count not in {"", "0"}:
        return (
            f"{count} NVIDIA GPU on the PCI bus"
            if count == "1"
            else f"{count[:4]} NVIDIA GPUs on the PCI bus"
        )
    return "a loaded NVIDIA driver" if values.get("module") == "loaded" else ""


def _driver(facts: Fact[tuple[GpuFact, ...]], answers: gpus.Answers) -> Fact[str]:
    if isinstance(facts, Unknown):
        return Unknown(facts.reason)
    for gpu in facts.value:
        if isinstance(gpu.driver, Known):
            return gpu.driver
    if isinstance(answers.report, Known):
        return answers.report.value.driver
    return facts.value[0].driver if facts.value else Unknown("there is no GPU")


def _containers(sections: Mapping[str, Section], engine: runtime.Answer) -> Fact[tuple[ContainerFact, ...]]:
    section = sections.get("containers")
    if isinstance(engine.runtime, Unknown):
        return Unknown(engine.runtime.reason)
    if section is None:
        return Unknown("the list of containers gave no answer")
    if not section.ok and not container.only_gone(section.errors):
        return Unknown(f"the list of containers: {section.reason()}")
    return container.parse(section.text)
