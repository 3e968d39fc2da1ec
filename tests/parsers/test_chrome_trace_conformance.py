"""Edge cases of the format: what is read of each, and why Perfetto differs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest

from traceanalyzer import InputError, read, schema
from traceanalyzer.trace import Trace


@dataclass(frozen=True)
class Outcome:
    """Rows of ``events``, their positive durations in ns, arrows, counter readings, issues."""

    events: int
    total_ns: int
    arrows: int = 0
    readings: int = 0
    issues: dict[str, int] = field(default_factory=dict)


OUTCOMES = {
    "01_array_missing_bracket.json": Outcome(2, 3_000),
    "02_array_trailing_comma_no_bracket.json": Outcome(2, 3_000),
    "03_array_trailing_comma_bracket.json": Outcome(2, 3_000),
    "04_array_truncated_mid_event.json": Outcome(1, 2_000, issues={"truncated": 1}),
    "05_object_truncated_after_event.json": Outcome(2, 3_000, issues={"truncated": 0}),
    "06_object_truncated_mid_event.json": Outcome(1, 2_000, issues={"truncated": 1}),
    "07_object_trailing_comma.json": Outcome(2, 3_000),
    "08_empty_event_tail.json": Outcome(1, 2_000),
    "09_no_commas_pfw.json": Outcome(2, 3_000),
    "10_ndjson_no_bracket.json": Outcome(2, 3_000),
    "11_raw_control_char_in_string.json": Outcome(2, 3_000, issues={"raw-control-character": 2}),
    "12_unescaped_quote_in_name.json": Outcome(1, 1_000, issues={"bad-event": 1}),
    "13_nan_inf.json": Outcome(2, 3_000),
    "14_invalid_utf8.json": Outcome(2, 3_000, issues={"bad-utf8": 2}),
    "15_utf8_bom.json": Outcome(1, 2_000),
    "16_lone_surrogate.json": Outcome(2, 3_000, issues={"lone-surrogate": 1}),
    "17_duplicate_keys.json": Outcome(1, 2_000),
    "18_big_int_ids.json": Outcome(1, 2_000),
    "19_ts_ns_precision.json": Outcome(2, 2),
    "20_E_no_name.json": Outcome(2, 4_000),
    "21_E_wrong_name.json": Outcome(2, 4_000, issues={"mismatched-end": 1}),
    "22_E_unmatched.json": Outcome(1, 3_000, issues={"unmatched-end": 1}),
    "23_B_unclosed.json": Outcome(3, 6_000, issues={"unclosed-begin": 1}),
    "24_BE_args_merge.json": Outcome(1, 2_000),
    "25_BE_unsorted_file_order.json": Outcome(2, 10_000),
    "26_BE_same_ts_zero_dur.json": Outcome(2, 0),
    "27_X_no_dur.json": Outcome(2, 2_000, issues={"no-duration": 1}),
    "28_X_negative_dur.json": Outcome(2, 2_000, issues={"negative-duration": 1}),
    "29_X_zero_dur.json": Outcome(3, 5_000),
    "30_X_overlap.json": Outcome(2, 200_000),
    "31_X_overlap_1ns.json": Outcome(2, 150_001),
    "32_X_same_start_child_first.json": Outcome(2, 15_000),
    "33_X_identical_twins.json": Outcome(3, 15_000),
    "34_X_unsorted.json": Outcome(3, 115_000),
    "35_string_ts_dur.json": Outcome(1, 2_000),
    "36_string_pid_tid.json": Outcome(2, 6_000),
    "37_missing_pid_tid.json": Outcome(2, 4_000),
    "38_negative_and_huge_tid.json": Outcome(3, 6_000),
    "39_unknown_phase.json": Outcome(
        1, 1_000, issues={"unknown-phase-Z": 1, "unknown-phase-XXX": 1}
    ),
    "40_missing_ph.json": Outcome(1, 1_000, issues={"no-phase": 1}),
    "41_missing_ts.json": Outcome(1, 1_000, issues={"no-time": 1}),
    "42_null_fields.json": Outcome(1, 2_000),
    "43_args_not_object.json": Outcome(2, 4_000),
    "44_async_b_e.json": Outcome(3, 6_000),
    "45_async_id_collide_pid_cat.json": Outcome(2, 4_000),
    "46_async_legacy_STpF.json": Outcome(2, 3_000),
    "47_flow_stf_bp_e.json": Outcome(2, 10_000, arrows=1),
    "48_flow_f_no_bp.json": Outcome(3, 15_000, arrows=1),
    "49_flow_v2_bind_id.json": Outcome(2, 10_000, arrows=1),
    "50_flow_id_shared_two_pids.json": Outcome(4, 20_000, arrows=1),
    "51_counter_multi_series.json": Outcome(0, 0, readings=4),
    "52_instant_scopes.json": Outcome(6, 0),
    "53_meta_names_last_wins.json": Outcome(1, 1_000),
    "54_samples_stackFrames.json": Outcome(2, 9_000),
    "55_object_nde.json": Outcome(7, 1_000),
    "56_traceEvents_last_and_dup_key.json": Outcome(1, 2_000),
    "57_two_concatenated_arrays.json": Outcome(2, 4_000),
    "58_depth_600.json": Outcome(600, 840_600_000),
    "59_B_inside_X_escapes.json": Outcome(2, 25_000),
    "60_empty_array.json": Outcome(0, 0),
    "61_empty_traceEvents.json": Outcome(0, 0),
    "70_gz.json.gz": Outcome(2, 3_000),
    "71_gz_two_members.json.gz": Outcome(2, 3_000),
    "72_gz_truncated.json.gz": Outcome(1, 2_000, issues={"truncated": 1, "damaged-file": 1}),
    "73_zip.zip": Outcome(2, 3_000),
}

#: Case -> why Perfetto's recorded (slices, sum of durations) is another.
PERFETTO_DIFFERS = {
    "05_object_truncated_after_event.json": "it reads nothing of an object that is cut off",
    "06_object_truncated_mid_event.json": "it reads nothing of an object that is cut off",
    "10_ndjson_no_bracket.json": "it knows bare lines only in an array",
    "12_unescaped_quote_in_name.json": "it stops at the first bad event; we go on behind it",
    "15_utf8_bom.json": "it does not know the mark; RFC 8259 lets a reader ignore it",
    "18_big_int_ids.json": "it drops ids above int64; they are only compared, so we keep them",
    "21_E_wrong_name.json": "an end closes the slice of its name, as speedscope does; it the top",
    "27_X_no_dur.json": "it drops a slice without a duration; we keep it open-ended and count it",
    "30_X_overlap.json": "it drops overlapping slices; we keep all",
    "31_X_overlap_1ns.json": "it drops overlapping slices; we keep all",
    "39_unknown_phase.json": "it looks at the first letter of a phase only",
    "46_async_legacy_STpF.json": "it does not read the async phases S T p F",
    "54_samples_stackFrames.json": "a sample is a row of our events, with its stack",
    "55_object_nde.json": "objects, dumps and clock marks are rows of ours, without a duration",
    "57_two_concatenated_arrays.json": "it ends at the first array",
    "59_B_inside_X_escapes.json": "it cuts the inner slice at its parent's end; we keep both whole",
    "60_empty_array.json": "it has no answer for an empty array; it is a trace without events",
    "72_gz_truncated.json.gz": "it reads nothing of a gzip file that is cut off",
}  # fmt: skip


def _cases(shared: Path, folder: str) -> Path:
    return shared / "data" / "chrome" / "conformance" / folder


def _total(trace: Trace) -> int:
    return int(trace.events.filter(pl.col("dur") > 0)["dur"].sum())


def _outcome(trace: Trace) -> Outcome:
    issues = dict(trace.issues.select("code", "count").iter_rows())
    arrows = trace.flows["flow"].n_unique()
    return Outcome(trace.events.height, _total(trace), arrows, trace.counters.height, issues)


@pytest.mark.parametrize("name", OUTCOMES)
def test_conformance_cases(shared, name):
    trace = read(_cases(shared, "malformed") / name)
    assert schema.check(trace.tables) == []
    assert _outcome(trace) == OUTCOMES[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [("62_empty_file.json", "an empty file"), ("63_top_level_null.json", "unknown file format")],
)
def test_file_that_is_not_a_trace_is_rejected(shared, name, message):
    with pytest.raises(InputError, match=message) as refused:
        read(_cases(shared, "malformed") / name)
    assert "\n" not in str(refused.value)


def test_differences_from_perfetto_are_explained(shared):
    lines = (_cases(shared, "malformed") / "peer_perfetto_v52.jsonl").read_text().splitlines()
    differing = set()
    for peer in map(json.loads, lines):
        ours = OUTCOMES.get(peer["file"])
        theirs = (peer.get("slices"), peer.get("sum_dur_ns") or 0)
        if ours is not None and (ours.events, ours.total_ns) != theirs:
            differing.add(peer["file"])
    assert differing == PERFETTO_DIFFERS.keys()


def test_all_cases_of_the_folder_are_covered(shared):
    folder = _cases(shared, "malformed")
    files = {path.name for path in folder.iterdir() if path.name[:2].isdecimal()}
    assert files == {*OUTCOMES, "62_empty_file.json", "63_top_level_null.json"}


# --- other peers' samples --------------------------------------------------------------------

#: Perfetto's own test inputs: slices we read otherwise, and why.
PERFETTO_TESTS_DIFFER = {
    "invalid_string_ts_and_dur.json": "a bad duration costs us the duration, it the slice",
    "json_all_slice_types.json": "an end of another name closes the only open slice here",
    "json_extreme_vals.json": "a slice without a duration is kept; an end of another name closes",
    "json_id2.json": "an id2 of neither scope is an id all the same",
    "json_thread_state.json": "a thread's states are instants here, a table of their own there",
    "json_thread_state_sched.json": "a thread's states are instants here, a table of its own there",
    "overlapping_complete_event_import_log.json": "it drops overlapping slices; we keep all",
    "string_pid_tid.json": "it looks at the first letter of the phase XXX only",
    "string_ts_trailing_chars.json": "a bad duration costs us the duration, it the slice",
}


def test_perfetto_inputs(shared):
    folder = _cases(shared, "perfetto")
    differing = {}
    for peer in map(json.loads, (folder / "peer_perfetto_v52.jsonl").read_text().splitlines()):
        path = folder / peer["file"]
        trace = read(path)
        assert schema.check(trace.tables) == [], path
        ours = (trace.events.height, _total(trace))
        if ours != (peer.get("slices") or 0, peer.get("sum_dur_ns") or 0):
            differing[peer["file"]] = ours
    assert differing.keys() == PERFETTO_TESTS_DIFFER.keys(), differing


#: speedscope's samples of which it shows another number of calls than we have slices, and why.
SPEEDSCOPE_DIFFERS = {
    "mismatched-name.json": "an end of another name closes the only open slice here",
    "multi-thread-with-samples.json": "it makes calls of samples; they stay samples here",
    "only-begin-events.json": "it drops a last frame that lasts no time; open slices are kept here",
    "simple-with-samples.json": "it makes calls of samples; they stay samples here",
    "zero-duration-events.json": "it drops slices of no duration",
}


@pytest.mark.matrix
def test_speedscope_sample_files(shared):
    folder = _cases(shared, "speedscope")
    differing = {}
    for peer in map(json.loads, (folder / "peer_speedscope.jsonl").read_text().splitlines()):
        trace = read(folder / peer["file"])
        assert schema.check(trace.tables) == []
        calls = sum(profile.get("calls", 0) for profile in peer.get("profiles", ()))
        ours = trace.events.filter(pl.col("kind") != "sample").height
        if ours != calls:
            differing[peer["file"]] = (ours, calls)
    assert differing.keys() == SPEEDSCOPE_DIFFERS.keys(), differing


@pytest.mark.parametrize(
    ("name", "slices"),
    [
        ("clang/tests_blender-mac-clang14_importer_mesh_utils.json", None),
        ("clang/tests_blender-mac-clang14_IO_wavefront_obj.json", None),
        ("clang/tests_blender-mac-clang14_obj_export_file_writer.json", None),
    ],
)
def test_clangs_time_traces(shared, name, slices):
    path = _cases(shared, name)
    complete = [e for e in json.loads(path.read_bytes())["traceEvents"] if e["ph"] == "X"]
    trace = read(path)
    assert trace.events["dur"].drop_nulls().len() == len(complete)
    assert _total(trace) == 1000 * sum(e["dur"] for e in complete)


@pytest.mark.parametrize(
    "name", ["dftracer/test_data1.pfw", "dftracer/test.pfw.gz", "dftracer/cm1-3537811.pfw.gz"]
)
def test_dftracers_lines(shared, name):
    import gzip

    path = _cases(shared, name)
    data = gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes()
    events = [json.loads(line) for line in data.split(b"\n") if line.strip().startswith(b"{")]
    complete = [e for e in events if e["ph"] == "X"]
    trace = read(path)
    assert trace.issues.is_empty()
    assert trace.events.height == len(complete)
    assert _total(trace) == 1000 * sum(int(e["dur"]) for e in complete)
