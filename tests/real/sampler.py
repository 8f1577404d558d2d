"""Who could read a secret while a command runs: arguments and environments of every process of the hosts, sampled,
and of every docker and ssh program, recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from tests.real import cgroups, faults
from tests.real.fleet import Fleet

RECORDER = """\
#!/bin/sh
{{ printf '%s\\n' "$0 $*"; cat /proc/self/environ | tr '\\0' '\\n'; }} >> /run/host/calls.log
exec {path}.true "$@"
"""


class Sampler:
    """Reads /proc in a loop, for what lives long enough to be seen there by other people too.

    Containers have a process namespace of their own and are left out: an engine's environment holds what it was
    given. Whatever runs on the hosts themselves must not.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.seen: set[str] = set()
        self.rounds = 0
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        marks = [host.process() for host in self._fleet.hosts.values()]
        spaces = {Path(f"/proc/{mark.pid}/ns/pid").readlink() for mark in marks if mark is not None}
        while not self._stop.wait(0.005):
            self.rounds += 1
            for pid in cgroups.members(self._fleet.site.name):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/ns/pid").readlink() not in spaces:
                        continue
                    for name in ("cmdline", "environ"):
                        text = Path(f"/proc/{pid}/{name}").read_bytes().replace(b"\0", b" ")
                        self.seen.add(text.decode(errors="replace"))


@contextmanager
def docker_recorded(fleet: Fleet, names: tuple[str, ...]) -> Iterator[None]:
    """Every call of docker on these hosts is written down with its environment."""
    with ExitStack() as stack:
        for name in names:
            host = fleet.hosts[name]
            host.shell("mkdir -p /run/host; : > /run/host/calls.log; chmod 777 /run/host /run/host/calls.log")
            script = RECORDER.format(path="/usr/bin/docker")
            stack.enter_context(faults.program_replaced(host, "/usr/bin/docker", script))
        yield


def calls(fleet: Fleet, name: str) -> str:
    """What was recorded on a host."""
    return fleet.hosts[name].shell("cat /run/host/calls.log")


def record_ssh(folder: Path) -> Path:
    """A folder for the front of PATH whose `ssh` writes down how it was called; returns the file it writes to."""
    log = folder / "ssh-calls.log"
    folder.mkdir()
    log.write_text("")
    program = folder / "ssh"
    program.write_text(
        "#!/bin/sh\n"
        f"{{ printf '%s\\n' \"$0 $*\"; tr '\\0' '\\n' </proc/self/environ; }} >>'{log}'\n"
        'exec /usr/bin/ssh "$@"\n'
    )
    program.chmod(0o755)
    return log
