"""The composition root: shells get their tools here, and nowhere else in the package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.cli.settings import Settings
from gpufleet.errors import UsageError

if TYPE_CHECKING:
    from gpufleet.deploy.tools import Tools
    from gpufleet.inventory.model import Host, Inventory
    from gpufleet.names import HostName
    from gpufleet.redact import Secret
    from gpufleet.remote.fleet import FleetTransport
    from gpufleet.remote.target import Target


def inventory_path(settings: Settings) -> Path:
    """The inventory that was named, or `./inventory.yaml`.

    Raises:
        UsageError: there is none.
    """
    path = settings.inventory or Path("inventory.yaml")
    if not path.exists():
        raise UsageError(
            f"there is no inventory at {path}",
            hints=("name one with `--inventory PATH` or GPUFLEET_INVENTORY",),
        )
    return path


def load_inventory(settings: Settings) -> Inventory:
    """The inventory of this invocation, with its warnings said."""
    from gpufleet.cli.console import warn
    from gpufleet.inventory.load import load

    inventory = load(inventory_path(settings))
    for line in inventory.warnings:
        warn(line)
    return inventory


def select(inventory: Inventory, words: Sequence[str]) -> tuple[Host, ...]:
    """Hosts that a selector names; no words mean all."""
    from gpufleet.inventory.select import select as choose

    return choose(inventory, tuple(words) or ("all",))


def transport(inventory: Inventory, settings: Settings) -> FleetTransport:
    """SSH to hosts that are reached by SSH, this machine for `connection: local`."""
    from gpufleet.cli.console import warn
    from gpufleet.remote.fleet import FleetTransport

    targets = {name: target_of(host) for name, host in inventory.hosts.items()}
    return FleetTransport(targets, warn=warn, ask_passphrase=ask_passphrase if settings.interactive else None)


@contextmanager
def fleet_tools(settings: Settings) -> Iterator[Tools]:
    """Everything a use case that changes hosts needs; sessions are closed at the end."""
    from gpufleet.change.flow import Tools as ChangeTools
    from gpufleet.cli import progress
    from gpufleet.cli.console import warn
    from gpufleet.clock import SystemClock
    from gpufleet.deploy.tools import Tools
    from gpufleet.remote.kept import KeptTransport

    inventory = load_inventory(settings)
    clock = SystemClock()
    with closing(KeptTransport(transport(inventory, settings))) as sessions:
        change = ChangeTools(
            transport=sessions,
            clock=clock,
            predicates={},
            state_dir=settings.state_dir,
            operator=progress.operator(),
            lock_wait=settings.lock_wait,
            waits=progress.waits,
            observer=progress.Narrator(clock),
            forks=settings.forks,
        )
        yield Tools.of(inventory, change, warn, proxies=settings.proxies, named=settings.proxies_named)


def ask_passphrase(path: str) -> Secret[str] | None:
    """Ask for the passphrase of a key on the terminal, without echo; None when nothing was typed."""
    import getpass

    from gpufleet.redact import Secret

    typed = getpass.getpass(f"Passphrase of {path}: ")
    return Secret(typed) if typed else None


def target_of(host: Host) -> Target:
    """What `remote` must know of a declared host; `remote` and `inventory` share a floor and never meet."""
    from gpufleet.inventory.model import Connection
    from gpufleet.remote.target import Target, Way

    return Target(
        name=host.name,
        host=host.address.host,
        port=host.address.port,
        user=host.ssh.user,
        identity_file=host.ssh.identity_file,
        proxy_jump=host.ssh.proxy_jump,
        known_hosts=host.ssh.known_hosts,
        config_file=host.ssh.config_file,
        connect_timeout=host.ssh.connect_timeout,
        passphrase=host.ssh.passphrase,
        password=host.ssh.password,
        sudo_password=host.sudo_password,
        way=Way.LOCAL if host.connection is Connection.LOCAL else Way.SSH,
    )


def host_names(hosts: Sequence[Host]) -> tuple[HostName, ...]:
    """The names alone, in order."""
    return tuple(host.name for host in hosts)
