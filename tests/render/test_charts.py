"""Charts for pages: data of the viewer, and content without scripts."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from sample_results import HOSTILE, Sample, durations, empty, hostile, ordinary, skew

import traceanalyzer as ta
from traceanalyzer.drawings import Chart
from traceanalyzer.render import charts
from traceanalyzer.render.charts import pack, summary, thin
from traceanalyzer.render.marks import prepare
from traceanalyzer.render.palette import MEANINGS

FIXTURES = Path(__file__).parents[2] / "fixtures"
SAMPLES = [*ordinary().charts, *hostile().charts, *empty().charts]
VOID = {"meta", "br", "img", "link"}


def unpacked(chart: Chart) -> dict:
    return json.loads(pack(prepare(chart)).json)


def column(packed: dict) -> list:
    """Decode a column as the viewer does."""
    if "values" in packed:
        return packed["values"]
    total, values = 0, []
    for step in packed["steps"]:
        total += step
        values.append(total)
    return values


def scatter(frame: pl.DataFrame, **more) -> Chart:
    about = {"x": "x", "y": "y", "x_label": "x", "y_label": "y", **more}
    return Chart("c", "A chart", about.pop("mark", "scatter"), frame, **about)


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


# --- data of the viewer ----------------------------------------------------------------------


def test_marks_have_exact_positions():
    chart = durations()
    content, frame = unpacked(chart), chart.frame.sort("ts_ns", maintain_order=True)
    assert column(content["rows"]["x"]) == frame["ts_ns"].to_list()
    assert column(content["rows"]["y"]) == frame["dur_ns"].to_list()
    names = [content["colors"][color][0] for color in content["rows"]["color"]]
    assert names == [str(rank) for rank in frame["rank"]]
    assert content["ringed"] == frame["outlier"].arg_true().to_list()
    assert (content["mark"], content["log"], content["ring"]) == ("scatter", True, "outlier")


def test_axes_have_units_of_the_plot():
    for chart in (durations(), skew()):
        marks, content = prepare(chart), unpacked(chart)
        for scale, axis in ((marks.x, content["x"]), (marks.y, content["y"])):
            unit = f" [{axis['unit']}]" if axis.get("unit") else ""
            assert axis["label"] + unit == scale.label
    assert unpacked(durations())["x"] == {
        "label": "start", "kind": "ns", "unit": "ms", "whole": True, "grouped": True,
    }  # fmt: skip


def test_categories_have_colours_of_the_plot():
    part = pl.Enum(["compute", "copy", "idle"])
    frame = pl.DataFrame({"x": [1, 2, 3], "y": [1, 2, 3], "part": ["idle", None, "compute"]})
    chart = scatter(frame.with_columns(pl.col("part").cast(part)), color="part")
    assert unpacked(chart)["colors"] == [
        ["compute", MEANINGS["compute"]], ["idle", MEANINGS["idle"]], ["unknown", "#8b949e"],
    ]  # fmt: skip


def test_names_are_deduplicated_and_shortened():
    frame = pl.DataFrame({"x": ["a" * 500, "b", "a" * 500], "y": [1, 2, 3]})
    content = unpacked(scatter(frame, mark="bar"))
    assert content["x"]["names"][1] == "b"
    assert len(content["x"]["names"][0]) == 160
    assert column(content["rows"]["x"]) == [0, 0, 1]


def test_bars_at_even_times_are_to_scale():
    times = pl.DataFrame({"at_ns": [0, 5_000_000, 15_000_000], "y": [1, 2, 3]})
    even = unpacked(scatter(times, mark="bar", x="at_ns"))
    assert (even["width"], even["x"]["unit"]) == (5_000_000, "ms")
    assert column(even["rows"]["x"]) == times["at_ns"].to_list()
    uneven = times.with_columns(at_ns=pl.Series([0, 5, 15_000_000]))
    assert unpacked(scatter(uneven, mark="bar", x="at_ns"))["x"]["names"][2] == "15.00"
    ranks = unpacked(scatter(times.rename({"at_ns": "rank"}), mark="bar", x="rank"))
    assert ranks["width"] == 0
    assert len(ranks["x"]["names"]) == 3


def test_large_integers_are_relative_to_the_first():
    start = 1_700_000_000_123_456_789
    frame = pl.DataFrame({"ts_ns": [start + 7, start, start + 3], "y": [1, 2, 3]})
    content = unpacked(scatter(frame, x="ts_ns", x_label="start"))
    assert column(content["rows"]["x"]) == [0, 3, 7]
    assert content["x"]["label"] == "start after 1,700,000,000,123,456,789 ns"
    assert content["x"]["unit"] == "ns"


def test_non_finite_values_are_dropped():
    frame = pl.DataFrame({"x": [1, 2, 3, 4], "y": [1.5, float("nan"), float("inf"), None]})
    content = unpacked(scatter(frame))
    assert column(content["rows"]["y"]) == [1.5]


def test_panels_have_names_and_a_limit():
    frame = pl.DataFrame({"x": range(40), "y": range(40), "rank": range(40)})
    packed = pack(prepare(scatter(frame, panel="rank")))
    content = json.loads(packed.json)
    assert content["panels"][:2] == ["rank 0", "rank 1"]
    assert len(content["panels"]) == packed.drawn == 16
    assert packed.left_out == "The first 16 of 40 panels are drawn."


@pytest.mark.parametrize("chart", SAMPLES, ids=lambda chart: chart.mark)
def test_json_cannot_end_its_script_element(chart):
    text = pack(prepare(chart)).json
    assert not set(text) & set("<>&")
    assert json.loads(text)["mark"] == chart.mark


# --- sampling of many marks --------------------------------------------------------------------


def many(mark: str, count: int = 100_000) -> Chart:
    frame = pl.select(
        at_ns=pl.int_range(count) * 1_000,
        dur_ns=(pl.int_range(count) * 7_919) % 100_003,
        lane=pl.format("lane {}", pl.int_range(count) % 7),
    ).with_columns(
        end_ns=pl.col("at_ns") + pl.col("dur_ns"), late=pl.col("dur_ns") % 9_973 == 5_000
    )
    more = {"x2": "end_ns"} if mark == "span" else {}
    y, color = ("lane", None) if mark == "span" else ("dur_ns", "lane")
    return Chart(
        "many", "Many", mark, frame, "at_ns", y, "start", "", color, emphasis="late", **more
    )


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("mark", ["scatter", "line", "span", "bar"])
def test_large_chart_is_sampled_and_says_so(mark):
    packed = pack(prepare(many(mark)))
    assert len(packed.json) <= 300_000
    assert 5_000 < packed.drawn <= 12_000
    assert packed.left_out.startswith(f"{packed.drawn:,} of 100,000 ")
    assert packed.left_out in charts.inline(many(mark), "one")


@pytest.mark.parametrize("mark", ["scatter", "line", "span"])
def test_sampling_keeps_extremes_and_highlighted_marks(mark):
    chart, content = many(mark), unpacked(many(mark))
    kept = {*zip(column(content["rows"]["x"]), content["rows"]["color"], strict=True)}
    largest = chart.frame.top_k(5, by="dur_ns")
    assert {*largest["at_ns"]} <= {at for at, _ in kept}
    assert len(content["ringed"]) == chart.frame["late"].sum()


def test_size_limit_with_many_names():
    frame = pl.select(
        name=pl.format("{}{}", pl.lit("k" * 400), pl.int_range(20_000)), y=pl.int_range(20_000)
    )
    packed = pack(prepare(scatter(frame, mark="bar", x="name")))
    assert len(packed.json) <= 300_000
    assert packed.drawn > 500


ROWS = st.lists(
    st.tuples(
        st.integers(-50, 50), st.integers(0, 9), st.integers(0, 3), st.integers(0, 2), st.booleans()
    ),
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from(["scatter", "line", "bar", "span"]), st.integers(1, 60))
def test_sampling_keeps_the_order_of_rows(rows, mark, limit):
    names = ["x", "y", "color", "panel", "emphasis"]
    frame = pl.DataFrame(
        rows, schema=dict.fromkeys(names[:4], pl.Int64) | {"emphasis": pl.Boolean}, orient="row"
    )
    frame = frame.with_columns(x2=pl.col("x") + pl.col("y"), number=pl.int_range(pl.len()))
    kept = thin(frame, mark, limit)
    assert kept.height <= limit or kept.height == frame.height <= limit
    assert kept["number"].is_sorted()
    assert kept.equals(frame[kept["number"].to_list()])
    if mark == "bar" and not frame["emphasis"].any():
        whole = frame.join(kept.select("panel", "x").unique(), on=["panel", "x"], how="semi")
        assert whole.height == kept.height


# --- without scripts -------------------------------------------------------------------------


def test_summary():
    assert summary(prepare(durations())) == (
        "48 points; duration: 0.800 to 9.810 ms; start: 0.0 to 440.0 ms; rank: 0, 1, 2, 3; "
        "1 ringed: outlier."
    )
    assert summary(prepare(empty().charts[0])) == "Nothing to draw."


def test_first_rows_are_a_table():
    tags = _Tags(charts.inline(durations(), "one"))
    assert [tag for tag, _ in tags.tags].count("tr") == 11
    assert "First 10 of 48 rows" in tags.texts
    assert "start [ms]" in tags.texts
    assert "outlier" in tags.texts


@pytest.mark.parametrize("chart", SAMPLES, ids=lambda chart: chart.mark)
def test_figures_are_well_formed_and_inert(chart):
    tags = _Tags(charts.inline(chart, "chart-3"))
    assert tags.open == []
    assert {tag for tag, _ in tags.tags} <= {
        *("figure", "figcaption", "p", "div", "details", "summary", "script"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }  # fmt: skip
    ids = [about["id"] for _, about in tags.tags if "id" in about]
    assert len(ids) == len(set(ids)) == 3
    assert all(one.startswith("chart-3") for one in ids)
    assert [about for tag, about in tags.tags if tag == "script"] in (
        [], [{"type": "application/json"}],
    )  # fmt: skip
    assert not {"style", "onerror", "src"} & {name for _, about in tags.tags for name in about}
    assert len(charts.inline(chart, "chart-3")) < 30_000


def test_empty_chart_is_not_drawn():
    text = charts.inline(empty().charts[0], "one")
    assert "Nothing to draw." in text
    assert "<script" not in text


def test_hostile_texts_are_escaped():
    text = "".join(charts.inline(chart, "one") for chart in hostile().charts)
    for name in HOSTILE[:3]:
        assert name not in text


# --- real results ----------------------------------------------------------------------------

RESULTS = {
    "comm_outliers": "nccl_8ranks",
    "gpu_idle": "nccl_8ranks",
    "steps": "nccl_8ranks",
    "overlap": "nccl_8ranks",
    "kernels": "nccl_8ranks",
    "operators": "nccl_8ranks",
    "launches": "nccl_8ranks",
    "annotations": "nccl_8ranks",
    "transfers": "nccl_8ranks",
    "cuda_api": "nccl_8ranks",
    "host_metrics": "composer",
    "memory": "memory",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", RESULTS)
def test_real_results_are_packed(command):
    result = getattr(ta, command)(FIXTURES / RESULTS[command])
    assert result.charts
    for chart in result.charts:
        marks = prepare(chart)
        packed = pack(marks)
        content = json.loads(packed.json)
        assert packed.drawn == marks.rows.height > 0
        assert len(column(content["rows"]["y"])) == packed.drawn
        assert max(content["rows"]["color"]) < len(content["colors"])
        for axis, name in (("x", chart.x), ("y", chart.y)):
            unit = content[axis].get("unit")
            assert unit is None or (unit != "") == bool(re.search("_(ns|bytes|frac|gbps)$", name))


def test_viewer_is_one_script_with_a_hash():
    assert charts.VIEWER.script_hash().startswith("'sha256-")
    assert "</script" not in charts.VIEWER.script()
    assert not re.search(
        r"\beval\b|innerHTML|outerHTML|insertAdjacentHTML|fetch\(|https?://(?!www.w3.org)",
        charts.VIEWER.script(),
    )
    assert Sample().charts == ()


def test_unit_of_an_axis_fits_both_ends_of_bars() -> None:
    frame = pl.DataFrame({"zero_ns": [0, 0], "change_ns": [-12_000_000, 8_000], "on": ["a", "b"]})
    chart = Chart("c", "C", "span", frame, x="zero_ns", y="on", x_label="change", x2="change_ns")
    assert prepare(chart).x.label == "change [ms]"
    assert json.loads(pack(prepare(chart)).json)["x"]["unit"] == "ms"
