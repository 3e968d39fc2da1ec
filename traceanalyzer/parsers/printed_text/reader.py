"""Read a file line by line, and build the trace with its table ``aggregates``."""

import re

import polars as pl

from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.printed_text import (
    flops_profile,
    job_events,
    key_averages,
    memory_summary,
    training_log,
)
from traceanalyzer.parsers.printed_text.lines import Line, Lines, Rows, joined
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.trace import Meta, Trace, issue_rows
from traceanalyzer.vocabulary import PRINTED_TEXT

#: What the first line of a table, or a line outside of one, contains.
_WORTH = re.compile(
    r"----|(?:#|Number) of Calls|time \(ms\)|/global_step=|Max_MA|CPU Virtual|comm op:|Comm\. Op"
    r"|\.\.: \(?\d|[Mm]emory (?:summary|requirement|\(MB\))|Flops Profiler|per iteration|iter time"
    r"|Tried to allocate|\b[tw]ps: |\biter \d|_runtime'"
)
#: A step whose loss is not a number is an event, too.
_NAN = re.compile(r"(?i)\bnan\b")
#: Forms that users print, on any rank.
_BY_EVERY_RANK = (
    key_averages.FORM, memory_summary.FORM, memory_summary.ERROR, job_events.FORM,
    job_events.CONTEXT,
)  # fmt: skip
#: Processes of a log that are read apart; a log with more has numbers before its lines.
_MOST_PROCESSES = 1 << 16


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:  # noqa: ARG001 - small, always read wholly
    """Read all tables and lines of known forms; other lines are ignored.

    The rank of a row is that in its line, else that of the launcher, else that of the file's name,
    else, for what DeepSpeed prints, that of all its other lines.

    Raises:
        MalformedInput: the text has none of the forms.
        UnreadableFile: the file cannot be read.
    """
    rows = Rows()
    processes: dict[str, _Process] = {}
    last = None
    for last in joined(Lines(source, progress, rows, job_events.all_marks())):
        process = processes.get(last.process)
        if process is None:
            label = last.process if len(processes) < _MOST_PROCESSES else ""
            process = processes.setdefault(label, _Process(rows))
        process.feed(last)
    if last is not None:
        for process in processes.values():
            process.close(last)
    table = rows.table()
    if table.is_empty():
        raise MalformedInput(
            source.path,
            "no table of PyTorch or DeepSpeed in this text",
            hint="key_averages().table(), memory_summary(), DeepSpeed's flops profile, timers, "
            "memory and communication lines, and steps of TorchTitan and nanoGPT are read",
        )
    rank = rank_from_name(source.path)
    table = table.with_columns(pl.col("rank").fill_null(pl.lit(rank, pl.Int32)))
    table = _with_only_rank(table)
    forms = table["form"].cast(pl.String).unique(maintain_order=True)
    ranks = table["rank"].unique().to_list()
    meta = Meta(
        path=source.path,
        format=PRINTED_TEXT,
        version=", ".join(forms),
        rank=ranks[0] if len(ranks) == 1 else rank,
    )
    counted = [(*kind, n, f"line {first}") for kind, (n, first) in rows.issues.items()]
    issues = issue_rows([*counted, *source.issues], meta.rank)
    return Trace(sources=(meta,), aggregates=table, issues=issues)


def _with_only_rank(table: pl.DataFrame) -> pl.DataFrame:
    """Fill the rank of DeepSpeed's rows without one, if all others are of one rank.

    DeepSpeed prints from rank 0 only, but names the rank only in what it logs.
    """
    known = table["rank"].drop_nulls().unique()
    if known.len() != 1:
        return table
    by_every_rank = pl.col("form").cast(pl.String).is_in(_BY_EVERY_RANK)
    only = pl.when(~by_every_rank).then(pl.lit(known[0], pl.Int32))
    return table.with_columns(pl.col("rank").fill_null(only))


class _Process:
    """The forms that one process prints."""

    def __init__(self, rows: Rows) -> None:
        self._tables = (
            key_averages.Reader(rows), memory_summary.Reader(rows), flops_profile.Reader(rows),
        )  # fmt: skip
        self._log, self._events = training_log.Reader(rows), job_events.Reader(rows)

    def feed(self, line: Line) -> None:
        """Read a line with the form that it belongs to, if any."""
        is_worth = _WORTH.search(line.text) is not None
        for table in self._tables:
            if (is_worth or table.is_open) and table.feed(line):
                return
        is_step = (is_worth or self._log.is_open) and self._log.feed(line)
        if not is_step or _NAN.search(line.text):
            self._events.feed(line)
        self._log.remember(line)

    def close(self, line: Line) -> None:
        """End the text."""
        for table in self._tables:
            table.close(line)
        self._events.close()
