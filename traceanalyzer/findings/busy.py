"""Rules for kernel time."""

import math
import re
from collections.abc import Callable, Iterable, Iterator

import polars as pl

from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.gpu_api import CUPY, XLA
from traceanalyzer.analyzers.common.names import called_from, called_in, frame_text, launched_by
from traceanalyzer.analyzers.efficiency import roofs
from traceanalyzer.analyzers.efficiency.formulas import CONVOLUTION, GEMM
from traceanalyzer.analyzers.efficiency.peaks import peaks_of
from traceanalyzer.analyzers.efficiency.result import Efficiency
from traceanalyzer.analyzers.host_metrics.result import HostMetrics, gpu_metrics_text
from traceanalyzer.analyzers.kernels import training
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.findings.device_time import DEVICE, DeviceTime, intervals_of
from traceanalyzer.findings.rule import (
    ADVICE,
    OF_STEP,
    POINTWISE,
    Answers,
    Measured,
    Rule,
    contiguous,
    in_steps,
    launched_in,
    longest_first,
    of_purpose,
    rule,
)
from traceanalyzer.frames import intervals
from traceanalyzer.result import Confidence, Severity, memoized
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

_MATH = "aten::_scaled_dot_product_attention_math"
_TEXTS = ADVICE["busy"]
#: Minimum share of softmax and of products in their sum; otherwise it is not attention.
_LEAST_PART = 0.05
_ATTENTION_LEVELS: dict[Severity, float] = {"info": 0.1, "warning": 0.14, "critical": 0.35}
_NAMED = 3
#: Maximum number of GPUs in a list.
_MOST_GPUS = 3
#: Kernels in double precision are the program's purpose if other products take a smaller share.
_LEAST_OTHERS = 0.1
#: A GPU is slow in double precision if it is so many times as fast in single precision.
_SLOWER = 16
_FLOAT64 = (
    "Find the tensor that is float64 (data from NumPy is by default) and convert it before the "
    "model: .float() or .to(dtype). GPUs have at most half the FP32 rate for float64, those "
    "for graphics and inference (L4, L40S, A10, T4, RTX) 1/32 to 1/64."
)
_FLOAT32 = (
    "Compute in float32 where the results allow it, or use a GPU for double precision (A100, H100, "
    "MI200, MI300). Kernels that are limited by memory gain a factor of 2."
)


@rule(
    "kernels",
    "matrix multiplications and convolutions in single precision, without tensor cores",
    f"their time {OF_STEP}, without attention products that unfused-attention counts",
    {"warning": 0.1, "critical": 0.3},
    uses=("gpu_idle", "host_metrics"),
)
def _no_tensor_cores(result: Kernels, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    rows = _chosen(result, time, kernel_names.plain_float)
    whole = int(rows["ns"].sum())
    products = min(whole, _counted_products(result, time))
    total = whole - products
    if not total or not time.whole_ns:
        return
    most = rows["kernel"][0]
    place = result.place(most)
    where = called_in(place) if 2 * rows["ns"][0] >= whole else ""
    metrics = answers.of(HostMetrics)
    gpus = [] if metrics is None else metrics.gpus().head(_MOST_GPUS).to_dicts()
    yield Measured(
        title="Matrix multiplications and convolutions in single precision, without tensor cores"
        f"{where}: {time.share(total)}.",
        evidence=(
            f"Most time: {most}, {time.text(rows['ns'][0])}{launched_by(place)}.",
            *[f"Attention products ({time.text(products)}) are counted by unfused-attention."]
            * (products > 0),
            *(f"{row['gpu']} while active: {gpu_metrics_text(row)}." for row in gpus),
        ),
        advice=f"Use {answers.program.faster_precision}: it is several times as fast.",
        total_ns=total,
        confidence="medium",  # names alone show it
    )


def _chosen(
    result: Kernels, time: DeviceTime, choose: Callable[[Iterable[str]], list[str]]
) -> pl.DataFrame:
    """Return kernel, n, ns of the kernels that a function chooses by name, longest time first."""
    names = result.heaviest("name").drop_nulls("name")
    chosen = names.filter(pl.col("name").is_in(choose(names["name"])))
    return longest_first(in_steps(result, time), chosen["kernel"], "busy_ns")


def double_in(result: Kernels, time: DeviceTime) -> pl.DataFrame:
    """Return kernel, n, ns of the kernels in double precision, the longest time first."""
    return _chosen(result, time, kernel_names.double)


@rule(
    "kernels",
    "kernels in double precision in a program that computes in lower precision otherwise",
    f"their time {OF_STEP}, if other products and attention take at least {_LEAST_OTHERS:.0%} of "
    "it, or the GPU is slow in double precision",
    {"info": 0.03, "warning": 0.1, "critical": 0.3},
    uses=("gpu_idle",),
)
def _double_precision(result: Kernels, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    rows = double_in(result, time)
    total = int(rows["ns"].sum())
    is_product = pl.col("family").is_in((kernel_names.GEMM, CONVOLUTION, kernel_names.ATTENTION))
    products = result.heaviest("name").filter(
        is_product, ~pl.col("kernel").is_in(rows["kernel"].implode())
    )
    others = longest_first(in_steps(result, time), products["kernel"], "busy_ns")
    other_ns = int(others["ns"].sum())
    if not total or not time.whole_ns:
        return
    rates = peaks_of(answers.program.gpus).tflops
    slower = rates.get("fp32", 0) / rates.get("fp64", math.inf)
    what = "Kernels in double precision (float64)"
    if other_ns >= _LEAST_OTHERS * total:
        of_calls = (
            f"in double precision; other products and attention, mostly {others['kernel'][0]}, "
            f"{time.text(other_ns)}"
        )
        yield _by_name(result, time, rows, what, of_calls, _FLOAT64)
    elif slower >= _SLOWER:  # it may be what the program is for
        of_calls = f"in double precision; this GPU is {slower:.0f} times as fast in float32"
        yield _by_name(result, time, rows, what, of_calls, _FLOAT32, confidence="low")


def _by_name(
    result: Kernels, time: DeviceTime, rows: pl.DataFrame, what: str, of_calls: str, advice: str,
    confidence: Confidence = "medium",
) -> Measured:  # fmt: skip
    """Return a finding about kernels that their names alone show: kernel, n, ns, longest first."""
    most, total = rows["kernel"][0], int(rows["ns"].sum())
    place = result.place(most)
    return Measured(
        title=f"{what}, mostly {most}{called_in(place)}: {time.share(total)}{launched_by(place)}.",
        evidence=(f"{format_count(int(rows['n'].sum()), 'call')} {of_calls}.",),
        advice=advice,
        total_ns=total,
        confidence=confidence,
    )


_OF_XLA = (
    "Use fused attention in float16 or bfloat16 (TensorFlow: keras.config.enable_flash_attention() "
    'of Keras 3; JAX: jax.nn.dot_product_attention(implementation="cudnn")).'
)


@rule(
    "kernels",
    "attention as separate matrix products and softmax, without a fused kernel",
    "device time of aten::_softmax, aten::bmm, aten::baddbmm and the pointwise kernels between "
    "them (without operators: of softmax kernels and the products beside them) without half of the "
    f"time of the products, which a fused kernel needs, {OF_STEP}, if all of it is at least 10 %",
    _ATTENTION_LEVELS,
    uses=("gpu_idle",),
)
def unfused_attention(result: Kernels, answers: Answers) -> Iterator[Measured]:
    """Yield attention by separate operators."""
    known, time = result.has_operators, answers.time
    parts = _attention(result, time)
    total = sum(parts.values())
    if not total or not time.whole_ns:
        return
    each = ", ".join(f"{name} {time.text(ns)}" for name, ns in parts.items())
    math = known and (of_purpose(result, training.ATTENTION, time)["call"] > 0).any()
    fuse = _OF_XLA if answers.program.xla else _TEXTS["fuse_attention"]
    yield Measured(
        title=f"Attention is not fused: softmax and products, {time.share(total)}.",
        evidence=(
            *((f"{_MATH} was called: no fused backend accepted the inputs.",) if math else ()),
            f"Device time: {each}.",
            _fused_attention(result, time),
        ),
        advice=_TEXTS["math_advice"] if math else fuse,
        total_ns=total,
        most_gain_ns=total - round(_FUSED_FRAC * _products(parts)),
        confidence="high" if known else "medium",
    )


#: The share of the time of the products that a fused kernel needs for them: it keeps the scores in
#: registers, and leaves out what a causal mask hides.
_FUSED_FRAC = 0.5


def _attention(result: Kernels, time: DeviceTime) -> dict[str, int]:
    """Return device time of unfused attention by operator, without operators by kernel."""
    sums = of_purpose(result, training.ATTENTION, time).group_by("name").agg(pl.col("ns").sum())
    parts = dict(largest_first(sums, "ns", "name").iter_rows())
    if not result.has_operators:
        return parts
    of_softmax, of_products = (
        sum(parts.get(name, 0) for name in names) for names in (training.SOFTMAX, training.PRODUCTS)
    )
    least = _LEAST_PART * sum(parts.values())
    return parts if min(of_softmax, of_products) >= least else {}


def _fused_attention(result: Kernels, time: DeviceTime) -> str:
    """Return the time of fused attention kernels as a sentence."""
    fused = result.heaviest("name").filter(pl.col("family") == kernel_names.ATTENTION)["kernel"]
    total = int(longest_first(in_steps(result, time), fused, "busy_ns")["ns"].sum())
    if not total:
        return "No flash, memory-efficient or cuDNN attention kernel was recorded."
    return f"Other calls run fused kernels: {time.share(total)}."


def _counted_products(result: Kernels, time: DeviceTime) -> int:
    """Return device time of matrix products that unfused-attention counts."""
    parts = _attention(result, time)
    if time.frac(sum(parts.values())) < min(_ATTENTION_LEVELS.values()):
        return 0
    return _products(parts)


def _products(parts: dict[str, int]) -> int:
    names = (*training.PRODUCTS, training.KERNELS[kernel_names.GEMM])
    return sum(parts.get(name, 0) for name in names)


_FUSE_NORMS = (
    "Replace each norm by a fused one (torch.nn.RMSNorm of a recent PyTorch, Liger, Apex), or "
    "torch.compile it."
)


@rule(
    "kernels",
    "memory-bound kernels: elementwise operations and copies that are not fused",
    "time of elementwise and copy kernels that run one after another, without the longest kernel "
    f"of each sequence, and without those of TorchInductor and changes of layout, {OF_STEP}",
    {"info": 0.1, "warning": 0.2, "critical": 0.3},
    uses=("gpu_idle",),
)
def memory_bound_kernels(result: Kernels, answers: Answers) -> Iterator[Measured]:
    """Yield pointwise kernels that could be fused."""
    time = answers.time
    others = [kernel for kernel, *_ in growing_copies(result, time)]
    others += contiguous(result, time)
    kernels = result.heaviest("name").filter(~pl.col("kernel").is_in(others))
    rows = longest_first(in_steps(result, time), kernels["kernel"], "fusible_ns")
    names = kernels.filter(pl.col("family").is_in(POINTWISE))["kernel"]
    every = longest_first(in_steps(result, time), names, "busy_ns")
    # kernels of several streams run at the same time
    total, whole = (min(int(one["ns"].sum()), time.busy_ns) for one in (rows, every))
    n = int(every["n"].sum())
    if not total or not time.whole_ns:
        return
    top = rows.head(_NAMED).iter_rows()
    longest = ", ".join(f"{name} ({time.text(ns)})" for name, _, ns in top)
    of_norms, norms = _norms(result, time)
    yield Measured(
        title=f"Elementwise and copy kernels{launched_in(result, names)} run one after another "
        f"instead of fused: {time.share(total)}.",
        evidence=(
            (
                f"{format_count(n, 'elementwise or copy kernel')}, {format_ns(whole / n)} each on "
                f"average, take {time.share(whole)}. Fusion leaves the longest kernel of each "
                f"sequence, which is not counted above.{_not_counted(result, names, whole)}"
            ),
            *[f"{norms}: {time.share(of_norms)} of that above."] * bool(of_norms),
            f"Most time: {longest}.",
        ),
        advice=f"{_fusing(answers)}{f' {_FUSE_NORMS}' * bool(of_norms)}",
        total_ns=total,
        confidence="medium",
    )


@rule(
    "kernels",
    "RMS norms by separate operators",
    f"time of all their kernels but the first, {OF_STEP}, unless memory-bound-kernels counts them",
    {"info": 0.05, "warning": 0.1},
    uses=("gpu_idle",),
)
def separate_norms(result: Kernels, answers: Answers) -> Iterator[Measured]:
    """Yield the time that fused norms save."""
    total, norms = _norms(result, answers.time)
    if total and answers.time.whole_ns and not is_found(memory_bound_kernels, answers):
        title = f"{norms}: {answers.time.share(total)}."
        yield Measured(title, advice=_FUSE_NORMS, total_ns=total, confidence="medium")


def _norms(result: Kernels, time: DeviceTime) -> tuple[int, str]:
    """Return the time of RMS norms by separate operators, and what they do where."""
    rows = of_purpose(result, training.NORM, time)
    places = rows["place"].drop_nulls().mode().sort().head(1)
    where = "".join(f" in {frame_text(name)}" for name in places)
    what = f"RMS norms run as separate operators{where} (pow, mean, rsqrt, mul, and casts)"
    return int(rows["ns"].sum()), what


def _not_counted(result: Kernels, names: pl.Series, whole: int) -> str:
    """Return a sentence on the time of kernels that no step launched, unless it is little."""
    if result.by_step is None:
        return ""
    recorded = int(longest_first(result.by_step, names, "busy_ns")["ns"].sum())
    if recorded - whole <= _NOT_COUNTED * recorded:
        return ""
    return (
        f" Those launched outside the counted steps, or before the recording, take another "
        f"{format_ns(recorded - whole)}."
    )


#: Least share of the time of kernels that is worth a sentence.
_NOT_COUNTED = 0.05


def _fusing(answers: Answers) -> str:
    if not answers.program.pytorch:
        how = {XLA: " (jax.jit, tf.function(jit_compile=True))", CUPY: " (cupy.fuse)"}
        return (
            f"Fuse them{how.get(answers.program.framework, '')}: neighbouring operations in one "
            "kernel read and write memory once; fewer changes of layout and data type."
        )
    optimizers = " and optimizers (fused=True)" if answers.program.trains else ""
    return (
        "Fuse them: torch.compile combines neighbouring operations into one kernel. Without "
        f"it: fused layers{optimizers}, fewer changes of layout and data type."
    )


# --- matrix products and convolutions ----------------------------------------------------------

_PRODUCT_KINDS = (GEMM, CONVOLUTION)
#: Reasons below this share of the lost time get no advice; losses below this share are none.
_LEAST_REASON, _LEAST_LOST = 0.1, 0.01
#: What each reason means.
_REASONS = {
    roofs.NO_TF32: "FP32 without TF32",
    roofs.UNALIGNED: "rows that are not multiples of 16 bytes",
    roofs.SMALL: "fewer tiles of 128 x 128 than multiprocessors",
}


def _without_peaks(result: Efficiency) -> str | None:
    """Return which peaks are unknown, if no matrix product or convolution has a roof."""
    rows = result.products
    if rows is None or rows.is_empty() or rows["lost_ns"].count():
        return None
    gpus = ", ".join(rows["gpu"].drop_nulls().unique().sort()) or "the GPU"
    return (
        f"the peaks of {gpus} are not in the table; traceanalyzer efficiency --peak "
        f"{result.precision}=TFLOPS compares with given ones"
    )


@rule(
    "efficiency",
    "matrix multiplications and convolutions far from the roof of the GPU",
    f"device time above the roof of shapes below {roofs.FAR_FROM_ROOF:.0%} of it, {OF_STEP}, "
    "without the kernels that other findings count; the cost is the time above what other products "
    "of the kind and type reach of the roof",
    {"info": 0.05, "warning": 0.15},
    uses=("gpu_idle", "kernels"),
    lacks=_without_peaks,
)
def _far_from_roof(result: Efficiency, answers: Answers) -> Iterator[Measured]:
    time, rows = answers.time, _unclaimed(result, answers)
    share = _share_in_steps(answers)
    total = round(float(rows["lost_ns"].sum()) * share)
    if time.frac(total) < _LEAST_LOST:
        return
    device, roof = (float(rows[name].sum()) for name in ("device_ns", "roof_ns"))
    reasons = largest_first(rows.group_by("why").agg(pl.col("lost_ns").sum()), "lost_ns", "why")
    known = float(reasons.drop_nulls("why")["lost_ns"].sum())
    yield Measured(
        size=time.frac((device - roof) * share),
        cost_frac=time.frac(total),
        title=f"Matrix multiplications and convolutions run at {format_frac(roof / device)} of the "
        f"GPU's limit (its roof): faster kernels save at most {time.share(total)}.",
        evidence=(
            *_of_shapes(rows, reasons, lambda ns: time.text(ns * share)),
            (
                "Copies and pointwise kernels that these operators launch are not counted here; "
                "efficiency counts them."
            ),
        ),
        advice=_of_reasons(rows, reasons, answers),
        total_ns=total,
        confidence="high" if known >= total / 2 else "medium",
        explained={"shared-gpu": 1.0},
    )


@rule(
    "kernels",
    "matrix multiplications with rows that are not multiples of 16 bytes",
    "time of kernels that load one or two elements at a time (CUTLASS align1, align2) "
    f"{OF_STEP}, unless far-from-roof has the shapes",
    {"info": 0.05, "warning": 0.15},
    uses=("gpu_idle", "efficiency"),
)
def _unaligned_products(result: Kernels, answers: Answers) -> Iterator[Measured]:
    time, efficiency = answers.time, answers.of(Efficiency)
    rows = _chosen(result, time, kernel_names.unaligned)
    if not rows["ns"].sum() or not time.whole_ns:
        return
    if efficiency and is_found(_far_from_roof, answers):
        reasons = _unclaimed(efficiency, answers)["why"].fill_null("")
        if reasons.str.contains(roofs.UNALIGNED, literal=True).any():
            return
    what = "Matrix multiplications of unaligned sizes"
    yield _by_name(
        result, time, rows, what,
        "of kernels that load one or two elements at a time (align1, align2 in their names)",
        "Pad the size that is not a multiple of 8 (of 16-bit elements; better of 64), often the "
        "vocabulary (50257 to 50304), or a hidden or channel size: aligned kernels are several "
        "times as fast. record_shapes=True shows the shapes.",
    )  # fmt: skip


def _share_in_steps(answers: Answers) -> float:
    """Return the share of the kernels' time that steps launched."""
    if (kernels := answers.of(Kernels)) is None or kernels.by_step is None:
        return 1.0
    marked = int(in_steps(kernels, answers.time)["total_ns"].sum())
    return marked / max(int(kernels.by_step["total_ns"].sum()), 1)


def _unclaimed(result: Efficiency, answers: Answers) -> pl.DataFrame:
    """Return products far from the roof, without the calls that other findings count.

    Their ``lost_ns`` is the time above what the other products of their kind, precision and bound
    reach of the roof, ``reach``; null if there are no others.
    """
    far, alike = pl.col("roof_frac") < roofs.FAR_FROM_ROOF, ["kind", "precision", "bound"]
    rows = (result.operators if result.products is None else result.products).filter(
        pl.col("kind").is_in(_PRODUCT_KINDS), "is_exact"
    )
    reach = pl.col("roof_ns").sum() / pl.col("device_ns").sum()
    others = rows.filter(~far).group_by(alike).agg(reach=reach)
    lost = pl.col("device_ns") - pl.col("roof_ns") / pl.col("reach").fill_null(1.0).clip(None, 1.0)
    rows = rows.filter(far).join(others, on=alike, how="left", maintain_order="left")
    rows = rows.with_columns(lost_ns=lost)
    if (kernels := answers.of(Kernels)) is None:
        return rows
    if is_found(_no_tensor_cores, answers):
        rows = rows.filter(pl.col("precision") != "fp32")
    if is_found(_double_precision, answers):
        rows = rows.filter(pl.col("precision") != "fp64")
    if is_found(unfused_attention, answers):
        rows = rows.filter(~pl.col("operator").is_in(training.PRODUCTS))
    if is_found(_recomputed_activations, answers):
        once = 1 - pl.col("recomputed_calls") / pl.col("calls")
        rows = rows.with_columns(pl.col("device_ns", "roof_ns", "lost_ns") * once)
    if kernel_names.unaligned(kernels.heaviest("name")["name"].drop_nulls()):
        # which operand is transposed is not recorded: it decides which size must be aligned
        sizes = (map(int, re.findall(r"\d+", shape or "")) for shape in rows["shape"])
        is_odd = [any(n > _ALIGNED and n % _ALIGNED for n in each) for each in sizes]
        odd = (
            pl.Series(is_odd, dtype=pl.Boolean) & pl.col("why").is_null() & (pl.col("kind") == GEMM)
        )
        rows = rows.with_columns(why=pl.when(odd).then(pl.lit(roofs.UNALIGNED)).otherwise("why"))
    return rows.filter(pl.col("lost_ns") > 0)


#: Elements of 16 bits that are aligned.
_ALIGNED = 8


def is_found(rule: Rule, answers: Answers) -> bool:
    """Whether a rule has a finding."""
    return any(rule.severity(one.size or 0.0) for one in answers.measured(rule))


def _of_shapes(
    rows: pl.DataFrame, reasons: pl.DataFrame, text: Callable[[float], str]
) -> Iterator[str]:
    """Yield the shapes with most lost time, and the lost time of each reason."""
    top = rows.sort("lost_ns", "operator", "shape", descending=[True, False, False]).head(_NAMED)
    for row in top.iter_rows(named=True):
        why = f" ({row['why']})" if row["why"] else ""
        yield (
            f"{row['operator']} {row['shape']} {row['precision']}: "
            f"{text(row['device_ns'])}, {format_frac(row['roof_frac'])} of the roof{why}."
        )
    for why, lost_ns in reasons.drop_nulls("why").iter_rows():
        meanings = " and ".join(_REASONS[one] for one in why.split(", "))
        yield f"{meanings[:1].upper()}{meanings[1:]}: {text(lost_ns)} lost."
    if (reach := top["reach"][0]) is not None:
        yield f"Other products reach {format_frac(reach)} of the roof: time above that is lost."


def _of_reasons(rows: pl.DataFrame, reasons: pl.DataFrame, answers: Answers) -> str:
    """Return what to try for each reason that matters, the one with most lost time first."""
    large = (
        "Let the library search for faster kernels (PyTorch: torch.backends.cudnn.benchmark=True, "
        "channels_last), and compare its versions."
        if rows["kind"][0] == CONVOLUTION
        else "Compare the kernels with those of a newer library version where shapes are large "
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


#: The share of the time of kernels of one tensor each that a kernel for all tensors needs: it reads
#: and writes each value once. With few kernels per tensor it is more.
OF_MANY_FRAC, _OF_FEW_FRAC, _FEW = 1 / 3, 1 / 2, 4
#: Loops over gradients that are filled with 0, and what avoids them.
_OF_ZEROS = rf"zero_grad|^{training.ACCUMULATES}$"
_OF_MANY = {
    training.TABLES: "Join the tables: one lookup for all of them (FBGEMM: "
    "SplitTableBatchedEmbeddingBagsCodegen, TorchRec: FusedEmbeddingBagCollection), or one table "
    "with an offset for each feature; their gradients and updates are then fused, too.",
    training.WEIGHTS: "Each pass computes the weights again (weight norm, spectral norm): "
    "remove_weight_norm or remove_parametrizations where they are not trained, "
    "parametrize.cached() where they are used several times; else torch.compile or a CUDA graph.",
}
_UPDATING = (
    "time of such kernels above that of one for all tensors (a third; half of it, if fewer "
    "than four kernels update a tensor), and idle time between them while the host launches"
)


def _one_by_one(answers: Answers, *, optimizer: bool, advice: str) -> Iterator[Measured]:
    """Yield runs of kernels of one tensor each, by the place that launches them."""
    time, is_mine = answers.time, pl.col("place").eq_missing(training.IN_OPTIMIZER) == optimizer
    for (place,), rows in answers.loops.filter(is_mine).group_by("place", maintain_order=True):
        ns = int(rows["kernel_ns"].sum())
        spans = intervals.intersect(rows, time.windows, DEVICE)
        between = answers.between_launches(spans)
        each, per_tensor = (int(rows[name].median()) for name in ("n", "of_tensor"))  # type: ignore[arg-type]
        of_loop = place.startswith(training.LOOP)
        if (per := "step" if place in _OF_MANY or of_loop else "call") == "step":
            each = round(rows["n"].sum() / max(time.windows.height, 1))
        frac = OF_MANY_FRAC if per_tensor >= _FEW else _OF_FEW_FRAC
        frac = 0.0 if place == training.WEIGHTS or of_loop else frac
        total = round((1 - frac) * ns) + between
        name = frame_text(place.removeprefix(training.LOOP))
        name = f"{training.LOOP}{name}" if of_loop else name
        known = _TEXTS["keep_no_zeros"] if re.search(_OF_ZEROS, place) else advice
        yield Measured(
            title=f"{name} launches {each:,} small kernels per {per}, {per_tensor:,} "
            f"per {'iteration' if of_loop else 'tensor'}: {time.share(total)}.",
            evidence=(
                (
                    f"{format_count(int(rows['n'].sum()), 'kernel')} take {time.text(ns)}, idle "
                    f"time between them {time.text(between)}."
                ),
            ),
            advice=_OF_MANY.get(place, _TEXTS["of_loop"] if of_loop else known),
            total_ns=total,
            most_gain_ns=total,
            intervals=intervals_of(spans),
        )


# --- copies that grow --------------------------------------------------------------------------

#: What extends the KV cache of a layer in Hugging Face Transformers.
_CACHE_UPDATE = r"transformers[/\\]cache_utils\.py\(\d+\): update$"


@memoized
def growing_copies(result: Kernels, time: DeviceTime) -> list[tuple[str, int, int, int, int]]:
    """Return kernels that concatenate more in each step: name, GPUs, time of each, first, last.

    Or those that copy a tensor to add little to it, by its shapes, or in the update of a KV cache:
    their time is hardly longer in the last step, and first and last are 0.
    """
    names = pl.col("kernel").cast(pl.String)
    rows = in_steps(result, time).filter(names.str.contains(kernel_names.JOINS))
    sums = (
        of_purpose(result, training.EXTENDED, time)
        .group_by("name")
        .agg(extended=pl.col("ns").sum())
    )
    by_shape = result.heaviest("name").join(sums, on="name").group_by("kernel")
    extended = dict(by_shape.agg(pl.col("extended").sum()).iter_rows())
    ranked = []
    for (kernel,), calls in rows.group_by("kernel", maintain_order=True):
        devices, ns = calls.n_unique(DEVICE), int(calls["total_ns"].sum())
        sums = calls.drop_nulls("step").group_by("step").agg(ns=pl.col("total_ns").sum() // devices)
        called = result.place(str(kernel)).get("called") or ""
        if 2 * extended.get(kernel, 0) >= ns or re.search(_CACHE_UPDATE, called):
            ranked.append((str(kernel), devices, ns // devices, 0, 0))
        elif grown := time.growing(sums.cast({"step": pl.String})):
            ranked.append((str(kernel), devices, int(sums["ns"].sum()), *grown))
    return sorted(ranked, key=lambda one: (-one[1] * one[2], one[0]))


@rule(
    "kernels",
    "tensors that torch.cat copies into a longer one again and again",
    f"time of these copies without what a step adds, {OF_STEP}",
    {"info": 0.03, "warning": 0.1, "critical": 0.3},
    uses=("gpu_idle",),
)
def _growing_copies(result: Kernels, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    steps = max(time.windows["step"].drop_nulls().n_unique(), 1)
    for kernel, devices, ns, first, last in growing_copies(result, time):
        # a step needs to copy what it adds
        total = devices * max(ns - steps * min(first, (last - first) // max(steps - 1, 1)), 0)
        place = result.place(kernel)
        grows = (
            f"more in each step ({format_ns(first)} in the first, {format_ns(last)} in the last)"
        )
        copies = grows if last else "a whole tensor each time to add little to it"
        yield Measured(
            title=f"{kernel} copies {copies}{launched_by(place)}{called_in(place)}: "
            f"{time.share(total)}.",
            evidence=tuple(called_from(place)),
            advice="Do not extend a tensor by torch.cat in each step, which copies all of it: "
            "allocate its final size once and write into it (a static or paged KV cache; "
            'Transformers: cache_implementation="static"), or append to a list and concatenate '
            "once at the end.",
            total_ns=total,
            confidence="medium",
        )


@rule(
    "kernels",
    "an optimizer that launches kernels for each parameter instead of a few for all",
    f"{_UPDATING}, {OF_STEP}, from {training.LEAST_RUN} kernels one after another on",
    {"info": 0.03, "warning": 0.1, "critical": 0.3},
    uses=("gpu_idle",),
)
def _unfused_optimizer(_: Kernels, answers: Answers) -> Iterator[Measured]:
    advice = (
        "Use foreach=True or fused=True (torch.optim) to update all parameters with a few "
        "kernels; use torch.compile for other optimizers."
    )
    yield from _one_by_one(answers, optimizer=True, advice=advice)


@rule(
    "kernels",
    "a loop over parameters or other tensors that launches kernels for each of them",
    f"{_UPDATING}, {OF_STEP}, from {training.LEAST_RUN} kernels one after another on",
    {"info": 0.03, "warning": 0.1, "critical": 0.3},
    uses=("gpu_idle",),
)
def _tensor_loop(_: Kernels, answers: Answers) -> Iterator[Measured]:
    advice = (
        "Replace the loop by operators for lists of tensors: torch._foreach_mul_, _foreach_add_, "
        "_foreach_lerp_, _foreach_norm; for gradient clipping clip_grad_norm_(foreach=True), for "
        "moving averages torch.optim.swa_utils (get_ema_multi_avg_fn), or torch.compile the loop."
    )
    yield from _one_by_one(answers, optimizer=False, advice=advice)


@rule(
    "kernels",
    "checks of each gradient for NaN (anomaly detection of autograd), which wait for the GPU",
    f"time of these kernels and until the next work runs, {OF_STEP}",
    {"info": 0.01, "warning": 0.05, "critical": 0.2},
    uses=("gpu_idle",),
)
def _anomaly_detection(_: Kernels, answers: Answers) -> Iterator[Measured]:
    rows, time = answers.nan_checks, answers.time
    total, forward = (int(r["ns"].sum()) for r in (rows, rows.filter(name=training.FORWARD)))
    checks = rows.filter(pl.col("ns") > 0)["name"].null_count() / max(time.windows.height, 1)
    saves = f", and saves Python stacks in the forward pass ({time.text(forward)})" * bool(forward)
    yield Measured(
        title="Anomaly detection of autograd checks each gradient for NaN and waits for the "
        f"result{saves}: {time.share(total)}.",
        evidence=(f"{checks:,.0f} checks (aten::isnan in nodes of the backward pass) per step.",),
        advice="Switch torch.autograd.set_detect_anomaly (or detect_anomaly=True of the trainer) "
        "on only while you search for a NaN.",
        total_ns=total,
        intervals=intervals_of(intervals.intersect(rows, time.windows, DEVICE)),
    )


#: Least share of recomputed activations; memory is full from this share of the GPU's on.
_RECOMPUTED, _FULL = 0.05, 0.8
_SELECTIVE = (
    "only cheap operators (selective activation checkpointing: torch.utils.checkpoint with a "
    "context_fn)"
)


@rule(
    "kernels",
    "activations recomputed in the backward pass",
    f"time of layers in the backward pass {OF_STEP}",
    {"info": _RECOMPUTED, "warning": 0.15},
    uses=("gpu_idle", "memory", "info"),
)
def _recomputed_activations(result: Kernels, answers: Answers) -> Iterator[Measured]:
    work = of_purpose(result, training.RECOMPUTED, answers.time)
    total, time = int(work["ns"].sum()), answers.time
    top = largest_first(work.group_by("name").agg(pl.col("ns").sum()), "ns", "name")
    each = ", ".join(f"{name} ({time.text(ns)})" for name, ns in top.head(_NAMED).iter_rows())
    peak, whole = answers.memory_use or (0, 0)
    room = f"{format_bytes(peak)} of {format_bytes(whole)} are reserved at the peak."
    is_full = bool(whole) and peak > _FULL * whole
    if is_full:
        advice = f"Recompute {_SELECTIVE}, or free memory first: shard more, smaller micro-batches."
    else:
        when = "Memory is free" if whole else "If memory allows"
        advice = f"{when}: checkpoint fewer layers, or {_SELECTIVE}."
    yield Measured(
        # in full memory it is the price of the size
        size=min(time.frac(total), _RECOMPUTED) if is_full else time.frac(total),
        cost_frac=time.frac(total),
        title="Activations are recomputed in the backward pass (activation checkpointing): "
        f"{time.share(total)}.",
        evidence=(*[room] * bool(whole), f"Layers in the backward pass: {each}."),
        advice=advice,
        total_ns=total,
        confidence="medium",
    )


RULES = (
    _no_tensor_cores, _double_precision, unfused_attention, memory_bound_kernels, separate_norms,
    _far_from_roof, _unaligned_products, _growing_copies, _unfused_optimizer, _tensor_loop,
    _anomaly_detection, _recomputed_activations,
)  # fmt: skip
