"""Operators of kernels that CUDA and HIP graphs replay.

All kernels of a graph replay share one launch call. The operator of a kernel is taken from a step
without replay, in which the same kernel ran between the same kernels, or from the capture, in which
each launch call became one kernel of the graph. Kernels of equal layers have the same neighbors:
their operators follow from the order of the whole graph and of a whole step.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.common.names import matching, named
from traceanalyzer.frames import linking, nesting
from traceanalyzer.trace import Trace, of_kinds
from traceanalyzer.units import format_count, format_frac, format_ns
from traceanalyzer.vocabulary import LAUNCH_KINDS

_Hashes = npt.NDArray[np.uint64]

GRAPH_LAUNCH = "GraphLaunch"
_CAPTURE_BEGINS, _CAPTURE_ENDS = r"StreamBeginCapture", r"StreamEndCapture"
_LAUNCHES = r"(?i)(?:launch(?!hostfunc)|memcpy|memset)"

#: Number of neighbors on each side that must have the same names, largest first.
_RADII = (4, 1, 0)

#: Number of launches of a graph or capture, and the position in it: used if no name is known.
_PLACE = "place"

#: Columns that identify a kernel, in the order in which they are tried; then its sequence (kernels
#: of the same stream, of the same graph launch if replayed) and its position in it.
_NAMES = tuple(f"names_{radius}" for radius in _RADII)
_LONE = _NAMES[-1]
_ORDER = ("sequence", "position")
CONTEXTS = (*_NAMES, _PLACE, *_ORDER)

#: Longer sequences are compared up to here; less than this share in common, and in the same order,
#: is another program.
_MOST_KERNELS = 20_000
_LEAST_COMMON = 0.5

#: More pairs of kernels of graphs and repeats are not compared: the operators stay unknown.
_MOST_PAIRS = 3_000_000

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def graph_launches(trace: Trace) -> pl.Series:
    """Return the correlation ids of the calls that launch graphs."""
    is_call = pl.col("kind").is_in(LAUNCH_KINDS) & named(trace.names, [GRAPH_LAUNCH])
    return trace.events[["kind", "name", "correlation"]].filter(is_call)["correlation"]


def contexts(trace: Trace, work: pl.DataFrame, launch: nesting.Rows) -> pl.DataFrame:
    """Return the context of device work: hashes of its name and its neighbors on the stream.

    Args:
        trace: trace of one rank.
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`.
        launch: row of the launch call per row of ``work``.

    Returns:
        One row per row of ``work``: replayed (launched by a graph launch) and :data:`CONTEXTS`;
        ``place`` is null if not replayed.
    """
    is_call = of_kinds(LAUNCH_KINDS)
    is_graph = trace.events.select(is_call & named(trace.names, [GRAPH_LAUNCH])).to_series()
    replayed = (launch != nesting.ROOT) & is_graph.to_numpy().take(launch, mode="clip")
    graph = np.where(replayed, launch, nesting.ROOT)
    lane = work.select("device", "stream", graph=pl.Series(graph)).hash_rows().to_numpy()
    names = work["name"].cast(pl.String).hash().to_numpy()
    order = np.argsort(lane, kind="stable")  # work is in order of start
    hashes = {name: np.empty_like(names) for name in _NAMES}
    for radius, column in zip(_RADII, hashes.values(), strict=True):
        column[order] = _around(names[order], lane[order], radius)
    position = pl.int_range(pl.len()).over("graph")
    places = pl.DataFrame({"graph": graph}).select(_place(pl.len().over("graph"), position))
    place = places.select(pl.when(pl.Series(replayed)).then(_PLACE))
    rows = pl.DataFrame({"replayed": replayed, **hashes}).hstack(place)
    each = rows.with_columns(lane=pl.Series(lane))
    each = each.with_columns(position=pl.int_range(pl.len()).over("lane"))
    content = pl.struct(_LONE, "position").hash().sum().over("lane")
    return each.with_columns(sequence=content).select("replayed", *CONTEXTS)


def _around(names: _Hashes, lane: _Hashes, radius: int) -> _Hashes:
    """Return a hash of each name and its neighbors in the same lane."""
    hashes, size = np.zeros_like(names), names.size
    padded, lanes = np.pad(names, radius), np.pad(lane, radius)
    for at in range(2 * radius + 1):
        same = lanes[at : at + size] == lane
        hashes = hashes * _FACTOR + np.where(same, padded[at : at + size], 0)
    return hashes


def _place(count: pl.Expr, position: pl.Expr) -> pl.Expr:
    return (count.cast(pl.UInt64) * 2**32 + position.cast(pl.UInt64)).alias(_PLACE)


def captured(trace: Trace) -> pl.DataFrame:
    """Return the launch calls captured in graphs: event, place; sorted by event."""
    is_call = of_kinds(LAUNCH_KINDS)
    begins = is_call & named(trace.names, [_CAPTURE_BEGINS])
    if not trace.events.select(begins.any()).item():
        return pl.DataFrame(schema={"event": pl.UInt32, _PLACE: pl.UInt64})
    ends, launches = (is_call & named(trace.names, [one]) for one in (_CAPTURE_ENDS, _LAUNCHES))
    changes = begins.cast(pl.Int64) - ends.cast(pl.Int64)
    rows = trace.events.with_row_index("event").with_columns(launches.alias("launches"))
    calls = rows.filter(begins | ends | launches).select(
        "event", "launches",
        capture=begins.cum_sum().over("pid", "tid"),
        is_open=changes.cum_sum().over("pid", "tid") > 0,
        thread=pl.struct("pid", "tid"),
    )  # fmt: skip
    inside = calls.filter("launches", "is_open")
    of = ("thread", "capture")
    return inside.select("event", _place(pl.len().over(of), pl.int_range(pl.len()).over(of)))


def known(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the operator of each context and of each kernel of a sequence; distinct rows.

    Args:
        rows: known :data:`CONTEXTS`, and the keys of the operator.
        keys: the columns that identify an operator.

    Returns:
        context (hash), keys, sequence and position (null for a context).
    """
    contexts = [name for name in (*_NAMES, _PLACE) if name in rows.columns]
    each = [rows.select(pl.col(name).alias("context"), *keys).unique() for name in contexts]
    if _ORDER[0] in rows.columns:
        first = rows.filter(pl.col("position") < _MOST_KERNELS)
        each.append(first.select(pl.col(_LONE).alias("context"), *keys, *_ORDER))
    empty = pl.DataFrame(schema={"sequence": pl.UInt64, "position": pl.Int64})
    return pl.concat([*each, empty], how="diagonal").drop_nulls("context").unique()


def resolved(
    replays: pl.DataFrame, known: Sequence[pl.DataFrame], keys: Sequence[str]
) -> pl.DataFrame:
    """Return the operators of replayed kernels: one row per row of ``replays`` with an operator.

    The longest known context decides; a context of several operators is ignored. Without any, the
    order of the kernels decides (:func:`_in_order`).

    Args:
        replays: :data:`CONTEXTS` and any other columns.
        known: frames of :func:`known` of all inputs.
        keys: the columns that identify an operator.

    Returns:
        ``replays`` without contexts, and the keys.
    """
    every = pl.concat(known).unique()
    of_context = every.filter(pl.col("sequence").is_null()).drop(_ORDER)
    single = of_context.filter(pl.len().over("context") == 1)
    left, matches = replays, []
    for name in (*_NAMES, _PLACE):
        joined = left.join(single, left_on=name, right_on="context", how="left")
        has_operator = joined[keys[0]].is_not_null()
        matches.append(joined.filter(has_operator).drop(CONTEXTS))
        left = joined.filter(~has_operator).drop(keys)
    lanes = every.drop_nulls("sequence")
    open_graphs = replays.join(left, on="sequence", how="semi")
    compared = open_graphs.filter(pl.col("position") < _MOST_KERNELS)
    graphs = compared.select(*_ORDER, pl.col(_LONE).alias("context")).unique(_ORDER)
    if lanes.height and graphs.height:
        joined = left.join(_in_order(graphs, lanes, keys), on=_ORDER)
        matches.append(joined.drop(CONTEXTS))
    return pl.concat(matches)


def _in_order(graphs: pl.DataFrame, lanes: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the operators of graphs' kernels by their order: sequence, position and keys.

    The lane that has most kernels in common with a graph is divided into repeats of the graph, at
    a kernel that the graph has once. A kernel is the one of the same name and number in a repeat
    that has the name equally often, if it and most of the graph have the same order there, and if
    all repeats have the same operator.

    Args:
        graphs: kernels of graphs: context, sequence and position.
        lanes: kernels without a graph: the same, and keys.
        keys: the columns that identify an operator.
    """
    owners = lanes.select(keys).unique(maintain_order=True).with_row_index("owner")
    owner = pl.when(pl.col("owner").n_unique() == 1).then(pl.col("owner").first())
    lanes = lanes.join(owners, on=keys, nulls_equal=True)
    lanes = lanes.group_by(lane="sequence", position="position", context="context").agg(owner)
    graphs = graphs.join(_most_in_common(graphs, lanes), on="sequence")
    repeats = lanes.join(graphs.select("lane", "anchor", "times").unique(), on="lane")
    graphs = _in_repeats(graphs, "sequence").with_row_index("kernel")
    pairs = _pairs(graphs, _in_repeats(repeats, "lane", "anchor", "times"))
    of_kernel = pairs.group_by("kernel").agg(
        owner=pl.col("owner").min(), is_one=pl.col("owner").min() == pl.col("owner").max(),
        unknown=pl.col("owner").null_count(),
    )  # fmt: skip
    known = of_kernel.filter("is_one", unknown=0)
    ordered = graphs.select("kernel", *_ORDER)[_same_order(pairs)]
    rows = ordered.join(known, on="kernel").join(owners, on="owner")
    return rows.select(*_ORDER, *keys).drop_nulls(keys[0])


def _most_in_common(graphs: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    """Return the lane that has most kernels in common with a graph: sequence, lane, height, anchor.

    The anchor is the kernel that the graph has once, and the lane least often. Without any it is 0,
    and ``times`` is how often the lane has most kernels of the graph. Lanes that have less than
    half of the graph's kernels are another program.
    """
    each = graphs.group_by("sequence", "context").agg(n=pl.len(), at=pl.col("position").min())
    of_lane = lanes.group_by("lane", "context").agg(of_lane=pl.len())
    once = pl.col("context").filter(pl.col("n") == 1)
    common = each.with_columns(height=pl.col("n").sum().over("sequence")).join(of_lane, "context")
    often = (pl.col("of_lane") / pl.col("n")).median().round().clip(1)
    rows = common.sort("of_lane", "at").group_by("sequence", "lane", maintain_order=True).agg(
        pl.first("height"), anchor=once.first().fill_null(0),
        times=pl.when(once.len() == 0).then(often).otherwise(1).cast(pl.Int64),
        common=pl.min_horizontal("n", "of_lane").sum(),
    )  # fmt: skip
    rows = rows.filter(pl.col("common") >= _LEAST_COMMON * pl.col("height"))
    best = rows.sort("common", "lane", descending=[True, False]).unique("sequence", keep="first")
    return best.drop("common")


def _pairs(graphs: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    """Return kernels of graphs with those of their lanes, in repeats with at least half of a graph.

    Kernels are of the same name, else of the same name between the same names.

    Returns:
        kernel, sequence, height; repeat, lane_place, owner.
    """
    of_lane = pl.struct("lane", "anchor", "times", "repeat").hash()
    left, pairs = graphs, []
    for name in ("context", "around"):
        of_graph = _numbered(graphs, pl.col("sequence"), name, pl.lit(1)).join(
            left, on="kernel", how="semi"
        )
        of_repeat = _numbered(lanes, of_lane, name, pl.col("times"))
        if _count(of_graph["key"], of_repeat["key"]) > _MOST_PAIRS:
            of_graph = of_graph.clear()
        pairs.append(
            of_graph.select("key", "kernel", "sequence", "height")
            .join(of_repeat.select("key", "repeat", "owner", lane_place="place"), on="key")
            .drop("key")
        )
        left = left.join(pairs[-1], on="kernel", how="anti")
    rows = pl.concat(pairs).with_columns(found=pl.len().over("sequence", "repeat"))
    return rows.filter(pl.col("found") >= _LEAST_COMMON * pl.col("height"))


def _count(keys: pl.Series, others: pl.Series) -> int:
    """Return the number of rows of a join."""
    of_key, of_other = (one.alias("key").value_counts(name="n") for one in (keys, others))
    both = of_key.join(of_other, on="key").cast({"n": pl.Int64, "n_right": pl.Int64})
    return int((both["n"] * both["n_right"]).sum())


def _numbered(rows: pl.DataFrame, of: pl.Expr, name: str, times: pl.Expr) -> pl.DataFrame:
    """Return kernels with a key: their lane and anchor, name, number and that of all of the name.

    Args:
        rows: rows of :func:`_in_repeats`.
        of: hash of the graph or repeat of a kernel.
        name: column of the name.
        times: number of equal parts of the kernels of a name, each of which is a repeat.
    """
    factor = pl.lit(_FACTOR)
    rows = rows.with_columns(group=of * factor + pl.col(name))
    n = pl.len().over("group").cast(pl.Int64)
    numbered = rows.with_columns(number=pl.int_range(pl.len()).over("group"), n=n // times)
    numbered = numbered.filter(pl.col("n") > 0, n % times == 0)
    counts = (pl.col("number") % pl.col("n") * 30_011 + pl.col("n")).cast(pl.UInt64)
    key = pl.col("lane") * 3 + pl.col("anchor") * 5 + pl.col(name) * 7 + counts * factor
    repeat = pl.col("repeat") + pl.col("number") // pl.col("n")
    return numbered.with_columns(key=key + pl.col("times").cast(pl.UInt64), repeat=repeat)


def _in_repeats(rows: pl.DataFrame, *sequence: str) -> pl.DataFrame:
    """Return kernels with the repeat of the graph, their place in it, and a hash with neighbors.

    A repeat is from an anchor to the next; what is before the first one follows the last one.
    """
    rows = rows.sort(*sequence, "position")
    begins = (pl.col("context") == pl.col("anchor")).cast(pl.Int64)
    repeat = begins.cum_sum().over(*sequence)
    context = pl.col("context")
    around = (context * 3 + context.shift(1, fill_value=0)) * 5 + context.shift(-1, fill_value=0)
    rows = rows.with_columns(repeat=repeat, around=around)
    last, end = (pl.col(name).max().over(*sequence) for name in ("repeat", "position"))
    rows = rows.with_columns(last=last, end=end + 1)
    before = pl.when(pl.col("repeat") == 0)
    place = pl.col("position") + before.then("end").otherwise(0)
    return rows.with_columns(repeat=before.then("last").otherwise("repeat"), place=place).sort(
        *sequence, "repeat", "place"
    )


def _same_order(pairs: pl.DataFrame) -> list[int]:
    """Return the kernels that have the same order in the repeat with most pairs.

    Graphs of which less than half of the kernels have the same order are left out.
    """
    repeats = pairs.group_by("sequence", "repeat").agg(pl.first("found"))
    repeats = repeats.sort("found", "repeat", descending=[True, False])
    best = repeats.unique("sequence", keep="first", maintain_order=True)
    rows = pairs.join(best, on=["sequence", "repeat"], how="semi").sort("kernel")
    graphs = rows.group_by("sequence").agg("kernel", "lane_place", pl.first("height"))
    kernels: list[int] = []
    for of_graph, places, height in graphs.drop("sequence").iter_rows():
        rising = _rising(places)
        if len(rising) >= _LEAST_COMMON * height:
            kernels += (of_graph[at] for at in rising)
    return kernels


def _rising(values: Sequence[int]) -> list[int]:
    """Return the positions of a longest rising subsequence."""
    last: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for position, value in enumerate(values):
        length = bisect_left(last, value)
        before.append(at[length - 1] if length else -1)
        if length == len(last):
            last.append(value)
            at.append(position)
        else:
            last[length], at[length] = value, position
    rising, position = [], at[-1] if at else -1
    while position >= 0:
        rising.append(position)
        position = before[position]
    return rising[::-1]


def note(
    count: int, matched: int, total_ns: int, matched_ns: int, by: str = "operator"
) -> tuple[str, ...]:
    """Return a note on replayed kernels with and without an operator; empty without replays.

    Args:
        count: number of replayed kernels.
        matched: number of those with an operator.
        total_ns: time of replayed kernels.
        matched_ns: time of those with an operator.
        by: ``operator``, ``module`` or ``code``.
    """
    if not count:
        return ()
    kernels = f"{format_count(count, 'kernel')} replayed by graphs"
    what = {"code": "lines of code"}.get(by, f"{by}s")
    left = format_ns(total_ns - matched_ns)
    if not matched:
        text = (
            f"{kernels} ({left}) count for the graph launch: their {what} are unknown. Add a "
            "trace of the graph capture or of a step without replay, or record warm-up steps "
            "before the replay in the same trace."
        ) + " Kernels that name their module have it in kernels --by module." * (by == "operator")
        return (text,)
    share = format_frac(matched_ns / total_ns if total_ns else 0)
    rest = f"; {left} stay at the graph launch" * (matched < count)
    text = (
        f"{matched:,} of {kernels} ({share} of their time) count for the {what} that launch "
        f"the same kernels in a capture or a step without replay{rest}."
    )
    return (text,)


def captures(slices: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Return when a thread captures the work of a stream: thread, start, end."""
    begins, ends = (matching(names, [edge]) for edge in (_CAPTURE_BEGINS, _CAPTURE_ENDS))
    if not begins or not ends:
        return slices[:0, ["thread", "start", "end"]]
    begun = slices.filter(pl.col("name").is_in(begins)).select("thread", "start", "end").sort("end")
    ended = slices.filter(pl.col("name").is_in(ends)).select("thread", until="end").sort("until")
    pairs = begun.join_asof(
        ended, left_on="end", right_on="until", by="thread", strategy="forward",
        check_sortedness=False,
    )  # fmt: skip
    return pairs.drop_nulls("until").select("thread", "start", end="until")


def prepared(captured: pl.DataFrame, slices: pl.DataFrame) -> pl.DataFrame:
    """Return captures from when an operator (torch.compile) prepares them: after its last call."""
    if captured.is_empty():
        return captured
    operators = slices.filter(pl.col("kind") == "cpu_op")
    around = linking.enclosing(captured.rename({"start": "ts"}), operators, ["thread"])["slice"]
    calls = slices.filter(pl.col("kind").is_in(LAUNCH_KINDS)).select("thread", called="end")
    within = captured.with_columns(since=operators["start"][around].fill_null(captured["start"]))
    rows = within.sort("start").join_asof(
        calls.sort("called"), left_on="start", right_on="called", by="thread",
        check_sortedness=False,
    )  # fmt: skip
    return rows.select("thread", start=pl.max_horizontal("since", "called"), end="end")
