"""`curl` to ports of the same host; nothing else can be reached from a simulated host."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from gpufleet.lab.shell.call import Call, DeadlinePassed, Program
from gpufleet.lab.shell.options import Options, read_options
from gpufleet.lab.shell.printf import escapes
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.simfs import FsError
from gpufleet.lab.simhost import EngineHost

_LONG = {
    "silent": "s", "show-error": "S", "fail": "f", "output": "o", "write-out": "w", "max-time": "m", "request": "X",
    "header": "H", "data": "d", "data-binary": "d", "config": "K", "no-buffer": "N", "connect-timeout": "c",
    "location": "L", "noproxy": "x", "globoff": "g",
}  # fmt: skip


def curl_program(engines: EngineHost) -> Program:
    """Curl on a host whose containers are run by `engines`."""
    return lambda call: _curl(call, engines)


def _curl(call: Call, engines: EngineHost) -> int:
    options = read_options(call, "sSfNLg", "owmXHdKcx", words=_LONG)
    headers, method, body = _request(call, options)
    if len(options.operands) != 1:
        return call.complain("curl: (2) no URL specified", 2)
    url = urlsplit(options.operands[0] if "://" in options.operands[0] else f"http://{options.operands[0]}")
    if url.scheme != "http":
        raise Unsupported(f"curl {url.scheme}")
    port = url.port or 80
    listener = call.host.listener(port, url.hostname or "")
    local = url.hostname in {"127.0.0.1", "localhost", call.host.address, "::1"}
    if listener is None or not local:
        return _failed(
            call, options, 7, f"Failed to connect to {url.hostname} port {port}: Connection refused"
        )
    if not listener.container:
        return _failed(call, options, 52, "Empty reply from server")
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    limit = call.shell.shared.elapsed + float(options.last("m", "inf"))
    deadlines = call.shell.shared.deadlines
    deadlines.append(limit)
    try:
        status, _, chunks = engines.http(listener.container, method, path, headers, body, sleep=call.pause)
        content = b"".join(chunks).decode("latin-1")
    except (ConnectionRefusedError, ConnectionResetError):
        return _failed(call, options, 56, "Recv failure: Connection reset by peer")
    except DeadlinePassed as passed:
        if passed.at != limit:
            raise
        return _failed(call, options, 28, "Operation timed out")
    finally:
        deadlines.remove(limit)
    if "f" in options and status >= 400:
        return _failed(call, options, 22, f"The requested URL returned error: {status}", status)
    return _deliver(call, options, content, status)


def _request(call: Call, options: Options) -> tuple[dict[str, str], str, bytes]:
    lines = list(options.values.get("H", []))
    for name in options.values.get("K", []):
        if name != "-":
            raise Unsupported(f"curl -K {name}")
        for line in call.stdin.rest().split("\n"):
            found = re.fullmatch(r'\s*(header|-H)\s*[=:\s]\s*"((?:[^"\\]|\\.)*)"\s*', line)
            if found is None and line.strip() and not line.lstrip().startswith("#"):
                raise Unsupported(f"curl configuration {line!r}")
            if found is not None:
                lines.append(re.sub(r"\\(.)", r"\1", found[2]))
    headers = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    body = ""
    for data in options.values.get("d", []):
        body += call.stdin.rest() if data == "@-" else _file(call, data[1:]) if data.startswith("@") else data
    method = options.last("X") or ("POST" if "d" in options else "GET")
    return headers, method, body.encode("latin-1")


def _file(call: Call, name: str) -> str:
    try:
        return call.host.fs.read(call.host.fs_path(name, call.cwd), call.user).decode("latin-1")
    except FsError:
        return ""


def _failed(call: Call, options: Options, code: int, text: str, status: int = 0) -> int:
    if "s" not in options or "S" in options:
        call.complain(f"curl: ({code}) {text}")
    _write_out(call, options, status)
    return code


def _deliver(call: Call, options: Options, content: str, status: int) -> int:
    target = options.last("o")
    if not target:
        call.out.write(content)
    elif target != "/dev/null":
        path = call.host.fs_path(target, call.cwd)
        node = call.host.fs.open_write(path, call.user, append=False)
        call.host.fs.extend(path, node, content.encode("latin-1"))
    _write_out(call, options, status)
    return 0


def _write_out(call: Call, options: Options, status: int) -> None:
    template = options.last("w")
    if template:
        text = template.replace("%{http_code}", f"{status:03d}").replace("%{response_code}", f"{status:03d}")
        if "%{" in text:
            raise Unsupported(f"curl -w {template}")
        call.out.write(escapes(text))
