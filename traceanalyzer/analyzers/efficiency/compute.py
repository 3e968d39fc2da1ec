"""FLOPs and times of each rank by operator and step, combined over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import device_steps, step_marks
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import COMPUTE, device_work
from traceanalyzer.analyzers.efficiency import Options, Precision, roofs
from traceanalyzer.analyzers.efficiency.calls import (
    INPUTS_OF,
    PRODUCTS,
    WORK,
    Calls,
    calls_of,
    product_calls,
)
from traceanalyzer.analyzers.efficiency.formulas import MATRIX
from traceanalyzer.analyzers.efficiency.peaks import TENSOR
from traceanalyzer.analyzers.efficiency.result import Efficiency
from traceanalyzer.errors import MissingData
from traceanalyzer.run.loop import run
from traceanalyzer.schema import INPUTS
from traceanalyzer.trace import Inputs, Trace, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS, NSYS

#: Sums of a step; those of FLOPs are by precision.
_STEP_TIMES = ("kernel_ns", "covered_ns", "tensor_ns")


#: FLOPs of a step in one precision.
_FLOPS = {
    "step": pl.UInt32,
    "precision": pl.String,
    "model_flops": pl.Float64,
    "recomputed_flops": pl.Float64,
}


#: Operators with their inputs, kernels with their launch calls, and marks of steps.
NEEDS: Needs = Needs(
    {*DEVICE_WORK, *LAUNCH_KINDS, *step_marks.MARK_KINDS} - {"other"},
    step_marks.MARK_NAMES,
    INPUTS,
    unused=("bytes", "address"),
    inputs_of=INPUTS_OF,
)


@dataclass(frozen=True)
class Part:
    """One rank.

    Attributes:
        rank: global rank, or None if the file has none.
        path: the file.
        gpu: name of its GPU, or None if it is not recorded, or there are different ones.
        devices: number of devices that ran kernels.
        world_size: number of ranks in the job, or None.
        rows: one row per operator and work: ``operator``, ``is_recomputed``, :data:`.calls.WORK`,
            and the sums ``calls``, ``kernels``, ``device_ns``.
        steps: one row per step: ``step`` (name, null for the whole recording), ``step_ns``,
            kernel_ns (time of compute kernels launched in it), covered_ns (that of operators with a
            formula), tensor_ns (that of products on tensor cores).
        flops: FLOPs of products, convolutions and attention: ``step`` (row of ``steps``),
            ``precision``, ``model_flops``, ``recomputed_flops``.
        uncovered: compute kernels without a formula by the innermost operator: ``operator`` (null
            without a recorded launch inside an operator), ``kernels``, ``device_ns``.
        kernel_ns: time of all compute kernels; covered_ns: that of operators with a formula.
        has_shapes: whether any operator has recorded inputs.
        inferred: whether steps were detected from repeated kernels.
        products: rows of matrix products and convolutions without the other kernels that they
            launch, columns of ``rows``; None unless for a report or a diagnosis.
    """

    rank: int | None
    path: str
    gpu: str | None
    devices: int
    world_size: int | None
    rows: pl.DataFrame
    steps: pl.DataFrame
    flops: pl.DataFrame
    uncovered: pl.DataFrame
    kernel_ns: int
    covered_ns: int
    has_shapes: bool
    inferred: bool
    products: pl.DataFrame | None = None


def measure(trace: Trace, options: Options) -> Part:
    """Return the operators and steps of one rank.

    Raises:
        MissingData: no kernels, or neither input shapes nor ``params`` and ``tokens`` are known.
        OptionError: a pattern is not a regular expression.
    """
    if "kernel" not in trace.kinds:
        trace.require("kernel")
    work = device_work(trace, options.comm_patterns)
    work = work.filter(pl.col("work_kind") == COMPUTE)
    if work.is_empty():
        raise MissingData(f"{trace.meta.path}: all recorded kernels are communication")
    has_shapes = _has_shapes(trace, required=options.params is None)
    calls = calls_of(trace, work) if has_shapes else _without_calls(work)
    steps = device_steps.device_steps(trace, options.step_name)
    inferred = step_marks.by_kernels(steps)
    steps = _whole(work) if steps.is_empty() else steps
    return _part(trace, work, calls, steps, has_shapes=has_shapes, inferred=inferred)


def measure_for_report(trace: Trace, options: Options) -> Part:
    """Return the part of :func:`measure` with ``products``.

    Raises:
        MissingData: no kernels or no input shapes were recorded.
    """
    part = measure(trace, options)
    calls = product_calls(trace, options.comm_patterns) if part.has_shapes else _NO_CALLS
    return replace(part, products=_summed(calls))


def measure_for_rules(trace: Trace, options: Options) -> Part:
    """Return the matrix products and convolutions of one rank, without steps.

    Raises:
        MissingData: no kernels, no such operators, or no shapes were recorded.
    """
    if "kernel" not in trace.kinds:
        trace.require("kernel")
    try:
        _has_shapes(trace, required=True)
    except MissingData as error:
        # inputs are read of products only
        if trace.meta.format == NSYS or not PRODUCTS.isdisjoint(trace.names):
            raise
        why = "no matrix product or convolution was recorded"
        raise MissingData(f"{trace.meta.path}: {why}") from error
    work = device_work(trace, options.comm_patterns)
    calls = Calls(product_calls(trace, options.comm_patterns), _without_calls(work[:0]).kernels)
    part = _part(trace, work, calls, _whole(work), has_shapes=True, inferred=False)
    return replace(part, products=part.rows)


def _whole(work: pl.DataFrame) -> pl.DataFrame:
    """Return the whole recording as one step."""
    span = work.select(
        pl.lit(None, pl.String).alias("step"), pl.col("start").min(), pl.col("end").max()
    )
    return span.head(1).with_columns(tid=pl.lit(None, pl.Int64))


def _part(
    trace: Trace,
    work: pl.DataFrame,
    calls: Calls,
    steps: pl.DataFrame,
    *,
    has_shapes: bool,
    inferred: bool,
) -> Part:
    rows = _in_step(calls.rows.with_columns(start="first"), steps)
    kernels = _in_step(calls.kernels, steps)
    used = set(work["device"].drop_nulls().unique())
    names = {one.name for one in trace.meta.devices if one.id in used or not used}
    known = names or {one.name for one in trace.meta.devices}
    return Part(
        rank=trace.meta.rank,
        path=trace.meta.path,
        gpu=known.pop() if len(known) == 1 else None,
        devices=max(1, len(used)),
        world_size=trace.meta.world_size,
        rows=_summed(rows),
        steps=_steps(steps, kernels, rows),
        flops=_flops(rows),
        uncovered=_uncovered(kernels),
        kernel_ns=int(kernels["length_ns"].sum()),
        covered_ns=int(kernels.filter("is_covered")["length_ns"].sum()),
        has_shapes=has_shapes,
        inferred=inferred,
    )


def _has_shapes(trace: Trace, *, required: bool) -> bool:
    """Whether operators have recorded shapes.

    Raises:
        MissingData: they do not, but are required.
    """
    columns = trace.events.columns
    if all(name in columns for name in INPUTS) and trace.events["input_dims"].count():
        return True
    if not required:
        return False
    if trace.meta.format == NSYS:
        raise MissingData(
            f"{trace.meta.path}: Nsight Systems records no shapes; give --params and --tokens for "
            "the MFU, or record with torch.profiler record_shapes=True"
        )
    if "input_dims" not in columns or "input_types" not in columns:
        wanted = ", ".join(f'"{name}"' for name in INPUTS)
        hint = f"traceanalyzer.read(path, columns=[{wanted}]) reads them"
        raise MissingData(f"{trace.meta.path}: read without input shapes; {hint}")
    hint = record_hint(trace.meta, "input_dims")
    raise MissingData(
        f"{trace.meta.path}: no input shapes were recorded; {hint}, or give --params and --tokens "
        "for the MFU"
    )


_NO_CALLS = pl.DataFrame(
    schema={
        "operator": pl.String,
        **WORK,
        "is_recomputed": pl.Boolean,
        **dict.fromkeys(("first", "launched", "kernels", "device_ns"), pl.Int64),
    }
)


def _without_calls(work: pl.DataFrame) -> Calls:
    """Return no calls, and the kernels: their launch is not needed."""
    kernels = work.select(
        "start",
        pl.col("start").alias("launched"),
        length_ns=pl.col("end") - pl.col("start"),
        operator=pl.lit(None, pl.String),
        is_covered=pl.lit(value=False),
    )
    return Calls(_NO_CALLS, kernels)


def _in_step(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add ``step``, a row of ``steps``: the step that launched the kernel or call."""
    return rows.with_columns(device_steps.launching_step(steps, rows["launched"], rows["start"]))


def _summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the calls by operator and work."""
    keys = ["operator", *WORK, "is_recomputed"]
    sums = rows.group_by(keys).agg(
        calls=pl.len().cast(pl.Int64),
        kernels=pl.col("kernels").sum().cast(pl.Int64),
        device_ns=pl.col("device_ns").sum(),
    )
    return sums.sort(keys, nulls_last=True)


def _steps(steps: pl.DataFrame, kernels: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with the times of :data:`_STEP_TIMES`."""
    by_step = kernels.group_by("step").agg(
        kernel_ns=pl.col("length_ns").sum(),
        covered_ns=pl.col("length_ns").filter("is_covered").sum(),
    )
    on_tensor_cores = pl.col("kind").is_in(MATRIX) & pl.col("precision").is_in(TENSOR)
    tensor = rows.filter(on_tensor_cores).group_by("step").agg(tensor_ns=pl.col("device_ns").sum())
    numbered = steps.with_row_index("number").with_columns(step_ns=pl.col("end") - pl.col("start"))
    joined = numbered.join(by_step, left_on="number", right_on="step", how="left").join(
        tensor, left_on="number", right_on="step", how="left"
    )
    return joined.sort("number").select(
        "step", "step_ns", *(pl.col(name).fill_null(0) for name in _STEP_TIMES)
    )


def _uncovered(kernels: pl.DataFrame) -> pl.DataFrame:
    """Sum the kernels without a formula by operator."""
    rows = kernels.filter(~pl.col("is_covered")).group_by("operator")
    return rows.agg(kernels=pl.len().cast(pl.Int64), device_ns=pl.col("length_ns").sum())


def _flops(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the FLOPs of products, convolutions and attention by step and precision."""
    exact = pl.col("flops").cast(pl.Int128)
    again = pl.col("is_recomputed")
    sums = rows.filter(pl.col("kind").is_in(MATRIX)).drop_nulls("step").group_by(
        "step", "precision"
    ).agg(
        model_flops=exact.filter(~again).sum().cast(pl.Float64),
        recomputed_flops=exact.filter(again).sum().cast(pl.Float64),
    )  # fmt: skip
    return sums.select(pl.col(name).cast(dtype) for name, dtype in _FLOPS.items()).sort(
        "step", "precision"
    )


# --- all ranks ---------------------------------------------------------------------------------


def combine(parts: Sequence[Part], options: Options) -> Efficiency:
    """Combine all ranks, with the peaks of their GPUs."""
    ordered = sorted(parts, key=lambda part: (part.rank is None, part.rank or 0, part.path))
    peaks = roofs.by_gpu({part.gpu for part in parts}, options)
    precision = options.precision or _main_precision(ordered)
    steps = _joined_steps(ordered, peaks, precision)
    ranks = _ranks(ordered, steps, peaks, precision, options)
    operators = roofs.with_roofs(_of_all_ranks((p.rows, p.gpu) for p in ordered), peaks)
    products = [(part.products, part.gpu) for part in ordered if part.products is not None]
    uncovered = pl.concat([part.uncovered for part in parts]).group_by("operator")
    return Efficiency(
        precision=precision,
        kernel_ns=sum(part.kernel_ns for part in parts),
        covered_ns=sum(part.covered_ns for part in parts),
        has_shapes=any(part.has_shapes for part in parts),
        inferred=any(part.inferred for part in parts),
        marked=any(step is not None for step in steps["step"]),
        peaks=roofs.table(peaks),
        operators=operators,
        products=roofs.with_roofs(_of_all_ranks(products), peaks) if products else None,
        kinds=roofs.by_kind(operators, sum(part.kernel_ns for part in parts)),
        findings=roofs.findings(operators, sum(part.kernel_ns for part in parts)),
        uncovered=largest_first(
            uncovered.agg(pl.col("kernels", "device_ns").sum()), "device_ns", "operator"
        ),
        steps=steps,
        ranks=ranks,
    )


def _main_precision(parts: Sequence[Part]) -> str:
    """Return the precision with most FLOPs; bf16 without any."""
    flops = pl.concat([part.flops for part in parts])
    sums = flops.group_by("precision").agg(
        (pl.col("model_flops") + pl.col("recomputed_flops")).sum().alias("flops")
    )
    ordered = sums.sort("flops", "precision", descending=[True, False])
    return ordered["precision"][0] if ordered.height else "bf16"


def _of_all_ranks(rows: Iterable[tuple[pl.DataFrame, str | None]]) -> pl.DataFrame:
    """Sum the calls of all ranks, each with its GPU, by operator, work and GPU."""
    keys = ["operator", *WORK, "gpu"]
    again = pl.col("calls").filter("is_recomputed").sum()
    on_gpus = [frame.with_columns(gpu=pl.lit(gpu, pl.String)) for frame, gpu in rows]
    sums = (
        pl.concat(on_gpus)
        .group_by(keys)
        .agg(pl.col("calls", "kernels", "device_ns").sum(), recomputed_calls=again)
    )
    return sums.sort(keys, nulls_last=True)


def _joined_steps(parts: Sequence[Part], peaks: roofs.PeaksByGpu, precision: str) -> pl.DataFrame:
    """Return the steps of all ranks with their FLOPs, MFU and HFU."""
    frames = []
    for part in parts:
        sums = part.flops.group_by("step").agg(
            pl.col("model_flops").sum(), pl.col("recomputed_flops").sum()
        )
        numbered = part.steps.with_row_index("number")
        joined = numbered.join(sums, left_on="number", right_on="step", how="left").sort("number")
        ends = joined.select("step", end=pl.col("step_ns").cum_sum(), step_ns="step_ns")
        spans = ends.with_columns(start=pl.col("end") - pl.col("step_ns"))
        frames.append(
            joined.drop("number").with_columns(
                device_steps.is_warm_up(spans, ()),
                pl.col("model_flops", "recomputed_flops").fill_null(0.0),
                rank=pl.lit(part.rank, pl.Int32),
                path=pl.lit(part.path),
                peak=pl.lit(roofs.peak(peaks, part.gpu, precision), pl.Float64) * part.devices,
            )
        )
    steps = pl.concat(frames)
    return steps.select(
        "rank", "path", "step", "step_ns", *_STEP_TIMES, "model_flops", "recomputed_flops",
        *roofs.utilisation("step_ns"), "warm_up",
    )  # fmt: skip


def _ranks(
    parts: Sequence[Part],
    steps: pl.DataFrame,
    peaks: roofs.PeaksByGpu,
    precision: str,
    options: Options,
) -> pl.DataFrame:
    """Return one row per rank: GPU, steps, FLOPs per step, MFU and HFU, shares of kernel time.

    Steps of warm-up do not count, except in the covered share.
    """
    gpus = options.gpus or _gpus(parts)
    rows = []
    for part in parts:
        peak = roofs.peak(peaks, part.gpu, precision)
        of_rank = steps.filter(
            ~pl.col("warm_up"),
            pl.col("rank").eq_missing(pl.lit(part.rank, pl.Int32)),
            pl.col("path") == part.path,
        )
        total_ns, n = int(of_rank["step_ns"].sum()), of_rank.height
        whole = peak * part.devices * total_ns * 1e3 if peak and total_ns else None
        model, again = (float(of_rank[f"{of}_flops"].sum()) for of in ("model", "recomputed"))
        known = bool(whole) and part.has_shapes and model > 0
        kernel_ns = int(of_rank["kernel_ns"].sum())
        six = 6 * (options.params or 0) * (options.tokens or 0) * part.devices / gpus
        rows.append(
            {
                "rank": part.rank,
                "path": part.path,
                "gpu": part.gpu,
                "steps": n,
                "step_ns": round(total_ns / n),
                "flops": model / n if part.has_shapes else None,
                "recomputed_frac": again / model if model else None,
                "mfu_frac": model / whole if known and whole else None,
                "hfu_frac": (model + again) / whole if known and whole else None,
                "mfu_6nt_frac": six * n / whole if six and whole else None,
                "tensor_frac": of_rank["tensor_ns"].sum() / kernel_ns
                if kernel_ns and part.covered_ns
                else None,
                "covered_frac": part.covered_ns / part.kernel_ns if part.kernel_ns else None,
            }
        )
    fracs = [name for name in rows[0] if name.endswith("_frac")]
    types = {"rank": pl.Int32, "path": pl.String, "gpu": pl.String, "steps": pl.Int64}
    types |= {"step_ns": pl.Int64, "flops": pl.Float64, **dict.fromkeys(fracs, pl.Float64)}
    return pl.DataFrame(rows, schema=types)


def _gpus(parts: Sequence[Part]) -> int:
    """Return the GPUs of the job: one per rank of the world, else those in the files."""
    recorded = sum(part.devices for part in parts)
    return max(recorded, *(part.world_size or 1 for part in parts))


EFFICIENCY = Analyzer(
    "efficiency",
    Options,
    NEEDS,
    measure,
    combine,
    measure_for={"page": measure_for_report, "findings": measure_for_rules},
)


def efficiency(
    inputs: Inputs,
    *,
    peak: str | Sequence[str] = (),
    bandwidth: float | None = None,
    precision: Precision | None = None,
    params: float | None = None,
    tokens: float | None = None,
    gpus: int | None = None,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Efficiency:
    """Return FLOP/s, memory bandwidth and MFU against the peaks of the GPU.

    FLOPs and bytes of an operator follow from the shapes and types of its inputs, the time is that
    of its kernels. Operators without a formula and collectives are not counted.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        peak: dense peaks as ``PRECISION=TFLOPS``, such as ``bf16=989.4``; they override the table.
        bandwidth: memory bandwidth of the GPU in GB/s.
        precision: peak that MFU is relative to; default: the precision with most FLOPs.
        params: parameters of the model, for MFU as 6 N T.
        tokens: tokens per step on all GPUs, for MFU as 6 N T.
        gpus: GPUs that share the tokens; default: the world size, else the GPUs in the files.
        step_name: regular expression of the names of steps.
        comm_patterns: regular expressions of additional communication kernels, not counted.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no kernels, or neither input shapes nor ``params`` and ``tokens`` are known.
        OptionError: a peak or a regular expression is not valid.
    """
    options = Options(peak, bandwidth, precision, params, tokens, gpus, step_name, comm_patterns)
    return run(EFFICIENCY, inputs, options, **reading)
