"""One operator's desk in front of simulated hosts: deploys in memory, on a clock that only sleeping moves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpufleet.change.events import Goal
from gpufleet.change.flow import Tools as ChangeTools
from gpufleet.change.flow import take_up
from gpufleet.change.records import journal_file
from gpufleet.deploy.commit import finish_commit
from gpufleet.deploy.deletion import delete, prepare_deletion, retire_after
from gpufleet.deploy.flow import carry_out, prepare
from gpufleet.deploy.recut.flow import RecutWish, carry_out_recut, prepare_recut
from gpufleet.deploy.tools import Done, Tools, resolver
from gpufleet.inventory.model import Address, Host, Inventory, PortRange
from gpufleet.lab.containers.model import Policy, Wish
from gpufleet.lab.faults import Fault, FaultScript, Kind
from gpufleet.lab.fleet import Fleet, build_fleet, wishes_of
from gpufleet.lab.memory import MemoryTransport
from gpufleet.mig.choose import parse
from gpufleet.names import HostName, PoolName, RunId
from gpufleet.pools.model import EngineWish, GateWish, Pool
from tests.kit.lab_kit import LabClock

IMAGE = "vllm/vllm-openai:v0.20.0"


class Site:
    """A fleet, an operator's state directory, and what an operator types."""

    def __init__(
        self,
        path: Path,
        count: int = 2,
        gpus: str = "2xH100-80GB",
        *,
        fleet: Fleet | None = None,
        **more: Any,
    ) -> None:
        self.path = path
        self.clock: Any = fleet.clock if fleet is not None else LabClock()
        self.fleet: Fleet = fleet or build_fleet(
            (replace(wish, **more) for wish in wishes_of(count, gpus)), self.clock
        )
        hosts = {
            HostName(lab.name): Host(
                name=HostName(lab.name), address=Address(lab.wish.address), ports=PortRange(8000, 8015)
            )
            for lab in self.fleet
        }
        self.inventory = Inventory(hosts=hosts, path=str(path / "inventory.yaml"))
        for lab in self.fleet:  # what others run here, before and after
            engine = lab.containers
            for image in ("redis:7", "busybox:1"):
                engine.add_image(image)
            engine.start(engine.create(Wish(name="cache", image="redis:7", policy=Policy(name="always"))))
            engine.create(Wish(name="spare", image="busybox:1"))
        self.told: list[str] = []
        self.events: list[object] = []

    def tools(self, *faults: Fault, transport: Any = None) -> Tools:
        """A new process: new connections, the same state directory."""
        change = ChangeTools(
            transport=transport or MemoryTransport(self.fleet, FaultScript(faults)),
            clock=self.clock,
            predicates={},
            state_dir=self.path / "state",
            operator="ann@desk pid 1",
            observer=lambda _step, event: self.events.append(event),
            forks=4,
        )
        return Tools.of(self.inventory, change, self.told.append)

    def pool(self, **changes: Any) -> Pool:
        """A pool whose gate does not wait long."""
        fields: dict[str, Any] = {
            "name": PoolName("chat"),
            "model": "qwen/qwen2.5",
            "served_name": "qwen",
            "replicas": len(self.fleet.hosts),
            "engine": EngineWish(image=IMAGE),
            "gate": GateWish(stall=30.0, within=200.0, every=2.0),
        }
        return Pool(**{**fields, **changes})

    def deploy(self, pool: Pool | None = None, *faults: Fault) -> Done:
        """`pool deploy`, confirmed."""
        return self.deploy_by(self.tools(*faults), pool or self.pool())

    def deploy_by(self, tools: Tools, pool: Pool) -> Done:
        """The same, with tools of the caller's."""
        return carry_out(tools, prepare(tools, pool, command="pool deploy chat"))

    def changes(self, pool: Pool | None = None) -> bool:
        """`pool deploy --check`."""
        return prepare(self.tools(), pool or self.pool(), command="pool plan chat").changes

    def delete(self, *faults: Fault) -> Done:
        """`pool delete`, confirmed."""
        tools = self.tools(*faults)
        hosts = tuple(self.inventory.hosts.values())
        return delete(tools, prepare_deletion(tools, PoolName("chat"), hosts, command="pool delete chat"))

    def recut(self, word: str, layout: str, *faults: Fault, **more: Any) -> Done:
        """`mig reconfigure`, confirmed."""
        return self.recut_by(self.tools(*faults), word, layout, **more)

    def recut_by(self, tools: Tools, word: str, layout: str, **more: Any) -> Done:
        """The same, with tools of the caller's."""
        asked = parse(word)
        host = self.inventory.hosts[HostName(asked.host)]
        wish = RecutWish(layout=layout, **more)
        command = f"mig reconfigure {word} --layout {layout}"
        return carry_out_recut(tools, prepare_recut(tools, host, asked, wish, command=command))

    def slices(self) -> dict[str, list[list[str]]]:
        """Slices of each GPU as `PROFILE:START`, `bare` for one without a compute instance, and modes."""
        return {
            lab.name: [
                [
                    f"MIG {gpu.mig} {gpu.pending}",
                    *sorted(
                        f"{one.profile.name}:{one.start}{' bare' if one.ci is None else ''}"
                        for one in gpu.instances
                    ),
                ]
                for gpu in lab.gpus.gpus
            ]
            for lab in self.fleet
        }

    def take_up(self, run: RunId, goal: Goal, *faults: Fault) -> Any:
        """`change resume` or `change undo`."""
        tools = self.tools(*faults)
        change = take_up(
            run,
            tools.change,
            goal,
            resolve=resolver(self.inventory, goal),
            on_commit=finish_commit(tools.store),
        )
        if goal is Goal.RESUME:
            retire_after(tools, change.context)
        return change

    def runs(self) -> tuple[Any, ...]:
        """`change list`, oldest first."""
        return tuple(sorted(journal_file.summaries(self.path / "state"), key=lambda summary: summary.run))

    def containers(self, *, life: bool = True) -> dict[str, list[tuple[str, ...]]]:
        """`docker ps -a` on every host, asked past gpufleet: id, name, policy and, with `life`, whether it runs."""
        return {
            lab.name: sorted(
                (one.id, one.name, one.policy.name, *((str(one.status == "running"),) if life else ()))
                for one in lab.containers.containers.values()
            )
            for lab in self.fleet
        }

    def pools_containers(self) -> dict[str, list[str]]:
        """Replicas of the pool that run, by host."""
        return {
            lab.name: sorted(
                one.wish.labels["gpufleet.replica"]
                for one in lab.containers.containers.values()
                if one.wish.labels.get("gpufleet.pool") == "chat" and one.running
            )
            for lab in self.fleet
        }

    def routes(self) -> dict[str, list[str]]:
        """Pool name to the addresses in the route table."""
        path = self.path / "state" / "routes.json"
        if not path.exists():
            return {}
        table = json.loads(path.read_text())
        return {pool["name"]: [one["url"] for one in pool["endpoints"]] for pool in table["pools"]}

    def environment_files(self) -> dict[str, list[str]]:
        """Files with secrets that a start left behind, by host."""
        found: dict[str, list[str]] = {}
        for lab in self.fleet:
            for home in ("/home/ops", "/root"):
                folder = f"{home}/.gpufleet/env"
                names = lab.host.fs.names(folder) if lab.host.fs.exists(folder) else []
                if names:
                    found[lab.name] = names
        return found

    def leases(self) -> list[str]:
        """Hosts on which a lease is held."""
        return [lab.name for lab in self.fleet if lab.host.fs.exists("/home/ops/.gpufleet/lease")]

    def heal(self) -> None:
        """Whatever broke works again, as after a repairman's visit."""
        for lab in self.fleet:
            if lab.dead:
                lab.power_on()
            for kind in (Kind.DAEMON_BACK, Kind.DISK_FREED):
                lab.strike(Fault(kind=kind, host=lab.name))
            lab.containers.launch_words = {}
            lab.containers.registry = self.fleet.registry
            lab.gpus.trouble = ""
            lab.host.listeners = [one for one in lab.host.listeners if one.address != "0.0.0.0"]
