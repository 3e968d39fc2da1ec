"""Annotations of real recordings against sums of Nsight Systems' rows; parts that add up."""

from __future__ import annotations

import csv
import gzip
import sqlite3
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer.analyzers.annotations.compute import NEEDS, annotated, attribute, launched
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.nesting import ROOT
from traceanalyzer.run.ranks import by_rank
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ANNOTATION_KINDS, DEVICE_WORK

EXPORTS = ("mfu_2gpu_before", "mfu_2gpu_after", "power_iteration_t4", "saxpy_mpi_lazy_false")


#: What PyTorch's ``emit_nvtx`` adds to the name of an operator.
CALL = (", seq = ", ", op_id = ")


def name_of(text: str) -> str:
    """Return the name as the parser does, without numbers of single calls."""
    return min((text.split(word, 1)[0] for word in CALL), key=len)


def oracle(shared: Path, name: str, table: str) -> list[dict[str, str]]:
    folder = shared / "oracle/nsys" / name
    path = folder / f"{table}.csv"
    data = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
    return list(csv.DictReader(data.decode().splitlines()))


@pytest.fixture(scope="module")
def exports(shared: Path) -> dict[str, Trace]:
    return {
        name: ta.read(
            shared / f"data/nsys/{name}.sqlite.gz", kinds=NEEDS.kinds, unused=NEEDS.unused
        )
        for name in EXPORTS
    }


def attributed(trace: Trace) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return every range with its process, thread and launched kernels; and every kernel.

    The oracle counts kernels only; we count copies and sets too, as nsys itself does.
    """
    kernels = trace.select(~pl.col("kind").is_in(("gpu_memcpy", "gpu_memset")))
    ranges, pieces = [], []
    for of_rank in by_rank(kernels):
        marked, _ = annotated(of_rank, ())
        work, _ = launched(of_rank, marked)
        result = attribute(marked, work)
        place = of_rank.events.select("pid", "tid")[result.ranges["event"]]
        ranges.append(result.ranges.with_columns(place))
        inner = result.innermost
        inside = np.flatnonzero(inner != ROOT)
        kernel = of_rank.events.select(kernel="name", length="dur")[work["event"].gather(inside)]
        pieces.append(result.ranges.select("name", "domain")[inner[inside]].hstack(kernel))
    return pl.concat(ranges), pl.concat(pieces)


@pytest.mark.matrix
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", EXPORTS)
def test_host_time_agrees_with_nvtx_sum(shared: Path, exports: dict[str, Trace], name: str) -> None:
    rows = oracle(shared, name, "nvtx_sum")
    expected: dict[str, list[int]] = {}
    for row in rows:
        if row["range"].startswith("MPI_"):  # calls, not ranges
            continue
        n, total, low, high = (int(row[c]) for c in ("instances", "total_ns", "min_ns", "max_ns"))
        have = expected.setdefault(name_of(row["range"]), [0, 0, low, high])
        have[:] = have[0] + n, have[1] + total, min(have[2], low), max(have[3], high)
    result = ta.annotations(exports[name])
    ours = result.annotations.group_by("name").agg(
        pl.col("ranges", "host_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max()
    )
    assert {key: list(values) for key, *values in ours.iter_rows()} == expected


@pytest.mark.parametrize("name", EXPORTS)
def test_projections_agree_with_the_reference(
    shared: Path, exports: dict[str, Trace], name: str
) -> None:
    rows = oracle(shared, name, "nvtx_gpu_proj_kernels_only")
    numbers = ("range_start_ns", "range_end_ns", "proj_start_ns", "proj_end_ns", "num_kernels")
    expected = Counter(
        (int(row["globalTid"]) & 0xFFFFFF, name_of(row["range"]), *(int(row[c]) for c in numbers))
        for row in rows
    )
    ranges, _ = attributed(exports[name])
    values = ranges.filter(pl.col("n") > 0).select(
        "tid", pl.col("name").cast(pl.String), "start", "end",
        "projected_start", "projected_end", "kernels",
    )  # fmt: skip
    assert expected
    assert Counter(values.iter_rows()) == expected


@pytest.mark.parametrize("name", EXPORTS)
def test_innermost_kernels_agree_with_the_reference(
    shared: Path, exports: dict[str, Trace], name: str
) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    lengths: Counter[tuple[str, str]] = Counter()
    for row in oracle(shared, name, "nvtx_innermost_kern_sum"):
        key = name_of(row["range"]), row["kernel"]
        expected[key] += int(row["instances"])
        lengths[key] += int(row["kernel_ns"])
    _, kernels = attributed(exports[name])
    short = short_names(shared / f"data/nsys/{name}.sqlite.gz")
    ours: Counter[tuple[str, str]] = Counter()
    our_lengths: Counter[tuple[str, str]] = Counter()
    for mark, _, kernel, length in kernels.iter_rows():
        ours[mark, short[kernel]] += 1
        our_lengths[mark, short[kernel]] += length
    assert ours == expected
    assert our_lengths == lengths


def short_names(path: Path) -> dict[str, str]:
    """Return the short name of each demangled name, from the file."""
    database = sqlite3.connect(":memory:")
    database.deserialize(gzip.decompress(path.read_bytes()))
    rows = database.execute(
        "SELECT DISTINCT d.value, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k"
        " JOIN StringIds d ON d.id = k.demangledName JOIN StringIds s ON s.id = k.shortName"
    )
    return dict(rows.fetchall())


def test_all_parts_add_up_on_every_recording(shared: Path, thorough: bool) -> None:
    """Check work inside and outside of annotations, ranges and host time (Kineto and nsys)."""
    checked = 0
    folders = ("chrome/kineto", "nsys")
    paths = [path for folder in folders for path in (shared / "data" / folder).glob("*.gz")]
    for path in sorted(paths)[:: 1 if thorough else 4]:
        trace = ta.read(path, kinds=NEEDS.kinds, names=NEEDS.names)
        work = trace.events.filter(pl.col("kind").is_in(DEVICE_WORK), pl.col("dur") >= 0)
        try:
            result = ta.annotations(trace)
        except MissingData:
            assert not trace.events["kind"].is_in(ANNOTATION_KINDS).any(), path
            continue
        checked += 1
        rows = result.annotations
        assert (result.work.n, result.work.total_ns) == (work.height, work["dur"].sum())
        assert rows["self_n"].sum() == result.inside.n
        assert rows["self_device_ns"].sum() == result.inside.total_ns
        outside = result.other_thread.total_ns + result.unlaunched.total_ns
        assert result.inside.total_ns + outside <= result.work.total_ns
        assert rows["ranges"].sum() == result.ranges
        assert (rows["n"] >= rows["self_n"]).all()
        assert (rows["host_ns"] >= rows["self_ns"].fill_null(0)).all()
        assert str(result)
    assert checked > (15 if thorough else 3)  # of 21
