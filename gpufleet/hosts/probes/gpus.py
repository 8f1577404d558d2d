"""All answers of nvidia-smi put together: one GpuFact a GPU, each slice with its UUID, instance ids and placement.

Which answer is believed for what: `-L` says which GPUs and slices exist; the CSV query gives their values and the
XML stands in where it is silent; the XML joins slices to instances; `-lgi` names profiles in full and places them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.hosts.model import (
    Fact,
    GpuFact,
    GpuInstanceFact,
    GpuProcess,
    Known,
    MigFact,
    MigInstance,
    Unknown,
)
from gpufleet.hosts.probes.nvidia_smi import (
    ComputeInstance,
    GpuInstance,
    ListedGpu,
    ListedSlice,
    is_not_applicable,
    parse_number,
    parse_switch,
    parse_word,
    word_reason,
)
from gpufleet.hosts.probes.nvidia_xml import XmlGpu, XmlReport, XmlSlice
from gpufleet.hosts.probes.topology import Links
from gpufleet.names import GpuUuid

_OLD_UUID = re.compile(r"^MIG-GPU-[0-9a-fA-F-]+/(\d{1,4})/(\d{1,4})$")
_COMPUTE_PREFIX = re.compile(r"^(\d+c\.)?(.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What nvidia-smi said, parsed one by one; `query` and `apps` are rows by field name."""

    listed: Fact[tuple[ListedGpu, ...]]
    query: Fact[tuple[Mapping[str, str], ...]]
    report: Fact[XmlReport]
    gpu_instances: Fact[tuple[GpuInstance, ...]]
    compute_instances: Fact[tuple[ComputeInstance, ...]]
    apps: Fact[tuple[Mapping[str, str], ...]]
    topology: Fact[Links] = field(default=Unknown("how GPUs are linked was not asked"))


def join(answers: Answers) -> Fact[tuple[GpuFact, ...]]:
    """GPUs in the order of their index; Unknown when not even their list could be read."""
    listed = _identities(answers)
    if isinstance(listed, Unknown):
        return listed
    return Known(tuple(_gpu(gpu, answers, len(listed.value)) for gpu in listed.value))


def _identities(answers: Answers) -> Fact[tuple[ListedGpu, ...]]:
    if isinstance(answers.listed, Known):
        return answers.listed
    if isinstance(answers.query, Unknown):
        return answers.listed
    found: list[ListedGpu] = []
    for row in answers.query.value:
        index = parse_number(row.get("index", ""))
        uuid = row.get("uuid", "")
        if isinstance(index, Known) and uuid.startswith("GPU-"):
            found.append(ListedGpu(index.value, row.get("name", ""), uuid))
    return Known(tuple(found)) if found else answers.listed


def _gpu(listed: ListedGpu, answers: Answers, count: int) -> GpuFact:
    row = _row(listed, answers.query)
    xml = _xml(listed, row.get("pci.bus_id", ""), answers.report, count)
    silence = _silence(answers)

    def value(field: str, fallback: str | None) -> str | None:
        return row.get(field, fallback)

    def number(field: str, fallback: str | None) -> Fact[int]:
        text = value(field, fallback)
        return Unknown(silence) if text is None else parse_number(text)

    driver = value("driver_version", None)
    return GpuFact(
        index=listed.index,
        uuid=GpuUuid(listed.uuid),
        name=listed.name,
        bus_id=row.get("pci.bus_id", xml.bus_id if xml else ""),
        memory_total_mib=number("memory.total", xml.memory_total if xml else None),
        memory_used_mib=number("memory.used", xml.memory_used if xml else None),
        temperature_c=number("temperature.gpu", xml.temperature if xml else None),
        utilization_pct=number("utilization.gpu", xml.utilization if xml else None),
        driver=_driver(driver, answers.report, silence),
        mig=_mig(
            listed,
            value("mig.mode.current", xml.mig_current if xml else None),
            value("mig.mode.pending", xml.mig_pending if xml else None),
            xml,
            answers,
        ),
        processes=_processes(listed, xml, answers),
        nvlink=_nvlink(listed, answers, count),
    )


def _nvlink(listed: ListedGpu, answers: Answers, count: int) -> Fact[frozenset[GpuUuid]]:
    """GPUs that NVLink joins to this one; one that stands alone has none, whatever was asked."""
    if count == 1:
        return Known(frozenset())
    if isinstance(answers.topology, Unknown):
        return answers.topology
    peers = answers.topology.value.get(listed.index, Unknown("`nvidia-smi topo -m` does not name this GPU"))
    if isinstance(peers, Unknown):
        return peers
    uuids = (
        {gpu.index: GpuUuid(gpu.uuid) for gpu in answers.listed.value}
        if isinstance(answers.listed, Known)
        else {}
    )
    if not peers.value <= uuids.keys():
        return Unknown("`nvidia-smi topo -m` names GPUs that are not listed")
    return Known(frozenset(uuids[index] for index in peers.value))


def _row(listed: ListedGpu, query: Fact[tuple[Mapping[str, str], ...]]) -> Mapping[str, str]:
    """The CSV row of a GPU by UUID, else by index when that row names no other GPU."""
    if isinstance(query, Unknown):
        return {}
    for row in query.value:
        if row.get("uuid") == listed.uuid:
            return row
    for row in query.value:
        if row.get("index") == str(listed.index) and not row.get("uuid", "").startswith("GPU-"):
            return row
    return {}


def _xml(listed: ListedGpu, bus_id: str, report: Fact[XmlReport], count: int) -> XmlGpu | None:
    """The XML element of a GPU by UUID, by bus id, or because there is only one of each."""
    if isinstance(report, Unknown):
        return None
    for gpu in report.value.gpus:
        if gpu.uuid == listed.uuid:
            return gpu
    nameless = [gpu for gpu in report.value.gpus if not gpu.uuid]
    for gpu in nameless:
        if bus_id and gpu.bus_id.casefold() == bus_id.casefold():
            return gpu
    return nameless[0] if count == 1 and len(nameless) == len(report.value.gpus) == 1 else None


def _silence(answers: Answers) -> str:
    """Why there is no value of a GPU that is listed."""
    if isinstance(answers.query, Unknown):
        return answers.query.reason
    return "nvidia-smi lists this GPU and gives no values for it"


def _driver(text: str | None, report: Fact[XmlReport], silence: str) -> Fact[str]:
    if text is not None:
        return parse_word(text)
    if isinstance(report, Known):
        return report.value.driver
    return Unknown(silence)


def _mig(
    listed: ListedGpu, current: str | None, pending: str | None, xml: XmlGpu | None, answers: Answers
) -> MigFact:
    if current is None:
        reason = Unknown(_silence(answers))
        return MigFact(
            capable=reason,
            current=reason,
            pending=reason,
            instances=_slices(listed, xml, answers) if listed.slices else reason,
            gpu_instances=_gpu_instances(listed, reason, answers),
        )
    if is_not_applicable(current) and not listed.slices:
        off: Fact[bool] = Known(False)
        return MigFact(capable=off, current=off, pending=off, instances=Known(()), gpu_instances=Known(()))
    now = parse_switch(current)
    capable = Known(True) if isinstance(now, Known) or listed.slices else Unknown(word_reason(current))
    return MigFact(
        capable=capable,
        current=now,
        pending=Unknown("nvidia-smi gave no pending mode") if pending is None else parse_switch(pending),
        instances=_instances(now, listed, xml, answers),
        gpu_instances=_gpu_instances(listed, now, answers),
    )


def _gpu_instances(listed: ListedGpu, now: Fact[bool], answers: Answers) -> Fact[tuple[GpuInstanceFact, ...]]:
    """All of this GPU's; none while MIG is off, and Unknown as long as nobody knows whether it is on."""
    if now == Known(False):
        return Known(())
    if isinstance(answers.gpu_instances, Unknown):
        return Unknown(f"`nvidia-smi mig -lgi`: {answers.gpu_instances.reason}")
    return Known(
        tuple(
            GpuInstanceFact(gi=row.gi, profile=row.profile, start=row.start, size=row.size)
            for row in answers.gpu_instances.value
            if row.gpu == listed.index
        )
    )


def _instances(
    now: Fact[bool], listed: ListedGpu, xml: XmlGpu | None, answers: Answers
) -> Fact[tuple[MigInstance, ...]]:
    if listed.slices:
        return _slices(listed, xml, answers)
    if isinstance(now, Unknown):
        return now
    if not now.value:
        return Known(())
    if isinstance(answers.listed, Unknown):
        return Unknown(f"slices are listed by `nvidia-smi -L` alone: {answers.listed.reason}")
    return Known(())


def _slices(listed: ListedGpu, xml: XmlGpu | None, answers: Answers) -> Fact[tuple[MigInstance, ...]]:
    return Known(tuple(_slice(listed, one, xml, answers) for one in listed.slices))


def _slice(listed: ListedGpu, one: ListedSlice, xml: XmlGpu | None, answers: Answers) -> MigInstance:
    device = _xml_slice(one, xml)
    gi, ci = _ids(listed, one, device, answers)
    row = _placed(listed, gi, answers.gpu_instances)
    memory: Fact[int] = Unknown("the XML of nvidia-smi does not show this slice")
    return MigInstance(
        uuid=one.uuid,
        profile=_profile(one.name, row),
        gi=gi,
        ci=ci,
        start=Known(row.start) if isinstance(row, GpuInstance) else row,
        size=Known(row.size) if isinstance(row, GpuInstance) else row,
        memory_mib=device.memory_mib if device else memory,
    )


def _xml_slice(one: ListedSlice, xml: XmlGpu | None) -> XmlSlice | None:
    if xml is None or isinstance(xml.slices, Unknown):
        return None
    return next((device for device in xml.slices.value if device.device == one.device), None)


def _ids(
    listed: ListedGpu, one: ListedSlice, device: XmlSlice | None, answers: Answers
) -> tuple[Fact[int], Fact[int]]:
    """GPU instance and compute instance of a slice: by the XML, the old UUID form, or the only one of its name."""
    if device is not None:
        return device.gi, device.ci
    if found := _OLD_UUID.match(one.uuid):
        return Known(int(found[1])), Known(int(found[2]))
    if isinstance(answers.compute_instances, Known):
        same = [
            row
            for row in answers.compute_instances.value
            if row.gpu == listed.index and row.profile == one.name
        ]
        if len(same) == 1 and sum(other.name == one.name for other in listed.slices) == 1:
            return Known(same[0].gi), Known(same[0].ci)
    reason = Unknown("which instance this slice is, only `nvidia-smi -q -x` tells, and it did not")
    return reason, reason


def _placed(listed: ListedGpu, gi: Fact[int], rows: Fact[tuple[GpuInstance, ...]]) -> GpuInstance | Unknown:
    if isinstance(gi, Unknown):
        return gi
    if isinstance(rows, Unknown):
        return Unknown(f"`nvidia-smi mig -lgi`: {rows.reason}")
    for row in rows.value:
        if row.gpu == listed.index and row.gi == gi.value:
            return row
    return Unknown(f"`nvidia-smi mig -lgi` does not list GPU instance {gi.value}")


def _profile(name: str, row: GpuInstance | Unknown) -> str:
    """`1c.3g.40gb` keeps its part of the compute, `1g.10gb` regains the `+me` that only `-lgi` prints."""
    if isinstance(row, Unknown):
        return name
    prefix = _COMPUTE_PREFIX.match(name)
    return f"{prefix[1] or ''}{row.profile}" if prefix else row.profile


def _processes(listed: ListedGpu, xml: XmlGpu | None, answers: Answers) -> Fact[tuple[GpuProcess, ...]]:
    if xml is not None and isinstance(xml.processes, Known):
        return xml.processes
    if isinstance(answers.apps, Known):
        return _from_apps([row for row in answers.apps.value if row.get("gpu_uuid") == listed.uuid])
    if xml is not None:
        return xml.processes
    return Unknown(answers.apps.reason)


def _from_apps(rows: Sequence[Mapping[str, str]]) -> Fact[tuple[GpuProcess, ...]]:
    """Compute processes alone, and without their instance: less than the XML says, more than nothing."""
    found: list[GpuProcess] = []
    for row in rows:
        pid = parse_number(row.get("pid", ""))
        if isinstance(pid, Unknown):
            return Unknown(f"a process without a number: {pid.reason}")
        found.append(
            GpuProcess(
                pid=pid.value,
                name=row.get("process_name", ""),
                memory_mib=parse_number(row.get("used_memory", "")),
            )
        )
    return Known(tuple(found))
