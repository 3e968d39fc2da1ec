"""Outliers among durations; collectives by kind, and the bandwidth of the links."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import Part
from traceanalyzer.analyzers.common import columns
from traceanalyzer.frames.numbering import group_numbers
from traceanalyzer.units import format_bytes, format_ns
from traceanalyzer.vocabulary import bus_factor

#: Collectives of equal expected duration: same operation, size and group. Without a recorded size
#: the kernel replaces it, because NCCL chooses it by size.
GROUP = ("collective", "dtype", "message_bytes", "group", "group_size", "kernel")

#: Collectives with a common bandwidth, at any size.
LINK = ("collective", "group", "group_size")

#: With fewer events the spread of a group is not reliable.
FEW = 5

#: With a larger share of outliers the "group" is a mixture of sizes.
MIXED_FRAC = 0.1

#: The modified z-score's constants (Iglewicz and Hoaglin 1993): 0.6745 scales the MAD, and
#: 1.253314 the mean absolute deviation, to the standard deviation of a normal distribution.
_MAD = 0.6745

_MEAN_AD = 1.253314

_BASELINE_KEYS = (("collective", "dtype", "message_bytes", "group_size"), ("collective", "kernel"))


def judge(instances: pl.DataFrame, factor: float, z: float) -> pl.DataFrame:
    """Add ``factor``, ``z``, ``judged_by`` and ``outlier`` to every collective.

    An outlier takes longer than ``factor`` times the median of its comparison group *and* has a
    modified z-score 0.6745 (x - median) / MAD above ``z``. If more than half of the durations are
    equal, so that MAD = 0, the mean absolute deviation replaces it: (x - median) / (1.253314
    MeanAD). ``judged_by`` is the comparison group, of at least five events:

    - ``group``: same collective, dtype, size and process group.
    - ``bandwidth``, for groups of fewer than five: each duration is divided by the expected one,
      the shortest duration plus bytes over the highest bandwidth of this collective and process
      group at any size, and those ratios are compared over all sizes.
    - ``place``, without a recorded size: the events at the same position in every step, which a
      training loop repeats.
    - ``kernel``, without such a position: the same kernel. If more than a tenth are outliers, they
      are of many sizes and none is compared (one is, if it is at most a tenth of all events of the
      kernel, those with a position included).

    Null: too few events to compare with, or :func:`alone`; no outliers there.

    Args:
        instances: in order of time within each rank, with the columns of :data:`GROUP`,
            ``duration_ns``, ``rank`` and ``step``.
        factor: smallest factor of the median.
        z: smallest modified z-score.
    """
    place = _place() if instances["message_bytes"].has_nulls() else pl.lit(None, pl.Int64)
    judged = (
        _numbered(instances)
        .with_columns(place=place, slowness=_slowness())
        .with_columns(judged_by=_judged_by())
    )
    by_like = {
        "group": (pl.col("duration_ns"), ("like",)),
        "bandwidth": (pl.col("slowness"), ("pool", _unsized())),
        "place": (pl.col("duration_ns"), ("like", "place")),
        "kernel": (pl.col("duration_ns"), ("like",)),
    }
    used = [like for like in by_like if (judged["judged_by"] == like).any()]
    for name, measure in (("factor", _factor), ("z", _z)):
        values = [pl.when(judged_by=like).then(measure(*by_like[like])) for like in used]
        judged = judged.with_columns(pl.coalesce(pl.lit(None, pl.Float64), *values).alias(name))
    stands_out = ((pl.col("factor") > factor) & (pl.col("z") > z)).fill_null(value=False)
    judged = judged.with_columns(outlier=stands_out)
    by_kernel = (pl.col("judged_by") == "kernel").fill_null(value=False)
    n = (pl.col("outlier") & by_kernel).sum().over("like")
    crowd = (n > 1) & (pl.col("outlier").mean().over("like", "judged_by") > MIXED_FRAC)
    mixed = by_kernel & (crowd | (n > MIXED_FRAC * pl.len().over("like")))
    mixed |= alone(judged)
    unjudged = (pl.when(~mixed).then(name).alias(name) for name in ("judged_by", "factor", "z"))
    return judged.with_columns(*unjudged, outlier=pl.col("outlier") & ~mixed).drop(
        "like", "pool", "place", "slowness"
    )


def alone(instances: pl.DataFrame) -> pl.Expr:
    """Mark sends and receives whose partner is not known: they include the wait for it."""
    if "instance" not in instances.columns:
        return pl.lit(value=False)
    is_pair = pl.col("collective").is_in(("send", "recv", "send_recv")).fill_null(value=False)
    return is_pair & pl.col("instance").is_null()


#: Smaller collectives, or shorter ones of unknown size, are latency-bound.
SMALL_BYTES, SHORT_NS = 2**20, 50_000

#: Small collectives per step and rank that are reported.
MANY = 50

#: A smaller share of the exposed time of collectives is little.
_SOME = 0.1


def is_small() -> pl.Expr:
    """Return whether a collective is small by message size, or by duration without a size."""
    short = pl.col("duration_ns") < SHORT_NS
    return (pl.col("message_bytes") < SMALL_BYTES).fill_null(short)


def small_kind(instances: pl.DataFrame, n_ranks: int) -> dict[str, Any] | None:
    """Return what many small collectives per step cost; None if they are few, or short together.

    Keys: ``collective`` (nearly all of them; empty if mixed), ``n`` per step and rank,
    ``median_ns``, ``message_bytes`` (the largest), ``ns`` and ``frac``: exposed time of all ranks,
    and its share of that of all collectives.
    """
    rows = instances.with_columns(EXPOSED_NS)
    small = rows.filter(is_small(), ~alone(rows))
    steps = rows["step"].drop_nulls().n_unique()
    n, ns = small.height / n_ranks / max(steps, 1), int(small["exposed_ns"].sum())
    whole = int(rows["exposed_ns"].sum())
    if n < MANY or ns <= _SOME * whole:
        return None
    sums = small.group_by("collective").agg(pl.col("exposed_ns").sum())
    top = columns.largest_first(sums, "exposed_ns", "collective").row(0, named=True)
    return {
        "collective": top["collective"] if top["exposed_ns"] >= (1 - _SOME) * ns else "",
        "n": round(n),
        "median_ns": small.select(pl.col("duration_ns").median().cast(pl.Int64)).item(),
        "message_bytes": small["message_bytes"].max(),
        "ns": ns,
        "frac": ns / max(whole, 1),
    }


#: Time of a collective without the wait for the last rank, and without compute at the same time.
EXPOSED_NS = (
    pl.col("duration_ns") - sum(pl.col(n).fill_null(0) for n in ("wait_ns", "compute_ns"))
).clip(0).alias("exposed_ns")  # fmt: skip


def small_name(small: Mapping[str, Any]) -> str:
    """Return what :func:`small_kind` describes: ``small broadcast calls``."""
    return f"small {small['collective']} calls" if small["collective"] else "small collectives"


#: A pair of ranks whose fastest transfer takes so many times those of other pairs has a slow link.
_SLOW_PAIR = 4


def slow_pair(instances: pl.DataFrame, n_ranks: int) -> tuple[str, int] | None:
    """Return a sentence on a pair with a slow link, and what its transfers cost all GPUs.

    The wait for the partner makes transfers longer, so that the fastest one of a pair is compared.
    """
    kind, time = ["collective", "message_bytes", "link"], pl.col("duration_ns")
    pairs = instances.filter(pl.col("group_size") == 2).group_by(*kind, "group_ranks", "group")
    fastest = pairs.agg(time.min(), n=pl.len()).drop_nulls(["message_bytes", "group_ranks"])
    usual = fastest.with_columns(usual=time.median().over(kind), pairs=pl.len().over(kind))
    slow = usual.filter(pl.col("pairs") > 2, time >= _SLOW_PAIR * pl.col("usual"))
    if slow.is_empty():
        return None
    row = slow.sort("duration_ns", "group_ranks").row(-1, named=True)
    text = (
        f"A {row['collective']} of {format_bytes(row['message_bytes'])} between the ranks "
        f"{row['group_ranks']} takes at least {format_ns(row['duration_ns'])}, "
        f"{row['duration_ns'] / row['usual']:.3g} times that of other pairs. "
    )
    excess = row["n"] * (row["duration_ns"] - row["usual"]) / 2
    return text, round(excess * n_ranks)


#: Fewer steps may have an outlier at the same place by chance; the share of steps, of outliers.
_MANY_STEPS, _NEARLY_ALL = 3, 0.8


def place_in_steps(instances: pl.DataFrame, outliers: pl.DataFrame) -> int | None:
    """Return the place in the step at which nearly each step has an outlier; None otherwise.

    A rank that waits at the same place of each step waits for others, not for a busy network.
    """
    order = ["group", "collective"]
    placed = instances.drop_nulls("step").sort("at_ns", "id")
    placed = placed.with_columns(place=pl.int_range(pl.len()).over("step", *order))
    of_outliers = placed.filter(pl.col("id").is_in(outliers["id"].implode()))
    steps = placed["step"].n_unique()
    most = columns.largest_first(
        of_outliers.group_by("place").agg(n=pl.col("step").n_unique()), "n", "place"
    )
    if steps < _MANY_STEPS or most.is_empty() or most["n"][0] < _NEARLY_ALL * steps:
        return None
    if most["n"][0] < _NEARLY_ALL * outliers.height:
        return None
    return int(most["place"][0])


#: The first collective of a group is its set-up if it takes this many times as long as usual.
_SETUP = 10


def slow(collectives: pl.DataFrame, factor: float, z: float) -> pl.DataFrame:
    """Add ``slow_factor`` and ``slow``, ``slow_group`` and ``setup``.

    The transfer time is an outlier of its group, or (``slow_group``) that of the group is more than
    ``factor`` times as long as usual for other process groups: of the same collective, size, number
    of ranks and link. Both are medians; of at least five collectives in a group. The first one of a
    group, if it alone takes many times as long as usual after all have arrived, is its set-up
    (``setup``), not slow: the communicator is created within it.
    """
    whole = collectives.with_columns(duration_ns=pl.col("transfer_ns"), rank=pl.lit(0))
    judged = judge(whole, factor, z).rename({"factor": "slow_factor", "outlier": "slow"})
    times = _of_groups(judged)
    slow_group = (times > factor).fill_null(value=False)
    of_group = [name for name in ("group", "group_ranks") if name in judged.columns]
    is_first = pl.int_range(pl.len()).over(of_group or pl.lit(0)) == 0
    alone = pl.col("slow").sum().over(of_group or pl.lit(0)) == 1
    setup = pl.col("slow") & ~slow_group & is_first & alone & (pl.col("slow_factor") >= _SETUP)
    return judged.drop("duration_ns", "rank", "z", "judged_by").with_columns(
        slow=(pl.col("slow") & ~setup) | slow_group,
        setup=setup,
        slow_factor=pl.when(slow_group).then(times).otherwise("slow_factor"),
        slow_group=slow_group,
    )


def _of_groups(collectives: pl.DataFrame) -> pl.Series:
    """Return the transfer time of each collective's process group over that of the others."""
    kind = [name for name in (*GROUP, "link") if name in collectives.columns and name != "group"]
    of = [*kind, "group", "group_ranks"]
    if "group_ranks" not in collectives.columns:
        return pl.repeat(None, collectives.height, dtype=pl.Float64, eager=True)
    sums = collectives.group_by(of).agg(n=pl.len(), ns=pl.col("transfer_ns").median())
    known = sums.filter(pl.col("n") >= FEW, pl.col("ns") > 0)
    pairs = known.join(known, on=kind, nulls_equal=True, suffix="_other").filter(
        pl.col("group").ne_missing(pl.col("group_other"))
        | pl.col("group_ranks").ne_missing(pl.col("group_ranks_other"))
    )
    usual = pairs.group_by(of).agg(times=pl.col("ns").first() / pl.col("ns_other").median())
    joined = collectives.join(usual, on=of, how="left", nulls_equal=True, maintain_order="left")
    return joined["times"]


def _numbered(instances: pl.DataFrame) -> pl.DataFrame:
    """Add ``like`` and ``pool``, the numbers of :data:`GROUP` and :data:`LINK`.

    Calls that a CUDA graph replays are apart: other steps run the model with other sizes.
    Grouping by one number is many times as fast as by six columns.
    """
    replayed = [name for name in ("replayed",) if name in instances.columns]
    _, (like,) = group_numbers((*GROUP, *replayed), instances)
    _, (pool,) = group_numbers(LINK, instances)
    return instances.with_columns(like=pl.Series(like), pool=pl.Series(pool))


def _unsized() -> pl.Expr:
    return pl.col("message_bytes").is_null()


def _place() -> pl.Expr:
    """Return the position among its kernel's events of the step, if their count is the usual."""
    inside = ("rank", "step", "like")
    count = pl.len().over(inside)
    regular = count == count.median().over("like")
    known = _unsized() & pl.col("step").is_not_null() & regular
    return pl.when(known).then(pl.int_range(pl.len()).over(inside))


def _judged_by() -> pl.Expr:
    sized, placed = ~_unsized(), pl.col("place").is_not_null()
    like = {
        "group": sized & (pl.len().over("like") >= FEW),
        "bandwidth": sized & (pl.len().over("pool", _unsized()) >= FEW),
        "place": placed & (pl.len().over("like", "place") >= FEW),
        "kernel": ~sized & (pl.len().over("like") >= FEW),
    }
    return pl.coalesce(pl.when(test).then(pl.lit(name)) for name, test in like.items())


def _slowness() -> pl.Expr:
    """Return duration over the best one of its size: lowest latency + bytes / best bandwidth."""
    duration = pl.col("duration_ns").clip(lower_bound=1)
    latency = duration.min().over("pool", _unsized())
    best = (pl.col("message_bytes") / duration).max().over("pool")
    transfer = pl.when(best > 0).then(pl.col("message_bytes") / best).otherwise(0.0)
    return pl.when(~_unsized()).then(duration / (latency + transfer))


def _factor(value: pl.Expr, by: tuple[str | pl.Expr, ...]) -> pl.Expr:
    middle = value.median().over(by)
    return pl.when(middle > 0).then(value / middle)


def _z(value: pl.Expr, by: tuple[str | pl.Expr, ...]) -> pl.Expr:
    away = value - value.median().over(by)
    mad = away.abs().median().over(by)
    mean = away.abs().mean().over(by)
    spread = pl.when(mad > 0).then(mad / _MAD).otherwise(mean * _MEAN_AD)
    return pl.when(spread > 0).then(away / spread).otherwise(0.0)


# --- by kind -------------------------------------------------------------------------------


def summarize(instances: pl.DataFrame, spans: Mapping[int, int]) -> pl.DataFrame:
    """Return one row per group (all ranks together), largest total first.

    Percentiles interpolate linearly. ``share_frac`` is the summed duration over the summed spans
    of the participating ranks. ``algbw_gbps`` is message bytes (of unequal sizes the largest that a
    rank sends or receives: all wait for it) over the median duration, wait time included, in 10^9
    bytes per second; ``busbw_gbps`` is that times the bus factor of nccl-tests. They are null if
    the size, that of the other ranks or the group's size is unknown. ``compute_frac`` is the share
    of the duration during which compute kernels ran on the same device (null without a device).
    With several ranks ``transfer_ns`` is the median transfer time, and ``transfer_busbw_gbps`` the
    bus bandwidth in it. ``link`` is the link between the group's ranks and ``link_gbps`` its peak
    per direction; ``link_frac`` is ``transfer_busbw_gbps`` (otherwise ``busbw_gbps``) over the
    peak, for messages of 16 MiB or more, and for smaller ones with a transfer time of 1 ms or more
    within a node, or at less than a quarter of 10 Gbit/s (which replaces the peak of an unknown
    link).

    Args:
        instances: rows of :func:`judge`, with ``duration_ns`` and ``transfer_ns``.
        spans: each rank's span in ns.
    """
    duration = pl.col("duration_ns")
    instances = instances.with_columns(load=_load())
    quantiles = {"median_ns": 0.5, "p95_ns": 0.95, "p99_ns": 0.99}
    table = instances.group_by(GROUP).agg(
        pl.len().alias("n"),
        pl.col("rank").n_unique().alias("ranks"),
        *(
            columns.whole(duration.quantile(q, "linear")).alias(name)
            for name, q in quantiles.items()
        ),
        duration.max().alias("max_ns"),
        duration.sum().alias("total_ns"),
        pl.col("rank").unique().replace_strict(spans, return_dtype=pl.Int64).sum().alias("span"),
        columns.whole(pl.col("transfer_ns").median()).alias("transfer_ns"),
        columns.sum_if_known("compute_ns").alias("compute"),
        pl.col("outlier").sum().alias("outliers"),
        pl.col("judged_by").first(),
        pl.col("link", "link_gbps").drop_nulls().first(),
        pl.col("load").median(),
    )
    return (
        table.with_columns(
            columns.ratio(pl.col("total_ns"), pl.col("span")).alias("share_frac"),
            columns.ratio(pl.col("compute"), pl.col("total_ns")).alias("compute_frac"),
            *_speed("median_ns", ""),
        )
        .with_columns(*_speed("transfer_ns", "transfer_"))
        .with_columns(link_frac=_of_link())
        .drop("span", "compute", "load", "transfer_algbw_gbps")
        .sort("total_ns", *GROUP, descending=[True, *(False for _ in GROUP)], nulls_last=True)
    )


def _load() -> pl.Expr:
    """Return the bytes that determine the time of a collective, null if they are not known.

    These are the most that one of its ranks sends or receives; ranks with unequal sizes must all be
    recorded.
    """
    each = pl.coalesce(pl.col("instance").cast(pl.Int64), -1 - pl.int_range(pl.len()))
    sent, received = pl.col("elements_in"), pl.col("elements_out")
    most = pl.max_horizontal(sent, received).max().over(each)
    least = pl.min_horizontal(sent, received).min().over(each)
    known = (most == least) | (pl.col("rank").n_unique().over(each) == pl.col("group_size"))
    whole = columns.ratio(pl.col("message_bytes").max().over(each) * most, sent.max().over(each))
    return pl.when(most.is_null()).then("message_bytes").when(known).then(whole)


def _of_link() -> pl.Expr:
    """Return bus bandwidth over the link's peak; null if latency-bound or unknown."""
    rate = pl.col("load") / pl.col("transfer_ns")
    speed = pl.coalesce("transfer_busbw_gbps", "busbw_gbps", rate)
    long = (pl.col("transfer_ns") >= NO_LATENCY_NS) & pl.col("compute").is_not_null()
    large = (pl.col("load") >= LARGE_BYTES) | (long & (pl.col("link") != NETWORK))
    slower = long & (speed < LEAST_GBPS / 4)
    return pl.when((large & pl.col("link_gbps").is_not_null()) | slower).then(
        speed / pl.coalesce("link_gbps", LEAST_GBPS)
    )


def compare(groups: pl.DataFrame, baseline: pl.DataFrame) -> pl.DataFrame:
    """Return the ratio of medians to the same group of a baseline, largest first.

    Groups are the same by (collective, dtype, size, group size); those of unknown size by
    (collective, kernel). Several groups of one key (other process groups) count as one, by the
    median of their medians. Groups of one run only are left out.
    """
    joined = [
        _pooled(groups, key).join(
            _pooled(baseline, key), on=key, suffix="_baseline", nulls_equal=True
        )
        for key in _BASELINE_KEYS
    ]
    both = pl.concat(joined, how="diagonal")
    ratio = columns.ratio(pl.col("median_ns"), pl.col("median_ns_baseline"))
    names = ("collective", "dtype", "message_bytes", "group_size", "kernel")
    values = ("n", "median_ns", "compute_frac")
    before = {"n_baseline": "n_before", "median_ns_baseline": "baseline_ns"}
    before["compute_frac_baseline"] = "compute_before_frac"
    return (
        both.with_columns(ratio=ratio)
        .select(*names, "ratio", *values, *before)
        .rename(before)
        .sort("ratio", *names, descending=[True, *(False for _ in names)], nulls_last=True)
    )


def _pooled(groups: pl.DataFrame, key: tuple[str, ...]) -> pl.DataFrame:
    sized = pl.col("message_bytes").is_not_null()
    wanted = groups.filter(sized if "message_bytes" in key else ~sized)
    median = columns.whole(pl.col("median_ns").median())
    overlapped = (pl.col("compute_frac") * pl.col("total_ns")).sum() / pl.col("total_ns").sum()
    known = pl.col("compute_frac").is_not_null().any() & (pl.col("total_ns").sum() > 0)
    return wanted.group_by(key).agg(
        pl.col("n").sum(),
        median.alias("median_ns"),
        pl.when(known).then(overlapped).alias("compute_frac"),
    )


def _speed(time: str, prefix: str) -> tuple[pl.Expr, pl.Expr]:
    algbw = columns.ratio(pl.col("load"), pl.col(time))
    factor = pl.struct("collective", "group_size").map_elements(
        lambda key: bus_factor(key["collective"], key["group_size"]), return_dtype=pl.Float64
    )
    return algbw.alias(f"{prefix}algbw_gbps"), (algbw * factor).alias(f"{prefix}busbw_gbps")


#: Smaller messages are latency-bound.
LARGE_BYTES = 16 * 2**20

#: A longer transfer time is not latency-bound, even between nodes.
NO_LATENCY_NS = 1_000_000

#: The slowest usual network between GPUs: 10 Gbit/s.
LEAST_GBPS = 1.25

#: The link between GPUs of one node by device name; the first match counts.
_LINKS: tuple[tuple[str, str, float], ...] = (
    (r"V100-SXM", "NVLink 2", 150),
    (r"A100-SXM", "NVLink 3", 300),
    (r"A800-SXM", "NVLink 3", 200),
    (r"H100 PCIe", "PCIe 5", 64),
    (r"H100 80GB HBM3|H100.*SXM|\bH200(?! NVL)\b|\bH20\b", "NVLink 4", 450),
    (r"H800(?! PCIe)", "NVLink 4", 200),
    (r"\bB200\b", "NVLink 5", 900),
    (r"MI3(?:00|25)X", "Infinity Fabric", 448),
    (r"A100-PCI|A800 .*PCI|\bL4\b|\bL40S?\b|\bA10G?\b", "PCIe 4", 32),
    (r"Tesla T4|\bT4\b|V100-PCI", "PCIe 3", 16),
)

#: Between nodes, per GPU: 200 Gbit/s, the slowest usual network. Rings use all GPUs' adapters.
NETWORK, _NETWORK_GBPS = "network", 25.0

#: Of links from GPU to GPU without a switch, the peak to one other GPU, by device name: n GPUs use
#: only the links between them. Pairs of V100 in a cube mesh have one link or two.
_GBPS_PER_PEER = {r"MI3(?:00|25)X": 64, r"V100-SXM": 25}

#: GPUs of a node if the file does not list them.
_USUAL_GPUS = 8

_TYPES = {"link": pl.String, "link_gbps": pl.Float64}


@dataclass(frozen=True)
class _Place:
    """Where one rank runs."""

    host: str | None
    gpu: str | None
    node_gpus: int


def with_links(instances: pl.DataFrame, parts: Sequence[Part]) -> pl.DataFrame:
    """Add ``link`` and ``link_gbps``: the link between the group's ranks, its peak per direction.

    A group is within a node if its ranks have one host name; without host names, if it has no more
    ranks than the node has GPUs and they are of one block of that size. Otherwise the link is the
    network, with 25 GB/s for each of its ranks in a node. Null if the device or the group's size is
    unknown.
    """
    return _of_places(instances, parts, _link, _TYPES)


def with_nodes(instances: pl.DataFrame, parts: Sequence[Part]) -> pl.DataFrame:
    """Add ``one_node``: whether a group is within a node, as in :func:`with_links`; or null."""
    schema = {"one_node": pl.Boolean}
    return _of_places(instances, parts, lambda *group: (_nodes(*group)[0],), schema)


def _of_places(
    instances: pl.DataFrame,
    parts: Sequence[Part],
    measure: Callable[..., tuple[Any, ...]],
    schema: Mapping[str, Any],
) -> pl.DataFrame:
    """Add what ``measure`` returns of the places of ranks, and rank, size and ranks of a group."""
    places = {part.rank: _Place(part.host, part.gpu, part.node_gpus) for part in parts}
    keys = ["rank", "group_size", "group_ranks"]
    groups = instances.select(keys).unique()
    rows = [measure(places, *row) for row in groups.iter_rows()]
    table = pl.concat([groups, pl.DataFrame(rows, schema=schema, orient="row")], how="horizontal")
    return instances.join(table, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _local_link(gpu: str | None, size: int) -> tuple[str | None, float | None]:
    """Return the link between GPUs of one node by the device's name; None if unknown."""
    of_pair = (each for name, each in _GBPS_PER_PEER.items() if gpu and re.search(name, gpu))
    most = next(of_pair, math.inf) * (size - 1)
    for pattern, name, gbps in _LINKS:
        if gpu and re.search(pattern, gpu):
            return name, min(gbps, most)
    return None, None


#: Larger groups are not placed rank by rank; a file may record any size.
_MOST_RANKS = 1 << 16


def _link(
    places: dict[int | None, _Place], rank: int, size: int | None, ranks: str | None
) -> tuple[str | None, float | None]:
    one_node, nodes = _nodes(places, rank, size, ranks)
    if one_node is None or size is None:
        return None, None
    if one_node:
        return _local_link(places[rank].gpu, size)
    return NETWORK, _NETWORK_GBPS * max(size // nodes, 1)


def _nodes(
    places: dict[int | None, _Place], rank: int, size: int | None, ranks: str | None
) -> tuple[bool | None, int]:
    """Return whether a group is within a node, None if unknown, and its number of nodes."""
    place = places[rank]
    if size is None or size < 2:
        return None, 1
    listed = [int(number) for number in re.findall(r"\b\d{1,9}\b", ranks or "")]
    members = listed or range(min(size, _MOST_RANKS))
    known = [places[member].host for member in members if member in places]
    hosts = {host for host in known if host is not None}
    gpus = place.node_gpus or _USUAL_GPUS
    one_block = size <= gpus and len({member // gpus for member in members}) == 1
    one_node = len(hosts) == 1 if hosts and len(known) == size else one_block and len(hosts) < 2
    if one_node:
        return True, 1
    if len(hosts) < 2 and not place.node_gpus:
        return None, 1
    blocks = len({member // gpus for member in members})
    return False, max(len(hosts), blocks if len(members) == size else -(-size // gpus), 2)
