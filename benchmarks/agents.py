"""Ten questions about the fixtures, with the calls of tools that answer them (``make agents``).

No model is needed: each call is executed as ``traceanalyzer mcp`` executes it, and the answer is
compared with the fault that the script of the fixture builds in (``fixtures/README.md``), or, for
three questions (SQL, the place of a hang, a leak), with the answer of the day it was written. To
evaluate a model, give it the questions and compare its answers with ``expected``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[1] / "fixtures"

Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """A question with a known answer.

    Attributes:
        text: the question.
        tool: the tool that answers it.
        arguments: its arguments; paths are relative to ``fixtures/``.
        value: the part of the tool's answer that answers the question.
        expected: its value.
    """

    text: str
    tool: str
    arguments: Mapping[str, Any]
    value: Callable[[Answer], Any]
    expected: Any


_RUN = {"paths": ["nccl_8ranks"]}
_SQL = (
    "select rank, count(*) as n from events join collectives using (event, rank) "
    "where kind = 'kernel' and collective = 'all_gather' group by rank order by rank"
)

QUESTIONS = (
    Question(
        "Which rank of nccl_8ranks do the other ranks wait for?",
        "comm_outliers",
        {**_RUN, "tables": ["ranks"]},
        lambda answer: max(answer["ranks"], key=lambda row: row["imposed_ns"])["rank"],
        5,
    ),
    Question(
        "In which steps of nccl_8ranks does that rank wait for the data loader?",
        "gpu_idle",
        {**_RUN, "rank": 5, "by": "step", "tables": ["steps"]},
        lambda answer: sorted(
            row["step"] for row in answer["steps"] if row["dataloading_ns"] > 10_000_000
        ),
        ["ProfilerStep#12", "ProfilerStep#15"],
    ),
    Question(
        "Which collective of nccl_8ranks was slow after every rank had joined, and in which step?",
        "comm_outliers",
        {**_RUN, "tables": ["collectives"]},
        lambda answer: [
            (row["collective"], row["step"]) for row in answer["collectives"] if row["slow"]
        ],
        [("reduce_scatter", "ProfilerStep#13")],
    ),
    Question(
        "The clocks of which ranks of nccl_8ranks differ from the clock of rank 0?",
        "comm_outliers",
        {**_RUN, "tables": ["clocks"]},
        lambda answer: [row["rank"] for row in answer["clocks"] if abs(row["offset_ns"]) > 10**6],
        [4, 5, 6, 7],
    ),
    Question(
        "Which rank does rank 0 of nccl_8ranks wait for, 35 ms after the start of the run?",
        "timeline_slice",
        {**_RUN, "start": "34ms", "end": "36ms", "tables": ["states"]},
        lambda answer: [row["peer"] for row in answer["states"] if row["on"] == "rank 0"],
        [5],
    ),
    Question(
        "How many all_gather kernels does each rank of nccl_8ranks run?",
        "query",
        {**_RUN, "sql": _SQL},
        lambda answer: [(row["rank"], row["n"]) for row in answer["rows"]],
        [(rank, 24) for rank in range(8)],
    ),
    Question(
        "Which rank of the hanging job in flight_recorder/missing is missing, and where is it?",
        "hang",
        {"paths": ["flight_recorder/missing"]},
        lambda answer: (answer["culprit_ranks"], answer["threads"][0]["place"]),
        ([2], "load_batch (data.py:17)"),
    ),
    Question(
        "Which function of memory/leak.pickle keeps memory from step to step?",
        "memory_growth",
        {"paths": ["memory/leak.pickle"]},
        lambda answer: [row["function"] for row in answer["growth"]],
        ["keep_losses"],
    ),
    Question(
        "Which part of a step became slower most by the upgrade of upgrade/before.json.gz to "
        "upgrade/after.json.gz?",
        "diff",
        {"before": ["upgrade/before.json.gz"], "after": ["upgrade/after.json.gz"]},
        lambda answer: max(answer["parts"], key=lambda row: row["change_ns"])["part"],
        "data loading",
    ),
    Question(
        "What is the first finding about nsys/training.sqlite, and on which rank?",
        "diagnose",
        {"paths": ["nsys/training.sqlite"], "tables": ["findings"]},
        lambda answer: [(row["id"], row["rank"]) for row in answer["findings"]][:1],
        [("data-loading", 1)],
    ),
)


def main() -> int:
    """Print each question with its answer; return 1 if one is wrong."""
    from traceanalyzer.tools.mcp.answers import Answers
    from traceanalyzer.tools.mcp.tools import Roots

    answers = Answers(Roots([str(FIXTURES)]))
    right = 0
    for question in QUESTIONS:
        value = question.value(answers.answer(question.tool, question.arguments))
        right += value == question.expected
        mark = "right" if value == question.expected else f"WRONG, not {question.expected!r}"
        print(f"{question.text}\n  {question.tool}: {value!r} ({mark})")
    print(f"{right} of {len(QUESTIONS)} right")
    return int(right < len(QUESTIONS))


if __name__ == "__main__":
    sys.exit(main())
