"""`save`, `load` and `rmi`: images as archives, and their end; and what a daemon says of its registry.

An archive here is a few hundred bytes, whatever the image's size: the two documents of the real form, and the size
that the image has. Its last line is a checksum, so that a byte that flipped on the way is noticed as tar notices it.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256

from gpufleet.lab.containers.call import Invocation, Verb
from gpufleet.lab.containers.model import Daemon, Image, Refused, full_reference
from gpufleet.lab.containers.simcontainer import ContainerEngine

_DISK = "/var/lib/docker"


def archive_of(image: Image) -> str:
    """What `save` writes."""
    tags = [] if "@" in image.reference or image.reference == image.id else [image.reference]
    head = json.dumps(
        [{"Config": f"{image.id.removeprefix('sha256:')}.json", "RepoTags": tags, "Layers": ["layer.tar"]}],
        separators=(",", ":"),
    )
    body = f"manifest.json {head}\nlayer.tar {image.size} {image.id * 20}\n"
    return f"{body}{sha256(body.encode()).hexdigest()}\n"


def _save(invocation: Invocation) -> int:
    words = invocation.read("q quiet", "o output format")
    image = invocation.engine.image(words.operands[0])
    if image is None:
        if invocation.engine.kind == "podman":
            return invocation.complain(f"Error: {words.operands[0]}: image not known", 125)
        return invocation.complain(
            f"Error response from daemon: reference does not exist: {words.operands[0]}"
        )
    if path := words.last("o") or words.last("output"):
        call = invocation.call
        call.host.fs.write(call.host.fs_path(path, call.cwd), archive_of(image).encode(), call.user)
    else:
        invocation.call.out.write(archive_of(image))
    return 0


def _load(invocation: Invocation) -> int:
    words = invocation.read("q quiet", "i input")
    call, engine = invocation.call, invocation.engine
    path = words.last("i") or words.last("input")
    text = (
        call.host.fs.read(call.host.fs_path(path, "/"), call.user).decode("latin-1")
        if path
        else call.stdin.rest()
    )
    if engine.host.fs.disk_of(_DISK).full:
        old = "Error processing tar file(exit status 1): " if engine.major < 23 else ""
        return invocation.complain(f"{old}write /layer1.tar: no space left on device")
    found = re.search(r'"Config":"([0-9a-f]+)\.json"', text)
    size = re.search(r"^layer\.tar (\d+) ", text, re.MULTILINE)
    body, _, digest = text.rstrip("\n").rpartition("\n")
    if found is None or size is None or sha256(f"{body}\n".encode("latin-1")).hexdigest() != digest:
        return invocation.complain("unexpected EOF" if found else "invalid tar header")
    tag = re.search(r'"RepoTags":\["([^"]+)"\]', text)
    name, identity = tag.group(1) if tag else "", f"sha256:{found.group(1)}"
    _keep(engine, name, identity, int(size.group(1)))
    invocation.say(f"Loaded image: {name}" if name else f"Loaded image ID: {identity}")
    return 0


def _keep(engine: ContainerEngine, reference: str, identity: str, size: int) -> None:
    """Its content, and so its id, is the archive's; no registry's digest comes along."""
    wanted = full_reference(reference) if reference else identity
    known = engine.images.get(wanted)
    digests = known.digests if known is not None and known.id == identity else ()
    engine.keep(Image(id=identity, reference=wanted, size=size, digests=digests))


def registry_answer(engine: ContainerEngine, path: str) -> tuple[int, bytes]:
    """One GET at the daemon's socket: what its registry says of an image; status 0 when nobody listens."""
    if engine.daemon is not Daemon.RUNNING:
        return 0, b""
    wanted = full_reference(path.removeprefix("/distribution/").removesuffix("/json"))
    try:
        engine.registry.size(wanted, engine.host.name)
    except Refused as refused:
        status = 404 if "manifest unknown" in refused.text else 403 if "denied" in refused.text else 500
        return status, json.dumps({"message": refused.text}).encode()
    told = {"Descriptor": {"digest": engine.registry.digest(wanted)}, "Platforms": []}
    return 200, json.dumps(told).encode()


def _rmi(invocation: Invocation) -> int:
    words = invocation.read("f force", "")
    engine = invocation.engine
    for name in words.operands:
        image = engine.image(name)
        if image is None:
            raise Refused(f"No such image: {full_reference(name)}")
        user = next(
            (one for one in engine.containers.values() if engine.image(one.wish.image) == image), None
        )
        if user is not None and not {"f", "force"} & words.flags:
            how = "running" if user.running else "stopped"
            raise Refused(
                f"conflict: unable to delete {image.id[7:19]} (must be forced) - image is being used by {how} container "
                f"{user.id[:12]}"
            )
        del engine.images[image.reference]
        engine.host.fs.charge(_DISK, -image.size)
        invocation.say(f"Untagged: {image.reference}", f"Deleted: {image.id}")
    return 0


def _context(invocation: Invocation) -> int:
    words = invocation.read("", "f format")
    if invocation.engine.kind == "podman":
        return invocation.complain("Error: unrecognized command `podman context`", 125)
    facts = {"Name": "default", "Endpoints": {"docker": {"Host": "unix:///var/run/docker.sock"}}}
    return invocation.print_as(words.last("format") or words.last("f") or "{{json .}}", [facts])


ARCHIVES: dict[str, Verb] = {
    "save": _save,
    "image save": _save,
    "load": _load,
    "image load": _load,
    "rmi": _rmi,
    "image rm": _rmi,
    "context inspect": _context,
}
