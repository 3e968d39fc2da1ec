"""Operators of kernels that CUDA and HIP graphs replay.

All kernels of a graph replay share one launch call. The operator of a kernel is taken from a step
without replay, in which the same kernel ran between the same kernels, or from the capture, in which
each launch call became one kernel of the graph. Kernels of equal layers have the same neighbors:
their operators follow from the order of the whole graph and of a whole step.
"""

from collections import Counter
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
_Rows = npt.NDArray[np.integer]

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

#: Longer sequences are compared up to here; less than this share in common is another program.
_MOST_KERNELS = 4_000
_LEAST_COMMON = 0.5

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
    lanes = every.drop_nulls("sequence").sort("position").partition_by("sequence")
    open_graphs = replays.join(left, on="sequence", how="semi")
    compared = open_graphs.filter(pl.col("position") < _MOST_KERNELS).unique(_ORDER).sort(_ORDER)
    for graph in compared.partition_by("sequence") if lanes else ():
        joined = left.join(_in_order(graph, lanes, keys), on=_ORDER)
        matches.append(joined.drop(CONTEXTS))
    return pl.concat(matches)


def _in_order(
    graph: pl.DataFrame, lanes: Sequence[pl.DataFrame], keys: Sequence[str]
) -> pl.DataFrame:
    """Return the operators of a graph's kernels by their order: sequence, position and keys.

    The kernels are paired with the sequence that has most in common with them. A kernel has no
    operator if others could take its place, or if it could be of another operator.
    """
    names = Counter(graph[_LONE])
    common = [(names & Counter(lane["context"])).total() for lane in lanes]
    lane = lanes[common.index(max(common))]
    if max(common) < _LEAST_COMMON * graph.height:
        return graph.select(_ORDER).hstack(lane.clear(graph.height).select(keys))[:0]
    at, to, rank = _pairs(graph[_LONE].to_numpy(), lane["context"].to_numpy())
    pairs = graph.select(_ORDER)[at].hstack(lane.select(keys)[to]).with_columns(rank=rank)
    return pairs.unique().filter(pl.len().over("rank") == 1).drop("rank").drop_nulls(keys[0])


def _pairs(names: _Hashes, others: _Hashes) -> tuple[_Rows, _Rows, _Rows]:
    """Return the pairs of the longest common subsequences: both positions, and the pair's number.

    Of the longest, those that skip fewest others; if there are several, the pairs of all.
    """
    before = _scores(names, others)
    after = _scores(names[::-1], others[::-1])[::-1, ::-1]
    gain = others.size + 1
    whole = np.where(before > 0, before + after - gain, 0)
    at, to = np.nonzero(whole == max(1, whole.max()))
    return at, to, -(-before[at, to] // gain)


def _scores(names: _Hashes, others: _Hashes) -> npt.NDArray[np.int32]:
    """Return the score of the best common subsequence that ends with each pair; 0 if unequal.

    A pair counts as the number of others plus 1, and each skipped other as -1.
    """
    skipped = np.arange(others.size + 1, dtype=np.int32)
    best = np.zeros(others.size + 1, np.int32)
    scores = np.zeros((names.size, others.size), np.int32)
    for row, name in enumerate(names):
        scores[row] = np.where(others == name, np.maximum(best[:-1], 0) + others.size + 1, 0)
        best[1:] = np.maximum(best[1:], scores[row])
        best = np.maximum.accumulate(best + skipped) - skipped
    return scores


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
