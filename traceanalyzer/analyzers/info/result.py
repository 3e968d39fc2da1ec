"""What files are and hold, and what is shown of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix

import polars as pl

from traceanalyzer.analyzers.common.ranks import ranges
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_ns

#: Severities of issues that are losses.
LOSSES = ("error", "data_loss")

_FILES_SHOWN = {
    "file": "file",
    "rank": "rank",
    "world_size": "of",
    "format": "format",
    "version": "version",
    "host": "host",
    "devices": "devices",
    "start_utc": "start (UTC)",
}
_CONTENTS_SHOWN = {
    "file": "file",
    "span_ns": "span",
    "steps": "steps",
    "events": "events",
    "communication": "communication",
    "communication_ns": "comm. sum",
    "lost": "lost",
}
_KINDS_SHOWN = {"kind": "kind", "files": "files", "events": "events", "sum_ns": "sum of durations"}
_ISSUES_SHOWN = {
    "file": "file",
    "severity": "severity",
    "code": "finding",
    "count": "count",
    "first": "first",
}
_NOTE = "A sum of durations counts nested and concurrent events each in full."


@dataclass(frozen=True, eq=False, repr=False)
class Info(Result):
    """What :func:`traceanalyzer.info` found.

    Attributes:
        files: a row a source file: what it says about itself. ``epoch_ns`` is the absolute time of
            its first event.
        contents: a row a source file: how much is in it. ``communication`` counts communication
            kernels and host-run collectives (gloo, mpi), ``communication_ns`` sums their
            durations, ``lost`` counts what findings of severity data_loss or error lost.
        kinds: a row an event kind over all files; ``sum_ns`` adds up durations, nested ones too.
            The pseudo-kinds counter and flow count readings and arrow points.
        issues: what was odd or lost, a row a file and finding.
        skipped: files that were not read, and why.
    """

    files: pl.DataFrame
    contents: pl.DataFrame
    kinds: pl.DataFrame
    issues: pl.DataFrame
    skipped: pl.DataFrame

    def view(self) -> View:
        """Files, contents, kinds and issues; skipped files where there are any."""
        return View(
            title="What is in these files?",
            verdict=_verdict(self),
            notes=(_NOTE,),
            tables=_tables(self),
        )


# --- verdict ---------------------------------------------------------------------------------


def _verdict(result: Info) -> str:
    """One sentence on each: the files and ranks, the events, the losses, the skipped."""
    sentences = [
        _which(result.files, result.contents["steps"].drop_nulls()),
        _how_much(result.contents),
        _lost(result.issues),
    ]
    if result.skipped.height:
        sentences.append(f"{_counted(result.skipped.height, 'file')} skipped.")
    return " ".join(sentence for sentence in sentences if sentence)


def _which(files: pl.DataFrame, steps: pl.Series) -> str:
    text = _counted(files.height, "file")
    ranks = sorted(files["rank"].drop_nulls().unique())
    if ranks:
        world = files["world_size"].max()
        of = f" of {world}" if isinstance(world, int) and world else ""
        text += f" of {'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}{of}"
    if len(steps):
        low, high = int(steps.min()), int(steps.max())  # type: ignore[arg-type]
        many = f"{low}" if low == high else f"{low} to {high}"
        text += ", one step" if high == 1 else f", {many} steps"
        text += " each" if files.height > 1 else ""
    return f"{text}."


def _how_much(contents: pl.DataFrame) -> str:
    if contents.is_empty():
        return ""
    longest = contents["span_ns"].max()
    over = f" over {format_ns(longest)}" if isinstance(longest, int) else ""
    at_most = " at most" if over and contents.height > 1 else ""
    communication = contents["communication"].sum()
    share = f", {communication:,} of them communication" if communication else ""
    return f"{contents['events'].sum():,} events{over}{at_most}{share}."


def _lost(issues: pl.DataFrame) -> str:
    lost = issues.filter(pl.col("severity").is_in(LOSSES))
    if lost.is_empty():
        return ""
    codes = ", ".join(sorted(lost["code"].unique()))
    return f"{_counted(lost['path'].n_unique(), 'file')} lost events ({codes})."


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# --- tables ----------------------------------------------------------------------------------


def _tables(result: Info) -> tuple[Table, ...]:
    folder = _common_folder(result.files["path"].to_list())
    title = f"Files in {folder}" if folder else "Files"
    tables = [
        Table("files", title, result.files, _told(result.files, _FILES_SHOWN)),
        Table("contents", "Contents", result.contents, _told(result.contents, _CONTENTS_SHOWN)),
        Table("kinds", "Events by kind", result.kinds, _KINDS_SHOWN),
        Table("issues", "Odd or lost", result.issues, _ISSUES_SHOWN),
    ]
    if result.skipped.height:
        shown = {"file": "file", "reason": "why"}
        tables.append(Table("skipped", "Skipped files", result.skipped, shown))
    return tuple(replace(t, frame=_with_file(t.frame, folder)) for t in tables)


def _told(frame: pl.DataFrame, shown: Mapping[str, str]) -> dict[str, str]:
    """The columns in which at least one file says something."""
    empty = {name for name in frame.columns if frame[name].null_count() == frame.height}
    return {name: label for name, label in shown.items() if name not in empty}


def _common_folder(paths: Sequence[str]) -> str:
    """The folder that all files lie in, with its slash; empty for a single file or none."""
    if len(paths) < 2:
        return ""
    start = commonprefix(paths)  # noqa: RUF071 - by characters, then back to a slash
    return start[: start.rfind("/") + 1]


def _with_file(frame: pl.DataFrame, folder: str) -> pl.DataFrame:
    """Paths as short names, where the frame has any."""
    if "path" not in frame.columns:
        return frame
    return frame.with_columns(file=pl.col("path").str.strip_prefix(folder))
