"""Several real hosts on one machine: built, started, described to clients, and removed without a trace.

`python -m tests.real.fleet up|down [HOSTS]` does by hand what the test session does, for a look around.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from tests.real import base, cgroups, image_build
from tests.real.hosts import RealHost, Site, loop_devices, reap
from tests.real.machine import run, until

FIREWALL = ("FORWARD", "-i", "{bridge}", "-o", "{bridge}", "-j", "ACCEPT")


@dataclass(slots=True)
class Fleet:
    """The hosts of one site and what clients need to reach them.

    Attributes:
        images: reference by digest for each tag that the registry holds.
        trees: the base tree of each release that a host runs.
        docker_disks: for each release a Docker disk that holds the engine's image already.
        took: seconds of each phase of getting up, for the report at the end.
    """

    site: Site = field(default_factory=Site)
    hosts: dict[str, RealHost] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)
    trees: dict[str, Path] = field(default_factory=dict)
    docker_disks: dict[str, Path] = field(default_factory=dict)

    # --- up and down -----------------------------------------------------------------------------------------

    def up(self, amount: int, *, images: bool = True) -> None:
        """Get everything: base tree, image, registry, hosts; the slow parts come from the cache when they are there."""
        releases = sorted({base.release_of(number) for number in range(amount + 1)})
        with self._phase("base trees"):
            self.trees = {release: base.build(release) for release in releases}
        self._lay_out()
        if images:
            with self._phase("images"):
                built = image_build.build(self._tree(self.registry))
            with self._phase("registry"):
                self.registry.power_on(self._tree(self.registry), None)
                self.registry.wait_ready()
                self.images = {
                    tag: image_build.push(image, self.site.registry) for tag, image in built.items()
                }
            with self._phase("docker disks"):
                self.docker_disks = {
                    release: self._template(release, built["v0.11.2"]) for release in releases
                }
        with self._phase("hosts"):
            self.add_hosts(range(1, amount + 1))
        self.write_client_files()

    def down(self) -> None:
        """Remove everything that this site ever started, whoever started it. Safe at any time."""
        with self._phase("down"):
            sweep(self.site)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begun = monotonic()
        try:
            yield
        finally:
            self.took[name] = self.took.get(name, 0.0) + monotonic() - begun

    def _lay_out(self) -> None:
        self.site.directory.mkdir(parents=True, exist_ok=True)
        keys = self.site.directory / "keys"
        keys.mkdir(mode=0o700, exist_ok=True)
        for name in ("id_ed25519", "id_stranger"):
            if not (keys / name).exists():
                run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", keys / name)
        bridge = self.site.bridge
        if not Path(f"/sys/class/net/{bridge}").exists():
            run("ip", "link", "add", bridge, "type", "bridge")
            run("ip", "addr", "add", f"{self.site.gateway}/24", "dev", bridge)
            run("ip", "link", "set", bridge, "up")
        # Where a Docker engine ever ran on the machine itself, bridged frames pass a firewall that drops them.
        rule = [word.format(bridge=bridge) for word in FIREWALL]
        if run("iptables", "-C", *rule, check=False).returncode != 0:
            run("iptables", "-I", *rule, check=False)

    @property
    def registry(self) -> RealHost:
        """The host that serves images."""
        return RealHost(self.site, 0)

    @property
    def registry_address(self) -> str:
        return self.site.registry

    @property
    def trios(self) -> tuple[tuple[str, str, str], ...]:
        """Its hosts by threes, for cases that are played side by side; a rest is left out."""
        names = list(self.hosts)
        return tuple((names[at], names[at + 1], names[at + 2]) for at in range(0, len(names) - 2, 3))

    def add_hosts(self, numbers: Sequence[int] | range) -> None:
        """Start hosts side by side and wait until their sshd and Docker answer."""
        new = [RealHost(self.site, number) for number in numbers]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(self._start, new))
        self.hosts |= {host.name: host for host in sorted(new, key=lambda host: host.number)}

    def _start(self, host: RealHost) -> None:
        host.power_on(self._tree(host), self.docker_disks.get(base.release_of(host.number)))
        host.wait_ready()

    def _tree(self, host: RealHost) -> Path:
        return self.trees[base.release_of(host.number)]

    def restart(self, host: RealHost) -> None:
        """Power on again after a power-off: same disks, same keys, same address."""
        if not host.is_on:
            self._start(host)

    def _template(self, release: str, image: image_build.Image) -> Path:
        """A Docker disk that already holds the engine's image; each host gets a copy.

        Cached by what it is made of. A stopped engine's `image` and `overlay2` folders are all that it needs.
        """
        tree = self.trees[release]
        wanted = base.CACHE / f"docker-{tree.name}-{image.digest[7:19]}.img"
        if wanted.exists():
            return wanted
        for old in base.CACHE.glob(f"docker-base-{release}-*.img"):
            old.unlink()
        maker = RealHost(self.site, 99)
        maker.power_on(tree, None)
        maker.wait_ready()
        maker.inside("docker", "pull", "-q", self.images[image.tag], timeout=120)
        maker.shell(
            "systemctl stop docker; cd /var/lib/docker; ls -A | grep -vxE 'image|overlay2|lost.found' | xargs rm -rf; sync",
            timeout=60,
        )
        maker.power_off()
        with base.cache_lock():
            partial = wanted.with_suffix(".partial")
            run("cp", "--sparse=always", maker.directory / "docker.img", partial)
            partial.rename(wanted)
        maker.remove()
        return wanted

    # --- what clients are given ------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """A file of the site: `known_hosts`, `ssh_config`, `inventory.yaml`."""
        return self.site.directory / name

    @property
    def key(self) -> Path:
        """The private key that every account accepts."""
        return self.site.directory / "keys" / "id_ed25519"

    @property
    def strange_key(self) -> Path:
        """A private key that nobody accepts."""
        return self.site.directory / "keys" / "id_stranger"

    def write_client_files(self) -> None:
        """`known_hosts`, `ssh_config` and `inventory.yaml` of the hosts as they are now."""
        known = []
        for host in self.hosts.values():
            kind, key = (host.directory / "seed/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2]
            known.append(f"{host.address} {kind} {key}\n")
        self.path("known_hosts").write_text("".join(known))
        stanzas = [f"Host {host.name}\n  HostName {host.address}\n" for host in self.hosts.values()]
        common = (
            f"Host *\n  User ops\n  IdentityFile {self.key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.path('known_hosts')}\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 10\n  LogLevel ERROR\n"
            # Debian 12's client spends 0.1 s of a core on the post-quantum exchange; the tests have two cores.
            "  KexAlgorithms curve25519-sha256\n"
        )
        self.path("ssh_config").write_text("".join(stanzas) + common)
        self.path("inventory.yaml").write_text(self.inventory())

    def inventory(self, *, user: str = "ops", names: Sequence[str] | None = None, extra: str = "") -> str:
        """The text of an inventory of some or all hosts for one account; `extra` goes below `defaults`."""
        chosen = [self.hosts[name] for name in names] if names is not None else list(self.hosts.values())
        lines = [
            "version: 1",
            "defaults:",
            f"  user: {user}",
            f"  identity_file: {self.key}",
            f"  known_hosts: {self.path('known_hosts')}",
            f"{extra}hosts:",
            *(f"  {host.name}:\n    address: {host.address}" for host in chosen),
        ]
        return "\n".join(lines) + "\n"

    def ssh(
        self,
        host: RealHost | str,
        command: str,
        *,
        user: str = "ops",
        check: bool = True,
        timeout: float = 30,
    ) -> str:
        """Run a command by plain OpenSSH, never through gpufleet; returns what it printed."""
        name = host if isinstance(host, str) else host.name
        return self.ssh_answer(name, command, user=user, check=check, timeout=timeout).stdout

    def ssh_answer(
        self, host: str, command: str, *, user: str = "ops", check: bool = False, timeout: float = 30
    ) -> subprocess.CompletedProcess[str]:
        """As `ssh`, with exit status and both streams."""
        return run(
            "ssh", "-F", self.path("ssh_config"), "-l", user, host, command, check=check, timeout=timeout
        )


def sweep(site: Site) -> None:
    """End and remove everything of a site, also after the session that made it was killed.

    Processes are known by recorded number and start time and by membership in the site's control groups, never by
    name; namespaces, cables and the bridge by names that only this site uses.
    """
    hosts = [
        _host_of(site, record.parent.name) for record in (site.directory / "hosts").glob("*/process.json")
    ]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(_power_off, hosts))
    cgroups.end_members(site.name)
    for namespace in Path("/run/netns").glob(f"{site.short}-*"):
        run("ip", "netns", "del", namespace.name, check=False)
    for link in [*Path("/sys/class/net").glob(f"{site.short}-*"), Path("/sys/class/net") / site.bridge]:
        if link.exists():
            run("ip", "link", "del", link.name, check=False)
    rule = [word.format(bridge=site.bridge) for word in FIREWALL]
    while run("iptables", "-D", *rule, check=False).returncode == 0:
        continue
    cgroups.remove(site.name)
    reap()
    until(lambda: not loop_devices(site.directory), within=20, what=f"disks of {site.name} are released")
    shutil.rmtree(site.directory, ignore_errors=True)


def _power_off(host: RealHost) -> None:
    with contextlib.suppress(TimeoutError):  # what is left of it is found by its control group
        host.power_off()


def _host_of(site: Site, name: str) -> RealHost:
    return RealHost(site, 0 if name == "registry" else int(name.removeprefix("h")))


def leftovers(site: Site) -> list[str]:
    """Everything of a site that is still on the machine; empty after `down`."""
    found = [f"process {pid}" for pid in cgroups.members(site.name)]
    found += [f"control group {tree / site.name}" for tree in cgroups.trees() if (tree / site.name).exists()]
    found += [f"namespace {path.name}" for path in Path("/run/netns").glob(f"{site.short}-*")]
    found += [f"link {path.name}" for path in Path("/sys/class/net").glob(f"{site.short}*")]
    found += [f"loop device {line}" for line in loop_devices(site.directory)]
    found += [
        f"mount {line}"
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if str(site.directory) in line
    ]
    found += [f"directory {site.directory}"] if site.directory.exists() else []
    rules = run("iptables", "-S", "FORWARD", check=False).stdout
    found += [f"firewall rule {line}" for line in rules.splitlines() if site.bridge in line]
    return found


@contextmanager
def only_one(site: Site) -> Iterator[None]:
    """Hold the machine-wide right to this site; the kernel gives it back when the holder dies."""
    path = Path("/run/lock") if Path("/run/lock").is_dir() else Path("/tmp")
    with (path / f"{site.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def main(words: Sequence[str]) -> None:
    """`up [HOSTS]` keeps a fleet running until interrupted; `down` removes whatever is left of one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    verb = words[0] if words else "up"
    network, _, name = os.environ.get("GPUFLEET_REAL_SITE", "10.77.0/gpufleet-real").partition("/")
    short = "gfreal" if name == "gpufleet-real" else "gfmore"
    site = Site(name=name, short=short, network=network, directory=Path("/var/lib") / name)
    with only_one(site):
        fleet = Fleet(site)
        sweep(site)
        if verb == "down":
            return
        try:
            fleet.up(int(words[1]) if len(words) > 1 else 3, images="--bare" not in words)
            print(
                f"up in {sum(fleet.took.values()):.1f} s: {fleet.took}\nssh -F {fleet.path('ssh_config')} h1",
                flush=True,
            )
            signal.pause()
        finally:
            fleet.down()


if __name__ == "__main__":
    main(sys.argv[1:])
