"""The timeline as text, plot and data of a page."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode

import numpy as np
import polars as pl
import pytest
from conftest import ROOT, once
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from timelines import RANKS, many, of_many

from traceanalyzer.analyzers.timeline.compute import timeline
from traceanalyzer.drawings import Budget, BudgetPart
from traceanalyzer.render import render, timeline as drawn_timeline
from traceanalyzer.render.timeline import _data, codes, length, shares, varints

EVERY = st.integers(-(1 << 63), (1 << 63) - 1)


def decoded(data: bytes) -> list[int]:
    """Decode zigzag varints, number by number."""
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value >> 1 if not value & 1 else -(value >> 1) - 1)
            value = shift = 0
    return values


@given(st.lists(EVERY))
def test_integers_are_packed_and_unpacked(values: list[int]) -> None:
    assert decoded(varints(np.array(values, np.int64))) == values


@given(arrays(np.int64, (12, 2), elements=st.integers(0, 3)))
def test_codes_give_back_the_rows(values: np.ndarray) -> None:
    frame = pl.DataFrame(values, schema=["a", "b"])
    distinct, number = codes(frame)
    assert [distinct[one] for one in number] == frame.rows()
    assert len(set(distinct)) == len(distinct)


def test_shares_of_a_column_are_those_of_its_time() -> None:
    drawing = once(timeline, RANKS).drawing()
    parts = shares(drawing, 7)
    assert parts.sum(axis=2) == pytest.approx(np.ones((9, 7)), abs=0.01)  # ranks begin within us
    whole = shares(drawing, 1)[:, 0]
    assert parts.mean(axis=1) == pytest.approx(whole)
    rows = drawing.states.filter(lane=5, state="dataloading")
    ns = rows.select((pl.col("end") - pl.col("start")).sum()).item()
    place = list(drawing.names).index("dataloading")
    assert whole[5, place] * length(drawing) == pytest.approx(ns)


def test_page_has_every_state_and_event() -> None:
    drawing = once(timeline, RANKS).drawing()
    packed = json.loads(json.dumps(_data(drawing)))["packed"]
    values = decoded(zlib.decompress(b64decode(packed["data"])))
    count = packed["ends"]["states"][-1]
    assert count == drawing.states.height
    gap, length = values[:count], values[count : 2 * count]
    end = np.cumsum(np.array(gap) + np.array(length))
    assert end.tolist() == drawing.states["end"].to_list()


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("unicode", [True, False])
def test_strip_fits_the_width(width: int, unicode: bool) -> None:
    text = drawn_timeline.text(once(timeline, RANKS).drawing(), width, unicode=unicode)
    body = text.split("\n")[1:]
    assert max(map(len, body)) <= width
    assert text.isascii() != unicode


def test_strip_has_each_state_as_often_as_its_share() -> None:
    """States change within each character; what is short everywhere is left out."""
    parts = np.tile([0.7, 0.24, 0.06], (1, 100, 1)) * 5.0
    parts[0, 40:50] = 0
    parts[0, 80:] = [0, 0, 3.0]
    (states,) = drawn_timeline._characters(parts)
    assert (states[40:50] == -1).all()
    assert (states[80:] == 2).all()
    rest = np.delete(states[:80], range(40, 50))
    assert [(rest == state).sum() for state in range(3)] == pytest.approx([53, 17, 0], abs=2)


def test_strip_shows_long_states_in_a_row() -> None:
    lines = drawn_timeline.text(once(timeline, RANKS).drawing(), 80, unicode=False).split("\n")
    waiting = next(line for line in lines if line.strip().startswith("rank 4"))
    loading = next(line for line in lines if line.strip().startswith("rank 5"))
    runs = re.findall(r"d{5,}", loading)
    assert len(runs) == 2
    assert len(re.findall(r"w{5,}", waiting)) == 2
    assert not re.search(r"w{2,}", loading)


def test_each_colour_has_its_label() -> None:
    drawing = once(timeline, RANKS / "rank5.json.gz").drawing()
    text = drawn_timeline.text(drawing, 200, unicode=True, color=True)
    legend = text.splitlines()[-1]
    drawn = set(re.findall(r"\x1b\[(38;5;\d+)m", text))
    assert drawn == set(re.findall(r"\x1b\[(38;5;\d+)m", legend))


@pytest.mark.matrix
def test_strip_of_many_devices_shows_the_extremes() -> None:
    drawing = of_many().drawing()
    text = drawn_timeline.text(drawing, 80)
    assert len(re.findall(r"^  rank", text, re.MULTILINE)) == 5
    assert "rank 37 " in text
    assert (
        len(re.findall(r"^  rank", drawn_timeline.text(drawing, 80, top=None), re.MULTILINE)) == 64
    )


def test_strip_without_unicode_in_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Output:
        encoding = "ascii"

    monkeypatch.setattr("sys.stdout", Output())
    assert not drawn_timeline.can_encode()


# --- plots ---------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("form", ["png", "svg"])
def test_plot_in_every_format(form: str) -> None:
    result = timeline(many(3))
    assert render(result, form)  # type: ignore[arg-type]


def test_plot_has_a_row_per_device() -> None:
    (ax,) = once(timeline, RANKS).plot()
    labels = [*(f"rank {n}" for n in range(8)), "critical path"]
    assert [one.get_text() for one in ax.get_yticklabels()] == labels
    assert ax.get_xlabel() == "time [ms]"
    image = ax.get_images()[0].get_array()
    assert image is not None
    assert image.shape[0] % 8 == 0


def test_package_has_the_files_of_the_viewer() -> None:
    folder = ROOT / "traceanalyzer" / "render" / "timeline"
    assert {"data.js", "picture.js", "viewer.js", "viewer.css"} <= {
        p.name for p in folder.iterdir()
    }


@pytest.mark.parametrize("width", [30, 40, 60])
def test_long_labels_are_divided_at_spaces(width: int) -> None:
    label = "waiting for another rank of the job in the collective"
    parts = (
        BudgetPart("waiting", label, 5_706_000, 0.6),
        BudgetPart("idle", "idle", 4_000_000, 0.4),
    )
    lines = drawn_timeline.bar(Budget("Time", parts), width, unicode=False).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines[2:]).split()) == (
        f"w {label} 5.706 ms (60.0 %) . idle 4 ms (40.0 %)"
    )
    assert not any(line.endswith("5.706") for line in lines)


def test_no_two_parts_of_a_bar_have_the_same_letter() -> None:
    parts = (
        BudgetPart("copies", "copies (exposed)", 1_000_000, 0.1),
        BudgetPart("host", "idle: memory management", 2_000_000, 0.2),
        BudgetPart("host", "idle: checkpoints and files", 2_000_000, 0.2),
        BudgetPart("host", "idle: other host code", 2_000_000, 0.2),
        BudgetPart("idle", "idle: short gaps", 2_000_000, 0.2),
        BudgetPart("idle", "idle: other", 1_000_000, 0.1),
    )
    _, bar, *legend = drawn_timeline.bar(Budget("Time", parts), 62, unicode=False).split("\n")
    assert bar.split() == [6 * "c" + 12 * "m" + 12 * "f" + 12 * "h" + 12 * "g" + 6 * "."]
    for mark, part in zip("cmfhg.", parts, strict=True):
        assert f"{mark} {part.label} " in "\n".join(legend)
    alone = drawn_timeline.bar(Budget("Time", parts[:2]), 62, unicode=False)
    assert "h idle: memory management" in alone  # as in the timeline


def test_text_names_the_devices_of_the_critical_path(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = once(timeline, RANKS).drawing()
    lines = drawn_timeline.text(drawing, 120, unicode=True).splitlines()
    (row,) = (line for line in lines if line.startswith("  critical path"))
    places = lines[lines.index(row) + 1]
    start = drawing.states.filter(lane=8, state="dataloading").sort(
        pl.col("end") - pl.col("start")
    )["start"][-1]  # fmt: skip
    left = len("  critical path  ")
    column = left + int(start / length(drawing) * (120 - left))
    assert row[column + 2] == "d"
    assert places[column - 1 : column + 8].strip().startswith("rank 5")
    monkeypatch.setattr(drawn_timeline, "_MOST", 4)
    few = drawn_timeline.text(drawing, 120, top=4).splitlines()
    assert sum(line.startswith("  rank") for line in few) == 5
    assert sum(line.startswith("  critical path") for line in few) == 1
