"""What one decision of `cache-aware` costs, in microseconds of CPU: 64 members, a prompt of 32 KB.

    python tests/bench/bench_decision.py [ROUNDS]

Hashing the prompt is shown apart, and so is entering it into the index when it is sent. The aim of a decision is 15.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

from gpufleet.proxy.decide.balance.api import Policy, RequestKey
from gpufleet.proxy.decide.balance.cache_aware import CacheAware
from gpufleet.proxy.decide.balance.policies import POLICIES
from tests.kit.policy_kit import View


def show(name: str, rounds: int, act: Callable[[int], object], times: int = 200) -> None:
    spent = []
    for turn in range(rounds):
        began = time.thread_time()
        for number in range(times):
            act(turn * times + number)
        spent.append((time.thread_time() - began) / times * 1e6)
    print(f"{name:46} {statistics.median(spent):7.1f} {min(spent):7.1f}")


def asking(policy: Policy, members: tuple[View, ...], keys: list[RequestKey]) -> Callable[[int], object]:
    dice = random.Random(2)
    return lambda number: policy.rank(members, keys[number], dice)[0]


def main(rounds: int) -> None:
    members = tuple(View(id=f"gpu-{number:02}/0") for number in range(64))
    dice = random.Random(1)
    count = 32 * 1024 // 1024
    system = [dice.getrandbits(62) for _ in range(2)]

    def prompts(begin: list[int]) -> list[RequestKey]:
        return [
            RequestKey(
                blocks=[*begin, *(dice.getrandbits(62) for _ in range(count - len(begin)))], tokens=8192
            )
            for _ in range(rounds * 200)
        ]

    print(f"{'CPU microseconds':46} {'median':>7} {'best':>7}")
    known, cold = prompts(system), prompts([])
    for name in POLICIES:
        show(f"{name}: all idle", rounds, asking(POLICIES[name](), members, known))
    policy = CacheAware()
    for number, view in enumerate(members):
        view.load.take(dice.randrange(20_000))
        for again in range(20):
            policy.sent(view.id, known[(number * 20 + again) % len(known)], 500_000)
    show("cache-aware: cold", rounds, asking(policy, members, cold))
    show("cache-aware: a system prompt that all have", rounds, asking(policy, members, prompts(system)))
    show("cache-aware: a prompt that some have", rounds, asking(policy, members, known))
    body = random.Random(3).randbytes(32 * 1024)

    def hashed(_number: int) -> list[int]:
        key, keys = 0, []
        for start in range(0, len(body), 1024):
            key = hash((key, body[start : start + 1024]))
            keys.append(key)
        return keys

    show("hashing a prompt of 32 KB", rounds, hashed)
    show(
        "entering a prompt into the index",
        rounds,
        lambda n: policy.sent(members[n % 64].id, cold[n], 500_000),
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
