"""A whole lab in one process: simulated hosts behind SSH, their engines behind HTTP.

`RunningLab` is it, for whoever wants it inside its own process; `python -m gpufleet.lab.serve` is the same in the
background, told what to be by its arguments, ended by SIGTERM. It says `ready`, or why not, on the descriptor it
was given.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Self

from gpufleet.clock import SystemClock
from gpufleet.lab.containers.simcontainer import ContainerEngine
from gpufleet.lab.faults import FaultScript
from gpufleet.lab.fleet import Fleet, build_fleet, parse_gpus, wishes_of
from gpufleet.lab.lab_files import PORT, LabFolder
from gpufleet.lab.simhost import Listener
from gpufleet.lab.sshd import LabServer
from gpufleet.lab.vllm.engine import EngineServer
from gpufleet.lab.vllm.served_engines import ServedEngines
from gpufleet.lab.vllm.spec import EngineSpec

PORTS = range(8000, 8100)
"""Ports of replicas, as the inventory that the lab writes has them."""

ATTEMPTS = 5


class RunningLab:
    """Hosts and engines that are up; use as a context manager.

    Raises:
        OSError: no loopback network has its ports free.
        ValueError: GPUs that the lab does not know.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hosts: int = 6,
        gpus: str = "8xH100-80GB",
        load_seconds: float = 1.0,
        pull_seconds: float = 0.3,
        faults: FaultScript | None = None,
        ports: range = PORTS,
    ) -> None:
        parse_gpus(gpus)
        self.folder = LabFolder(folder)
        self._hosts, self._gpus, self._faults, self._ports = hosts, gpus, faults, ports
        self._pull_seconds = pull_seconds
        network = free_network(hosts)
        self._engines = EngineServer()
        self._served = ServedEngines(self._engines, EngineSpec(load_seconds=load_seconds))
        self._build(network)

    def _build(self, network: str) -> None:
        self.fleet: Fleet = build_fleet(
            wishes_of(self._hosts, self._gpus, network=network),
            SystemClock(),
            engines=lambda _host: self._served,
        )
        self.fleet.registry.seconds = self._pull_seconds
        first = f"{network}.1"
        taken = [Listener("0.0.0.0", number) for number in self._ports if not _free(first, number)]
        for lab in self.fleet:
            # What listens on every address of this machine would keep an engine from its port.
            lab.host.listeners += taken
        self._server = LabServer(self.fleet, self.folder, self._faults)

    def __enter__(self) -> Self:
        self._start(ATTEMPTS)
        return self

    def _start(self, attempts: int) -> None:
        try:
            self._server.start()
        except OSError:
            # Another lab took the network between our look and our bind.
            self._server.close()
            if attempts <= 1:
                self._engines.close()
                raise
            self._build(free_network(self._hosts, first=(os.getpid() + 31 * attempts) % 250))
            self._start(attempts - 1)

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def containers(self, host: str) -> ContainerEngine:
        """The container engine of a host, for looks and faults from inside."""
        return self.fleet[host].containers

    def close(self) -> None:
        """End everything; the folder's files stay."""
        self._server.close()
        self._engines.close()


def free_network(count: int, port: int = PORT, first: int = 0) -> str:
    """Three numbers of a loopback network whose first `count` addresses have the port free; raises `OSError`."""
    for number in range(250):
        network = f"127.77.{(first + number) % 250}"
        if all(_free(f"{network}.{host}", port) for host in range(1, count + 1)):
            return network
    raise OSError("no loopback network 127.77.0.0 to 127.77.249.0 has its SSH ports free")


def _free(address: str, port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m gpufleet.lab.serve")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--gpus", default="8xH100-80GB")
    parser.add_argument("--load-seconds", type=float, default=1.0)
    parser.add_argument("--ready-fd", type=int, default=2)
    asked = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        with RunningLab(asked.folder, hosts=asked.hosts, gpus=asked.gpus, load_seconds=asked.load_seconds):
            if not _tell(asked.ready_fd, "ready"):
                return 1  # whoever started us is gone, and nobody knows of us
            # Short waits, since a signal does not wake every kind of waiting thread.
            while not ended.wait(1.0):
                pass
    except (OSError, ValueError) as wrong:
        _tell(asked.ready_fd, f"failed {wrong}")
        return 1
    return 0


def _tell(descriptor: int, text: str) -> bool:
    """Whether somebody was there to hear it."""
    try:
        os.write(descriptor, f"{text}\n".encode())
        if descriptor > 2:
            os.close(descriptor)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
