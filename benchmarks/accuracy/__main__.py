"""``python -m benchmarks.accuracy``: top-1 and top-3 accuracy, and what is confused."""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks.accuracy.cases import plans
from benchmarks.accuracy.measure import Outcome, run


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1, help="first seed")
    options.add_argument("--seeds", type=int, default=1, help="number of seeds")
    options.add_argument("--only", default="", help="cases whose name contains this text")
    options.add_argument("--findings", action="store_true", help="print the findings of each case")
    given = options.parse_args()
    outcomes = []
    for seed in range(given.seed, given.seed + given.seeds):
        for plan in plans(seed):
            if given.only not in plan.name:
                continue
            start = time.perf_counter()
            outcome = run(plan.make())
            outcomes.append(outcome)
            print(line(outcome, time.perf_counter() - start), flush=True)
            if given.findings:
                for severity, rule, title in outcome.findings:
                    print(f"      {severity} {rule}: {title}")
    summary(outcomes)


def line(outcome: Outcome, seconds: float) -> str:
    """One case."""
    mark = "ok  " if outcome.top1 else "top3" if outcome.top3 else "--  "
    first = f"{outcome.findings[0][0]} {outcome.findings[0][1]}" if outcome.findings else "nothing"
    return (
        f"{mark} {outcome.case:34} {outcome.cost_frac:4.0%} {seconds:5.2f} s  {first:32} {outcome.why}"
        f"  [{outcome.setting}, seed {outcome.seed}]"
    )


def summary(outcomes: list[Outcome]) -> None:
    """Accuracy of all cases."""
    count = max(len(outcomes), 1)
    for name in ("top1", "top3"):
        right = sum(getattr(one, name) for one in outcomes)
        print(f"{name}: {right} of {len(outcomes)} ({right / count:.1%})")
    print(f"median {statistics.median([one.seconds for one in outcomes] or [0]):.2f} s")


if __name__ == "__main__":
    main()
