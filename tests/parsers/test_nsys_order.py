"""Order of rows of several tables: by start, longest first, then by table and row."""

import polars as pl
from hypothesis import given, strategies as st
from polars.testing import assert_frame_equal

from traceanalyzer import schema
from traceanalyzer.parsers.sqlite.rows import assemble

ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.one_of(st.none(), st.integers(0, 4)), st.integers(0, 99)),
    max_size=25,
)


def part(rows, kind, *, ordered, device, pieces):
    """Rows of one sort as a parser makes them: in pieces, and without what its table lacks."""
    rows = sorted(rows, key=lambda row: row[0]) if ordered else rows
    cut = len(rows) // pieces
    frames = [
        pl.DataFrame(
            {"ts": [r[0] for r in some], "dur": [r[1] for r in some]},
            schema={"ts": pl.Int64, "dur": pl.Int64},
        ).with_columns(
            pl.lit(kind, schema.KIND).alias("kind"),
            name=pl.Series([f"name {r[2]}" for r in some], dtype=schema.NAME),
            **({"device": pl.Series([r[2] for r in some], dtype=pl.Int32)} if device else {}),
            **({"grid_x": pl.Series([r[2] for r in some], dtype=pl.Int32)} if device else {}),
        )
        for some in (rows[:cut], rows[cut:])
    ]
    return pl.concat(frames, rechunk=False)


def expected(parts):
    """Every row with its sort, by (start, longest first, table, row)."""
    rows = [
        (row["ts"], -(row["dur"] if row["dur"] is not None else -1), number, at, row)
        for number, frame_part in enumerate(parts)
        for at, row in enumerate(frame_part.iter_rows(named=True))
    ]
    return [row for *_, row in sorted(rows, key=lambda row: row[:4])]


@given(
    tables=st.lists(st.tuples(ROWS, st.booleans(), st.booleans()), min_size=1, max_size=4),
    pieces=st.integers(1, 3),
)
def test_rows_of_all_tables_are_sorted(tables, pieces):
    kinds = ("kernel", "gpu_memcpy", "cuda_runtime", "nvtx")
    parts = [
        part(rows, kind, ordered=ordered, device=device, pieces=pieces)
        for kind, (rows, ordered, device) in zip(kinds, tables, strict=False)
    ]
    rows = expected(parts)
    result = assemble(list(parts))
    events = result["events"]
    assert events.height == len(rows)
    if not rows:
        return
    for name in ("ts", "dur", "kind", "name", "device"):
        expected_values = [row.get(name) for row in rows]
        assert events[name].to_list() == expected_values, name
    configs = [
        {"event": event, "grid_x": row["grid_x"]}
        for event, row in enumerate(rows)
        if row.get("grid_x") is not None
    ]
    types = {"event": pl.UInt32, "grid_x": pl.Int32}
    assert_frame_equal(
        result["launch_configs"].select("event", "grid_x"), pl.DataFrame(configs, schema=types)
    )


def test_columns_are_contiguous():
    """Whoever looks at a column as an array would copy one that is in pieces each time."""
    rows = [(at, None if at % 3 else 1, at) for at in range(40)]
    parts = [
        part(rows, "kernel", ordered=True, device=True, pieces=2),
        part(rows[::5], "gpu_memcpy", ordered=True, device=False, pieces=2),
    ]
    events = assemble(parts)["events"]
    assert events.height == 48
    assert {column.n_chunks() for column in events.get_columns()} == {1}
    assert not parts
