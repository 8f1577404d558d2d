"""A container engine as a state machine: images, containers, ports, restart policies. Pure; docker and podman.

Theory of operation. Containers change in three ways: by a command, by their own process ending, and by the power
of the host or of the daemon. The second kind is noticed in `settle`, which every command calls first: whoever
looks sees the world as it would have become. Texts and exit statuses of refusals are those that Docker 20.10 and
26.1 print; they differ only where said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256

from gpufleet.engine.flags import release_of
from gpufleet.lab.containers.checks import check_devices, check_limits, check_ports, check_program
from gpufleet.lab.containers.model import (
    Container,
    Daemon,
    Image,
    Policy,
    Refused,
    Registry,
    Setup,
    Wish,
    full_reference,
)
from gpufleet.lab.containers.pulls import Pulls
from gpufleet.lab.shell.call import Program
from gpufleet.lab.simhost import EngineHost, Listener, SimHost
from gpufleet.lab.vllm.spec import LAB_VARIABLE


class ContainerEngine:
    """dockerd or podman of one host."""

    def __init__(
        self,
        host: SimHost,
        engines: EngineHost,
        registry: Registry,
        *,
        kind: str = "docker",
        version: str = "26.1.5",
        gpus: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.host = host
        self.engines = engines
        self.registry = registry
        self.kind = kind
        self.version = version
        self.gpus = gpus
        """Ids that may be given to containers (UUIDs and indexes of GPUs and slices)."""
        self.smi_inside: Callable[[frozenset[str]], Program] | None = None
        """nvidia-smi as a container with these devices has it; None where there is no GPU."""
        self.cdi: Callable[[], Iterable[str]] = tuple
        """Names that the CDI specifications give."""
        self.nodes: Callable[[Container], list[str]] = lambda _container: []
        """Device files that the process of a container has open."""
        self.gpu_hook = True
        """Whether the toolkit's hook is there, so that `--gpus` works."""
        self.daemon, self.setup = Daemon.RUNNING, Setup()
        self.stubborn = False
        """Whether processes in containers ignore SIGTERM."""
        self.images: dict[str, Image] = {}
        self.pulls = Pulls(host)
        self.containers: dict[str, Container] = {}
        self._stamps: dict[str, list[str]] = {}
        self.launch_words: dict[str, str] = {}
        """Variables that every engine of this host gets on top, for faults of engines."""
        host.on_boot.append(self.boot)
        host.on_service.setdefault("docker", []).append(self._service)

    @property
    def major(self) -> int:
        """First number of the version."""
        return self.numbers[0]

    @property
    def numbers(self) -> tuple[int, int]:
        """First and second number of the version."""
        first, _, rest = self.version.partition(".")
        return int(first), int(rest.partition(".")[0] or 0)

    # -- looking -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let processes that have ended be seen, and restarted where the policy says so."""
        for container in list(self.containers.values()):
            if not container.running:
                continue
            code = self.engines.alive(container.id)
            if code is not None:
                self._ended(container, code)

    def _ended(self, container: Container, code: int) -> None:
        container.status, container.exit_code = "exited", code
        container.out_of_memory = code == 137
        container.finished = self.host.clock.now()
        self._release(container)
        policy = container.policy
        again = policy.name in {"always", "unless-stopped"} or (policy.name == "on-failure" and code != 0)
        if (
            again
            and self.daemon is Daemon.RUNNING
            and (not policy.limit or container.restarts < policy.limit)
        ):
            container.restarts += 1
            self._launch(container)
        elif container.wish.auto_remove:
            del self.containers[container.id]

    def find(self, word: str) -> Container:
        """By name, id, or the beginning of an id."""
        self.settle()
        for container in self.containers.values():
            if word in {container.name, container.id, f"/{container.name}"}:
                return container
        hits = [container for container in self.containers.values() if word and container.id.startswith(word)]
        if len(hits) != 1:
            raise Refused(f"No such container: {word}")
        return hits[0]

    def knows(self, word: str) -> bool:
        """Whether `find` finds it."""
        try:
            self.find(word)
        except Refused:
            return False
        return True

    def image(self, reference: str) -> Image | None:
        """By reference, id or the beginning of an id."""
        found = self.images.get(full_reference(reference))
        if found is not None:
            return found
        repository, by_digest, digest = reference.partition("@")
        for image in self.images.values():
            if by_digest and digest in image.digests and image.reference.rpartition(":")[0] == repository:
                return image
        bare = reference.removeprefix("sha256:")
        for image in self.images.values():
            if len(bare) >= 12 and image.id.removeprefix("sha256:").startswith(bare):
                return image
        return None

    # -- images --------------------------------------------------------------------------------------------------

    def pull(self, reference: str, pause: Callable[[float], None]) -> Image:
        """Fetch an image; takes the registry's time."""
        wanted = full_reference(reference)
        size = self.registry.size(wanted, self.host.name)
        self.pulls.wait(wanted, size, self.registry.seconds, pause)
        if self.host.fs.disk_of("/var/lib/docker").full:
            raise Refused("write /var/lib/docker/tmp/GetImageBlob804231: no space left on device")
        return self.add_image(wanted, size)

    def add_image(self, reference: str, size: int = 1 << 30) -> Image:
        """Put an image on the host."""
        wanted = full_reference(reference)
        digest = self.registry.digest(wanted)
        return self.keep(Image(id=digest, reference=wanted, size=size, digests=(digest,)))

    def keep(self, image: Image) -> Image:
        """Put an image as it is on the host."""
        if image.reference not in self.images:
            self.host.fs.charge("/var/lib/docker", image.size)
        self.images[image.reference] = image
        return image

    # -- containers ----------------------------------------------------------------------------------------------

    def create(self, wish: Wish) -> Container:
        """A container that is not started."""
        image = self.image(wish.image)
        if image is None:
            raise Refused(f"No such image: {full_reference(wish.image)}", 125)
        taken = next((c for c in self.containers.values() if wish.name and c.name == wish.name), None)
        if taken is not None:
            raise Refused(
                f'Conflict. The container name "/{wish.name}" is already in use by container "{taken.id}". '
                "You have to remove (or rename) that container to be able to reuse that name.",
                125,
            )
        if wish.memory and wish.memory < 6 << 20:
            raise Refused("Minimum memory limit allowed is 6MB.", 125)
        serial = self.host.serial()
        identity = sha256(f"{self.host.name}/{serial}".encode()).hexdigest()
        if self.host.fs.disk_of("/var/lib/docker").full:
            raise Refused(
                f"write /var/lib/docker/overlay2/{identity[::-1]}-init/merged/etc/hosts: no space left on device",
                125,
            )
        container = Container(
            id=identity,
            wish=wish,
            image_id=image.id,
            created=self.host.clock.now(),
            policy=wish.policy,
            name=wish.name or f"lab_{serial}",
        )
        self.containers[identity] = container
        return container

    def start(self, container: Container) -> None:
        """Start it; a refusal leaves it `created` or `exited`."""
        if container.running:
            return
        container.by_hand = False
        container.restarts = 0
        try:
            check_devices(self, container)
            check_limits(self, container)
            check_program(container)
            check_ports(self.host, container)
        except Refused as refused:
            container.error = refused.text
            container.exit_code = 127 if refused.status == 127 else 128
            raise
        self._launch(container)

    def _launch(self, container: Container) -> None:
        wish = container.wish
        container.status, container.exit_code, container.error = "running", 0, ""
        container.started, container.finished, container.out_of_memory = self.host.clock.now(), None, False
        container.pid = self.host.spawn("root", "VLLM::EngineCore", self._group(container))
        self.host.hold_open(container.pid, self.nodes(container))
        bind = []
        for published in wish.published:
            self.host.listeners.append(Listener(published.address or "0.0.0.0", published.port, container.id))
            bind.append(f"{self.host.address}:{published.port}")
        if wish.network == "host":
            port = _flag(wish.arguments, "--port", "8000")
            self.host.listeners.append(
                Listener(_flag(wish.arguments, "--host", "0.0.0.0"), int(port), container.id)
            )
            bind.append(f"{self.host.address}:{port}")
        env = dict(entry.partition("=")[::2] for entry in wish.env) | self.launch_words
        image = self.image(wish.image)
        release = release_of(image.reference if image is not None else wish.image)
        if release is not None and release.patch is not None:  # the engine in the image is of that version
            env[LAB_VARIABLE] = f"version={release} {env.get(LAB_VARIABLE, '')}"
        self.engines.launch(
            container.id, (*(wish.entrypoint or ("vllm", "serve")), *wish.arguments), env, tuple(bind)
        )

    def _group(self, container: Container) -> str:
        """The control group of its process, in which every runtime puts the full id."""
        slice_, prefix = ("machine", "libpod") if self.kind == "podman" else ("system", self.kind)
        return f"/{slice_}.slice/{prefix}-{container.id}.scope"

    def _release(self, container: Container) -> None:
        """Give back what a process held."""
        self.host.listeners = [one for one in self.host.listeners if one.container != container.id]
        self.host.finish(container.pid)
        container.pid = 0

    def _halt(self, container: Container, code: int) -> None:
        if container.running:
            self.engines.end(container.id)
            container.status, container.exit_code = "exited", code
            container.finished = self.host.clock.now()
            self._release(container)

    def stop(self, container: Container) -> None:
        """`stop`: the policy does not bring it back until somebody starts it."""
        container.by_hand = True
        self._halt(container, 0)
        if container.wish.auto_remove:
            self.containers.pop(container.id, None)

    def kill(self, container: Container) -> None:
        """`kill`."""
        if not container.running:
            raise Refused(f"Cannot kill container: {container.id}: container {container.id} is not running")
        container.by_hand = True
        self._halt(container, 137)

    def remove(self, container: Container, *, force: bool) -> None:
        """`rm`."""
        if container.running and not force:
            raise Refused(
                f'cannot remove container "/{container.name}": container is running: stop the container before '
                "removing or force remove"
            )
        self._halt(container, 137)
        self.containers.pop(container.id, None)

    def rename(self, container: Container, name: str) -> None:
        """`rename`."""
        taken = next((c for c in self.containers.values() if c.name == name), None)
        if taken is not None:
            raise Refused(
                f'Error when allocating new name: Conflict. The container name "/{name}" is already in use by container '
                f'"{taken.id}". You have to remove (or rename) that container to be able to reuse that name.'
            )
        container.name = name

    def logs(self, container: Container) -> str:
        """What its process printed."""
        return self.engines.logs(container.id)

    def stamped_logs(self, container: Container) -> list[tuple[str, str]]:
        """Each line with the time at which the daemon had it: here, when somebody first looked."""
        lines = self.logs(container).splitlines(keepends=True)
        stamps = self._stamps.setdefault(container.id, [])
        if len(lines) < len(stamps):  # it was launched anew
            stamps.clear()
        now = self.host.clock.now()
        for number in range(len(stamps), len(lines)):
            stamps.append(f"{now + timedelta(microseconds=number):%Y-%m-%dT%H:%M:%S.%f}000Z")
        return list(zip(stamps, lines, strict=True))

    # -- power ---------------------------------------------------------------------------------------------------

    def _service(self, active: bool, restarted: bool) -> None:  # noqa: FBT001  the shape of every service's listener
        if not active or restarted:
            self.stop_daemon()
        if active:
            self.start_daemon()

    def stop_daemon(self) -> None:
        """A clean stop: every container is stopped with it."""
        self.settle()
        self._remembered = {one.id for one in self.containers.values() if one.running}
        for container in self.containers.values():
            self._halt(container, 0)
        self.daemon = Daemon.STOPPED

    def kill_daemon(self) -> None:
        """`kill -9`: containers go on serving, nobody looks after them."""
        self.daemon = Daemon.STOPPED
        self._remembered = None

    _remembered: set[str] | None = None

    def start_daemon(self) -> None:
        """Start it: what comes back depends on how it ended."""
        if self.daemon is Daemon.HUNG:
            self.daemon = Daemon.RUNNING
        if self.daemon is Daemon.RUNNING:
            return
        killed = self._remembered is None
        self.daemon = Daemon.RUNNING
        for container in list(self.containers.values()):
            alive = container.running or container.id in (self._remembered or ())
            self._halt(container, 0)
            kept = (
                container.policy.name == "unless-stopped" and alive and not container.by_hand and not killed
            )
            if kept or _always(container):
                self._bring_back(container)

    def boot(self) -> None:
        """After a power cut and a start of the host."""
        self.daemon = Daemon.RUNNING
        for container in self.containers.values():
            was = container.running
            self._halt(container, 255)
            kept = was and container.policy.name != "no" and not container.by_hand
            if self.kind == "podman":  # it has no daemon; a service of systemd starts `always` alone
                kept = False
                if "podman-restart" not in self.host.services:
                    continue
            if kept or _always(container):
                self._bring_back(container)

    def _bring_back(self, container: Container) -> None:
        """Start it without anybody there to be told why not."""
        try:
            check_devices(self, container)
            check_ports(self.host, container)
        except Refused as refused:
            container.error, container.exit_code = refused.text, 128
        else:
            self._launch(container)

    def update(self, container: Container, policy: Policy) -> None:
        """`update --restart`."""
        if container.wish.auto_remove and policy.name != "no":
            raise Refused(
                "Cannot update container: Restart policy cannot be updated because AutoRemove is enabled for the container"
            )
        container.policy = policy
        container.wish = replace(container.wish, policy=policy)


def _always(container: Container) -> bool:
    """`always` comes back whenever the daemon starts, also when somebody had stopped it."""
    return container.policy.name == "always" and container.started is not None


def _flag(words: tuple[str, ...], flag: str, default: str) -> str:
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return default
