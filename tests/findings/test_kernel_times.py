"""Kernels of a step or rank compared with the others: a few long calls, or a slow GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, MS, US, device, host, step, trace
from diagnosing import diagnosis

import traceanalyzer as ta
from traceanalyzer.analyzers.common.kernel_times import (
    LARGER_INPUTS,
    LONG_CALL,
    MORE_KERNELS,
    OTHER_KERNELS,
    PERHAPS_SLOW,
    SLOW_GPU,
    Difference,
    compare,
    has_levels,
)
from traceanalyzer.analyzers.kernels import Options
from traceanalyzer.analyzers.kernels.compute import combine, measure_for_diagnosis
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.trace import Trace


def measured_kernels(of: Trace) -> Kernels:
    return combine([measure_for_diagnosis(of, Options())], Options())


#: Calls of each kernel in a step, and their usual duration.
CALLS = {"gemm": (20, 200 * US), "norm": (20, 50 * US), "gelu": (20, 25 * US)}
STEPS = 6


def kernels(odd: dict[str, list[float]], key: str = "step") -> pl.DataFrame:
    """Return kernels by step; in the last step calls take the given multiples of the usual."""
    rows = []
    for number in range(STEPS):
        for name, (n, usual) in CALLS.items():
            factors = odd.get(name, []) if number == STEPS - 1 else []
            each = [usual * f for f in factors] + [usual] * (n - len(factors))
            rows.append((number, f"s{number}", name, n, round(sum(each)), round(max(each))))
    names = [key if key != "step" else "number", "step", "kernel", "n", "total_ns", "max_ns"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    return frame.with_columns(blocks=pl.lit(None, pl.Int64))


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"gelu": [4000.0]}, LONG_CALL),
        ({"gemm": [30.0]}, LONG_CALL),
        ({"gemm": [30.0], "norm": [90.0]}, LONG_CALL),
        ({name: [1.5] * n for name, (n, _) in CALLS.items()}, SLOW_GPU),
        ({name: [2.0] * n for name, (n, _) in CALLS.items()} | {"gelu": [400.0] + [2.0] * 19},
         SLOW_GPU),
        ({"gemm": [2.0] * 20}, LARGER_INPUTS),
        # four times the time of a small kernel is most of the time, but not of the usual time
        ({"gelu": [60.0] * 20}, LARGER_INPUTS),
    ],
)  # fmt: skip
def test_difference_of_a_step(odd: dict[str, list[float]], why: str) -> None:
    difference = compare(kernels(odd), "step", f"s{STEPS - 1}", "in other steps")
    assert difference is not None
    assert difference.why == why


@pytest.mark.parametrize(("more", "why"), [(1, LARGER_INPUTS), (30, MORE_KERNELS)])
def test_other_tiles_for_larger_inputs_are_no_more_work(more: int, why: str) -> None:
    """The library chooses other kernels: several, in place of one."""
    step = kernels({}).filter(step="s5")["number"][0]
    tiles = [(step, "s5", f"gemm_{n}", 5 + more * n, 3 * MS, 600 * US) for n in range(4)]
    rows = kernels({}).filter((pl.col("step") != "s5") | (pl.col("kernel") != "gemm"))
    others = pl.DataFrame(tiles, schema=rows.drop("blocks").schema, orient="row")
    rows = pl.concat([rows, others.with_columns(blocks=pl.lit(None, pl.Int64))])
    difference = compare(rows, "step", "s5", "in other steps")
    assert difference is not None
    assert difference.why == why


@pytest.mark.parametrize(
    ("slower", "same_grid", "is_clock"),
    [
        (("gemm", "flash_fwd_kernel", "flash_bwd_kernel"), True, True),
        (("gemm", "flash_fwd_kernel", "flash_bwd_kernel"), False, False),
        (("flash_fwd_kernel", "flash_bwd_kernel"), True, False),
    ],
)
def test_memory_keeps_its_speed_at_a_lower_clock(
    slower: tuple[str, ...], *, same_grid: bool, is_clock: bool
) -> None:
    """With larger inputs, pointwise kernels would have larger grids."""
    pointwise = "vectorized_elementwise_kernel<GeluCUDAKernelImpl>"
    names = ("gemm", "flash_fwd_kernel", "flash_bwd_kernel", pointwise)
    rows = [
        (f"s{number}", name, 9, 9 * MS * (13 if name in slower and number == 5 else 10),
         99 if name == pointwise and number == 5 and not same_grid else 7)
        for number in range(STEPS) for name in names
    ]  # fmt: skip
    schema = ["step", "kernel", "n", "total_ns", "blocks"]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    difference = compare(
        frame.with_columns(max_ns=pl.col("total_ns") // 9), "step", "s5", "in other steps"
    )
    assert difference is not None
    assert ("clock" in difference.text) == is_clock
    assert not is_clock or difference.why == SLOW_GPU


@pytest.mark.parametrize(
    ("slower", "grid", "is_memory"),
    [
        (("norm", "Gelu", "multi"), 7, True),
        (("norm", "Gelu", "multi"), None, True),
        (("norm", "Gelu", "multi"), 9, False),
        (("norm",), 7, False),
        (("norm", "Gelu", "multi", "flash"), 7, False),
    ],
)
def test_slow_memory_slows_down_all_but_products(
    slower: tuple[str, ...], grid: int | None, *, is_memory: bool
) -> None:
    """Products of larger inputs have other grids, unless no grid was recorded."""
    names = ("gemm", "flash_fwd_kernel", "layer_norm_kernel", "multi_tensor_apply_kernel<Adam>",
             "vectorized_elementwise_kernel<GeluCUDAKernelImpl>")  # fmt: skip
    rows = [
        (f"s{number}", name, 9, 9 * MS * (17 if odd and any(s in name for s in slower) else 10),
         grid if grid is None or (odd and name == "gemm") else 7)
        for number in range(STEPS) for name in names for odd in (number == 5,)
    ]  # fmt: skip
    schema = dict.fromkeys(["step", "kernel", "n", "total_ns", "blocks"], pl.Int64)
    schema |= dict.fromkeys(["step", "kernel"], pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    difference = compare(
        frame.with_columns(max_ns=pl.col("total_ns") // 9), "step", "s5", "in other steps"
    )
    assert difference is not None
    assert ("memory of the GPU" in difference.text) == is_memory
    assert ("ECC" in difference.advice("")) == is_memory
    assert not is_memory or difference.why == SLOW_GPU
    assert ("or larger inputs" in difference.text) == (is_memory and grid is None)


@pytest.mark.parametrize(("key", "why"), [("rank", OTHER_KERNELS), ("step", MORE_KERNELS)])
def test_kernel_that_only_one_runs(key: str, why: str) -> None:
    rows = kernels({}, key)
    extra = rows.tail(1).with_columns(kernel=pl.lit("sgemm"), total_ns=pl.lit(2 * MS))
    value = extra[key][0]
    difference = compare(pl.concat([rows, extra], how="vertical_relaxed"), key, value, "elsewhere")
    assert difference is not None
    assert (difference.why, difference.alone) == (why, "sgemm")
    # in place of another kernel
    others = rows.filter((pl.col(key) != value) | (pl.col("kernel") != "gelu"))
    replaced = compare(pl.concat([others, extra], how="vertical_relaxed"), key, value, "elsewhere")
    assert replaced is not None
    assert (replaced.why, replaced.alone) == (why, "")


@pytest.mark.parametrize(
    ("pointwise", "optimizer", "grid", "slow", "why"),
    [
        (2.0, 1.0, None, (5,), LARGER_INPUTS),
        (2.0, 1.0, 7, (5,), PERHAPS_SLOW),  # one step shows no two speeds
        (2.0, 1.0, 7, (4, 5), SLOW_GPU),
        (1.6, 1.0, 7, (4, 5), SLOW_GPU),
        (2.0, 2.0, 7, (5,), SLOW_GPU),
        (1.0, 1.0, 7, (5,), SLOW_GPU),
    ],
)
def test_slow_gpu_slows_down_the_optimizer_too(
    pointwise: float, optimizer: float, grid: int | None, slow: Sequence[int], why: str
) -> None:
    """Unless only the clock of the multiprocessors falls: the optimizer waits for memory."""
    calls = {"gemm": 2.0, "vectorized_elementwise_kernel<GeluCUDAKernelImpl>": pointwise,
             "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>": optimizer}  # fmt: skip
    usual = dict(zip(calls, (4 * MS, 100 * US, 100 * US), strict=True))
    rows = [
        (f"s{number}", name, 20, round(20 * usual[name] * (factor if number in slow else 1)))
        for number in range(STEPS)
        for name, factor in calls.items()
    ]
    frame = pl.DataFrame(rows, schema=["step", "kernel", "n", "total_ns"], orient="row")
    frame = frame.with_columns(max_ns=pl.col("total_ns") // 20, blocks=pl.lit(grid, pl.Int64))
    difference = compare(frame, "step", "s5", "in other steps")
    assert difference is not None
    assert difference.why == why


def of_steps(speeds: list[float], *, some: bool = False, blocks: int = 64) -> pl.DataFrame:
    """Return kernels with equal grids in steps of these speeds; of the optimizer, the same time.

    Args:
        speeds: how many times as long calls take on average in each step.
        some: the longest calls are equally long in all steps.
        blocks: of the grid.
    """
    usual = {"gemm": 200 * US, "vectorized_elementwise_kernel<GeluCUDAKernelImpl>": 20 * US}
    adam = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>"
    rows = []
    for number, speed in enumerate(speeds):
        for name, us in (*usual.items(), (adam, 50 * US)):
            each = us * (speed if name != adam else 1)
            longest = us * max(speeds) if some and name != adam else each
            rows.append((f"s{number}", name, 20, round(20 * each), round(longest), blocks))
    names = ["step", "kernel", "n", "total_ns", "max_ns", "blocks"]
    return pl.DataFrame(rows, schema=names, orient="row")


@pytest.mark.parametrize(("speeds", "some", "why"), [
    ([1, 1, 1, 1, 1.45, 1.46, 1.45], False, SLOW_GPU),
    ([1.2, 1.05, 1, 1.3, 1.12, 1, 1.4], True, SLOW_GPU),
    ([1, 1.3, 0.8, 1.15, 1, 0.9, 1.6], False, PERHAPS_SLOW),
    ([1, 1.5, 0.6, 1.2, 0.9, 2, 1.8], False, PERHAPS_SLOW),
    ([1, 1, 1.5], False, PERHAPS_SLOW),
])  # fmt: skip
@pytest.mark.parametrize("key", ["step", "rank"])
def test_equal_grids_may_be_padded_inputs_unless_speeds_have_levels(
    key: str, speeds: list[float], why: str, *, some: bool
) -> None:
    """Throttled in some steps, shared with bursts of another process; padded inputs."""
    frame, value, who = of_steps(speeds, some=some), f"s{len(speeds) - 1}", "in other steps"
    if key == "rank":
        others = [of_steps([1.0] * len(speeds), some=some) for _ in range(3)]
        longest = frame.select("step", "kernel", longest="max_ns")
        if some:  # bursts on all ranks
            others = [
                one.join(longest, on=["step", "kernel"])
                .with_columns(max_ns="longest")
                .drop("longest")
                for one in others
            ]
        ranks = [one.with_columns(rank=pl.lit(r)) for r, one in enumerate([*others, frame])]
        frame, value, who = pl.concat(ranks), 3, "on the other ranks"
    difference = compare(frame, key, value, who)
    assert difference is not None
    assert difference.why == why
    assert difference.advice("tool") == Difference(SLOW_GPU, "").advice("tool")


@pytest.mark.parametrize(("blocks", "missing", "why"), [
    (4000, 0, MORE_KERNELS), (4000, 20, LARGER_INPUTS),
])  # fmt: skip
@pytest.mark.parametrize("key", ["rank", "step"])
def test_one_more_kernel_is_no_larger_grid(key: str, blocks: int, missing: int, why: str) -> None:
    """An output layer on the last rank only; or the grids of all products are larger."""
    ranks = [of_steps([1.0] * 4) for _ in range(4)]
    frame = pl.concat([one.with_columns(rank=pl.lit(r)) for r, one in enumerate(ranks)])
    frame = of_steps([1.0] * 4) if key == "step" else frame
    value = "s3" if key == "step" else 3
    is_last = (pl.col(key) == pl.lit(value)) & (pl.col("kernel") == "gemm")
    calls = missing or 2
    took = {"n": calls, "total_ns": calls * 800 * US, "max_ns": 800 * US, "blocks": blocks}
    more = frame.filter(is_last).with_columns(pl.lit(v).alias(k) for k, v in took.items())
    left = frame.filter(~is_last) if missing else frame
    frame = pl.concat([left, more], how="vertical_relaxed")
    difference = compare(frame, key, value, "elsewhere")
    assert difference is not None
    assert difference.why == why
    assert ("4,000 blocks" in difference.text) == (blocks == 4000 and not missing)


def test_long_call_names_kernel_and_times() -> None:
    difference = compare(kernels({"gelu": [4000.0]}), "step", "s5", "in other steps")
    assert difference is not None
    assert all(part in difference.text for part in ("one call of gelu", "100 ms", "25 us", "59"))


def job(long_ms: int, ranks: int = 4) -> list[Trace]:
    """Return ranks of six steps; one call of the last rank is long in step 3."""
    return [trace(list(_rank(rank, ranks, long_ms)), rank, world_size=ranks)
            for rank in range(ranks)]  # fmt: skip


def _rank(rank: int, ranks: int, long_ms: int) -> Iterator[dict[str, Any]]:
    begin = 0
    for number in range(STEPS):
        long = long_ms * MS if number == 3 else 0
        work = sum(n * ns for n, ns in CALLS.values())
        end = begin + work + long + MS
        yield step(number, begin, end - begin)
        yield host("cpu_op", "aten::mm", begin, 10)
        at = begin
        for name, (n, usual) in CALLS.items():
            for call in range(n):
                is_long = rank == ranks - 1 and name == "gelu" and call == 7
                yield device(name, at, usual + long * is_long)
                at += usual + long * is_long
        if ranks > 1:
            yield device(ALL_REDUCE, at, end - at, stream=20, dtype="float", elements_in=1 << 20,
                         group="0", group_size=ranks, seq=number)  # fmt: skip
        begin = end


@pytest.mark.matrix
def test_long_call_of_a_rank_is_one_finding() -> None:
    first, *others = ta.diagnose(job(40)).findings
    assert (first.id, first.rank, first.step) == ("straggler", 3, "ProfilerStep#3")
    assert "one call of gelu in ProfilerStep#3" in first.title
    assert "uneven-steps" in {effect.id for effect in first.effects}
    assert not {"throttled-steps", "uneven-steps"} & {one.id for one in others}


@pytest.mark.parametrize(("busy", "is_named"), [((3,), True), ((2, 3), True), (range(6), False)])
def test_another_process_on_the_gpu_in_slow_steps(busy: Iterable[int], *, is_named: bool) -> None:
    """All kernels take 1.8 times as long in steps 2 and 3; process 9 runs in these, or in all."""
    events, at = [], 0
    for number in range(STEPS):
        begin = at
        for nth, (name, (n, usual)) in enumerate(CALLS.items()):
            for call in range(n):
                took = round(usual * (1.8 if number in (2, 3) else 1))
                ids = {"pid": 1, "correlation": 1000 * number + 100 * nth + call}
                events += [host("cuda_runtime", "cudaLaunchKernel", at, 5, **ids)]
                events += [device(name, at + 10, took, **ids)]
                at += took + 20
        events.append(step(number, begin, at - begin))
        if number in busy:
            events.append(device("of_other", begin, at - begin, pid=9, stream=3))
    first = ta.diagnose(trace(events)).findings[0]
    assert first.id == "throttled-steps"
    assert ("process 9 uses" in first.title) == is_named
    assert ("clocks" in first.advice) != is_named
    by_step = measured_kernels(trace(events)).by_step
    assert by_step is not None
    assert "of_other" not in by_step["kernel"].to_list()


@pytest.mark.parametrize(("more", "attends"), [(("flash_fwd",), True), (("gemm", "norm"), False)])
def test_more_attention_alone_is_a_larger_part_of_one_sequence(
    more: tuple[str, ...], *, attends: bool
) -> None:
    rows = [
        (rank, "s0", name, n + 20 * (rank == 3 and name in more), ns)
        for rank in range(4)
        for name, (n, ns) in {**CALLS, "flash_fwd": (20, 300 * US)}.items()
    ]
    frame = pl.DataFrame(rows, schema=["rank", "step", "kernel", "n", "max_ns"], orient="row")
    frame = frame.with_columns(total_ns=pl.col("n") * pl.col("max_ns"), blocks=pl.lit(7, pl.Int64))
    difference = compare(frame, "rank", 3, "on the other ranks")
    assert difference is not None
    assert (difference.why, difference.attends) == (MORE_KERNELS, attends)
    assert ("zigzag" in difference.advice("nvidia-smi")) == attends


@pytest.mark.matrix
def test_long_call_of_the_only_gpu_is_no_throttled_gpu() -> None:
    (one,) = (f for f in ta.diagnose(job(40, ranks=1)).findings if "gelu" in f.title)
    assert (one.id, one.step) == ("uneven-steps", "ProfilerStep#3")
    assert "throttled" not in one.title + one.advice
    assert "one-kernel" not in {f.id for f in ta.diagnose(job(40, ranks=1)).findings}


@pytest.mark.parametrize(
    ("name", "id_", "cost_ns"),
    [
        ("one_long_kernel.json.gz", "uneven-steps", 15 * MS),
        ("one_long_kernel_of_a_rank", "straggler", 33_333_333),
        ("moe", "expert-imbalance", 2_250_000),
    ],
)
def test_recordings_of_others(shared: Path, name: str, id_: str, cost_ns: int) -> None:
    path = shared / "data/causes/chrome" / name
    if not path.exists():
        pytest.skip(f"no file {path}")
    findings = diagnosis(path).findings
    assert "one-kernel" not in {one.id for one in findings}
    large = [one for one in findings if one.severity == "critical"]
    assert [one.id for one in large] == [id_]
    assert large[0].cost_ns == pytest.approx(cost_ns, rel=0.001)
    assert "throttled" not in large[0].title


def test_no_kernel_with_equal_grids_has_no_difference() -> None:
    """Most steps lack what this step has: the only time of a kernel is that of another step."""
    schema = ["number", "step", "kernel", "n", "total_ns", "max_ns", "blocks"]
    rows = [
        (0, "s0", "gemm", 1, 50, 50, 132),
        (1, "s1", "gemm", 1, 50, 50, 132),
        (2, "s2", "norm", 1, 80, 80, None),
        (3, "s3", "norm", 1, 250, 250, None),
        (3, "s3", "gemm", 1, 110, 110, 280),
    ]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    assert compare(frame, "step", "s3", "in other steps") is None


def test_a_grid_for_each_step_is_larger_inputs() -> None:
    """Each step has as many calls: none is additional."""
    rows = [
        (name, f"s{number}", 14, 14 * 1000 * blocks, blocks)
        for number in range(8)
        for name, blocks in (("gemm", 300 + 100 * number), ("norm", 100))
    ]
    names = ["kernel", "step", "n", "total_ns", "blocks"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    frame = frame.with_columns(max_ns=pl.col("total_ns") // 14)
    difference = compare(frame, "step", "s7", "in other steps")
    assert difference is not None
    assert difference.why == LARGER_INPUTS


@pytest.mark.parametrize(
    ("times", "levels"),
    [
        ([1.0] * 5, True),
        ([1.0, 1.0, 1.0, 1.4, 1.4], True),
        ([1.0, 1.0, 1.0, 1.0, 1.4], False),
        ([1.0, 1.4], False),
        ([1.0, 1.2, 1.4, 1.6, 1.8], False),
        ([0.9, 1.05, 1.9, 2.1, 2.1], True),
        ([1.0, 1.05, 1.3, 1.4, 1.5, 1.7, 1.9, 2.1], False),
        ([], False),
    ],
)
def test_levels_need_several_steps_each(times: list[float], levels: bool) -> None:
    assert has_levels(pl.Series(times, dtype=pl.Float64)) == levels
