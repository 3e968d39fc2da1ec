"""The tables and charts of collectives, ranks and steps, and the notes."""

from collections import Counter
from collections.abc import Iterator, Sequence

import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import Part
from traceanalyzer.analyzers.common import soundness
from traceanalyzer.analyzers.common.display import headings, table_of_known
from traceanalyzer.drawings import Chart
from traceanalyzer.files import packaged
from traceanalyzer.result import Table
from traceanalyzer.units import format_count, format_first, format_ns

#: Title, columns and how to print each table.
_TABLES = packaged("analyzers/comm_outliers/tables.toml")
#: Columns that compare ranks.
_COMPARING = ("wait_ns", "imposed_ns", "times_last", "straggler_steps", "straggler_frac")

_RANK = pl.format("rank {}", "rank").alias("rank")

_TIME = "time from the start"


def table(name: str, frame: pl.DataFrame, more: str = "", *, several: bool = True) -> Table:
    """Return one of the tables.

    Args:
        name: its name.
        frame: its rows.
        more: suffix of the title.
        several: whether there are several ranks to compare.
    """
    about = _TABLES[name]
    columns = headings(about["columns"])
    if not several:
        columns = {key: label for key, label in columns.items() if key not in _COMPARING}
    return table_of_known(
        name,
        about["title"] + more,
        frame,
        columns,
        empty=about["empty"],
        detail=about.get("detail", False),
        hide_first=tuple(about.get("hide_first", ())),
    )


# --- charts --------------------------------------------------------------------------------


def charts(
    instances: pl.DataFrame,
    met: pl.DataFrame,
    delayed: pl.DataFrame,
    pairs: pl.DataFrame,
    *,
    by_pair: bool,
) -> tuple[Chart, ...]:
    """Return arrivals with several ranks, durations, and tokens by pair if known, first by pair."""
    durations = _durations(instances)
    arrivals = () if met.is_empty() else (_arrivals(met, delayed),)
    of_pairs = (_pairs(pairs),) if pairs.height else ()
    others = (*arrivals, durations)
    return (*of_pairs, *others) if by_pair else (*others, *of_pairs)


def _pairs(pairs: pl.DataFrame) -> Chart:
    """Return the tokens from each rank to each other as a heat map, in levels of the mean pair."""
    level = (pl.col("of_mean") / pairs["of_mean"].max() * _LEVELS).ceil() / _LEVELS
    return Chart(
        name="pairs",
        title="Tokens from rank (row) to rank (column)",
        mark="span",
        frame=pairs.sort("source", "target").select(
            pl.col("source").cast(pl.String),
            tokens=pl.format("rank {} to rank {}: {} tokens", "source", "target", "tokens"),
            begin=pl.col("target") - 0.5, end=pl.col("target") + 0.5,
            times_the_mean_up_to=(level * pairs["of_mean"].max()).round(2),
        ),
        x="begin", x2="end", y="source", x_label="to rank", y_label="from rank",
        color="times_the_mean_up_to", label="tokens",
    )  # fmt: skip


#: Number of colours of a heat map.
_LEVELS = 8


def _durations(instances: pl.DataFrame) -> Chart:
    """Return the duration of every collective by time and rank, outliers circled."""
    return Chart(
        name="durations",
        title="Duration of each collective",
        mark="scatter",
        # the axis is logarithmic
        frame=instances.select("at_ns", _RANK, pl.col("duration_ns").clip(1), "outlier"),
        x="at_ns",
        y="duration_ns",
        x_label=_TIME,
        y_label="duration",
        color="rank",
        emphasis="outlier",
        emphasis_label="outlier",
        log_y=True,
    )


def _arrivals(met: pl.DataFrame, delayed: pl.DataFrame) -> Chart:
    """Return every rank's arrival after the first rank at each collective, stragglers circled."""
    listed = pl.col("instance").is_in(delayed["instance"].implode())
    return Chart(
        name="arrivals",
        title="Arrival of each rank after the first",
        mark="scatter",
        frame=met.select(
            pl.col("at_ns").min().over("instance"),
            _RANK,
            "after_first_ns",
            (pl.col("is_last") & listed).alias("straggler"),
        ),
        x="at_ns",
        y="after_first_ns",
        x_label=_TIME,
        y_label="arrival after the first rank",
        color="rank",
        emphasis="straggler",
        emphasis_label="straggler",
    )


_BASIS = (
    "Wait time is all the time before the last rank arrives; diagnose counts the part of it {}, "
    "within steps."
)

#: Ranks named in notes.
_RANKS = 8


def remarks(
    parts: Sequence[Part],
    instances: pl.DataFrame,
    collectives: pl.DataFrame,
    clocks: pl.DataFrame,
    misplaced: int,
    spanning: int,
) -> Iterator[str]:
    """Yield the notes of a result.

    Args:
        parts: the files.
        instances: all collectives, compared with their group.
        collectives: those matched across ranks.
        clocks: the ranks' offsets.
        misplaced: collectives with an implausible match by order.
        spanning: collectives that some ranks began long before others were recorded.
    """
    yield from _inputs(parts)
    yield from _events(parts, instances)
    if len({part.rank for part in parts}) < 2:
        return
    yield from _matching(instances, misplaced)
    yield _clocks(clocks)
    if partial := collectives.filter(pl.col("missing") > 0).height:
        yield (
            f"{partial:,} of {collectives.height:,} collectives lack events of some ranks of their "
            "group."
        )
    if spanning:
        began = f"{format_count(spanning, 'collective')} began before all ranks were recorded"
        yield f"{began}: the delay is not that of a straggler, and left out."
    if collectives.height and collectives["imposed_ns"].sum():
        on_host = instances["device"].is_null().all()
        yield _BASIS.format("with the main thread idle" if on_host else "without compute")


def _inputs(parts: Sequence[Part]) -> Iterator[str]:
    ranks = {part.rank for part in parts}
    world = max(part.world_size or 0 for part in parts)
    unnamed = sum(not part.rank_known for part in parts) if len(parts) > 1 else 0
    silent = sorted({part.rank or 0 for part in parts if part.instances.is_empty()})
    files = Counter(part.rank for part in parts)
    again = [rank for rank, count in files.items() if count > 1]
    by_device = sum(bool(part.by_device) for part in parts)
    if by_device and len(ranks) > 1:
        yield f"One rank uses {by_device} GPUs: each is compared as a rank, numbered by device."
    if len(ranks) < world:
        yield (
            f"Only {len(ranks)} of {world} ranks are given: stragglers among the others are not "
            "detected."
        )
    if unnamed:
        yield f"{unnamed} files have no rank: they are numbered in order of their names."
    if again:
        yield (
            f"Several files of rank {format_first(again, _RANKS)} are treated as parts of one run. "
            "Put files of several runs in separate folders."
        )
    if silent:
        yield f"No communication was recorded on rank {format_first(silent, _RANKS)}."


def _events(parts: Sequence[Part], instances: pl.DataFrame) -> Iterator[str]:
    unclosed = sum(part.unclosed for part in parts)
    unsized = instances["message_bytes"].null_count()
    small = instances.filter(judged_by="bandwidth").height
    placed = instances.filter(judged_by="place").height
    unjudged = instances["judged_by"].null_count()
    if unclosed:
        yield f"{unclosed:,} communication events without an end were not counted."
    if unsized:
        yield (
            f"{unsized:,} of {instances.height:,} collectives have no recorded message size: they "
            "have no bandwidth and are grouped by kernel. Newer PyTorch records the size with each "
            "kernel, older versions with record_shapes=True."
        )
    if small:
        yield (
            f"{small:,} of {instances.height:,} collectives are in groups of fewer than five: "
            "they are compared by bandwidth, over all sizes."
        )
    if placed:
        yield (
            f"{placed:,} of {instances.height:,} collectives are compared with those at the same "
            "position in the other steps."
        )
    if unjudged:
        yield (
            f"Not compared: {unjudged:,} of {instances.height:,} collectives (fewer than five in "
            "the group, or durations that vary like those of different sizes)."
        )


def _matching(instances: pl.DataFrame, misplaced: int) -> Iterator[str]:
    alone = instances["instance"].null_count() - misplaced
    unknown = instances.filter(pl.col("instance").is_not_null(), pl.col("group").is_null()).height
    if alone:
        yield (
            f"{alone:,} of {instances.height:,} collectives have no match on another rank (another "
            "group, a send or receive without a recorded partner, or not recorded there): how long "
            "they wait is not known."
        )
    if misplaced:
        yield (
            f"{misplaced:,} collectives have no wait time: matched by order they would not overlap "
            "in time (groups that the files do not distinguish, or drifting clocks)."
        )
    if unknown:
        yield (
            f"The process group of {unknown:,} collectives is not recorded: they were matched "
            "across ranks by order, with all ranks as one group."
        )


def _clocks(clocks: pl.DataFrame) -> str:
    if clocks.is_empty():
        return "Clock offsets of the ranks could not be determined and were not corrected."
    offset_ns = max(abs(offset) for offset in clocks["offset_ns"])
    largest = format_ns(offset_ns)
    corrected = clocks.filter("applied")["rank"].to_list()
    if corrected:
        which = f"rank{'s' * (len(corrected) > 1)} {format_first(corrected, _RANKS)}"
        return f"Clock offsets of up to {largest} were corrected on {which}."
    if offset_ns >= soundness.APART_NS:
        return (
            f"Collectives with the same number end up to {largest} apart and are not compared: a "
            "rank probably restarted and counts them from the start again."
        )
    within = f" within {largest}" if offset_ns else ""
    return f"The clocks of the ranks agree{within} (ends of collectives): not corrected."


def memory_notes(memory: pl.DataFrame | None) -> Iterator[str]:
    """Yield notes on missing memory data of devices during outliers."""
    if memory is None:
        return
    if memory.is_empty():
        yield "No memory data for the devices with outliers."
        return
    if memory["capacity_bytes"].null_count():
        yield (
            "The trace does not record the size of the device's memory, so its fill level is "
            "unknown."
        )
    if not memory["aligned"].all():
        yield (
            "Without a common clock of memory and collectives, the maximum of the whole memory "
            "history counts."
        )
