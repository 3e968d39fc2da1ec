"""Ten questions about the fixtures, with the calls of tools that answer them (``make agents``).

No model is needed: each call is executed as ``traceanalyzer mcp`` executes it, and the answer is
compared with the fault that the script of the fixture builds in (``fixtures/README.md``), or, for
three questions (SQL, the place of a hang, a leak), with the answer of the day it was written. To
evaluate a model, give it the questions and compare its answers with ``expected``.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
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
        "diagnose",
        {**_RUN, "tables": ["findings"]},
        lambda answer: [
            (row["evidence"][0].split()[1], row["step"])
            for row in answer["findings"]
            if row["id"] == "slow-collectives"
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


#: A piece of text as GPT-4's tokenizer (cl100k) splits it first: at least one token each.
_PIECE = re.compile(
    r"'(?:[sdmt]|ll|ve|re)|[^\r\n\w]?[^\W\d_]+|\d{1,3}| ?[^\s\w]+[\r\n]*|_|\s*[\r\n]+|\s+",
    re.IGNORECASE,
)
PAGE = Path(__file__).parents[1] / "docs" / "mcp.md"
_BEGIN, _END = "<!-- begin: make agents -->", "<!-- end: make agents -->"


def tokens(text: str) -> int:
    """Return a lower bound of the tokens of a text: the pieces that a tokenizer splits it into."""
    return sum(1 for _ in _PIECE.finditer(text))


def raw_tokens(question: Question) -> int | None:
    """Return the tokens of the files that a question is about; None if they are no text."""
    arguments = question.arguments
    names = [*arguments.get("paths", ()), *arguments.get("before", ()), *arguments.get("after", ())]
    roots = [FIXTURES / name for name in names]
    paths = [path for root in roots for path in ([*root.rglob("*")] if root.is_dir() else [root])]
    total = 0
    for path in filter(Path.is_file, paths):
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        try:
            total += tokens(content.decode())
        except UnicodeDecodeError:
            return None
    return total


def main() -> int:
    """Print each question with its answer; return 1 if one is wrong.

    ``--write`` also asks HTA, and writes the table of ``docs/mcp.md``.
    """
    from traceanalyzer.tools.mcp.answers import Answers
    from traceanalyzer.tools.mcp.tools import Roots

    answers = Answers(Roots([str(FIXTURES)]))
    right, used = 0, []
    for question in QUESTIONS:
        answer = answers.answer(question.tool, question.arguments)
        value = question.value(answer)
        right += value == question.expected
        used.append(tokens(json.dumps([question.tool, question.arguments, answer])))
        mark = "right" if value == question.expected else f"WRONG, not {question.expected!r}"
        print(f"{question.text}\n  {question.tool}: {value!r} ({mark}), {used[-1]:,} tokens")
    print(f"{right} of {len(QUESTIONS)} right")
    if "--write" in sys.argv and right == len(QUESTIONS):
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
        page = f"{before}{_BEGIN}\n\n{table(used, of_hta())}\n\n{_END}{rest.partition(_END)[2]}"
        PAGE.write_text(page, encoding="utf-8")
    return int(right < len(QUESTIONS))


def of_hta() -> dict[str, Any]:
    """Return HTA's answers by the number of the question, see ``agents_hta``."""
    from benchmarks import peers

    peers.install()
    program = [str(peers.PYTHON), str(Path(__file__).with_name("agents_hta.py"))]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def table(used: Sequence[int], hta: Mapping[str, Any]) -> str:
    """Return the table of questions; all of our answers are right."""
    lines = [
        "| question | tokens of the answer | raw files | HTA |",
        "|---|--:|--:|--:|",
    ]
    sums, known = [0, 0], 0
    for number, (question, count) in enumerate(zip(QUESTIONS, used, strict=True), 1):
        raw, other = raw_tokens(question), hta.get(str(number))
        text = "-"
        if other is not None:
            is_right = json.dumps(other["answer"]) == json.dumps(question.expected)
            known += is_right
            text = f"{tokens(other['text']):,}, {'right' if is_right else 'wrong'}"
        sums = [sums[0] + count, sums[1] + (raw or 0)]
        lines.append(
            f"| {question.text} | {count:,} | {f'{raw:,}' if raw else 'not text'} | {text} |"
        )
    totals = (f"{len(used)} right, {sums[0]:,}", f"{sums[1]:,}", f"{known} right")
    return "\n".join([*lines, f"| all | {' | '.join(totals)} |"])


if __name__ == "__main__":
    sys.exit(main())
