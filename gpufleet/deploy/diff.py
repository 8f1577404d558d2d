"""A plan in the words that people confirm, and as rows for programs."""

from __future__ import annotations

from collections import Counter

from gpufleet.change.model import HERE
from gpufleet.deploy.placement.api import UNKNOWN_ISLAND, Placed
from gpufleet.deploy.placement.slots import NO_NVLINK
from gpufleet.deploy.plan import DeployPlan
from gpufleet.deploy.replicas import slot_name
from gpufleet.deploy.verdict import told


def lines(plan: DeployPlan) -> tuple[str, ...]:
    """One line a replica: `+` comes, `-` goes, `=` stays, `~` an adapter of it comes or goes; then what is done, by phase."""
    pool = plan.pool
    shown = [f"pool {pool.name}: {pool.public_name}, {pool.replicas} replica(s), {pool.algorithm}"]
    urls = {endpoint.replica: endpoint.url for endpoint in plan.endpoints}
    shown += [f"  = {one.replica}  stays  {urls[one.replica]}" for one in plan.keep]
    ours = {*(one.replica for one in plan.keep), *(one.replica for one in plan.start)}
    shown += [
        f"  = {one.replica}  stays, added to the pool  {one.url}"
        for one in plan.endpoints
        if one.replica not in ours
    ]
    shown += [
        f"  + {one.replica}  {slot_name(one.placed)}{_links(one.placed)}  {urls[one.replica]}"
        for one in plan.start
    ]
    shown += [f"  {line}" for line in (*told(plan.memory), *plan.carried)]
    for one in plan.gone:
        how = (
            "stopped first, removed after the commit"
            if one.container.id in plan.stopped_first
            else "removed after the commit"
        )
        shown.append(f"  - {one.replica}  container {one.container.name} ({one.container.state}), {how}")
    shown += [f"  ~ {step.title}" for step in plan.adapters if step.host != HERE]
    phases = Counter(step.phase for step in plan.bring_up.steps)
    if plan.gone:
        phases["remove"] = len(plan.gone)
    if phases:
        shown.append("  steps: " + ", ".join(f"{count} {phase}" for phase, count in phases.items()))
    return tuple(shown)


def _links(placed: Placed) -> str:
    """How the GPUs of a replica are joined, where it has several."""
    if len(placed.slots) == 1:
        return ""
    islands = {slot.island for slot in placed.slots}
    if UNKNOWN_ISLAND in islands:
        return " (links unknown)"
    return " (NVLink)" if len(islands) == 1 and islands != {NO_NVLINK} else " (PCIe)"


def rows(plan: DeployPlan) -> list[dict[str, object]]:
    """One object a replica, as JSON output carries them."""
    status = {one.replica: "stays" for one in plan.keep} | {one.replica: "starts" for one in plan.start}
    serving: list[dict[str, object]] = [
        {
            "host": endpoint.host,
            "replica": endpoint.replica,
            "status": status.get(endpoint.replica, "stays"),
            "gpu": ",".join(endpoint.gpus),
            "slice": endpoint.slice or None,
            "endpoint": endpoint.url,
        }
        for endpoint in plan.endpoints
    ]
    going: list[dict[str, object]] = [
        {
            "host": one.host,
            "replica": one.replica,
            "status": "goes",
            "container": one.container.name,
            "stopped_first": one.container.id in plan.stopped_first,
        }
        for one in plan.gone
    ]
    return serving + going
