"""A timeline of devices: a figure for pages; ``strip`` for a terminal, ``drawing`` for a plot.

In: :class:`traceanalyzer.drawings.Lanes`. ``grid`` computes the shares of each state in the columns
of a drawing. A page gets a summary and a table that are readable without scripts, and all states
and events as packed columns (``pack``) for the viewer (``data.js``, ``picture.js``, ``viewer.js``).
Only :mod:`traceanalyzer.render` imports this package.
"""

import zlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceanalyzer.drawings import Lanes
from traceanalyzer.render import palette, pieces
from traceanalyzer.render.pieces import cell, escaped
from traceanalyzer.render.text import shorten, visible
from traceanalyzer.render.timeline.strip import extent, length, shares
from traceanalyzer.units import format_frac, format_ns

_TEXT_CHARS = 300
_ROWS = 20

#: Script and style of the drawing.
VIEWER = pieces.Viewer(
    "traceanalyzer.render",
    (
        "charts/elements",
        "charts/scale",
        "charts/gestures",
        "timeline/data",
        "timeline/picture",
        "timeline/viewer",
    ),
    sheet="timeline/viewer",
)


def inline(drawing: Lanes, key: str) -> str:
    """Return the figure for a page with the style and, at its end, the script of the viewer.

    Args:
        drawing: the timeline.
        key: prefix of its ids, unique on the page.
    """
    content = (
        f'<figcaption id="{key}-title">{escaped(drawing.title)}</figcaption>\n'
        f'<p class="soft summary" id="{key}-summary">{escaped(_summary(drawing))}</p>\n'
    )
    return pieces.figure(
        "timeline", key, content + pieces.drawn(_outline(drawing), pieces.pack(_data(drawing)))
    )


def height(drawing: Lanes) -> int:
    """Return the height of the figure in pixels, for a frame."""
    return 190 + min(30 * drawing.lanes.height, 560)


def _summary(drawing: Lanes) -> str:
    text = (
        f"{drawing.lanes.height:,} rows over {format_ns(length(drawing))}: "
        f"{drawing.states.height:,} states, {int(drawing.events['count'].sum()):,} events"
    )
    merged = f"; those shorter than {format_ns(drawing.merged_ns)} are merged"
    return f"{text}{merged if drawing.merged_ns else ''}."


def _outline(drawing: Lanes) -> str:
    """Return the share of each state in the recorded time of the first lanes, collapsed."""
    first = drawing.lanes.head(_ROWS)
    parts = shares(drawing, 1, first["lane"].to_list())[:, 0, :]
    parts /= np.maximum(parts.sum(axis=1, keepdims=True), 1e-12)  # of the recorded time
    used = [number for number in range(len(drawing.names)) if parts[:, number].any()]
    labels = list(drawing.names.values())
    heads = [("device", False), *((escaped(labels[number]), True) for number in used)]
    rows = [
        [cell(visible(name)), *(cell(format_frac(float(row[n])), number=True) for n in used)]
        for name, row in zip(first["on"], parts, strict=True)
    ]
    title = "Share of each state" + (
        "" if first.height == drawing.lanes.height else f" ({_ROWS} rows)"
    )
    return (
        f'<details class="timeline-text"><summary>{title}</summary>\n'
        f"{pieces.table(title, heads, rows)}</details>"
    )


def _data(drawing: Lanes) -> dict[str, Any]:
    """Return the data of the viewer: lanes, texts, and packed columns sorted by lane."""
    lanes = drawing.lanes
    place = dict(zip(lanes["lane"].to_list(), range(lanes.height), strict=True))
    of_path = drawing.marks.head(0) if drawing.path is None else drawing.path
    others = (drawing.gaps, drawing.marks, of_path)
    states, events, steps, gaps, marks, path = (
        frame.with_columns(row=pl.col("lane").replace_strict(place, return_dtype=pl.Int64)).sort(
            "row", "start"
        )
        for frame in (drawing.states, drawing.events, drawing.steps, *others)
    )
    packed = Packed()
    packed.add("states", states, gaps_and_lengths(states), {"kind": _state_codes(states)})
    reasons, note = codes(states.select("peer", "cause"))
    packed.columns["states"]["note"] = note
    names = ["name", "stream", "work_kind", "bytes", "operator", "collective"]
    kinds, kind = codes(events.select(names))
    packed.add("events", events, gaps_and_lengths(events), {"kind": kind})
    packed.columns["events"]["count"] = events["count"].to_numpy()
    step_names, step = codes(steps.select("step"))
    packed.add("steps", steps, gaps_and_lengths(steps), {"kind": step})
    texts, text = codes(gaps.select("before", "after", "host"))
    begin, end = extent(drawing)
    packed.add("gaps", gaps, gaps_and_lengths(gaps), {"kind": text})
    packed.add("path", path, gaps_and_lengths(path))
    return {
        "extent": [begin, max(end, begin + 1)],
        "lanes": [
            [shorten(visible(row["on"]), 60), visible(row["host"] or ""), row["lost_frac"]]
            for row in lanes.iter_rows(named=True)
        ],
        "stateKinds": [
            [name, label, *palette.STATES[name]] for name, label in drawing.names.items()
        ],
        "notes": [
            visible(cause or "") if peer is None else f"waiting for rank {peer}"
            for peer, cause in reasons
        ],
        "kinds": _texts(kinds),
        "stepNames": _texts(step_names),
        "gapTexts": _texts(texts),
        "marks": [
            [
                row["row"],
                row["start"],
                row["end"],
                row["number"],
                shorten(visible(row["label"]), 200),
            ]
            for row in marks.iter_rows(named=True)
        ],
        "merged": drawing.merged_ns,
        "packed": packed.to_dict(lanes.height),
    }


def _state_codes(states: pl.DataFrame) -> np.ndarray[Any, np.dtype[np.int64]]:
    return states["state"].to_physical().cast(pl.Int64).to_numpy()


def _texts(rows: list[tuple[Any, ...]]) -> list[Any]:
    """Return rows of values with escaped and shortened texts; a single value without its tuple."""
    safe = [
        [shorten(visible(v), _TEXT_CHARS) if isinstance(v, str) else v for v in row] for row in rows
    ]
    return [row[0] if len(row) == 1 else row for row in safe]


Ints = NDArray[np.int64]

_LEVEL = 4  # half the time of the default, and 2 % larger
_LONGEST = 10  # bytes of 64 bits, seven at a time


class Packed:
    """Tables whose rows are sorted by ``row``, the place of their lane.

    Attributes:
        columns: columns of each table, in order.
        ends: number of rows of each table up to each lane's end.
    """

    def __init__(self) -> None:
        self.columns: dict[str, dict[str, Ints]] = {}
        self.rows: dict[str, Ints] = {}

    def add(self, table: str, frame: pl.DataFrame, *columns: Mapping[str, Ints]) -> None:
        """Add a table."""
        self.rows[table] = frame["row"].to_numpy()
        self.columns[table] = {name: values for one in columns for name, values in one.items()}

    def to_dict(self, lanes: int) -> dict[str, Any]:
        """Return the tables' columns, the ends of the lanes' rows, and the data."""
        ends = {
            table: np.searchsorted(rows, np.arange(lanes), side="right").tolist()
            for table, rows in self.rows.items()
        }
        values = [column for table in self.columns.values() for column in table.values()]
        data = zlib.compress(b"".join(map(varints, values)), _LEVEL)
        names = {table: list(columns) for table, columns in self.columns.items()}
        return {"columns": names, "ends": ends, "data": b64encode(data).decode()}


def varints(values: Ints) -> bytes:
    """Return integers as variable-length bytes, zigzag encoded."""
    values = values.astype(np.int64, copy=False)
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    length = np.ones(left.size, np.int64)
    largest = int(left.max(initial=0))
    for bits in range(7, largest.bit_length(), 7):
        length += left >= np.uint64(1 << bits)
    ends = np.cumsum(length)
    out = np.zeros(int(ends[-1]) if ends.size else 0, np.uint8)
    begins = ends - length
    for place in range(min(int(length.max(initial=0)), _LONGEST)):
        some = np.flatnonzero(length > place)
        byte = (left[some] & np.uint64(127)).astype(np.uint8)
        more = (length[some] > place + 1).astype(np.uint8) << 7
        out[begins[some] + place] = byte | more
        left[some] >>= np.uint64(7)
    return out.tobytes()


def gaps_and_lengths(frame: pl.DataFrame) -> dict[str, Ints]:
    """Return ``gap``, start less the end of the row before (0 for the first), and ``length``."""
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    return {"gap": np.diff(end, prepend=0) - (end - start), "length": end - start}


def codes(frame: pl.DataFrame) -> tuple[list[tuple[Any, ...]], Ints]:
    """Return the distinct rows in order of appearance, and the number of each row."""
    number = frame.with_row_index("at").select(first=pl.col("at").min().over(frame.columns))[
        "first"
    ]
    distinct, inverse = np.unique(number.to_numpy(), return_inverse=True)
    return frame[distinct].rows(), inverse.astype(np.int64)
