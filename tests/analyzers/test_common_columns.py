"""Tests of expressions that several analyzers share."""

import polars as pl

from traceanalyzer.analyzers.common.columns import previous


def test_the_value_before_is_null_where_a_key_changes() -> None:
    """Null keys are equal to each other, as in a window."""
    keys = ["path", "lane"]
    rows = pl.DataFrame(
        {
            "path": ["a", "a", "a", "a", "b", "b", None, None],
            "lane": [None, None, 1, 1, 1, 1, 1, 2],
            "ts": [1, None, 3, 4, 5, 6, 7, 8],
        }
    )
    window = rows.select(pl.col("ts").shift(1).over(keys))
    assert rows.select(previous(pl.col("ts"), *keys)).equals(window)
    assert window["ts"].to_list() == [None, 1, None, 3, None, 5, None, None]
