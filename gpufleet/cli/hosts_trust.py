"""`hosts trust`: the key that a host shows, compared by a person or by its fingerprint, into known_hosts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer
from gpufleet.cli.settings import current
from gpufleet.errors import HostKeyChanged, UsageError
from gpufleet.inventory.model import Connection, Host, Inventory
from gpufleet.remote.ssh.known_hosts import (
    Changed,
    Matches,
    Revoked,
    Verdict,
    line_for,
    lookup,
    removal_command,
)
from gpufleet.remote.ssh.known_hosts_file import KnownHostsFiles, add_line

if TYPE_CHECKING:
    from gpufleet.remote.ssh.connect import OfferedKey


def trust(inventory: Inventory, host: Host, fingerprint: str, confirm: Callable[[str, str], bool]) -> Answer:
    """Add the shown key when its fingerprint is the given one, or a person says so; a changed key is refused."""
    if host.connection is Connection.LOCAL:
        raise UsageError("this machine is reached without SSH and has no host key to trust", where=host.name)
    with closing(wiring.transport(inventory, current())) as transport:
        ssh = transport.over_ssh()
        offered = ssh.offered_key(host.name)
        files = ssh.known_hosts_files(host.name)
    entries = KnownHostsFiles(lambda _line: None).entries(files)
    place = files[0]
    shown: dict[str, object] = {
        "host": host.name,
        "address": offered.host,
        "port": offered.port,
        "key_type": offered.key_type,
        "fingerprint": offered.fingerprint,
        "file": place,
    }
    found = lookup(entries, offered.host, offered.port, offered.key_type, offered.key)
    if isinstance(found, Matches):
        return Answer(
            command="hosts trust",
            outcome="no_change",
            fields={"hosts": [{**shown, "status": "no_change"}]},
            text=f"{host.name}: {offered.fingerprint} is trusted already",
        )
    _refuse_another_key(found, offered, host)
    if fingerprint and fingerprint != offered.fingerprint:
        raise HostKeyChanged(
            f"it shows {offered.fingerprint}, not {fingerprint}",
            where=host.name,
            hints=("compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host itself",),
        )
    question = f"{host.name} ({offered.host} port {offered.port}) shows {offered.key_type} {offered.fingerprint}. Trust it?"
    if not fingerprint and not confirm(question, "--fingerprint SHA256:..."):
        return Answer(
            command="hosts trust",
            outcome="no_change",
            fields={"hosts": [{**shown, "status": "no_change"}]},
            text=f"{host.name}: nothing was changed",
        )
    add_line(Path(place), line_for(offered.host, offered.port, offered.key_type, offered.key))
    return Answer(
        command="hosts trust",
        outcome="ok",
        fields={"hosts": [{**shown, "status": "trusted"}]},
        text=f"{host.name}: {offered.key_type} {offered.fingerprint} added to {place}",
    )


def _refuse_another_key(found: Verdict, offered: OfferedKey, host: Host) -> None:
    """A key that contradicts known_hosts is never added here, whatever a person answers."""
    if isinstance(found, Changed):
        raise HostKeyChanged(
            f"it shows {offered.fingerprint}, and {found.entry.file}:{found.entry.line} holds another key",
            where=host.name,
            hints=(
                "find out why it changed; then forget the old key: "
                + removal_command(found.entry, offered.host, offered.port),
            ),
        )
    if isinstance(found, Revoked):
        raise HostKeyChanged(
            f"its key {offered.fingerprint} is revoked at {found.entry.file}:{found.entry.line}",
            where=host.name,
        )
