"""Chrome JSON export: its text, and that strict consumers accept it."""

from __future__ import annotations

import gzip
import io
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from trace_rows import table
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.exporters import writer_for
from traceanalyzer.exporters.chrome_trace import write_chrome_trace, write_chrome_trace_gz
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.trace import Device, Meta, Trace, concat, sort_events

META = Meta("a.json", "chrome-trace")


def traced(*events: dict[str, Any], meta: Meta = META, **tables: pl.DataFrame) -> Trace:
    """A trace of these rows, given in order; no arguments' text unless a row has some."""
    given = {name for row in events for name in row}
    drop = tuple(set(ON_REQUEST) - given)
    return Trace(sources=(meta,), events=table("events", *events, drop=drop), **tables)


def host(ts: int | None, dur: int | None, **more: Any) -> dict[str, Any]:
    return {"kind": "cpu_op", "name": "a", "pid": 10, "tid": 11, "ts": ts, "dur": dur, **more}


def device(ts: int, dur: int | None, **more: Any) -> dict[str, Any]:
    return {"kind": "kernel", "name": "k", "device": 0, "stream": 7, "ts": ts, "dur": dur, **more}


def text(trace: Trace) -> str:
    file = io.BytesIO()
    write_chrome_trace(trace, file)
    return file.getvalue().decode()


def _no_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def document(trace: Trace) -> dict[str, Any]:
    """The whole text as a strict reader sees it, decimals exact."""
    result: dict[str, Any] = json.loads(
        text(trace), parse_float=Decimal, parse_constant=_no_constant
    )
    return result


def written(trace: Trace, phases: str = "XibneCstf") -> list[dict[str, Any]]:
    """The events of some phases."""
    return [e for e in document(trace)["traceEvents"] if e["ph"] in phases]


# --- slices ----------------------------------------------------------------------------------


def test_a_kernel_as_kineto_writes_it() -> None:
    trace = traced(
        device(1_001, 2_050, category="kernel", correlation=5, external_id=6, bytes=64),
        launch_configs=table(
            "launch_configs",
            {
                "event": 0,
                **dict(zip(("grid_x", "grid_y", "grid_z"), (1, 2, 3), strict=True)),
                **dict(zip(("block_x", "block_y"), (128, 1), strict=True)),
                "registers": 32,
                "shared_memory": 1024,
            },
        ),
        collectives=table(
            "collectives",
            {
                "event": 0,
                "collective": "all_reduce",
                "dtype": "Half",
                "elements_in": 10,
                "elements_out": 20,
                "group": 'default "pg"',
                "group_size": 2,
                "group_ranks": "[0, 1]",
                "seq": 3,
            },
        ),
    )
    assert written(trace) == [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": 0,
            "tid": 7,
            "ts": Decimal("1.001"),
            "dur": Decimal("2.050"),
            "args": {
                "External id": 6,
                "correlation": 5,
                "device": 0,
                "stream": 7,
                "bytes": 64,
                "grid": [1, 2, 3],
                "block": [128, 1, None],
                "registers per thread": 32,
                "shared memory": 1024,
                "Collective name": "all_reduce",
                "dtype": "Half",
                "In msg nelems": 10,
                "Out msg nelems": 20,
                "Process Group Name": 'default "pg"',
                "Group size": 2,
                "Process Group Ranks": "[0, 1]",
                "Seq": 3,
            },
        }
    ]


def test_an_allocation_as_kineto_writes_it() -> None:
    trace = traced(
        host(1, None, kind="cpu_instant_event", name="[memory]")
        | {"bytes": -512, "address": 2**64 - 1, "device": 1},
        memory_totals=table(
            "memory_totals",
            {"event": 0, "device_type": 1, "allocated_bytes": 9, "reserved_bytes": 10},
        ),
    )
    (event,) = written(trace)
    assert (event["ph"], event["s"], "cat" in event) == ("i", "t", False)
    assert event["args"] == {
        "Device Id": 1,
        "Bytes": -512,
        "Addr": 2**64 - 1,
        "Device Type": 1,
        "Total Allocated": 9,
        "Total Reserved": 10,
    }


@pytest.mark.parametrize("ns", [0, 1, -1, 999, -1000, 1712075791000000123, 2**63 - 1, 1 - 2**63])
def test_every_nanosecond_is_exact(ns: int) -> None:
    (event,) = written(traced(host(ns, None)))
    assert event["ts"] * 1000 == ns
    assert f'"ts":{event["ts"]}' in text(traced(host(ns, None)))
    assert str(event["ts"])[-4] == "."


def test_category_is_the_original_one_or_the_kind() -> None:
    rows = (
        host(1, 1, category="Operator"),
        host(3, 1),
        host(5, 1, kind="other"),
        host(7, 1, kind="async"),
    )
    categories = [e.get("cat") for e in written(traced(*rows), "Xb")]
    assert categories == ["Operator", "cpu_op", None, None]


HOSTILE = 'q"\\ \n\t\x00\x1b[31m\x7f </script> \u2028 \ud7ff é 😀'


def test_hostile_text_is_escaped_everywhere() -> None:
    trace = traced(
        host(1, 1, kind="other", name=HOSTILE, category=HOSTILE),
        collectives=table("collectives", {"event": 0, "group": HOSTILE}),
        lanes=table("lanes", {"pid": 10, "tid": 11, "label": HOSTILE, "textual": True}),
        counters=table(
            "counters", {"ts": 1, "name": HOSTILE, "series": HOSTILE, "pid": 1, "value": 1.0}
        ),
        stacks=table("stacks", {"id": 0, "name": HOSTILE, "file": HOSTILE}),
    )
    result = document(trace)
    slices = [e for e in result["traceEvents"] if e["ph"] == "X"]
    assert slices[0]["name"] == slices[0]["cat"] == slices[0]["tid"] == HOSTILE
    assert slices[0]["args"]["Process Group Name"] == HOSTILE
    (reading,) = (e for e in result["traceEvents"] if e["ph"] == "C")
    assert (reading["name"], reading["args"]) == (HOSTILE, {HOSTILE: 1})
    assert result["stackFrames"]["0"] == {"name": HOSTILE, "category": HOSTILE}
    assert all(ord(c) >= 32 or c == "\n" for c in text(trace))


def test_async_slices_are_pairs_with_distinct_ids() -> None:
    rows = [host(t, 10, kind="async", category="c") for t in (1, 5)]
    events = written(traced(*rows, host(8, None, kind="async")))
    assert [(e["ph"], e["id"], e["ts"] * 1000) for e in events] == [
        ("b", 0, 1),
        ("e", 0, 11),
        ("b", 1, 5),
        ("e", 1, 15),
        ("n", 2, 8),
    ]
    assert not any("dur" in e for e in events)


def test_kinds_determined_by_phase() -> None:
    rows = [host(ts, None, kind=kind) for ts, kind in enumerate(["sample", "object", "other"])]
    result = [(e["ph"], "cat" in e, e.get("id")) for e in written(traced(*rows), "PNi")]
    assert result == [("P", False, None), ("N", False, 1), ("i", False, None)]


def test_track_of_a_row() -> None:
    rows = (
        host(1, 1),
        device(3, 1),
        device(5, 1, stream=None),
        device(7, 1, device=None, stream=None),
        device(9, 1, pid=10),
    )
    places = [(e["pid"], e["tid"]) for e in written(traced(*rows))]
    assert places == [(10, 11), (0, 7), (0, -1), (-1, -1), (0, 7)]


def test_trace_without_times_is_rejected() -> None:
    with raises_wording(MissingData):
        text(traced(host(None, None, kind="sample", weight=3)))


# --- the arguments' own text -----------------------------------------------------------------


def test_args_text_is_written_verbatim() -> None:
    args_text = '{"External id": 7,  "est. %": 1.50}'
    trace = traced(host(1, 1, external_id=6, args=args_text), host(3, 1, external_id=8))
    assert args_text in text(trace)
    assert ["args" in e for e in written(trace)] == [True, False]


def test_null_args_do_not_hide_typed_columns() -> None:
    (event,) = written(traced(host(1, 1, external_id=6, args=None)))
    assert event["args"] == {"External id": 6}


@pytest.mark.parametrize(
    "damage",
    ['{"a":NaN}', '{"a":"\n"}', "{", '{"a":1}}', '{"a":1},{"ph":"X"}', "1]", '"', "", "Infinity"],
)
def test_invalid_args_text_becomes_a_string(damage: str) -> None:
    trace = traced(host(1, 1, args='{"b":2}'), host(3, 1, args=damage), host(5, 1, args="[1]"))
    assert [e["args"] for e in written(trace)] == [{"b": 2}, damage, [1]]


@pytest.mark.parametrize(
    ("args_text", "values"),
    [
        (['{"a":"', '"},{"b":1}'], ['{"a":"', '"},{"b":1}']),
        (["[1", "2],3"], ["[1", "2],3"]),
        (['"x', 'y"', "1,2"], ['"x', 'y"', "1,2"]),
        (["1],[2", "[3"], ["1],[2", "[3"]),
        ([" 1", "2 "], [1, 2]),
    ],
)
def test_invalid_texts_that_form_valid_json_together(
    args_text: list[str], values: list[Any]
) -> None:
    trace = traced(*(host(ts, 0, args=text) for ts, text in enumerate(args_text)))
    assert [e["args"] for e in written(trace)] == values


@pytest.mark.parametrize(
    ("dims", "value"), [("[[2, 3], []]", [[2, 3], []]), ("[[2", "[[2"), ('1,"a":2', '1,"a":2')]
)
def test_input_dims_are_written_as_they_are(dims: str, value: Any) -> None:
    (event,) = written(traced(host(1, 1, input_dims=dims)))
    assert event["args"] == {"Input Dims": value}


# --- tracks ----------------------------------------------------------------------------------


def assert_nested(trace: Trace) -> None:
    """On every track a slice lies wholly inside another one or outside it: none is dropped."""
    tracks = defaultdict(list)
    for event in written(trace, "X"):
        start = int(event["ts"] * 1000)
        tracks[event["pid"], event["tid"]].append((start, start + int(event["dur"] * 1000)))
    for slices in tracks.values():
        still_open: list[int] = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while still_open and still_open[-1] <= start:
                still_open.pop()
            assert not still_open or end <= still_open[-1], (start, end)
            still_open.append(end)


def test_overlapping_slices_get_a_separate_track() -> None:
    trace = traced(
        host(0, 100),
        host(50, 100, external_id=1),
        host(60, 100),
        lanes=table("lanes", {"pid": 10, "tid": 11, "label": "main ", "textual": False}),
    )
    assert_nested(trace)
    first, second, third = written(trace)
    assert "args" not in first
    assert second["args"] == {"traceanalyzer tid": 11, "External id": 1}
    assert len({e["tid"] for e in (first, second, third)}) == 3
    names = {e["tid"]: e["args"] for e in written(trace, "M")}
    assert names[11] == {"name": "main "}
    assert names[second["tid"]] == {"name": "main (overlap 1)", "traceanalyzer tid": 11}
    assert names[third["tid"]] == {"name": "main (overlap 2)", "traceanalyzer tid": 11}


def test_overlap_tracks_take_no_id_that_is_in_use() -> None:
    rows = (host(0, 100), host(50, 100), host(0, 1, tid=1_000_000_000))
    tids = [e["tid"] for e in written(sort_events(traced(*rows)), "X")]
    assert sorted(tids) == [11, 1_000_000_000, 1_000_000_001]


@pytest.mark.parametrize(
    ("args_text", "moved"),
    [
        ('{"a":1}', '{"traceanalyzer tid":11,"a":1}'),
        ("{ }", '{"traceanalyzer tid":11 }'),
        ("[1]", '{"traceanalyzer tid":11,"args":[1]}'),
        (None, '{"traceanalyzer tid":11}'),
    ],
)
def test_args_text_on_an_overlap_track_has_the_original_tid(
    args_text: str | None, moved: str
) -> None:
    trace = traced(host(0, 100, args='{"x":0}'), host(50, 100, args=args_text))
    assert f'"args":{moved}}}' in text(trace)
    assert len(written(trace)) == 2


def test_an_arrow_ends_where_its_slice_was_moved() -> None:
    trace = traced(
        host(0, 100),
        host(50, 100),
        flows=table(
            "flows",
            *(
                {"ts": 55, "phase": "end", "flow": 0, "pid": 10, "tid": 11, "event": event}
                for event in (0, 1)
            ),
        ),
    )
    stays, moves = written(trace, "f")
    assert (stays["tid"], "args" in stays) == (11, False)
    assert moves["tid"] == written(trace, "X")[1]["tid"]
    assert moves["args"] == {"traceanalyzer tid": 11}


def test_streams_lie_on_the_track_their_flows_name() -> None:
    trace = traced(
        device(1, 1),
        device(3, 1),
        device(5, 1, stream=8),
        flows=table("flows", {"ts": 1, "phase": "end", "flow": 0, "pid": 0, "tid": 99, "event": 0}),
        lanes=table("lanes", {"pid": 0, "tid": 99, "label": "stream 7", "textual": True}),
    )
    assert [e["tid"] for e in written(trace, "X")] == ["stream 7", "stream 7", 8]
    assert [e["args"]["stream"] for e in written(trace, "X")] == [7, 7, 8]
    assert [e["tid"] for e in written(trace, "f")] == ["stream 7"]


def test_names_and_order_of_tracks() -> None:
    trace = traced(
        host(1, 1, pid=5 << 60),
        lanes=table(
            "lanes",
            {"pid": 10, "label": "python", "labels": "CPU", "sort_index": 3, "textual": False},
            {"pid": 10, "tid": 11, "label": "main", "sort_index": 4, "textual": False},
            {"pid": 5 << 60, "label": "Spans", "textual": True},
        ),
    )
    named = [(e["name"], e["pid"], e["tid"], e["args"]) for e in written(trace, "M")]
    assert named == [
        ("process_name", 10, 0, {"name": "python"}),
        ("process_labels", 10, 0, {"labels": "CPU"}),
        ("process_sort_index", 10, 0, {"sort_index": 3}),
        ("process_name", "Spans", 0, {"name": "Spans"}),
        ("thread_name", 10, 11, {"name": "main"}),
        ("thread_sort_index", 10, 11, {"sort_index": 4}),
    ]
    assert written(trace, "X")[0]["pid"] == "Spans"


def test_ranks_share_no_process() -> None:
    trace = traced(
        *(row | {"rank": rank} for rank in (0, 1) for row in (host(1, 1), device(1, 1))),
        lanes=table(
            "lanes",
            {"rank": 1, "pid": 10, "label": "python", "sort_index": 1, "textual": False},
        ),
        counters=table(
            "counters", {"ts": 1, "name": "c", "series": "s", "rank": 1, "pid": 10, "value": 1.0}
        ),
    )
    pids = {(e["args"].get("device"), e["pid"]) for e in written(_with_args(trace), "X")}
    assert len(pids) == 4
    names = {e["pid"]: e["args"] for e in written(trace, "M") if e["name"] == "process_name"}
    assert {
        (a["name"], a["traceanalyzer rank"], a["traceanalyzer pid"]) for a in names.values()
    } == {
        ("rank 0: 0", 0, 0),
        ("rank 0: 10", 0, 10),
        ("rank 1: python", 1, 10),
        ("rank 1: 0", 1, 0),
    }
    (reading,) = written(trace, "C")
    assert names[reading["pid"]]["name"] == "rank 1: python"


def _with_args(trace: Trace) -> Trace:
    """Every row with an argument, so that none is left out."""
    events = trace.events.with_columns(external_id=pl.lit(1, pl.Int64))
    return Trace(trace.sources, events, lanes=trace.lanes, counters=trace.counters)


# --- flows, counters, samples ----------------------------------------------------------------


def test_processes_of_two_files_with_the_same_id_are_written_once() -> None:
    lane = {"pid": 10, "label": "python", "textual": False}
    one = traced(host(1, 1), lanes=table("lanes", lane))
    both = concat([one, one])
    assert len(written(both, "X")) == 2


def test_flow_points() -> None:
    point = {"flow": 4, "category": "ac2g", "name": "go", "pid": 10, "tid": 11}
    trace = traced(
        host(0, 10),
        host(20, 1),
        flows=table(
            "flows",
            {"ts": 1, "phase": "start", "event": 0, **point},
            {"ts": 2, "phase": "step", **point},
            {"ts": 3, "phase": "end", "event": 0, **point},
            {"ts": 3, "phase": "end", "event": 1, **point},
            {"ts": 4, "phase": "end", **point},
        ),
    )
    events = written(trace, "stf")
    assert [(e["ph"], e.get("bp")) for e in events] == [
        ("s", None),
        ("t", None),
        ("f", "e"),
        ("f", None),
        ("f", "e"),
    ]
    assert events[0] == {
        "ph": "s", "id": 4, "pid": 10, "tid": 11, "ts": Decimal("0.001"),
        "cat": "ac2g", "name": "go",
    }  # fmt: skip


def test_readings_of_one_counter_and_time_are_one_event() -> None:
    readings = [
        ("a", 1, "x", 0.5),
        ("a", 1, "y", 1e300),
        ("b", 1, "x", -0.0),
        ("a", 1, "x", 2.0),
        ("a", 1, "x", 3.0),
        ("a", 2, "x", float("inf")),
    ]
    trace = traced(
        counters=table(
            "counters",
            *(
                {"name": name, "ts": ts, "series": series, "pid": 1, "value": value}
                for name, ts, series, value in readings
            ),
        )
    )
    result = [(e["name"], {k: float(v) for k, v in e["args"].items()}) for e in written(trace)]
    assert result == [
        ("a", {"x": 0.5, "y": 1e300}),
        ("b", {"x": -0.0}),
        ("a", {"x": 2.0}),
        ("a", {"x": 3.0}),
    ]


def test_sampled_stacks() -> None:
    trace = traced(
        host(1, 1, stack=1),
        host(2, None, kind="sample", stack=1, weight=3),
        stacks=table("stacks", {"id": 0, "name": "main"}, {"id": 1, "parent": 0, "name": "f"}),
    )
    result = document(trace)
    assert result["stackFrames"] == {"0": {"name": "main"}, "1": {"name": "f", "parent": "0"}}
    assert result["samples"] == [
        {"ts": Decimal("0.002"), "name": "a", "pid": 10, "tid": 11, "sf": 1, "weight": 3}
    ]
    assert [e["sf"] for e in result["traceEvents"]] == [1]


# --- around the events -----------------------------------------------------------------------

FULL = Meta(
    "a.json",
    "chrome-trace",
    version="kineto schema 1",
    epoch_ns=1731002418000000000,
    rank=3,
    world_size=8,
    devices=(Device(0, "H100", 85018279936), Device(1)),
    host="node7",
    backend="nccl",
    extra='{"displayTimeUnit":"ms","distributedInfo":{"rank":3,"pg_count":1}}',
)


def test_metadata_stands_before_the_events() -> None:
    result = document(traced(meta=FULL))
    assert list(result)[-1] == "traceEvents"
    del result["traceEvents"]
    assert result == {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "H100", "totalGlobalMem": 85018279936}, {"id": 1}],
        "distributedInfo": {"rank": 3, "pg_count": 1, "backend": "nccl", "world_size": 8},
        "baseTimeNanoseconds": 1731002418000000000,
        "host_name": "node7",
        "displayTimeUnit": "ms",
    }


def test_only_common_metadata_of_several_files_is_written() -> None:
    other = Meta("b.json", "chrome-trace", rank=4, world_size=8, host="node7")
    result = document(Trace(sources=(FULL, other)))
    assert result == {
        "distributedInfo": {"world_size": 8},
        "host_name": "node7",
        "traceEvents": [],
    }


def test_empty_trace() -> None:
    assert document(traced()) == {"traceEvents": []}


def test_gzip_is_the_same_text_and_the_same_bytes_every_time() -> None:
    packed = []
    for _ in range(2):
        file = io.BytesIO()
        write_chrome_trace_gz(traced(host(1, 1)), file)
        packed.append(file.getvalue())
    assert packed[0] == packed[1]
    assert gzip.decompress(packed[0]).decode() == text(traced(host(1, 1)))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("a/b.json", "write_chrome_trace"),
        ("B.JSON", "write_chrome_trace"),
        ("x.pt.trace.json.gz", "write_chrome_trace_gz"),
        ("x.parquet", "write_parquet"),
        ("x.json.sqlite", "write_sqlite"),
        ("x.db", "write_sqlite"),
    ],
)
def test_the_suffix_chooses_the_writer(name: str, function: str) -> None:
    assert getattr(writer_for(name), "__name__", "") == function


@pytest.mark.parametrize("name", ["a", "a.csv", "json", ".gz"])
def test_unknown_suffix_is_rejected(name: str) -> None:
    with raises_wording(OptionError):
        writer_for(name)


# --- whatever the numbers --------------------------------------------------------------------

times = st.integers(-(2**62), 2**62)
short = st.integers(0, 40)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "ts": short | times,
            "dur": st.none() | short | times,
            "kind": st.sampled_from(["cpu_op", "kernel", "async", "other"]),
            "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
            "pid": st.none() | st.integers(0, 2),
            "tid": st.none() | st.integers(0, 2),
            "device": st.none() | st.integers(0, 2),
            "stream": st.none() | st.integers(0, 2),
            "correlation": st.none() | st.integers(-(2**63), 2**63 - 1),
            "address": st.none() | st.integers(0, 2**64 - 1),
        }
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(rows=rows)
def test_text_has_the_same_numbers(rows: list[dict[str, Any]]) -> None:
    trace = sort_events(traced(*rows))
    events = written(trace, "Xibn")
    assert [int(e["ts"] * 1000) for e in events] == trace.events["ts"].to_list()
    assert [e["name"] for e in events] == trace.events["name"].to_list()
    durations = {"X": lambda e: int(e["dur"] * 1000)}
    sync = trace.events.filter(pl.col("kind") != "async")
    assert [durations.get(e["ph"], lambda _: None)(e) for e in events if e["ph"] in "Xi"] == sync[
        "dur"
    ].to_list()
    for key, column in (("correlation", "correlation"), ("Addr", "address")):
        assert [e.get("args", {}).get(key) for e in events] == trace.events[column].to_list()


@settings(max_examples=40, deadline=None)
@given(slices=st.lists(st.tuples(short, short), max_size=12))
def test_all_slices_nest_on_their_track(slices: list[tuple[int, int]]) -> None:
    trace = sort_events(traced(*(host(ts, dur) for ts, dur in slices)))
    assert_nested(trace)
    assert len(written(trace, "X")) == len(slices)


@pytest.mark.parametrize(("kind", "key"), [("send", "Dst Rank"), ("recv", "Src Rank")])
def test_the_peer_of_a_send_or_receive_is_written_and_read(
    kind: str, key: str, tmp_path: Path
) -> None:
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    about = {"Collective name": kind, "Group size": 4, "Process Group Name": "pp", key: 3}
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1, "dur": 2,
             "args": {"device": 0, "stream": 7, **about}}  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    trace = ta.read(path)
    assert trace.collectives["peer"].to_list() == [3]
    (again,) = written(trace)
    assert again["args"][key] == 3
