import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import polars as pl
import pytest
from matplotlib.text import Text
from sample_results import HOSTILE, Sample, durations, empty, hostile, ordinary, skew
from wording import raises_wording

from traceanalyzer.drawings import Chart
from traceanalyzer.errors import OptionError
from traceanalyzer.render import plot
from traceanalyzer.render.marks import MUTED, OTHERS, PALETTE, prepare

SVG = "{http://www.w3.org/2000/svg}"


def _texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own
    return ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]


def test_axis_labels_have_units():
    texts = _texts(plot.to_svg(plot.figure(ordinary())))
    assert "start [ms]" in texts
    assert "duration [ms]" in texts
    assert "skew [ms]" in texts
    assert "Arrival skew" in texts


def test_one_chart_by_name():
    texts = _texts(plot.to_svg(plot.figure(ordinary(), chart="skew")))
    assert "Arrival skew" in texts
    assert "unknown" in texts  # a collective without late rank
    assert "duration [ms]" not in texts


def test_unknown_chart_is_an_error():
    with raises_wording(OptionError):
        plot.figure(ordinary(), chart="nope")


def test_marks_are_scaled_without_nulls():
    marks = prepare(skew())
    assert marks.rows["y"].to_list() == [3.2, 0.9, 16.0, 1.1, 5.4]
    assert marks.y.label == "skew [ms]"
    assert marks.x.ticks == ["0", "1", "2", "3", "5"]


def test_stacked_bars():
    frame = pl.DataFrame({"step": ["a", "a", "b"], "part": ["x", "y", "y"], "n": [1, 2, 4]})
    parts = Chart("n", "n", "bar", frame, "step", "n", "step", "n", color="part", stacked=True)
    (ax,) = plot.figure(Sample(drawn=(parts,))).axes
    (boxes,) = ax.collections
    heights = [(path.vertices[:, 1].min(), path.vertices[:, 1].max()) for path in boxes.get_paths()]
    assert heights == [(0, 1), (1, 3), (0, 4)]


def test_shared_axis_fits_all_panels():
    frame = pl.DataFrame({"step": ["a", "b"], "part": ["x", "x"], "n": [1, 50], "on": ["p", "q"]})
    for stacked in (True, False):
        bars = Chart(
            "n", "n", "bar", frame, "step", "n", "step", "n", color="part", panel="on",
            stacked=stacked,
        )  # fmt: skip
        for ax in plot.figure(Sample(drawn=(bars,))).axes:
            assert ax.get_ylim()[0] == 0
            assert ax.get_ylim()[1] > 50


def test_charts_of_one_enum_have_equal_colours():
    causes = pl.Enum(["loading", "launches", "other"])

    def colors(*categories):
        frame = pl.DataFrame(
            {"cause": categories, "n": range(len(categories))}, schema_overrides={"cause": causes}
        )
        return prepare(Chart("n", "n", "bar", frame, "cause", "n", "", "", color="cause"))

    assert colors("other").colors["other"] == colors("launches", "other").colors["other"]
    assert colors("other", "loading").x.ticks == ["loading", "other"]


def test_highlighted_marks_have_a_ring():
    svg = plot.to_svg(plot.figure(ordinary(), chart="durations"))
    assert plot.INK in re.findall(r"stroke: (#\w+)", svg)
    assert "outlier" in _texts(svg)


def test_many_ranks_get_a_ramp_of_distinct_colours():
    marks = prepare(durations(ranks=64, each=1))
    shades = [marks.colors[rank] for rank in range(64)]
    assert len(set(shades)) == 64
    assert not set(shades) & set(PALETTE)


def test_rare_names_share_a_colour():
    names = [name for i in range(12) for name in [f"k{i:02}"] * (20 - i)]
    chart = durations()
    frame = pl.DataFrame({"ts_ns": range(len(names)), "dur_ns": 1, "name": names})
    marks = prepare(replace(chart, frame=frame, color="name", emphasis=None))
    assert marks.rows.filter(pl.col("color") == OTHERS).height == sum(20 - i for i in (9, 10, 11))
    assert marks.colors[OTHERS] == MUTED
    assert list(marks.colors)[:2] == ["k00", "k01"]


@pytest.mark.matrix
def test_panels_share_one_scale():
    chart = replace(durations(ranks=3), panel="rank", color=None)
    texts = _texts(plot.to_svg(plot.figure(Sample(drawn=(chart,)))))
    assert [t for t in texts if t.startswith("rank ")] == ["rank 0", "rank 1", "rank 2"]
    assert texts.count("duration [ms]") == 1


@pytest.mark.matrix
def test_too_many_panels_are_counted():
    chart = replace(durations(ranks=20, each=2), panel="rank", color=None)
    picture = plot.figure(Sample(drawn=(chart,)))
    texts = [text.get_text() for text in picture.findobj(Text)]
    assert "Duration of every collective (first 16 of 20)" in texts
    assert len(picture.axes) == 16


def test_empty_chart():
    assert "nothing to draw" in _texts(plot.to_svg(plot.figure(empty())))


def test_logarithmic_axis_without_positive_values():
    chart = durations()
    zero = replace(chart, frame=chart.frame.with_columns(dur_ns=pl.lit(0)))
    assert not prepare(zero).y.log
    plot.to_svg(plot.figure(Sample(drawn=(zero,))))


def test_many_marks_are_rasterized():
    n = 6_000
    frame = pl.DataFrame({"x": range(n), "y_ns": range(n)})
    chart = replace(durations(), frame=frame, x="x", y="y_ns", color=None, emphasis=None)
    svg = plot.to_svg(plot.figure(Sample(drawn=(chart,))))
    assert "data:image/png;base64" in svg
    assert len(svg) < 300_000


@pytest.mark.matrix
def test_hostile_names_are_text():
    svg = plot.to_svg(plot.figure(hostile()))
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own
    kinds = {node.tag.removeprefix(SVG) for node in root.iter()}
    assert not kinds & {"script", "img", "a", "foreignObject", "b"}
    texts = _texts(svg)
    assert HOSTILE[3] in texts  # a "$" is not mathematics
    assert HOSTILE[10] in texts
    assert not re.search("[\x00-\x08\x1b\u202a-\u202e]", svg)
    assert max(map(len, texts)) < 200


@pytest.mark.matrix
def test_rendering_is_deterministic():
    one, two = (plot.figure(ordinary()) for _ in range(2))
    assert plot.to_svg(one) == plot.to_svg(two)
    assert plot.to_png(plot.figure(ordinary())) == plot.to_png(plot.figure(ordinary()))
    assert b"Software" not in plot.to_png(one)[:300]


def test_pyplot_is_not_imported():
    plot.figure(ordinary())
    assert "matplotlib.pyplot" not in sys.modules
