"""Sends and receives: which have a counterpart on the other rank."""

import polars as pl

#: The two ranks of a transfer.
_PAIR = ["group", "src_rank", "dst_rank"]


def match(records: pl.DataFrame, members: pl.DataFrame, dumps: pl.DataFrame) -> pl.DataFrame:
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
        null), has_dump (whether the peer has a complete one), and columns of the records.
        Operations with unknown ranks (coalesced without their parts) have a null ``peer``.
    """
    calls = records.filter("is_p2p")
    single = _with_ranks(calls.filter(pl.col("op").is_in(("send", "recv"))), members)
    pending = single.filter(pl.col("state") != "completed")
    numbered = pending.with_columns(
        number=pl.int_range(pl.len(), dtype=pl.Int64).over(*_PAIR, "op"),
    )
    counterpart = numbered.select(
        *_PAIR,
        "number",
        op=pl.when(pl.col("op") == "send").then(pl.lit("recv")).otherwise(pl.lit("send")),
        other_bytes="bytes",
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
