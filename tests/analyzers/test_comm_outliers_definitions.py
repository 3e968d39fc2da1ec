"""The definitions once more in plain Python, on generated collectives."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from traceanalyzer.analyzers.comm_outliers import arrivals, outliers

modest = settings(max_examples=60, deadline=None)
Row = dict[str, Any]

# --- outliers --------------------------------------------------------------------------------

INSTANCES = {
    "collective": pl.String, "dtype": pl.String, "message_bytes": pl.Int64, "group": pl.String,
    "group_size": pl.Int32, "kernel": pl.String, "duration_ns": pl.Int64, "rank": pl.Int32,
    "step": pl.String,
}  # fmt: skip


def median(values: list[float]) -> float:
    return float(statistics.median(values))


def gathered(rows: list[Row], *names: str) -> dict[tuple[Any, ...], list[int]]:
    result: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        result[tuple(row[name] for name in names)].append(number)
    return result


def placed(rows: list[Row], like: dict[tuple[Any, ...], list[int]]) -> list[int | None]:
    """Return the position of each row in its step, if the step has the usual count."""
    result: list[int | None] = [None] * len(rows)
    if all(row["message_bytes"] is not None for row in rows):
        return result
    for members in like.values():
        inside = gathered([rows[i] for i in members], "rank", "step")
        sizes = {members[i]: len(in_step) for in_step in inside.values() for i in in_step}
        usual = median([sizes[i] for i in members])
        for in_step in inside.values():
            for place, i in enumerate(in_step):
                row = rows[members[i]]
                unsized = row["message_bytes"] is None
                if unsized and row["step"] is not None and len(in_step) == usual:
                    result[members[i]] = place
    return result


def slowness(rows: list[Row], link: dict[tuple[Any, ...], list[int]]) -> list[float | None]:
    result: list[float | None] = [None] * len(rows)
    for members in link.values():
        sized = [i for i in members if rows[i]["message_bytes"] is not None]
        took = {i: max(rows[i]["duration_ns"], 1) for i in sized}
        if not sized:
            continue
        latency = min(took.values())
        best = max(rows[i]["message_bytes"] / took[i] for i in sized)
        for i in sized:
            transfer = rows[i]["message_bytes"] / best if best > 0 else 0.0
            result[i] = took[i] / (latency + transfer)
    return result


def plainly_judged(rows: list[Row], factor: float, z: float) -> list[tuple[Any, ...]]:
    """(judged_by, factor, z, outlier) of each row."""
    like, link = gathered(rows, *outliers.GROUP), gathered(rows, *outliers.LINK)
    place, slow = placed(rows, like), slowness(rows, link)
    like_of = {i: key for key, members in like.items() for i in members}
    duration = [float(row["duration_ns"]) for row in rows]
    result: list[tuple[Any, ...]] = []
    for i, row in enumerate(rows):
        alike = like[like_of[i]]
        sized = row["message_bytes"] is not None
        linked = [
            j for j in link[tuple(row[name] for name in outliers.LINK)]
            if (rows[j]["message_bytes"] is not None) == sized
        ]  # fmt: skip
        here = [j for j in alike if place[j] == place[i]]
        by, values, measured = None, [], 0.0
        if sized and len(alike) >= 5:
            by, values, measured = "group", [duration[j] for j in alike], duration[i]
        elif sized and len(linked) >= 5:
            by, values, measured = "bandwidth", [slow[j] or 0.0 for j in linked], slow[i] or 0.0
        elif place[i] is not None and len(here) >= 5:
            by, values, measured = "place", [duration[j] for j in here], duration[i]
        elif not sized and len(alike) >= 5:
            by, values, measured = "kernel", [duration[j] for j in alike], duration[i]
        if by is None:
            result.append((None, None, None, False))
            continue
        middle = median(values)
        away = [abs(value - middle) for value in values]
        mad, mean = median(away), sum(away) / len(away)
        spread = mad / 0.6745 if mad > 0 else mean * 1.253314
        ratio = measured / middle if middle > 0 else None
        score = (measured - middle) / spread if spread > 0 else 0.0
        stands_out = ratio is not None and ratio > factor and score > z
        result.append((by, ratio, score, stands_out))
    for alike in like.values():
        by_kernel = [i for i in alike if result[i][0] == "kernel"]
        n = sum(result[i][3] for i in by_kernel)
        if n > 0.1 * len(alike) or (n > 1 and n > 0.1 * len(by_kernel)):
            for i in by_kernel:
                result[i] = (None, None, None, False)
    return result


@st.composite
def instances(draw: st.DrawFn) -> list[Row]:
    sizes = draw(st.sampled_from([[None], [8, 4096], [None, 8, 4096, 65536], [0, 8]]))
    row = st.fixed_dictionaries(
        {
            "collective": st.sampled_from(["all_reduce", "all_gather"]),
            "dtype": st.just("Float"),
            "message_bytes": st.sampled_from(sizes),
            "group": st.sampled_from(["0", None]),
            "group_size": st.just(4),
            "kernel": st.just("k"),
            "duration_ns": st.sampled_from([0, 90, 100, 101, 103, 110, 400, 5_000]),
            "rank": st.sampled_from([0, 1]),
            "step": st.sampled_from(["1", "2", "3", None]),
        }
    )
    return draw(st.lists(row, min_size=1, max_size=40))


@modest
@given(instances(), st.sampled_from([1.0, 3.0]), st.sampled_from([0.0, 3.5]))
def test_outliers_match_definition(rows: list[Row], factor: float, z: float) -> None:
    result = outliers.judge(pl.DataFrame(rows, schema=INSTANCES), factor, z)
    actual = result.select("judged_by", "factor", "z", "outlier").rows()
    for row, expected in zip(actual, plainly_judged(rows, factor, z), strict=True):
        assert (row[0], row[3]) == (expected[0], expected[3])
        assert row[1] == pytest.approx(expected[1])
        assert row[2] == pytest.approx(expected[2])


@pytest.mark.parametrize("count", [4, 5])
@pytest.mark.parametrize("like", ["group", "bandwidth", "place", "kernel"])
def test_comparison_group_needs_five_events(like: str, count: int) -> None:
    rows = [
        {
            "collective": "all_reduce", "dtype": "Float", "group": "0", "group_size": 4,
            "kernel": "k", "duration_ns": 100 + i, "rank": 0,
            "message_bytes": {"group": 8, "bandwidth": 8 << i}.get(like),
            "step": str(i) if like == "place" else None,
        }
        for i in range(count)
    ]  # fmt: skip
    result = outliers.judge(pl.DataFrame(rows, schema=INSTANCES), 3, 3.5)
    assert set(result["judged_by"]) == {like if count == 5 else None}


@pytest.mark.parametrize("replayed", [True, False])
def test_eager_calls_of_unknown_size_are_not_compared_with_replayed_ones(replayed: bool) -> None:
    """Decode steps replay a graph, prefill steps launch longer calls of the same kernel."""
    rows = [
        {
            "collective": "all_reduce", "kernel": "k", "rank": 0, "step": str(i),
            "duration_ns": 100 + i if i % 8 else 900, "replayed": replayed and i % 8 > 0,
        }
        for i in range(48)
    ]  # fmt: skip
    frame = pl.DataFrame(rows, schema={**INSTANCES, "replayed": pl.Boolean})
    assert outliers.judge(frame, 3, 3.5)["outlier"].sum() == (0 if replayed else 6)


@pytest.mark.parametrize(("slow", "expected"), [(1, 1), (2, 0)])
def test_one_call_of_a_step_with_more_calls_than_usual_is_an_outlier(
    slow: int, expected: int
) -> None:
    """Step 0 has 4 calls of unknown size, the other ones 3; some of its calls are slow."""
    rows = [
        {
            "collective": "all_reduce", "kernel": "k", "rank": 0, "step": str(max(i - 1, 0) // 3),
            "duration_ns": 10**9 if i < slow else 100 + i,
        }
        for i in range(61)
    ]  # fmt: skip
    judged = outliers.judge(pl.DataFrame(rows, schema=INSTANCES), 3, 3.5)
    assert judged["outlier"].sum() == expected


def test_a_z_score_must_be_above_the_threshold() -> None:
    rows = [
        {
            "collective": "all_reduce", "dtype": "Float", "message_bytes": 8, "group": "0",
            "group_size": 4, "kernel": "k", "rank": 0, "step": None, "duration_ns": duration,
        }
        for duration in (100, 101, 99, 102, 98, 1_000)
    ]  # fmt: skip
    frame = pl.DataFrame(rows, schema=INSTANCES)
    factor, z = outliers.judge(frame, 3, 3.5).select("factor", "z").row(-1)
    assert outliers.judge(frame, factor - 1e-9, z - 1e-9)["outlier"].to_list()[-1]
    assert not outliers.judge(frame, factor, z - 1e-9)["outlier"].any()
    assert not outliers.judge(frame, factor - 1e-9, z)["outlier"].any()


# --- collectives by kind ---------------------------------------------------------------------

JUDGED = {
    **INSTANCES, "transfer_ns": pl.Int64, "compute_ns": pl.Int64, "outlier": pl.Boolean,
    "judged_by": pl.String,
    "instance": pl.UInt32, "elements_in": pl.Int64, "elements_out": pl.Int64,
    "link": pl.String,
    "link_gbps": pl.Float64,
}  # fmt: skip


@st.composite
def judged(draw: st.DrawFn) -> list[Row]:
    row = st.fixed_dictionaries(
        {
            "collective": st.sampled_from(["all_reduce", "all_gather", "broadcast"]),
            "dtype": st.sampled_from(["Float", None]),
            "message_bytes": st.sampled_from([None, 4096, 1 << 20]),
            "group": st.sampled_from(["0", None]),
            "group_size": st.sampled_from([2, None]),
            "kernel": st.just("k"),
            "duration_ns": st.integers(0, 9).map(lambda n: n * 1_000),
            "rank": st.sampled_from([0, 1]),
            "step": st.none(),
            "transfer_ns": st.sampled_from([None, 0, 500, 1_500]),
            "compute_ns": st.sampled_from([None, 0, 700]),
            "outlier": st.booleans(),
            "judged_by": st.just("group"),
            "link": st.none(),
            "link_gbps": st.none(),
        }
    )
    return draw(st.lists(row, min_size=1, max_size=20))


def quantile(values: list[int], share: float) -> int:
    exact = share * (len(values) - 1)
    low, ordered = math.floor(exact), sorted(values)
    high = min(low + 1, len(values) - 1)
    return round(ordered[low] + (ordered[high] - ordered[low]) * (exact - low))


BUS = {"all_reduce": 1.0, "all_gather": 0.5, "broadcast": 1.0}  # of two ranks


@modest
@given(judged())
def test_groups_match_definition(rows: list[Row]) -> None:
    spans = {0: 1_000_000, 1: 3_000_000}
    result = outliers.summarize(pl.DataFrame(rows, schema=JUDGED), spans)
    expected = gathered(rows, *outliers.GROUP)
    assert {tuple(row[n] for n in outliers.GROUP) for row in result.to_dicts()} == expected.keys()
    keys = [
        (-row["total_ns"], *((row[n] is None, row[n] or 0) for n in outliers.GROUP))
        for row in result.to_dicts()
    ]
    assert keys == sorted(keys)
    for row in result.to_dicts():
        members = [rows[i] for i in expected[tuple(row[n] for n in outliers.GROUP)]]
        took = [r["duration_ns"] for r in members]
        span = sum(spans[rank] for rank in {r["rank"] for r in members})
        assert (row["n"], row["ranks"]) == (len(members), len({r["rank"] for r in members}))
        assert (row["max_ns"], row["total_ns"]) == (max(took), sum(took))
        shares = {"median_ns": 0.5, "p95_ns": 0.95, "p99_ns": 0.99}
        for name, share in shares.items():
            assert row[name] == pytest.approx(quantile(took, share), abs=1)
        assert row["outliers"] == sum(r["outlier"] for r in members)
        assert row["share_frac"] == pytest.approx(sum(took) / span)
        overlaps = [r["compute_ns"] for r in members if r["compute_ns"] is not None]
        overlap_frac = sum(overlaps) / sum(took) if overlaps and sum(took) else None
        assert row["compute_frac"] == pytest.approx(overlap_frac)
        transfers = [r["transfer_ns"] for r in members if r["transfer_ns"] is not None]
        middle = median(transfers) if transfers else None
        assert row["transfer_ns"] == (None if middle is None else pytest.approx(middle, abs=1))
        size, kind = row["message_bytes"], row["collective"]
        factor = BUS[kind] if row["group_size"] or kind == "broadcast" else None
        for time, prefix in (("median_ns", ""), ("transfer_ns", "transfer_")):
            speed = size / row[time] if size is not None and row[time] else None
            if not prefix:
                assert row["algbw_gbps"] == pytest.approx(speed)
            bus = speed * factor if speed is not None and factor is not None else None
            assert row[f"{prefix}busbw_gbps"] == pytest.approx(bus)


# --- arrivals --------------------------------------------------------------------------------

RUN = {
    "instance": pl.Int64, "rank": pl.Int32, "start": pl.Int64, "end": pl.Int64,
    "collective": pl.String, "step": pl.String, "dtype": pl.String, "message_bytes": pl.Int64,
    "group": pl.String, "group_size": pl.Int32, "kernel": pl.String,
}  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> list[Row]:
    """Ranks in matched collectives, each once."""
    result = []
    for instance in range(draw(st.integers(1, 4))):
        for rank in draw(st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True)):
            start = draw(st.integers(0, 8)) * 50_000
            result.append(
                {
                    "instance": instance if draw(st.integers(0, 9)) else None,
                    "rank": rank,
                    "start": start,
                    "end": start + draw(st.integers(0, 8)) * 50_000,
                    "collective": draw(st.sampled_from(["all_reduce", "broadcast"])),
                    "step": draw(st.sampled_from(["1", "2", None])),
                    "dtype": None,
                    "message_bytes": draw(st.sampled_from([None, 8])),
                    "group": "0",
                    "group_size": draw(st.sampled_from([None, 4])),
                    "kernel": "k",
                }
            )
    return result


def together(rows: list[Row]) -> dict[int, list[Row]]:
    result: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row["instance"] is not None:
            result[row["instance"]].append(row)
    return result


def first_known(rows: list[Row], name: str) -> Any:
    return next((row[name] for row in rows if row[name] is not None), None)


OFFSETS = st.dictionaries(st.integers(0, 4), st.sampled_from([-70_000, 30_000, 250_000]))


@modest
@given(runs(), OFFSETS)
def test_arrivals_match_definition(rows: list[Row], offsets: dict[int, int]) -> None:
    result = arrivals.arrivals(pl.DataFrame(rows, schema=RUN), offsets)
    actual = {(r["instance"], r["rank"]): r for r in result.to_dicts()}
    assert len(actual) == sum(row["instance"] is not None for row in rows)
    for instance, members in together(rows).items():
        came = {r["rank"]: r["start"] - offsets.get(r["rank"], 0) for r in members}
        left = {r["rank"]: r["end"] - offsets.get(r["rank"], 0) for r in members}
        first, last = min(came.values()), max(came.values())
        straggler = min(rank for rank, at in came.items() if at == last)
        step = first_known(sorted(members, key=lambda r: (came[r["rank"]], r["rank"])), "step")
        for rank in came:
            row = actual[instance, rank]
            assert (row["arrival"], row["leave"]) == (came[rank], left[rank])
            assert row["after_first_ns"] == came[rank] - first
            assert row["wait_ns"] == min(last, left[rank]) - came[rank]
            assert row["is_last"] == (rank == straggler and last > first)
            assert row["step"] == step


@modest
@given(runs(), OFFSETS)
def test_collectives_match_definition(rows: list[Row], offsets: dict[int, int]) -> None:
    arrived = arrivals.arrivals(pl.DataFrame(rows, schema=RUN), offsets)
    result = arrivals.collectives(arrived)
    assert result["first_arrival_ns"].is_sorted()
    actual = {row["instance"]: row for row in result.to_dicts()}
    assert actual.keys() == together(rows).keys()
    for instance, members in together(arrived.to_dicts()).items():
        row = actual[instance]
        members.sort(key=lambda r: (r["arrival"], r["rank"]))
        first, last = members[0]["arrival"], members[-1]["arrival"]
        stragglers = [r for r in members if r["is_last"]]
        others = [r["arrival"] for r in members if not r["is_last"]]
        assert row["ranks"] == len(members)
        assert row["first_rank"] == members[0]["rank"]
        assert row["last_rank"] == (stragglers[0]["rank"] if stragglers else None)
        assert (row["first_arrival_ns"], row["last_arrival_ns"]) == (first, last)
        assert row["skew_ns"] == last - first
        assert row["arrival_delay_ns"] == last - math.floor(median(others))
        assert row["imposed_ns"] == sum(r["wait_ns"] for r in members)
        ends = [r["leave"] for r in members]
        assert row["transfer_ns"] == max(min(ends) - last, 0)
        assert row["end_skew_ns"] == max(ends) - min(ends)
        for name in ("message_bytes", "group", "group_size", "kernel"):
            assert row[name] == first_known(members, name)
        size = row["group_size"]
        assert row["missing"] == (None if size is None else max(size - len(members), 0))


@modest
@given(runs())
def test_implausible_matches_are_dropped(
    rows: list[Row],
) -> None:
    arrived = arrivals.arrivals(pl.DataFrame(rows, schema=RUN), {})
    kept = {(r["instance"], r["rank"]) for r in arrivals.plausible(arrived).to_dicts()}
    for instance, members in together(arrived.to_dicts()).items():
        apart = max(r["arrival"] for r in members) - min(r["leave"] for r in members)
        for row in members:
            stays = apart <= 100_000 or row["collective"] == "broadcast"
            assert ((instance, row["rank"]) in kept) == stays


# --- clock offsets ---------------------------------------------------------------------------


@st.composite
def ends(draw: st.DrawFn) -> list[Row]:
    """Draw ranks of one group that participate in every collective."""
    ranks = draw(st.integers(1, 4))
    ahead = [draw(st.sampled_from([0, 40_000, 60_000, 2_000_000])) for _ in range(ranks)]
    return [
        {
            "instance": instance, "lane": 0, "rank": rank, "collective": "all_reduce",
            "end": instance * 10_000_000 + ahead[rank] + draw(st.integers(0, 9)) * 2_000,
            "duration_ns": draw(st.sampled_from([1_000, 59_000, 1_000_000, 3_000_000])),
            "message_bytes": 64,
        }
        for instance in range(draw(st.integers(1, 5))) for rank in range(ranks)
    ]  # fmt: skip


@modest
@given(ends(), st.sampled_from(["one", "two", "unknown", "partly"]))
def test_clock_offsets_match_definition(rows: list[Row], where: str) -> None:
    ranks = sorted({row["rank"] for row in rows})
    names: dict[str, list[str | None]] = {
        "one": ["a"] * 4, "two": ["a", "b", "a", "b"],
        "unknown": [None] * 4, "partly": ["a", None, "a", "a"],
    }  # fmt: skip
    hosts = {rank: names[where][rank] for rank in ranks}
    result = arrivals.clock_offsets(pl.DataFrame(rows).cast({"rank": pl.Int32}), hosts)
    of_all = {i: median([r["end"] for r in members]) for i, members in together(rows).items()}
    behind = {
        rank: median([r["end"] - of_all[r["instance"]] for r in rows if r["rank"] == rank])
        for rank in ranks
    }
    zero = sorted(behind.values())[(len(ranks) - 1) // 2]
    offset = {rank: round(behind[rank] - zero) for rank in ranks}
    fixed = [{**r, "end": r["end"] - offset[r["rank"]]} for r in rows]
    of_all = {i: median([r["end"] for r in members]) for i, members in together(fixed).items()}
    one_host = set(hosts.values()) == {"a"}
    for row in result.to_dicts():
        members = [r for r in fixed if r["rank"] == row["rank"]]
        off = [r["end"] - of_all[r["instance"]] for r in members]
        residual = median([abs(value - median(off)) for value in off])
        size = abs(offset[row["rank"]])
        assert row["n"] == len(members)
        assert row["offset_ns"] == pytest.approx(offset[row["rank"]], abs=1)
        assert row["residual_ns"] == pytest.approx(residual, abs=1)
        clear = abs(row["offset_ns"]) > max(5 * row["residual_ns"], 50_000)
        typical = median([r["duration_ns"] for r in members])
        by_chance = one_host or len(members) < 3
        assert row["applied"] == (clear and not (by_chance and size <= typical))


def test_rank_without_offset_is_not_shifted() -> None:
    ranks = pl.DataFrame({"rank": [0, 1, 2]}).select(arrivals.offset_of(pl.col("rank"), {1: 7}))
    assert ranks.to_series().to_list() == [0, 7, 0]


def test_an_offset_must_be_more_than_five_times_the_residual() -> None:
    assert arrivals.CLEAR_RESIDUALS == 5
    sizes = {"offset_ns": [100_000, -100_001], "residual_ns": [20_000, 20_000]}
    result = pl.DataFrame({**sizes, "n": [9, 9], "typical": [1.0, 1.0]})
    applies = arrivals._applies(one_host=False)
    assert result.select(applies).to_series().to_list() == [False, True]


# --- transfers behind wait times -----------------------------------------------------------------


@modest
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 9))))
def test_carried_is_what_is_owed_before_and_hidden_less_what_is_owed(
    rows: list[tuple[int, int, int]],
) -> None:
    """Transfers pay for overlapped wait time before them, in a sequence of their own."""
    expected, owed, numbers, number = [], 0, [], 0
    for begins, hidden, exposed in rows:
        owed, number = (0, number + 1) if begins else (owed, number)
        left = max(0, owed + hidden - exposed)
        expected.append(owed + hidden - left)
        owed = left
        numbers.append(number)
    columns = [numbers, *([row[n] for row in rows] for n in (1, 2))]
    series = (pl.Series(values, dtype=pl.Int64) for values in columns)
    assert arrivals.carried(*series).to_list() == expected
