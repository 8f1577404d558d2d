"""`gpufleet inventory`: check the inventory file, show what it means, print its JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpufleet.cli import wiring
from gpufleet.cli.console import Answer, finish, table
from gpufleet.cli.settings import current

if TYPE_CHECKING:
    from gpufleet.inventory.model import Host

app = typer.Typer(
    no_args_is_help=True,
    help="Read and check the inventory file.",
    rich_markup_mode=None,
    add_completion=False,
)


@app.command()
def validate() -> None:
    """Check the inventory and the files beside it; every mistake is shown with its line."""
    from gpufleet.cli.console import warn
    from gpufleet.deploy.arguments import collect
    from gpufleet.deploy.catalogue import filled
    from gpufleet.engine.vllm import Vllm
    from gpufleet.located import Problems
    from gpufleet.models.load import catalogue
    from gpufleet.pools.load import definitions

    inventory = wiring.load_inventory(current())
    problems, pools, known = Problems(), definitions(inventory), catalogue(inventory)
    told = [line for pool in pools.values() for line in collect(Vllm(), filled(pool, known), problems)]
    problems.raise_if_any("pool definitions are wrong")
    for line in told:
        warn(line)
    counts = {
        "hosts": len(inventory.hosts),
        "groups": len(inventory.groups),
        "pools": len(pools),
        "models": len(inventory.models),
    }
    spoken = ", ".join(_count(number, word) for word, number in counts.items() if number or word == "hosts")
    raise finish(
        Answer(
            command="inventory validate",
            fields={"path": inventory.path, **counts, "warnings": [*inventory.warnings, *told]},
            text=f"{inventory.path}: {spoken}, no mistakes",
        )
    )


@app.command()
def show(
    selector: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOSTS]...", help="Names, globs, group=NAME, label=value, !negation; all by default."
        ),
    ] = None,
) -> None:
    """Show hosts with everything they inherit; secrets are shown as their references."""
    hosts = wiring.select(wiring.load_inventory(current()), selector or ())
    rows = [
        (
            host.name,
            str(host.address),
            host.ssh.user or "",
            ",".join(sorted(host.groups)),
            ",".join(f"{key}={value}" for key, value in sorted(host.labels.items())),
            host.runtime.value,
        )
        for host in hosts
    ]
    raise finish(
        Answer(
            command="inventory show",
            fields={"hosts": [_fields(host) for host in hosts]},
            text=table(("HOST", "ADDRESS", "USER", "GROUPS", "LABELS", "RUNTIME"), rows),
        )
    )


@app.command()
def schema() -> None:
    """Print the JSON Schema of an inventory file, for editors and other tools."""
    import json

    from gpufleet.inventory import document

    made = document.schema()
    raise finish(
        Answer(command="inventory schema", fields={"json_schema": made}, text=json.dumps(made, indent=2))
    )


def _count(number: int, plural: str) -> str:
    return f"{number} {plural.removesuffix('s') if number == 1 else plural}"


def _fields(host: Host) -> dict[str, object]:
    secrets = {
        "sudo_password": host.sudo_password,
        "ssh_password": host.ssh.password,
        "passphrase": host.ssh.passphrase,
    }
    return {
        "host": host.name,
        "address": host.address.host,
        "port": host.address.port,
        "connection": host.connection.value,
        "user": host.ssh.user,
        "identity_file": host.ssh.identity_file,
        "proxy_jump": host.ssh.proxy_jump,
        "known_hosts": host.ssh.known_hosts,
        "ssh_config": host.ssh.config_file,
        "connect_timeout": host.ssh.connect_timeout,
        "groups": sorted(host.groups),
        "labels": dict(host.labels),
        "runtime": host.runtime.value,
        "runtime_path": host.runtime_path,
        "become": host.become.value,
        "service_address": host.service_address,
        "ports": {"first": host.ports.first, "last": host.ports.last},
        "secrets": {key: secret.reference for key, secret in secrets.items() if secret is not None},
        "declared_at": host.declared_at,
    }
