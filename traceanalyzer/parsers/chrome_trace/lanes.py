"""Names of processes and threads to the ``lanes`` table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.chrome_trace.columns import TEXTUAL_ID, Collected, Ints

_LANE_COLUMNS = {
    "name": ("label", "name"),
    "labels": ("labels", "labels"),
    "sort_index": ("sort_index", "sort_index"),
}

Lanes = dict[tuple[int, int | None], dict[str, Any]]


def lane_table(
    collected: Collected, rank: int | None, used: tuple[Ints, Ints] | None
) -> pl.DataFrame:
    """Processes and threads that have a name, label or textual id; the last word wins.

    Args:
        collected: whose metadata events name them.
        rank: the file's rank.
        used: pid and tid of all slices, to tell the textual ones among them, or None.
    """
    lanes: Lanes = {}
    for what, pid_number, pid_label, tid_number, tid_label, args in collected.metadata:
        thing, _, attribute = what.partition("_")
        if thing not in ("process", "thread") or attribute not in _LANE_COLUMNS:
            continue
        pid = collected.lane_id(pid_number, pid_label) or 0
        tid = collected.lane_id(tid_number, tid_label) if thing == "thread" else None
        tid = pid if thing == "thread" and tid is None else tid
        column, key = _LANE_COLUMNS[attribute]
        value = json.loads(args).get(key)
        if value is not None:
            lanes.setdefault((pid, tid), {})[column] = value
    if used:
        _add_textual(lanes, collected, *used)
    rows = [
        (
            rank,
            pid,
            tid,
            found.get("label"),
            found.get("labels"),
            found.get("sort_index"),
            found.get("textual", False),
        )
        for (pid, tid), found in lanes.items()
    ]
    types = {c.name: c.dtype for c in schema.LANES}
    return pl.DataFrame(rows, schema=types, orient="row").sort(
        "pid", "tid", nulls_last=False, maintain_order=True
    )


def _add_textual(lanes: Lanes, collected: Collected, pids: Ints, tids: Ints) -> None:
    text_of = {number: label for label, number in collected.labels.items()}
    textual = (pids >= TEXTUAL_ID) | (tids >= TEXTUAL_ID)
    used = np.unique(np.stack([pids[textual], tids[textual]]), axis=1)
    for pid, tid in used.T.tolist():
        for key, own in (((pid, None), pid), ((pid, tid), tid)):
            if own in text_of:
                lanes.setdefault(key, {}).setdefault("label", text_of[own])
    for (pid, tid), found in lanes.items():
        found["textual"] = (pid if tid is None else tid) in text_of
        if found["textual"]:
            found["label"] = text_of[pid if tid is None else tid]
