"""Rules for kernel time."""

import re
from collections.abc import Iterator

import polars as pl

from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, rule
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
    _unfused_optimizer,
    _recomputed_activations,
    _memory_bound,
    _idle_multiprocessors,
)
