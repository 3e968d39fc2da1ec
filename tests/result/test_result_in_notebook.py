"""Results in Python: axes, frames, errors."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import occupancies
import polars as pl
import pytest
from conftest import ROOT
from flames import training as flame
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from sample_results import HOSTILE, LONG_KERNEL, Sample, durations, hostile, ordinary, skew
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.drawings import Flame, Occupancy
from traceanalyzer.errors import MissingExtra, OptionError
from traceanalyzer.render import plot


@dataclass(frozen=True)
class Drawn(Sample):
    filled: tuple[Occupancy, ...] = ()
    burnt: tuple[Flame, ...] = ()

    @property
    def occupancies(self):
        return self.filled

    @property
    def flames(self):
        return self.burnt


def _fresh(code, **env):
    """Return the output of a new interpreter."""
    clean = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "MPLBACKEND")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, env=clean | env, cwd=ROOT / "tests",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


# --- axes ------------------------------------------------------------------------------------


def test_plot_of_one_chart_returns_its_axes(tmp_path):
    ax = ordinary().plot("durations")
    assert isinstance(ax, Axes)
    assert ax.get_ylabel() == "duration [ms]"
    assert ax.get_title() == "Duration of every collective"
    ax.set_title("mine")
    assert "Duration" not in "".join(text.get_text() for text in ax.figure.findobj(Text))
    assert isinstance(ax.figure, Figure)
    ax.figure.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_plot_of_all_charts_returns_an_array():
    axes = ordinary().plot()
    assert isinstance(axes, np.ndarray)
    assert [ax.get_xlabel() for ax in axes] == ["start [ms]", "collective"]
    assert isinstance(axes[0].figure.figure, Figure)
    assert axes[0].figure.figure is axes[1].figure.figure


def test_plot_of_a_single_chart_returns_an_array():
    (ax,) = Sample(drawn=(skew(),)).plot()
    assert isinstance(ax.figure, Figure)


def test_chart_with_panels_returns_axes_per_panel():
    chart = replace(durations(ranks=3), panel="rank", color=None)
    axes = Sample(drawn=(chart,)).plot("durations")
    assert [ax.get_title(loc="left") for ax in axes] == ["rank 0", "rank 1", "rank 2"]


def test_occupancy_returns_axes_of_the_memory():
    result = Drawn(filled=(occupancies.training(),))
    ax = result.plot("occupancy")
    assert len(ax.figure.axes) == 2
    assert ax is ax.figure.axes[0]
    assert ax.get_title(loc="left") != ""


def test_plot_of_a_flame_graph_is_refused():
    with raises_wording(OptionError):
        Drawn(burnt=(flame(),)).plot()


# --- on given axes ---------------------------------------------------------------------------


def test_plot_on_given_axes():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert ordinary().plot("skew", ax=right) is right
    assert Sample(drawn=(skew(),)).plot(ax=left) is left
    assert right.get_title() == "Arrival skew"
    assert right.get_ylabel() == "skew [ms]"
    assert "unknown" in [text.get_text() for text in right.get_legend().get_texts()]
    assert len(left.collections) == len(right.collections) > 0
    assert figure.axes == [left, right]


def test_names_are_text_on_given_axes():
    ax = Figure().subplots()
    hostile().plot(f"bar {HOSTILE[1]}", ax=ax)
    FigureCanvasAgg(ax.figure)
    texts = [ax.title, *ax.get_xticklabels(), *ax.get_legend().get_texts()]
    assert not any(text.get_parse_math() for text in texts)


@pytest.mark.parametrize(
    ("result", "name"),
    [
        (ordinary(), None),
        (Sample(drawn=(skew(), replace(durations(), panel="rank", color=None))), "durations"),
        (Drawn(drawn=(skew(),), filled=(occupancies.plain(),)), "occupancy"),
    ],
)
def test_several_charts_on_given_axes_are_refused(result, name):
    ax = Figure().subplots()
    with raises_wording(OptionError):
        result.plot(name, ax=ax)
    assert not ax.has_data()


# --- ownership of figures --------------------------------------------------------------------

_PLOT = "from sample_results import ordinary; import gc, sys, weakref; axes = ordinary().plot(); "


def test_script_needs_no_display():
    code = _PLOT + (
        "alive = weakref.ref(axes[0].figure.figure); del axes; gc.collect(); "
        "print(alive() is None, 'matplotlib.pyplot' in sys.modules)"
    )
    assert _fresh(code) == ["True", "False"]


@pytest.mark.matrix
def test_interactive_figure_belongs_to_pyplot():
    code = (
        "import sys; sys.ps1 = '>>> '; "
        + _PLOT
        + (
            "from matplotlib import pyplot; ordinary().plot('skew'); "
            "print(pyplot.get_fignums() == [1, 2], pyplot.figure(1) is axes[0].figure.figure)"
        )
    )
    assert _fresh(code, MPLBACKEND="agg") == ["True", "True"]


@pytest.mark.matrix
def test_figure_drawn_later_is_equal():
    result = Drawn(filled=(occupancies.training(),), drawn=(durations(), skew()))
    pictures = []
    for style in ({}, plot._STYLE):
        picture = plot.figure(result)
        canvas = FigureCanvasAgg(picture)
        with plot.mpl.rc_context(style):
            canvas.draw()
        pictures.append(np.asarray(canvas.buffer_rgba()))
    assert (pictures[0] == pictures[1]).all()


# --- frames ----------------------------------------------------------------------------------


def test_unknown_table_is_an_error():
    for convert in (ordinary().to_polars, ordinary().to_pandas):
        with raises_wording(OptionError):
            convert("nope")


def test_pandas_values():
    large = (1 << 53) + 1  # no float64
    kinds = pl.Enum(["late", "early"])
    frame = ordinary().to_polars().with_columns(
        median_ns=pl.Series([large, None, -large]),
        address=pl.Series([(1 << 64) - 1, None, 0], dtype=pl.UInt64),
        kind=pl.Series(["early", None, "late"], dtype=kinds),
        step=pl.Series(["b", "a", None], dtype=pl.Categorical()),
    )  # fmt: skip
    (table, *_) = ordinary().tables
    converted = Sample(table_list=(replace(table, frame=frame),)).to_pandas()
    assert list(converted.columns) == frame.columns
    assert converted["median_ns"].dtype == "Int64"
    assert converted["median_ns"].dropna().to_list() == [large, -large]
    assert converted["address"].dropna().to_list() == [(1 << 64) - 1, 0]
    assert converted["late"].dropna().to_list() == [True, False]
    assert converted["share_frac"].sum() == pytest.approx(0.6594)
    assert list(converted["kind"].cat.categories) == ["late", "early"]
    assert converted["kind"].min() == "late"
    assert converted["step"].dropna().to_list() == ["b", "a"]
    assert converted["group"].to_list()[2] == LONG_KERNEL
    assert converted["median_ns"].isna().sum() == converted["kind"].isna().sum() == 1


def test_missing_pandas_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises_wording(MissingExtra) as caught:
        ordinary().to_pandas()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


@pytest.mark.parametrize(
    ("function", "source"),
    [(ta.info, "nccl_8ranks/rank0.json.gz"), (ta.py_spy_report, "py_spy/default.raw.txt")],
)
def test_displayed_results_can_be_pickled(function, source):
    result = function(ROOT / "fixtures" / source)
    before = result.to_dict()
    assert pickle.loads(pickle.dumps(result)).to_dict() == before  # noqa: S301
