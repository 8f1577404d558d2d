"""Words of a command line that need no conversion get none.

Typer 0.29 builds a pydantic adapter for every parameter of a command, also for text that is meant to stay text and
for options that nobody gave; importing pydantic takes a tenth of a second, a third of what `hosts list` takes. The
parameters of a parsed command get a stand-in that hands on what is right already and asks Typer for the rest. It
reaches into Typer (the lock file pins it); a Typer without these names is left alone.
"""

from __future__ import annotations

from typing import Any


class _Spared:
    """Converts as Typer does, but builds Typer's own converter only when a value needs it."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """The value as the command's function takes it."""
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        annotation = self._descriptor.annotation
        if many and annotation == list[str] and all(isinstance(word, str) for word in value):
            return list(value)
        if annotation in (str, int, float, bool) and type(value) is annotation:
            return value
        from typer._coercion import build_runtime_param

        return build_runtime_param(self._descriptor).coerce(value, param=param, ctx=ctx)


def spare(command: Any) -> Any:
    """The same command, group and all below it, with stand-ins."""
    for below in getattr(command, "commands", {}).values():
        spare(below)
    for param in command.params:
        descriptor = getattr(param, "type_descriptor", None)
        if descriptor is not None and hasattr(param, "_runtime_param"):
            param._runtime_param = _Spared(descriptor)  # noqa: SLF001  # see the module's text
    return command
