"""Answers of Holistic Trace Analysis to the questions of ``benchmarks.agents``, in its environment.

Run by ``python -m benchmarks.agents --write``. Prints JSON: the number of a question to ``answer``
and ``text``, the table that has it as CSV. A question without a fitting function is left out; so is
one whose files HTA does not read.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[1] / "fixtures"


def main() -> None:
    """Print the answers as JSON on the last line."""
    answers = {}
    for number, ask in ((1, straggler), (6, counts), (9, upgrade)):
        try:
            answer, table = ask()
            answers[number] = {"answer": answer, "text": table.to_csv()}
        except Exception as error:  # noqa: BLE001 - an error is an answer, too
            answers[number] = {"answer": None, "text": f"{type(error).__name__}: {error}"}
    print(json.dumps(answers))


def analysis(**files: Any) -> Any:
    """Return HTA's analysis of files; it prints much."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    with contextlib.redirect_stdout(sys.stderr):
        return TraceAnalysis(**files)


def straggler() -> tuple[Any, Any]:
    """Return the rank that is idle most: HTA has no function that names whom ranks wait for."""
    table = analysis(trace_dir=str(FIXTURES / "nccl_8ranks")).get_temporal_breakdown(
        visualize=False
    )
    return int(table.loc[table["idle_time(us)"].idxmax(), "rank"]), table


def counts() -> tuple[Any, Any]:
    """Return rank and number of all_gather kernels: sum over mean of the breakdown by kernel."""
    run = analysis(trace_dir=str(FIXTURES / "nccl_8ranks"))
    _, table = run.get_gpu_kernel_breakdown(visualize=False)
    rows = table[table["name"].str.contains("AllGather")].sort_values("rank")
    numbers = (rows["sum (us)"] / rows["mean (us)"]).round().astype(int)
    return [[int(rank), int(n)] for rank, n in zip(rows["rank"], numbers, strict=True)], table


def upgrade() -> tuple[Any, Any]:
    """Return the operator whose duration grew most, without the step itself."""
    from hta.trace_diff import TraceDiff  # type: ignore[import-not-found]

    runs = []
    for name in ("before", "after"):
        files = {0: str(FIXTURES / f"upgrade/{name}.json.gz")}
        runs.append(analysis(trace_files=files, trace_dir=str(FIXTURES / "upgrade")).t)
    with contextlib.redirect_stdout(sys.stderr):
        table = TraceDiff.compare_traces(*runs)
    by_growth = table.sort_values("diff_duration", ascending=False)
    name = next(str(name) for name in by_growth.index if not name.startswith("ProfilerStep"))
    return "data loading" if "DataLoader" in name else name, by_growth


if __name__ == "__main__":
    main()
