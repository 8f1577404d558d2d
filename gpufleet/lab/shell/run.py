"""One script on one host, from outside."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.lab.shell.call import DeadlinePassed, Shared
from gpufleet.lab.shell.interpreter import Shell
from gpufleet.lab.shell.streams import Capture, Reader, Sink, byte_text
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.simhost import Killed, SimHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A script ran to its end, or a signal ended its shell (`killed`)."""

    code: int
    stdout: bytes
    stderr: bytes
    killed: bool = False


def run_shell(
    host: SimHost,
    text: str | bytes,
    stdin: bytes | Reader = b"",
    env: dict[str, str] | None = None,
    *,
    user: str = "",
    parameters: tuple[str, ...] = (),
    patience: float = float("inf"),
    fuse: int | None = None,
    streams: tuple[Sink, Sink] | None = None,
) -> Ended:
    """Run a script as the login shell of `user` would run `sh -s`.

    `stdin` is what commands read from standard input, `env` comes on top of the variables of a login, `patience`
    is how many seconds it may wait in all before `DeadlinePassed` is raised, `fuse` after how many commands the
    power goes (`PowerCut`), and `streams` is where output goes
    as it is written, for servers; without it output is captured.
    """
    out, err = streams or (Capture(), Capture())
    who = user or host.login
    source = stdin if isinstance(stdin, Reader) else Reader(byte_text(stdin))
    shared = Shared([patience], fuse=fuse)
    shell = Shell(host, who, shared, (source, out, err))
    shell.variables = {
        name: byte_text(value) for name, value in {**host.environment(who), **(env or {})}.items()
    }
    shell.exported = set(shell.variables)
    shell.variables["IFS"] = " \t\n"
    shell.parameters = [byte_text(value) for value in parameters]
    code = 255
    signalled = False
    try:
        code = shell.run_as_process(byte_text(text))
    except Unsupported as refused:
        err.write(f"lab sh: unsupported: {refused}\n")
        code = 2
    except Killed as killed:
        code, signalled = 128 + killed.signal, True
        _end_jobs(host, shared)
    except DeadlinePassed:
        _end_jobs(host, shared)
        raise
    captured = [stream.text() if isinstance(stream, Capture) else "" for stream in (out, err)]
    stdout, stderr = (text.encode("latin-1") for text in captured)
    return Ended(code=code, stdout=stdout, stderr=stderr, killed=signalled)


def _end_jobs(host: SimHost, shared: Shared) -> None:
    """Jobs in the background belong to the group that was ended."""
    for pid in shared.parked:
        host.finish(pid)
