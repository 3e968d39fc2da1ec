"""Sends and receives, and pipeline stages: ranks that wait for each other by their schedule."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

import polars as pl

from traceanalyzer.units import format_frac

#: Names of sends and receives in PyTorch and NCCL; not in MPI: ranks exchange borders there.
POINT_TO_POINT_NAME: Final = r"^(?:[^M].*)?(?i:send|recv|p2p)"

#: Ranks are pipeline stages if this share of wait time is by their schedule ...
_MOSTLY = 0.8

#: ... of which at least this share is in the sends and receives themselves.
_MOST = 0.5

#: Stages have equal work if the busiest exceeds the median of the others by at most this.
_EQUAL = 0.15

#: Waits that are this many times the bubble are not those of the schedule alone.
MORE: Final = 1.25

#: A schedule that waits for less than this share of the bubble is not 1F1B.
_LESS = 0.8

_PAIR = 2

#: Sender and receiver, as numbers within the group, in the name of PyTorch's annotation.
ENDS: Final = r"^nccl:(?:send|recv) (\d+(?:->|<-)\d+)$"

#: Sends and receives.
SINGLES: Final = ("send", "recv", "send_recv")

#: What identifies the two ranks of a send or receive.
_OF_PAIR = ("collective", "group", "group_size", "group_ranks", "peer", "ends")


def in_pairs(rows: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    """Return sends and receives of larger groups as those of the group of their two ranks.

    NCCL exchanges them on a communicator of these two. ``seq`` is null there, because each rank
    counts its own sends and receives with all others; so it is in groups of two whose numbers have
    gaps.

    Args:
        rows: collective, group, group_size, group_ranks, seq; ``peer``: global rank at the other
            end; ``ends``: sender and receiver within the group, as :data:`ENDS`.
        rank: global rank of the file, if known.
    """
    is_single = pl.col("collective").is_in(SINGLES).fill_null(value=False)
    of_two = (pl.col("group_size") == _PAIR).fill_null(value=False)
    seq = pl.col("seq")
    gaps = seq.n_unique().over("group") <= (seq.max() - seq.min()).over("group")
    counted = pl.when(~(is_single & of_two & gaps)).then("seq").alias("seq")
    rows = rows.with_columns(counted) if rows.height else rows
    singles = rows[list(_OF_PAIR)].filter(is_single & ~of_two)
    if singles.is_empty():
        return rows
    kinds = singles.unique()
    pairs = [_pair(row, rank) for row in kinds.iter_rows(named=True)]
    known = kinds.with_columns(pair=pl.Series(pairs, dtype=pl.String)).drop_nulls("pair")
    if known.is_empty():
        return rows
    joined = rows.join(known, on=_OF_PAIR, how="left", nulls_equal=True, maintain_order="left")
    of_pair = {
        "group": pl.concat_str("group", "pair", separator=" ", ignore_nulls=True),
        "group_size": pl.lit(_PAIR, pl.Int32),
        "group_ranks": _listed("pair"),
        "seq": pl.lit(None, pl.Int64),
    }
    is_known = pl.col("pair").is_not_null()
    return joined.with_columns(
        pl.when(is_known).then(value).otherwise(name).alias(name) for name, value in of_pair.items()
    ).drop("pair")


def _listed(pair: str) -> pl.Expr:
    """Return the ranks of a pair as PyTorch lists those of a group: ``[0, 1]``."""
    members = pl.col(pair).str.extract_all(r"\d+").cast(pl.List(pl.Int64)).list.sort()
    return pl.format("[{}]", members.cast(pl.List(pl.String)).list.join(", "))


def _pair(row: Mapping[str, Any], rank: int | None) -> str | None:
    """Return sender and receiver of a send or receive as global ranks: ``0->1``."""
    if row["peer"] is not None and rank is not None:
        source, target = (rank, row["peer"])[:: 1 if row["collective"] == "send" else -1]
        return _joined(source, target, row["collective"])
    if row["ends"] is None or row["group_ranks"] is None:
        return None
    here, there = map(int, re.findall(r"\d+", row["ends"]))
    source, target = (here, there) if "->" in row["ends"] else (there, here)
    # a long list of ranks is cut
    members = dict(enumerate(re.findall(r"\d+", row["group_ranks"].partition("...")[0])))
    if source not in members or target not in members:
        return None
    return _joined(int(members[source]), int(members[target]), row["collective"])


def _joined(source: int, target: int, collective: str) -> str:
    """Return the pair; with both directions in one kernel it has no order."""
    if collective == "send_recv":
        return f"{min(source, target)}<->{max(source, target)}"
    return f"{source}->{target}"


#: With so many times as many micro-batches the bubble of a pipeline is compared.
_MORE = 4


class Pipeline(NamedTuple):
    """Number of stages, of micro-batches per step (None if unknown), of chunks of each stage.

    With several model chunks (virtual stages) on each rank, the 1F1B schedule is interleaved.
    """

    stages: int
    batches: int | None
    chunks: int = 1

    @property
    def bubble_frac(self) -> float | None:
        """Share of a step that a 1F1B schedule waits.

        It is (stages - 1) / (chunks * batches + stages - 1), see Narayanan et al., SC'21.
        """
        passes = self.batches and self.chunks * self.batches
        return passes and (self.stages - 1) / (passes + self.stages - 1)

    @property
    def gain_frac(self) -> float:
        """Share of the time per micro-batch that 4 times as many in a step save."""
        return 1 - (1 - (self.bubble_frac or 0)) / (1 - (self._with_more.bubble_frac or 0))

    @property
    def _with_more(self) -> Self:
        return self._replace(batches=self.batches and _MORE * self.batches)

    def schedule(self, rest_frac: float) -> str:
        """Return a sentence on the minimum bubble; empty if it is not known.

        Args:
            rest_frac: share of the time without compute. If it is less than the bubble, the
                schedule is another one.
        """
        if not self.bubble_frac:
            return ""
        known = f"With {self.stages} stages and {self.batches} micro-batches per step"
        if rest_frac < _LESS * self.bubble_frac:
            return f"{known}, ranks wait less than in a 1F1B schedule: this is another schedule."
        several, more = self.chunks > 1, self._with_more
        return (
            f"{known}, {f'an interleaved ({self.chunks} chunks per stage)' if several else 'a'} "
            f"1F1B schedule has a bubble of {format_frac(self.bubble_frac)}; with {more.batches} "
            f"micro-batches it is {format_frac(more.bubble_frac)}, and each takes "
            f"{format_frac(self.gain_frac)} less time."
        )


def pipeline(arrivals: pl.DataFrame) -> Pipeline | None:
    """Return the pipeline if ranks wait mostly for each other by its schedule.

    Args:
        arrivals: instance, rank, step, collective, wait_ns of matched collectives.
    """
    rows = arrivals.with_columns(scheduled=scheduled(arrivals))
    exchanges = rows.filter(_is_exchange())
    by_schedule = int(rows.filter("scheduled")["wait_ns"].sum())
    # in inference, the last stage broadcasts its tokens to the others
    is_sent = pl.col("scheduled") & (pl.col("collective") == "broadcast")
    waited = int(rows.filter(_is_exchange() | is_sent)["wait_ns"].sum())
    whole = int(arrivals["wait_ns"].sum())
    if are_rings(arrivals):
        return None
    if not waited or waited < _MOST * by_schedule or by_schedule < _MOSTLY * whole:
        return None
    stages = max(_pipelines(exchanges)["pipeline"].value_counts()["count"].to_list())
    return Pipeline(stages, *_micro_batches(exchanges, stages))


def _micro_batches(exchanges: pl.DataFrame, stages: int) -> tuple[int | None, int]:
    """Return the micro-batches per step by the exchanges of each pair of stages, and the chunks.

    The number is None if it is unknown. If the last stage sends to the first one, each stage has
    several chunks: neighbors exchange a micro-batch once per chunk, these two once less.

    Each pair exchanges a micro-batch once per direction (inference: one direction). If one kernel
    sends and receives (``batch_isend_irecv``), a 1F1B schedule has micro-batches + 1 exchanges of
    the last pair, one more of each pair before. Of two stages, only names tell both forms apart.
    """
    rank, keys = pl.col("rank"), ["first", "second"]
    sender = rank.filter(pl.col("collective") == "send", pl.col("collective").n_unique() == _PAIR)
    calls = exchanges.group_by("instance").agg(
        pl.col("step").sort_by("rank").first(),
        first=rank.min(),
        second=rank.max(),
        sender=sender.first(),
    )
    each = calls.drop_nulls("step").group_by(*keys, "step").agg(pl.len())
    numbers = each.group_by(keys).agg(pl.col("len").median().round().cast(pl.Int64))["len"]
    different: list[int] = numbers.unique().sort().to_list()
    least = different[0] if different else 0
    is_cycle = stages > _PAIR and numbers.len() == exchanges["rank"].n_unique()
    if least < 1 or (least < _PAIR and not is_cycle):
        return None, 1
    if not calls["sender"].null_count():
        senders: list[int] = (
            calls.group_by(keys).agg(pl.col("sender").n_unique())["sender"].to_list()
        )
        once = different[-1] // max(senders) - least // max(senders)
        if not is_cycle:
            return least // max(senders), 1
        chunks, rest = divmod(different[-1] // max(senders), once) if once else (0, 1)
        return (None, 1) if rest or len(different) > _PAIR else (once, chunks)
    if is_cycle:
        return None, 1
    if different == [*range(least, least + stages - 1)] and (stages > _PAIR or least % _PAIR):
        return least - 1, 1
    return (least // _PAIR if stages > _PAIR and different == [least] else None), 1


def are_rings(arrivals: pl.DataFrame) -> bool:
    """Whether each rank only sends to one rank and receives from another: context parallelism.

    Stages of a pipeline send activations in one direction, and gradients in the other.
    """
    exchanges = arrivals.filter(_is_exchange())
    other = pl.col("rank").sum().over("instance") - pl.col("rank")
    ends = exchanges.select("rank", "collective", other=other).unique()
    sends, every = ends.filter(collective="send"), exchanges["rank"].n_unique()
    receives = ends.filter(collective="recv")
    both = sends.join(receives, on=["rank", "other"], how="semi")
    one_each = sends.height == receives.height == every == sends["rank"].n_unique()
    return one_each and 2 * every == ends.height and both.is_empty()


def scheduled(arrivals: pl.DataFrame) -> pl.Series:
    """Return which matched collectives join several stages of one pipeline.

    These are sends and receives, and collectives of several stages, such as that of the norm of all
    gradients: stages reach it one after the other by their schedule.
    """
    exchange = arrivals.select(_is_exchange().fill_null(value=False)).to_series()
    of = _pipelines(arrivals.filter(exchange))
    if of.is_empty():
        return exchange
    placed = arrivals.select("instance", "rank").join(
        of, on="rank", how="left", maintain_order="left"
    )
    several = (pl.col("rank").n_unique().over("instance", "pipeline") > 1) & pl.col(
        "pipeline"
    ).is_not_null()
    return exchange | placed.select(several.any().over("instance")).to_series()


def _is_exchange() -> pl.Expr:
    paired = pl.len().over("instance") == _PAIR
    return pl.col("collective").str.contains(POINT_TO_POINT_NAME) & paired


def _pipelines(exchanges: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank`` and ``pipeline``, the lowest of the ranks that exchanges connect with it."""
    ends = exchanges.group_by("instance").agg(a=pl.col("rank").min(), b=pl.col("rank").max())
    sets = connected(ends.select("a", "b").unique().iter_rows())
    rows = [(rank, min(ranks)) for rank, ranks in sorted(sets.items())]
    return pl.DataFrame(rows, {"rank": pl.Int32, "pipeline": pl.Int32}, orient="row")


def connected(groups: Iterable[Iterable[int]]) -> dict[int, set[int]]:
    """Return for each rank all ranks that the groups connect with it."""
    sets: dict[int, set[int]] = {}
    for ranks in groups:
        joined = {one for rank in ranks for one in sets.get(rank, {rank})}
        sets.update(dict.fromkeys(joined, joined))
    return sets


def work_longer(busy_ns: pl.Series) -> pl.Series:
    """Return which ranks work more than 15 % longer than usual, the median without the busiest."""
    known = busy_ns.drop_nulls().sort()
    usual = known.head(max(known.len() - 1, 1)).median()
    return busy_ns > (1 + _EQUAL) * (usual if isinstance(usual, float) else 0.0)
