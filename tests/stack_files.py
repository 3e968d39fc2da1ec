"""Stacks of a trace as text, and the count of samples in a file."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from traceanalyzer.trace import Trace

_COUNT = re.compile(r" (\d+(?:\.\d*)?)\r?$", re.M)
_COUNTS = re.compile(r" (\d+) (\d+)\r?$", re.M)


def total(path: Path) -> float:
    """Return the sum of the numbers at the ends of lines, two per line in diffs."""
    data = path.read_bytes()
    text = data.decode("utf-16") if data.startswith(b"\xff\xfe") else data.decode()
    if path.name.endswith("-diff.txt"):
        return sum(float(number) for pair in _COUNTS.findall(text) for number in pair)
    return sum(map(float, _COUNT.findall(text)))


def frame_texts(trace: Trace) -> list[str]:
    """Return the frame of each row of ``stacks`` in the format of py-spy."""
    texts = []
    for name, file, line in trace.stacks.select("name", "file", "line").rows():
        where = "" if file is None else f" ({file}{'' if line is None else f':{line}'})"
        texts.append(name + where)
    return texts


def stack_texts(trace: Trace) -> list[str]:
    """Return the frames of each sample, outermost first, joined by semicolons."""
    whole: list[str] = []
    for text, parent in zip(frame_texts(trace), trace.stacks["parent"], strict=True):
        whole.append(text if parent is None else f"{whole[parent]};{text}")
    return ["" if leaf is None else whole[leaf] for leaf in trace.events["stack"]]


def samples(trace: Trace) -> list[tuple[str, float, int | None, int | None]]:
    """Return (stack, weight, pid, tid) of each sample, sorted."""
    columns = trace.events.filter(pl.col("kind") == "sample").select("weight", "pid", "tid").rows()
    rows = [(text, *row) for text, row in zip(stack_texts(trace), columns, strict=True)]
    return sorted(rows, key=str)
