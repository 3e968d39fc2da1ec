"""Clock offsets of ranks from the ends of collectives."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers.arrivals import CLEAR_NS, clock_offsets

#: Ends of collectives, far enough apart that participation matters.
ENDS = (0, 10**9, 10**10, 10**11, 10**12)


def matched(
    ahead: dict[int, int], taking_part: dict[int, range], collective: str = "all_reduce"
) -> pl.DataFrame:
    rows = [
        {"instance": instance, "lane": 0, "rank": rank, "collective": collective,
         "end": ENDS[instance] + ahead[rank], "duration_ns": 1000, "message_bytes": 64}
        for rank, instances in taking_part.items() for instance in instances
    ]  # fmt: skip
    return pl.DataFrame(rows).cast({"rank": pl.Int32})


def result(ahead: dict[int, int], taking_part: dict[int, range]) -> dict[int, int]:
    hosts = {rank: f"host{rank}" for rank in ahead}
    rows = clock_offsets(matched(ahead, taking_part), hosts)
    return dict(rows.select("rank", "offset_ns").rows())


ALL = range(len(ENDS))


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [
        ([0, 500_000], [0, 500_000]),
        ([500_000, 0], [500_000, 0]),
        # the median clock is the right one, of an even number the lower
        ([-400_000, 0, 700_000], [-400_000, 0, 700_000]),
        ([0, 100, 300_000, 900_000], [-100, 0, 299_900, 899_900]),
    ],
)
def test_offsets_are_from_the_lower_median_clock(ahead, expected):
    clocks = dict(enumerate(ahead))
    assert result(clocks, dict.fromkeys(clocks, ALL)) == dict(enumerate(expected))


@pytest.mark.parametrize("ranks", [31, 69])
def test_clocks_of_many_ranks_that_are_seconds_apart(ranks):
    clocks = {rank: (rank * rank % ranks) * 10**9 for rank in range(ranks)}
    median = sorted(clocks.values())[ranks // 2]
    expected = {rank: ahead - median for rank, ahead in clocks.items()}
    assert result(clocks, dict.fromkeys(clocks, ALL)) == expected


def test_short_recordings_do_not_shift_offsets():
    """Only common collectives count for a clock, not the recorded time span."""
    clocks = {0: 0, 1: 0, 2: 0, 3: 250_000}
    taking_part = {0: ALL, 1: ALL, 2: ALL, 3: range(3, 5)}
    assert result(clocks, taking_part) == clocks


@pytest.mark.parametrize(("collective", "used"), [("all_to_all", [0, 1]), ("barrier", [0, 1, 2])])
def test_a_rank_without_data_leaves_an_all_to_all_early(collective, used):
    clocks = {0: 0, 1: 0, 2: -90_000}
    rows = matched(clocks, dict.fromkeys(clocks, ALL), collective)
    idle = pl.when(pl.col("rank") == 2).then(0).otherwise("message_bytes")
    offsets = clock_offsets(rows.with_columns(message_bytes=idle), dict.fromkeys(clocks, "a"))
    assert offsets.select("rank", "offset_ns").rows() == [(r, clocks[r]) for r in used]


@pytest.mark.parametrize(("ahead", "applied"), [(CLEAR_NS, False), (CLEAR_NS + 1, True)])
def test_a_small_offset_is_not_applied(ahead, applied):
    clocks = {0: 0, 1: ahead}
    rows = clock_offsets(matched(clocks, dict.fromkeys(clocks, ALL)), {0: "a", 1: "b"})
    assert rows["applied"].to_list() == [False, applied]


@pytest.mark.parametrize(("n", "applied"), [(1, False), (2, False), (3, True)])
@pytest.mark.parametrize("host", ["host0", "host1"])
def test_offset_of_few_collectives_is_not_applied(n, applied, host):
    rows = matched({0: 0, 1: 98_000}, dict.fromkeys((0, 1), range(n)))
    long = rows.with_columns(duration_ns=98_000)
    hosts = {0: "host0", 1: host}
    assert clock_offsets(long, hosts)["applied"].to_list() == [False, applied and host == "host1"]
    # a rank that ends before the other begins has another clock
    short = rows.with_columns(duration_ns=97_999)
    assert clock_offsets(short, hosts)["applied"].to_list() == [False, True]


def test_exact_offsets_leave_no_residual():
    clocks = {0: 0, 1: 0, 2: 250_000, 3: 250_000}
    taking_part = {0: range(4), 1: range(4), 2: range(2, 4), 3: range(2, 4)}
    rows = matched(clocks, taking_part).with_columns(lane=pl.col("instance") // 2)
    fitted = clock_offsets(rows, {rank: f"host{rank}" for rank in clocks})
    assert dict(fitted.select("rank", "offset_ns").rows()) == clocks
    assert fitted["residual_ns"].to_list() == [0, 0, 0, 0]


@pytest.mark.parametrize("name", ["host_clocks_apart", "host_clocks_apart_with_seq"])
def test_hosts_further_apart_than_their_collectives(shared: Path, name: str) -> None:
    path = shared / "data/causes/chrome" / name
    if not path.exists():
        pytest.skip(f"no folder {path}")
    result = ta.comm_outliers(path)
    offsets = dict(result.clocks.select("rank", "offset_ns").iter_rows())
    expected = [0, 0, 420_000, 420_000, -310_000, -310_000, 780_000, 780_000]
    assert [offsets[rank] for rank in range(8)] == pytest.approx(expected, abs=2_000)
    totals = result.totals
    assert totals.total_wait_ns / totals.total_comm_ns == pytest.approx(0.037, abs=0.001)
    assert totals.n_matched == totals.n_events
