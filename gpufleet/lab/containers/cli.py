"""`docker` and `podman` as programs of a simulated host: words in, the engine's texts and exit statuses out."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import urlsplit

import msgspec

from gpufleet.lab.containers.archives import ARCHIVES
from gpufleet.lab.containers.call import Invocation, Verb
from gpufleet.lab.containers.looks import LOOKS
from gpufleet.lab.containers.model import SOCKET, Container, Daemon, Policy, Refused, full_reference
from gpufleet.lab.containers.simcontainer import ContainerEngine
from gpufleet.lab.containers.words import read_words, wish_of
from gpufleet.lab.shell.call import Call, Program
from gpufleet.lab.shell.streams import unicode_text
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.simfs import FsError


def container_program(engine: ContainerEngine) -> Program:
    """The program of an engine."""

    def program(call: Call) -> int:
        words = [unicode_text(word) for word in call.arguments]
        if words[:1] in (["--version"], ["-v"]):
            call.say(f"{engine.kind.title()} version {engine.version}, build lab")
            return 0
        name = words.pop(0) if words else ""
        if name in {"container", "image", "system", "context"} and words:
            name = f"{name} {words.pop(0)}"
        verb = _VERBS.get(name.removeprefix("container "))
        if verb is None:
            raise Unsupported(f"{engine.kind} {name}")
        invocation = Invocation(call, engine, words)
        if engine.kind == "docker":
            trouble = _reach(invocation, name)
            if trouble is not None:
                return trouble
        try:
            engine.settle()
            return verb(invocation)
        except Refused as refused:
            return invocation.refuse(refused)

    return program


def _reach(invocation: Invocation, name: str) -> int | None:
    """Whether the daemon can be talked to; its refusals."""
    call, engine = invocation.call, invocation.engine
    starts = name in {"run", "create"}
    prefix = "docker: " if starts else ""
    user = call.host.users[call.user]
    text = ""
    if call.user != "root" and "docker" not in user.groups:
        api = "1.45" if engine.major > 20 else "1.24"
        text = (
            "permission denied while trying to connect to the Docker daemon socket at "
            f'unix://{SOCKET}: Get "http://%2Fvar%2Frun%2Fdocker.sock/v{api}/containers/json": '
            f"dial unix {SOCKET}: connect: permission denied"
        )
    elif engine.daemon is Daemon.STOPPED:
        text = f"Cannot connect to the Docker daemon at unix://{SOCKET}. Is the docker daemon running?"
    elif engine.daemon is Daemon.HUNG:
        call.pause(float("inf"))
    if not text:
        return None
    if name == "info" and any("json" in word for word in invocation.words):
        invocation.say(json.dumps({"ServerErrors": [text], "ServerVersion": ""}))
        return 1
    tail = ".\nSee 'docker run --help'." if starts else ""
    return invocation.complain(f"{prefix}{text}{tail}", 125 if starts else 1)


def _create(invocation: Invocation, *, start: bool = False) -> int:
    """`create` and `run -d`: the id on standard output even when the start then fails, as docker does."""
    engine, call = invocation.engine, invocation.call
    prefix, tail = "docker: Error response from daemon: ", "\nSee 'docker run --help'."
    try:
        wish, words = wish_of(
            invocation.words, lambda path: _env_file(call, path), podman=engine.kind == "podman"
        )
    except Refused as refused:
        if engine.kind == "podman":
            return invocation.refuse(refused)
        return invocation.complain(f"docker: {refused.text}{tail}", refused.status)
    wish = replace(wish, command=(engine.kind, "run" if start else "create", *invocation.words))
    if start and not {"d", "detach"} & words.flags:
        raise Unsupported(f"{engine.kind} run without -d")
    if wish.cdi and engine.kind == "docker" and engine.major < 25:
        return invocation.complain(
            f"docker: nvidia.com/gpu={wish.cdi[0]} is not an absolute path.{tail}", 125
        )
    container: Container | None = None
    try:
        if engine.image(wish.image) is None and words.last("pull") != "never":
            invocation.complain(f"Unable to find image '{full_reference(wish.image)}' locally")
            engine.pull(wish.image, call.pause)
        container = engine.create(wish)
        if start:
            engine.start(container)
    except Refused as refused:
        if container is not None:
            invocation.say(container.id)
        if engine.kind == "podman":
            return invocation.refuse(refused)
        text = refused.text if refused.text.endswith(".") else f"{refused.text}."
        return invocation.complain(f"{prefix}{text}{tail}", refused.status if refused.status != 1 else 125)
    invocation.say(container.id)
    return 0


def _run(invocation: Invocation) -> int:
    return _create(invocation, start=True)


def _env_file(call: Call, path: str) -> str:
    try:
        return unicode_text(call.host.fs.read(call.host.fs_path(path, call.cwd), call.user).decode("latin-1"))
    except FsError:
        raise Refused(f"open {path}: no such file or directory.", 125) from None


def _start(invocation: Invocation) -> int:
    return invocation.each(invocation.read("a", "").operands, invocation.engine.start)


def _stop(invocation: Invocation) -> int:
    words = invocation.read("", "t time timeout signal")
    given = words.last("t") or words.last("time") or words.last("timeout")

    def stop(container: Container) -> None:
        _wait_to_end(invocation, container, given)
        invocation.engine.stop(container)

    return invocation.each(words.operands, stop)


def _wait_to_end(invocation: Invocation, container: Container, given: str) -> None:
    """A process that ignores SIGTERM holds `stop` until the grace is over."""
    if container.running and invocation.engine.stubborn:
        grace = float(given) if given else float(container.wish.stop_timeout or 10)
        invocation.call.pause(grace)


def _restart(invocation: Invocation) -> int:
    words = invocation.read("", "t time timeout")

    def restart(container: Container) -> None:
        invocation.engine.stop(container)
        invocation.engine.start(container)

    return invocation.each(words.operands, restart)


def _kill(invocation: Invocation) -> int:
    return invocation.each(invocation.read("", "s signal").operands, invocation.engine.kill)


def _rm(invocation: Invocation) -> int:
    words = invocation.read("f force v volumes", "")
    force = bool({"f", "force"} & words.flags)
    if force and invocation.engine.kind == "podman":  # it says nothing of one that is not there
        words.operands = [name for name in words.operands if invocation.engine.knows(name)]
    status = invocation.each(words.operands, lambda one: invocation.engine.remove(one, force=force))
    if force and status:
        # Docker before 23 fails for one that is not there, later versions only say so.
        return status if invocation.engine.major < 23 else 0
    return status


def _rename(invocation: Invocation) -> int:
    old, new = invocation.read("", "").operands
    invocation.engine.rename(invocation.engine.find(old), new)
    return 0


def _update(invocation: Invocation) -> int:
    if invocation.engine.kind == "podman" and invocation.engine.numbers < (5, 1):
        return invocation.complain("Error: unknown flag: --restart\nSee 'podman update --help'", 125)
    words = invocation.read("", "restart memory cpus")
    policy = Policy.parse(words.last("restart", "no"))
    return invocation.each(words.operands, lambda one: invocation.engine.update(one, policy))


def _pull(invocation: Invocation) -> int:
    words = invocation.read("q quiet", "platform")
    reference = words.operands[0]
    image = invocation.engine.pull(reference, invocation.call.pause_first)
    if not {"q", "quiet"} & words.flags:
        invocation.say(f"{image.reference.rpartition(':')[2]}: Pulling from library", f"Digest: {image.id}")
    invocation.say(
        f"docker.io/{image.reference}" if "/" in reference else f"docker.io/library/{image.reference}"
    )
    return 0


def _buildx(invocation: Invocation) -> int:
    """`buildx imagetools inspect`: what a registry says of a tag, where the plug-in is installed."""
    if not invocation.engine.registry.asked_by_plugin:
        return invocation.complain("docker: 'buildx' is not a docker command.\nSee 'docker --help'")
    words = read_words(invocation.words, [], ["format"])
    reference = full_reference(words.operands[-1])
    invocation.engine.registry.size(reference)
    invocation.say(json.dumps({"schemaVersion": 2, "digest": invocation.engine.registry.digest(reference)}))
    return 0


def _exec(invocation: Invocation) -> int:
    words = read_words(invocation.words, ["i", "t", "it", "d"], ["u", "user", "e", "env", "w"], stop=True)
    container = invocation.engine.find(words.operands[0])
    if not container.running:
        raise Refused(f"container {container.id} is not running")
    program, *arguments = words.operands[1:]
    if program in {"true", "ls", "id"}:
        return 0
    if program == "nvidia-smi":
        return _exec_smi(invocation, container, arguments)
    if program.startswith("python3") and arguments[:1] == ["-c"] and "urllib.request" in arguments[1]:
        return _exec_request(invocation, container, arguments[2:])
    raise Unsupported(f"{invocation.engine.kind} exec {program}")


def _exec_smi(invocation: Invocation, container: Container, arguments: list[str]) -> int:
    """nvidia-smi inside: the toolkit puts it there together with the GPUs, and only those are listed."""
    call, engine = invocation.call, invocation.engine
    devices = {*container.wish.devices, *container.wish.cdi}
    if container.wish.gpu_count:
        count = container.wish.gpu_count
        devices |= {"all"} if count < 0 else {str(at) for at in range(count)}
    if not devices or engine.smi_inside is None:
        return invocation.complain(
            'OCI runtime exec failed: exec failed: unable to start container process: exec: "nvidia-smi": '
            "executable file not found in $PATH: unknown",
            126 if engine.major < 23 else 127,
        )
    if container.handles_lost:
        call.say("Failed to initialize NVML: Unknown Error")
        return 255
    return engine.smi_inside(frozenset(devices))(replace(call, argv=["nvidia-smi", *arguments]))


def _silence(body: bytes) -> bytes:
    """The form that the look's Python makes of the name of a model: that name, and a second without a sound."""
    model = str(msgspec.json.decode(body)["model"]).encode()
    part = b"--part\r\nContent-Disposition: form-data; name="
    sound = b"RIFF" + bytes(32_040)
    return (
        part + b'"model"\r\n\r\n' + model + b"\r\n" + part + b'"file"; filename="silence.wav"\r\n'
        b"Content-Type: audio/wav\r\n\r\n" + sound + b"\r\n--part--\r\n"
    )


def _exec_request(invocation: Invocation, container: Container, arguments: list[str]) -> int:
    """Python inside the container asks its engine: key on standard input, address and body as arguments."""
    call = invocation.call
    url, body = urlsplit(arguments[0]), (arguments[1] if len(arguments) > 1 else "").encode()
    headers = {"authorization": f"Bearer {call.stdin.rest()}", "content-type": "application/json"}
    if url.path == "/v1/audio/transcriptions":
        headers["content-type"], body = "multipart/form-data; boundary=part", _silence(body)
    try:
        status, _, chunks = invocation.engine.engines.http(
            container.id, "POST" if body else "GET", url.path, headers, body, sleep=call.pause
        )
        content = b"".join(chunks)
        sound = status == 200 and url.path == "/v1/audio/speech"
        text = f'{{"bytes": {len(content)}}}' if sound else content.decode("latin-1")
    except (ConnectionRefusedError, ConnectionResetError):
        status, text = 0, ""
    call.out.write(f"{text}\nstatus {status:03d}\n")
    return 0


_VERBS: dict[str, Verb] = {
    **LOOKS,
    **ARCHIVES,
    "create": _create,
    "run": _run,
    "start": _start,
    "stop": _stop,
    "restart": _restart,
    "kill": _kill,
    "rm": _rm,
    "rename": _rename,
    "update": _update,
    "pull": _pull,
    "image pull": _pull,
    "buildx": _buildx,
    "exec": _exec,
}
