"""Memory over time: layout, page and plot."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import accumulate, pairwise
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from flames import training as burning
from hypothesis import given, settings, strategies as st
from matplotlib.patches import Polygon, StepPatch
from occupancies import (
    BREAKOUT,
    MIB,
    Allocation,
    Memory,
    empty,
    hostile,
    large,
    occupancy,
    plain,
    training,
)
from sample_results import skew
from wording import check_wording, raises_wording

from traceanalyzer.errors import OptionError
from traceanalyzer.render import (
    flamegraph,
    html,
    occupancy as ink,
    occupancy as labels,
    plot,
    render,
)
from traceanalyzer.render.occupancy import columns, largest, lay_out, stack

SVG = "{http://www.w3.org/2000/svg}"
LIMIT = 2_000_000


def _at_levels(layout, chosen=None):
    levels = np.arange(len(layout.event))
    every = np.arange(len(layout.size)) if chosen is None else chosen
    return stack(layout, every, levels, np.arange(len(levels) + 1.0))


def _spots(drawn, level):
    """Lower and upper edges of the boxes at a level, from the bottom."""
    there = ~np.isnan(drawn.bottom[:, level])
    low = drawn.bottom[there, level]
    return list(zip(low, low + drawn.size[there], strict=True))


# --- layout ----------------------------------------------------------------------------------

EVENTS = 30
LIVES = st.lists(
    st.builds(
        lambda start, length, size: Allocation(start, min(start + length, EVENTS), size),
        st.integers(0, EVENTS - 1),
        st.integers(1, EVENTS),
        st.integers(1, 1 << 40),
    ),
    max_size=25,
)


@given(LIVES, st.integers(0, 25), st.integers(0, 25))
@settings(max_examples=60, deadline=None)
def test_boxes_and_rest_add_up_to_live_bytes(allocations, boxes, drawn_boxes):
    memory = occupancy(allocations, EVENTS, boxes=boxes)
    layout = lay_out(memory)
    for chosen in (None, largest(layout, drawn_boxes)):
        drawn = _at_levels(layout, chosen)
        for level, event in enumerate(layout.event):
            live = sum(one.size for one in allocations if one.start <= event < one.end)
            spots = _spots(drawn, level)
            assert [low for low, _ in spots] == [0, *(top for _, top in spots)][: len(spots)]
            assert (spots[-1][1] if spots else 0) + drawn.rest[level] == live
            assert drawn.live[level] == live


@given(LIVES, st.integers(1, 90))
@settings(max_examples=60, deadline=None)
def test_column_shows_its_maximum(allocations, count):
    layout = lay_out(occupancy(allocations, EVENTS, timed=False))
    levels, edges = columns(layout, count)
    for level, (low, high) in zip(levels, pairwise(edges), strict=True):
        until = high + 1 if high == edges[-1] else high
        within = [x for x in range(EVENTS) if low <= x < until]
        moments = [int(low), *within] if low >= 0 else within
        most = max(sum(h.size for h in allocations if h.start <= at < h.end) for at in moments)
        assert layout.live[level] == most
    assert layout.live[levels].max() == layout.live.max()


def test_boxes_move_down_when_lower_ones_are_freed():
    drawn = _at_levels(
        lay_out(occupancy([Allocation(0, 4, 10), Allocation(1, 6, 5), Allocation(2, 3, 7)], 6))
    )
    assert [_spots(drawn, level) for level in range(5)] == [
        [(0, 10)],
        [(0, 10), (10, 15)],
        [(0, 10), (10, 15), (15, 22)],
        [(0, 10), (10, 15)],
        [(0, 5)],
    ]


def test_sampled_levels_add_up():
    memory = training()
    thin = replace(memory, levels=memory.levels.gather_every(5))
    drawn = _at_levels(lay_out(thin))
    assert drawn.live.tolist() == thin.levels["live_bytes"].to_list()


def test_axis_is_time_if_known():
    assert lay_out(plain()).axis()[1] == 160
    memory = training()
    layout = lay_out(memory)
    assert layout.axis()[0][0] == 0
    first = pl.int_range(pl.len()) == 0
    nameless = memory.levels.with_columns(time_ns=pl.when(~first).then("time_ns"))
    later = lay_out(replace(memory, levels=nameless))
    assert later.time.tolist()[:2] == [0, 0]


def test_largest_by_bytes_times_events():
    allocations = [
        Allocation(0, 10, 5),
        Allocation(1, 3, 100),
        Allocation(2, 4, 10),
        Allocation(3, 10, 7),
    ]
    layout = lay_out(occupancy(allocations, 10))
    assert largest(layout, 2).tolist() == [0, 1]
    assert largest(layout, 9).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("top", [1, 700, 5 * MIB, 1.3 * (1 << 30), 80 * (1 << 30), 1 << 45])
def test_byte_ticks(top):
    ticks = labels.byte_ticks(top)
    steps = {int(b - a) for (a, _), (b, _) in pairwise(ticks)}
    assert len(steps) == 1
    assert steps.pop().bit_count() == 1
    assert 2 <= len(ticks) <= 7
    assert ticks[-1][0] <= top


def test_time_ticks():
    assert [text for _, text in labels.ticks(190e6, timed=True)][:3] == [
        "0",
        "20 ms",
        "40 ms",
    ]
    assert labels.ticks(8_000, timed=False)[-1] == (8_000, "8,000")
    assert len(labels.ticks(1, timed=False)) == 2


def test_categories_have_different_colours():
    usual = {"activations", "gradients", "parameters", "optimizer state", "inputs", "temporary"}
    every = labels.category_fills(usual)
    assert len(set(every.values())) == len(usual)
    assert labels.category_fills(["gradients"])["gradients"] == every["gradients"]
    many = labels.category_fills([f"kind {n}" for n in range(30)])
    assert max(many.values()) + 2 < labels.UNKNOWN
    assert len(labels.LIGHT) == len(labels.DARK) == labels.REST + 1


def test_unknown_is_grey_and_neighbours_differ_in_tone():
    known = labels.category_fills(["gradients", "unknown"])
    assert list(known) == ["gradients"]
    assert labels.box_fill("a", "unknown", known, 0) == labels.UNKNOWN
    assert labels.box_fill("a", None, known, 0) == labels.UNKNOWN
    assert len({labels.box_fill("a", "gradients", known, place) for place in range(3)}) == 3
    assert labels.box_fill("a", None, {}, 0) == labels.box_fill("a", None, {}, 1) < labels.UNKNOWN


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["step 9", "step 10", "step 11"], ["9", "10", "11"]),
        (["ProfilerStep#10", "ProfilerStep#19"], ["10", "19"]),
        (["step", "step"], ["step", "step"]),
        (["a", "b"], ["a", "b"]),
        (["only one"], ["only one"]),
        ([None, "b"], ["", "b"]),
        ([], []),
    ],
)
def test_steps_have_short_names(names, short):
    assert labels.without_prefix(pl.DataFrame({"label": names})) == short


# --- the page --------------------------------------------------------------------------------


class Elements(HTMLParser):
    """Tags with their attributes, and the texts of scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def _sent(memory):
    """Return the JSON data of the viewer."""
    scripts = Elements(ink.inline(memory, "one")).scripts
    return json.loads(scripts[0])


def _summed(differences):
    known = iter(accumulate(d for d in differences if d is not None))
    return [None if d is None else next(known) for d in differences]


def test_data_of_the_viewer():
    memory = training()
    sent = _sent(memory)
    levels, boxes = sent["levels"], sent["boxes"]
    assert _summed(levels["event"]) == memory.levels["event"].to_list()
    assert _summed(levels["live"]) == memory.levels["live_bytes"].to_list()
    assert _summed(levels["rest"]) == memory.levels["rest_bytes"].to_list()
    assert _summed(levels["reserved"]) == memory.levels["reserved_bytes"].to_list()
    origin = memory.levels["time_ns"][0]
    assert _summed(levels["time"]) == (memory.levels["time_ns"] - origin).to_list()
    assert _summed(boxes["start"]) == memory.boxes["start"].to_list()
    assert _summed(boxes["startTime"]) == (memory.boxes["start_ns"] - origin).to_list()
    assert _summed(boxes["endTime"]) == (memory.boxes["end_ns"] - origin).to_list()
    assert boxes["size"] == memory.boxes["live_bytes"].to_list()
    assert [sent["texts"][n] for n in boxes["label"]] == memory.boxes["label"].to_list()


def test_stacks_are_encoded_as_a_tree():
    memory = training()
    sent = _sent(memory)
    frames = dict(memory.stacks.iter_rows())
    used = set(memory.boxes["stack"]) | set(memory.blocks["stack"].drop_nulls())
    assert set(sent["ends"][0]) == used
    assert len(sent["frames"]) < sum(len(frames[number]) for number in used)
    for number, node in zip(*sent["ends"], strict=True):
        parts = []
        while True:
            parts.append(sent["texts"][sent["frames"][node]])
            if not sent["above"][node]:
                break
            node -= sent["above"][node]
        assert parts == frames[number]


def test_number_of_segments_is_limited():
    memory = training()
    wide = pl.DataFrame(
        {"id": range(1_200), "address": range(1_200), "total_bytes": range(1, 1_201), "label": ""},
        schema=memory.segments.schema,
    )
    sent = _sent(replace(memory, segments=wide, blocks=memory.blocks.clear()))
    assert len(sent["segments"]["size"]) == 1_000
    assert min(sent["segments"]["size"]) == 201
    assert sent["segments"]["all"] == [1_200, 1_200 * 1_201 // 2, 0, 0, 0]


def test_hostile_texts_are_escaped():
    page = html.page(Memory(filled=(hostile(),)))
    parts = Elements(page)
    tags = [tag for tag, _ in parts.tags]
    assert "img" not in tags
    assert tags.count("script") == 2
    assert not [name for _, attrs in parts.tags for name in attrs if name.startswith("on")]
    assert "<" not in parts.scripts[0]
    assert BREAKOUT in json.loads(parts.scripts[0])["texts"]
    assert BREAKOUT in parts.text
    assert page.count("<!--") == 0


def test_several_devices_have_unique_ids():
    page = html.page(Memory(filled=(training(), plain()), drawn=(skew(),)))
    tags = Elements(page).tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert [a["id"] for _, a in tags if a.get("class") == "occupancy"] == ["memory-0", "memory-1"]
    assert page.index('class="verdict"') < page.index('id="memory-0"') < page.index('class="chart"')
    referred = {
        i for _, a in tags for k in a if k.startswith("aria-") for i in (a[k] or "").split()
    }
    assert {"memory-0-title", "memory-0-summary", "memory-1-title"} <= referred & set(ids)


def test_policy_allows_both_viewers():
    class Both(Memory):
        flames = (burning(),)

    page = html.page(Both(filled=(training(),)))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy.endswith(
        f"; script-src {ink.VIEWER.script_hash()} {flamegraph.VIEWER.script_hash()}"
    )
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in html.page(Memory())


def test_summary_and_largest_allocations():
    text = Elements(html.page(Memory(filled=(training(),)))).text
    memory = training()
    share = f"{100 * memory.boxed_frac:.1f} %"
    assert f"The 70 largest allocations are drawn individually: {share} of all bytes x" in text
    assert "Peak: 1.312 GiB live; at most 1.312 GiB reserved." in text
    assert "20 largest allocations at the peak" in text
    page = html.page(Memory(filled=(training(),)))
    rows = re.findall(r"<tr><td.*?</tr>", page)
    cells = [re.sub("<[^>]+>", "|", row).replace("||", "|").strip("|").split("|") for row in rows]
    assert len(cells) == 20
    assert cells[0] == [
        *("128 MiB", "9.5 %", "optimizer state", "from 41 ms, stays"),
        "_init_group (torch/optim/adam.py:161)",
    ]
    assert ["64 MiB", "4.8 %", "parameters", "always", "__init__ (model.py:10)"] in cells
    assert "All 132 allocations are drawn individually." in html.page(Memory(filled=(plain(),)))
    assert "from event 35, stays" in html.page(Memory(filled=(plain(),)))


def test_unused_device_has_no_viewer():
    page = html.page(Memory(filled=(empty(),)))
    assert "Nothing to draw." in page
    assert 'type="application/json"' not in page


@pytest.mark.matrix
def test_size_of_large_page_and_plot():
    memory = large(4_000, boxes=2_000)
    assert memory.levels.height > 4_000
    assert len(html.page(Memory(filled=(memory,))).encode()) < LIMIT / 2
    assert len(render(Memory(filled=(memory,)), "svg")) < LIMIT


# --- the plot --------------------------------------------------------------------------------


def _texts(svg):
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own
    return ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]


@pytest.mark.matrix
def test_texts_of_the_plot():
    texts = _texts(render(Memory(filled=(training(),)), "svg"))
    assert {"What filled the memory of GPU 0", "1.25 GiB", "0 B", "20 ms", "reserved"} <= set(texts)
    assert {"step 0", "step 3", "peak: 1,344 MiB"} <= set(texts)
    assert {"out of memory: 512 MiB asked for", "optimizer state 528 MiB"} <= set(texts)
    assert "other allocations 141 MiB" in texts
    check_wording(*texts)
    assert "allocator event" in _texts(render(Memory(filled=(plain(),)), "svg"))


def _crowded():
    """Memory ran out eight times, five of them before the peak."""
    memory = training()
    ooms = pl.DataFrame({"event": range(52, 60), "time_ns": None, "kind": "oom", "label": "full"})
    ooms = ooms.with_columns(time_ns=pl.lit(memory.marks["time_ns"][0]))
    return replace(memory, marks=pl.concat([ooms.cast(dict(memory.marks.schema)), memory.marks]))


@pytest.mark.matrix
def test_peak_has_a_label_among_many_marks():
    texts = _texts(render(Memory(filled=(_crowded(),)), "svg"))
    assert "peak: 1,344 MiB" in texts
    assert texts.count("full") == 2
    sent = _sent(_crowded())
    assert sent["texts"][sent["marks"][0][3]] == "peak: 1,344 MiB"


def test_polygons_of_the_plot():
    allocations = [Allocation(0, 6, 10 * MIB), Allocation(1, 3, 5 * MIB), Allocation(2, 8, 7 * MIB)]
    ax = plot.figure(Memory(filled=(occupancy(allocations, 8, timed=False),))).axes[0]
    shapes = [(patch.get_xy() / (1, MIB)).tolist() for patch in ax.patches[:3]]
    # each down to 0, the topmost first: lower ones cover it
    assert shapes == [
        [[2, 22], [3, 22], [3, 17], [6, 17], [6, 7], [8, 7], [8, 0], [2, 0], [2, 22]],
        [[1, 15], [3, 15], [3, 0], [1, 0], [1, 15]],
        [[0, 10], [6, 10], [6, 0], [0, 0], [0, 10]],
    ]


@pytest.mark.matrix
def test_plot_draws_400_boxes():
    memory = large(1_500, boxes=900)
    layout = lay_out(memory)
    kept = np.sort(layout.area)[-400:].sum() / layout.area.sum() * memory.boxed_frac
    picture = plot.figure(Memory(filled=(memory,)))
    ax = picture.axes[0]
    assert f"400 largest allocations are drawn individually: {100 * kept:.1f} %" in " ".join(
        ax.get_title(loc="left").split()
    )
    title = " ".join(ax.get_title(loc="left").split())
    assert title.endswith("smaller ones by category; the rest is the grey band.")
    alone = {tuple(patch.get_xy()[0]) for patch in ax.patches if isinstance(patch, Polygon)}
    assert 300 < len(alone) <= 400


@pytest.mark.matrix
def test_bands_of_the_plot_sum_smaller_boxes():
    memory = large(1_500, boxes=900)
    layout = lay_out(memory)
    ax = plot.figure(Memory(filled=(memory,))).axes[0]
    bands = [patch for patch in ax.patches if isinstance(patch, StepPatch) and patch.get_fill()]
    tops = [patch.get_data().values for patch in bands]
    levels, edges = columns(layout, len(tops[0]))
    alone = largest(layout, 400)
    small = memory.boxes.with_row_index().filter(~pl.col("index").is_in(alone.tolist()))
    allocations = {
        sum(
            small.filter(pl.col("category").eq_missing(pl.lit(kind)), start <= at, end > at)[
                "live_bytes"
            ].sum()
            for at in layout.event[levels[::50]]
        )
        for start, end in [(pl.col("start"), pl.col("end"))]
        for kind in memory.boxes["category"].unique()
    }
    boxed = stack(layout, np.arange(len(layout.size)), levels, edges)
    assert (tops[0] == layout.live[levels]).all()
    assert (tops[1] == layout.live[levels] - boxed.rest).all()
    lowest = stack(layout, alone, levels, edges)
    nested = [*tops[1:], lowest.live - lowest.rest]
    assert {int((high - low)[::50].sum()) for high, low in pairwise(nested)} == allocations - {0}


@pytest.mark.matrix
def test_occupancies_are_drawn_before_charts():
    result = Memory(filled=(training(), plain(name="other")), drawn=(skew(),))
    titles = [place.get_suptitle() for place in plot.figure(result).subfigs]
    assert titles == ["What filled the memory of GPU 0"] * 2 + ["Arrival skew"]
    assert len(plot.figure(result, chart="other").subfigs) == 0
    with raises_wording(OptionError):
        plot.figure(result, chart="nope")


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("memory", [hostile(), empty(), occupancy([], 5)], ids=["a", "b", "c"])
def test_plot_of_unusual_occupancies(memory):
    texts = _texts(render(Memory(filled=(memory,)), "svg"))
    assert any(memory.title in text for text in texts)
    assert render(Memory(filled=(memory,)), "png").startswith(b"\x89PNG")


@pytest.mark.matrix
def test_rendering_is_deterministic():
    result = Memory(filled=(training(),))
    assert render(result, "svg") == render(result, "svg")
    assert render(result, "html") == render(result, "html")
