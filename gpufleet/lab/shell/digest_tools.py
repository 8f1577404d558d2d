"""base64 and checksums."""

from __future__ import annotations

import base64
import binascii
import hashlib

from gpufleet.lab.shell.call import Call, Program
from gpufleet.lab.shell.options import read_options
from gpufleet.lab.shell.text_tools import inputs, lines_of


def _base64(call: Call) -> int:
    options = read_options(call, "d", "w", words={"decode": "d", "wrap": "w"})
    for _, content in inputs(call, options.operands):
        if content is None:
            return 1
        if "d" not in options:
            encoded = base64.b64encode(content.encode("latin-1")).decode()
            width = int(options.last("w", "76"))
            rows = [encoded[at : at + width] for at in range(0, len(encoded), width)] if width else [encoded]
            call.out.write("\n".join(rows) + ("\n" if width and encoded else ""))
            continue
        try:
            call.out.write(base64.b64decode(content.replace("\n", ""), validate=True).decode("latin-1"))
        except (binascii.Error, ValueError):
            return call.complain("base64: invalid input")
    return 0


def _digest(call: Call) -> int:
    options = read_options(call, "c", words={"check": "c", "status": "s", "quiet": "q"})
    algorithm = call.argv[0].rpartition("/")[2].removesuffix("sum")
    status = 0
    for name, content in inputs(call, options.operands):
        if content is None:
            status = 1
        elif "c" in options:
            status = _verify(call, content, algorithm) or status
        else:
            call.say(f"{hashlib.new(algorithm, content.encode('latin-1')).hexdigest()}  {name}")
    return status


def _verify(call: Call, content: str, algorithm: str) -> int:
    failed = 0
    for line in lines_of(content):
        wanted, _, name = line.partition("  ")
        for _, body in inputs(call, [name]):
            good = body is not None and hashlib.new(algorithm, body.encode("latin-1")).hexdigest() == wanted
            failed += not good
            call.say(f"{name}: {'OK' if good else 'FAILED' if body is not None else 'FAILED open or read'}")
    if failed:
        call.complain(f"{call.argv[0]}: WARNING: {failed} computed checksum did NOT match")
    return int(failed > 0)


DIGEST_TOOLS: dict[str, Program] = {
    "base64": _base64,
    "sha256sum": _digest,
    "sha1sum": _digest,
    "md5sum": _digest,
}
