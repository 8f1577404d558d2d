"""The act that watches new replicas beside the old ones for a time and ends with a judgement."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpufleet.change.here import Errand
from gpufleet.deploy.judgement import Bad, Evidence, Good, Judgement, NotKnown, Watch, judge
from gpufleet.deploy.traffic import DOWN, Place
from gpufleet.remote.result import Exit

EVERY = 5.0
"""Seconds between two looks."""

_SAMPLE = re.compile(r"^([a-zA-Z_:]+)(?:\{(.*)\})? ([0-9.eE+-]+)$")
_LABEL = re.compile(r'([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"')

Look = Callable[[Place], "tuple[str, str]"]
"""State of a member's container and the text of its metrics page, both empty when it could not be asked."""
Pages = Callable[[], "Sequence[str]"]
"""Metrics pages of the proxies that answer."""


def samples(page: str) -> list[tuple[str, Mapping[str, str], float]]:
    """Prometheus text: name, labels, value; what cannot be read is left out."""
    found: list[tuple[str, Mapping[str, str], float]] = []
    for line in page.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        found.append((match[1], dict(_LABEL.findall(match[2] or "")), value))
    return found


def by_engine(page: str) -> Evidence:
    """What an engine counted since it started; vLLM's names (docs/usage/metrics.md, version 0.20)."""
    known, answers, errors, tokens, waited = False, 0.0, 0.0, 0.0, 0.0
    for name, labels, value in samples(page):
        match name:
            case "vllm:request_success_total":
                known = True
                answers += value
                errors += value if labels.get("finished_reason") == "error" else 0.0
            case "vllm:time_to_first_token_seconds_count":
                tokens += value
            case "vllm:time_to_first_token_seconds_sum":
                waited += value
            case _:
                pass
    return Evidence(
        answers=int(answers) if known else None, errors=int(errors), first_tokens=int(tokens), waited=waited
    )


def by_proxy(page: str, place: Place, replica: str) -> Evidence:
    """What a proxy counted of one member; a client that left early is no error."""
    answers = errors = 0.0
    known = False
    for name, labels, value in samples(page):
        if (labels.get("pool"), labels.get("endpoint")) != (place.pool, replica):
            continue
        if name == "gpufleet_proxy_endpoint_healthy":
            known = True
        if name == "gpufleet_proxy_requests_total" and labels.get("code") != "499":
            known = True
            answers += value
            errors += value if labels.get("code", "").startswith("5") else 0.0
        if name == "gpufleet_proxy_upstream_failures_total":
            answers += value
            errors += value
    return Evidence(answers=int(answers) if known else None, errors=int(errors))


Served = Callable[[Place], bool]
"""Whether a member still gets requests by the route table of this machine."""


def watch(
    look: Look,
    pages: Pages,
    errand: Errand,
    words: tuple[str, ...],
    served: Served = lambda _place: True,
) -> Exit:
    """Watch until something is known, or the deadline has come. Exit 1 with the reason when it is not good."""
    wish = msgspec.json.decode(words[0], type=Watch)
    started = errand.clock.monotonic()
    first = {place.url: _count(look, pages(), place) for place in (*wish.new, *wish.old)}
    while True:
        errand.clock.sleep(min(EVERY, max(0.0, wish.observe)) or 1.0)
        if errand.called_off():
            return Exit(code=1, stderr="the watch was called off because the run turned back")
        left = [place for place in wish.new if not served(place)]
        if left:
            return Exit(
                code=1,
                stderr=f"{left[0].replica} left the routes of pool {left[0].pool} while it was watched: nothing is "
                "known of it, and unknown is not good",
            )
        fallen = [place for place in wish.new if look(place)[0] in DOWN]
        if fallen:
            return Exit(code=1, stderr=f"{fallen[0].replica} stopped while it was watched")
        seen = pages()
        new = _sum([_since(first[place.url], _count(look, seen, place)) for place in wish.new])
        old = _sum([_since(first[place.url], _count(look, seen, place)) for place in wish.old])
        verdict = judge(new, old, wish)
        waited = errand.clock.monotonic() - started
        errand.progress(f"{new.answers if new.answers is not None else '?'} answers, {new.errors} errors")
        ended = _ended(verdict, wish, waited)
        if ended is not None:
            return ended


def _ended(verdict: Judgement, wish: Watch, waited: float) -> Exit | None:
    match verdict:
        case Bad(reason=reason):
            return Exit(code=1, stderr=reason)
        case Good():
            return Exit(code=0) if waited >= wish.observe else None
        case NotKnown(reason=reason):
            if waited < max(wish.observe, wish.deadline):
                return None
            if wish.unknown == "proceed":
                return Exit(code=0)
            return Exit(
                code=1, stderr=f"{reason}, after {waited:.0f} s: nothing is known, and unknown is not good"
            )


def _count(look: Look, pages: Sequence[str], place: Place) -> Evidence:
    own = by_engine(look(place)[1])
    proxies = [found for page in pages if (found := by_proxy(page, place, place.replica)).answers is not None]
    if not proxies:
        return own
    return Evidence(
        answers=sum(found.answers or 0 for found in proxies),
        errors=sum(found.errors for found in proxies),
        first_tokens=own.first_tokens,
        waited=own.waited,
    )


def _since(first: Evidence, now: Evidence) -> Evidence:
    """What came between two counts; a counter that went back began anew."""
    if now.answers is None:
        return Evidence()
    if first.answers is None or now.answers < first.answers or now.first_tokens < first.first_tokens:
        return now
    return Evidence(
        answers=now.answers - first.answers,
        errors=max(0, now.errors - first.errors),
        first_tokens=now.first_tokens - first.first_tokens,
        waited=max(0.0, now.waited - first.waited),
    )


def _sum(found: Sequence[Evidence]) -> Evidence:
    known = [one for one in found if one.answers is not None]
    return Evidence(
        answers=sum(one.answers or 0 for one in known) if known else None,
        errors=sum(one.errors for one in known),
        first_tokens=sum(one.first_tokens for one in known),
        waited=sum(one.waited for one in known),
    )
