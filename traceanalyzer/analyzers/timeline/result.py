"""What each device does over time: its states, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import polars as pl

from traceanalyzer.analyzers import critical_path as longest
from traceanalyzer.analyzers.common.columns import largest_first, left_join, ratio
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.common.step_marks import INFERRED_STEPS
from traceanalyzer.analyzers.timeline import Order
from traceanalyzer.analyzers.timeline.states import MOST, NAMES, STATE, coarser
from traceanalyzer.drawings import ON_PATH, Lanes
from traceanalyzer.result import Finding, Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

#: Order of the rows of lanes.
_ORDERS: dict[Order, tuple[list[str], list[bool]]] = {
    "rank": (["lane"], [False]),
    "host": (["host", "lane"], [False, False]),
    "cost": (["lost_frac", "lane"], [True, False]),
}
#: Smaller shares are not in the verdict; fewer lanes are not compared.
_SMALL, _SEVERAL = 0.005, 2
#: Most marks of a finding.
_MARKS = 3
_MARK = {
    "lane": pl.UInt32,
    "start": pl.Int64,
    "end": pl.Int64,
    "number": pl.UInt32,
    "label": pl.String,
}
_PATH = {
    "lane": pl.UInt32,
    "start": pl.Int64,
    "end": pl.Int64,
    "rank": pl.Int32,
    "kind": pl.String,
    "name": pl.String,
}
#: The state that a part of the critical path is drawn as.
_STATE_OF = {
    longest.KERNELS: "compute", longest.OPERATORS: "compute",
    longest.COPIES: "copies", longest.TRANSFERS: "transfer",
    longest.GAPS: "idle", longest.LAUNCHES: "launch", longest.LOADING: "dataloading",
    longest.CODE: "host", longest.SYNCHRONISATION: "synchronisation", longest.BEFORE: "idle",
}  # fmt: skip
#: Names of states of main threads, as in a diagnosis.
_OF_THREADS = {
    "compute": "busy", "transfer": "idle: in collectives", "host": "code outside operators",
    "waiting": "idle: waiting for another rank",
}  # fmt: skip
_NO_CLOCK = (
    "The ranks have no common clock (no absolute times, or recordings of different times): each "
    "begins at 0, so positions must not be compared across ranks."
)
_NOT_MATCHED = (
    "Exposed communication includes waiting for other ranks: the collectives of other ranks are "
    "not in these files."
)
_ON_PATH = (
    "Critical path: what the run waits for at each moment; traceanalyzer critical-path adds it up."
)
_ON_HOST = "No device work was recorded: rows show the main thread, busy in operators."


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Result):
    """What each device does at each moment.

    Times are in ns from the first moment of all ranks, or of each rank if they share no clock.

    Attributes:
        order: the option.
        lanes: one row per device: lane (its number), on (label), rank, path, device, host, start,
            end, ``lost_ns`` (copies and idle time, without waiting for other ranks).
        states: partition of the time of each lane: lane, start, end, state (one of
            :data:`~.states.NAMES`), cause (of idle time), peer (the rank waited for), sorted.
        events: kernels, copies and memsets: lane, stream, start, end, name, work_kind (``compute``,
            ``communication``, ``memory``), bytes (message, or copied), operator, collective, count.
        steps: lane, step, start, end.
        gaps: the longest idle gaps: lane, start, end, before, after, host (the host's activity).
        one_clock: the ranks share an axis.
        matched: collectives were matched across ranks, so that waiting is known.
        on_host: no device work was recorded; lanes are main threads.
        steps_by_kernels: steps are not marked but detected.
        merged_ns: shorter states or events are merged if they follow each other; 0: none.
        places: lane and shift (axis less clock of the file) of each rank, path and device.
        marks: findings to highlight: lane, start, end, number (of the finding), label.
        path: the critical path: lane (of the device, or the first one of the rank), start, end,
            rank, kind (what the run waits for), name.
        no_path: why there is none.
    """

    order: Order
    lanes: pl.DataFrame
    states: pl.DataFrame
    events: pl.DataFrame
    steps: pl.DataFrame
    gaps: pl.DataFrame
    one_clock: bool
    matched: bool
    on_host: bool
    steps_by_kernels: bool
    merged_ns: int
    places: pl.DataFrame
    marks: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_MARK))
    path: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_PATH))
    no_path: str = ""

    @property
    def span_ns(self) -> int:
        """Time from the first start of a lane to the last end."""
        begin, end = self.lanes["start"].min(), self.lanes["end"].max()
        return end - begin if isinstance(begin, int) and isinstance(end, int) else 0

    @cached_property
    def shares(self) -> pl.DataFrame:
        """The lanes, in order, with span_ns, lost_frac and a column per state (``compute_ns``)."""
        time = pl.col("end") - pl.col("start")
        of_state = {f"{state}_ns": time.filter(pl.col("state") == state).sum() for state in NAMES}
        sums = self.states.group_by("lane").agg(**of_state)
        rows = self.lanes.join(sums, on="lane", how="left", maintain_order="left")
        whole = rows.with_columns(span_ns=pl.sum_horizontal(f"{state}_ns" for state in NAMES))
        ordered = whole.with_columns(lost_frac=ratio("lost_ns", "span_ns"))
        columns, descending = _ORDERS[self.order]
        return ordered.sort(columns, descending=descending, nulls_last=True)

    def with_path(self, path: pl.DataFrame | None, why: str = "") -> Timeline:
        """Return the timeline with the critical path.

        Args:
            path: rank, path, device, kind, name, start and end on the clock of the file, in order.
            why: why it is not known.
        """
        if path is None:
            return replace(self, no_path=why)
        keys = ["rank", "path"]
        first = self.places.sort("lane").unique(keys, keep="first", maintain_order=True)
        rows = path.join(first.drop("device"), on=keys, nulls_equal=True, maintain_order="left")
        rows = left_join(rows, self.places.select(*keys, "device", of="lane"), [*keys, "device"])
        begin, end = (pl.col(name) + pl.col("shift") for name in ("start", "end"))
        placed = rows.with_columns(pl.coalesce("of", "lane").alias("lane"), start=begin, end=end)
        # clocks of ranks differ by little
        begun = pl.max_horizontal("start", pl.col("end").cum_max().shift(1))
        placed = placed.with_columns(start=begun).filter(pl.col("end") > pl.col("start"))
        return replace(self, path=placed.select(pl.col(n).cast(t) for n, t in _PATH.items()))

    def with_findings(self, findings: Sequence[Finding]) -> Timeline:
        """Return the timeline with marks at the longest intervals of each finding.

        Findings are numbered from 1; intervals on the rank of a finding come first. Intervals of a
        device that several files recorded have no mark: their clock is not known.
        """
        known = self.places.unique(["rank", "device"], keep="none")
        marks = [self.marks]
        for number, finding in enumerate(findings, 1):
            if finding.intervals is None:
                continue
            placed = finding.intervals.join(known, on=["rank", "device"], nulls_equal=True)
            marks.append(self._longest(placed, finding, number))
        return replace(self, marks=pl.concat(marks))

    def _longest(self, intervals: pl.DataFrame, finding: Finding, number: int) -> pl.DataFrame:
        """Return the longest intervals of a finding as marks.

        Those on its rank come first. Without a rank, those in which the device does not wait for
        another rank do; others wait for that rank.
        """
        placed = intervals.select(
            "lane",
            start=pl.col("start_ns") + pl.col("shift"),
            end=pl.col("end_ns") + pl.col("shift"),
            at_cause=pl.col("rank").eq_missing(finding.rank),
        ).with_columns(middle=(pl.col("start") + pl.col("end")) // 2)
        states = self.states.select("lane", "state", since="start").sort("since")
        known = placed.sort("middle").join_asof(
            states, left_on="middle", right_on="since", by="lane", check_sortedness=False
        )
        longest = known.sort(
            "at_cause",
            (pl.col("state") != "waiting") | (finding.rank is not None),
            pl.col("end") - pl.col("start"),
            "lane",
            "start",
            descending=[True, True, True, False, False],
        )
        return longest.head(_MARKS).select(
            "lane", "start", "end", number=pl.lit(number, pl.UInt32), label=pl.lit(finding.title)
        )

    def view(self) -> View:
        """Return the drawing, and the time of each device by state."""
        totals = self.totals()
        return View(
            title=f"What does each {self._device} do at each moment?",
            verdict=self._verdict(totals),
            notes=tuple(self._notes()),
            tables=(self._table(),),
            scalars={
                "span_ns": self.span_ns,
                "one_clock": self.one_clock,
                **{f"{state}_ns": ns for state, ns in totals.items()},
            },
            timelines=lambda: (self.drawing(),),
        )

    @property
    def _device(self) -> str:
        return "main thread" if self.on_host else "GPU"

    def totals(self) -> dict[str, int]:
        """Return the time of each state, summed over all lanes."""
        return {state: int(self.shares[f"{state}_ns"].sum()) for state in NAMES}

    def drawing(self) -> Lanes:
        """Return the lanes to draw, in order."""
        lanes, states, events = self._drawn()
        return Lanes(
            name="timeline",
            title="Timeline",
            lanes=lanes,
            states=states,
            names={name: self._name(name) for name in STATE.categories},
            events=events,
            steps=self.steps,
            gaps=self.gaps,
            marks=self.marks,
            path=self.path,
            merged_ns=self.merged_ns,
        )

    def _drawn(self) -> tuple[pl.DataFrame, ...]:
        """Return lanes, states and events with a row for the critical path."""
        shares = self.shares.select("lane", "on", "host", "start", "end", "lost_frac")
        if self.path.is_empty():
            return shares, self.states, self.events
        lane = pl.lit(self.lanes.height, pl.UInt32).alias("lane")
        of = pl.format("rank {}: {}", "rank", "kind") if self.lanes.height > 1 else pl.col("kind")
        drawn = self.path.select(
            lane, "start", "end", "name", collective=of, work_kind=pl.lit("compute"),
            state=pl.col("kind").replace_strict(_STATE_OF, default="host", return_dtype=STATE),
            count=pl.lit(1, pl.UInt32),
        )  # fmt: skip
        drawn = coarser(drawn, MOST, ["lane"], "state")[0]
        bounds = drawn.select(
            lane=lane.first(), start=pl.col("start").min(), end=pl.col("end").max()
        )
        added = []
        for table, rows in ((shares, bounds.with_columns(on=pl.lit(ON_PATH))),
                            (self.states, drawn), (self.events, drawn)):  # fmt: skip
            known = rows.select(
                pl.col(name).cast(kind) for name, kind in table.schema.items() if name in rows
            )
            added.append(pl.concat([table, known], how="diagonal"))
        return tuple(added)

    def _name(self, state: str) -> str:
        if self.on_host and state in _OF_THREADS:
            return _OF_THREADS[state]
        return "transfer (exposed)" if state == "transfer" and self.matched else NAMES[state]

    @property
    def _lost(self) -> str:
        return "outside operators" if self.on_host else "idle or copying"

    def _verdict(self, totals: dict[str, int]) -> str:
        whole = sum(totals.values())
        large = [(ns, self._name(state)) for state, ns in totals.items() if ns > _SMALL * whole]
        shares = [f"{name} {format_frac(ns / whole)}" for ns, name in sorted(large, reverse=True)]
        count = format_count(self.lanes.height, self._device)
        text = f"{count}, {format_ns(self.span_ns)}: {', '.join(shares)}."
        return f"{text} {self._worst()}".rstrip()

    def _worst(self) -> str:
        """Return the lanes with the most and the least lost time, or else wait time."""
        shares = self.shares.drop_nulls("lost_frac")
        if shares.height < _SEVERAL:
            return ""
        shares = shares.with_columns(wait_frac=ratio("waiting_ns", "span_ns"))
        extremes = []
        idle = self._lost.capitalize()
        for what, name in ((idle, "lost_frac"), ("Waiting for others", "wait_frac")):
            ranked = largest_first(shares, name, "lane").select("on", name)
            (worst, most), (best, least) = ranked.row(0), ranked.row(-1)
            text = f"{what} most: {worst} ({format_frac(most)}), "
            extremes.append((most - least, f"{text}least: {best} ({format_frac(least)})."))
        lost, waits = extremes  # waits are the effect of what another rank loses
        difference, text = lost if 2 * lost[0] >= waits[0] else waits
        return text if difference >= _SMALL else ""

    def _table(self) -> Table:
        least = _SMALL * sum(self.totals().values())
        named = [f"{state}_ns" for state, ns in self.totals().items() if ns > least]
        labels = {name: self._name(name.removesuffix("_ns")) for name in named}
        frame = self.shares.rename({"start": "start_ns", "end": "end_ns"})
        by_size = sorted(named, key=lambda name: self.totals()[name.removesuffix("_ns")])
        return Table(
            "devices",
            "Time of each device by state" if not self.on_host else "Time of each main thread",
            frame,
            {**headings(f"on: device, span_ns: span, lost_frac: {self._lost}"), **labels},
            alike=(tuple(named),),
            hide_first=("span_ns", *by_size),
        )

    def _notes(self) -> Iterator[str]:
        if self.on_host:
            yield _ON_HOST
        if not self.one_clock and self.lanes.height > 1:
            yield _NO_CLOCK
        if self.shares["transfer_ns"].sum() and not self.matched:
            yield _NOT_MATCHED
        if self.path.height:
            yield _ON_PATH
        elif self.no_path:
            yield f"No critical path: {self.no_path}."
        if self.merged_ns:
            yield f"States and events shorter than {format_ns(self.merged_ns)} are merged."
        if self.steps_by_kernels:
            yield INFERRED_STEPS
