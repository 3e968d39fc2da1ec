"""Texts that PyTorch and DeepSpeed print: every number, compared with another reading of it."""

from __future__ import annotations

import re
import runpy
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT
from hypothesis import given, strategies as st
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer import InputError, schema
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.printed_text import lines, training_log
from traceanalyzer.parsers.printed_text.lines import line
from traceanalyzer.parsers.source import Source
from traceanalyzer.vocabulary import PRINTED_TEXT

FIXTURES = ROOT / "fixtures"
SCRIPT = runpy.run_path(str(FIXTURES / "make_printed_text.py"))
US = {"us": 1e3, "ms": 1e6, "s": 1e9}
BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
TORCH = ("profiler_list.dat", "top10.txt", "narrow_names.txt", "by_shape.txt")


def rows_of(path: Path, form: str) -> list[dict[str, Any]]:
    """The rows of a form as dicts, in order of the file."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in ta.read(path).aggregates.iter_rows(named=True):
        if one["form"] == form:
            row = rows.setdefault((one["rank"], one["block"], one["row"]), {"name": one["name"]})
            row |= {"rank": one["rank"], "is_cut": one["is_cut"]}
            row[one["metric"]] = one["value"] if one["text"] is None else one["text"]
    return list(rows.values())


def counted(trace: ta.Trace) -> dict[str, int]:
    """The number of rows of each form, without those about a whole block."""
    of_rows = trace.aggregates.drop_nulls("row").unique(["form", "rank", "block", "row"])
    return dict(of_rows.group_by(pl.col("form").cast(pl.String)).len().iter_rows())


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPT["files"]())
def test_format_is_detected_by_content(name: str, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown"
    shutil.copyfile(FIXTURES / "printed_text" / name, unknown)
    detected = registry.detect(Source(unknown))
    assert detected is not None
    assert detected.name == PRINTED_TEXT
    trace = ta.read(unknown)
    assert schema.check(trace.tables) == []
    assert trace.issues.is_empty()
    assert not trace.aggregates.is_empty()


@pytest.mark.parametrize("case", SCRIPT["CASES"], ids=lambda case: case.name)
def test_damaged_files(case: Any) -> None:
    path = FIXTURES / "malformed_text" / case.name
    if case.rows is None:
        with raises_wording(InputError):
            ta.read(path, format=PRINTED_TEXT)
        return
    trace = ta.read(path)
    assert trace.meta.format == PRINTED_TEXT
    assert schema.check(trace.tables) == []
    assert counted(trace) == case.rows
    assert dict(trace.issues.select("code", "count").iter_rows()) == case.issues


def test_fixtures_equal_the_output_of_the_script(tmp_path: Path) -> None:
    SCRIPT["main"](tmp_path)
    for folder in ("printed_text", "malformed_text"):
        written = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        assert written == {p.name: p.read_bytes() for p in (FIXTURES / folder).iterdir()}


@pytest.mark.parametrize("cut", range(0, 12_000, 997))
def test_every_prefix_is_read_or_refused(cut: int, tmp_path: Path) -> None:
    whole = (FIXTURES / "printed_text/job.log").read_bytes()
    (tmp_path / "job.log").write_bytes(whole[:cut])
    try:
        trace = ta.read(tmp_path / "job.log", format=PRINTED_TEXT)
    except InputError:
        assert cut < 1000
        return
    assert schema.check(trace.tables) == []
    full = ta.read(FIXTURES / "printed_text/job.log").aggregates
    keys = ["line", "metric", "value", "text"]
    # a row with a stack or a cut line may be missing, none may be different
    assert trace.aggregates.select(keys).join(full.select(keys), on=keys, how="anti",
                                              nulls_equal=True).height <= 1  # fmt: skip


def test_other_text_is_not_detected(tmp_path: Path) -> None:
    for text in (
        "Self CPU time total\n" * 3,
        "time (ms)\n",
        '{"a": "time (ms) | fwd: 1.0"}',
        "loss 1\n",
    ):
        (tmp_path / "x").write_text(text)
        detected = registry.detect(Source(tmp_path / "x"))
        assert detected is None or detected.name != PRINTED_TEXT


# --- numbers -------------------------------------------------------------------------------------


@given(st.text() | st.from_regex(r"-?\d{0,400}(\.\d*)?(e-?\d+)? ?[kKMGTmunsBFLOPSµi%]{0,6}"))
def test_numbers_never_raise(text: str) -> None:
    for parse in (lines.number, lines.nanoseconds, lines.size, lines.count):
        parsed = parse(text)
        assert parsed is None or isinstance(parsed, float)
    assert lines.count("21.83 GMACs", "MACs") == lines.count("21.83 G", "MACs") == 21.83e9


@given(st.text(), st.integers(0, 1 << 20))
def test_lines_never_raise(text: str, number: int) -> None:
    one = line(number, text)
    assert one.rank is None or 0 <= one.rank < 10**6
    assert one.printed_ns is None or one.printed_ns >= 0
    assert len(one.text) <= len(text)


@given(st.integers(0, 10**15), st.sampled_from(["us", "ms", "s"]))
def test_times_are_exact_to_what_is_printed(ns: int, unit: str) -> None:
    text = f"{ns / US[unit]:.3f}{unit}"
    assert lines.nanoseconds(text) == round(float(text.removesuffix(unit)) * US[unit])


@pytest.mark.parametrize(
    ("text", "rank", "rest"),
    [
        ("[rank3]: x", 3, "x"),
        ("[rank3]:[Rank 0] x", 0, "[Rank 0] x"),
        ("[default3]:x", None, "[default3]:x"),
        ("[default3]: x", None, "x"),
        ("[1,12]<stdout>: x", 12, "x"),
        ("12: x", 12, "x"),
        ("12:34:56 x", None, "12:34:56 x"),
        ("[2025-11-10 09:43:36,149] [Rank 7] x", 7, "[2025-11-10 09:43:36,149] [Rank 7] x"),
        ("rank=5 time (ms)", 5, "rank=5 time (ms)"),
    ],
)
def test_rank_of_a_line(text: str, rank: int | None, rest: str) -> None:
    assert (line(1, text).rank, line(1, text).text) == (rank, rest)


def test_time_of_a_line() -> None:
    assert line(1, "[1970-01-02 00:00:01,149] x").printed_ns == (86_401_149) * 10**6
    assert line(1, "[1970-13-02 00:00:01,149] x").printed_ns is None


# --- key_averages --------------------------------------------------------------------------------


def split_rows(path: Path) -> list[list[str]]:
    """The rows of a table as cells, by blanks from the right: a name may contain two blanks."""
    lines = path.read_text().split("\n")
    cells = len(re.split(r"\s{2,}", next(one for one in lines if "Self CPU %" in one).strip()))
    rows = [one.strip() for one in lines if "%  " in one and "Name" not in one]
    ends = [[*re.finditer(r"\s{2,}", one)][1 - cells :] for one in rows]
    return [
        [one[: blanks[0].start()], *re.split(r"\s{2,}", one[blanks[0].end() :])]
        for one, blanks in zip(rows, ends, strict=True)
    ]


@pytest.mark.parametrize("name", TORCH)
def test_tables_of_torch(name: str, shared: Path) -> None:
    path = shared / f"data/key_averages/torch213_cpu_{name}"
    rows = [row for row in rows_of(path, "key_averages") if "calls" in row]
    expected = split_rows(path)
    assert len(rows) == len(expected) > 9
    heading = next(one for one in path.read_text().split("\n") if "Self CPU %" in one)
    at = re.split(r"\s{2,}", heading.strip())

    def ns(text: str) -> int:
        number, unit = re.fullmatch(r"(.*\d)([a-z]+)", text).groups()  # type: ignore[union-attr]
        return round(float(number) * US[unit])

    def size(text: str) -> int:
        number, unit = text.split(" ")
        return round(float(number) * BYTES[unit])

    for row, cells in zip(rows, expected, strict=True):
        of = dict(zip(at, cells, strict=True))
        assert row["name"] == of["Name"]
        assert row["is_cut"] == of["Name"].endswith("...")
        assert row["self_host_ns"] == ns(of["Self CPU"])
        assert row["total_host_ns"] == ns(of["CPU total"])
        assert row["total_host_memory_bytes"] == size(of["CPU Mem"])
        assert row["self_host_memory_bytes"] == size(of["Self CPU Mem"])
        assert row["calls"] == int(of["# of Calls"])
        flops = of.get("Total FLOPs", "--")
        assert row.get("flops") == (None if flops == "--" else float(flops))
        assert row.get("input_dims") == of.get("Input Shapes")


def test_percentages_of_torch_follow_from_the_times(shared: Path) -> None:
    path = shared / "data/key_averages/torch213_cpu_profiler_list.dat"
    rows = rows_of(path, "key_averages")
    host_ns = next(row["host_ns"] for row in rows if "host_ns" in row)
    for row, cells in zip((r for r in rows if "calls" in r), split_rows(path), strict=True):
        assert 100 * row["self_host_ns"] / host_ns == pytest.approx(float(cells[1][:-1]), abs=0.02)


def test_stacks_of_torch(shared: Path) -> None:
    rows = rows_of(shared / "data/key_averages/torch213_cpu_by_stack.txt", "key_averages")
    by_name = {row["name"]: row for row in rows}
    assert by_name["aten::mm"]["stack"].split("\n") == [
        "<built-in function linear>",
        "torch/nn/modules/linear.py(130): forward",
        "torch/nn/modules/module.py(1782): _call_impl",
        "nn.Module: Linear_0",
    ]
    assert by_name["aten::mm"]["flops"] == 9_216_000
    assert "flops" not in by_name["aten::div"]


def test_gpu_columns() -> None:
    rows = [r for r in rows_of(FIXTURES / "printed_text/xpu.txt", "key_averages") if "calls" in r]
    for row, (name, self_cpu, cpu, self_cuda, cuda, memory, calls, flops) in zip(
        rows, SCRIPT["OPERATORS"], strict=True
    ):
        assert row["name"] == (name if len(name) <= 55 else f"{name[:52]}...")
        for metric, exact in (
            ("self_host_ns", self_cpu), ("total_host_ns", cpu),
            ("self_device_ns", self_cuda), ("total_device_ns", cuda),
        ):  # fmt: skip
            assert row[metric] == pytest.approx(exact, abs=500)
        assert row["self_device_memory_bytes"] == memory
        assert row["calls"] == calls
        assert row.get("flops", 0) == pytest.approx(flops, abs=500)


# --- memory --------------------------------------------------------------------------------------


def test_memory_summary() -> None:
    path = FIXTURES / "printed_text/profiler_list.dat"
    rows = {row["name"]: row for row in rows_of(path, "memory_summary")}
    for name, numbers in SCRIPT["MEMORY"]:
        metrics = ("current", "peak", "total_allocated", "total_freed")
        assert tuple(rows[name][f"{metric}_bytes"] for metric in metrics) == numbers
        assert rows[name]["unit_bytes"] == 1 << 20
        assert rows[f"{name}, large pool"]["peak_bytes"] == 0
    assert rows["Allocations"]["peak_n"] == 12_000
    whole = ta.read(path).aggregates.filter(pl.col("form") == "memory_summary")
    problems = dict(whole.filter(pl.col("row").is_null()).select("metric", "value").iter_rows())
    assert problems == {"ooms": 1, "retries": 3, "device": 0, "requirement_bytes": 39 << 30}


def test_see_memory_usage() -> None:
    rows = rows_of(FIXTURES / "printed_text/job.log", "memory_usage")
    assert [row["name"] for row in rows] == [message for message, *_ in SCRIPT["USAGE"]]
    for row, (_, *numbers) in zip(rows, SCRIPT["USAGE"], strict=True):
        names = ("allocated", "peak", "reserved", "reserved_peak")
        assert [row[f"{n}_bytes"] for n in names] == [round(gib * (1 << 30)) for gib in numbers]
        assert (row["host_used_frac"], row["rank"]) == (pytest.approx(0.062), 0)


# --- DeepSpeed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alcf_cooldown_notes.md", "seekpoint_cifar10.log"])
def test_timers_of_deepspeed(name: str, shared: Path) -> None:
    path = shared / "data/deepspeed" / name
    expected = [
        (item.split(": ")[0], round(float(item.split(": ")[1]) * 1e6), number)
        for number, text in enumerate(path.read_text().split("\n"), start=1)
        if "time (ms) | " in text
        for item in text.split("time (ms) | ")[1].split(" | ")
    ]
    blocks = re.compile(r"    ([\w-]+) \.+: \([\d.]+, ([\d.]+)\)$")
    for number, text in enumerate(path.read_text().split("\n"), start=1):
        if one := blocks.search(text):
            expected.append((one[1], round(float(one[2]) * 1e6), number))
    expected.sort(key=lambda one: one[2])
    table = ta.read(path).aggregates.filter(pl.col("form") == "timers")
    assert table.select("name", "value", "line").rows() == expected
    assert table["rank"].unique().to_list() == [0]
    assert len(expected) > 100


@pytest.mark.parametrize(
    "text",
    [
        "[Rank 0] time (ms) | forward: 20.50 | backward: 40.25 | optimizer: 3.00",
        "time (ms) | batch_input: 20.50 | pipe_send_output: 40.25",
        " iteration 26/ 50 | elapsed time per iteration (ms): 381.2 | (TFLOP/s/GPU): 8.5 | lm: 1 |",
    ],
)
def test_a_log_that_ends_in_a_line(text: str) -> None:
    """Wherever the last line is cut, no number differs from that of the whole line."""
    whole = {(one["name"], one["metric"], one["value"]) for one in timers_of(line(1, text))}
    assert whole
    for at in range(len(text)):
        cut = timers_of(replace(line(1, text[:at]), complete=False))
        assert {(one["name"], one["metric"], one["value"]) for one in cut} <= whole


def timers_of(one: lines.Line) -> list[dict[str, Any]]:
    """The rows of a line of timers."""
    rows = lines.Rows()
    training_log.Reader(rows).feed(one)
    return rows.table().to_dicts()


@pytest.mark.parametrize(
    ("name", "modules"), [("llava_flops_profiler.txt", 754), ("topomoe_flops_profile.txt", 1601)]
)
def test_modules_of_deepspeed(name: str, modules: int, shared: Path) -> None:
    """The shares that the text has itself follow from the numbers read."""
    path = shared / "data/deepspeed" / name
    rows = [row for row in rows_of(path, "flops_profile") if "class" in row]
    shares = re.findall(r"([\d.]+)% Params.*?([\d.]+)% MACs", path.read_text())
    assert len(rows) == len(shares) == modules
    whole = rows[0]

    def about(share: float) -> Any:  # both numbers have two decimals
        return pytest.approx(share, rel=2e-3, abs=0.02)

    for row, (params, macs) in zip(rows, shares, strict=True):
        assert 100 * row["params"] / whole["params"] == about(float(params))
        assert 100 * row["fwd_macs"] / whole["fwd_macs"] == about(float(macs))
    depth = {row["name"]: row["depth"] for row in rows}
    assert all(d == (0 if n == whole["name"] else n.count(".") + 1) for n, d in depth.items())
    assert len(depth) == modules


@pytest.mark.parametrize("name", ["job.log", "flops_2021.txt"])
def test_both_layouts_of_a_profile(name: str) -> None:
    rows = rows_of(FIXTURES / "printed_text" / name, "flops_profile")
    modules = [row for row in rows if "class" in row]
    expected = [(path or kind, kind, *numbers) for path, kind, *numbers in SCRIPT["MODULES"]]
    metrics = ("name", "class", "params", "fwd_macs", "fwd_latency_ns")
    assert [tuple(row[m] for m in metrics) for row in modules] == expected
    about = next(row for row in rows if "fwd_flops" in row)
    assert (about["fwd_flops"], about["iter_latency_ns"]) == (
        SCRIPT["FWD_FLOPS"],
        SCRIPT["ITER_NS"],
    )
    assert (about["params"], about["step"], about["flops_factor"]) == (12e6, 2, 3)


def test_communication_log() -> None:
    rows = rows_of(FIXTURES / "printed_text/comms.log", "comm_log")
    expected = [(op, size, ms * 1e6) for op, size, ms in SCRIPT["CALLS"]]
    assert [(r["name"], r["message_bytes"], r["total_ns"]) for r in rows] == expected


def test_communication_summary(shared: Path) -> None:
    path = shared / "data/deepspeed/alcf_cooldown_notes.md"
    rows = rows_of(path, "comm_summary")
    text = path.read_text().split("busbw_avg (Gbps)\n")[1].split("wandb.run.name")[0]
    cells = [one.split() for one in text.split("\n") if len(one.split()) > 4]
    assert [str(int(row["n"])) for row in rows] == [one[-5] for one in cells]
    assert [row["total_ns"] for row in rows] == [round(float(one[-4]) * 1e6) for one in cells]
    assert [row["name"] for row in rows][5:7] == ["broadcast", "all_reduce"]
    assert len(rows) == 19


def test_interleaved_ranks() -> None:
    """Each rank's tables are those of a log of this rank alone."""
    trace = ta.read(FIXTURES / "printed_text/job.log")
    for rank in (0, 1):
        rows = trace.aggregates.filter(pl.col("rank") == rank, pl.col("form") == "key_averages")
        alone = ta.read(FIXTURES / "printed_text/profiler_list.dat").aggregates
        alone = alone.filter(pl.col("form") == "key_averages")
        columns = ["row", "name", "metric", "value", "text"]
        assert rows.select(columns).equals(alone.select(columns))
    assert sorted(trace.aggregates["rank"].unique()) == [0, 1]


def test_an_empty_file_of_stacks_says_why(tmp_path: Path) -> None:
    (tmp_path / "profiler_stacks.txt").touch()
    with raises_wording(InputError):
        ta.read(tmp_path / "profiler_stacks.txt")


def test_text_far_below_the_head(tmp_path: Path) -> None:
    path = tmp_path / "slurm.out"
    path.write_text("loss 1.5\n" * 10_000 + SCRIPT["key_averages"]())
    assert counted(ta.read(path)) == {"key_averages": 5, "job_context": 1}
    path.write_text("loss 1.5\n" * 10_000)
    with raises_wording(InputError):
        ta.read(path)


@pytest.mark.parametrize("front", ["", "    ", "2026-01-01 10:00:00,000 INFO - "])
@pytest.mark.parametrize("every", [False, True])
def test_table_behind_a_prefix(front: str, every: bool, tmp_path: Path) -> None:
    """A logger writes its prefix before the first line; a document indents every line."""
    lines = SCRIPT["key_averages"]().split("\n")
    if every and front.strip():
        return
    text = [(front if every or not at else "") + one for at, one in enumerate(lines)]
    (tmp_path / "a.log").write_text("\n".join(text))
    rows = rows_of(tmp_path / "a.log", "key_averages")
    alone = rows_of(FIXTURES / "printed_text/profiler_list.dat", "key_averages")
    assert [r | {"rank": None} for r in rows] == [r | {"rank": None} for r in alone]


@pytest.mark.parametrize("damage", ["no rules", "short rules", "narrow names"])
def test_table_with_damaged_rules(damage: str, tmp_path: Path) -> None:
    """Documents lose the dashes, and names are shortened by hand."""
    rule = re.compile(r"-{2,}(?:  -{2,})+ *")
    text = []
    for one in SCRIPT["key_averages"]().split("\n"):
        if damage == "narrow names":
            text.append(re.sub(r"^ *([^- ].{2,30}?)  +(?=\d)", r"\1  ", one))
        elif not rule.fullmatch(one):
            text.append(one)
        elif damage == "short rules":
            text.append("  ".join(one.split()[:5]))
    (tmp_path / "a.txt").write_text("\n".join(text))
    rows = rows_of(tmp_path / "a.txt", "key_averages")
    whole = rows_of(FIXTURES / "printed_text/profiler_list.dat", "key_averages")
    assert [one | {"rank": None} for one in rows] == [one | {"rank": None} for one in whole]
    assert not ta.read(tmp_path / "a.txt").issues.height


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("x ", None),
        ("\t", None),
        ("trainer-0  | ", None),
        ("\x1b[36m(RayTrainWorker pid=1234)\x1b[0m ", None),
        ("[default0]:", None),
        ("[1,3]<stdout>:", 3),
        ("2024-06-01T10:00:0%d.123456789Z ", None),
        ("[10:00:0%d] node1 [Rank 5] ", 5),
    ],
)
@pytest.mark.parametrize("form", ["key_averages", "memory_summary"])
def test_table_behind_the_same_prefix_in_all_lines(
    prefix: str, rank: int | None, form: str, tmp_path: Path
) -> None:
    whole = SCRIPT[form]()
    lines = [prefix.replace("%d", str(at % 10)) + one for at, one in enumerate(whole.split("\n"))]
    others = [f"other {one}" for one in lines]
    mixed = [one for pair in zip(lines, others, strict=True) for one in pair]
    (tmp_path / "a.log").write_text(whole)
    alone = rows_of(tmp_path / "a.log", form)
    (tmp_path / "a.log").write_text("\n".join(lines) + "\n")
    assert rows_of(tmp_path / "a.log", form) == [one | {"rank": rank} for one in alone]
    (tmp_path / "a.log").write_text("\n".join(mixed) + "\n")
    assert len(rows_of(tmp_path / "a.log", form)) == 2 * len(alone)


def test_first_lines_joined_with_other_text(tmp_path: Path) -> None:
    """Several writers to one log, and text pasted behind a quote, join lines."""
    rows = [line for line in SCRIPT["key_averages"]().split("\n") if line]
    rule = rows[next(at for at, row in enumerate(rows) if row.startswith("----"))]
    summary = SCRIPT["memory_summary"]().split("\n")
    head = next(at for at, row in enumerate(summary) if "memory summary" in row)
    summary[head - 1 : head + 1] = ["".join(summary[head - 1 : head + 1])]
    comms = (
        "`Comm. Op            Message Size        Count               Total Latency(ms)"
        "   Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)\nbroadcast\n"
        "                    1.0 KB     2     0.40     0.20     1.00     1.00\n"
    )
    joined = "\n".join(["test ... " + rule[:-16], *rows[rows.index(rule) + 1 :], *summary, comms])
    (tmp_path / "a.log").write_text(joined)
    trace = ta.read(tmp_path / "a.log")
    whole = counted(ta.read(FIXTURES / "printed_text/profiler_list.dat"))
    assert counted(trace) == whole | {"comm_summary": 1}
    assert not trace.issues.height


def test_headings_of_old_versions(tmp_path: Path) -> None:
    """PyTorch 1.0 to 1.5: cells begin at the left, headings are wider than their columns."""
    headings = ["Name", "Self CPU total %", "Self CPU total", "CPU total %", "CPU total",
                "CPU time avg", "Number of Calls"]  # fmt: skip
    cells = ["add a  b", "12.50%", "1.250ms", "25.00%", "2.500ms", "500.000us", "5"]
    rule = "  ".join("-" * 15 for _ in headings)
    lines = ["  ".join(f"{one:<15}" for one in row) for row in (headings, cells)]
    text = [rule, lines[0], rule, lines[1], rule, "Self CPU time total: 10.000ms", ""]
    (tmp_path / "a.txt").write_text("\n".join(text))
    row, total = rows_of(tmp_path / "a.txt", "key_averages")
    assert row["name"] == "add a  b"
    assert (row["self_host_ns"], row["total_host_ns"], row["calls"]) == (1_250_000, 2_500_000, 5)
    assert total["host_ns"] == 10_000_000


@pytest.mark.parametrize(
    "text",
    [
        "-" * 60_000,
        "--  " * 15_000 + "x",
        " " * 60_000 + "x",
        "Name CPU total " * 4_000,
        "{'" * 30_000 + "_runtime'",
    ],
)
def test_hostile_lines_take_linear_time(text: str, tmp_path: Path) -> None:
    start = f"{'-' * 20} DeepSpeed Flops Profiler {'-' * 20}\nNet(\n"
    (tmp_path / "a.txt").write_text(start + f"{text}\n" * 5 + SCRIPT["key_averages"]())
    before = time.process_time()
    assert counted(ta.read(tmp_path / "a.txt", format=PRINTED_TEXT))["key_averages"] == 5
    assert time.process_time() - before < 5
