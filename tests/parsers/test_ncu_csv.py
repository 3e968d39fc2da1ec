"""Reports of Nsight Compute: layouts, encodings, numbers and units, and damaged files."""

from __future__ import annotations

import csv
import io
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import polars as pl
import pytest
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput, MissingData, UnknownFormat
from traceanalyzer.parsers import ncu_csv
from traceanalyzer.parsers.ncu_csv import Numbers, reader, unit_of
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import concat
from traceanalyzer.vocabulary import NCU_CSV, NCU_REP

FOLDER = ROOT / "fixtures" / "ncu"
SCRIPT = runpy.run_path(str(ROOT / "fixtures" / "make_ncu.py"))
#: Files that describe the same launches with the same metrics.
SAME = (
    "byte_order_mark", "carriage_returns", "decimal_comma", "gui", "label", "long", "nvtx",
    "old_kernel_time", "output_between_rows", "semicolons", "summary", "two_tables",
    "unclosed_quote", "utf16", "wide",
)  # fmt: skip
BAD = {"cut": 1, "unclosed_quote": 1}


def values(trace: ta.Trace) -> list[tuple[Any, ...]]:
    """Return kernel, metric, unit and value of all rows."""
    rows = trace.metrics.select("kernel", "metric", "unit", "value").cast({"kernel": pl.String})
    texts = rows.with_columns(pl.col("metric", "unit").cast(pl.String))
    return sorted(texts.rows(), key=str)


def expected() -> list[tuple[Any, ...]]:
    """Return the same of the script, in base units."""
    base = {"Mbyte": ("byte", 1e6), "us": ("ns", 1e3), "inst": ("inst", 1)}
    rows = (
        (launch[1], name, base[unit][0], pytest.approx(value * base[unit][1]))
        for launch in SCRIPT["LAUNCHES"]
        for name, unit, value in SCRIPT["metrics"](launch)
    )
    return sorted(rows, key=lambda row: str(row[:3]))


@pytest.mark.parametrize("name", SAME)
def test_layouts_have_the_same_content(name: str) -> None:
    trace = ta.read(FOLDER / f"{name}.csv")
    assert schema.check(trace.tables) == []
    assert trace.meta.format == NCU_CSV
    assert values(trace) == expected()
    lost = trace.issues.filter(pl.col("severity") == "data_loss")
    assert int(lost["count"].sum()) == BAD.get(name, 0)
    assert trace.metrics["launch"].n_unique() == 2
    assert set(trace.metrics["launches"]) == ({3} if name == "summary" else {1})


def test_identity_of_launches() -> None:
    rows = ta.read(FOLDER / "long.csv").metrics.unique("launch", maintain_order=True)
    place = rows.select("host", "pid", "id", "device", "cc", "grid", "block")
    text = place.cast(dict.fromkeys(("host", "cc", "grid", "block"), pl.String))
    assert text.row(1) == ("node7", 4711, 1, 0, "8.0", "(80, 1, 1)", "(128, 1, 1)")


def test_two_processes_restart_their_numbers(tmp_path: Path) -> None:
    text = (FOLDER / "long.csv").read_text().replace('"4711"', '"4712"')
    path = tmp_path / "both.csv"
    path.write_text((FOLDER / "long.csv").read_text() + text)
    assert ta.read(path).metrics["launch"].n_unique() == 4


def test_rules_and_display_names() -> None:
    metrics = ta.read(FOLDER / "details.csv").metrics
    rules = metrics.drop_nulls("rule")
    text = rules.select(pl.col("rule", "rule_type", "speedup_type").cast(pl.String), "speedup_frac")
    assert text.rows() == [("Uncoalesced", "OPT", "global", 0.405)] * 2
    assert rules["text"].cast(pl.String)[0].splitlines()[0] == "Accesses are not coalesced."
    same = metrics.filter(pl.col("metric").cast(pl.String) == "Memory Throughput")
    units = dict(zip(same["unit"].cast(pl.String), same["value"], strict=True))
    assert units == {"%": 71.5, "byte/s": pytest.approx(0.5e12)}


def test_damaged_rows_are_counted() -> None:
    trace = ta.read(FOLDER / "cut.csv")
    assert trace.metrics.height == 9
    assert trace.issues["code"].to_list() == ["truncated"]
    assert "ax\ufffdpy" in ta.read(FOLDER / "not_utf8.csv").metrics["kernel"].cast(pl.String)[0]


@pytest.mark.parametrize("name", ["errors_only.csv", "no_kernels.csv", "header_only.csv"])
def test_reports_without_kernels(name: str) -> None:
    with raises_wording(MalformedInput):
        ta.read(FOLDER / name)


def test_real_files_equal_plain_python(shared: Path) -> None:
    """Independent: the csv module, and numbers without their thousands separators."""
    for path in sorted((shared / "data/ncu").glob("*.csv")):
        text = path.read_text(encoding="utf-8-sig")
        start = text.index('"ID"')
        rows = list(csv.DictReader(io.StringIO(text[start:])))
        numbers = [row["Metric Value"].replace(",", "") for row in rows if row["Metric Name"]]
        trace = ta.read(path)
        metrics = trace.metrics.drop_nulls("metric")
        assert metrics.height == len(numbers)
        assert trace.metrics["rule"].count() == sum(not row["Metric Name"] for row in rows)
        units = [row["Metric Unit"] for row in rows if row["Metric Name"]]
        for number, unit, value in zip(numbers, units, metrics["value"], strict=True):
            if number.replace(".", "").isdigit():
                assert value == pytest.approx(float(number) * unit_of(unit)[1])
            else:
                assert value is None
        assert schema.check(trace.tables) == []


def test_only_wanted_metrics_are_read() -> None:
    for name in ("long.csv", "wide.csv"):
        metrics = ta.read(FOLDER / name, metrics="dram__").metrics
        assert set(metrics["metric"].cast(pl.String)) == {"dram__bytes.sum"}
        assert ta.read(FOLDER / name, kinds="kernel").metrics.is_empty()


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    "name", ["details", "long", "wide", "two_tables", "unclosed_quote", "hopper_raw"]
)
def test_small_chunks_give_the_same_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = FOLDER / f"{name}.csv"
    whole = ta.read(path)
    data = path.read_bytes()
    for size in (7, 64, 1_001):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        monkeypatch.setattr(Source, "blocks", lambda *_, pieces=pieces, **__: iter(pieces))
        monkeypatch.setattr(Source, "head", lambda _: data)
        parts = ta.read(path)
        assert values(parts) == values(whole)
        assert parts.issues.rows() == whole.issues.rows()


def test_devices_parquet_and_concat(tmp_path: Path) -> None:
    trace = ta.read(FOLDER / "hopper_raw.csv")
    assert [(one.id, one.name) for one in trace.meta.devices] == [(0, "NVIDIA H100 80GB HBM3")]
    ta.convert(FOLDER / "hopper_raw.csv", tmp_path / "x.parquet")
    assert values(ta.read(tmp_path / "x.parquet")) == values(trace)
    both = concat([trace, ta.read(FOLDER / "long.csv")])
    assert both.metrics["launch"].n_unique() == 7
    assert schema.check(both.tables) == []


@pytest.mark.parametrize("command", ["kernels", "gpu_idle", "timeline", "efficiency", "hang"])
def test_analyses_of_time_name_the_fitting_command(command: str) -> None:
    with pytest.raises(MissingData, match="traceanalyzer roofline FILE"):
        getattr(ta, command)(FOLDER / "long.csv")


# --- numbers and units -----------------------------------------------------------------------

UNITS = (
    ("Kbyte", "byte", 1e3), ("Gbyte/s", "byte/s", 1e9), ("Tbyte/second", "byte/s", 1e12),
    ("msecond", "ns", 1e6), ("us", "ns", 1e3), ("s", "ns", 1e9), ("Ghz", "hz", 1e9),
    ("cycle/nsecond", "hz", 1e9), ("%", "%", 1), ("inst/cycle", "inst/cycle", 1),
    ("byte/block", "byte/block", 1), ("register/thread", "register/thread", 1), ("", "", 1),
)  # fmt: skip


@pytest.mark.parametrize(("unit", "base", "factor"), UNITS)
def test_units(unit: str, base: str, factor: float) -> None:
    assert unit_of(unit) == (base, factor)


def test_cells_without_a_number() -> None:
    cells = ["", "n/a", "(!) n/a", "no data", "nan", "inf", "CachePreferNone", "7 (1; 2)", "-0.5"]
    numbers = Numbers().convert(pl.Series(cells)).to_list()
    assert numbers == [None] * 7 + [7.0, -0.5]


def grouped(digits: str, separator: str) -> str:
    """Return digits with a separator between groups of three."""
    first = len(digits) % 3
    groups = [digits[:first]] * bool(first)
    return separator.join(groups + [digits[at : at + 3] for at in range(first, len(digits), 3)])


@given(
    numbers=st.lists(
        st.tuples(st.integers(0, 10**12), st.integers(0, 99), st.booleans()), min_size=1
    ),
    european=st.booleans(),
    space=st.sampled_from([None, " ", "\u00a0", "\u202f", "'"]),
)
@settings(max_examples=50, deadline=None)
def test_numbers_of_every_locale(
    numbers: list[tuple[int, int, bool]], european: bool, space: str | None
) -> None:
    thousands, decimal = (".", ",") if european else (",", ".")
    texts = [
        ("-" if negative else "") + grouped(str(whole), space or thousands) + f"{decimal}{cents:02}"
        for whole, cents, negative in numbers
    ]
    read = Numbers().convert(pl.Series(texts)).to_list()
    assert read == [
        pytest.approx((-1 if negative else 1) * (whole + cents / 100))
        for whole, cents, negative in numbers
    ]


def test_ambiguous_numbers_follow_the_others() -> None:
    english = Numbers().convert(pl.Series(["1,234", "0.5"])).to_list()
    assert english == [1234, 0.5]
    assert Numbers().convert(pl.Series(["1,234"])).to_list() == [1234]
    german = Numbers()
    assert german.convert(pl.Series(["1.234", "0,5", "1,234"])).to_list() == [1234, 0.5, 1.234]
    assert german.convert(pl.Series(["5.678"])).to_list() == [5678]


# --- hostile and foreign files --------------------------------------------------------------


@given(st.binary(max_size=400))
@settings(max_examples=50, deadline=None)
def test_any_bytes_after_a_header(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("ncu") / "x.csv"
    path.write_bytes((FOLDER / "long.csv").read_bytes() + data)
    trace = ta.read(path, format="ncu-csv")
    assert schema.check(trace.tables) == []
    assert trace.metrics.height >= 9


def test_a_wide_table_without_metrics_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "no_metric_columns.csv"
    path.write_text('"ID","Kernel Name"\n"",""\n"0","axpy"\n')
    assert ta.read(path).metrics.is_empty()


@pytest.mark.matrix
def test_rows_that_cannot_be_read_do_not_cost_the_others(tmp_path: Path) -> None:
    header, *rows = (FOLDER / "long.csv").read_bytes().splitlines(keepends=True)
    path = tmp_path / "unpaired_quotes.csv"
    bad = b'"0","1234","a""\n'
    path.write_bytes(header + (b"".join(rows) + b"output\n" + bad) * 300)
    trace = ta.read(path)
    known = ta.read(FOLDER / "long.csv").metrics.height
    assert trace.metrics.height == 300 * known
    assert dict(trace.issues.select("code", "count").iter_rows())["bad-line"] >= 299


def test_repeated_headers_begin_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of many processes has a header of each: thousands of tables took a minute."""
    path = tmp_path / "header_before_each_row.csv"
    text = (FOLDER / "long.csv").read_bytes()
    header, *rows = text[text.index(b'"ID"') :].splitlines(keepends=True)
    path.write_bytes(b"".join(header + row for row in rows))
    trace = ta.read(path)
    assert trace.metrics.equals(ta.read(FOLDER / "long.csv").metrics)
    reads: list[int] = []
    read = reader._cells
    monkeypatch.setattr(reader, "_cells", lambda *given: reads.append(1) or read(*given))
    ta.read(path)
    assert len(reads) == 1


def test_the_end_of_an_endless_line_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_csv, "_LONGEST_LINE", 10)
    blocks = [b"ab\n" + b"x" * 8, b"y" * 9, b"z" * 9 + b"\nend\nand", b"more", b"\n"]
    assert b"".join(ncu_csv.chunks(blocks)) == b"ab\n" + b"x" * 8 + b"yy" + b"\nend\nandmore\n"


def test_other_files_are_not_reports() -> None:
    for text in (b"", b"a,b\n1,2\n", b'{"Kernel Name": "ID"}', b"Name,ID\n", b"\0" * 99, b"==\n"):
        assert not ncu_csv.sniff(text, "x.csv")


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>\x1b[31m=cmd|calc\u202e"
    path = tmp_path / "x.csv"
    path.write_text(
        (FOLDER / "long.csv").read_text().replace("void axpy<float>(int, float *)", name)
    )
    result = ta.roofline(path)
    from traceanalyzer.render import html, table

    page, text = html.page(result), table.render(result)
    assert "<img" not in page
    assert "\x1b[31m" not in text
    assert "\u202e" not in page


# --- .ncu-rep --------------------------------------------------------------------------------


def test_report_without_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with raises_wording(UnknownFormat):
        ta.read(FOLDER / "report.ncu-rep")


class _Metric(SimpleNamespace):
    def value(self) -> Any:
        return self.content

    def unit(self) -> str:
        return str(self.of)


class _Action:
    """A launch, with the interface of ``ncu_report``."""

    def __init__(self, name: str, metrics: dict[str, tuple[Any, str]]) -> None:
        self._name = name
        self._metrics = {key: _Metric(content=v, of=unit) for key, (v, unit) in metrics.items()}

    def name(self) -> str:
        return self._name

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self._metrics)

    def metric_by_name(self, name: str) -> _Metric:
        return self._metrics[name]

    def rule_results_as_dicts(self) -> list[dict[str, Any]]:
        return [
            {
                "rule_identifier": "SOLBottleneck",
                "section_identifier": "SpeedOfLight",
                "rule_message": {"message": "small", "type": 2},
                "speedup_estimation": {"type": 2, "speedup": 50.0},
            }
        ]


def test_report_with_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = SCRIPT["LAUNCHES"][0]
    metrics = {name: (value, unit) for name, unit, value in SCRIPT["metrics"](launch)}
    metrics["device__attribute_display_name"] = ("NVIDIA L4", "")
    action = _Action(launch[1], metrics)
    of_range = SimpleNamespace(num_actions=lambda: 1, action_by_idx=lambda _: action)
    report = SimpleNamespace(num_ranges=lambda: 1, range_by_idx=lambda _: of_range)
    module = ModuleType("ncu_report")
    module.load_report = lambda path: report  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ncu_report", module)
    trace = ta.read(FOLDER / "report.ncu-rep")
    assert (trace.meta.format, schema.check(trace.tables)) == (NCU_REP, [])
    result = ta.roofline(FOLDER / "report.ncu-rep")
    assert result.kernels["work_tflops"].to_list() == [pytest.approx(2.0)]
    assert result.rules.select("rule", "speedup_frac").row(0) == ("SOLBottleneck", 0.5)

    def fail(path: str) -> None:
        raise RuntimeError("Failed to parse\nsecond line")

    module.load_report = fail  # type: ignore[attr-defined]
    with raises_wording(MalformedInput):
        ta.read(FOLDER / "report.ncu-rep")
