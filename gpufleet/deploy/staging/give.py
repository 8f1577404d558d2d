"""A host that has the weights gives them to others: a short-lived container that serves one directory, read-only.

It runs from the engine's image, which is there anyway and has Python; nothing is installed. It listens on the
host's service address, answers only below a first part of the path that nobody can guess, and ends by itself. When it
does not start, or is not reached, whoever wanted from it asks the source instead: giving saves time, and nothing
depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.change.model import Check, Irreversible, Step
from gpufleet.deploy import commands
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.replicas import LABEL, url_of
from gpufleet.names import HostName, RunId, StepId
from gpufleet.redact import Secret

LIFE = 6 * 3600
"""Seconds after which a giver ends, whoever forgot it."""

VARIABLE = "GPUFLEET_GIVE"
INNER_PORT = 8000

PYTHON = """
import hmac, http.server, os, re, threading, urllib.parse

word = os.environ.pop("GPUFLEET_GIVE")
store = os.environ.get("GPUFLEET_STORE", "/store") + "/"

class Give(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def refuse(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        first, _, path = path[1:].partition("/")
        if not hmac.compare_digest(first.encode(), word.encode()) or {"", ".", ".."} & set(path.split("/")):
            return self.refuse(404)
        try:
            file = open(store + path, "rb")
        except OSError:
            return self.refuse(404)
        with file:
            size, start = os.fstat(file.fileno()).st_size, 0
            asked = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
            if asked:
                start = int(asked[1])
                if start >= size:
                    return self.refuse(416)
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(size - start))
            if asked:
                self.send_header("Content-Range", "bytes %d-%d/%d" % (start, size - 1, size))
            self.end_headers()
            if self.command == "GET":
                self.wfile.flush()
                self.connection.sendfile(file, start)

    do_HEAD = do_GET

def end():
    os._exit(0)

timer = threading.Timer(float(os.environ.get("GPUFLEET_LIFE", "21600")), end)
timer.daemon = True
timer.start()
http.server.ThreadingHTTPServer.daemon_threads = True
http.server.ThreadingHTTPServer(("0.0.0.0", int(os.environ.get("GPUFLEET_PORT", "8000"))), Give).serve_forever()
"""

START = commands.START.replace('exit "$status"', "exit 0")
"""A giver that does not start fails nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where one host would give: its runtime, the address it binds to, the address others use, and a free port."""

    dialect: Dialect
    bind: str
    reached_at: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Giving:
    """What givers need.

    Attributes:
        image: has Python; the runtime brings it where it is not there yet.
        word: first part of the path; journalled as its reference.
        spots: hosts that may give.
    """

    image: str
    word: Secret[str]
    spots: Mapping[HostName, Spot]

    def base(self, host: HostName) -> Secret[str]:
        """Where others fetch from this host."""
        url = url_of(self.spots[host].reached_at, self.spots[host].port)
        return Secret(f"{url}/{self.word.reveal()}", reference=f"{url}/{self.word.reference}")

    def begin(self, host: HostName, path: str, run: RunId, after: frozenset[StepId], what: str = "") -> Step:
        """Start the giver; undoing it removes it. `what` tells the givers of one host apart."""
        spot, step = self.spots[host], _step(what, host)
        bind = f"[{spot.bind}]:" if ":" in spot.bind else f"{spot.bind}:" if spot.bind else ""
        words = (
            *("--name", f"gpufleet-give-{run[-6:]}-{spot.port}"),
            *("--label", f"{LABEL}.run={run}", "--label", f"{LABEL}.step={step}"),
            *("--mount", f"type=bind,source={path},target=/store,readonly"),
            *("-p", f"{bind}{spot.port}:{INNER_PORT}"),
            *("--entrypoint", "python3", self.image, "-c", PYTHON),
        )
        state = commands.state(spot.dialect, run, step)
        start = spot.dialect.script(
            START, run, step, "1", VARIABLE, self.word, *words, mutates=True, timeout=commands.PULL_TIMEOUT
        )
        return Step(
            id=step,
            host=host,
            title=f"give {path} to other hosts, port {spot.port}",
            do=(start,),
            undo=(commands.unstart(spot.dialect, run, step),),
            verify=Check(look=state, expect="gives-or-not"),
            absent=Check(look=state, expect="nothing-left"),
            after=after,
            phase=_phase(what),
        )

    def end(self, host: HostName, run: RunId, after: frozenset[StepId], what: str = "") -> Step:
        """Remove the giver once everybody has what they wanted."""
        spot, step = self.spots[host], _step(what, host)
        return Step(
            id=StepId(step.replace("give-", "given-", 1)),
            host=host,
            title="stop giving",
            do=(commands.unstart(spot.dialect, run, step),),
            undo=Irreversible("it only gave what it has to other hosts"),
            verify=Check(look=commands.state(spot.dialect, run, step), expect="nothing-left"),
            after=after,
            phase=_phase(what),
        )


def _step(what: str, host: HostName) -> StepId:
    return StepId(f"give-{what}-{host}" if what else f"give-{host}")


def _phase(what: str) -> str:
    """An image's giver is a part of what brings the image, before which no weights are waited for."""
    return "pull" if what == "image" else "give"
