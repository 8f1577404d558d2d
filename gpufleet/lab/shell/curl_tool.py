"""`curl` on a simulated host: to its own ports, to other hosts of the lab, and to the sites that a lab has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from gpufleet.lab.network import Network, NoRoute
from gpufleet.lab.shell.call import Call, DeadlinePassed, Program
from gpufleet.lab.shell.options import Options, read_options
from gpufleet.lab.shell.printf import escapes
from gpufleet.lab.shell.syntax import Unsupported
from gpufleet.lab.simfs import File, FsError, Full

_LONG = {
    "silent": "s", "show-error": "S", "fail": "f", "output": "o", "write-out": "w", "max-time": "m", "request": "X",
    "header": "H", "data": "d", "data-binary": "d", "config": "K", "no-buffer": "N", "connect-timeout": "c",
    "location": "L", "noproxy": "x", "globoff": "g", "disable": "q", "head": "I", "continue-at": "C",
    "speed-limit": "y", "speed-time": "Y", "unix-socket": "U",
}  # fmt: skip
_LINE = re.compile(r'\s*(header|-H|url|noproxy)\s*[=:\s]\s*"((?:[^"\\]|\\.)*)"\s*')


@dataclass(slots=True)
class _Request:
    """What is asked, and of whom."""

    url: str
    method: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(slots=True)
class _Answer:
    """What came, and how it ended: `code` is curl's exit status."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    code: int = 0
    text: str = ""


def curl_program(network: Network) -> Program:
    """Curl on a host of `network`."""
    return lambda call: _curl(call, network)


def _curl(call: Call, network: Network) -> int:
    options = read_options(call, "sSfNLgqI", "owmXHdKcxCyYU", words=_LONG)
    request = _request(call, options)
    if not request.url:
        return call.complain("curl: (2) no URL specified", 2)
    offset = _offset(call, options)
    if offset:
        request.headers["Range"] = f"bytes={offset}-"
    limit = call.shell.shared.elapsed + float(options.last("m", "inf"))
    deadlines = call.shell.shared.deadlines
    deadlines.append(limit)
    try:
        answer = _asked_daemon(call, options, request) or _ask(
            call, network, request, float(options.last("Y", "inf"))
        )
    except DeadlinePassed as passed:
        if passed.at != limit:
            raise
        answer = _Answer(code=28, text="Operation timed out")
    finally:
        deadlines.remove(limit)
    if "f" in options and answer.status >= 400:
        answer.code, answer.content = 22, b""
        answer.text = f"The requested URL returned error: {answer.status}"
    elif offset and answer.status == 200:
        answer.code, answer.content = 33, b""
        answer.text = "HTTP server doesn't seem to support byte ranges. Cannot resume."
    return _deliver(call, options, request, answer, offset)


def _asked_daemon(call: Call, options: Options, request: _Request) -> _Answer | None:
    """What the daemon behind a socket answers; None when no socket is named."""
    path = options.last("U")
    if not path:
        return None
    ask = call.host.parts.get(f"socket {path}")
    user = call.host.users[call.user]
    if ask is None or not ({"root", "docker"} & {user.name, *user.groups}):
        return _Answer(code=7, text=f"Failed to connect to {urlsplit(request.url).hostname} port 80")
    status, content = ask(urlsplit(request.url).path)
    return (
        _Answer(status=status, content=content)
        if status
        else _Answer(code=7, text="Couldn't connect to server")
    )


def _ask(call: Call, network: Network, request: _Request, patience: float) -> _Answer:
    """`patience`: seconds without a byte after which it gives up."""
    url = urlsplit(request.url)
    port = url.port or (443 if url.scheme == "https" else 80)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    found = _Answer()
    try:
        reached = network.reach(call.host, url.hostname or "", port)
        found.status, found.headers, chunks = reached.ask(
            request.method, path, request.headers, request.body, sleep=call.pause
        )
        for chunk in chunks:
            found.content += chunk
        local = url.hostname in {"127.0.0.1", "localhost", call.host.address}
        if call.host.stalled and not (local and call.host.listener(port) is not None):
            found.content = found.content[: len(found.content) // 2]
            call.pause(patience)
            found.code, found.text = 28, "Operation too slow"
    except NoRoute as refused:
        found.code, found.text = refused.code, str(refused)
    except (ConnectionRefusedError, ConnectionResetError):
        found.code, found.text = 56, "Recv failure: Connection reset by peer"
        if found.status:
            found.code, found.text = 18, "transfer closed with outstanding read data remaining"
    return found


def _request(call: Call, options: Options) -> _Request:
    lines = list(options.values.get("H", []))
    urls = list(options.operands)
    for name in options.values.get("K", []):
        if name != "-":
            raise Unsupported(f"curl -K {name}")
        for line in call.stdin.rest().split("\n"):
            found = _LINE.fullmatch(line)
            if found is None and line.strip() and not line.lstrip().startswith("#"):
                raise Unsupported(f"curl configuration {line!r}")
            if found is not None and found[1] != "noproxy":
                (urls if found[1] == "url" else lines).append(re.sub(r"\\(.)", r"\1", found[2]))
    headers = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    body = ""
    for data in options.values.get("d", []):
        body += call.stdin.rest() if data == "@-" else _file(call, data[1:]) if data.startswith("@") else data
    method = options.last("X") or ("HEAD" if "I" in options else "POST" if "d" in options else "GET")
    url = urls[0] if len(urls) == 1 else ""
    url = url if "://" in url or not url else f"http://{url}"
    if url and urlsplit(url).scheme not in {"http", "https"}:
        raise Unsupported(f"curl {url}")
    return _Request(url, method, headers, body.encode("latin-1"))


def _offset(call: Call, options: Options) -> int:
    """Bytes of the output file that are there already, with `-C -`."""
    if options.last("C") != "-":
        return 0
    node = call.host.fs.seek(call.host.fs_path(options.last("o"), call.cwd), call.user)
    return len(node.read()) if isinstance(node, File) else 0


def _file(call: Call, name: str) -> str:
    try:
        return call.host.fs.read(call.host.fs_path(name, call.cwd), call.user).decode("latin-1")
    except FsError:
        return ""


def _deliver(call: Call, options: Options, request: _Request, answer: _Answer, offset: int) -> int:
    target = options.last("o")
    if answer.content and not target:
        call.out.write(answer.content.decode("latin-1"))
    elif answer.content and target != "/dev/null":
        path = call.host.fs_path(target, call.cwd)
        try:
            node = call.host.fs.open_write(path, call.user, append=bool(offset))
            call.host.fs.extend(path, node, answer.content)
        except Full:
            answer.code, answer.text = 23, "Failure writing output to destination"
        except FsError as refused:
            answer.code, answer.text = 23, f"Failed to open the file {target}: {refused}"
    if answer.code and ("s" not in options or "S" in options):
        call.complain(f"curl: ({answer.code}) {answer.text}")
    _write_out(call, options, request, answer)
    return answer.code


def _write_out(call: Call, options: Options, request: _Request, answer: _Answer) -> None:
    template = options.last("w")
    if not template:
        return
    location = {name.lower(): value for name, value in answer.headers.items()}.get("location", "")
    redirect = urljoin(request.url, location) if location and 300 <= answer.status < 400 else ""
    text = template.replace("%{redirect_url}", redirect)
    for name in ("http_code", "response_code"):
        text = text.replace(f"%{{{name}}}", f"{answer.status:03d}")
    if "%{" in text.replace(redirect, ""):
        raise Unsupported(f"curl -w {template}")
    call.out.write(escapes(text))
