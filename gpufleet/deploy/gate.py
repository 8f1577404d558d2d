"""The looks at a deploy's steps and what they must show; above all whether a new replica is ready.

One script a look asks everything on the host itself, so that no port need be open to us: the container's state,
/health, the name in /v1/models, a few streamed tokens, and the end of the log. What the container received from
the network counts as progress too, because vLLM downloads weights for minutes without a word. Its answer is plain text with
headings; `ready` judges it and is pure, so that another process can judge the same look after a crash.

The engine's key reaches curl by its standard input. Where a host has no curl, the container's own python asks
(`asking`). What is asked depends on the kind of the model (`engine.kinds`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gpufleet.change.model import CannotTell, Check, Fails, Holds, Predicate, Verdict, Waits
from gpufleet.deploy.asking import PYTHON, judge
from gpufleet.deploy.commands import Dialect
from gpufleet.deploy.ended import SHOWN_LINES, Remains, ended
from gpufleet.deploy.seen import Seen, read
from gpufleet.engine import diagnose, kinds, questions
from gpufleet.names import RunId, StepId
from gpufleet.pools.model import Pool
from gpufleet.redact import Secret, scrub
from gpufleet.remote.result import Exit

TRAFFIC_STEP_MIB = 16
"""Received from the network, this much is progress; our own questions bring a few KiB."""

LOOK = """
runtime=$1 run=$2 step=$3 base=$4 inner=$5 health=$6 path=$7 body=$8 second=$9
shift 9
again=$1 way=$2 key=$3 python=$4
no_proxy='*' NO_PROXY='*'
export no_proxy NO_PROXY
id=$("$runtime" ps -aq --no-trunc --filter "label=gpufleet.run=$run" --filter "label=gpufleet.step=$step") || exit 1
if [ -z "$id" ]; then
  echo "== state"
  echo "gone 0 0 false"
  exit 0
fi
state=$("$runtime" inspect --format '{{.State.Status}} {{.State.ExitCode}} {{.RestartCount}} {{.State.OOMKilled}} {{.State.Pid}}' "$id") || exit 1
ask() {
  if [ "$4" != python ] && command -v curl >/dev/null 2>&1; then
    if [ -n "$2" ]; then
      printf 'header = "Authorization: Bearer %s"\\n' "$key" | curl -s -N -m "$3" -K - -H 'Content-Type: application/json' -d "$2" -w '\\nstatus %{http_code}\\n' "$base$1"
    else
      printf 'header = "Authorization: Bearer %s"\\n' "$key" | curl -s -m "$3" -K - -w '\\nstatus %{http_code}\\n' "$base$1"
    fi
  else
    printf '%s' "$key" | "$runtime" exec -i "$id" python3 -c "$python" "$inner$1" "$2"
  fi
}
echo "== state"
printf '%s\\n' "$state"
lines=500
case $state in
running*)
  lines=60
  answer=$(ask "$health" '' 5 '')
  echo "== health"
  printf '%s\\n' "$answer"
  if [ "${answer##*status }" != 200 ]; then
    echo "== network"
    cat "/proc/${state##* }/net/dev" 2>/dev/null
  else
    answer=$(ask /v1/models '' 10 '')
    echo "== models"
    printf '%s\\n' "$answer"
    if [ "${answer##*status }" = 200 ] && [ -n "$path" ]; then
      answer=$(ask "$path" "$body" 60 "$way")
      case ${answer##*status } in
      400|404|405|422)
        [ -z "$second" ] || answer=$(ask "$second" "$again" 60 "$way")
        ;;
      esac
      echo "== tokens"
      printf '%s\\n' "$answer"
      echo "== work"
      ask /metrics '' 5 '' | grep '^vllm:generation_tokens_total'
    fi
  fi
  ;;
esac
case $state in
running\\ *\\ 0\\ *) ;;
*)
  lines=500
  echo "== container"
  "$runtime" inspect --format '{{.HostConfig.Memory}}' "$id" 2>/dev/null || echo unknown
  "$runtime" inspect --format '{{.State.Error}}' "$id" 2>/dev/null
  ;;
esac
echo "== log"
"$runtime" logs --tail "$lines" "$id" 2>&1
exit 0
"""

_NUMBERS = re.compile(r"\d+")
_CHATTER = re.compile(r'"(?:GET|POST|HEAD) /|No available shared memory broadcast block')
"""What an engine that does nothing says all the same."""


def ready(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether the replica answers with the right name and makes sense; `data` is the served name and the kind."""
    if not answer.ok:
        return CannotTell(_last_line(answer.stderr) or f"the look ended with status {answer.code}")
    seen = read(answer.stdout)
    if seen is None:
        return CannotTell("the look gave no state of the container")
    over = None if seen.health.status == 200 else ended(_remains(seen))
    if over is not None:
        return over
    if seen.status != "running":
        return _waits(seen, f"the container is {seen.status}")
    return _judge(seen, data[0] if data else "", data[1] if len(data) > 1 else "chat")


def _remains(seen: Seen) -> Remains:
    return Remains(
        status=seen.status,
        exit_code=seen.exit_code,
        restarts=seen.restarts,
        out_of_memory=seen.out_of_memory,
        memory_limit=seen.memory_limit,
        error=seen.error,
        log=seen.log,
    )


def _judge(seen: Seen, name: str, kind: str) -> Verdict:
    if seen.health.status != 200:
        return _waits(
            seen, f"/health answers {seen.health.status}" if seen.health.status else "not listening yet"
        )
    if seen.models.status == 401:
        return Fails(
            "the engine refuses the pool's key",
            "it was started with another key: remove --api-key from engine.args",
        )
    if seen.models.status != 200:
        return _waits(seen, f"/v1/models answers {seen.models.status or 'nothing'}")
    names = questions.served_names(seen.models.body)
    if names is None:
        return _waits(seen, "/v1/models gives no list of models")
    if name not in names:
        return Fails(
            f"the engine serves {', '.join(names) or 'no model'}, not {name}",
            "check engine.image and engine.args: another model was started",
        )
    if kind == "models":
        return Holds()
    if kind in kinds.STREAMED:
        return _judge_tokens(seen)
    verdict = judge(kind, seen.tokens.status, seen.tokens.body)
    return _waits(seen, verdict) if isinstance(verdict, str) else verdict


def _judge_tokens(seen: Seen) -> Verdict:
    text = questions.streamed_text(seen.tokens.body)
    wrong = questions.senseless(text)
    if wrong:
        return Fails(
            f"the engine streams {wrong}", "damaged weights or a wrong --dtype or --quantization produce this"
        )
    if text.strip():
        return Holds()
    error = questions.stream_error(seen.tokens.body)
    if seen.tokens.status == 200 and not error:
        done = "[DONE]" in seen.tokens.body
        if done:
            what = "nothing but white space" if text else "no token"
            return Fails(f"the engine streamed {what}", "check the model and its chat template")
        return _silent(seen)
    if 400 <= seen.tokens.status < 500:
        return Fails(
            scrub(error) or f"a chat is answered {seen.tokens.status}",
            "check that this model answers chats or completions, or set gate.kind",
        )
    if not seen.tokens.status:
        return _silent(seen)
    return _waits(seen, error or f"a chat is answered {seen.tokens.status}")


def _silent(seen: Seen) -> Waits:
    """Healthy, and no token: compiling still, or hanging. The engine's own count of tokens tells them apart."""
    counted = "" if seen.made is None else f"; the engine counts {seen.made} tokens"
    hint = (
        "/health answers and no token comes: the engine hangs; set engine.env NCCL_DEBUG: INFO, or add "
        "--enforce-eager to engine.args, and deploy again"
    )
    return _waits(seen, f"no token came within 60 seconds{counted}", hint)


def _waits(seen: Seen, reason: str, hint: str = "") -> Waits:
    """Progress is what is waited for, the phase, and the last line without its numbers: a clock is no progress."""
    phase, last = diagnose.phase(seen.log), _last_line(seen.log)
    crashes = f", restarted {seen.restarts} times" if seen.restarts else ""
    steps = seen.received_mib // TRAFFIC_STEP_MIB * TRAFFIC_STEP_MIB
    traffic = f"{steps} MiB received" if steps else ""
    told = "; ".join(part for part in (f"{reason}{crashes}", phase, traffic) if part)
    moved = _NUMBERS.sub("", next((line for line in _lines(seen.log) if not _CHATTER.search(line)), ""))
    return Waits(
        progress=scrub(f"{told}: {moved}" if moved else told),
        reason=scrub(f"{told}; the log's last line: {diagnose.said(last)}" if last else told),
        hint=_stalled(seen, hint),
    )


def _stalled(seen: Seen, hint: str) -> str:
    """What to do when nothing moves any more."""
    cause = diagnose.diagnose(seen.log).cause
    first = hint or (cause.fix if cause is not None and not cause.permanent else "")
    first = first or "raise gate.stall and gate.within of the pool when this model needs longer"
    shown = diagnose.tail(seen.log, SHOWN_LINES).strip()
    return f"{first}; the end of its log:\n{shown}" if shown else first


def _last_line(text: str) -> str:
    return scrub(next(_lines(text), ""))


def _lines(text: str) -> Iterator[str]:
    """Lines that say something, the last one first."""
    return (line.strip() for line in reversed(text.splitlines()) if line.strip())


def image_present(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether the runtime knows the image; `data` is its name."""
    if answer.ok and answer.stdout.strip():
        return Holds()
    return Fails(f"image {data[0] if data else ''} is not there", "check engine.image")


def started(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether the step's container is there and was started; whether it lives is the gate's question."""
    del data
    if not answer.ok:
        return CannotTell(_last_line(answer.stderr) or "the runtime did not answer")
    states = [line.split()[0] for line in answer.stdout.splitlines() if len(line.split()) == 2]
    if not states:
        return Waits(reason="there is no container")
    if any(state in {"created", "dead", "removing"} for state in states):
        return Waits(reason=f"the container is {states[0]} and not started")
    return Holds()


def nothing_left(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether no container and no environment file of the step is left."""
    del data
    if not answer.ok:
        return CannotTell(_last_line(answer.stderr) or "the runtime did not answer")
    left = answer.stdout.strip()
    return Fails(f"left on the host: {', '.join(left.split())}") if left else Holds()


def in_state(answer: Exit, data: tuple[str, ...]) -> Verdict:
    """Whether a container is in one of the states, and has the restart policy when one is named.

    `data` is the states joined by commas, and the policy or nothing.
    """
    if not answer.ok:
        return CannotTell(_last_line(answer.stderr) or "the runtime did not answer")
    states, policy = data[0].split(","), data[1].partition(":")[0]
    seen = [line.split() for line in answer.stdout.splitlines() if line.strip()]
    if not seen:
        return Fails("the container is gone")
    for words in seen:
        if words[0] not in states:
            return Waits(reason=f"the container is {words[0]}")
        if policy and words[1:] != [policy]:
            return Fails(f"the restart policy is {' '.join(words[1:]) or 'none'}, not {policy}")
    return Holds()


PREDICATES: Mapping[str, Predicate] = {
    "image-present": image_present,
    "container-started": started,
    "nothing-left": nothing_left,
    "container-in-state": in_state,
    "engine-ready": ready,
}


def check(
    dialect: Dialect,
    pool: Pool,
    *,
    run: RunId,
    step: StepId,
    base: str,
    inner: str,
    health: str,
    key: Secret[str] | None,
) -> Check:
    """The gate of one replica; `base` is where the host itself reaches it, `inner` where its container does."""
    name, kind = pool.public_name, kinds.kind_of(pool)
    first, second = kinds.questions_of(kind, name, pool.gate.prompt)
    look = dialect.script(
        LOOK,
        run,
        step,
        base,
        inner,
        health,
        first.path,
        first.body,
        second.path,
        second.body,
        "python" if kind in kinds.BY_PYTHON else "",
        key if key is not None else "",
        PYTHON,
        mutates=False,
        timeout=180.0,
    )
    return Check(
        look=look,
        expect="engine-ready",
        data=(name, kind),
        within=pool.gate.within,
        stall=pool.gate.stall,
        every=pool.gate.every,
    )
