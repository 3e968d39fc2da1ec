"""read -> export -> read gives equal tables and metadata for every source."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import SHARED
from hypothesis import given, settings, strategies as st
from polars.testing import assert_frame_equal

from traceanalyzer.errors import InputError
from traceanalyzer.exporters import writer_for
from traceanalyzer.parsers import chrome_trace, parquet
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.trace import Trace

TYPED = Selection()
VERBATIM = Selection(columns=frozenset(ON_REQUEST))

#: One file of each layout and writer; the larger ones take seconds and add no case.
FILES = (
    "kineto/a100_alexnet_cuda_sync.json.gz",
    "kineto/b200_rank0of8_eager.json.gz",
    "kineto/cpu_only_rank34of300.json.gz",
    "kineto/h100_qwen_inference.json.gz",
    "kineto/mi250_rocm62.json.gz",
    "kineto/mi300_rank0of8_rccl.json.gz",
    "kineto/nccl_a100_rank0of2.json.gz",
    "kineto/no_rank.json.gz",
    "kineto/resnet50_2020_bare_array.json.gz",
    "kineto/dlrm_8ranks/worker1_step_12.1694128201556.pt.trace.json.gz",
    "kineto_ddp_cpu/ddp4_stack/rank1.json.gz",
    "composer/ep0-ba1-rank1.json",
    "composer/m1.json",
)
CONFORMANCE = sorted(
    path.relative_to(SHARED).as_posix()
    for folder in ("malformed", "perfetto", "speedscope", "dftracer", "clang")
    for path in (SHARED / "data/chrome/conformance" / folder).glob("[!p]*")
    if path.suffix in (".json", ".pfw", ".gz", ".zip")
)


def read(path: Path, selection: Selection) -> Trace:
    return chrome_trace.FORMAT.parse(Source(path), selection, None)


def export(trace: Trace, path: Path) -> Path:
    with path.open("wb") as file:
        writer_for(path)(trace, file)
    return path


def assert_equal(actual: Trace, expected: Trace) -> None:
    """Everything but where the file lies and what was odd about its text."""
    assert [replace(m, path="") for m in actual.sources] == [
        replace(m, path="") for m in expected.sources
    ]
    for name, table in expected.tables.items():
        if name != "issues":
            assert_frame_equal(actual.tables[name], table)


@pytest.mark.sample(15, "selection")
@pytest.mark.parametrize("selection", [TYPED, VERBATIM], ids=["typed", "verbatim"])
@pytest.mark.parametrize("name", FILES)
def test_real_files(
    name: str, selection: Selection, shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("out")  # a folder named like the test may name a rank
    trace = read(shared / "data/chrome" / name, selection)
    assert trace.events.height > 0
    if trace.events["rank"].n_unique() == 1:
        assert_equal(read(export(trace, folder / "a.json.gz"), selection), trace)
    again = parquet.FORMAT.parse(Source(export(trace, folder / "a.parquet")), selection, None)
    assert_equal(again, trace)
    assert_frame_equal(again.issues, trace.issues)


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", CONFORMANCE)
def test_odd_files(name: str, shared: Path, tmp_path: Path) -> None:
    try:
        trace = read(shared / name, VERBATIM)
    except InputError:
        pytest.skip("nothing in it can be read")
    assert_equal(read(export(trace, tmp_path / "a.json"), VERBATIM), trace)


def test_an_exported_file_reads_without_loss(shared: Path, tmp_path: Path) -> None:
    trace = read(shared / "data/chrome" / FILES[5], TYPED)
    assert read(export(trace, tmp_path / "a.json"), TYPED).issues.is_empty()


# --- whatever a file holds -------------------------------------------------------------------

_time = st.integers(0, 30).map(lambda ns: ns / 1000) | st.sampled_from(
    ["7", 3, -5, 1712075791000000.123]
)
_id = st.integers(-1, 3) | st.sampled_from(["stream 7", "Spans", "5"])
_plain = st.sampled_from(["a", "b", ""])
_text = _plain | st.sampled_from(
    ['q"\\', "é\n\u2028", "[memory]", "nccl:all_reduce", "ncclKernel_AllReduce_x"]
)
_host = st.sampled_from(["cpu_op", "x", None])
_category = _host | st.sampled_from(
    [
        "kernel",
        "Kernel",
        "gpu_user_annotation",
        "cuda_sync",
        "cuda_runtime",
        "user_annotation",
        "cpu_instant_event",
    ]
)
_small = st.integers(0, 9)
_args = st.fixed_dictionaries(
    {},
    optional={
        "External id": _small,
        "correlation": _small,
        "device": st.integers(0, 2),
        "stream": st.integers(-1, 8),
        "bytes": _small,
        "grid": st.just([1, 2, 3]),
        "block": st.just([4, 5, 6]),
        "registers per thread": _small,
        "Bytes": st.integers(-5, 5),
        "Addr": st.integers(0, 2**64 - 1),
        "Device Type": st.integers(0, 1),
        "Device Id": st.integers(-1, 1),
        "Total Allocated": _small,
        "Collective name": _text,
        "dtype": _text,
        "Group size": _small,
        "In msg nelems": _small,
        "Seq": _small,
        "Process Group Ranks": _text,
        "Input Dims": st.just([[1, 2]]),
        "other": _text,
    },
)


def _event(phase: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    name = _text if phase in "XiC" else _plain
    fields = {"ph": st.just(phase), "pid": _id, "tid": _id, "ts": _time, "name": name, **more}
    return st.fixed_dictionaries(fields)


def _lane(what: str, **args: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _event("M", args=st.fixed_dictionaries(args)).map(lambda e: {**e, "name": what})


_slice = _event("X", dur=_time, cat=_category) | _event("X", dur=_time, cat=_category, args=_args)
_other = st.one_of(
    _event("i", cat=_category),
    _event("B", cat=_host),
    _event("E"),
    *(_event(phase, cat=_host, id=st.integers(0, 1)) for phase in "bne"),
    *(_event(phase, cat=st.just("ac2g"), id=st.integers(0, 2), bp=st.just("e")) for phase in "stf"),
    *(_event(phase, cat=_category) for phase in "PNOD"),
    _event("C", args=st.dictionaries(_text, st.floats(allow_nan=False, allow_infinity=False))),
    _lane("process_name", name=_text),
    _lane("thread_name", name=_text),
    _lane("process_sort_index", sort_index=st.integers(-2, 2)),
)
#: Verbatim arguments are known to be there when one event has some.
_events = st.tuples(
    _slice.map(lambda e: {**e, "args": {"other": "x"}}),
    st.lists(_slice | _slice | _other, max_size=9),
).map(lambda parts: [parts[0], *parts[1]])


@pytest.mark.matrix
@settings(max_examples=50, deadline=None)
@given(events=_events, selection=st.sampled_from([TYPED, VERBATIM]))
def test_any_events(
    events: list[dict[str, Any]],
    selection: Selection,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "a.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = read(folder / "a.json", selection)
    again = read(export(trace, folder / "b.json"), selection)
    # an arrow that no slice holds may lie where a stream is drawn, and is held there
    bound = pl.when(trace.flows["event"].is_not_null()).then("event").alias("event")
    assert_equal(replace(again, flows=again.flows.with_columns(bound)), trace)
