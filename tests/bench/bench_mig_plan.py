"""How long a plan takes, from every state that a board can be in to every layout that it can hold, and to none.

    python tests/bench/bench_mig_plan.py [BOARD...]

Prints the median and the worst CPU time of a plan in ms for each board: `cold` with nothing remembered of earlier
plans, from the fullest states alone; `warm` from all states; `refused` for wishes that no placing fulfils, cold. Aim:
any plan under 50 ms.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpufleet.mig import plan as planner
from gpufleet.mig.boards import BOARDS
from gpufleet.mig.layout import Wanted
from gpufleet.mig.model import Geometry, Placed
from tests.unit.mig.boards_by_hand import CHECKED, states


def timed(geometry: Geometry, seen: Sequence[Placed], wanted: Sequence[Wanted], *, cold: bool) -> float:
    if cold:
        planner._placings.cache_clear()
    start = time.thread_time()
    planner.plan(geometry, seen, wanted, busy=frozenset(seen[:2]))
    return (time.thread_time() - start) * 1000


def figures(times: Iterable[float]) -> str:
    found = list(times)
    return f"{len(found):7d} plans, median {statistics.median(found):6.3f}, worst {max(found):7.3f}"


def main(boards: Sequence[str]) -> None:
    for board in boards:
        geometry = BOARDS[board]
        seen = [tuple(sorted(state)) for state in states(board)]
        wishes = sorted({tuple(sorted(one.profile for one in state)) for state in seen})
        by_name = {one.name: Wanted(one) for one in geometry.profiles}
        fullest = sorted(seen, key=lambda state: (-sum(one.size for one in state), -len(state)))[:20]
        full = [[by_name[name] for name in wish] for wish in wishes]
        print(board)
        print("  cold   ", figures(timed(geometry, one, wish, cold=True) for wish in full for one in fullest))
        print("  warm   ", figures(timed(geometry, one, wish, cold=False) for wish in full for one in seen))
        known = frozenset(wishes)
        refused = [
            [by_name[name] for name in names]
            for count in range(1, 7)
            for names in itertools.combinations_with_replacement(by_name, count)
            if tuple(sorted(names)) not in known
        ]
        print("  refused", figures(timed(geometry, fullest[0], wish, cold=True) for wish in refused))


if __name__ == "__main__":
    main(sys.argv[1:] or CHECKED)
