"""Rules for kernel time."""

import re
from collections.abc import Iterator

import polars as pl

from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule, rule
from traceanalyzer.analyzers.efficiency import roofs
from traceanalyzer.analyzers.efficiency.formulas import CONVOLUTION, GEMM
from traceanalyzer.analyzers.efficiency.result import Efficiency
from traceanalyzer.analyzers.host_metrics.result import HostMetrics, gpu_metrics_text
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import (
    ATTENTION,
    OPTIMIZER,
    PRODUCTS,
    RECOMPUTED,
    SCHEMA,
    SOFTMAX,
)
from traceanalyzer.result import Severity
from traceanalyzer.units import format_count, format_frac, format_ns

_MATH = "aten::_scaled_dot_product_attention_math"
#: Minimum share of softmax and of products in their sum; otherwise it is not attention.
_LEAST_PART = 0.05
_ATTENTION_LEVELS: dict[Severity, float] = {"info": 0.1, "warning": 0.2, "critical": 0.5}
#: The softmax of a loss.
_LOSS = re.compile(r"(?i)log_?softmax|nll|cross_entropy|softmax_warp_\w+<[^<>]*\d, true")
_NAMED = 3


@rule(
    "kernels",
    "matrix multiplications and convolutions in single precision, without tensor cores",
    "their share of the busy time, without attention products that unfused-attention counts",
    {"warning": 0.1, "critical": 0.5},
    uses=("host_metrics",),
)
def _no_tensor_cores(result: Kernels, answers: Answers) -> Iterator[Measured]:
    rows = result.heaviest("name")
    plain = [
        name for name in rows["name"] if name is not None and kernel_names.is_plain_float(name)
    ]
    matches = rows.filter(pl.col("name").is_in(plain))
    whole = int(matches["total_ns"].sum())
    products = min(whole, _counted_products(result))
    cost = whole - products
    if not cost or not result.busy_ns:
        return
    yield Measured(
        size=cost / result.busy_ns,
        title="Matrix multiplications and convolutions in single precision, without tensor cores: "
        f"{format_ns(cost)} ({format_frac(cost / result.busy_ns)} of busy time).",
        evidence=(
            f"Most time: {matches['kernel'][0]}, {format_ns(matches['total_ns'][0])}.",
            *_without_attention(products),
            *_of_gpus(answers),
        ),
        advice=f"Use {answers.program.faster_precision}: it is several times as fast.",
        total_ns=cost,
        confidence="medium",  # names alone show it
    )


@rule(
    "kernels",
    "attention as separate matrix products and softmax, without a fused kernel",
    "device time of aten::_softmax, aten::bmm and aten::baddbmm (without operators: of softmax "
    "kernels) as a share of the busy time",
    _ATTENTION_LEVELS,
)
def _unfused_attention(result: Kernels, _answers: Answers) -> Iterator[Measured]:
    known = result.has_operators
    parts = _attention(result)
    cost = sum(parts.values())
    if not cost or not result.busy_ns:
        return
    share = min(1.0, cost / result.busy_ns)
    each = ", ".join(f"{name} {format_ns(total)}" for name, total in parts.items())
    math = known and (_of_purpose(result, ATTENTION)["call"] > 0).any()
    yield Measured(
        size=share,
        title=f"Attention is not fused: {'softmax and products' if known else 'softmax'}, "
        f"{format_ns(cost)} ({format_frac(share)} of busy time).",
        evidence=(
            f"Device time: {each}.",
            "No flash, memory-efficient or cuDNN attention kernel was recorded.",
            *((f"{_MATH} was called: no fused backend accepted the inputs.",) if math else ()),
        ),
        advice="Use torch.nn.functional.scaled_dot_product_attention in float16 or bfloat16"
        + (
            "; torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) reports why a backend "
            "rejects the inputs."
            if math
            else ' (attn_implementation="sdpa" or "flash_attention_2" in Transformers): it '
            "runs as one kernel and does not store the score matrix."
        ),
        total_ns=cost,
        confidence="high" if known else "low",
    )


def _attention(result: Kernels) -> dict[str, int]:
    """Return device time of unfused attention by operator, or of softmax kernels."""
    if kernel_names.ATTENTION in result.heaviest("family")["family"]:
        return {}
    if not result.has_operators:
        return {"softmax kernels": _softmax_kernels(result)}
    sums = _of_purpose(result, ATTENTION).group_by("name").agg(pl.col("ns").sum())
    parts = dict(largest_first(sums, "ns", "name").iter_rows())
    whole, softmax = (sum(parts.get(name, 0) for name in names) for names in (parts, SOFTMAX))
    return parts if min(softmax, whole - softmax) >= _LEAST_PART * whole else {}


def _counted_products(result: Kernels) -> int:
    """Return device time of matrix products that unfused-attention counts."""
    parts = _attention(result)
    if sum(parts.values()) < min(_ATTENTION_LEVELS.values()) * result.busy_ns:
        return 0
    return sum(parts.get(name, 0) for name in PRODUCTS)


def _without_attention(products: int) -> Iterator[str]:
    if products:
        yield f"Attention products ({format_ns(products)}) are counted by unfused-attention."


def _softmax_kernels(result: Kernels) -> int:
    """Return the time of softmax kernels, except those of a loss."""
    rows = result.heaviest("name").filter(pl.col("family") == kernel_names.SOFTMAX)
    named = rows.select("name", "total_ns").iter_rows()
    return sum(total for name, total in named if not _LOSS.search(name))


@rule(
    "kernels",
    "memory-bound kernels: elementwise operations and copies that are not fused",
    "time of elementwise and copy kernels, except those of TorchInductor, as a share of the busy "
    "time",
    {"info": 0.25, "warning": 0.35},
)
def _memory_bound_kernels(result: Kernels, answers: Answers) -> Iterator[Measured]:
    families = (kernel_names.ELEMENTWISE, kernel_names.COPY)
    rows = result.heaviest("name").filter(pl.col("family").is_in(families))
    fused = [name for name in rows["name"] if name is not None and kernel_names.is_inductor(name)]
    matches = rows.filter(~pl.col("name").is_in(fused))
    counted = sum(one.total_ns or 0 for one in _unfused_optimizer.function(result, answers))
    cost, n = max(int(matches["total_ns"].sum()) - counted, 0), int(matches["n"].sum())
    if not cost or not result.busy_ns:
        return
    share = min(1.0, cost / result.busy_ns)
    top = matches.head(_NAMED).select("kernel", "total_ns").iter_rows()
    longest = ", ".join(f"{name} ({format_ns(total)})" for name, total in top)
    yield Measured(
        size=share,
        title=f"Elementwise and copy kernels are memory-bound: {format_ns(cost)} "
        f"({format_frac(share)} of busy time).",
        evidence=(
            f"{format_count(n, 'kernel')}, {format_ns(cost / n)} each on average.",
            f"Most time: {longest}.",
        ),
        advice="Fuse them: torch.compile combines neighbouring operations into one kernel. Without "
        "it: fused layers and optimizers (fused=True), fewer changes of layout and data type.",
        total_ns=cost,
        confidence="medium",
    )


# --- matrix products and convolutions ----------------------------------------------------------

_PRODUCT_KINDS = (GEMM, CONVOLUTION)
#: Reasons below this share of the lost time get no advice.
_LEAST_REASON = 0.1
#: What each reason means.
_REASONS = {
    roofs.NO_TF32: "FP32 without TF32",
    roofs.UNALIGNED: "rows that are not multiples of 16 bytes",
    roofs.SMALL: "fewer tiles of 128 x 128 than multiprocessors",
}


def _without_peaks(result: Efficiency) -> str | None:
    """Return which peaks are unknown, if no matrix product or convolution has a roof."""
    rows = result.operators.filter(pl.col("kind").is_in(_PRODUCT_KINDS))
    if rows.is_empty() or rows["lost_ns"].count():
        return None
    gpus = ", ".join(rows["gpu"].drop_nulls().unique().sort()) or "the GPU"
    return (
        f"the peaks of {gpus} are not in the table; traceanalyzer efficiency --peak compares with "
        "given ones"
    )


@rule(
    "efficiency",
    "matrix multiplications and convolutions far from the roof of the GPU",
    f"device time above the roof of shapes below {roofs.FAR_FROM_ROOF:.0%} of it, as a share of "
    "step time (of the recorded time if no steps are marked), without the kernels that other "
    "findings count",
    {"info": 0.05, "warning": 0.15},
    uses=("gpu_idle", "kernels"),
    lacks=_without_peaks,
)
def _far_from_roof(result: Efficiency, answers: Answers) -> Iterator[Measured]:
    time, rows = answers.time, _unclaimed(result, answers)
    total = round(rows["lost_ns"].sum())
    if not total or not time.whole_ns:
        return
    device, roof = (float(rows[name].sum()) for name in ("device_ns", "roof_ns"))
    reasons = _by_reason(rows)
    known = float(reasons.drop_nulls("why")["lost_ns"].sum())
    yield Measured(
        size=time.frac(total),
        title="Matrix multiplications and convolutions reach "
        f"{format_frac(roof / device)} of the roof of the GPU: {time.share(total)} above it.",
        evidence=(
            *_of_shapes(rows, reasons),
            (
                "Copies and pointwise kernels that these operators launch are not counted here; "
                "efficiency counts them."
            ),
        ),
        advice=_of_reasons(rows, reasons, answers),
        total_ns=total,
        confidence="high" if known >= total / 2 else "medium",
    )


def _unclaimed(result: Efficiency, answers: Answers) -> pl.DataFrame:
    """Return products far from the roof, without the calls that other findings count."""
    far = pl.col("roof_frac") < roofs.FAR_FROM_ROOF
    rows = result.operators.filter(pl.col("kind").is_in(_PRODUCT_KINDS), far, "is_exact")
    kernels = answers.get("kernels")
    if not isinstance(kernels, Kernels):
        return rows
    if _is_found(_no_tensor_cores, kernels, answers):
        rows = rows.filter(pl.col("precision") != "fp32")
    if _is_found(_unfused_attention, kernels, answers):
        rows = rows.filter(~pl.col("operator").is_in(PRODUCTS))
    if _is_found(_recomputed_activations, kernels, answers):
        once = 1 - pl.col("recomputed_calls") / pl.col("calls")
        rows = rows.with_columns(pl.col("device_ns", "roof_ns", "lost_ns") * once)
    return rows.filter(pl.col("lost_ns") > 0)


def _is_found(rule: Rule, result: Kernels, answers: Answers) -> bool:
    return any(rule.severity(one.size) for one in rule.function(result, answers))


def _by_reason(rows: pl.DataFrame) -> pl.DataFrame:
    """Return why (null without a reason) and lost_ns, most lost time first."""
    return largest_first(rows.group_by("why").agg(pl.col("lost_ns").sum()), "lost_ns", "why")


def _of_shapes(rows: pl.DataFrame, reasons: pl.DataFrame) -> Iterator[str]:
    """Yield the shapes with most lost time, and the lost time of each reason."""
    top = rows.sort("lost_ns", "operator", "shape", descending=[True, False, False]).head(_NAMED)
    for row in top.iter_rows(named=True):
        why = f" ({row['why']})" if row["why"] else ""
        yield (
            f"{row['operator']} {row['shape']} {row['precision']}: "
            f"{format_ns(row['device_ns'])}, {format_frac(row['roof_frac'])} of the roof{why}."
        )
    for why, lost_ns in reasons.drop_nulls("why").iter_rows():
        meanings = " and ".join(_REASONS[one] for one in why.split(", "))
        yield f"{format_ns(lost_ns)} above the roof with {meanings}."


def _of_reasons(rows: pl.DataFrame, reasons: pl.DataFrame, answers: Answers) -> str:
    """Return what to try for each reason that matters, the one with most lost time first."""
    large = (
        "Let the library search for faster kernels (torch.backends.cudnn.benchmark=True, "
        "channels_last), and compare its versions."
        if rows["kind"][0] == CONVOLUTION
        else "Compare the kernels with those of a newer library version: these shapes are large "
        "and aligned."
    )
    remedies = {
        roofs.NO_TF32: f"Use {answers.program.faster_precision}.",
        roofs.UNALIGNED: "Pad sizes (vocabulary, channels, hidden sizes) to multiples of 16 bytes, "
        "better of 128.",
        roofs.SMALL: "Give the GPU more work per product: a larger (micro-)batch, fused or batched "
        "projections, fewer splits by tensor parallelism.",
        "": large,
    }
    least = _LEAST_REASON * float(reasons["lost_ns"].sum())
    names = reasons.filter(pl.col("lost_ns") >= least)["why"].fill_null("")
    each = dict.fromkeys(name for why in names for name in why.split(", "))
    return " ".join(remedies[name] for name in each)


# --- training --------------------------------------------------------------------------------

#: Kernels that update many parameters at once.
_OF_MANY = r"multi_tensor|(?i)fused"
#: Minimum number of kernels per optimizer step that indicates updates one by one.
_ONE_BY_ONE = 100


def _of_purpose(result: Kernels, purpose: str) -> pl.DataFrame:
    """Return device work of a purpose in training, with its duration ``ns``."""
    rows = pl.DataFrame(schema=SCHEMA) if result.training is None else result.training
    return rows.filter(purpose=purpose).with_columns(ns=pl.col("end") - pl.col("start"))


@rule(
    "kernels",
    "an optimizer that launches kernels for each parameter instead of a few for all",
    "time of such kernels as a share of step time (of the recorded time if no steps are marked), "
    f"from {_ONE_BY_ONE} kernels per optimizer step on",
    {"info": 0.03, "warning": 0.1},
    uses=("gpu_idle",),
)
def _unfused_optimizer(result: Kernels, answers: Answers) -> Iterator[Measured]:
    work = _of_purpose(result, OPTIMIZER).filter(~pl.col("name").str.contains(_OF_MANY))
    if work.is_empty() or not answers.time.whole_ns:
        return
    calls = work.group_by("path", "device", "call").agg(n=pl.len(), ns=pl.col("ns").sum())
    calls = calls.filter(pl.col("n") >= _ONE_BY_ONE)
    total, time = int(calls["ns"].sum()), answers.time
    if not total:
        return
    each, usual = (round(value) for value in (calls["n"].median(), work["ns"].median()))  # type: ignore[arg-type]
    yield Measured(
        size=time.frac(total),
        title=f"Optimizer.step launches {each:,} kernels per call, several per parameter: "
        f"{time.share(total)}.",
        evidence=(f"Median kernel duration: {format_ns(usual)}.",),
        advice="Use foreach=True or fused=True (torch.optim) to update all parameters with a few "
        "kernels; use torch.compile for other optimizers.",
        total_ns=total,
    )


@rule(
    "kernels",
    "activations recomputed in the backward pass",
    "time of layers in the backward pass as a share of step time (of the recorded time if no steps "
    "are marked)",
    {"info": 0.05, "warning": 0.15},
    uses=("gpu_idle",),
)
def _recomputed_activations(result: Kernels, answers: Answers) -> Iterator[Measured]:
    work = _of_purpose(result, RECOMPUTED)
    total, time = int(work["ns"].sum()), answers.time
    if not total or not time.whole_ns:
        return
    sums = work.group_by("name").agg(pl.col("ns").sum())
    top = largest_first(sums, "ns", "name").head(_NAMED).iter_rows()
    each = ", ".join(f"{name} ({format_ns(ns)})" for name, ns in top)
    yield Measured(
        size=time.frac(total),
        title="Activations are recomputed in the backward pass (activation checkpointing): "
        f"{time.share(total)}.",
        evidence=(f"Layers in the backward pass: {each}.",),
        advice="If memory allows, checkpoint fewer layers, or only cheap operators (selective "
        "activation checkpointing: torch.utils.checkpoint with a context_fn).",
        total_ns=total,
        confidence="medium",
    )


# --- GPU metrics -----------------------------------------------------------------------------


def _of_gpus(answers: Answers) -> Iterator[str]:
    """Yield GPU metrics of each GPU, if recorded."""
    metrics = answers.get("host_metrics")
    if isinstance(metrics, HostMetrics):
        for row in metrics.gpus().head(_MOST_GPUS).iter_rows(named=True):
            yield f"{row['gpu']} while active: {gpu_metrics_text(row)}."


#: Maximum number of GPUs in a list.
_MOST_GPUS = 3


@rule(
    "host_metrics",
    "kernels limited by DRAM bandwidth",
    "DRAM bandwidth in use while SMs are active, as a share of the peak",
    {"info": 0.6, "warning": 0.8},
)
def _memory_bound(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    busy = result.gpus().drop_nulls("dram_frac").sort("dram_frac", "gpu", descending=[True, False])
    for row in busy.head(1).iter_rows(named=True):
        yield Measured(
            size=row["dram_frac"],
            title=f"{row['gpu']} is memory-bound while active: {gpu_metrics_text(row)}.",
            advice="Move fewer bytes: fuse elementwise kernels (torch.compile), use 16-bit types, "
            "avoid copies and layout changes; extra compute per byte is nearly free.",
            of="the peak DRAM bandwidth",
            confidence="medium",
        )


@rule(
    "host_metrics",
    "kernels that leave most SMs idle",
    "share of idle SMs while a kernel runs, if DRAM bandwidth is not the limit",
    {"info": 0.5, "warning": 0.8},
)
def _idle_multiprocessors(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    free = result.gpus().filter(pl.col("dram_frac").fill_null(0) < _MEMORY_BOUND)
    for row in free.sort("sm_frac", "gpu").head(1).iter_rows(named=True):
        yield Measured(
            size=1 - row["sm_frac"],
            title=f"Most SMs of {row['gpu']} are idle while kernels run: {gpu_metrics_text(row)}.",
            advice="Use larger batches, fused kernels, or several streams: kernels are too small "
            "for the GPU.",
            of="the SMs",
            confidence="medium",
        )


#: From this share of the bandwidth on, SMs wait for memory.
_MEMORY_BOUND = 0.6


RULES = (
    _no_tensor_cores,
    _unfused_attention,
    _memory_bound_kernels,
    _far_from_roof,
    _unfused_optimizer,
    _recomputed_activations,
    _memory_bound,
    _idle_multiprocessors,
)
