"""Time that fusion of pointwise kernels could save, against a plain loop."""

from itertools import groupby

import polars as pl
import pytest
from hypothesis import given, strategies as st

from traceanalyzer.analyzers.kernels.compute import fusible_ns
from traceanalyzer.analyzers.kernels.training import ATTENTION, ONE_BY_ONE, SCHEMA

#: Name and family of kernels; the first two count.
KERNELS = pl.DataFrame(
    [
        ("vectorized_elementwise_kernel", "elementwise"),
        ("direct_copy_kernel", "copy"),
        ("triton_poi_fused_add_0", "elementwise"),
        ("sgemm", "gemm"),
        (None, "other"),
    ],
    schema={"name": pl.String, "family": pl.String},
    orient="row",
)
COUNTED = {0, 1}

Piece = tuple[int | None, int, int, int]
pieces = st.lists(
    st.tuples(
        st.sampled_from((None, 0, 1)),
        st.integers(0, 2),
        st.integers(0, 9),
        st.integers(0, KERNELS.height - 1),
    ),
    max_size=40,
)


def work_of(rows: list[Piece]) -> tuple[pl.DataFrame, pl.Series]:
    """Work on (device, stream) with a length and kernel each, one after another."""
    lengths = [length for _, _, length, _ in rows]
    starts = [10 * number for number in range(len(rows))]
    frame = pl.DataFrame(
        {
            "device": pl.Series([device for device, *_ in rows], dtype=pl.Int32),
            "stream": pl.Series([stream for _, stream, *_ in rows], dtype=pl.Int64),
            "start": pl.Series(starts, dtype=pl.Int64),
            "end": pl.Series(map(sum, zip(starts, lengths, strict=True)), dtype=pl.Int64),
        }
    )
    return frame, pl.Series([kernel for *_, kernel in rows], dtype=pl.UInt32)


def of_training(work: pl.DataFrame, purpose: str) -> pl.DataFrame:
    rows = work.with_columns(purpose=pl.lit(purpose), name=pl.lit("x"), call=pl.lit(0))
    rows = rows.with_columns(place=None, of_tensor=None)
    return rows.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


NO_TRAINING = pl.DataFrame(schema=SCHEMA)


@given(pieces)
def test_all_but_the_longest_of_a_sequence_count(rows: list[Piece]) -> None:
    expected = [0] * len(rows)
    for lane in {(device, stream) for device, stream, _, _ in rows}:
        of_lane = [n for n, (device, stream, _, _) in enumerate(rows) if (device, stream) == lane]
        for counts, group in groupby(of_lane, key=lambda n: rows[n][3] in COUNTED):
            sequence = list(group) if counts else []
            longest = max(sequence, key=lambda n: rows[n][2], default=None)
            for n in sequence:
                expected[n] = 0 if n == longest else rows[n][2]
    work, number = work_of(rows)
    assert fusible_ns(work, KERNELS, number, NO_TRAINING).to_list() == expected


@pytest.mark.parametrize(
    ("purpose", "kernels", "saved"),
    [(ATTENTION, 3, 0), (ONE_BY_ONE, 3, 0), ("recomputed", 3, 10)],
)
def test_time_of_other_findings_does_not_count(purpose: str, kernels: int, saved: int) -> None:
    rows: list[Piece] = [(0, 7, 5, 0)] * (kernels - 1) + [(0, 7, 6, 1)]
    work, number = work_of(rows)
    found = fusible_ns(work, KERNELS, number, of_training(work, purpose)).sum()
    assert found == saved
