"""What the analyses found, as rows on the axis of all ranks: steps, waits, idle time, findings."""

from collections.abc import Iterator, Sequence

import polars as pl

from traceanalyzer.analyzers import critical_path
from traceanalyzer.analyzers.base import Examination
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.display import short_paths
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.registry import REPLAY
from traceanalyzer.analyzers.timeline.alignment import Recorded
from traceanalyzer.analyzers.timeline.states import with_peers
from traceanalyzer.analyzers.what_if.replay import Replay
from traceanalyzer.result import Finding
from traceanalyzer.trace import overlaps

FINDINGS, STEPS, WAITS, IDLE = "findings", "steps", "straggler waits", "idle time by cause"
CRITICAL_PATH = "critical path"
#: Most intervals of a finding, and of the idle time of a device or the critical path: the longest.
_MOST, _MOST_IDLE = 2_000, 10_000
_HEADINGS = {
    **causes.NAMES,
    causes.EXPOSED: "exposed communication",
    causes.COPIES: "exposed copies",
}
#: Columns of all rows; the others are arguments.
_FIXED = {
    "group": pl.String,
    "track": pl.String,
    "place": pl.String,
    "ts": pl.Int64,
    "dur": pl.Int64,
    "name": pl.String,
    "category": pl.String,
    "finding": pl.UInt32,
}


def overlay_rows(
    examined: Examination,
    findings: Sequence[Finding],
    recorded: Sequence[Recorded],
    shifts: Sequence[int],
) -> pl.DataFrame:
    """Return steps, waits for stragglers, idle time by cause, critical path, findings of a run.

    Args:
        examined: the results of ``gpu_idle`` and ``comm_outliers``, if there are any.
        findings: the findings of ``diagnose``.
        recorded: the recordings.
        shifts: what is added to the times of each recording.

    Returns:
        group (:data:`FINDINGS` ...), track, place (of an interval of a finding, else null), ts,
        dur, name, category, finding (its number, else null), and arguments: null where they do not
        apply. Sorted by ts, longest first. At most 2,000 intervals of a finding and 10,000 of the
        idle time of a device and of the critical path: the longest.
    """
    axis = pl.DataFrame(
        {
            "rank": pl.Series([one.rank for one in recorded], dtype=pl.Int32),
            "path": [one.path for one in recorded],
            "shift": shifts,
            "begin": [one.begin for one in recorded],
            "until": [one.end for one in recorded],
        },
        schema_overrides={"shift": pl.Int64, "begin": pl.Int64, "until": pl.Int64},
    ).with_columns(short=short_paths(pl.Series([one.path for one in recorded])))
    idle, compared = (examined.results.get(name) for name in ("gpu_idle", "comm_outliers"))
    frames = [pl.DataFrame(schema=_FIXED)]
    for number, finding in enumerate(findings, 1):
        frames += _of_finding(number, finding, axis)
    if isinstance(idle, GpuIdle):
        frames += _of_idle(idle, axis)
    if isinstance(compared, CommOutliers) and compared.arrivals.height:
        frames.append(_waits(compared, axis))
    if isinstance(examined.replay, Replay):
        frames.append(_critical_path(examined.replay, axis))
    rows = pl.concat(frames, how="diagonal").filter(pl.col("dur") >= 0)
    return rows.sort("ts", "dur", descending=[False, True], maintain_order=True)


def _label(device: bool = True) -> pl.Expr:
    """Return ``rank 3 GPU 0``; the file in place of an unknown rank."""
    rank = pl.when(pl.col("rank").is_not_null()).then(pl.format("rank {}", "rank"))
    parts = [pl.coalesce(rank, "short")]
    if device:
        parts.append(pl.when(pl.col("device") >= 0).then(pl.format("GPU {}", "device")))
    return pl.concat_str(parts, separator=" ", ignore_nulls=True)


def _placed(rows: pl.DataFrame, axis: pl.DataFrame) -> pl.DataFrame:
    """Return rows of rank, path, start and end with ts and dur on the axis."""
    of_file = axis.unique(["rank", "path"], keep="first", maintain_order=True)
    joined = rows.join(of_file, on=["rank", "path"], nulls_equal=True)
    start = pl.col("start") + pl.col("shift")
    return joined.with_columns(ts=start, dur=pl.col("end") - pl.col("start"))


def _of_idle(idle: GpuIdle, axis: pl.DataFrame) -> Iterator[pl.DataFrame]:
    yield _placed(idle.steps, axis).select(
        group=pl.lit(STEPS),
        track=_label(),
        ts="ts",
        dur="dur",
        name=pl.col("step").cast(pl.String),
        category=pl.lit("step"),
        rank="rank",
        busy_ns="busy_ns",
    )
    if idle.lost is None:
        return
    cause = pl.col("cause").cast(pl.String)
    length = pl.col("end") - pl.col("start")
    rank = length.rank("ordinal", descending=True).over("rank", "path", "device", "pid")
    longest = idle.lost.filter(rank <= _MOST_IDLE)
    yield _placed(longest, axis).select(
        group=pl.lit(IDLE),
        track=_label(),
        ts="ts",
        dur="dur",
        name=cause.replace_strict(_HEADINGS, default=cause, return_dtype=pl.String),
        category=pl.lit("lost time"),
        rank="rank",
        device="device",
    )


def _waits(compared: CommOutliers, axis: pl.DataFrame) -> pl.DataFrame:
    of_collective = compared.collectives.select("instance", "arrival_delay_ns", "transfer_ns")
    rows = with_peers(compared).with_columns(start="ts", end=pl.col("ts") + pl.col("wait_ns"))
    placed = _placed(rows.drop("ts"), axis).join(of_collective, on="instance", how="left")
    return placed.select(
        group=pl.lit(WAITS), track=_label(), ts="ts", dur="dur",
        name=pl.format("waiting for rank {}", "peer"), category=pl.lit("wait"), rank="rank",
        straggler="peer", collective="collective", message_bytes="message_bytes",
        step=pl.col("step").cast(pl.String), arrival_delay_ns="arrival_delay_ns",
        transfer_ns="transfer_ns",
    )  # fmt: skip


def _critical_path(replay: Replay, axis: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("end") - pl.col("start")
    longest = replay.longest_path().filter(
        length.rank("ordinal", descending=True) <= _MOST_IDLE, length > 0
    )
    name = pl.coalesce("name", "kind")
    return _placed(longest, axis).select(
        group=pl.lit(CRITICAL_PATH),
        # arrows lead along the path, from track to track
        track=pl.concat_str(_label(), pl.when(pl.col("device").is_null()).then(pl.lit(" host")),
                            ignore_nulls=True),
        ts="ts",
        dur="dur",
        name=pl.when(pl.col("kind") == critical_path.KERNELS).then(name)
        .otherwise(pl.concat_str(pl.col("kind"), pl.format(": {}", "name"), ignore_nulls=True)),
        category=pl.lit("critical path"),
        rank="rank",
        waiting_for="kind",
    )  # fmt: skip


def no_path(examined: Examination) -> Iterator[str]:
    """Say why there is no critical path, if there is none."""
    if why := examined.missing.get(REPLAY):
        yield f"No critical path: {why}."


def _of_finding(number: int, finding: Finding, axis: pl.DataFrame) -> Iterator[pl.DataFrame]:
    yield _finding(number, f"{number}. {finding.id}", finding, axis)
    for effect in finding.effects:
        yield _finding(number, f"{number}. {finding.id}, effect: {effect.id}", effect, axis)


def _finding(number: int, track: str, finding: Finding, axis: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals of a finding; without any, the time of its rank or of all."""
    known = {
        "severity": finding.severity,
        "confidence": finding.confidence,
        "rank": finding.rank,
        "device": finding.device,
        "step": finding.step,
        "cost_ns": finding.cost_ns,
        "cost_bytes": finding.cost_bytes,
        "cost_frac": finding.cost_frac,
        "cost_of": finding.of or None,
        "evidence": " ".join(finding.evidence) or None,
        "advice": finding.advice or None,
    }
    types: dict[str, type[pl.DataType]] = {
        **dict.fromkeys(("rank", "device"), pl.Int32),
        **dict.fromkeys(("cost_ns", "cost_bytes"), pl.Int64),
        "cost_frac": pl.Float64,
    }
    about = {name: pl.lit(value, types.get(name, pl.String)) for name, value in known.items()}
    rows = _intervals(finding, axis)
    at = pl.col("rank").eq_missing(finding.rank)
    longest = rows.with_columns(at=at).sort(
        "at", pl.col("end") - pl.col("start"), descending=True, maintain_order=True
    )
    return longest.head(_MOST).select(
        group=pl.lit(FINDINGS), track=pl.lit(track), ts=pl.col("start") + pl.col("shift"),
        dur=pl.col("end") - pl.col("start"), name=pl.lit(finding.title),
        category=pl.lit("finding"), finding=pl.lit(number, pl.UInt32), place=_label(), **about,
    )  # fmt: skip


def _intervals(finding: Finding, axis: pl.DataFrame) -> pl.DataFrame:
    """Return rank, device, short, shift, start and end of a finding, on the clock of the file."""
    device = pl.lit(finding.device, pl.Int32).alias("device")
    whole = axis.with_columns(device, start="begin", end="until")
    if finding.rank is not None:
        whole = whole.filter(pl.col("rank") == finding.rank)
    rows = finding.intervals
    if rows is None or rows.is_empty():
        return whole
    named = rows.select("rank", "device", start="start_ns", end="end_ns").with_row_index("row")
    joined = named.join(axis, on="rank", nulls_equal=True, maintain_order="left")
    # of several recordings of a rank, the one with this time on its clock
    recorded = pl.col("begin"), pl.col("until")
    inside = overlaps(pl.col("start"), pl.col("end"), [recorded])
    return joined.filter(inside).unique("row", keep="first", maintain_order=True)
