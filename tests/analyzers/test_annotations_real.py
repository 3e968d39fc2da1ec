"""Annotations of real recordings: sums of Nsight Systems' rows, and all parts that must add up."""

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
from traceanalyzer.analyzers.annotations.compute import annotated, attribute, launched, needs
from traceanalyzer.analyzers.annotations.options import Options
from traceanalyzer.analyzers.common.ranks import by_rank
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.nesting import ROOT
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ANNOTATION_KINDS, DEVICE_WORK

EXPORTS = ("mfu_2gpu_before", "mfu_2gpu_after", "power_iteration_t4", "saxpy_mpi_lazy_false")

NEEDS = needs(Options())

#: What PyTorch's ``emit_nvtx`` adds to the name of an operator.
CALL = (", seq = ", ", op_id = ")


def name_of(text: str) -> str:
    """The name as the parser gives it: without what tells one call from another."""
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
    """Every range with its process, thread, and the kernels launched in it; and every kernel.

    The oracle counts kernels only; we count copies and sets too, as nsys itself does.
    """
    kernels = trace.select(~pl.col("kind").is_in(("gpu_memcpy", "gpu_memset")))
    ranges, pieces = [], []
    for own in by_rank(kernels):
        marked, _ = annotated(own, ())
        work, _ = launched(own, marked)
        found = attribute(marked, work)
        place = own.events.select("pid", "tid")[found.ranges["event"]]
        ranges.append(found.ranges.with_columns(place))
        inner = found.innermost
        held = np.flatnonzero(inner != ROOT)
        kernel = own.events.select(kernel="name", length="dur")[work["event"].gather(held)]
        pieces.append(found.ranges.select("name", "domain")[inner[held]].hstack(kernel))
    return pl.concat(ranges), pl.concat(pieces)


@pytest.mark.parametrize("name", EXPORTS)
def test_host_time_is_nvtx_sum(shared: Path, exports: dict[str, Trace], name: str) -> None:
    rows = oracle(shared, name, "nvtx_sum")
    expected: dict[str, list[int]] = {}
    for row in rows:
        n, total, low, high = (int(row[c]) for c in ("instances", "total_ns", "min_ns", "max_ns"))
        have = expected.setdefault(name_of(row["range"]), [0, 0, low, high])
        have[:] = have[0] + n, have[1] + total, min(have[2], low), max(have[3], high)
    found = ta.annotations(exports[name])
    ours = found.annotations.group_by("name").agg(
        pl.col("ranges", "host_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max()
    )
    assert {key: list(values) for key, *values in ours.iter_rows()} == expected


@pytest.mark.parametrize("name", EXPORTS)
def test_projections_are_the_oracles(shared: Path, exports: dict[str, Trace], name: str) -> None:
    rows = oracle(shared, name, "nvtx_gpu_proj_kernels_only")
    numbers = ("range_start_ns", "range_end_ns", "proj_start_ns", "proj_end_ns", "num_kernels")
    expected = Counter(
        (int(row["globalTid"]) & 0xFFFFFF, name_of(row["range"]), *(int(row[c]) for c in numbers))
        for row in rows
    )
    ranges, _ = attributed(exports[name])
    told = ranges.filter(pl.col("n") > 0).select(
        "tid", pl.col("name").cast(pl.String), "start", "end",
        "projected_start", "projected_end", "kernels",
    )  # fmt: skip
    assert expected
    assert Counter(told.iter_rows()) == expected


@pytest.mark.parametrize("name", EXPORTS)
def test_innermost_kernels_are_the_oracles(
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
    """Each kernel's short name, by its demangled name, from the file itself."""
    database = sqlite3.connect(":memory:")
    database.deserialize(gzip.decompress(path.read_bytes()))
    rows = database.execute(
        "SELECT DISTINCT d.value, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k"
        " JOIN StringIds d ON d.id = k.demangledName JOIN StringIds s ON s.id = k.shortName"
    )
    return dict(rows.fetchall())


def test_all_parts_add_up_on_every_recording(shared: Path) -> None:
    """Of Kineto and of nsys: work in annotations and in none, their ranges, and host time."""
    seen = 0
    folders = ("chrome/kineto", "nsys")
    paths = [path for folder in folders for path in (shared / "data" / folder).glob("*.gz")]
    for path in paths:
        trace = ta.read(path, kinds=NEEDS.kinds, names=NEEDS.names)
        work = trace.events.filter(pl.col("kind").is_in(DEVICE_WORK), pl.col("dur") >= 0)
        try:
            found = ta.annotations(trace)
        except MissingData:
            assert not trace.events["kind"].is_in(ANNOTATION_KINDS).any(), path
            continue
        seen += 1
        rows = found.annotations
        assert (found.work.n, found.work.total_ns) == (work.height, work["dur"].sum())
        assert rows["own_n"].sum() == found.inside.n
        assert rows["own_device_ns"].sum() == found.inside.total_ns
        outside = found.beside.total_ns + found.unlaunched.total_ns
        assert found.inside.total_ns + outside <= found.work.total_ns
        assert rows["ranges"].sum() == found.ranges
        assert (rows["n"] >= rows["own_n"]).all()
        assert (rows["host_ns"] >= rows["self_ns"].fill_null(0)).all()
        assert str(found)
    assert seen > 15  # of 21
