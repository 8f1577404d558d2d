"""The door: one command line in, one exit code out. Groups are imported when they are named, not before."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpufleet.errors import ExitCode, FleetError, Interrupted, PreflightFailed, UsageError

if TYPE_CHECKING:
    from gpufleet.cli.settings import Settings

GROUPS = {
    "inventory": "Read and check the inventory file.",
    "hosts": "List hosts, read their facts, say what is wrong and how to mend it.",
    "models": "List the models of the catalogue, show one, tell whether it fits, and stage its weights.",
    "pool": "Deploy pools of replicas as one change, show and change them.",
    "mig": "Show how GPUs are cut into MIG slices, and plan another layout.",
    "change": "List, resume and undo runs; take over a lease.",
    "proxy": "Serve pools at one OpenAI-compatible address.",
    "token": "Make, list, rotate and revoke bearer tokens.",
    "explain": "Say why an engine did not come up, from its log.",
    "lab": "A simulated fleet on this machine, behind real SSH.",
}
"""Group name to its line in the help; the module is `gpufleet.cli.<name>` and exposes `app`."""

ALONE = frozenset({"explain"})
"""Commands that are no groups: what follows them is an argument."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing but an exit code ever leaves here."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--version"]:
        from gpufleet import __version__

        print(f"gpufleet {__version__}")
        return 0
    from gpufleet.cli import settings as options

    try:
        settings, rest = options.split(words)
    except UsageError as error:
        options.install(_fallback(words))
        return _fail(error, "")
    options.install(settings)
    return _run(settings, rest)


def _fallback(words: Sequence[str]) -> Settings:
    """Settings good enough to render an error about the settings themselves."""
    from gpufleet.cli.settings import Settings

    wants_json = any(
        word == "--output=json" or (word in {"-o", "--output"} and following == "json")
        for word, following in zip(words, [*words[1:], ""], strict=True)
    )
    return Settings(output="json" if wants_json else "text")


def _run(settings: Settings, rest: list[str]) -> int:
    name = " ".join(
        word for word in rest[: 1 if rest[:1] and rest[0] in ALONE else 2] if not word.startswith("-")
    )
    try:
        return _invoke(rest)
    except FleetError as error:
        return _fail(error, name)
    except KeyboardInterrupt:
        return _fail(Interrupted("interrupted before anything was changed"), name)
    except Exception as error:  # noqa: BLE001  # the last resort: save the traceback, show one line
        known = _usage_of(error) or _state_fault(error, settings)
        if known is not None:
            return _fail(known, name)
        return _crash(error, settings, name)


def _state_fault(error: Exception, settings: Settings) -> FleetError | None:
    """A state directory that is missing, unreadable, full or no directory, as an error of ours."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str):
        return None
    if settings.state_dir not in (Path(error.filename), *Path(error.filename).parents):
        return None
    return PreflightFailed(
        f"the state directory cannot be used: {(error.strerror or str(error)).lower()}",
        where=error.filename,
        hints=("choose another with `--state-dir PATH` or GPUFLEET_STATE",),
    )


def _fail(error: FleetError, name: str) -> int:
    from gpufleet.cli import console

    return console.fail(error, name)


def _invoke(rest: list[str]) -> int:
    before = rest[: rest.index("--")] if "--" in rest else rest
    if rest and rest[0] in GROUPS and not {"--help", "-h"} & set(before):
        # Straight into the group, and without a help option: Typer 0.29 coerces even an unset one through
        # pydantic, whose import alone would double the start-up of a command without parameters.
        group = _group(rest[0])
        result = group(
            args=rest[1:], prog_name=f"gpufleet {rest[0]}", standalone_mode=False, help_option_names=[]
        )
    else:
        result = application()(args=rest, prog_name="gpufleet", standalone_mode=False)
    if result == ExitCode.INTERRUPTED:  # Typer swallows Ctrl-C; no command of ours ends with this code
        raise KeyboardInterrupt
    return result if isinstance(result, int) else 0


def _group(name: str) -> Any:
    """The parser of one command group, imported now."""
    import typer

    from gpufleet.cli.coercion import spare

    return spare(typer.main.get_command(importlib.import_module(f"gpufleet.cli.{name}").app))


def _usage_of(error: Exception) -> UsageError | None:
    """A usage error of the option parser as one of ours; it has `exit_code` 2 and `format_message`."""
    if type(error).__name__ == "Abort":
        return UsageError("aborted")
    message = getattr(error, "format_message", None)
    if message is None or getattr(error, "exit_code", None) is None:
        return None
    if type(error).__name__ == "NoArgsIsHelpError":
        from gpufleet.cli.console import note

        note(message())
        return UsageError("no command was given", hints=("`--help` lists them",))
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "gpufleet")
    summary = str(message()).rstrip(".").replace("'", "`")
    return UsageError(summary[:1].lower() + summary[1:], hints=(f"`{path} --help` shows what it takes",))


def _crash(error: Exception, settings: Settings, name: str) -> int:
    import traceback

    from gpufleet.cli.console import note
    from gpufleet.redact import live, scrub

    text = scrub("".join(traceback.format_exception(error)), live())
    if settings.verbose:
        note(text)
    folder = settings.state_dir / "crashes"
    hints = ["this is a fault of gpufleet, not yours; please report it with the saved traceback"]
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / f"crash-{os.getpid()}.txt"
        path.write_text(text, encoding="utf-8")
        hints.append(f"traceback saved to {path}")
    except OSError as problem:
        hints.append(f"the traceback could not be saved ({problem.strerror}); `--verbose` prints it")
    failure = FleetError(
        f"unexpected {type(error).__name__}: {scrub(str(error), live())}", hints=tuple(hints)
    )
    failure_code = _fail(failure, name)
    return failure_code or int(ExitCode.INTERNAL)


def application() -> Any:
    """The Typer application, built on call so that `--version` never imports Typer."""
    import typer
    from typer.core import TyperCommand, TyperGroup

    class LazyGroup(TyperGroup):
        """Groups by name; the help shows their lines without importing them."""

        def list_commands(self, ctx: Any) -> list[str]:
            return list(GROUPS)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in GROUPS:
                return None
            return TyperCommand(cmd_name, help=GROUPS[cmd_name])

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and args[0] in GROUPS:
                return args[0], _group(args[0]), args[1:]
            return super().resolve_command(ctx, args)

    app = typer.Typer(
        name="gpufleet",
        cls=LazyGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )

    @app.callback()
    def gpufleet(
        inventory: str = typer.Option(
            "./inventory.yaml", "--inventory", "-i", metavar="PATH", help="The inventory file."
        ),
        output: str = typer.Option(
            "text", "--output", "-o", metavar="text|json", help="What standard output carries."
        ),
        no_input: bool = typer.Option(
            False, "--no-input", help="Never ask; fail and name the option instead."
        ),
        yes: bool = typer.Option(False, "--yes", "-y", help="Answer yes to all questions."),
        forks: int = typer.Option(32, "--forks", metavar="N", help="Hosts worked on at once."),
        lock_wait: int = typer.Option(0, "--lock-wait", metavar="SECONDS", help="Wait for hosts in use."),
        state_dir: str = typer.Option(
            "", "--state-dir", metavar="PATH", help="Where journals, routes and tokens live."
        ),
        quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress on standard error."),
        verbose: bool = typer.Option(False, "--verbose", "-v", help="More detail on standard error."),
        version: bool = typer.Option(False, "--version", help="Print the version."),
    ) -> None:
        """Run large language models on your own GPU machines, by SSH.

        Global options are accepted before and after the command.
        """
        # `settings.split` took their values before Typer saw them: they are here for the help alone.

    return app
