"""What goes wrong on real hosts, each as a thing that begins and ends.

An injector breaks something on entry and repairs it on exit; the repair also runs when the case fails, so that no
case inherits another one's damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from tests.real.fleet import Fleet
from tests.real.hosts import RealHost
from tests.real.machine import run, until


@contextmanager
def link_cut(host: RealHost) -> Iterator[None]:
    """The network cable is out: packets vanish, nobody is told."""
    run("ip", "link", "set", host.link, "down")
    try:
        yield
    finally:
        run("ip", "link", "set", host.link, "up")


@contextmanager
def slow_link(host: RealHost, rate: str) -> Iterator[None]:
    """The cable carries only so much towards the host, `8mbit` for example."""
    run(
        "tc",
        "qdisc",
        "replace",
        "dev",
        host.link,
        "root",
        "tbf",
        "rate",
        rate,
        "burst",
        "32kb",
        "latency",
        "400ms",
    )
    try:
        yield
    finally:
        run("tc", "qdisc", "del", "dev", host.link, "root", check=False)


@contextmanager
def service(host: RealHost, name: str, verb: str) -> Iterator[None]:
    """A service stopped, killed or frozen (`stop`, `kill`, `freeze`), and started or thawed afterwards."""
    host.inside("systemctl", verb, name, check=False)
    try:
        yield
    finally:
        host.inside("systemctl", "thaw", name, check=False)
        host.inside("systemctl", "start", name, check=False)
        asked = {"docker": host.docker_answers, "ssh": host.ssh_answers}.get(name)
        if asked is not None:
            until(asked, within=60, what=f"{name} on {host.name} answers again")


def kill_sessions(host: RealHost) -> None:
    """End every live SSH connection of the host, as a crash of its server processes does; the listener stays."""
    host.shell("pkill -9 -x sshd-session || pkill -9 -P $(cat /run/sshd.pid); true")


@contextmanager
def powered_off(fleet: Fleet, host: RealHost) -> Iterator[None]:
    """The plug is pulled, and put in again afterwards."""
    host.power_off()
    try:
        yield
    finally:
        fleet.restart(host)


@contextmanager
def disk_full(host: RealHost, folder: str) -> Iterator[None]:
    """No byte left on the disk that holds `folder`."""
    filler = f"{folder}/.filler"
    # The first takes nearly all at once, the second the blocks that a large file cannot have.
    host.shell(
        f"fallocate -l $(( $(df -P -k {folder} | tail -n 1 | tr -s ' ' | cut -d ' ' -f 4) * 1024 - 1048576 )) {filler}; "
        f"dd if=/dev/zero of={filler}.rest bs=4k status=none 2>/dev/null; true"
    )
    try:
        yield
    finally:
        host.shell(f"rm -f {filler} {filler}.rest")


@contextmanager
def port_taken_by_process(host: RealHost, port: int) -> Iterator[None]:
    """A program outside any container listens on a port."""
    host.shell(f"busybox httpd -p 0.0.0.0:{port} -h /run/host; busybox true")
    try:
        yield
    finally:
        host.shell("pkill -x busybox; true")


@contextmanager
def port_taken_by_container(host: RealHost, port: int, image: str) -> Iterator[None]:
    """Somebody else's container publishes a port."""
    name = f"port-holder-{port}"
    host.inside(
        "docker", "run", "-d", "--name", name, "-p", f"{host.address}:{port}:8000", image, "some/model"
    )
    try:
        yield
    finally:
        host.inside("docker", "rm", "-f", name, check=False)


@contextmanager
def engine_behaves(host: RealHost, behaviour: str) -> Iterator[None]:
    """Engines that start on this host from now on behave like this; the words stand in `image/engine.py`."""
    host.write("/run/host/engine", behaviour)
    try:
        yield
    finally:
        host.inside("rm", "-f", "/run/host/engine", check=False)


@contextmanager
def hook_gone(host: RealHost) -> Iterator[None]:
    """NVIDIA's toolkit is not installed: Docker, restarted, knows no GPU driver."""
    away = "/run/host/hook-away"
    host.shell(
        f"mv /usr/bin/nvidia-container-runtime-hook {away}; mv /usr/bin/nvidia-ctk {away}-ctk; systemctl restart docker"
    )
    until(host.docker_answers, within=60, what=f"docker on {host.name} restarts")
    try:
        yield
    finally:
        host.shell(
            f"mv {away} /usr/bin/nvidia-container-runtime-hook; mv {away}-ctk /usr/bin/nvidia-ctk; systemctl restart docker"
        )
        until(host.docker_answers, within=60, what=f"docker on {host.name} restarts")


@contextmanager
def driver_fails(host: RealHost, status: int, text: str) -> Iterator[None]:
    """nvidia-smi ends with this status and text."""
    host.write("/run/host/driver", f"{status}\n{text}\n")
    try:
        yield
    finally:
        host.inside("rm", "-f", "/run/host/driver", check=False)


@contextmanager
def firewall(host: RealHost, *rule: str) -> Iterator[None]:
    """One iptables rule on the host, for a fault of one port only."""
    host.inside("iptables", "-I", *rule)
    try:
        yield
    finally:
        host.inside("iptables", "-D", *rule, check=False)


@contextmanager
def host_key_changed(host: RealHost) -> Iterator[None]:
    """The host was installed anew: its sshd shows another key."""
    key, kept, reload = (
        "/etc/ssh/ssh_host_ed25519_key",
        "/run/host/key-kept",
        "kill -HUP $(cat /run/sshd.pid)",
    )
    host.shell(f"mv {key} {kept}; mv {key}.pub {kept}.pub; ssh-keygen -q -t ed25519 -N '' -f {key}; {reload}")
    until(host.ssh_answers, within=20, what="sshd answers")
    try:
        yield
    finally:
        host.shell(f"mv {kept} {key}; mv {kept}.pub {key}.pub; {reload}")
        until(host.ssh_answers, within=20, what="sshd answers")


@contextmanager
def program_replaced(host: RealHost, path: str, script: str) -> Iterator[None]:
    """A program of the host stands aside for a script, which finds the true one at `PATH.true`."""
    host.shell(f"mv {path} {path}.true")
    host.write(path, script)
    host.inside("chmod", "755", path)
    try:
        yield
    finally:
        host.shell(f"mv {path}.true {path}")


@contextmanager
def all_of(*parts: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    """Several faults at once."""
    with contextlib.ExitStack() as stack:
        for part in parts:
            stack.enter_context(part)
        yield


HELD = """\
#!/bin/sh
if [ "$1" = "{verb}" ] && [ ! -e /run/host/go ]; then
    {before}
    touch /run/host/reached
    n=0
    while [ ! -e /run/host/go ] && [ $n -lt 600 ]; do sleep 0.05; n=$((n + 1)); done
    {after}
fi
exec {path}.true "$@"
"""


@contextmanager
def docker_held(host: RealHost, verb: str, *, after_it: bool = False) -> Iterator[None]:
    """`docker VERB` stands still on the host, before or after its work, until `let_docker_go`.

    What a test does between `wait_until_held` and `let_docker_go` therefore happens in the middle of a command.
    """
    path = "/usr/bin/docker"
    held = f'{path}.true "$@"; status=$?' if after_it else ":"
    script = HELD.format(verb=verb, path=path, before=held, after="exit $status" if after_it else ":")
    host.shell("rm -f /run/host/go /run/host/reached; chmod 777 /run/host")
    with program_replaced(host, path, script):
        try:
            yield
        finally:
            if host.is_on:
                let_docker_go(host)


def wait_until_held(host: RealHost) -> None:
    """Wait until a docker command stands still on the host."""
    until(
        lambda: host.inside("test", "-e", "/run/host/reached", check=False).returncode == 0,
        within=60,
        what="docker is held",
    )


def let_docker_go(host: RealHost) -> None:
    """The held command goes on."""
    host.inside("touch", "/run/host/go")
