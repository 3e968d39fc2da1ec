"""Memory over time: where allocations stand, what the page holds, what the plot shows."""

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
    Held,
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
from traceanalyzer.render import flamegraph, html, occupancy as ink, plot, render
from traceanalyzer.render.occupancy import labels
from traceanalyzer.render.occupancy.layout import columns, largest, lay_out, stack

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
        lambda start, length, size: Held(start, min(start + length, EVENTS), size),
        st.integers(0, EVENTS - 1),
        st.integers(1, EVENTS),
        st.integers(1, 1 << 40),
    ),
    max_size=25,
)


@given(LIVES, st.integers(0, 25), st.integers(0, 25))
@settings(max_examples=150, deadline=None)
def test_boxes_and_rest_are_all_that_is_live_and_nothing_overlaps(held, boxes, drawn_boxes):
    made = occupancy(held, EVENTS, boxes=boxes)
    layout = lay_out(made)
    for chosen in (None, largest(layout, drawn_boxes)):
        drawn = _at_levels(layout, chosen)
        for level, event in enumerate(layout.event):
            live = sum(one.size for one in held if one.start <= event < one.end)
            spots = _spots(drawn, level)
            assert [low for low, _ in spots] == [0, *(top for _, top in spots)][: len(spots)]
            assert (spots[-1][1] if spots else 0) + drawn.rest[level] == live
            assert drawn.live[level] == live


@given(LIVES, st.integers(1, 90))
@settings(max_examples=100, deadline=None)
def test_a_column_shows_its_fullest_moment(held, count):
    layout = lay_out(occupancy(held, EVENTS, timed=False))
    shown, edges = columns(layout, count)
    for level, (low, high) in zip(shown, pairwise(edges), strict=True):
        until = high + 1 if high == edges[-1] else high
        within = [x for x in range(EVENTS) if low <= x < until]
        moments = [int(low), *within] if low >= 0 else within
        most = max(sum(h.size for h in held if h.start <= at < h.end) for at in moments)
        assert layout.live[level] == most
    assert layout.live[shown].max() == layout.live.max()


def test_what_is_freed_below_lets_the_rest_move_down():
    drawn = _at_levels(lay_out(occupancy([Held(0, 4, 10), Held(1, 6, 5), Held(2, 3, 7)], 6)))
    assert [_spots(drawn, level) for level in range(5)] == [
        [(0, 10)],
        [(0, 10), (10, 15)],
        [(0, 10), (10, 15), (15, 22)],
        [(0, 10), (10, 15)],
        [(0, 5)],
    ]


def test_levels_that_are_fewer_than_the_changes_still_add_up():
    made = training()
    thin = replace(made, levels=made.levels.gather_every(5))
    drawn = _at_levels(lay_out(thin))
    assert drawn.live.tolist() == thin.levels["live_bytes"].to_list()


def test_the_axis_is_time_where_it_is_known_for_any_level():
    assert lay_out(plain()).axis()[1] == 160
    made = training()
    layout = lay_out(made)
    assert layout.axis()[0][0] == 0
    first = pl.int_range(pl.len()) == 0
    nameless = made.levels.with_columns(time_ns=pl.when(~first).then("time_ns"))
    later = lay_out(replace(made, levels=nameless))
    assert later.time.tolist()[:2] == [0, 0]


def test_the_largest_are_those_with_most_bytes_times_events():
    held = [Held(0, 10, 5), Held(1, 3, 100), Held(2, 4, 10), Held(3, 10, 7)]
    layout = lay_out(occupancy(held, 10))
    assert largest(layout, 2).tolist() == [0, 1]
    assert largest(layout, 9).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("top", [1, 700, 5 * MIB, 1.3 * (1 << 30), 80 * (1 << 30), 1 << 45])
def test_sizes_on_the_axis_are_round_and_few(top):
    ticks = labels.byte_ticks(top)
    steps = {int(b - a) for (a, _), (b, _) in pairwise(ticks)}
    assert len(steps) == 1
    assert steps.pop().bit_count() == 1
    assert 2 <= len(ticks) <= 7
    assert ticks[-1][0] <= top


def test_times_on_the_axis_are_round():
    assert [said for _, said in labels.ticks(190e6, timed=True)][:3] == [
        "0",
        "20 ms",
        "40 ms",
    ]
    assert labels.ticks(8_000, timed=False)[-1] == (8_000, "8,000")
    assert len(labels.ticks(1, timed=False)) == 2


def test_categories_have_colours_of_their_own_in_every_drawing():
    usual = {"activations", "gradients", "parameters", "optimizer state", "inputs", "temporary"}
    every = labels.category_fills(usual)
    assert len(set(every.values())) == len(usual)
    assert labels.category_fills(["gradients"])["gradients"] == every["gradients"]
    many = labels.category_fills([f"kind {n}" for n in range(30)])
    assert max(many.values()) + 2 < labels.UNKNOWN
    assert len(labels.LIGHT) == len(labels.DARK) == labels.REST + 1


def test_what_is_not_known_is_grey_and_neighbours_differ_in_tone():
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
        self.seen, self.scripts, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def _sent(made):
    """What the viewer is sent, as JSON."""
    scripts = Elements(ink.inline(made, "one")).scripts
    return json.loads(scripts[0])


def _summed(differences):
    known = iter(accumulate(d for d in differences if d is not None))
    return [None if d is None else next(known) for d in differences]


def test_the_data_are_those_of_the_occupancy():
    made = training()
    sent = _sent(made)
    levels, boxes = sent["levels"], sent["boxes"]
    assert _summed(levels["event"]) == made.levels["event"].to_list()
    assert _summed(levels["live"]) == made.levels["live_bytes"].to_list()
    assert _summed(levels["rest"]) == made.levels["rest_bytes"].to_list()
    assert _summed(levels["reserved"]) == made.levels["reserved_bytes"].to_list()
    origin = made.levels["time_ns"][0]
    assert _summed(levels["time"]) == (made.levels["time_ns"] - origin).to_list()
    assert _summed(boxes["start"]) == made.boxes["start"].to_list()
    assert _summed(boxes["startTime"]) == (made.boxes["start_ns"] - origin).to_list()
    assert _summed(boxes["endTime"]) == (made.boxes["end_ns"] - origin).to_list()
    assert boxes["size"] == made.boxes["live_bytes"].to_list()
    assert [sent["texts"][n] for n in boxes["label"]] == made.boxes["label"].to_list()


def test_stacks_come_back_from_the_tree_of_frames():
    made = training()
    sent = _sent(made)
    frames = dict(made.stacks.iter_rows())
    used = set(made.boxes["stack"]) | set(made.blocks["stack"].drop_nulls())
    assert set(sent["ends"][0]) == used
    assert len(sent["frames"]) < sum(len(frames[number]) for number in used)
    for number, node in zip(*sent["ends"], strict=True):
        found = []
        while True:
            found.append(sent["texts"][sent["frames"][node]])
            if not sent["above"][node]:
                break
            node -= sent["above"][node]
        assert found == frames[number]


def test_segments_that_are_too_many_are_counted():
    made = training()
    wide = pl.DataFrame(
        {"id": range(1_200), "address": range(1_200), "total_bytes": range(1, 1_201), "label": ""},
        schema=made.segments.schema,
    )
    sent = _sent(replace(made, segments=wide, blocks=made.blocks.clear()))
    assert len(sent["segments"]["size"]) == 1_000
    assert min(sent["segments"]["size"]) == 201
    assert sent["segments"]["all"] == [1_200, 1_200 * 1_201 // 2, 0, 0, 0]


def test_no_text_can_leave_its_place():
    page = html.page(Memory(filled=(hostile(),)))
    found = Elements(page)
    tags = [tag for tag, _ in found.seen]
    assert "img" not in tags
    assert tags.count("script") == 2
    assert not [name for _, attrs in found.seen for name in attrs if name.startswith("on")]
    assert "<" not in found.scripts[0]
    assert BREAKOUT in json.loads(found.scripts[0])["texts"]
    assert BREAKOUT in found.text
    assert page.count("<!--") == 0


def test_several_devices_are_several_figures_with_ids_of_their_own():
    page = html.page(Memory(filled=(training(), plain()), drawn=(skew(),)))
    seen = Elements(page).seen
    ids = [attrs["id"] for _, attrs in seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert [a["id"] for _, a in seen if a.get("class") == "occupancy"] == ["memory-0", "memory-1"]
    assert page.index('class="verdict"') < page.index('id="memory-0"') < page.index('class="chart"')
    referred = {
        i for _, a in seen for k in a if k.startswith("aria-") for i in (a[k] or "").split()
    }
    assert {"memory-0-title", "memory-0-said", "memory-1-title"} <= referred & set(ids)


def test_the_policy_lets_both_viewers_run_and_nothing_else():
    class Both(Memory):
        flames = (burning(),)

    page = html.page(Both(filled=(training(),)))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy.endswith(
        f"; script-src {ink.VIEWER.script_hash()} {flamegraph.VIEWER.script_hash()}"
    )
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in html.page(Memory())


def test_it_says_in_words_what_is_drawn_and_what_was_largest():
    text = Elements(html.page(Memory(filled=(training(),)))).text
    made = training()
    share = f"{100 * made.boxed_frac:.1f} %"
    assert f"The 70 largest allocations are drawn one by one: {share} of all bytes x" in text
    assert "At the peak 1.312 GiB are live; at most 1.312 GiB are reserved." in text
    assert "The 20 largest allocations at the peak" in text
    page = html.page(Memory(filled=(training(),)))
    rows = re.findall(r"<tr><td.*?</tr>", page)
    cells = [re.sub("<[^>]+>", "|", row).replace("||", "|").strip("|").split("|") for row in rows]
    assert len(cells) == 20
    assert cells[0] == [
        *("128 MiB", "9.5 %", "optimizer state", "from 41 ms, stays"),
        "_init_group (torch/optim/adam.py:161)",
    ]
    assert ["64 MiB", "4.8 %", "parameters", "always", "__init__ (model.py:10)"] in cells
    assert "All 132 allocations are drawn one by one." in html.page(Memory(filled=(plain(),)))
    assert "from event 35, stays" in html.page(Memory(filled=(plain(),)))


def test_an_empty_device_has_no_viewer_to_run():
    page = html.page(Memory(filled=(empty(),)))
    assert "There is nothing to draw." in page
    assert 'type="application/json"' not in page


def test_a_large_page_and_a_large_plot_stay_small():
    made = large(4_000, boxes=2_000)
    assert made.levels.height > 4_000
    assert len(html.page(Memory(filled=(made,))).encode()) < LIMIT / 2
    assert len(render(Memory(filled=(made,)), "svg")) < LIMIT


# --- the plot --------------------------------------------------------------------------------


def _texts(svg):
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own
    return ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]


def test_the_plot_has_words_ticks_steps_and_marks():
    texts = _texts(render(Memory(filled=(training(),)), "svg"))
    assert {"What filled the memory of GPU 0", "1.25 GiB", "0 B", "20 ms", "reserved"} <= set(texts)
    assert {"step 0", "step 3", "peak: 1,344 MiB"} <= set(texts)
    assert {"out of memory: 512 MiB asked for", "optimizer state 528 MiB"} <= set(texts)
    assert "without a box 141 MiB" in texts
    check_wording(*texts)
    assert "allocator event" in _texts(render(Memory(filled=(plain(),)), "svg"))


def _crowded():
    """Memory ran out eight times, five of them before the peak."""
    made = training()
    ooms = pl.DataFrame({"event": range(52, 60), "time_ns": None, "kind": "oom", "label": "full"})
    ooms = ooms.with_columns(time_ns=pl.lit(made.marks["time_ns"][0]))
    return replace(made, marks=pl.concat([ooms.cast(dict(made.marks.schema)), made.marks]))


def test_the_peak_is_named_however_often_memory_ran_out():
    texts = _texts(render(Memory(filled=(_crowded(),)), "svg"))
    assert "peak: 1,344 MiB" in texts
    assert texts.count("full") == 2
    sent = _sent(_crowded())
    assert sent["texts"][sent["marks"][0][3]] == "peak: 1,344 MiB"


def test_the_plot_draws_each_box_where_the_layout_has_it():
    held = [Held(0, 6, 10 * MIB), Held(1, 3, 5 * MIB), Held(2, 8, 7 * MIB)]
    ax = plot.figure(Memory(filled=(occupancy(held, 8, timed=False),))).axes[0]
    shapes = [(patch.get_xy() / (1, MIB)).tolist() for patch in ax.patches[:3]]
    # each down to 0, the topmost first: what stands below covers it
    assert shapes == [
        [[2, 22], [3, 22], [3, 17], [6, 17], [6, 7], [8, 7], [8, 0], [2, 0], [2, 22]],
        [[1, 15], [3, 15], [3, 0], [1, 0], [1, 15]],
        [[0, 10], [6, 10], [6, 0], [0, 0], [0, 10]],
    ]


def test_the_plot_draws_400_boxes_and_says_their_share():
    made = large(1_500, boxes=900)
    layout = lay_out(made)
    kept = np.sort(layout.area)[-400:].sum() / layout.area.sum() * made.boxed_frac
    picture = plot.figure(Memory(filled=(made,)))
    ax = picture.axes[0]
    assert f"400 largest allocations are drawn one by one: {100 * kept:.1f} %" in " ".join(
        ax.get_title(loc="left").split()
    )
    title = " ".join(ax.get_title(loc="left").split())
    assert title.endswith("smaller ones by category; the rest is the grey band.")
    alone = {tuple(patch.get_xy()[0]) for patch in ax.patches if isinstance(patch, Polygon)}
    assert 300 < len(alone) <= 400


def test_bands_of_the_plot_are_what_smaller_boxes_of_a_category_hold():
    made = large(1_500, boxes=900)
    layout = lay_out(made)
    ax = plot.figure(Memory(filled=(made,))).axes[0]
    bands = [patch for patch in ax.patches if isinstance(patch, StepPatch) and patch.get_fill()]
    tops = [patch.get_data().values for patch in bands]
    shown, edges = columns(layout, len(tops[0]))
    alone = largest(layout, 400)
    small = made.boxes.with_row_index().filter(~pl.col("index").is_in(alone.tolist()))
    held = {
        sum(
            small.filter(pl.col("category").eq_missing(pl.lit(kind)), start <= at, end > at)[
                "live_bytes"
            ].sum()
            for at in layout.event[shown[::50]]
        )
        for start, end in [(pl.col("start"), pl.col("end"))]
        for kind in made.boxes["category"].unique()
    }
    boxed = stack(layout, np.arange(len(layout.size)), shown, edges)
    assert (tops[0] == layout.live[shown]).all()
    assert (tops[1] == layout.live[shown] - boxed.rest).all()
    lowest = stack(layout, alone, shown, edges)
    nested = [*tops[1:], lowest.live - lowest.rest]
    assert {int((high - low)[::50].sum()) for high, low in pairwise(nested)} == held - {0}


def test_occupancies_are_drawn_before_charts_and_by_name():
    result = Memory(filled=(training(), plain(name="other")), drawn=(skew(),))
    titles = [place.get_suptitle() for place in plot.figure(result).subfigs]
    assert titles == ["What filled the memory of GPU 0"] * 2 + ["Arrival skew"]
    assert len(plot.figure(result, chart="other").subfigs) == 0
    with raises_wording(OptionError):
        plot.figure(result, chart="nope")


@pytest.mark.parametrize("made", [hostile(), empty(), occupancy([], 5)], ids=["a", "b", "c"])
def test_the_plot_takes_what_it_gets(made):
    texts = _texts(render(Memory(filled=(made,)), "svg"))
    assert any(made.title in text for text in texts)
    assert render(Memory(filled=(made,)), "png").startswith(b"\x89PNG")


def test_the_same_occupancy_gives_the_same_bytes():
    result = Memory(filled=(training(),))
    assert render(result, "svg") == render(result, "svg")
    assert render(result, "html") == render(result, "html")
