"""Division of a trace of several ranks."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from comm_traces import GEMM, US, device, host, trace

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.run.ranks import by_rank, split_by_rank

FIXTURES = Path(__file__).parents[2] / "fixtures"
FILES = [FIXTURES / "nsys" / "training.sqlite", FIXTURES / "nccl_8ranks"]


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    texts = [n for n, t in frame.schema.items() if isinstance(t, pl.Categorical | pl.Enum)]
    return frame.with_columns(pl.col(texts).cast(pl.String)) if texts else frame


def whole(path: Path) -> ta.Trace:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return ta.concat([ta.read(file) for file in files])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_part_equals_the_selected_rank(path):
    trace = whole(path)
    parts = by_rank(trace)
    assert [part.meta.rank for part in parts] == sorted(set(trace.events["rank"]))
    for part in parts:
        selected = trace.select(pl.col("rank") == part.meta.rank)
        for name in ("events", *schema.EVENT_TABLES):
            if name != "flows":
                assert plain(part.tables[name]).equals(plain(selected.tables[name])), name
        assert set(part.flows["rank"]) <= {part.meta.rank}
        assert schema.check(part.tables) == []
    assert sum(part.flows.height for part in parts) == trace.flows.height


def test_arrows_stay_with_their_slices():
    trace = whole(FILES[1])
    for part in by_rank(trace):
        bound = part.flows.drop_nulls("event")
        assert bound.height
        slices = part.events[bound["event"]]
        assert (slices["ts"] <= bound["ts"]).all()
        assert (slices["pid"].fill_null(bound["pid"]) == bound["pid"]).all()


def test_process_without_rank_is_dropped():
    work = [device(GEMM, 0, US, rank=0, pid=1), device(GEMM, 0, US, rank=1, pid=2, device=1)]
    launcher = host("osrt", "poll", 0, US, rank=None, pid=9)
    assert [t.meta.rank for t in by_rank(trace([*work, launcher]))] == [0, 1]
    using = device(GEMM, 0, US, rank=None, pid=9)
    assert [t.meta.rank for t in by_rank(trace([*work, launcher, using]))] == [None, 0, 1]


def test_single_rank_is_unchanged():
    one = trace([device(GEMM, 0, US)])
    (part,) = split_by_rank([one])
    assert part is one
