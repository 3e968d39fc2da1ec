"""``python -m benchmarks.accuracy``: top-1 and top-3 accuracy of ``diagnose``, and confusions."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

from benchmarks.accuracy import real
from benchmarks.accuracy.cases import plans
from benchmarks.accuracy.fault import Case
from benchmarks.accuracy.gains import Prediction, of_findings, predictions, table
from benchmarks.accuracy.measure import Outcome, run
from benchmarks.accuracy.report import accuracy, confusion, write_page, wrong


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1, help="first seed")
    options.add_argument("--seeds", type=int, default=1, help="number of seeds")
    options.add_argument("--only", default="", help="cases whose name contains this text")
    options.add_argument("--findings", action="store_true", help="print the findings of each case")
    options.add_argument("--write", action="store_true", help="write the table of docs/accuracy.md")
    options.add_argument("--keep", help="a folder for the files of the cases")
    options.add_argument(
        "--gains",
        action="store_true",
        help="gains of what-if, not findings; with --findings: the gains of findings",
    )
    given = options.parse_args()
    if given.gains:
        seeds = range(given.seed, given.seed + given.seeds)
        print_gains(of_findings if given.findings else predictions, seeds, given.only)
        return
    outcomes = []
    for make in selected(range(given.seed, given.seed + given.seeds), given.only):
        start = time.perf_counter()
        outcome = run(make(), given.keep)
        outcomes.append(outcome)
        print(line(outcome, time.perf_counter() - start), flush=True)
        if given.findings:
            for severity, rule, title in outcome.findings:
                print(f"      {severity} {rule}: {title}")
    print("\n".join([*accuracy(outcomes), *wrong(outcomes), *confusion(outcomes)]))
    if not real.DATA.is_dir():
        print(f"Faults in real recordings skipped: {real.DATA} is missing.")
    if given.write:
        write_page(outcomes)


def print_gains(
    predicted: Callable[[range, str], Iterator[Prediction]], seeds: range, only: str
) -> None:
    """Print predicted and true gains."""
    rows = []
    for one in predicted(seeds, only):
        rows.append(one)
        mark = "--  " if one.why else "ok  " if one.is_right else "far "
        share = one.why or f"{one.true_ns / one.step_ns:6.1%} {one.gain_ns / one.step_ns:6.1%}"
        print(f"{mark} {one.case:44} {one.seed:6} {share}", flush=True)
    print("\n".join(["", *table(rows)]))


def selected(seeds: range, only: str) -> Iterator[Callable[[], Case]]:
    """Yield simulated cases of all seeds, then those of real recordings."""
    for seed in seeds:
        yield from (plan.make for plan in plans(seed) if only in plan.name)
    yield from (make for name, make in real.cases() if only in name)


def line(outcome: Outcome, seconds: float) -> str:
    """Format one case."""
    mark = "ok  " if outcome.top1 else "top3" if outcome.top3 else "--  "
    first = f"{outcome.findings[0][0]} {outcome.findings[0][1]}" if outcome.findings else "nothing"
    return (
        f"{mark} {outcome.case:34} {outcome.cost_frac:4.0%} {seconds:5.2f} s  {first:32} "
        f"{outcome.why}  [{outcome.setting}, seed {outcome.seed}]"
    )


if __name__ == "__main__":
    main()
