"""Result of the hang analysis: data, verdict, notes, tables and charts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import polars as pl

from traceanalyzer.analyzers.common.display import headings, sentences, table_of_known
from traceanalyzer.analyzers.hang import texts
from traceanalyzer.analyzers.hang.matching import Groups, Matched
from traceanalyzer.analyzers.hang.waiting import Stall, Stuck
from traceanalyzer.analyzers.printed.result import Printed, Problem
from traceanalyzer.drawings import Chart
from traceanalyzer.errors import OptionError
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import NS_PER_MS, format_count, format_first, format_ns, format_ranges

#: A rank this much later than the median is reported in a run without a hang.
LATE_NS = 100 * NS_PER_MS
#: Ranks, collectives and groups of the drawing.
_LANES, _BEFORE, _AFTER, _PANELS = 32, 24, 4, 4
#: Most processes of unknown ranks in a sentence.
_WHO = 4
_NOT_IN_LOG = "The log names no failure that ended the job, and no stack."
#: Causes in the verdict after the first.
_MORE_CAUSES = 2

_STATUS = pl.Enum(
    (
        "completed", "ended", "started", "scheduled", "different call", "never entered", "no dump",
        "no record",
    )
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Hang(Result):
    """Why a distributed job hangs.

    Attributes:
        dumps: one row per rank with a dump: path, rank, backend, entries, has_frames, overwritten
            (whether its oldest records are lost), truncated (its newest are), last_ns.
        repeated: path, rank of dumps of ranks that have another one.
        groups: the process groups.
        records: the records of all ranks.
        matched: the collectives, aligned by sequence number.
        stuck: operations that do not complete or differ, and the causes.
        threads: path, process, rank, tid, thread, state, place, frames: stacks of py-spy or
            faulthandler.
        log: what the logs of the job say, or None without logs.
        rank: the only rank in the tables of ranks and stacks, or None for all.
    """

    dumps: pl.DataFrame
    repeated: pl.DataFrame
    groups: Groups
    records: pl.DataFrame
    matched: Matched
    stuck: Stall
    threads: pl.DataFrame
    log: Printed | None = None
    rank: int | None = None

    def view(self) -> View:
        """Return the verdict, the ranks, stuck operations, differences, chain and collectives."""
        return View(
            title="Why does the job hang?",
            verdict=self._verdict(),
            notes=tuple(self._notes()),
            tables=tuple(self._tables()),
            scalars={
                "cause": self.cause,
                "culprit_ranks": list(self.culprits),
                "waiting_ranks": list(self.waiting),
                "missing_dumps": list(self.missing_dumps),
                "advice": self.advice,
            },
            charts=self._charts,
        )

    def of_rank(self, rank: int | None) -> Self:
        """Return the result with only this rank in the tables of ranks and stacks.

        Raises:
            OptionError: the rank is unknown.
        """
        of_stacks = self.threads["rank"].drop_nulls().to_list()
        known = sorted({*self.dumps["rank"].to_list(), *self.missing_dumps, *of_stacks})
        if rank is not None and rank not in known:
            raise OptionError(f"no input is of rank {rank}; there are ranks {format_ranges(known)}")
        return replace(self, rank=rank)

    # --- the answer ----------------------------------------------------------------------------

    @property
    def cause(self) -> str:
        """Return the first cause: of :class:`Stuck`, ``deadlock``, ``none``, or ``unknown``.

        It is unknown if no operation is pending, but the last ones of a truncated dump are lost, or
        collectives lack the numbers by which they are aligned. Without dumps, it is ``outside
        collectives`` if the stacks of some ranks are in a collective and those of others are not.
        """
        if self._in_log:
            return self._in_log[0].kind
        if self.dumps.is_empty():
            return "outside collectives" if self._outside else "unknown"
        if self.stuck.is_deadlock:
            return "deadlock"
        if self.stuck.causes:
            return self.stuck.causes[0].cause
        return "unknown" if self._truncated or self._unnumbered else "none"

    @property
    def _in_log(self) -> tuple[Problem, ...]:
        """The failures that logs of the job name, if there is nothing else."""
        is_only = self.log and self.dumps.is_empty() and self.threads.is_empty()
        problems = self.log.problems if self.log and is_only else ()
        return tuple(one for one in problems if one.size >= 1)

    @property
    def _truncated(self) -> list[int]:
        """The ranks with a truncated dump."""
        return sorted(self.dumps.filter("truncated")["rank"].to_list())

    @property
    def culprits(self) -> tuple[int, ...]:
        """Return the ranks at the end of all waiting: missing, differing, or in a deadlock."""
        if self._in_log:
            return self._in_log[0].ranks
        if self.dumps.is_empty():
            ranks = self._stacks.filter(pl.col("call").is_null())["rank"].drop_nulls()
            return tuple(ranks.sort()) if self.waiting else ()
        if self.stuck.is_deadlock:
            odd = texts.odd_one(self.stuck.cycle)
            return odd.missing if odd else tuple(sorted({*texts.in_cycle(self.stuck.cycle)}))
        if not self.stuck.causes:
            return ()
        first = self.stuck.causes[0]
        if first.calls:
            return first.differing
        of_gpu = {"not started": first.scheduled, "partly completed": first.incomplete}
        return of_gpu.get(first.cause, first.free)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Return the ranks that wait in any operation."""
        if self.dumps.is_empty():
            waits = self._stacks.filter(pl.col("call").is_not_null())
            return tuple(waits["rank"].drop_nulls().sort())
        return tuple(sorted({rank for one in self.stuck.stuck for rank in one.waiting}))

    @property
    def missing_dumps(self) -> tuple[int, ...]:
        """Return the ranks of known groups without a dump."""
        missing = self.groups.members.join(self.dumps, on="rank", how="anti")["rank"]
        return tuple(missing.unique().sort())

    @cached_property
    def last_of_rank(self) -> dict[int, dict[str, Any]]:
        """Return the last completed record of each rank, and its first incomplete one.

        Keys ``last_op``, ``last_seq``, ``last_place``, ``op``, ``seq``, ``place``, ``group``,
        ``state``, ``waited_ns``; null where there is none.
        """
        return {row["rank"]: row for row in self._positions().iter_rows(named=True)}

    def _positions(self) -> pl.DataFrame:
        done = pl.col("state") == "completed"
        rows = self.records.filter(pl.col("op") != "coalesced")
        names = ("op", "seq", "place", "group", "is_p2p")
        last = rows.filter(done).group_by("rank").agg(pl.col(names).last().name.prefix("last_"))
        now = self.records.filter(~done).group_by("rank").agg(
            pl.col(*names, "created_ns", "timeout_ns", "state").first(),
            is_exact=pl.col("timed_out").first(),
        )  # fmt: skip
        both = self.dumps.select("rank").join(last, on="rank", how="left")
        return both.join(now, on="rank", how="left").sort("rank")

    def _verdict(self) -> str:
        stuck, label = self.stuck, self.groups.label
        if self.dumps.is_empty() and self.threads.is_empty():
            each = [one.title for one in self._in_log[: _MORE_CAUSES + 1]] or [_NOT_IN_LOG]
            return sentences(*each, f"Try: {self.advice}.")
        if self.dumps.is_empty():
            return self._where_stacks_are()
        if not stuck.causes and not stuck.cycle:
            return self._unknown() if self._truncated or self._unnumbered else self._no_hang()
        chosen = _distinct(stuck.causes)
        ordered: list[str] = [
            texts.cause_sentence(one, label, self._place, self._last)
            for one in chosen[: _MORE_CAUSES + 1]
        ]
        if stuck.cycle:
            deadlock = sentences(
                texts.deadlock_sentence(stuck.cycle, label, self._place),
                texts.odd_sentence(texts.odd_one(stuck.cycle), label, self._place),
                *self._too_few(),
            )
            ordered.insert(0 if stuck.is_deadlock else 1, deadlock)
        main, *others = ordered
        chain = texts.chain_sentence(stuck.chain, label)
        also = [f"Also: {text}" for text in others]
        more = len(chosen) - _MORE_CAUSES - 1
        rest = f"{more:,} more in the table of operations." if more > 0 else ""
        return sentences(main, chain, *also, rest, f"Try: {self.advice}.")

    @cached_property
    def _stacks(self) -> pl.DataFrame:
        """The main threads, with the collective that they called (null: none) and who they are."""
        # several processes of a rank are it and what it started, those of no rank count alone
        process = pl.when(pl.col("rank").is_null()).then("process")
        rows = self.threads.filter(pl.col("thread") == "MainThread")
        helps = rows["frames"].str.contains(_HELPERS).fill_null(value=False)
        rows = rows if helps.all() else rows.filter(~helps)
        rows = rows.unique(["path", "rank", process], keep="first", maintain_order=True)
        file = pl.col("path").str.extract("([^/]*)$")
        alone = pl.when(pl.col("process").n_unique().over("path") > 1).then("process")
        return rows.with_columns(
            call=pl.col("frames").str.extract_all(_COLLECTIVE).list.last().str.extract(r"^(\S+)"),
            who=pl.coalesce(pl.format("rank {}", "rank"), alone, file),
        ).sort("rank", "path", maintain_order=True)

    @property
    def _outside(self) -> str:
        """Who is in no collective while others are, without dumps; empty if all or none are."""
        outside = self._stacks.filter(pl.col("call").is_null())
        if outside.height in (0, self._stacks.height):
            return ""
        if self.culprits:
            return texts.rank_list(self.culprits)
        return format_first(outside["who"].to_list(), _WHO)

    @property
    def _of_stacks(self) -> str:
        """The key of the advice for stacks alone: of a job, of one process, or of one repeated."""
        stacks, processes = self._stacks, self._stacks["process"].unique()
        of_one = processes.len() == 1 and not processes.null_count()
        if stacks["rank"].count() or stacks["call"].count() or (stacks.height > 1 and not of_one):
            return "only stacks"
        repeated = "same line" if stacks["place"].n_unique() == 1 else "other lines"
        return "one process" if stacks.height == 1 else repeated

    def _where_stacks_are(self) -> str:
        """Say what the main threads do, those outside collectives first."""
        rows = self._stacks.group_by("call", "place", maintain_order=True).agg("rank", "who")
        parts = []
        calls = (
            pl.col("call"),
            pl.when(pl.col("call").is_null().all()).then(-pl.col("who").list.len().cast(pl.Int64)),
        )
        for call, place, ranks, who in rows.sort(*calls, "place", nulls_last=False).iter_rows():
            names = format_first(who, _WHO) if None in ranks else texts.rank_list(ranks)
            subject = re.sub("^(?:rank|process)", lambda word: word[0].capitalize(), names)
            begin = f"{subject} {'is' if len(who) == 1 else 'are'} in"
            parts.append(f"{begin} {call}, called at {place}." if call else f"{begin} {place}.")
        many = len(parts) - _LANES
        rest = f"Of {many:,} more places see the table." if many > 0 else ""
        return sentences(*parts[:_LANES], rest, f"Try: {self.advice}.")

    @property
    def advice(self) -> str:
        """What to try about the first cause; for a missing rank the code where it went wrong."""
        if self._in_log:
            return self._in_log[0].advice
        if self.dumps.is_empty() and self.threads.is_empty():
            return texts.ADVICE["only log"]
        if self.dumps.is_empty():
            known = texts.ADVICE["stacks"].format(self._outside)
            return known if self._outside else texts.ADVICE[self._of_stacks]
        first = next(iter(self.stuck.causes), None)
        if self.stuck.is_deadlock and (odd := texts.odd_one(self.stuck.cycle)):
            rank = odd.missing[0]
            now = (self.last_of_rank.get(rank) or {}).get("place")
            left_out = self._place(odd, *odd.waiting) or f"{odd.op} #{odd.seq}"
            return texts.ADVICE["left out"].format(rank, now or "its current call", left_out)
        if first and first.calls and first.cause == "size mismatch" and not first.is_p2p:
            lines = [self._place(first, *ranks) for _, ranks in first.calls]
            if None not in lines and len({*lines}) > 1:
                return texts.ADVICE["different lines"].format(lines[-1])
        if first and first.n_calls:
            place = first.calls[-1 if first.cause == "extra call" else 0][0]
            return texts.ADVICE[first.cause].format(texts.rank_list(first.differing), place)
        if first and first.cause == "no dump" and self._few_dumps:
            return texts.ADVICE["few dumps"].format(texts.rank_list(self.missing_dumps))
        if self.stuck.is_deadlock or first is None or first.cause != "missing rank":
            return texts.advice(self.stuck)
        for rank in [rank for rank in first.missing if rank in first.free][:1]:
            row = self.last_of_rank.get(rank) or {}
            others = self._place(first, *first.waiting, *first.ended)
            now, lock = self._now().get(rank), self._waits_for_build(rank)
            if text := texts.between(rank, row.get("last_place"), others, now, lock=lock):
                return text
        return texts.advice(self.stuck)

    def _too_few(self) -> Iterator[str]:
        """Yield how many sends or receives were made, if a rank of the deadlock waits for more."""
        for one in () if self.dumps["overwritten"].any() else self.stuck.cycle:
            if not one.is_p2p or not one.missing:
                continue
            peer, rank = one.missing[0], one.waiting[0]
            end, other = ("src", "sends to") if one.op == "recv" else ("dst", "receives from")
            calls = self.records.filter(op=one.op, rank=rank, group=one.group)
            waits = calls.filter(pl.col("state") != "completed").head(1).select(end)
            if done := calls.filter(state="completed").join(waits, on=end, how="semi").height:
                yield (
                    f"Rank {peer} made {done:,} {other} rank {rank}, which waits in {one.op} "
                    f"{done + 1:,}: one side has fewer micro-batches, or left out a call."
                )

    def _no_hang(self) -> str:
        instances, dumps = self.matched.instances, self.dumps
        known = sorted(dumps["rank"].to_list())
        if instances.is_empty():
            return f"No hang in these dumps: no collective is recorded on {texts.rank_list(known)}."
        completed = self.matched.calls["rank"].unique().sort().to_list()
        count = format_count(instances.height, "collective")
        groups = format_count(instances["group"].n_unique(), "group")
        where = " in these dumps" if self.missing_dumps else ""
        is_gloo = bool((dumps["backend"] == "gloo").any())
        if is_gloo:
            where = f" among collectives{where}"
        text = f"No hang{where}: all {count} of {groups} completed on {texts.rank_list(completed)}."
        if is_gloo:
            text += " Sends and receives are not recorded by gloo."
        if others := [rank for rank in known if rank not in {*completed}]:
            text += f" No collective is recorded on {texts.rank_list(others)}."
        if self.missing_dumps:
            more = ": pass theirs too, other ranks may wait" * self._few_dumps
            text += f" No dump of {texts.rank_list(self.missing_dumps)}{more}."
        return sentences(text, self._late())

    @property
    def _few_dumps(self) -> bool:
        """Whether fewer dumps were given than are missing, such as one file of a folder."""
        return self.dumps.height < len(self.missing_dumps)

    @property
    def _unnumbered(self) -> int:
        """Number of collectives without a sequence number."""
        return self.records.filter(~pl.col("is_p2p"), pl.col("seq").is_null()).height

    def _unknown(self) -> str:
        """Say that operations are lost or cannot be aligned, and what the others show."""
        ranks = self._truncated
        if not ranks:
            return (
                f"Unknown: {format_count(self._unnumbered, 'collective')} cannot be aligned across "
                "ranks, because their sequence numbers (collective_seq_id) are missing or invalid. "
                "Try: pass other dumps of this job."
            )
        count = format_count(self.matched.instances.height, "collective")
        whole = [rank for rank in self.dumps["rank"].sort() if rank not in {*ranks}]
        others = f", and nothing is pending on {texts.rank_list(whole)}" if whole else ""
        missing = f"No dump of {texts.rank_list(self.missing_dumps)}." if self.missing_dumps else ""
        dumps = "dump is" if len(ranks) == 1 else "dumps are"
        return sentences(
            f"Unknown: of {texts.rank_list(ranks)} the {dumps} truncated, so the last operations "
            f"are lost. All {count} in the readable part completed{others}.",
            missing,
            "Try: pass complete dumps, for example of another run with more time between dump and "
            "abort (TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC).",
        )

    def _late(self) -> str:
        """Describe the collective that one rank reached much later than the others."""
        delay = pl.col("last_ns") - pl.col("median_ns")
        late = self.matched.instances.filter(pl.col("n_entered") > 2).with_columns(delay=delay)
        # creation of the first collectives includes the start of the processes
        late = late.filter(pl.col("delay") >= LATE_NS, pl.col("seq") > pl.col("seq").min())
        if late.is_empty():
            return ""
        row = late.sort("delay", descending=True).row(0, named=True)
        label = self.groups.label(row["group"])
        return (
            f"Rank {row['last_rank']} arrived last at {row['op']} #{row['seq']} of group {label}, "
            f"{format_ns(row['delay'])} after the median rank."
        )

    def _last(self, rank: int) -> str:
        """Return clauses about the last operation of a rank and its current line."""
        row = self.last_of_rank.get(rank)
        clauses = ""
        if row is not None and row["last_op"] is not None:
            number = "" if row["last_is_p2p"] else f" #{row['last_seq']}"
            at = f" at {row['last_place']}" if row["last_place"] else ""
            clauses = f"; rank {rank} last completed {row['last_op']}{number}{at}"
        elif row is not None:
            clauses = f"; rank {rank} completed nothing in its dump"
        now = self._now().get(rank)
        return (
            f"{clauses}{',' if clauses else f'; rank {rank} is'} now at {now}" if now else clauses
        )

    def _now(self) -> dict[int, str]:
        """Return the line of own code of each rank's main thread, from py-spy."""
        rows = self.threads.drop_nulls(["rank", "place"])
        is_main = pl.col("thread") == "MainThread"
        main = rows.sort(is_main.fill_null(value=False), descending=True, maintain_order=True)
        return dict(main.unique("rank", keep="first").select("rank", "place").iter_rows())

    def _waits_for_build(self, rank: int) -> bool:
        """Whether a rank waits until another process has built an extension."""
        frames = self.threads.filter(rank=rank)["frames"].str.starts_with("wait (file_baton.py:")
        return bool(frames.any())

    def _place(self, one: Stuck, *ranks: int) -> str | None:
        """Return the line that called an operation on these ranks, or several lines."""
        same = pl.col("rank").is_in(ranks) & (pl.col("group") == one.group)
        if one.is_p2p:
            same &= pl.col("order") == one.seq
        else:
            same &= (pl.col("seq") == one.seq) & ~pl.col("is_p2p")
        return texts.joined_places(self.records.filter(same)["place"].drop_nulls().to_list())

    # --- notes ---------------------------------------------------------------------------------

    def _notes(self) -> Iterator[str]:
        if self.log:
            others = (one for one in self.log.problems if one not in self._in_log)
            yield from (f"The log of the job: {one.title}" for one in others)
        if self.missing_dumps and self.stuck.stuck:
            yield f"No dump of {texts.rank_list(self.missing_dumps)}."
        if overwritten := self.dumps.filter("overwritten").height:
            yield (
                f"The ring buffers of {format_count(overwritten, 'rank')} have lost the oldest "
                "records: collectives are compared from the first that each rank still has."
            )
        if (self.dumps["backend"] == "gloo").any():
            yield (
                "gloo records neither states nor sends and receives: an operation counts as ended "
                "when it is no longer watched, after an error too."
            )
        if not self.dumps["has_frames"].all():
            yield "Some dumps have no stacks (JSON never does): the pickles have them."
        if self.repeated.height:
            count = format_count(self.repeated.height, "dump")
            yield f"{count} not used: another dump of the same rank has stacks, or is newer."
        unknown = self.groups.table.filter(~pl.col("is_known")).join(
            self.matched.instances, on="group", how="semi"
        )
        if unknown.height:
            names = ", ".join(unknown["label"].head(5))
            yield f"Ranks not recorded, those with records are taken: {names}."
        if (self.threads["rank"].is_null()).any():
            paths = self.threads.filter(pl.col("rank").is_null())["path"].unique().sort()
            yield f"Rank of the py-spy dump unknown: {', '.join(paths.head(5))}."
        if any(one.waited_ns and not one.is_exact for one in self.stuck.stuck):
            yield (
                "Waiting times without a timeout are at least the time from the call to the last "
                "event of all dumps, and assume that the clocks of the hosts agree."
            )

    # --- tables --------------------------------------------------------------------------------

    def _tables(self) -> Iterator[Table]:
        same = pl.lit(value=True) if self.rank is None else pl.col("rank") == self.rank
        for one in self.log.tables if self.log else ():
            if one.name in ("job_events", "engine"):
                yield replace(one, frame=one.frame.filter(same))
        if self.dumps.is_empty() and self.threads.is_empty():
            return
        if self.dumps.is_empty():
            yield table_of_known("threads", "Main threads", self._stacks.filter(same), _MAIN)
            return
        yield table_of_known("ranks", "Ranks", self._ranks(), _RANKS, hide_first=_LESS)
        yield table_of_known(
            "operations", "Stuck operations", self._operations(), _OPERATIONS,
            hide_first=_LESS_OF_OPERATIONS,
        )  # fmt: skip
        if (differences := self._differences()).height:
            yield table_of_known("differences", "Different calls", differences, _CALLS)
        every = self._collectives()
        yield table_of_known("collectives", "All collectives", every, _COLLECTIVES, detail=True)
        if (threads := self.threads.filter(same)).height:
            yield Table("threads", "Stacks of py-spy", threads, _THREADS, detail=True)

    def _ranks(self) -> pl.DataFrame:
        """Return one row per rank, the culprits first."""
        labels = self.groups.table.select("group", "label")
        rows = self._positions().join(self.dumps.select("rank", "path", "entries"), on="rank")
        no_dump = pl.DataFrame({"rank": self.missing_dumps}, schema={"rank": pl.Int32})
        rows = pl.concat([rows, no_dump], how="diagonal").join(
            labels, on="group", how="left", maintain_order="left"
        )
        number, last = (
            pl.when(~pl.col(f"{of}is_p2p")).then(pl.format("{} #{}", f"{of}op", f"{of}seq"))
            .otherwise(f"{of}op") for of in ("", "last_")
        )  # fmt: skip
        status = [self._status(rank) for rank in rows["rank"].to_list()]
        now = self._now()
        table = rows.with_columns(
            last=last,
            current=number,
            status=pl.Series(status, dtype=pl.String),
            now=pl.Series([now.get(rank) for rank in rows["rank"]], dtype=pl.String),
            waited_ns=pl.when("is_exact").then("timeout_ns"),
        )
        if self.rank is not None:
            table = table.filter(pl.col("rank") == self.rank)
        first = pl.col("rank").is_in(self.culprits)
        return table.select(
            "rank", "status", "current", group="label", state=pl.col("state").cast(pl.String),
            place="place", waited_ns="waited_ns", last="last", last_place="last_place", now="now",
            entries="entries", path="path",
        ).sort(first, "rank", descending=[True, False])  # fmt: skip

    def _status(self, rank: int) -> str:
        if rank in self.missing_dumps:
            return "no dump"
        if self.stuck.is_deadlock and rank in self.culprits:
            return "deadlock"
        for one in self.stuck.causes:
            if rank in one.differing:
                return "different call"
            if rank in one.missing and rank in one.free:
                return "never entered" if not one.is_p2p else "never called"
            if rank in one.truncated and rank in one.free:
                return "truncated dump"
            if rank in one.no_record and rank in one.free:
                return "no record"
        if rank in self.waiting:
            return "waiting"
        if rank in self._truncated:
            return "truncated dump"
        return "ended" if any(rank in s.ended for s in self.stuck.stuck) else "nothing pending"

    def _operations(self) -> pl.DataFrame:
        roots = {*self.stuck.causes, *self.stuck.cycle}
        rows = [
            (
                self._cause_of(one),
                one in roots,
                one.op,
                None if one.is_p2p else one.seq,
                self.groups.label(one.group),
                one.bytes,
                one.dtype,
                format_ranges(sorted(one.waiting)),
                format_ranges(sorted(one.missing)),
                format_ranges(sorted(one.no_dump)),
                format_ranges(sorted(one.no_record)),
                format_ranges(sorted((*one.completed, *one.ended))),
                one.waited_ns if one.is_exact else None,
                None if one.is_exact else one.waited_ns,
            )
            for one in self.stuck.stuck
        ]
        types = {
            "cause": pl.String, "is_root": pl.Boolean, "op": pl.String, "seq": pl.Int64,
            "group": pl.String, "size_bytes": pl.Int64, "dtype": pl.String, "waiting": pl.String,
            "missing": pl.String, "no_dump": pl.String, "no_record": pl.String,
            "completed": pl.String, "waited_ns": pl.Int64, "at_least_ns": pl.Int64,
        }  # fmt: skip
        frame = pl.DataFrame(rows, schema=types, orient="row")
        empty = [pl.col(name).replace("", None) for name in (*_RANK_TEXTS, "completed")]
        return frame.with_columns(empty).sort("is_root", descending=True, maintain_order=True)

    def _differences(self) -> pl.DataFrame:
        rows = [
            (
                one.op,
                None if one.is_p2p else one.seq,
                self.groups.label(one.group),
                "line" if one.n_calls else one.cause.removesuffix(" mismatch"),
                value,
                format_ranges(ranks),
                bool(one.differing) and bool({*ranks} & {*one.differing}),
                self._place(one, *ranks),
            )
            for one in self.stuck.stuck
            for value, ranks in one.calls
        ]
        types = {
            "op": pl.String, "seq": pl.Int64, "group": pl.String, "what": pl.String,
            "value": pl.String, "ranks": pl.String, "is_minority": pl.Boolean, "place": pl.String,
        }  # fmt: skip
        return pl.DataFrame(rows, schema=types, orient="row")

    def _collectives(self) -> pl.DataFrame:
        labels = self.groups.table.select("group", "label")
        rows = self.matched.instances.join(labels, on="group", maintain_order="left")
        table = rows.select(
            "seq", "op", "dtype", "n_entered", "n_completed", "n_missing", "n_no_dump",
            "n_no_record", "last_rank", group="label", part="part",
            verdict=pl.col("verdict").cast(pl.String),
            size_bytes="bytes", skew_ns=pl.col("last_ns") - pl.col("first_ns"), of="group",
        )  # fmt: skip
        table = table.join(self._causes(), on=["of", "seq", "part"], how="left")
        table = table.with_columns(verdict=pl.coalesce("cause", "verdict")).drop("of", "cause")
        return table.sort("group", "seq", "part", descending=[False, True, False])

    def _causes(self) -> pl.DataFrame:
        """Return the causes of stuck collectives as the table of operations has them."""
        rows = [
            (one.group, one.seq, one.part, self._cause_of(one))
            for one in self.stuck.stuck if not one.is_p2p
        ]  # fmt: skip
        types = {"of": pl.UInt32, "seq": pl.Int64, "part": pl.UInt32, "cause": pl.String}
        return pl.DataFrame(rows, schema=types, orient="row")

    def _cause_of(self, one: Stuck) -> str:
        return self.cause if self.stuck.is_deadlock and one in self.stuck.cycle else one.cause

    # --- drawing -------------------------------------------------------------------------------

    def _charts(self) -> tuple[Chart, ...]:
        """Draw the last collectives of each stuck group: one lane per rank of the group."""
        return tuple(
            Chart(
                f"lanes_{number}" if number else "lanes",
                f"Collectives by rank and sequence number: {frame['group'][0]}"
                + (f" (only {_LANES} ranks)" if frame["rank"].n_unique() == _LANES else ""),
                "span", frame, x="seq", x2="end", y="lane", x_label="sequence number in the group",
                y_label="rank", color="status", emphasis="is_stuck", emphasis_label="stuck",
            )
            for number, frame in enumerate(self._lanes())
        )  # fmt: skip

    def _lanes(self) -> list[pl.DataFrame]:
        chosen = [
            one for one in (*self.stuck.cycle, *self.stuck.chain, *_distinct(self.stuck.causes))
            if not one.is_p2p and one.seq is not None
        ]  # fmt: skip
        places = {one.group: one for one in reversed(chosen)}
        last = self.matched.instances.group_by("group").agg(pl.col("seq").max()).sort("group")
        groups = [one.group for one in chosen] or last["group"].to_list()
        end = dict(last.iter_rows())
        frames = []
        for group in list(dict.fromkeys(groups))[:_PANELS]:
            stuck = places.get(group)
            seq = end[group] if stuck is None or stuck.seq is None else stuck.seq
            frames.append(self._lanes_of(group, seq, stuck))
        return [frame for frame in frames if frame.height]

    def _lanes_of(self, group: int, seq: int, stuck: Stuck | None) -> pl.DataFrame:
        members = self.groups.table["ranks"][group].to_list()
        named = () if stuck is None else (*stuck.differing, *stuck.blockers)
        ranks = sorted([*dict.fromkeys([*named, *members])][:_LANES])
        calls = self.matched.calls.filter(
            pl.col("group") == group,
            pl.col("seq").is_between(seq - _BEFORE, seq + _AFTER),
            pl.col("rank").is_in(ranks),
        ).unique(["rank", "seq"], keep="last", maintain_order=True)
        differs = pl.col("rank").is_in(() if stuck is None else stuck.differing) & (
            pl.col("seq") == seq
        )
        ended = pl.when("ended").then(pl.lit("ended")).otherwise(pl.col("state").cast(pl.String))
        status = pl.when(differs).then(pl.lit("different call")).otherwise(ended)
        rows = calls.select("rank", "seq", status=status)
        if stuck is not None:
            absent = {"never entered": stuck.missing, "no dump": stuck.no_dump,
                      "no record": stuck.no_record}  # fmt: skip
            more = [(r, seq, why) for why, of in absent.items() for r in of if r in ranks]
            rows = pl.concat([rows, pl.DataFrame(more, schema=rows.schema, orient="row")])
        is_stuck = (pl.col("seq") == seq) & (pl.col("status") != "completed") & (stuck is not None)
        return rows.sort("rank", "seq").select(
            "rank", "seq", status=pl.col("status").cast(_STATUS), end=pl.col("seq") + 0.9,
            lane=pl.format("rank {}", "rank"), is_stuck=is_stuck,
            group=pl.lit(f"{self.groups.label(group)}, #{seq}"),
        )  # fmt: skip


def _distinct(causes: tuple[Stuck, ...]) -> list[Stuck]:
    """Return the causes that name further ranks, or all if the first names none.

    An operation that all ranks entered is a weak cause if a rank is missing elsewhere.
    """
    named: set[int] = set()
    chosen = []
    for one in causes:
        ranks = {*one.free, *(rank for _, ranks in one.calls for rank in ranks)}
        if (not causes[0].free and not causes[0].calls) or ranks - named:
            chosen.append(one)
            named |= ranks
    return chosen


_RANK_TEXTS = ("waiting", "missing", "no_dump", "no_record")
_RANKS = headings(
    "rank, status, current: current operation, group, place: called at, waited_ns: waited, "
    "last: last completed, last_place: last called at, now: now (py-spy), entries, path: file"
)
#: Columns that a narrow terminal hides first.
_LESS = ("path", "entries", "last_place", "state", "waited_ns", "group", "last", "place", "current")
_OPERATIONS = headings(
    "cause, op: operation, seq, group, size_bytes: size, dtype, waiting: waiting ranks, "
    "missing: missing ranks, no_dump: without dump, no_record: without record, "
    "completed: completed or ended, waited_ns: waited, at_least_ns: waited at least"
)
_LESS_OF_OPERATIONS = ("at_least_ns", "completed", "dtype", "size_bytes", "waited_ns", "group")
_CALLS = headings("op: operation, seq, group, what, value, ranks, place: called at")
_COLLECTIVES = headings(
    "group, seq, op: operation, verdict, size_bytes: size, dtype, n_entered: entered, "
    "n_completed: completed, n_missing: missing, last_rank: last rank, skew_ns: arrival skew"
)
_THREADS = headings("rank, thread, state, place: line, frames: stack")
_MAIN = headings("who: process, call: collective, place: line, state")
#: Frames of processes that help the ranks: torchrun, workers of loaders, resource tracker.
_HELPERS = (
    r"(?m)^(?:_invoke_run \(api|_worker_loop \(worker|main \((?:resource_tracker|forkserver))\.py"
)
#: Frames of functions that call a collective.
_COLLECTIVE = r"(?m)^\S+ \(_?(?:distributed_c10d|functional_collectives)\.py"
