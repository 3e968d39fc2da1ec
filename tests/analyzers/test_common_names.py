"""Functions of the names of events."""

import polars as pl

from traceanalyzer.analyzers.common import names


def test_few_and_many_rows_are_mapped_alike() -> None:
    few = pl.Series("name", ["b", None, "a", "b"], dtype=pl.Categorical)
    many = pl.concat([few] * 1000)
    short = names.mapped(few, len, pl.Int64)
    assert short.to_list() == [1, None, 1, 1]
    assert short.dtype == pl.Int64
    assert names.mapped(many, len, pl.Int64).equals(pl.concat([short] * 1000))


def test_a_function_that_returns_nothing_gives_null() -> None:
    assert names.mapped(pl.Series(["a", "b"]), {"a": "x"}.get).to_list() == ["x", None]
