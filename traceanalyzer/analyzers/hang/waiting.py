"""What waits for what: stuck operations, chains across groups, and the causes at their ends."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from traceanalyzer.analyzers.hang.matching import KEY, MISMATCHES, Groups, Matched, shift
from traceanalyzer.units import NS_PER_S

#: Most stuck sends and receives that are followed.
_MOST_TRANSFERS = 20_000

#: A few ranks make calls that the others do not, or leave some out.
SHIFTS = ("extra call", "left out call")


@dataclass(frozen=True)
class Stuck:
    """One operation that does not complete, or whose calls differ.

    Attributes:
        cause: ``type mismatch``, ``size mismatch``, ``dtype mismatch``, ``extra call``, ``left out
            call`` (a few ranks make calls that the others do not, or leave some out; later calls
            completed), ``missing rank``, ``no dump``, ``no record``, ``not completed`` (all ranks
            entered), ``partly completed``,
            ``not started`` (on some ranks), ``unknown peer``.
        group: number of the group.
        op, seq, bytes, dtype: of the operation; ``seq`` of a transfer is its place among
            the calls of the rank.
        part: part of a coalesced collective.
        is_p2p: a send or a receive.
        waiting: ranks that entered and have not completed.
        ended: ranks where it ended, it is unknown how (gloo).
        completed: ranks where it completed.
        missing: ranks with a dump that did not enter.
        no_dump: ranks of the group without a dump, and those that did not enter according to a
            truncated one.
        truncated: those with a truncated dump.
        no_record: ranks that may not have entered: their ring buffer has lost its oldest records
            and has none of the group.
        scheduled: waiting ranks where it has not started.
        differing: ranks whose call differs from the majority; empty for a tie.
        calls: text of each distinct call and its ranks, the majority first.
        n_calls: calls that the differing ranks made or left out.
        waited_ns: how long they have waited; ``is_exact`` if it timed out, else at least.
        candidates: ranks that may be members of a group whose ranks are not recorded.
        free: missing ranks and those without a record that wait for nothing themselves, and ranks
            without a dump.
        order: by waiting rank, the place of its call among all its calls; ``counterpart`` the same
            of the other side of a transfer, if it is called and has not started.
    """

    cause: str
    group: int
    op: str
    seq: int | None
    bytes: int | None
    dtype: str | None
    part: int = 0
    is_p2p: bool = False
    waiting: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    completed: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    no_dump: tuple[int, ...] = ()
    truncated: tuple[int, ...] = ()
    no_record: tuple[int, ...] = ()
    scheduled: tuple[int, ...] = ()
    differing: tuple[int, ...] = ()
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
    n_calls: int = 0
    waited_ns: int | None = None
    is_exact: bool = False
    candidates: tuple[int, ...] = ()
    free: tuple[int, ...] = ()
    order: Mapping[int, int] = field(default_factory=dict, compare=False)
    counterpart: Mapping[int, int] = field(default_factory=dict, compare=False)

    @property
    def incomplete(self) -> tuple[int, ...]:
        """Return the ranks where it has not completed; those that wait may do so in a later one."""
        return tuple(rank for rank in self.waiting if rank not in {*self.completed, *self.ended})

    @property
    def is_stuck(self) -> bool:
        """Whether a rank waits in it, or it may have failed."""
        return bool(self.waiting or self.ended)

    @property
    def blockers(self) -> tuple[int, ...]:
        """Return the ranks that it waits for."""
        return (*self.missing, *self.no_dump, *self.no_record, *self.candidates)


@dataclass(frozen=True)
class Stall:
    """Stuck operations of a job, and their causes.

    Attributes:
        stuck: all of them.
        causes: those at the end of all chains: missing ranks and calls that differ before
            operations that all ranks entered, then the one that most ranks wait for first.
        cycle: operations that wait for each other, in order; empty if there is no deadlock.
        chain: the longest path of waiting to the first cause, or into the cycle.
        is_deadlock: whether the cycle is the first cause.
    """

    stuck: tuple[Stuck, ...]
    causes: tuple[Stuck, ...]
    cycle: tuple[Stuck, ...] = ()
    chain: tuple[Stuck, ...] = ()
    is_deadlock: bool = False


def find(matched: Matched, transfers: pl.DataFrame, groups: Groups, dumps: pl.DataFrame) -> Stall:
    """Find the stuck operations, and follow what their missing ranks wait for.

    Args:
        matched: the collectives.
        transfers: the pending sends and receives.
        groups: the process groups.
        dumps: one dump per rank.
    """
    last_ns = dumps["last_ns"].max()
    now = last_ns if isinstance(last_ns, int) else None
    collectives = [*_collectives(matched, groups, dumps, now)]
    return _followed([*collectives, *_transfers(transfers, dumps, now)])


# --- collectives -------------------------------------------------------------------------------


def _collectives(
    matched: Matched, groups: Groups, dumps: pl.DataFrame, now: int | None
) -> Iterable[Stuck]:
    """Yield the first collective of each group that differs or does not complete."""
    suspicious = matched.instances.filter(pl.col("verdict") != "completed")
    # of the parts of one coalesced collective, one that differs tells most
    order = ["group", "seq", "verdict", "part"]
    first = suspicious.sort(order).unique("group", keep="first", maintain_order=True)
    truncated = {*dumps.filter("truncated")["rank"].to_list()}
    dumped = {*dumps["rank"].to_list()} - truncated
    overwritten = {*dumps.filter("overwritten")["rank"].to_list()}
    spans = matched.spans.join(first.select("group"), on="group", how="semi")
    first_seq = {(rank, group): seq for rank, group, seq in spans.select(
        "rank", "group", "first_seq").iter_rows()}  # fmt: skip
    calls_of = matched.calls.join(first.select(KEY), on=KEY, how="semi").partition_by(
        KEY, as_dict=True
    )
    never = {*matched.never.select("rank", "group").iter_rows()}
    orders = _pending(matched, first)
    several = groups.table.filter(pl.col("is_known") | (pl.col("ranks").list.len() > 1))
    known = {*several["group"].to_list()}
    for row in first.iter_rows(named=True):
        group, seq = row["group"], row["seq"]
        calls = calls_of[group, seq, row["part"]]
        entered = {*calls["rank"].to_list()}
        members = groups.table["ranks"][group].to_list()
        absent = [rank for rank in members if rank not in entered]

        cut = [rank for rank in absent if rank in dumped & overwritten]
        lost = {rank for rank in cut if first_seq.get((rank, group), -1) > seq}
        unknown = {r for r in cut if (r, group) not in first_seq and (r, group) not in never}
        done = calls.filter(pl.col("state") == "completed")
        waited, is_exact = _waited(calls, now)
        missing = tuple(r for r in absent if r in dumped - lost - unknown)
        cause = _cause(row)
        one = Stuck(
            cause="no dump" if cause == "missing rank" and not missing else cause,
            group=group,
            op=row["op"],
            seq=seq,
            bytes=row["bytes"],
            dtype=row["dtype"],
            part=row["part"],
            waiting=tuple(orders.get(group, ())),
            order=orders.get(group, {}),
            ended=_ranks(done.filter("ended")),
            completed=_ranks(done.filter(~pl.col("ended"))),
            missing=missing,
            no_dump=tuple(r for r in absent if r not in dumped),
            truncated=tuple(r for r in absent if r in truncated),
            no_record=tuple(r for r in absent if r in unknown),
            scheduled=_ranks(calls.filter(pl.col("state") == "scheduled")),
            **_differences(calls, row["verdict"]),
            waited_ns=waited,
            is_exact=is_exact,
            candidates=() if group in known else tuple(sorted(dumped - entered)),
        )
        yield _shifted(one, matched) if one.cause in (*MISMATCHES, "missing rank") else one


def _shifted(one: Stuck, matched: Matched) -> Stuck:
    """Return the collective where some ranks made calls that others did not, if that is why."""
    found = shift(matched.calls.filter(group=one.group), one.seq or 0)
    if found is None:
        return one
    seq, n, calls = found
    first = calls.row(-1 if n > 0 else 0, named=True)
    ranks = [(place, _ranks(calls.filter(place=place))) for place in calls["place"].unique(
        maintain_order=True)]  # fmt: skip
    return Stuck(
        cause=SHIFTS[n < 0], group=one.group, op=first["op"], seq=seq, bytes=first["bytes"],
        dtype=first["dtype"], waiting=one.waiting, order=one.order, calls=tuple(ranks),
        differing=ranks[-1][1], completed=_ranks(calls), n_calls=abs(n), waited_ns=one.waited_ns,
        is_exact=one.is_exact,
    )  # fmt: skip


def _pending(matched: Matched, first: pl.DataFrame) -> dict[int, dict[int, int]]:
    """Return the order number of each rank's first call from these on that did not complete.

    By group and rank; ``first`` has ``group`` and ``seq``.
    """
    later = matched.calls.join(first.select("group", limit="seq"), on="group").filter(
        pl.col("seq") >= pl.col("limit"), pl.col("state") != "completed"
    )
    pending = later.group_by("group", "rank").agg(pl.col("order").min()).sort("group", "rank")
    orders: dict[int, dict[int, int]] = {}
    for group, rank, order in pending.iter_rows():
        orders.setdefault(group, {})[rank] = order
    return orders


def _cause(row: Mapping[str, Any]) -> str:
    verdict: str = row["verdict"]
    if verdict != "incomplete":
        return verdict
    if row["n_completed"]:
        return "partly completed"
    started, entered = row["n_started"], row["n_entered"]
    return "not started" if 0 < started < entered else "not completed"


def _ranks(rows: pl.DataFrame) -> tuple[int, ...]:
    return tuple(rows["rank"].sort().to_list())


def _waited(calls: pl.DataFrame, now: int | None) -> tuple[int | None, bool]:
    """Return how long the calls have waited, and whether this is known from a timeout."""
    pending = calls.filter(pl.col("state") != "completed")
    timeout = pending.filter("timed_out")["timeout_ns"].max()
    if isinstance(timeout, int):
        return timeout, True
    start = pending["created_ns"].min()
    return _at_least(start if isinstance(start, int) else None, now), False


def _at_least(start: int | None, now: int | None) -> int | None:
    """Return the time since a call; None if it is unknown or below a second."""
    return None if start is None or now is None or now - start < NS_PER_S else now - start


def _differences(calls: pl.DataFrame, verdict: str) -> dict[str, Any]:
    """Return ``calls`` and ``differing`` of a collective whose calls differ."""
    if verdict not in MISMATCHES:
        return {}
    by, named = {"type mismatch": ("kind", "op")}.get(verdict, ("dtype", "dtype"))
    if verdict == "size mismatch":
        by = "inputs" if calls["inputs"].drop_nulls().n_unique() > 1 else "outputs"
        # inputs of the calls with equal outputs may differ, such as the last part of an all_gather
        alike = calls.group_by(by).agg(pl.col("sizes_in").unique()).explode("sizes_in")
        named = (
            "sizes_out"
            if by == "outputs" and alike["sizes_in"].is_duplicated().any()
            else "sizes_in"
        )
    rows = (
        calls.with_columns(pl.col("sizes_out") + " (output)")
        .filter(pl.col(by).is_not_null())
        .group_by(by)
        .agg(pl.col("rank").sort(), value=pl.col(named).first())
        .sort(pl.col("rank").list.len(), pl.col("rank").list.first(), descending=[True, False])
    )
    texts = [(str(row["value"]), tuple(row["rank"])) for row in rows.iter_rows(named=True)]
    is_tie = len(texts) > 1 and len(texts[0][1]) == len(texts[1][1])
    differing = () if is_tie else tuple(sorted(r for _, ranks in texts[1:] for r in ranks))
    return {"calls": tuple(texts), "differing": differing}


# --- sends and receives ------------------------------------------------------------------------


def _transfers(transfers: pl.DataFrame, dumps: pl.DataFrame, now: int | None) -> Iterable[Stuck]:
    """Yield the first pending send or receive of each pair of ranks."""
    first = transfers.unique(
        ["group", "op", "rank", "peer"], keep="first", maintain_order=True
    ).head(_MOST_TRANSFERS)
    truncated = {*dumps.filter("truncated")["rank"].to_list()}
    for row in first.iter_rows(named=True):
        peer, sizes = row["peer"], {row["bytes"], row["other_bytes"]} - {None}
        missing: tuple[int, ...] = ()
        no_dump: tuple[int, ...] = ()
        cause = "not completed"
        calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
        if peer is None:
            cause = "unknown peer"
        elif not row["has_match"]:
            cause = "missing rank" if row["has_dump"] else "no dump"
            missing, no_dump = ((peer,), ()) if row["has_dump"] else ((), (peer,))
        elif len(sizes) > 1:
            cause = "size mismatch"
            calls = tuple(
                (f"{size:,} bytes", (rank,))
                for size, rank in ((row["bytes"], row["rank"]), (row["other_bytes"], peer))
            )
        start = row["created_ns"]
        timeout = row["timeout_ns"] if row["timed_out"] else None
        at_least = _at_least(start, now)
        yield Stuck(
            cause=cause,
            group=row["group"],
            op=row["op"],
            seq=row["order"],
            bytes=row["bytes"],
            dtype=row["dtype"],
            is_p2p=True,
            waiting=(row["rank"],),
            order={row["rank"]: row["order"]},
            counterpart={} if row["other_order"] is None else {peer: row["other_order"]},
            missing=missing,
            no_dump=no_dump,
            truncated=tuple(rank for rank in no_dump if rank in truncated),
            scheduled=(row["rank"],) if row["state"] == "scheduled" else (),
            calls=calls,
            waited_ns=timeout if timeout is not None else at_least,
            is_exact=timeout is not None,
        )


# --- chains ------------------------------------------------------------------------------------


def _followed(stuck: Sequence[Stuck]) -> Stall:
    """Follow the missing ranks of each operation to those that they wait in."""
    waits_in: dict[int, list[int]] = {}
    for at, one in enumerate(stuck):
        for rank in one.waiting:
            waits_in.setdefault(rank, []).append(at)
    next_of: dict[int, tuple[int, ...]] = {}
    marked = list(stuck)
    for at, one in enumerate(stuck):
        if one.cause in (*MISMATCHES, *SHIFTS):
            next_of[at] = ()
            continue
        absent = (*one.missing, *one.no_dump, *one.no_record)
        free = [r for r in absent if not set(waits_in.get(r, ())) - {at}]
        cause = one.cause
        if free and not {*free} & {*one.missing} and cause == "missing rank":
            cause = "no dump" if {*free} & {*one.no_dump} else "no record"
        marked[at] = replace(one, free=tuple(free), cause=cause)
        following = [n for r in one.blockers for n in waits_in.get(r, ()) if n != at]
        if not one.blockers:
            following = [*_before(one, at, stuck, waits_in)]
        next_of[at] = tuple(dict.fromkeys(following))
    leads = _reach(next_of)
    for at, one in enumerate(marked):
        if one.free:  # they missed first what the others that are missing here wait in for them
            next_of[at] = tuple(
                n for n in next_of[at] if {*one.free} <= {*marked[n].free} and n not in leads[at]
            )
    ends = [at for at in range(len(stuck)) if not next_of[at]]
    reach = _reach(next_of)
    # a rank that is missing or differs explains more than an operation that all ranks entered
    ends.sort(
        key=lambda at: (
            not (marked[at].free or marked[at].calls),
            -len(_waiting_behind(stuck, reach[at])),
            at,
        )
    )
    explained = set().union(*(reach[at] for at in ends))
    left = {at: next_of[at] for at in next_of if at not in explained}
    cycle = _cycle(left, reach)
    is_deadlock = bool(cycle) and len(_waiting_behind(stuck, left)) >= len(
        _waiting_behind(stuck, reach[ends[0]]) if ends else ()
    )
    target = cycle[0] if is_deadlock else ends[0] if ends else None
    silent = {at for at, one in enumerate(stuck) if not one.blockers}
    chain = _longest(next_of, target, {*cycle, *silent}) if target is not None else ()
    return Stall(
        tuple(marked),
        tuple(marked[at] for at in ends),
        tuple(marked[at] for at in cycle),
        tuple(marked[at] for at in chain),
        is_deadlock,
    )


def _before(
    one: Stuck, at: int, stuck: Sequence[Stuck], waits_in: Mapping[int, Sequence[int]]
) -> Iterable[int]:
    """Yield the operations that ranks called before one that all ranks entered, still pending.

    Its kernels run after them; of one that has started on some ranks, only the others matter.
    """
    waiting = one.scheduled if one.cause == "not started" else one.waiting
    places = {**{rank: one.order.get(rank, -1) for rank in waiting}, **one.counterpart}
    for rank, place in places.items():
        for other in waits_in.get(rank, ()):
            if other != at and stuck[other].order.get(rank, -1) < place:
                yield other


def _waiting_behind(stuck: Sequence[Stuck], these: Iterable[int]) -> set[int]:
    return {rank for at in these for rank in (*stuck[at].waiting, *stuck[at].ended)}


def _backward(next_of: Mapping[int, tuple[int, ...]]) -> dict[int, list[int]]:
    """Return the operations that directly lead to each one."""
    before: dict[int, list[int]] = {at: [] for at in next_of}
    for at, following in next_of.items():
        for one in following:
            before[one].append(at)
    return before


def _reach(next_of: Mapping[int, tuple[int, ...]]) -> dict[int, set[int]]:
    """Return, for each operation, those that lead to it, itself included."""
    before, reach = _backward(next_of), {}
    for at in next_of:
        reached, todo = {at}, [at]
        while todo:
            for one in before[todo.pop()]:
                if one not in reached:
                    reached.add(one)
                    todo.append(one)
        reach[at] = reached
    return reach


def _cycle(
    next_of: Mapping[int, tuple[int, ...]], reach: Mapping[int, set[int]]
) -> tuple[int, ...]:
    """Return a shortest cycle through the operation that most others lead to."""
    if not next_of:
        return ()
    for start in sorted(next_of, key=lambda at: (-len(reach[at]), at)):
        paths: dict[int, tuple[int, ...]] = {start: (start,)}
        todo = [start]
        while todo:
            at = todo.pop(0)
            for one in next_of[at]:
                if one == start:
                    return paths[at]
                if one not in paths:
                    paths[one] = (*paths[at], one)
                    todo.append(one)
    return ()


def _longest(
    next_of: Mapping[int, tuple[int, ...]], target: int, left_out: set[int]
) -> tuple[int, ...]:
    """Return the longest of the shortest paths that lead to an operation, in order."""
    before = _backward(next_of)
    paths: dict[int, tuple[int, ...]] = {target: (target,)}
    todo = [target]
    for at in todo:
        for one in before[at]:
            if one not in paths and one not in left_out:
                paths[one] = (one, *paths[at])
                todo.append(one)
    return max(paths.values(), key=len)
