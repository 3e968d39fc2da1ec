"""The same collective or message on all ranks: aligned by group and sequence number, compared."""

import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.names import mapped
from traceanalyzer.schema import MAX_RANKS
from traceanalyzer.units import format_ranges
from traceanalyzer.vocabulary import POINT_TO_POINT, collective_of_word

#: Verdict on one collective, the worst first.
VERDICT = pl.Enum(
    (
        "type mismatch",
        "size mismatch",
        "dtype mismatch",
        "missing rank",
        "no dump",
        "no record",
        "incomplete",
        "completed",
    )
)
MISMATCHES = ("type mismatch", "size mismatch", "dtype mismatch")

#: Keys of one collective: the group, its sequence number, and the part of a coalesced one.
KEY = ["group", "seq", "part"]

#: Collectives whose inputs, and whose outputs, have as many elements on all ranks.
_EQUAL_IN = ("all_reduce", "broadcast", "reduce", "reduce_scatter")
_EQUAL_OUT = (*_EQUAL_IN, "all_gather")


@dataclass(frozen=True)
class Matched:
    """Collectives of all ranks.

    Attributes:
        calls: one row per rank and collective: group, seq, part, kind (normalized name),
            elements (that must be equal on all ranks, or null), and the columns of the records.
        instances: one row per collective: group, seq, part, op, bytes, dtype, n_entered,
            n_completed, n_started, n_missing (ranks with a dump that did not enter), n_no_dump
            (ranks without a dump, or whose truncated dump ends before it), n_no_record (ranks whose
            ring buffer has lost its oldest records and has none of the group, if it is unknown
            whether there were some), n_ended (calls without a result that is known), verdict,
            first_ns, last_ns, median_ns (times of the calls), last_rank.
        spans: first and last sequence number of each rank in each group: rank, group, first_seq,
            last_seq, overwritten (whether the rank's oldest records are lost), truncated (its
            newest are).
        never: rank, group: ranks that never entered a collective of a group, by its status.
    """

    calls: pl.DataFrame
    instances: pl.DataFrame
    spans: pl.DataFrame
    never: pl.DataFrame


def match(
    records: pl.DataFrame, members: pl.DataFrame, dumps: pl.DataFrame, never: pl.DataFrame
) -> Matched:
    """Align the collectives of all ranks and compare them.

    Args:
        records: records of all ranks, in their order.
        members: group, rank: the ranks of each group.
        dumps: rank, overwritten, truncated: the ranks with a dump.
        never: rank, group: ranks that never entered a collective of a group, by its status.
    """
    calls = _calls(records)
    calls = _without_cut_parts(calls, _spans(calls, dumps))
    spans = _spans(calls, dumps)
    counted = _with_absent(_instances(calls), members, dumps, spans, never)
    return Matched(calls, counted.with_columns(verdict=_verdict()).sort(KEY), spans, never)


def _calls(records: pl.DataFrame) -> pl.DataFrame:
    chosen = records.filter(~pl.col("is_p2p"), pl.col("seq").is_not_null())
    kinds = mapped(chosen["op"].cast(pl.String), lambda op: collective_of_word(op) or op)
    kind = pl.col("kind")
    return chosen.with_columns(kind=kinds).with_columns(
        part=pl.int_range(pl.len(), dtype=pl.UInt32).over("rank", "group", "seq"),
        inputs=pl.when(kind.is_in(_EQUAL_IN)).then("elements_in"),
        outputs=pl.when(kind.is_in(_EQUAL_OUT)).then("elements_out"),
    )


def _spans(calls: pl.DataFrame, dumps: pl.DataFrame) -> pl.DataFrame:
    spans = calls.group_by("rank", "group").agg(
        first_seq=pl.col("seq").min(), last_seq=pl.col("seq").max()
    )
    return spans.join(dumps.select("rank", "overwritten", "truncated"), on="rank")


def _without_cut_parts(calls: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Remove a rank's first or last coalesced collective if some of its parts may be lost."""
    several = calls.filter(pl.col("part") > 0).select("group", "seq").unique()
    cut = pl.concat(
        spans.filter(lost).select("rank", "group", seq=seq)
        for lost, seq in (("overwritten", "first_seq"), ("truncated", "last_seq"))
    )
    cut = cut.join(several, on=["group", "seq"], how="semi")
    return calls.join(cut, on=["rank", "group", "seq"], how="anti", maintain_order="left")


def _instances(calls: pl.DataFrame) -> pl.DataFrame:
    done = pl.col("state") == "completed"
    created = pl.col("created_ns")
    return calls.group_by(KEY).agg(
        op=pl.col("op").mode().sort().first(),
        bytes=pl.col("bytes").max(),
        dtype=pl.col("dtype").drop_nulls().mode().sort().first(),
        n_entered=pl.len().cast(pl.Int64),
        n_completed=done.sum().cast(pl.Int64),
        n_started=(pl.col("state") == "started").sum().cast(pl.Int64),
        n_ended=pl.col("ended").sum().cast(pl.Int64),
        kinds=pl.col("kind").n_unique(),
        sizes=pl.max_horizontal(pl.col("inputs", "outputs").drop_nulls().n_unique()),
        dtypes=pl.col("dtype").drop_nulls().n_unique(),
        first_ns=created.min(),
        last_ns=created.max(),
        median_ns=created.median().cast(pl.Int64),
        last_rank=pl.col("rank").sort_by(created, nulls_last=False).last(),
    )


def _with_absent(
    instances: pl.DataFrame,
    members: pl.DataFrame,
    dumps: pl.DataFrame,
    spans: pl.DataFrame,
    never: pl.DataFrame,
) -> pl.DataFrame:
    """Add the numbers of ranks that did not enter, and of those without a dump or a record.

    A rank whose oldest records are overwritten may have entered the collectives before its first,
    one whose dump is truncated those after its last.
    """
    of_dump = dumps.select("rank", "overwritten", "truncated")
    of_group = members.join(of_dump, on="rank", how="left")
    of_group = of_group.join(
        spans.drop("overwritten", "truncated"), on=["rank", "group"], how="left"
    )
    absent = pl.col("overwritten").is_null()
    # without any record and status in the group, it is not known whether there were some
    of_group = of_group.join(
        never.with_columns(never=pl.lit(value=True)), on=["rank", "group"], how="left"
    )
    lost_all = pl.col("overwritten") & ~pl.col("truncated") & pl.col("first_seq").is_null()
    unknown = lost_all & pl.col("never").is_null()
    sizes = of_group.group_by("group").agg(
        n_ranks=pl.len().cast(pl.Int64),
        n_no_dump=absent.sum().cast(pl.Int64),
        n_no_record=unknown.sum().cast(pl.Int64),
        firsts=pl.col("first_seq").filter("overwritten").drop_nulls().sort(),
        # a truncated dump without records of the group lacks all of them
        lasts=pl.col("last_seq").fill_null(-1).filter("truncated").sort(),
    )
    counted = instances.join(sizes, on="group", how="left").sort(KEY)
    lost, cut = np.zeros((2, counted.height), np.int64)
    start = 0
    for rows in counted.partition_by("group", maintain_order=True):
        firsts, lasts = rows["firsts"][0], rows["lasts"][0]
        if firsts is not None and len(firsts):
            later = np.searchsorted(firsts.to_numpy(), rows["seq"].to_numpy(), side="right")
            lost[start : start + rows.height] = len(firsts) - later
        if lasts is not None and len(lasts):
            cut[start : start + rows.height] = np.searchsorted(lasts.to_numpy(), rows["seq"])
        start += rows.height
    no_dump = pl.col("n_no_dump") + pl.Series(cut)
    known = pl.col("n_ranks") - no_dump - pl.col("n_no_record") - pl.Series(lost)
    missing = (known - pl.col("n_entered")).clip(lower_bound=0)
    counted = counted.with_columns(n_missing=missing, n_no_dump=no_dump)
    return counted.drop("firsts", "lasts")


def _verdict() -> pl.Expr:
    done = pl.col("n_completed") == pl.col("n_entered")
    # without states, the end of an operation does not tell whether it succeeded
    in_doubt = ~done | (pl.col("n_ended") > 0)
    return (
        pl.when(pl.col("kinds") > 1)
        .then(pl.lit("type mismatch"))
        .when(pl.col("sizes") > 1)
        .then(pl.lit("size mismatch"))
        .when(pl.col("dtypes") > 1)
        .then(pl.lit("dtype mismatch"))
        .when((pl.col("n_missing") > 0) & in_doubt)
        .then(pl.lit("missing rank"))
        .when((pl.col("n_no_dump") > 0) & ~done)
        .then(pl.lit("no dump"))
        .when((pl.col("n_no_record") > 0) & ~done)
        .then(pl.lit("no record"))
        .when(~done)
        .then(pl.lit("incomplete"))
        .otherwise(pl.lit("completed"))
        .cast(VERDICT)
    )


#: Most calls in which ranks differ, and most places where they may start to.
_MOST_CALLS, _MOST_PLACES = 4, 64


def shift(calls: pl.DataFrame, before: int) -> tuple[int, int, pl.DataFrame] | None:
    """Return where a few ranks made calls of a group that the others did not, or left some out.

    Collectives of one sequence number may be called at two lines and complete. If the later calls
    of the few ranks (operation, line, size) equal those of the others n numbers earlier or later,
    the few have n calls more or fewer.

    Args:
        calls: those of one group.
        before: the first collective that shows the difference.

    Returns:
        The sequence number, n (above 0: more calls), and the calls of this number, those of the few
        ranks last; None if calls do not differ like this, or their lines are not recorded.
    """
    what = pl.concat_str("kind", "place", "bytes", separator="\n", ignore_nulls=True)
    rows = calls.filter(pl.col("part") == 0, pl.col("place").is_not_null()).with_columns(what=what)
    several = rows.group_by("seq").agg(pl.col("place").n_unique()).filter(
        pl.col("place") > 1, pl.col("seq") < before
    )  # fmt: skip
    for seq in several["seq"].sort().head(_MOST_PLACES):
        here = rows.filter(seq=seq).sort(pl.len().over("what"), "rank", descending=[True, False])
        is_usual = here["what"] == here["what"][0]
        many, few = here.filter(is_usual), here.filter(~is_usual)
        if few["what"].n_unique() != 1 or few.height == many.height:
            continue
        right = rows.filter(pl.col("rank") == many["rank"][0]).select("seq", right="what")
        later = rows.filter(pl.col("rank").is_in(few["rank"].implode()), pl.col("seq") >= seq)
        for n in sorted(range(-_MOST_CALLS, _MOST_CALLS + 1), key=abs)[1:]:
            moved = later.with_columns(seq=pl.col("seq") - n).filter(pl.col("seq") >= seq)
            both = moved.join(right, on="seq")
            if both["rank"].n_unique() == few.height and (both["what"] == both["right"]).all():
                return seq, n, pl.concat([many, few])
    return None


_Ranks = tuple[int, ...]
#: Name and ranks of a group; None if its ranks are not recorded.
_Key = tuple[str, _Ranks | None]

#: Description and name of the default group.
DEFAULT, FIRST = "default_pg", "0"
_RANGE = re.compile(r"(\d{1,7})(?:\s*-\s*(\d{1,7}))?")
_MOST = 1 << 17
#: Descriptions that say nothing.
_NAMELESS = ("", "undefined")


@dataclass(frozen=True)
class Groups:
    """The process groups of a job.

    Attributes:
        table: one row per group: group UInt32, name, description, label (with its ranks), ranks
            List(Int32), is_known (whether the dumps list its ranks; else those with records).
        members: group, rank, place (rank within the group).
        keys: rank, name, group: the group of each name on a rank.
    """

    table: pl.DataFrame
    members: pl.DataFrame
    keys: pl.DataFrame

    @classmethod
    def of(cls, rows: pl.DataFrame, dumps: pl.DataFrame) -> "Groups":
        """Identify groups by name and ranks.

        Groups of one name with different ranks are different. Without recorded ranks, the default
        group has all ranks up to the highest known one, any other those whose dumps have it.

        Args:
            rows: rank, group (the name), description, ranks (text, or null), one per rank.
            dumps: the ranks with a dump.
        """
        texts = rows["ranks"].drop_nulls().unique().to_list()
        parsed = {text: ranks for text in texts if (ranks := parse_ranks(text))}
        known = [rank for ranks in parsed.values() for rank in ranks]
        world = max([*known, *dumps["rank"].to_list()], default=-1) + 1
        recorded: dict[str, set[_Ranks]] = {}
        for name, text in rows.select("group", "ranks").unique(maintain_order=True).iter_rows():
            if text in parsed:
                recorded.setdefault(name, set()).add(parsed[text])
        observed: dict[str, list[int]] = {}
        descriptions: dict[_Key, str | None] = {}
        keys: list[tuple[int, str, _Ranks | None]] = []
        columns = rows.select("rank", "group", "description", "ranks")
        for rank, name, description, text in columns.iter_rows():
            members: _Ranks | None = parsed.get(text)
            if members is None:
                matches = [one for one in recorded.get(name, ()) if rank in one]
                members = matches[0] if len(matches) == 1 else None
            is_default = description == DEFAULT or name == FIRST
            if members is None and is_default and world <= _MOST:
                members = tuple(range(world))
                recorded.setdefault(name, set()).add(members)
            if members is None:
                observed.setdefault(name, []).append(rank)
            descriptions[name, members] = descriptions.get((name, members)) or description
            keys.append((rank, name, members))
        return cls._built(descriptions, observed, keys)

    @classmethod
    def _built(
        cls,
        descriptions: dict[_Key, str | None],
        observed: dict[str, list[int]],
        keys: list[tuple[int, str, _Ranks | None]],
    ) -> "Groups":
        number = {key: at for at, key in enumerate(descriptions)}
        table, members = [], []
        for (name, ranks), description in descriptions.items():
            at = number[name, ranks]
            these = list(ranks) if ranks else sorted({*observed[name]})
            title = name if description in (None, *_NAMELESS) else description
            label = f"{title} [{format_ranges(these)}{'' if ranks else ', ...'}]"
            table.append((at, name, description, label, these, ranks is not None))
            members += [(at, rank, place) for place, rank in enumerate(these)]
        frame = pl.DataFrame(
            table,
            schema={
                "group": pl.UInt32, "name": pl.String, "description": pl.String,
                "label": pl.String, "ranks": pl.List(pl.Int32), "is_known": pl.Boolean,
            },
            orient="row",
        )  # fmt: skip
        twice = pl.col("label").is_duplicated()
        frame = frame.with_columns(
            label=pl.when(twice).then(pl.format("{} ({})", "label", "name")).otherwise("label")
        )
        return cls(
            frame,
            pl.DataFrame(
                members,
                schema={"group": pl.UInt32, "rank": pl.Int32, "place": pl.Int32},
                orient="row",
            ),
            pl.DataFrame(
                [(rank, name, number[name, ranks]) for rank, name, ranks in keys],
                schema={"rank": pl.Int32, "name": pl.String, "group": pl.UInt32},
                orient="row",
            ).unique(["rank", "name"], keep="first", maintain_order=True),
        )

    def with_group(self, records: pl.DataFrame) -> pl.DataFrame:
        """Add the group of each record, by rank and name."""
        return records.join(
            self.keys, on=["rank", "name"], how="left", maintain_order="left"
        ).drop_nulls("group")

    def label(self, group: int) -> str:
        """Return the label of a group."""
        text: str = self.table["label"][group]
        return text


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse a list of ranks, such as ``[0, 1, 2]`` or ``0-3``; empty if there is none."""
    ranks: set[int] = set()
    for match in _RANGE.finditer(text):
        low = int(match[1])
        high = int(match[2]) if match[2] else low
        if high - low >= _MOST or high >= MAX_RANKS or len(ranks) > _MOST:
            return ()
        ranks.update(range(low, high + 1))
    return tuple(sorted(ranks))


#: The two ranks of a transfer.
_PAIR = ["group", "src_rank", "dst_rank"]


def match_messages(
    records: pl.DataFrame, members: pl.DataFrame, dumps: pl.DataFrame
) -> pl.DataFrame:
    """Return the sends and receives that did not complete, with their counterparts.

    Sends from one rank to another match its receives in their order. While both ranks have all
    their records, completed ones count: a receive may wait for a send that has completed.

    Args:
        records: records of all ranks, in their order.
        members: group, rank, place (rank within the group, as records have it).
        dumps: rank, overwritten, truncated.

    Returns:
        One row per pending operation: group, op, rank, peer, record, bytes, state, has_match
        (whether the peer called the counterpart), other_bytes (size of a pending counterpart, or
        null), other_order (place of a counterpart that has not started among the calls of the peer,
        or null), has_dump (whether the peer has a complete one), and columns of the records.
        Operations with unknown ranks (coalesced without their parts) have a null ``peer``.
    """
    calls = records.filter("is_p2p")
    single = _with_ranks(calls.filter(pl.col("op").is_in(POINT_TO_POINT)), members)
    pending = single.filter(pl.col("state") != "completed")
    numbered = pending.with_columns(
        number=pl.int_range(pl.len(), dtype=pl.Int64).over(*_PAIR, "op")
    )
    counterpart = numbered.select(
        *_PAIR,
        "number",
        op=pl.when(pl.col("op") == "send").then(pl.lit("recv")).otherwise(pl.lit("send")),
        other_bytes="bytes",
        other_order=pl.when(pl.col("state") == "scheduled").then("order"),
        is_pending=pl.lit(value=True),
    )
    joined = numbered.join(
        counterpart, on=[*_PAIR, "op", "number"], how="left", maintain_order="left"
    )
    joined = joined.join(_surplus(single, pending, dumps), on=_PAIR, how="left")
    surplus = pl.when(pl.col("op") == "recv").then("surplus").otherwise(-pl.col("surplus"))
    behind = pl.col("number") < pl.col("n_other").fill_null(0) + surplus.fill_null(0)
    has_dump = pl.col("peer").is_in(dumps.filter(~pl.col("truncated"))["rank"].implode())
    result = joined.with_columns(
        has_match=pl.col("is_pending").fill_null(value=False) | behind.fill_null(value=False),
        has_dump=has_dump,
    )
    return pl.concat([result, _coalesced(calls, pending)], how="diagonal")


def _with_ranks(rows: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Add the global ranks of sender and receiver."""
    places = members.select("group", "place", global_rank="rank")
    for name in ("src", "dst"):
        rows = rows.join(
            places.rename({"place": name, "global_rank": f"{name}_rank"}),
            on=["group", name],
            how="left",
            maintain_order="left",
        )
    is_send = pl.col("op") == "send"
    return rows.with_columns(
        # the rank itself is known from its dump
        src_rank=pl.when(is_send).then("rank").otherwise("src_rank"),
        dst_rank=pl.when(is_send).then("dst_rank").otherwise("rank"),
    ).with_columns(peer=pl.when(is_send).then("dst_rank").otherwise("src_rank"))


def _surplus(single: pl.DataFrame, pending: pl.DataFrame, dumps: pl.DataFrame) -> pl.DataFrame:
    """Return per pair: surplus (completed sends minus receives), n_other (pending ones).

    Without the oldest or the newest records of a rank, the surplus is unknown.
    """
    whole = dumps.filter(~pl.col("overwritten"), ~pl.col("truncated"))["rank"]
    done = single.filter(pl.col("state") == "completed")
    both = done.filter(
        pl.col("src_rank").is_in(whole.implode()), pl.col("dst_rank").is_in(whole.implode())
    )
    sign = pl.when(pl.col("op") == "send").then(1).otherwise(-1)
    sums = both.group_by(_PAIR).agg(surplus=sign.sum().cast(pl.Int64))
    # counterparts that are pending are joined by number
    counts = pending.group_by(_PAIR).agg(
        n_other=pl.min_horizontal(
            (pl.col("op") == "send").sum(), (pl.col("op") == "recv").sum()
        ).cast(pl.Int64)
    )
    return counts.join(sums, on=_PAIR, how="left")


def _coalesced(calls: pl.DataFrame, pending: pl.DataFrame) -> pl.DataFrame:
    """Return pending coalesced operations whose sends and receives are not recorded."""
    key = ["rank", "group", "seq", "p2p_seq"]
    whole = calls.filter(pl.col("op") == "coalesced", pl.col("state") != "completed")
    alone = whole.join(pending, on=key, how="anti", nulls_equal=True, maintain_order="left")
    return alone.with_columns(has_match=pl.lit(value=False), has_dump=pl.lit(value=False))
