"""What `proxy serve` and `proxy check` go by: the defaults, then `proxy.yaml`, then the options that were given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpufleet.errors import UsageError

if TYPE_CHECKING:
    import typer

    from gpufleet.cli.settings import Settings
    from gpufleet.proxy.config import Address, ProxyConfig
    from gpufleet.proxy.document import ProxyDocument


def config_path(settings: Settings, named: Path | None) -> Path | None:
    """The file that was named, or `proxy.yaml` beside the inventory when there is one."""
    if named is not None:
        return named
    beside = (settings.inventory or Path("inventory.yaml")).parent / "proxy.yaml"
    return beside if beside.is_file() else None


def configured(context: typer.Context, settings: Settings, file: Path | None) -> ProxyConfig:
    """Raises `UsageError` for an option and `DocumentError` for the file, with file and line."""
    from gpufleet.proxy.config import Address, ProxyConfig

    config = ProxyConfig(
        listen=Address(host="127.0.0.1", port=8080),
        admin=Address(host="127.0.0.1", port=8081),
        routes=str(settings.state_dir / "routes.json"),
        tokens=str(settings.state_dir / "tokens.db"),
    )
    path = config_path(settings, file)
    if path is not None:
        config = _from_file(path, config)
    config = replace(config, **_from_options(_given(context), config))
    handover = config.handover or str(settings.state_dir / f"proxy-{config.listen.port}.sock")
    health = replace(config.health, timeout=min(config.health.timeout, config.health.every))
    return replace(config, handover=handover, health=health)


def _from_file(path: Path, base: ProxyConfig) -> ProxyConfig:
    from gpufleet.located import Problems, convert
    from gpufleet.proxy.document import ProxyDocument, to_config
    from gpufleet.yaml_source import read

    source = read(path)
    problems = Problems()
    document: ProxyDocument | None = convert(source, ProxyDocument, problems)
    problems.raise_if_any(f"{path} cannot be used")
    if document is None:  # for the type checker: a problem was raised
        return base
    try:
        return to_config(document, base)
    except ValueError as error:
        field = str(error).partition(":")[0]
        problems.add(source.at(field), str(error))
    problems.raise_if_any(f"{path} cannot be used")
    return base


def _given(context: typer.Context) -> dict[str, Any]:
    """Only what stands on the command line: a default must not win over the file."""
    return {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }


_PLAIN = (
    "allow_anonymous",
    "wait_for_routes",
    "drain",
    "access_log",
    "access_share",
    "trace",
    "workers",
    "take_over",
)
_PATHS = ("routes", "certificate", "private_key", "handover")


def _from_options(given: dict[str, Any], config: ProxyConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {name: given[name] for name in _PLAIN if name in given}
    fields |= {name: str(given[name]) for name in _PATHS if name in given}
    fields |= {name: address(f"--{name}", given[name]) for name in ("listen", "admin") if name in given}
    if "connections" in given:
        fields["connection_limit"] = given["connections"]
    if "health_every" in given:
        fields["health"] = replace(config.health, every=given["health_every"])
    return fields


def address(option: str, text: str) -> Address:
    """Raises `UsageError` that names the option."""
    from gpufleet.proxy.config import parse_address

    try:
        return parse_address(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
