"""Loading and unloading LoRA adapters in running replicas: the commands, their looks, and the steps with their undo.

Nothing is restarted. An engine lists what it has in /v1/models, so every step can be looked at, before and after.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gpufleet.change.model import CannotTell, Check, Fails, Holds, Predicate, Step, Verdict, Waits
from gpufleet.deploy.asking import PYTHON
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.replicas import Present, bind_address, url_of
from gpufleet.deploy.seen import Answer
from gpufleet.deploy.traffic import withdraw_step
from gpufleet.engine.adapters import LOAD, MODELS, UNLOAD, Loaded, load_body, loaded, unload_body
from gpufleet.engine.vllm import PORT
from gpufleet.inventory.model import Host
from gpufleet.names import StepId
from gpufleet.pools.routes import PoolRoute
from gpufleet.redact import Secret, scrub
from gpufleet.remote.command import Command
from gpufleet.remote.result import Exit

THERE, GONE = "there", "gone"

_ASK = """
runtime=$1 id=$2 base=$3 inner=$4 path=$5 body=$6 key=$7 python=$8
no_proxy='*' NO_PROXY='*'
export no_proxy NO_PROXY
if ! command -v curl >/dev/null 2>&1; then
  answer=$(printf '%s' "$key" | "$runtime" exec -i "$id" python3 -c "$python" "$inner$path" "$body")
elif [ -n "$body" ]; then
  answer=$(printf 'header = "Authorization: Bearer %s"\\n' "$key" | curl -s -m 120 -K - -H 'Content-Type: application/json' -d "$body" -w '\\nstatus %{http_code}\\n' "$base$path")
else
  answer=$(printf 'header = "Authorization: Bearer %s"\\n' "$key" | curl -s -m 20 -K - -w '\\nstatus %{http_code}\\n' "$base$path")
fi
"""

LOOK = (
    _ASK
    + """
printf '%s\\n' "$answer"
exit 0
"""
)

ACT = (
    _ASK
    + """
shift 8
for good in "$@"; do
  [ "${answer##*status }" != "$good" ] || exit 0
done
said=$(printf '%s' "${answer%status *}")
printf 'the engine answers %s: %s\\n' "${answer##*status }" "$said" >&2
exit 1
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One running replica and how its engine is asked."""

    present: Present
    dialect: Dialect
    base: str
    key: Secret[str] | None

    @classmethod
    def of(
        cls, present: Present, host: Host, dialect: Dialect, key: Secret[str] | None, *, port: int
    ) -> Member:
        """`port`: on which the host publishes it."""
        base = url_of(bind_address(host) or "127.0.0.1", port)
        return cls(present=present, dialect=dialect, base=base, key=key)

    def look(self) -> Command:
        """What the engine has."""
        return self.dialect.script(LOOK, *self._words(MODELS, ""), mutates=False)

    def load(self, name: str, path: str, *, good: tuple[str, ...] = ("200",)) -> Command:
        """Load an adapter; `good` are the answers after which the look decides."""
        words = self._words(LOAD, load_body(name, path))
        return self.dialect.script(ACT, *words, *good, mutates=True, timeout=150.0)

    def unload(self, name: str) -> Command:
        """Unload an adapter; one that is not there is as good."""
        words = self._words(UNLOAD, unload_body(name))
        return self.dialect.script(ACT, *words, "200", "404", mutates=True, timeout=150.0)

    def _words(self, path: str, body: str) -> tuple[str | Secret[str], ...]:
        inner = url_of("127.0.0.1", PORT)
        key = self.key if self.key is not None else ""
        return (self.present.container.id, self.base, inner, path, body, key, PYTHON)


def listed(answer: Exit) -> tuple[Loaded, ...] | str:
    """What an engine has, or why that is not known."""
    told = Answer.of(answer.stdout) if answer.ok else Answer(0, "")
    if told.status != 200:
        return f"/v1/models answers {told.status}" if told.status else "the engine does not answer"
    found = loaded(told.body)
    return "/v1/models gives no list of models" if found is None else found


def adapter(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether an engine has an adapter, or has it not; `data` is its name, its place, and `there` or `gone`."""
    name, path, wanted = data
    found = listed(answer)
    if isinstance(found, str):
        return CannotTell(found)
    places = [one.root for one in found if one.name == name]
    if wanted == GONE:
        return Waits(reason=f"adapter {name} is still there") if places else Holds()
    if not places:
        return Waits(reason=f"adapter {name} is not there")
    if path not in places:
        return Fails(f"adapter {scrub(name)} is there from {scrub(places[0])}, not from {scrub(path)}")
    return Holds()


PREDICATES: Mapping[str, Predicate] = {"adapter": adapter}


def load_step(member: Member, name: str, path: str) -> Step:
    """Load one adapter in one replica; the undo unloads it."""
    return Step(
        id=_id(member, "load", name),
        host=member.present.host,
        title=f"load adapter {name} in {member.present.replica}",
        do=(member.load(name, path),),
        undo=(member.unload(name),),
        verify=_check(member, name, path, THERE),
        absent=_check(member, name, path, GONE),
        phase="load",
    )


def unload_step(member: Member, name: str, path: str) -> Step:
    """Unload one adapter in one replica; the undo loads it again."""
    return Step(
        id=_id(member, "unload", name),
        host=member.present.host,
        title=f"unload adapter {name} in {member.present.replica}",
        do=(member.unload(name),),
        undo=(member.load(name, path, good=("200", "400")),),
        verify=_check(member, name, path, GONE),
        absent=_check(member, name, path, THERE),
        phase="unload",
    )


def withdrawn_first(
    steps: tuple[Step, ...], served: PoolRoute | None, names: Collection[str]
) -> tuple[Step, ...]:
    """The same steps; before the first member loses an adapter that is published, its name is withdrawn."""
    losing = [step for step in steps if step.phase == "unload"]
    published = [name for name in names if served is not None and name in served.models]
    if not losing or served is None or not published:
        return steps
    first = withdraw_step(served, published, frozenset(one for step in losing for one in step.after))
    waiting = [replace(step, after=step.after | {first.id}) for step in losing]
    return (*(step for step in steps if step.phase != "unload"), first, *waiting)


def _id(member: Member, what: str, name: str) -> StepId:
    plain = "".join(
        letter if letter.isascii() and letter.isalnum() else f"_{ord(letter):x}_" for letter in name
    )
    return StepId(f"{what}-{plain}-{member.present.host}-{member.present.number}")


def _check(member: Member, name: str, path: str, wanted: str) -> Check:
    return Check(look=member.look(), expect="adapter", data=(name, path, wanted), within=10.0, every=1.0)
