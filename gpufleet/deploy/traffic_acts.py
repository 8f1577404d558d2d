"""What steps on this machine do for a deploy: publish members in another state, and ask how one member is."""

from __future__ import annotations

import http
import http.client
import re
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from gpufleet.change.here import Errand, HereActs
from gpufleet.clock import Clock
from gpufleet.deploy.asking import PYTHON
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.traffic import DOWN, Place, Shift
from gpufleet.deploy.watching import watch
from gpufleet.engine import diagnose
from gpufleet.names import HostName
from gpufleet.pools.membership import shifted
from gpufleet.pools.routes import PoolRoute, RouteTable
from gpufleet.pools.store import PoolStore
from gpufleet.redact import scrub
from gpufleet.remote.result import Exit, Lost

READ_BY_ALL = 2.0
"""Seconds in which every proxy reads a new route table, for those that nobody can ask."""

READ_AT_LAST = 15.0
"""Seconds after which a proxy that still shows the old table is not waited for any longer."""

_LOOK_AGAIN = 0.1

_ASK_PROXY = 2.0

LOOK = """
runtime=$1 one=$2 two=$3 base=$4 inner=$5 health=$6 metrics=$7 python=$8
no_proxy='*' NO_PROXY='*'
export no_proxy NO_PROXY
id=$("$runtime" ps -aq --no-trunc --filter "$one" --filter "$two") || exit 1
echo "== state"
if [ -z "$id" ]; then
  echo gone
  exit 0
fi
state=$("$runtime" inspect --format '{{.State.Status}}' "$id") || exit 1
printf '%s\\n' "$state"
ask() {
  if command -v curl >/dev/null 2>&1; then
    curl -s -m 5 -w '\\nstatus %{http_code}\\n' "$base$1"
  else
    printf '' | "$runtime" exec -i "$id" python3 -c "$python" "$inner$1" ''
  fi
}
if [ "$state" = running ]; then
  echo "== health"
  ask "$health"
  echo "== metrics"
  ask "$metrics" | grep -E "^status|^[a-z_]+:(num_requests_|request_success_total|time_to_first_token_seconds_(sum|count))"
fi
echo "== log"
"$runtime" logs --tail 5 "$id" 2>&1
exit 0
"""

_HEADING = re.compile(r"^== (state|health|metrics|log)$", re.MULTILINE)


def acts(store: PoolStore, proxies: Sequence[str], *, named: bool = False) -> HereActs:
    """Every act of a deploy.

    `proxies`: admin addresses, `host:port`, of proxies that read this machine's table. `named`: an operator named
    them, so that there are no others.
    """
    return {
        "shift-routes": partial(_shift, store, tuple(proxies), named),
        "see-routes": partial(_see_routes, store),
        "see-member": partial(_see_member, tuple(proxies)),
        "watch": partial(_watch, store, tuple(proxies)),
        "nothing": lambda _errand, _words: Exit(code=0),
    }


def _shift(
    store: PoolStore,
    proxies: Sequence[str],
    named: bool,  # noqa: FBT001 - bound once, in `acts`
    errand: Errand,
    words: tuple[str, ...],
) -> Exit:
    shift = msgspec.json.decode(words[0], type=Shift)
    before = store.routes().generation
    if store.publish(lambda table: _shifted(table, shift)).generation != before:
        _wait_for_readers(errand.clock, shift, proxies, named=named)
    return Exit(code=0)


def _wait_for_readers(clock: Clock, shift: Shift, proxies: Sequence[str], *, named: bool) -> None:
    """Until every proxy sends requests as the shift says; those that cannot be asked get their time."""
    began, asked = clock.monotonic(), list(proxies)
    told = 0
    while True:
        for proxy in tuple(asked):
            read = has_read(proxy, shift)
            if read is not False:
                asked.remove(proxy)
                told += read is True
        waited = clock.monotonic() - began
        if not asked:
            known = named and told == len(proxies) > 0
            if not known and waited < READ_BY_ALL:
                clock.sleep(READ_BY_ALL - waited)
            return
        if waited >= READ_AT_LAST:
            return
        clock.sleep(_LOOK_AGAIN)


def _see_routes(store: PoolStore, errand: Errand, words: tuple[str, ...]) -> Exit:
    del errand
    shift = msgspec.json.decode(words[0], type=Shift)
    table = store.routes()
    same = _shifted(table, shift).pools == table.pools
    return Exit(code=0) if same else Exit(code=1, stderr="the route table says otherwise")


def _shifted(table: RouteTable, shift: Shift) -> RouteTable:
    """A machine that does not publish the pool, because it took the run up, has nothing to shift before the commit."""
    if all(pool.name != shift.pool for pool in table.pools):
        return table
    head = PoolRoute(name=shift.pool, algorithm=shift.algorithm, models=shift.models)
    return shifted(table, head, shift.before, shift.after)


def _asked(errand: Errand, place: Place) -> Mapping[str, str] | None:
    """What the host says of one member, by heading; None when it could not be asked."""
    dialect = Dialect(place.runtime, "", root=place.root, updates=True, rootless=False)
    words = (*place.filters, place.base, place.inner, place.health, place.metrics, PYTHON)
    outcome = errand.ask(HostName(place.host), dialect.script(LOOK, *words, mutates=False, timeout=60.0))
    return None if isinstance(outcome, Lost) or not outcome.ok else _parts(outcome.stdout)


def _see_member(proxies: Sequence[str], errand: Errand, words: tuple[str, ...]) -> Exit:
    """Three lines: what the proxies count in flight, what the engine does, and how it is; `?` for unknown."""
    place = msgspec.json.decode(words[0], type=Place)
    counted = [count for proxy in proxies if (count := in_flight(proxy, place)) is not None]
    by_proxy = str(max(counted)) if counted else "?"
    parts = _asked(errand, place)
    if parts is None:
        return Exit(code=0, stdout=f"{by_proxy}\n?\n?\n")
    state = parts.get("state", "").strip()
    if state in DOWN:
        return Exit(code=0, stdout=f"0\n0\n{state}\n")
    healthy = "ready" if parts.get("health", "").rstrip().endswith("status 200") else state or "?"
    log = diagnose.said(scrub(parts.get("log", "").strip().rpartition("\n")[2]))
    return Exit(
        code=0, stdout=f"{by_proxy}\n{_at_work(parts.get('metrics', ''), place.busy)}\n{healthy} {log}\n"
    )


def _watch(store: PoolStore, proxies: Sequence[str], errand: Errand, words: tuple[str, ...]) -> Exit:
    def look(place: Place) -> tuple[str, str]:
        parts = _asked(errand, place) or {}
        return parts.get("state", "").strip(), parts.get("metrics", "")

    def pages() -> Sequence[str]:
        found = (_page(proxy, "/metrics") for proxy in proxies)
        return [page.decode("utf-8", "replace") for page in found if page is not None]

    def served(place: Place) -> bool:
        """A machine that does not publish the pool, because it took the run up, cannot tell, and goes by the engines."""
        pools = [pool for pool in store.routes().pools if pool.name == place.pool]
        return not pools or any(
            one.url == place.url and one.state == "active" for pool in pools for one in pool.endpoints
        )

    return watch(look, pages, errand, words, served)


def _parts(text: str) -> Mapping[str, str]:
    found = _HEADING.split(text)
    return dict(zip(found[1::2], found[2::2], strict=False))


def _at_work(page: str, busy: str) -> str:
    """Requests that the engine runs or holds, by its own metrics."""
    if not page.rstrip().endswith("status 200"):
        return "?"
    values = [line.rpartition(" ")[2] for line in page.splitlines() if re.search(busy, line)]
    try:
        return str(int(sum(float(value) for value in values))) if values else "?"
    except (ValueError, OverflowError):
        return "?"


def in_flight(proxy: str, place: Place) -> int | None:
    """What one proxy counts, for whatever pool; None when it does not answer or does not know the member.

    A proxy that still sends new requests to it counts at least one: it has not read the table yet.
    """
    content = _page(proxy, "/admin/members")
    try:
        page = msgspec.json.decode(content or b"", type=_Page)
    except msgspec.MsgspecError:
        return None
    found = [
        max(member.in_flight, 0 if member.state == "draining" else 1)
        for pool in page.pools
        for member in pool.members
        if member.endpoint == place.url
    ]
    return sum(found) if found else None


def has_read(proxy: str, shift: Shift) -> bool | None:
    """Whether one proxy sends requests as the shift says; None when it does not answer or does not serve the pool."""
    content = _page(proxy, "/admin/members")
    try:
        page = msgspec.json.decode(content or b"", type=_Page)
    except msgspec.MsgspecError:
        return None
    pool = next((pool for pool in page.pools if pool.pool == shift.pool), None)
    if pool is None:
        return None
    shown = {member.endpoint: member for member in pool.members}
    left = {one.url for one in shift.after}
    return not any(one.url in shown for one in shift.before if one.url not in left) and all(
        one.url in shown
        and shown[one.url].weight == one.weight
        and (one.state == "active" or shown[one.url].state == one.state)
        for one in shift.after
    )


def _page(proxy: str, path: str) -> bytes | None:
    """One page of a proxy's admin address; None when it does not come."""
    host, _, port = proxy.rpartition(":")
    try:
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_ASK_PROXY)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read() if answer.status == http.HTTPStatus.OK else None
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException):
        return None


class _Member(msgspec.Struct, frozen=True):
    endpoint: str
    state: str
    in_flight: int
    weight: int | None = None


class _Pool(msgspec.Struct, frozen=True):
    pool: str
    members: tuple[_Member, ...]


class _Page(msgspec.Struct, frozen=True):
    """What `/admin/members` of a proxy says, as far as it matters here."""

    pools: tuple[_Pool, ...]
