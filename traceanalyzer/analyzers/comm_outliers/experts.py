"""Tokens that ranks send each other in all-to-alls of unequal sizes, as experts need them.

An all_to_all sends tokens to the ranks of their experts, the next one brings them back. The load of
a rank is the number of elements that it receives, or, on the way back, sends. All ranks of a group
must be recorded.
"""

import re
from dataclasses import dataclass

import polars as pl

from traceanalyzer.units import format_count, format_frac

_KEY = ["instance", "rank"]
_RANKS = re.compile(r"\d+")

_PLACES = {
    "group": pl.String, "place": pl.Int64, "n": pl.Int64, "imbalance": pl.Float64,
    "max_imbalance": pl.Float64, "rank": pl.Int32, "same_frac": pl.Float64,
}  # fmt: skip
_STEPS = {"step": pl.String, "imbalance": pl.Float64, "rank": pl.Int32}
_LOADS = {
    "rank": pl.Int32,
    "tokens": pl.Int64,
    "elements": pl.Int64,
    "of_mean": pl.Float64,
    "most": pl.Int64,
}
_PAIRS = {
    "source": pl.Int32, "target": pl.Int32, "n": pl.Int64, "tokens": pl.Int64,
    "message_bytes": pl.Int64, "of_mean": pl.Float64,
}  # fmt: skip


#: From this imbalance on, loads are unequal.
UNEQUAL = 1.1
#: From this share of all-to-alls on, one rank has the largest load persistently.
MOSTLY = 0.8
#: Minimum number of steps in which a place has a usual rank.
_ENOUGH = 3


@dataclass(frozen=True)
class Experts:
    """The loads of ranks in all-to-alls of unequal sizes; tables are empty without any.

    Attributes:
        n: all-to-alls with sizes that all of their ranks recorded.
        imbalance: sum of the largest loads over the sum of the mean loads, of all of them.
        places: by group and place of the all_to_all in a step: n, imbalance (mean of the largest
            over the mean load) and its maximum, rank (most often the most loaded one), same_frac
            (share of n in which it is); the largest imbalance first.
        steps: by step: imbalance (as above), and the rank with most load.
        loads: by rank: tokens from all ranks on the way to the experts, elements, of_mean (of the
            mean rank), most (number of all-to-alls in which it has the largest load); the largest
            first.
        pairs: by source and target: n, tokens (rows), message_bytes, of_mean (of the mean pair);
            only on the way to the experts; the largest first.
    """

    n: int
    imbalance: float
    places: pl.DataFrame
    steps: pl.DataFrame
    loads: pl.DataFrame
    pairs: pl.DataFrame

    @property
    def same_frac(self) -> float:
        """Share of all-to-alls whose rank with most load is the usual one at their place in steps.

        Of places in at least three steps; 0 without any.
        """
        rows = self._unequal_places
        return float((rows["n"] * rows["same_frac"]).sum()) / max(int(rows["n"].sum()), 1)

    @property
    def _unequal_places(self) -> pl.DataFrame:
        return self.places.filter(pl.col("n") >= _ENOUGH, pl.col("imbalance") > 1)

    @property
    def is_one(self) -> bool:
        """Whether one rank has the largest load in most all-to-alls with unequal loads."""
        unequal = int(self.loads["most"].sum())
        return self.main is not None and self.main[1] >= MOSTLY * max(unequal, 1)

    @property
    def persistent_in(self) -> str:
        """What has its own rank with the most load in most steps: layer, group, or nothing."""
        if self.is_one or self.same_frac < MOSTLY:
            return ""
        layers = self._unequal_places.group_by("group").agg(pl.col("rank").n_unique())["rank"]
        return "layer" if (layers > 1).any() else "group"

    def who(self) -> str:
        """Return which rank has most load, and how often; of each layer if these differ."""
        rank, most = self.main or (None, 0)
        if what := self.persistent_in:
            return f"each {what} has its own, the same in {format_frac(self.same_frac)} of steps"
        return f"rank {rank} in {most:,} of {format_count(self.n, 'all_to_all')}"

    @property
    def main(self) -> tuple[int, int] | None:
        """The rank that most often has the largest load, and in how many all-to-alls."""
        rows = self.loads.sort("most", "rank", descending=[True, False])
        return rows.select("rank", "most").row(0) if rows.height else None


NO_EXPERTS = Experts(0, 1.0, *(pl.DataFrame(schema=of) for of in (_PLACES, _STEPS, _LOADS, _PAIRS)))


def experts(instances: pl.DataFrame) -> Experts:
    """Return the loads of ranks.

    Args:
        instances: instance (number of the matched collective), rank, group, group_size,
            group_ranks, step, start, dtype, message_bytes, elements_in, elements_out, splits_in.
    """
    rows = instances.filter(
        pl.col("collective") == "all_to_all", pl.col("elements_out").is_not_null()
    ).drop_nulls(_KEY)
    rows = rows.filter(pl.col("rank").n_unique().over("instance") == pl.col("group_size"))
    if rows.is_empty():
        return NO_EXPERTS
    load = pl.when("to_experts").then("elements_out").otherwise("elements_in")
    rows = rows.join(_directions(rows), on="instance").with_columns(load=load)
    each = _each(rows)
    of_all = (pl.col("largest").sum() / pl.col("mean").sum()).alias("imbalance")
    unequal = each.filter(pl.col("largest") > pl.col("mean"))
    most = unequal.group_by("rank").agg(most=pl.len().cast(pl.Int64))
    loads = rows.group_by("rank").agg(elements=pl.col("load").sum())
    loads = loads.join(most, on="rank", how="left").with_columns(
        pl.col("most").fill_null(0), of_mean=pl.col("elements") / pl.col("elements").mean()
    )
    by_step = each.drop_nulls("step").group_by("step", maintain_order=True)
    pairs = _pairs(rows.filter("to_experts"))
    tokens = pairs.group_by(rank="target").agg(pl.col("tokens").sum())
    loads = loads.join(tokens, on="rank", how="left")
    return Experts(
        n=each.height,
        imbalance=each.select(of_all).item(),
        places=_by_place(each),
        steps=by_step.agg(of_all, rank=pl.col("rank").mode().min()),
        loads=loads.select(*_LOADS).sort("elements", "rank", descending=[True, False]),
        pairs=pairs,
    )


def _directions(rows: pl.DataFrame) -> pl.DataFrame:
    """Return whether each all_to_all sends tokens to experts: instance, to_experts.

    It brings them back if each rank sends as much as it received in the one before, which sent.
    """
    before = pl.col("elements_out").shift(1).over("group", "rank", order_by="start")
    each = rows.with_columns(returns=pl.col("elements_in") == before).group_by("group", "instance")
    ordered = each.agg(pl.col("returns").all(ignore_nulls=False), pl.col("start").min())
    directions, last = [], dict[str | None, bool]()
    for group, instance, returns, _ in ordered.sort("start", "instance").iter_rows():
        last[group] = not (returns and last.get(group, False))
        directions.append((instance, last[group]))
    table = pl.DataFrame(directions, schema=["instance", "to_experts"], orient="row")
    return table.cast({"instance": ordered.schema["instance"]})


def _each(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per all_to_all: its largest and mean load, the rank of the largest, place."""
    each = rows.sort("load", "rank", descending=[True, False]).group_by("instance").agg(
        pl.col("group", "step", "rank").first(), pl.col("start").min(),
        largest=pl.col("load").max(), mean=pl.col("load").mean(),
    )  # fmt: skip
    place = pl.int_range(pl.len()).over("group", "step").cast(pl.Int64)
    return each.filter(pl.col("mean") > 0).sort("start", "instance").with_columns(place=place)


def _by_place(each: pl.DataFrame) -> pl.DataFrame:
    ratio = pl.col("largest") / pl.col("mean")
    rows = each.group_by("group", "place").agg(
        n=pl.len().cast(pl.Int64),
        imbalance=ratio.mean(),
        max_imbalance=ratio.max(),
        rank=pl.col("rank").mode().min(),
        same_frac=(pl.col("rank") == pl.col("rank").mode().min()).mean(),
    )
    return rows.select(*_PLACES).sort(
        "imbalance", "group", "place", descending=[True, False, False]
    )


def _pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the tokens from rank to rank; without cut lists of sizes."""
    values = []
    columns = ("rank", "group_ranks", "splits_in", "elements_in", "message_bytes")
    for source, ranks, splits, elements, size in rows.select(columns).iter_rows():
        members = _numbers(ranks) or [*range(len(_numbers(splits)))]
        counts = _numbers(splits)
        whole = sum(counts)
        if len(counts) != len(members) or not whole or not elements:
            continue
        bytes_each = (size or 0) / whole
        values += [
            (source, target, tokens, round(tokens * bytes_each))
            for target, tokens in zip(members, counts, strict=True)
        ]
    schema = {"source": pl.Int32, "target": pl.Int32, "tokens": pl.Int64, "message_bytes": pl.Int64}
    each = pl.DataFrame(values, schema=schema, orient="row")
    sums = each.group_by("source", "target").agg(
        pl.col("tokens", "message_bytes").sum(), n=pl.len().cast(pl.Int64)
    )
    rows = sums.with_columns(of_mean=pl.col("tokens") / pl.col("tokens").mean())
    return rows.select(*_PAIRS).sort("tokens", "source", "target", descending=[True, False, False])


def _numbers(text: str | None) -> list[int]:
    """Return the numbers of a list; none of a cut one."""
    return [] if text is None or "..." in text else [int(one) for one in _RANKS.findall(text)]
