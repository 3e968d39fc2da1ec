"""A timeline of devices: a figure for pages, lines for a terminal; ``drawing`` for a plot.

In: :class:`traceanalyzer.drawings.Lanes`. ``grid`` computes the shares of each state in the columns
of a drawing. A page gets a summary and a table that are readable without scripts, and all states
and events as packed columns (``pack``) for the viewer (``data.js``, ``picture.js``, ``viewer.js``).
Only :mod:`traceanalyzer.render` imports this package.
"""

import re
import sys
import textwrap
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceanalyzer.drawings import Budget, Lanes
from traceanalyzer.render import palette, pieces
from traceanalyzer.render.palette import STATE_SEQUENCES, colored
from traceanalyzer.render.pieces import cell, escaped
from traceanalyzer.render.text import shorten, visible
from traceanalyzer.units import format_count, format_frac, format_ns

#: Character of each state: in Unicode, in ASCII.
_MARKS = {
    "compute": "█#",
    "overlapped": "▇%",
    "transfer": "▓=",
    "waiting": "▒w",
    "copies": "cc",
    "dataloading": "dd",
    "launch": "ll",
    "synchronisation": "ss",
    "host": "hh",
    "idle": "·.",
}
#: Most lanes in full; of more only the extreme ones are shown.
_MOST = 16
_EXTREME = 3
_WIDEST = 100
_LONGEST_NAME, _INDENT = 20, "  "
#: Where lines are not divided: in a label, before the unit of a number.
_SPACE, _BEFORE_UNIT = re.compile(" "), re.compile(r"(?<=\d) ")


#: States with a smaller part of the time of a character are not shown there.
_LEAST_FRAC = 0.1


def text(
    drawing: Lanes,
    width: int,
    *,
    top: int | None = 10,
    unicode: bool | None = None,
    color: bool = False,
) -> str:
    """Return the timeline in lines of at most ``width`` characters.

    A character shows a state of its stretch of time, so that a row has each state as often as its
    share: of short states that follow each other, not only the longest. Of more than 16 devices (or
    ``top``, if it is larger) the ones with most lost time, the median one and the one with least
    are shown; None shows all.

    Args:
        drawing: the timeline.
        width: characters per line.
        top: see above.
        unicode: whether blocks can be used; default: whether standard output can encode them.
        color: whether states are coloured.
    """
    blocks = can_encode() if unicode is None else unicode
    rows = drawing.lanes.filter(pl.col("lane").is_in(_chosen(drawing, top)))
    names = [shorten(visible(name), _LONGEST_NAME) for name in rows["on"]]
    left = max(map(len, [*names, "step"])) + 2
    columns = max(width - len(_INDENT) - left, 10)
    parts = shares(drawing, columns, rows["lane"].to_list())
    marks = [_MARKS[state][0 if blocks else 1] for state in drawing.names]
    lines = [_steps(drawing, rows["lane"].to_list(), left, columns)]
    chosen_states = _characters(parts)
    drawn = [
        _row(row.tolist(), marks, list(drawing.names) if color else []) for row in chosen_states
    ]
    lines += [name.ljust(left) + row for name, row in zip(names, drawn, strict=True)]
    lines += _places(drawing, left, columns)
    hidden = drawing.lanes.height - rows.height
    if hidden:
        lines.append(f"({hidden} more devices between these; --top all shows them)")
    if drawing.left_out:
        more = format_count(drawing.left_out, "more device")
        lines.append(f"({more}: traceanalyzer timeline)")
    each = format_ns(max(round(length(drawing) / columns), 1))
    begin, end = map(format_ns, extent(drawing))
    heading = f"{drawing.title} from {begin} to {end} ({each} per character)"
    heading = textwrap.fill(heading, width)
    body = "\n".join((_INDENT + line).rstrip() for line in lines if line.strip())
    used = {list(drawing.names)[at] for at in np.unique(chosen_states).tolist() if at >= 0}
    return f"{heading}\n{body}\n{_legend(drawing, marks, used, width, color=color)}"


def _characters(parts: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the state of each character (-1: none), by row, column and share of each state.

    It is the one with most time that is not shown yet, among those with a tenth of the stretch.
    """
    chosen_states = np.full(parts.shape[:2], -1)
    whole = parts.sum(axis=2)
    for row, column in np.argwhere(whole > 0).tolist():
        if not column or whole[row, column - 1] <= 0:
            owed = np.zeros(parts.shape[2])
        now = parts[row, column] / whole[row, column]
        owed += now
        chosen_states[row, column] = state = np.argmax(np.where(now >= _LEAST_FRAC, owed, -np.inf))
        owed[state] -= 1
    return chosen_states


def _row(states: Sequence[int], marks: Sequence[str], names: Sequence[str]) -> str:
    """Return one character per state (-1: nothing), coloured if ``names`` are given."""
    runs = ((at, len(list(run))) for at, run in groupby(states))
    return "".join(
        " " * n if at < 0 else colored(marks[at] * n, STATE_SEQUENCES[names[at]] if names else None)
        for at, n in runs
    )


def can_encode() -> bool:
    """Return whether standard output can encode the blocks."""
    try:
        "".join(_MARKS.values()).encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _chosen(drawing: Lanes, top: int | None) -> list[int]:
    """Return the lanes to show."""
    lanes = drawing.lanes["lane"].to_list()
    if top is None or len(lanes) <= max(_MOST, top):
        return lanes
    by_loss = drawing.by_loss
    on_path = [lane for lane in lanes if lane not in by_loss]
    return [*by_loss[:_EXTREME], by_loss[len(by_loss) // 2], by_loss[-1], *on_path]


def _steps(drawing: Lanes, lanes: Sequence[int], left: int, columns: int) -> str:
    """Return the numbers of the steps of the first lane that has steps, where they begin."""
    line, (begin, end) = [" "] * (left + columns), extent(drawing)
    line[:4] = "step"
    free = left
    for lane in lanes:
        steps = drawing.steps.filter(lane=lane)
        for name, start in steps.select("step", "start").iter_rows():
            place = left + int((start - begin) / max(end - begin, 1) * columns)
            label = shorten(visible(short_step(name)), _LONGEST_NAME)
            if place >= free and place + len(label) <= len(line):
                line[place : place + len(label)] = label
                free = place + len(label) + 1
        if steps.height:
            return "".join(line)
    return ""


def _places(drawing: Lanes, left: int, columns: int) -> list[str]:
    """Return a line with the devices of the critical path, where it enters them."""
    known = dict(drawing.lanes.select("lane", "on").iter_rows())
    lanes = [] if drawing.path is None else drawing.path["lane"].unique().sort().to_list()
    if drawing.path is None or len(lanes) < 2:
        return []
    edges = np.linspace(*extent(drawing), columns + 1)
    of_lane = []
    for lane in lanes:
        rows = drawing.path.filter(lane=lane)
        of_lane.append(np.diff(_covered(rows["start"].to_numpy(), rows["end"].to_numpy(), edges)))
    most = np.argmax(of_lane, axis=0)
    line = ""
    for column in np.flatnonzero(np.diff(most, prepend=-1)).tolist():
        label = visible(known[lanes[most[column]]])
        if column >= len(line) and column + len(label) <= columns:
            line = line.ljust(column) + label + " "
    return ["  on".ljust(left) + line]


def _legend(
    drawing: Lanes, marks: Sequence[str], used: Set[str], width: int, *, color: bool
) -> str:
    """Return the labels of the states that occur."""
    entries = [
        (state, mark, label)
        for mark, (state, label) in zip(marks, drawing.names.items(), strict=True)
        if state in used
    ]
    return _in_lines(entries, width, color=color)


def _in_lines(entries: Sequence[tuple[str, str, str]], width: int, *, color: bool) -> str:
    """Return states, marks and labels in indented lines.

    An entry is divided only if it is longer than a line: between words, not before a unit.
    """
    room = width - len(_INDENT) - len("m ")
    text = "   ".join(
        f"{mark}\0{(_SPACE if len(label) <= room else _BEFORE_UNIT).sub(chr(1), label)}"
        for _, mark, label in entries
    )
    lines = textwrap.fill(
        text, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )
    for state, mark, _ in entries:
        sequence = STATE_SEQUENCES[state] if color else None
        lines = lines.replace(f"{mark}\0", f"{colored(mark, sequence)} ", 1)
    return lines.replace("\1", " ")


def bar(budget: Budget, width: int, *, unicode: bool | None = None, color: bool = False) -> str:
    """Return a total and its parts as a bar of characters, with the parts below it."""
    blocks = can_encode() if unicode is None else unicode
    columns = max(min(width, _WIDEST) - len(_INDENT), 10)
    marks = _unique_marks(budget, 0 if blocks else 1)
    names = [part.state for part in budget.parts]
    ends = np.round(np.cumsum([part.frac for part in budget.parts]) * columns).astype(int)
    lengths = np.diff(ends, prepend=0)
    line = _row(np.repeat(np.arange(len(marks)), lengths).tolist(), marks, names if color else [])
    entries = [
        (part.state, mark, f"{part.label} {format_ns(part.ns)} ({format_frac(part.frac)})")
        for mark, part in zip(marks, budget.parts, strict=True)
    ]
    return f"{budget.title}\n{_INDENT}{line}\n{_in_lines(entries, width, color=color)}"


def _unique_marks(budget: Budget, at: int) -> list[str]:
    """Return the character of each part: of its state, or a letter of its name for each of several.

    So no two parts have the same, and no letter has the meaning of a state that it is not.
    """
    counts = Counter(part.state for part in budget.parts)
    marks, used = list[str](), set("".join(_MARKS.values()))
    for part in budget.parts:
        mark, label = _MARKS[part.state][at], part.label.removeprefix("idle: ").lower()
        letters = re.findall(r"\b(?!and|the)[a-z](?=[a-z]{2})", label)
        if counts[part.state] > 1 and label != "other" and mark not in letters:
            free = (one for one in [*letters, *label] if one.isalpha() and one not in used)
            mark = next(free, mark)
            used.add(mark)
        marks.append(mark)
    return marks


def shares(drawing: Lanes, columns: int, only: Sequence[int] | None = None) -> NDArray[np.float64]:
    """Return the share of each state in each column: an array (lane, column, state).

    The columns divide the axis evenly. The shares of a column sum to 1, or less where a lane was
    not recorded.

    Args:
        drawing: the timeline.
        columns: number of columns.
        only: numbers of lanes; default: all, in the order of the drawing.
    """
    lanes = drawing.lanes["lane"].to_list() if only is None else only
    edges = np.linspace(*extent(drawing), columns + 1)
    width = edges[1] - edges[0] or 1
    result = np.zeros((len(lanes), columns, len(drawing.names)))
    for place, lane in enumerate(lanes):
        rows = drawing.states.filter(lane=lane)
        for number, state in enumerate(drawing.names):
            of_state = rows.filter(pl.col("state") == state)
            covered = _covered(of_state["start"].to_numpy(), of_state["end"].to_numpy(), edges)
            result[place, :, number] = np.diff(covered) / width
    return result


def extent(drawing: Lanes) -> tuple[int, int]:
    """Return the first and the last time that is drawn."""
    begin, end = drawing.lanes["start"].min(), drawing.lanes["end"].max()
    return (begin, end) if isinstance(begin, int) and isinstance(end, int) else (0, 0)


def length(drawing: Lanes) -> int:
    """Return the length of the time that is drawn."""
    begin, end = extent(drawing)
    return end - begin


def short_step(name: str) -> str:
    """Return the end of a step's name, mostly its number: ``12`` of ``Step#12``, ``step [12]``."""
    return name.rpartition("#" if "#" in name else " ")[2].strip("[]") or name


def _covered(
    start: NDArray[np.int64], end: NDArray[np.int64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how much of disjoint, ordered intervals lies before each time."""
    if not start.size:
        return np.zeros(at.size)
    begun = np.searchsorted(start, at, side="right")
    total = np.concatenate(([0], np.cumsum(end - start)))
    beyond = np.where(begun > 0, np.maximum(end[begun - 1] - at, 0), 0)
    covered: NDArray[np.float64] = total[begun] - beyond
    return covered


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
    content = pieces.caption(key, drawing.title, _summary(drawing))
    content += pieces.drawn(_outline(drawing), pieces.pack(_data(drawing)))
    return pieces.figure("timeline", key, content)


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
    state = states["state"].to_physical().cast(pl.Int64).to_numpy()
    reasons, note = codes(states.select("peer", "cause"))
    names = ["name", "stream", "work_kind", "bytes", "operator", "collective"]
    kinds, kind = codes(events.select(names))
    step_names, step = codes(steps.select("step"))
    texts, text = codes(gaps.select("before", "after", "host"))
    begin, end = extent(drawing)
    tables = {
        "states": (states, {"kind": state, "note": note}),
        "events": (events, {"kind": kind, "count": events["count"].to_numpy()}),
        "steps": (steps, {"kind": step}),
        "gaps": (gaps, {"kind": text}),
        "path": (path, {}),
    }
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
        "packed": _packed(tables, lanes.height),
    }


def _texts(rows: list[tuple[Any, ...]]) -> list[Any]:
    """Return rows of values with escaped and shortened texts; a single value without its tuple."""
    safe = [
        [shorten(visible(v), _TEXT_CHARS) if isinstance(v, str) else v for v in row] for row in rows
    ]
    return [row[0] if len(row) == 1 else row for row in safe]


Ints = NDArray[np.int64]

_LEVEL = 4  # half the time of the default, and 2 % larger
_LONGEST = 10  # bytes of 64 bits, seven at a time


def _packed(
    tables: Mapping[str, tuple[pl.DataFrame, Mapping[str, Ints]]], lanes: int
) -> dict[str, Any]:
    """Return the names of columns, the number of rows up to each lane's end, and the data.

    Args:
        tables: rows with ``row``, the place of their lane, sorted by it; columns besides their
            times.
        lanes: number of lanes.
    """
    columns = {name: gaps_and_lengths(rows) | {**more} for name, (rows, more) in tables.items()}
    ends = {
        name: np.searchsorted(rows["row"].to_numpy(), np.arange(lanes), side="right").tolist()
        for name, (rows, _) in tables.items()
    }
    values = [column for table in columns.values() for column in table.values()]
    data = b64encode(zlib.compress(b"".join(map(varints, values)), _LEVEL)).decode()
    return {"columns": {name: [*columns[name]] for name in columns}, "ends": ends, "data": data}


def varints(values: Ints) -> bytes:
    """Return integers as variable-length bytes, zigzag encoded."""
    values = values.astype(np.int64, copy=False)
    left = ((values << 1) ^ (values >> 63)).view(np.uint64)
    length = np.ones(left.size, np.int64)
    for bits in range(7, int(left.max(initial=0)).bit_length(), 7):
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
