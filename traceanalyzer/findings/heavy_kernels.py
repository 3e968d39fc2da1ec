"""Rule for a kernel that takes a large part of the time and is not a matrix product."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.analyzers.common.kernel_names import ATTENTION, CONVOLUTION, GEMM, KV_CACHE
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import AUTOTUNING, ONE_BY_ONE, SEARCH, TUNING
from traceanalyzer.findings.busy import (
    called_from,
    double_in,
    in_steps,
    launched_by,
    memory_bound_is_found,
    of_purpose,
)
from traceanalyzer.findings.device_time import DEVICE, intervals_of, with_step
from traceanalyzer.findings.rule import Answers, Measured, Rule, rule
from traceanalyzer.frames import intervals
from traceanalyzer.units import format_count, format_ns

#: Families whose kernels take most of the time of a healthy program.
_USUAL = (GEMM, CONVOLUTION, ATTENTION, KV_CACHE, COMMUNICATION, "moe", "optimizer", "norm")

#: So few calls all may be as long.
_FEW = 2

#: A kernel that copies or fills memory (ROCm).
_COPIES = "__amd_rocclr_"

#: From these shares on, a kernel of a kind that is known to be slow is info, and a warning.
_INFO, _WARNING = 0.15, 0.17
#: A kernel of another kind may be what the program is for: it is info from the first share on, and
#: a warning from the second one on if its operator is known or it can be tuned.
_LEAST, _MUCH = 0.2, 0.4

#: From this share of its time on, a kernel is counted by memory-bound-kernels.
_FUSIBLE = 0.5

_INDEXING = (
    "The backward pass of advanced indexing (x[index]) adds up equal indices one after another: "
    "use index_select, gather or torch.nn.functional.embedding, or index data that needs no "
    "gradient."
)
_EMBEDDING = (
    "The gradient of an embedding adds up the rows of equal indices: use Embedding(sparse=True) "
    "with SparseAdam or SGD, padding_idx, fewer duplicate indices, or a fused table (FBGEMM)."
)
_SCATTERING = (
    "Elements with equal indices wait for each other: sort or bucket the indices once, or use a "
    "segmented reduction (torch.segment_reduce, cumsum of sorted data)."
)
_SORTING = (
    "Sort or select fewer elements (topk in place of sort, per segment, a smaller type), or do it "
    "once and keep the result."
)
_CASTING = (
    "Convert data once and keep it in that type: casts of weights in each step, and of activations "
    "between operators of different types, move the data twice."
)
_LAYOUT = (
    "Keep model and images in the layout of the convolutions: model.to("
    "memory_format=torch.channels_last) and the same for the images; operators without support for "
    "it convert the layout again."
)
_TUNING = (
    "Tune its block sizes and number of warps (triton.autotune), and compare it with the library "
    "operator for the same shapes."
)
#: Advice by names of the kernel and of the operators that launch it; the first match counts.
_ADVICE = (
    (r"(?i)embedding.*backward", _EMBEDDING),
    (r"(?i)index(?:ing|_put|_?backward)", _INDEXING),
    (r"(?i)scatter|index_(?:add|copy|reduce)", _SCATTERING),
    (kernel_names.CHANGES_LAYOUT.pattern, _LAYOUT),
    (r"(?i)sort|top_?k|radix|unique|nonzero|scan|cumsum", _SORTING),
    (r"(?i)\bcast|_to_copy|aten::to\b|direct_copy|float16_copy|copy_kernel", _CASTING),
    (r"(?i)triton", _TUNING),
)
#: Kernels that one change avoids together, and what they do.
_TOGETHER = (
    (kernel_names.CHANGES_LAYOUT.pattern, "convert between NCHW and NHWC"),
    (r"(?i)(?:radix|segmented|bitonic|merge)_?sort|[sm]btopk", "sort or select"),
)
_PROFILE = (
    "Look at this kernel first: replace the operator by a fused or library one, or profile it "
    "(ncu --kernel-name) to see whether memory, occupancy or atomics limit it."
)


@rule(
    "kernels",
    "one kernel (or the kernels that sort, or convert the layout), of no family that usually takes "
    "most time, with a large part of the time",
    "time of the kernel as a share of step time (of the recorded time if no steps are marked)",
    {"info": _INFO, "warning": _WARNING},
    uses=("gpu_idle",),
)
def _one_kernel(result: Kernels, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    if not time.whole_ns:
        return
    usual = result.heaviest("name").filter(pl.col("family").is_in(_USUAL))["kernel"]
    is_usual = pl.col("kernel").is_in(usual.implode())
    is_copy = pl.col("kernel").str.starts_with(_COPIES)
    rows = in_steps(result, time).filter(~is_usual, ~is_copy)
    each = rows.group_by("kernel").agg(
        pl.col("n", "total_ns", "fusible_ns").sum(), pl.col("max_ns").max()
    )
    together = pl.coalesce(
        pl.when(pl.col("kernel").str.contains(pattern)).then(pl.lit(what))
        for pattern, what in _TOGETHER
    )
    sums = (
        largest_first(each, "total_ns", "kernel")
        .group_by(pl.coalesce(together, "kernel").alias("kind"), maintain_order=True)
        .agg(
            pl.col("kernel").first(), pl.col("n", "total_ns", "fusible_ns").sum(),
            pl.col("max_ns").max(), kernels=pl.len(),
        )
    )  # fmt: skip
    # one long call of several is a finding about that call
    sums = sums.filter((2 * pl.col("max_ns") < pl.col("total_ns")) | (pl.col("n") <= _FEW))
    in_loops = of_purpose(result, ONE_BY_ONE, time).group_by("name").agg(loop_ns=pl.col("ns").sum())
    named = result.heaviest("name")[["name", "kernel"]].join(in_loops, on="name")
    sums = sums.join(named, on="kernel", how="left", maintain_order="left").filter(
        2 * pl.col("loop_ns").fill_null(0) < pl.col("total_ns")
    )
    doubles = double_in(result, time)["kernel"]
    if fused := memory_bound_is_found(result, answers):
        sums = sums.filter(pl.col("fusible_ns") < _FUSIBLE * pl.col("total_ns"))
    for row in largest_first(sums, "total_ns", "kernel").head(1).iter_rows(named=True):
        place = result.place(row["kernel"])
        share, advice = time.frac(row["total_ns"]), _advice(row["kernel"], place)
        is_slow = advice not in (_PROFILE, _TUNING)
        is_known = bool(place.get("operator")) or advice == _TUNING
        others = _INFO if share >= _LEAST else 0.0
        yield Measured(
            size=share if is_slow or (is_known and share >= _MUCH) else others,
            cost_frac=time.frac(row["total_ns"] - fused * row["fusible_ns"]),
            title=f"{_who(row)} {time.share(row['total_ns'])}{launched_by(place)}.",
            evidence=(
                (
                    f"{format_count(row['n'], 'call')}, "
                    f"{format_ns(round(row['total_ns'] / row['n']))} each on average."
                ),
                *called_from(place),
            ),
            advice=advice,
            total_ns=row["total_ns"] - fused * row["fusible_ns"],
            confidence="medium",  # it may be the work that the program is for
            explained={"double-precision": 1.0} if row["kernel"] in doubles else {},
        )


def _who(row: Mapping[str, Any]) -> str:
    """Return the kernel, or the kernels that one change avoids, as the start of a sentence."""
    if row["kernels"] == 1:
        return f"One kernel, {row['kernel']}, takes"
    return f"Kernels that {row['kind']}, mostly {row['kernel']}, take"


def _advice(kernel: str, place: Mapping[str, Any]) -> str:
    """Return advice by the operators that launch the kernel, else by its name."""
    names = [f"{place.get('operator') or ''} {place.get('outer') or ''}", kernel]
    matches = (text for name in names for pattern, text in _ADVICE if re.search(pattern, name))
    return next(matches, _PROFILE)


_TUNE_LESS = {
    AUTOTUNING: "Kernels are measured again for each new key: leave sizes that change out of key= "
    "of triton.autotune (or round them), list fewer configurations, keep the results "
    "(cache_results=True, TRITON_CACHE_AUTOTUNING=1, TRITON_CACHE_DIR), and run all shapes in a "
    "warm-up.",
    SEARCH: "The library measures its algorithms again for each new input size: use fixed sizes "
    "(padding, buckets) and a warm-up with each of them, or torch.backends.cudnn.benchmark=False "
    "for sizes that change.",
}


@rule(
    "kernels",
    "kernels that run only to measure which of them is the fastest: Triton's autotuning, and the "
    "search of cudnn.benchmark",
    "time from the first to the last kernel of each search as a share of step time (of the "
    "recorded time if no steps are marked)",
    {"info": 0.03, "warning": 0.1, "critical": 0.3},
    uses=("gpu_idle",),
)
def _kernel_tuning(result: Kernels, answers: Answers) -> Iterator[Measured]:
    time, rows = answers.time, of_purpose(result, TUNING, answers.time)
    sums = largest_first(rows.group_by("name").agg(pl.col("ns").sum()), "ns", "name")
    total = int(sums["ns"].sum())
    if not total or not time.whole_ns:
        return
    spans = intervals.intersect(rows, time.windows, DEVICE)
    losses = with_step(spans.with_columns(lost_ns=pl.col("end") - pl.col("start")), time.windows)
    steps, every = losses["step"].drop_nulls().n_unique(), time.windows["step"].n_unique()
    only = time.only_step(losses)
    where = f" in {only}" if only else f" in {steps:,} of {format_count(every, 'step')}"
    yield Measured(
        size=time.frac(total),
        title=f"{sums['name'][0]}{where if time.in_steps else ''}: {time.share(total)}.",
        evidence=(
            (
                f"{format_count(rows.filter(pl.col('ns') > 0).height, 'search', 'searches')} for "
                "the fastest kernel; other findings do not count their kernels."
            ),
        ),
        advice=_TUNE_LESS[sums["name"][0]],
        total_ns=total,
        confidence="high" if time.in_steps else "low",  # it may be the start of the program
        step=only,
        intervals=intervals_of(losses),
    )


RULES: tuple[Rule, ...] = (_one_kernel, _kernel_tuning)
