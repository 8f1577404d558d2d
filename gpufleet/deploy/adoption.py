"""Containers that run already and may serve a pool: finding them, asking them, and taking them in or out.

Nothing here starts, stops or alters a container. What is asked is asked on its own host, at the address that the
proxy will use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.change.reach import Reach
from gpufleet.deploy import asking, commit, members
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.placement.slots import Room, find
from gpufleet.deploy.replicas import LABEL, Present, bind_address, url_of
from gpufleet.deploy.replicas import endpoint_of as own_endpoint
from gpufleet.deploy.survey import survey
from gpufleet.deploy.tools import Tools
from gpufleet.engine.questions import served_names
from gpufleet.errors import FleetError, Refused, UsageError
from gpufleet.hosts.gather import gather
from gpufleet.hosts.model import ContainerFact, HostFacts, Known, Unknown
from gpufleet.inventory.model import Host
from gpufleet.inventory.secrets import resolve
from gpufleet.names import HostName, PoolName, ReplicaId
from gpufleet.pools import membership
from gpufleet.pools.model import Endpoint, Member, MemberState, Pool
from gpufleet.pools.record import endpoints_of, pool_of
from gpufleet.redact import Secret
from gpufleet.remote.command import Command
from gpufleet.remote.fanout import fanout
from gpufleet.remote.result import Lost

ASK = """
runtime=$1 python=$2
shift 2
no_proxy='*' NO_PROXY='*'
export no_proxy NO_PROXY
while [ "$#" -ge 3 ]; do
  printf 'container %s\\n' "$1"
  if command -v curl >/dev/null 2>&1; then
    printf 'header = "Authorization: Bearer %s"\\n' "$3" | curl -s -m 10 -K - -w '\\nstatus %{http_code}\\n' "$2/v1/models"
  else
    printf '%s' "$3" | "$runtime" exec -i "$1" python3 -c "$python" "http://127.0.0.1:8000/v1/models" ''
  fi
  shift 3
done
exit 0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A running container that might serve.

    Attributes:
        pool, replica: labels, empty when gpufleet did not start it.
        models: names that it answers to; None when it did not say.
        why: what it said instead.
        pools: records that have it already.
    """

    host: HostName
    container: ContainerFact
    port: int
    models: tuple[str, ...] | None
    why: str
    pool: str
    replica: str
    pools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What hosts could give: running containers, free slots, and hosts that could not be asked."""

    running: tuple[Candidate, ...]
    room: Room
    unknown: Mapping[HostName, str]


def candidates(tools: Tools, hosts: Sequence[Host]) -> Candidates:
    """Look at these hosts. Nothing is changed; a host that does not answer is unknown."""
    answers = gather(tools.change.transport, hosts, clock=tools.change.clock, forks=tools.change.forks)
    facts = {name: one for name, one in answers.items() if isinstance(one, HostFacts)}
    unknown = {name: one.summary for name, one in answers.items() if isinstance(one, FleetError)}
    wanted = {name: tuple(_serving(found)) for name, found in facts.items()}
    said = _asked(tools, facts, wanted)
    known = _members(tools)
    running = tuple(
        Candidate(
            host=name,
            container=one,
            port=one.ports[0],
            models=said[name].get(one.id, (None, ""))[0],
            why=said[name].get(one.id, (None, "it was not asked"))[1],
            pool=one.labels.get(f"{LABEL}.pool", ""),
            replica=one.labels.get(f"{LABEL}.replica", ""),
            pools=tuple(pool for pool, identity in known if identity in {one.id, _label(one)}),
        )
        for name, found in wanted.items()
        for one in found
    )
    return Candidates(running=running, room=find(facts.values()), unknown=unknown)


def _label(one: ContainerFact) -> str:
    return f"{one.labels.get(f'{LABEL}.pool', '')} {one.labels.get(f'{LABEL}.replica', '')}"


def _members(tools: Tools) -> tuple[tuple[str, str], ...]:
    """Every member of every record: the pool, and its container's id or labels."""
    found: list[tuple[str, str]] = []
    for name in tools.store.names():
        record = tools.store.record(name)
        items = record.endpoints if record else ()
        found += [(name, item.container or f"{name} {item.replica}") for item in items]
    return tuple(found)


def _serving(facts: HostFacts) -> Iterator[ContainerFact]:
    """Running containers with a GPU and a published port."""
    containers = facts.containers.value if isinstance(facts.containers, Known) else ()
    for one in containers:
        if one.state == "running" and one.ports and one.devices:
            yield one


Said = Mapping[str, tuple[tuple[str, ...] | None, str]]


def _asked(
    tools: Tools, facts: Mapping[HostName, HostFacts], wanted: Mapping[HostName, Sequence[ContainerFact]]
) -> Mapping[HostName, Said]:
    """What each of these containers says of its models."""
    reach = Reach(tools.change.transport, tools.change.clock)

    def ask(name: HostName) -> Said:
        questions = [(one, one.ports[0], _key_of(tools, one)) for one in wanted[name]]
        return _said(reach, facts[name], tools.inventory.hosts[name], questions)

    try:
        answers = fanout([name for name in wanted if wanted[name]], ask, forks=tools.change.forks)
    finally:
        reach.close()
    return {name: {} for name in wanted} | {
        name: answer for name, answer in answers.items() if not isinstance(answer, FleetError)
    }


def _key_of(tools: Tools, one: ContainerFact) -> Secret[str]:
    """The key of a container of ours, as its pool has it here; an empty one for others."""
    pool = one.labels.get(f"{LABEL}.pool", "")
    return (tools.store.key(PoolName(pool)) if pool else None) or Secret("")


def _said(
    reach: Reach, facts: HostFacts, host: Host, questions: Sequence[tuple[ContainerFact, int, Secret[str]]]
) -> Said:
    if isinstance(facts.runtime, Unknown):
        return {}
    dialect = Dialect.of(facts.runtime.value)
    words: list[str | Secret[str]] = []
    for one, port, key in questions:
        words += [one.id, url_of(bind_address(host) or "127.0.0.1", port), key]
    command: Command = dialect.script(
        ASK, asking.PYTHON, *words, mutates=False, timeout=30.0 + 15.0 * len(questions)
    )
    outcome = reach.insist(host.name, command)
    if isinstance(outcome, Lost):
        return {one.id: (None, outcome.reason) for one, _, _ in questions}
    found: dict[str, tuple[tuple[str, ...] | None, str]] = {}
    for part in f"\n{outcome.stdout}".split("\ncontainer ")[1:]:
        identity, _, answer = part.partition("\n")
        body, _, status = answer.rstrip().rpartition("\nstatus ")
        names = served_names(body) if status == "200" else None
        why = {"401": "it asks for a key", "403": "it refuses the key", "000": "nothing answers at its port"}
        found[identity.strip()] = (
            names,
            "" if names is not None else why.get(status, f"/v1/models answers {status or 'nothing'}"),
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A wish to take a container into a pool.

    Attributes:
        word: `HOST/CONTAINER`, or `HOST/N` for a replica of a pool.
        of: the pool whose replica is meant, when several have one of that name.
        key: reference to the key that it asks for; empty for the one that gpufleet knows, or none.
        port: which of its ports, 0 for the first.
    """

    word: str
    of: str = ""
    key: str = ""
    port: int = 0
    weight: int = 1


def join(tools: Tools, name: PoolName, wish: Join) -> tuple[ReplicaId, int]:
    """Take a running container into a pool; the member's name in it and the generation of the routes.

    Raises:
        UsageError: the pool, the host or the container is not there, or the word means several.
        Refused: it does not serve the pool's model.
    """
    record = tools.store.record(name)
    if record is None:
        raise UsageError(f"pool {name} is not deployed", hints=(f"gpufleet pool create {name} --model NAME",))
    pool, endpoints = pool_of(record), endpoints_of(record)
    host_name, _, rest = wish.word.partition("/")
    host = tools.inventory.hosts.get(HostName(host_name))
    if host is None or not rest:
        raise UsageError(
            f"`{wish.word}` is not HOST/CONTAINER or HOST/N with a host of the inventory",
            hints=("`gpufleet pool candidates` lists what runs",),
        )
    facts = survey(tools.change.transport, (host,), clock=tools.change.clock, forks=1)[host.name]
    one = _meant(facts, wish, name)
    if any(_is(endpoint, one, name) for endpoint in endpoints):
        raise Refused(f"{wish.word} is in pool {name} already", hints=(f"gpufleet pool show {name}",))
    own = one.labels.get(f"{LABEL}.pool") == name
    member = _member(tools, pool, endpoints, one, wish=wish, facts=facts, own=own)
    _check_serves(tools, pool, one, member, host=host, facts=facts)
    if own:
        present = Present(replica=member.replica, host=host.name, container=one)
        endpoint = own_endpoint(present, host)
    else:
        endpoint = members.endpoint_of(member, one, facts, host)

    def alter(before: Pool, served: tuple[Endpoint, ...]) -> tuple[Pool, tuple[Endpoint, ...]]:
        taken = {item.replica: item.container for item in served}
        if not own and taken.get(member.replica, one.id) != one.id:
            raise Refused(
                f"another container became {member.replica} of pool {name} meanwhile; nothing was changed",
                hints=("run the command again",),
            )
        after = membership.added(before, member, own=own)
        return after, (*(item for item in served if item.replica != member.replica), endpoint)

    return member.replica, commit.rewrite(tools.store, name, alter, tools.engine)


def _is(endpoint: Endpoint, one: ContainerFact, pool: str) -> bool:
    return (
        endpoint.container == one.id
        if endpoint.container
        else (one.labels.get(f"{LABEL}.pool"), one.labels.get(f"{LABEL}.replica")) == (pool, endpoint.replica)
    )


def _meant(facts: HostFacts, wish: Join, name: PoolName) -> ContainerFact:
    """The one running container that the word means."""
    if isinstance(facts.containers, Unknown):
        raise Refused(f"its containers could not be read: {facts.containers.reason}", where=facts.host)
    rest = wish.word.partition("/")[2]
    if rest.isdigit():
        found = [
            one
            for one in facts.containers.value
            if one.labels.get(f"{LABEL}.replica") == wish.word and one.state == "running"
            if not wish.of or one.labels.get(f"{LABEL}.pool") == wish.of
        ]
        if len(found) > 1:
            pools = sorted({one.labels.get(f"{LABEL}.pool", "") for one in found})
            raise UsageError(
                f"{wish.word} is a replica of {' and of '.join(pools)}",
                hints=tuple(f"gpufleet pool add {name} {wish.word} --of {pool}" for pool in pools),
            )
        one = found[0] if found else None
    else:
        one = members.container(facts, rest)
    if one is None or one.state != "running":
        raise UsageError(
            f"there is no one running container `{rest}` on {facts.host}",
            hints=(f"`gpufleet pool candidates {name}` lists what runs",),
        )
    return one


def _member(
    tools: Tools,
    pool: Pool,
    endpoints: Sequence[Endpoint],
    one: ContainerFact,
    *,
    wish: Join,
    facts: HostFacts,
    own: bool,
) -> Member:
    if own:
        return Member(replica=ReplicaId(one.labels[f"{LABEL}.replica"]), weight=wish.weight)
    if not one.ports:
        raise Refused(f"container {one.name} publishes no port", where=facts.host)
    if wish.port and wish.port not in one.ports:
        raise Refused(
            f"container {one.name} does not publish port {wish.port}",
            where=facts.host,
            hints=(f"it publishes {', '.join(map(str, one.ports))}",),
        )
    taken = {endpoint.replica for endpoint in endpoints} | {known.replica for known in pool.members}
    containers = facts.containers.value if isinstance(facts.containers, Known) else ()
    taken |= {
        ReplicaId(other.labels.get(f"{LABEL}.replica", ""))
        for other in containers
        if other.labels.get(f"{LABEL}.pool") == pool.name
    }
    number = next(n for n in range(10_000) if f"{facts.host}/{n}" not in taken)
    known = _key_of(tools, one).reference
    return Member(
        replica=ReplicaId(f"{facts.host}/{number}"),
        weight=wish.weight,
        container=one.name,
        port=wish.port or one.ports[0],
        key=wish.key or known,
    )


def _check_serves(
    tools: Tools, pool: Pool, one: ContainerFact, member: Member, *, host: Host, facts: HostFacts
) -> None:
    """Raises Refused unless the container answers to the pool's model at the address that the proxy will use."""
    if member.key is None:
        key = tools.store.key(pool.name) or Secret("")
    else:
        key = resolve(member.key, tools.base) if member.key else Secret("")
    reach = Reach(tools.change.transport, tools.change.clock)
    try:
        said = _said(reach, facts, host, [(one, member.port or one.ports[0], key)])
    finally:
        reach.close()
    names, why = said.get(one.id, (None, "it was not asked"))
    if names is None:
        raise Refused(
            f"container {one.name} does not say what it serves: {why}",
            where=host.name,
            hints=("give the key that it asks for: --key '${env:NAME}'",)
            if "key" in why
            else ("it must be published on the host's service address, and be ready",),
        )
    if pool.public_name not in names:
        raise Refused(
            f"container {one.name} serves {', '.join(names) or 'nothing'}, and pool {pool.name} serves "
            f"{pool.public_name}",
            where=host.name,
            hints=("a pool's members answer to one model name: start it with --served-model-name",),
        )


def leave(tools: Tools, name: PoolName, replicas: Sequence[ReplicaId]) -> int:
    """Take members out of a pool; their containers run on. The generation of the routes."""
    generation = tools.store.routes().generation
    for replica in replicas:
        generation = commit.rewrite(tools.store, name, commit.without(replica), tools.engine)
    return generation


def removed_members(pool: Pool) -> tuple[ReplicaId, ...]:
    """Replicas of the pool's own that run on outside it."""
    return tuple(one.replica for one in pool.members if one.state is MemberState.REMOVED)
