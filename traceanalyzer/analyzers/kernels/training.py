"""Device work by its purpose in a training step.

The purposes are updates of one tensor each, activations that are computed again in the backward
pass, reductions of gradients before the last micro-batch, attention by separate operators, searches
for the fastest kernel, checks for NaN, optimizers that multiply matrices, norms by separate
operators, and time that kernels lose to collectives.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.analyzers.common import host_code, kernel_names
from traceanalyzer.analyzers.common.device_steps import device_steps, launching_step
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE, MEMORY, device_work
from traceanalyzer.analyzers.common.kernel_names import (
    COPY,
    ELEMENTWISE,
    GEMM,
    OTHER,
    families_of,
)
from traceanalyzer.analyzers.common.launching import launches
from traceanalyzer.analyzers.common.names import (
    BACKWARD,
    CHECKPOINT,
    LAYERS,
    distinct,
    matching,
    named,
)
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import CUDA_CALLS

ONE_BY_ONE, RECOMPUTED, REPEATED = "one by one", "recomputed", "repeated reduction"
GRADIENTS, ALL_REDUCE = "reduction", "all_reduce"
ATTENTION, TUNING, NAN_CHECK = "unfused attention", "tuning", "NaN check"
#: What anomaly detection does before backward passes.
FORWARD = "forward"
UPDATES, EXTENDED, NORM = "matrix updates", "extended tensor", "norm by operators"
SLOWED, SHARED = "slowed by collectives", "other process"
#: Avoidable work, and the ranges or functions that launch it.
AVOIDABLE, ZEROS, CLIPS = "avoidable", "fills gradients", "clips gradients"
_AVOIDED = {
    ZEROS: r"^Optimizer\.zero_grad",
    "joins weights": r"^aten::_cudnn_rnn_flatten_weight$",
    CLIPS: r"(?:clip_grad|utils)\w*\.py\(\d+\): clip_grad_norm\w*$",
}
#: What all layers of a pass can share, by the function that makes it; kernels of tables of angles.
AGAIN, LEAST_CALLS, _ANGLES = "makes again: ", 4, "cos_kernel|sin_kernel"
OF_A_BATCH = (
    r": _*(?:create|make|build|get|gen\w*|(?:pre)?comput\w+|prepare|expand|construct|invert)_"
    r"(?!\w*(?:drop|fill|random|loss|logit|expert|moe))(?:\w+_)?(?:masks?|cu_?seq_?lens?|unpad_data"
    r"|position_ids|alibi|cos_sin|sin_cos|freqs_cis|rotary_emb\w*)(?:_\w+)?$"
    r"|^nn\.Module: \w*Rotary\w*_\d+$"
)
#: The outermost of these ranges is a forward pass: generation has one for each token.
_WHOLE_MODEL = r"^nn\.Module: |\.py\(\d+\): forward$"

#: The operator that joins tensors, and two of them in its recorded inputs.
JOIN, _SIZES = "aten::cat", r"\[((?:\d{1,12}, ?)*\d{1,12})\]"
_TWO_TENSORS = re.compile(rf"\[\[{_SIZES}, ?{_SIZES}\](?:,|\])")
#: A tensor that is extended is at least this many times as long as what is added; the result is
#: extended again, to so many sizes.
_LONGER, _LEAST_SIZES = 4, 3

#: What measures kernels to choose one of them.
AUTOTUNING, SEARCH = "Triton autotuning", "Search for convolution algorithms"

#: Operators of unfused attention: softmax, and two matrix products.
SOFTMAX = ("aten::_softmax", "aten::softmax", "aten::_softmax_backward_data")
PRODUCTS = ("aten::bmm", "aten::baddbmm")

SCHEMA = {
    "purpose": pl.String, "device": pl.Int32, "name": pl.String, "place": pl.String,
    **dict.fromkeys(("of_tensor", "call", "start", "end"), pl.Int64),
}  # fmt: skip
_NONE = pl.DataFrame(schema=SCHEMA)

_THREAD = ["pid", "tid"]
_ON_HOST, _PYTHON = ("cpu_op", "user_annotation", "nvtx"), ("python_function",)

#: Ranges that PyTorch marks itself.
_OPTIMIZER_STEP = r"^Optimizer\.step#"
#: Operators that run a fused attention kernel.
_FUSED = "(?i)flash|efficient_attention|cudnn_attention|fmha|mem_eff|sage_?attn|xformers"
_OF_ATTENTION = f"^(?:{'|'.join(SOFTMAX + PRODUCTS)})$"
#: Python code of Triton and TorchInductor that runs kernels to measure them, and the calls around
#: it, which launch a kernel only if its configuration is known.
_BENCHMARKS = (
    r"(?:^|[/\\])(?:triton|torch[/\\]_inductor)[/\\](?:\w+[/\\])?\w+\.py\(\d+\): "
    r"(?:do_bench\w*|_bench|benchmark_all_configs)$|CachingAutotuner\.benchmark_all_configs"
)
_AUTOTUNER = (
    r"(?:^|[/\\])triton[/\\]runtime[/\\]autotuner\.py\(\d+\): run$"
    r"|triton_heuristics\.py\(\d+\): autotune_to_one_config$"
)
#: Operators that search for an algorithm (torch.backends.cudnn.benchmark) wait for events in it.
_CONVOLUTIONS = r"^aten::(?:(?:cudnn|miopen)_convolution\w*|convolution_backward)$"
_WAITS_FOR_EVENT = r"^(?:cuda|cu|hip)EventSynchronize"
#: Anomaly detection of autograd checks each gradient, in at least this share of the nodes.
_IS_NAN, _LEAST_CHECKED = r"^aten::isnan$", 0.2
#: PyTorch's own attention by separate operators, for inputs that no fused kernel accepts.
_MATH = "^aten::_scaled_dot_product_attention_math$"

#: Minimum number of kernels in a run that indicates updates of one tensor each.
LEAST_RUN = 100
#: Place of such runs in an optimizer.
IN_OPTIMIZER = "Optimizer.step"
#: What adds gradients to those of the parameters, if these were filled with 0.
ACCUMULATES, _SUMS = "AccumulateGrad", "AccumulateGrad$"
#: A loop over tensors calls few different operators, and some change a tensor or reduce one.
_MOST_OPERATORS, _LEAST_IN_PLACE, _NAMED = 16, 0.2, 3
_OF_A_TENSOR = r"^aten::(?:\w*[a-z0-9]_|(?:linalg_)?(?:vector_)?norm)$"
#: Operators that launch many kernels for one matrix.
_OF_MATRIX = (
    r"^aten::_?(?:linalg_)?(?:svd|eig|qr|cholesky|lu|inv|det|slogdet|solve|pinv|lstsq|ldl|hous)"
)
#: Operators and functions of a loop over embedding tables, and of weights that each pass computes.
TABLES = "A loop over embedding tables"
WEIGHTS = "A parametrization of weights"
MANY_OF = {
    TABLES: r"^aten::embedding(?:_bag)?$|: Embedding(?:Bag)?Backward0$",
    WEIGHTS: r"^aten::_?weight_norm|WeightNorm\w*Backward"
    r"|torch[/\\]nn[/\\]utils[/\\](?:parametrizations|weight_norm|spectral_norm)\.py",
}
#: So many tables are a loop, with at most so many other kernels between two, each this long.
_LEAST_TABLES, _APART, _SHORT_NS = 8, 3, 50_000
#: A loop launches the same kernels, at most so many, so often one after another. Longer ones have
#: work that one call has, too; up to so many products and convolutions are those of layers.
_TINY_NS, _MOST_LAYERS = 10_000, 128
LOOP, _LONGEST, _REPEATS, _TO_HOST = "A loop in ", 4, 16, r"(?i)dtoh|device.to.host"
_OF_LAYERS = (GEMM, kernel_names.CONVOLUTION, kernel_names.ATTENTION, "moe", "recurrent", "fft")
_OF_TORCH = re.compile(r"(?:^|[/\\])torch[/\\]")
#: Kernels that update many tensors at once, and families of those of one.
_OF_MANY = r"(?i)multi_tensor|fused"
_OF_ONE = (ELEMENTWISE, COPY, "reduce", "optimizer", OTHER)

#: Operators of an RMS norm (x * rsqrt(mean(x * x) + eps), casts, weights), and nodes of its
#: backward pass, by a letter each, and in which order they are launched.
_ROOT = "aten::rsqrt"
_OF_NORM = (
    f"aten::copy_ aten::to aten::pow aten::mul aten::mean aten::add {_ROOT} ToCopyBackward0 "
    "PowBackward0 MulBackward0 MeanBackward1 AddBackward0 RsqrtBackward0"
)
_LETTERS_OF_NORM = dict(zip(_OF_NORM.split(), b"ccpxmarCPXMAR", strict=True))
_NORMS = b"c?[px]ma?rx(?:[ca]*x)?c?|(?:X+C*)?X+R*[AM]*P+C*"

#: Without any of them and Python frames, no work has one of the purposes.
_MARKS = [
    _BENCHMARKS, _WAITS_FOR_EVENT, _OPTIMIZER_STEP, _OF_ATTENTION, BACKWARD, CHECKPOINT, LAYERS,
    _OF_A_TENSOR, f"^{JOIN}$", f"^{_ROOT}$", *MANY_OF.values(),
]  # fmt: skip
#: A single one may be part of the backward pass of somebody's own function.
_SEVERAL = 2


def training(trace: Trace, patterns: Sequence[str] = ()) -> pl.DataFrame:
    """The device work of some purposes in training, where PyTorch's ranges and operators show them.

    Args:
        trace: of one rank, with operators, annotations and launch calls.
        patterns: see :func:`~traceanalyzer.analyzers.common.device_work.device_work`.

    Returns:
        purpose, device, name, place, of_tensor, call, start, end: a row a piece of work.
        :data:`ONE_BY_ONE`: runs of kernels that each update one tensor; name is the kernel, place
        where they are launched (:data:`IN_OPTIMIZER`, an annotation, a function, or operators),
        of_tensor the number of kernels per tensor, by the rarest operator (or kernel, if none is
        recorded), call the number of the run.
        :data:`RECOMPUTED`: work of layers in the backward pass; name is the operator.
        :data:`GRADIENTS`: all_reduces of backward passes only; :data:`REPEATED`: those, and
        reduce_scatters, that the last pass before the same optimizer step repeats; call is the
        number of passes.
        :data:`ATTENTION`: kernels of :data:`SOFTMAX` and :data:`PRODUCTS`, and pointwise kernels
        between them (:data:`BETWEEN`), if both kinds were called; where other attention is fused,
        only runs of them with a softmax and two products. name is the operator, place the kernel,
        call is 1 within PyTorch's attention, otherwise 0. Without operators, see :data:`KERNELS`.
        :data:`TUNING`: from the allocation before the first kernel of one search for the fastest
        kernel to the last one, the chosen kernel at work; name is :data:`AUTOTUNING`
        or :data:`SEARCH`. :data:`UPDATES`: compute of optimizer steps that mostly multiply
        matrices; place is the range, call is 1 if collectives run in it.
        :data:`EXTENDED`: copies of a tensor by :data:`JOIN` to add little to it, and to the result.
        :data:`NORM`: kernels of an RMS norm by separate operators, forward and backward, without
        the first one of each, which reads and writes every value once, as a fused one does; place
        is the Python function. :data:`SLOWED`: the time that compute kernels take longer while
        collectives run, see :func:`_slowed`. :data:`SHARED`: the time in which other processes use
        the devices of the one with the steps; name is the process. :data:`AVOIDABLE`: kernels of
        ranges that need not run, or not so often (place); call is how often they run in a step of
        the optimizer; of :data:`AGAIN`, all calls of a function in a pass but the first.
    """
    key = ("training", tuple(patterns))
    return trace.once(key, lambda: _training(trace, device_work(trace, patterns)))


def _training(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    names = trace.names
    attention = _attention_kernels(work) if not matching(names, ["^aten::"]) else _NONE
    slower = _slowed(trace, work).with_columns(purpose=pl.lit(SLOWED))
    attention = pl.concat([attention, _shaped(slower), _shaped(_shared(trace, work))])
    if not matching(names, _MARKS) and "python_function" not in trace.kinds:
        return attention
    calls = launches(trace, work).select("work", *_THREAD, ts="launch_start")
    steps, nodes = (_ranges(trace, names, name) for name in (_OPTIMIZER_STEP, BACKWARD))
    loops = [
        _one_by_one(trace, work, calls, steps),
        *(_of_many(trace, work, calls, names, place) for place in MANY_OF),
    ]
    found = pl.concat([_NONE, *(_shaped(rows) for rows in loops if rows.height)])
    tables = [
        _recomputed(work, calls, _ranges(trace, names, f"{BACKWARD}|{CHECKPOINT}|{LAYERS}")),
        _reductions(trace, work, calls, nodes, steps),
        _attention(trace, work, calls, names),
        _tuning(trace, work, calls, names),
        _nan_checks(work, calls, _ranges(trace, names, _IS_NAN), nodes, steps),
        _matrix_updates(work, calls, nodes, steps),
        _extending(trace, work, calls),
        _norms(trace, work, calls, nodes),
        *(_avoidable(trace, work, calls, steps, what) for what in _AVOIDED),
        _again(trace, work, calls, nodes),
    ]
    others = _shaped(_repeating(trace, work, calls, steps))
    others = others.join(found, on=["device", "start"], how="anti", nulls_equal=True)
    return pl.concat([attention, found, others, *map(_shaped, tables)])


def _ranges(
    trace: Trace, names: list[str], pattern: str, kinds: Collection[str] = _ON_HOST
) -> pl.DataFrame:
    """Slices of the host with these names: pid, tid, name, start, end; by start."""
    hits = matching(names, [pattern])
    if not hits:
        return _NO_RANGES
    rows = host_code.slices(trace, *kinds, among=trace.events["name"].is_in(hits))
    return rows.drop("kind").sort("start")


_NO_RANGES = schema.empty("events").select(*_THREAD, "name", start="ts", end="dur")


def _shaped(rows: pl.DataFrame) -> pl.DataFrame:
    if rows.is_empty():
        return _NONE
    rows = rows if "place" in rows.columns else rows.with_columns(place=None, of_tensor=None)
    return rows.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def _one_by_one(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """Kernels of one tensor each that run one after another, launched in one place."""
    lane = ["device", "stream"]
    rows = calls.hstack(work[[*lane, "name", "work_kind"]][calls["work"]]).sort(*lane, "ts")
    of_name = families_of(rows["name"].unique().drop_nulls())
    names = [name for name, one in of_name.items() if one in _OF_ONE]
    single = [*set(names) - {*matching(names, [_OF_MANY])}]
    if not single:
        return _NONE
    alone = pl.col("name").is_in(single).fill_null(value=False)
    rows = rows.with_columns(alone=alone & (pl.col("work_kind") == COMPUTE))
    rows = rows.with_columns(run=pl.struct(*lane, *_THREAD, "alone").rle_id())
    rows = rows.filter("alone", pl.len().over("run") >= LEAST_RUN)
    if rows.is_empty():
        return _NONE
    around = host_code.places_of(trace)
    optimizing = linking.label_by_interval(rows, steps, _THREAD)["interval"].is_not_null()
    rows = rows.with_columns(
        operator=around.operator(rows).cast(pl.String),
        place=around.annotation(rows).cast(pl.String),
        outer=around.outer_operator(rows).cast(pl.String).str.extract(f"({ACCUMULATES})$"),
    )
    place = pl.when(optimizing).then(pl.lit(IN_OPTIMIZER)).otherwise(pl.coalesce("outer", "place"))
    rows = rows.with_columns(place=place)
    rows = rows.filter(~pl.col("operator").str.contains(_OF_MATRIX).fill_null(value=False))
    rows = rows.with_columns(call=pl.struct("run", "place").rle_id())
    alike = pl.col("operator").n_unique().over("call") <= _MOST_OPERATORS
    changing = pl.col("operator").str.contains(_OF_A_TENSOR).mean().over("call") >= _LEAST_IN_PLACE
    is_loop = (alike & changing).fill_null(value=False) | (pl.col("place") == IN_OPTIMIZER)
    rows = rows.filter(pl.len().over("call") >= LEAST_RUN, is_loop)
    code = host_code.python_frames(trace, rows[["pid", "tid", "ts"]])
    kind = pl.coalesce("operator", pl.col("name").cast(pl.String))
    rows = rows.with_columns(code=code.cast(pl.String), n=pl.len().over("call", kind))
    often = pl.when(_MOST_OPERATORS * pl.col("n") >= pl.len().over("call")).then("n")
    few = pl.col("operator").drop_nulls().unique(maintain_order=True).head(_NAMED)
    loop = "A loop of " + few.str.join(", ").over("call")
    place = pl.coalesce("place", pl.col("code").first().over("call"), loop)
    purpose, each = pl.lit(ONE_BY_ONE), pl.len().over("call") // often.min().over("call")
    return work[rows["work"]].hstack(rows.select("call", place, purpose=purpose, of_tensor=each))


def _of_many(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, names: list[str], place: str
) -> pl.DataFrame:
    """Short kernels of operators that are called for one embedding table or weight each."""
    ranges = _ranges(trace, names, MANY_OF[place], (*_ON_HOST, *_PYTHON))
    if ranges.is_empty():
        return _NONE
    ranges = _outermost(ranges)
    order = pl.int_range(pl.len()).over(_THREAD).alias("order")
    inside = linking.label_by_interval(calls.sort("ts"), ranges, _THREAD).with_columns(order)
    apart = pl.col("order").diff().over(_THREAD).fill_null(_APART + 2) > _APART + 1
    begins = apart if place == TABLES else pl.col("interval") != pl.col("interval").shift()
    rows = inside.drop_nulls("interval").sort(*_THREAD, "ts")
    rows = rows.with_columns(call=begins.fill_null(value=False).cum_sum())
    n = pl.col("interval").n_unique().over(*_THREAD, "call").cast(pl.Int64)
    rows = rows.with_columns(n=n, of_tensor=pl.len().over(*_THREAD, "call") // n)
    rows = work[rows["work"]].hstack(rows.select("call", "of_tensor", "n"))
    mean = (pl.col("end") - pl.col("start")).mean().over("call")
    many = (place != TABLES) | (pl.col("n") >= _LEAST_TABLES)
    rows = rows.filter(many & (mean <= _SHORT_NS), work_kind=COMPUTE)
    return rows.with_columns(place=pl.lit(place), purpose=pl.lit(ONE_BY_ONE))


def _avoidable(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, steps: pl.DataFrame, what: str
) -> pl.DataFrame:
    """Kernels of ranges that need not run, or not so often."""
    ranges = _ranges(trace, trace.names, _AVOIDED[what], (*_ON_HOST, *_PYTHON))
    if ranges.is_empty():
        return _NONE
    calls = calls.sort("ts")
    labelled = linking.label_by_interval(calls, ranges, _THREAD)
    rows, inside = labelled.drop_nulls("interval"), pl.col("interval").is_not_null()
    # ranges without other launches in between are of several sets of parameters
    begins = inside & ~inside.shift(1, fill_value=False).over(_THREAD)
    times = round(labelled.select(begins.sum()).item() / steps.height) if steps.height else 0
    if what == CLIPS and times < 2:
        return _NONE
    if what == ZEROS and rows.height:  # the first sums after it only copy
        sums = _ranges(trace, trace.names, _SUMS)
        others = linking.label_by_interval(calls, sums, _THREAD).drop_nulls("interval")
        ahead = calls.join(sums, on=_THREAD, how="anti").rename({"ts": "start"})
        others = others.with_columns(before=_count(ahead, others), step=_count(steps, others))
        first = pl.col("before") == pl.col("before").min().over("step")
        rows = pl.concat([rows, others.filter(first).select(rows.columns)])
    labels = {"purpose": pl.lit(AVOIDABLE), "place": pl.lit(what), "of_tensor": None, "call": times}
    return work[rows["work"]].filter(work_kind=COMPUTE).with_columns(**labels)


def _again(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, nodes: pl.DataFrame
) -> pl.DataFrame:
    """Kernels of functions that each layer of a pass calls for what all of them can share.

    Kernels of layers run between the calls; otherwise they may be one for each image of a batch.
    """
    ranges = _outermost(_ranges(trace, trace.names, OF_A_BATCH, _PYTHON))
    if ranges.is_empty():
        return _NONE
    passes = _outermost(_ranges(trace, trace.names, _WHOLE_MODEL, _PYTHON))
    families = families_of(work["name"].unique().drop_nulls())
    layers = [name for name, family in families.items() if family in _OF_LAYERS]
    is_layer = pl.col("name").is_in(layers).fill_null(value=False).cast(pl.Int64)
    calls = calls.with_columns(work["name"][calls["work"]]).sort("ts")
    calls = calls.select(*_THREAD, "ts", "work", before=is_layer.cum_sum().over(_THREAD))
    calls = linking.label_by_interval(calls, passes, _THREAD).rename({"interval": "pass"})
    calls = linking.label_by_interval(calls.drop_nulls("pass"), ranges, _THREAD)
    rows = calls.drop_nulls("interval")
    rows = rows.hstack(work.drop(*_THREAD, "ts", strict=False)[rows["work"]])
    step = launching_step(device_steps(trace), rows["ts"], rows["start"])
    place = ranges["name"][rows["interval"]].cast(pl.String)
    place = AGAIN + place.str.replace_all(r"^nn\.Module: |_\d+$", "")
    rows = rows.with_columns(step, place.alias("place"), call=_count(nodes, rows))
    rows = rows.join(grids_of(trace), on="event", how="left", maintain_order="left")
    kernel = pl.format("{} {}; ", pl.col("name").cast(pl.String), pl.col("blocks").fill_null(0))
    alike = ["step", "pass", "place", "call", "kernels"]
    of_layer = pl.col("name").is_in(layers).any().over("interval")
    by_call = rows.drop_nulls("step").filter(~of_layer).group_by("interval", maintain_order=True)
    each = by_call.agg(pl.col(*alike[:-1], "before").first(), kernels=kernel.str.join())
    each = each.with_columns(n=pl.len().over(alike), nth=pl.int_range(pl.len()).over(alike))
    is_table = ~pl.col("place").str.contains("Rotary") | pl.col("kernels").str.contains(_ANGLES)
    apart = pl.col("before").n_unique().over(alike) >= LEAST_CALLS
    again = each.filter(is_table & apart, pl.col("nth") > 0)
    rows = rows.drop("call").join(again.select("interval", call="n"), on="interval")
    return rows.filter(work_kind=COMPUTE).with_columns(purpose=pl.lit(AVOIDABLE), of_tensor=None)


def _outermost(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return ranges that no other one of their thread contains, by start."""
    ranges = ranges.sort("start", "end", descending=[False, True])
    ends = pl.col("end").cum_max().shift().over(_THREAD).fill_null(0)
    return ranges.filter(pl.col("end") > ends)


def _repeating(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """Short kernels of a loop: the same few again and again, by operators of their own."""
    if "python_function" not in trace.kinds:
        return _NONE
    lane = ["device", "stream"]
    columns = [*lane, "name", "work_kind", "start", "end"]
    rows = calls.hstack(work[columns][calls["work"]]).sort(*lane, "start")
    rows = rows.with_columns(period=0)
    for n in range(_LONGEST, 0, -1):
        same = (pl.col("name") == pl.col("name").shift(n)).over(lane).fill_null(value=False)
        rows = rows.with_columns(same=same).with_columns(run=pl.col("same").rle_id())
        is_long = pl.col("same") & (pl.len().over("run") >= n * (_REPEATS - 1))
        is_long |= is_long.shift(-n, fill_value=False)  # the first ones, too
        rows = rows.with_columns(period=pl.when(is_long).then(n).otherwise("period"))
    # iterations that read a result, or communicate, wait for that, which is another finding
    waits = pl.col("name").cast(pl.String).str.contains(_TO_HOST).fill_null(value=False)
    waits |= pl.col("work_kind") == COMMUNICATION
    waits = waits.any().over(pl.struct(*lane, "period").rle_id())
    rows = rows.filter(pl.col("period") > 0, ~waits)
    inside = linking.label_by_interval(rows, steps, _THREAD)["interval"]
    rows = rows.filter(inside.is_null(), work_kind=COMPUTE)
    if rows.is_empty():
        return _NONE
    code = host_code.python_frames(trace, rows, lambda _, file: not _OF_TORCH.search(file or ""))
    outer = host_code.places_of(trace).outer_rows(rows)
    of_name = families_of(rows["name"].unique().drop_nulls())
    layers = [name for name, one in of_name.items() if one in _OF_LAYERS]
    joined = matching(of_name, [_OF_MANY])
    rows = rows.with_columns(code=code.cast(pl.String), outer=outer)
    rows = rows.with_columns(call=pl.struct(*lane, "period", "code").rle_id())
    each, mean = pl.len().over("call"), (pl.col("end") - pl.col("start")).mean().over("call")
    is_called = 2 * pl.col("outer").n_unique().over("call") * pl.col("period") >= each
    others = pl.col("name").is_in(layers) & (each < _MOST_LAYERS * pl.col("period"))
    others |= pl.col("name").is_in(joined)
    many = (each >= _REPEATS * pl.col("period")) & (mean <= _TINY_NS)
    rows = rows.filter(many & is_called & ~others.any().over("call")).drop_nulls("code")
    return rows.select(
        "device", "name", "call", "start", "end",
        purpose=pl.lit(ONE_BY_ONE), place=LOOP + pl.col("code"), of_tensor="period",
    )  # fmt: skip


def _recomputed(work: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Work of which the innermost of these ranges is a layer in the backward pass."""
    if ranges.is_empty():
        return _NONE
    is_layer, is_node = (named(ranges, [pattern]) for pattern in (LAYERS, CHECKPOINT))
    layers, backward = ranges.filter(is_layer), ranges.filter(~is_layer)
    within = linking.label_by_interval(layers.rename({"start": "ts"}), backward, _THREAD)
    again = layers.filter(within["interval"].is_not_null())
    nodes = backward.filter(is_node)
    if nodes.is_empty() and again["name"].n_unique() < _SEVERAL:
        return _NONE
    counted = pl.concat([again, nodes]).with_columns(counts=pl.lit(value=True))
    others = backward.filter(~is_node).with_columns(counts=pl.lit(value=False))
    known = pl.concat([others, counted])
    inner = linking.enclosing(calls, known, _THREAD).drop_nulls("slice")
    of_range = known[inner["slice"]][["name", "counts"]]
    rows = work[inner["work"]].drop("name").hstack(of_range).filter("counts")
    return rows.with_columns(purpose=pl.lit(RECOMPUTED), call=pl.lit(0))


def _reductions(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, nodes: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """Reductions of the autograd threads whose like the threads of forward passes do not call.

    Tensor parallelism sums activations in the forward pass too, with the same group and size.
    """
    forward = pl.col("tid").is_in(steps["tid"].unique().implode())
    backward = pl.col("tid").is_in(nodes["tid"].unique().implode()) | nodes.is_empty()
    calls = calls.with_columns(work["work_kind"][calls["work"]], backward=backward & ~forward)
    launched = calls.filter(work_kind=COMMUNICATION)
    if calls["backward"].all() or launched.is_empty():
        return _NONE
    sizes = trace.collectives.select("event", "collective", "group", size="elements_in")
    rows = work[launched["work"]].hstack(launched.select("ts", "backward"))
    rows = rows.join(sizes, on="event", how="left")
    elsewhere = rows.filter(~pl.col("backward"))
    kind = pl.col("collective").cast(pl.String).fill_null(ALL_REDUCE)
    rows = rows.filter("backward", kind.is_in([ALL_REDUCE, "reduce_scatter"]))
    rows = rows.join(elsewhere, on=["group", "size"], how="anti", nulls_equal=True)
    if rows.is_empty():
        return _NONE
    rows = rows.with_columns(
        _count(calls.filter(forward).select(start="ts").sort("start"), rows).alias("pass"),
        _count(steps, rows).alias("call"),
        purpose=pl.lit(GRADIENTS),
    )
    return pl.concat(
        [_shaped(rows.filter(kind == ALL_REDUCE)), *[_shaped(_repeated(rows))] * bool(steps.height)]
    )


def _repeated(rows: pl.DataFrame) -> pl.DataFrame:
    """Reductions of each backward pass that the last one before the same optimizer step repeats."""
    passes = rows.group_by("call", "pass").agg(pl.col("size").fill_null(0).sort()).sort("pass")
    sizes = pl.col("size").cast(pl.List(pl.Int64))
    again = passes.with_columns(count=pl.len().over("call"), last=sizes.last().over("call")).filter(
        pl.col("pass") < pl.col("pass").max().over("call"), pl.col("size") == pl.col("last")
    )
    kept = rows.join(again[["call", "pass", "count"]], on=("call", "pass"))
    return kept.with_columns(purpose=pl.lit(REPEATED), call="count")


def _matrix_updates(
    work: pl.DataFrame, calls: pl.DataFrame, nodes: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """Compute of optimizer steps, if matrix products take half of it (Muon, Shampoo).

    Without steps in which a backward pass runs: Lightning passes it to the optimizer as a closure.
    """
    begun = nodes["start"]
    steps = steps.filter(begun.search_sorted(steps["end"]) == begun.search_sorted(steps["start"]))
    inside = linking.label_by_interval(calls, steps, _THREAD).drop_nulls("interval")
    rows = work[inside["work"]].with_columns(place=steps["name"][inside["interval"]])
    shared = rows["work_kind"].eq(COMMUNICATION).any()
    rows = rows.filter(work_kind=COMPUTE)
    families = families_of(rows["name"].unique().drop_nulls())
    products = [name for name, family in families.items() if family == GEMM]
    length = pl.col("end") - pl.col("start")
    of_products = length.filter(pl.col("name").is_in(products)).sum()
    if not rows.select(2 * of_products > length.sum()).item():
        return _NONE
    purpose = pl.lit(UPDATES)
    return rows.with_columns(purpose=purpose, of_tensor=None, call=pl.lit(int(shared)))


def _extending(trace: Trace, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Kernels that copy a tensor to add little to it, if others do the same with the result."""
    if "input_dims" not in trace.events.columns or JOIN not in trace.names:
        return _NONE
    events = trace.events[[*_THREAD, "name", "ts", "dur", "input_dims"]]
    joins = events.filter((pl.col("name") == JOIN) & (pl.col("dur") > 0)).drop_nulls("input_dims")
    sizes = {dims: _extended(str(dims)) for dims in joins["input_dims"].unique()}
    known = {size[:2] for size in sizes.values() if size}
    chains = {
        dims: size[0] for dims, size in sizes.items()
        if size and {(size[0], size[1] + sign * size[2]) for sign in (-1, 1)} & known
    }  # fmt: skip
    counts = Counter(chains.values())
    chosen = [dims for dims, kind in chains.items() if counts[kind] >= _LEAST_SIZES]
    joins = joins.filter(pl.col("input_dims").is_in(chosen))
    joins = joins.select(*_THREAD, start="ts", end=pl.col("ts") + pl.col("dur")).sort("start")
    inside = linking.label_by_interval(calls, joins, _THREAD).drop_nulls("interval")
    rows = work[inside["work"]].with_columns(purpose=pl.lit(EXTENDED), call=0)
    return rows.filter(work_kind=COMPUTE)


def _norms(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, nodes: pl.DataFrame
) -> pl.DataFrame:
    """Kernels of RMS norms by separate operators, without the first one of each."""
    if not matching(trace.names, [f"^{_ROOT}$"]):
        return _NONE
    rows = calls.sort(*_THREAD, "ts", "work")
    operator = host_code.places_of(trace).operator(rows).cast(pl.String)
    around = nodes["name"][linking.enclosing(rows, nodes, _THREAD)["slice"]].cast(pl.String)
    name = pl.coalesce(around.str.replace(BACKWARD, ""), operator)
    code = name.replace_strict(_LETTERS_OF_NORM, default=0, return_dtype=pl.UInt8)
    rows = rows.with_columns(name=name, code=code)
    spans = [match.span() for match in re.finditer(_NORMS, rows["code"].to_numpy().tobytes())]
    if not spans:
        return _NONE
    norms = pl.concat(rows[first + 1 : end].with_columns(call=first) for first, end in spans)
    place = host_code.python_frames(trace, norms[[*_THREAD, "ts"]]).cast(pl.String)
    purpose, of_tensor = pl.lit(NORM), pl.lit(1)
    columns = norms.select("name", "call", place=place, purpose=purpose, of_tensor=of_tensor)
    return work[norms["work"]].drop("name").hstack(columns)


def _extended(dims: str) -> tuple[tuple[int, ...], int, int] | None:
    """Return the common sizes of two joined tensors, the length of the long one, what is added."""
    match = _TWO_TENSORS.match(dims)
    one, other = ([*map(int, part.split(","))] for part in match.groups()) if match else ([], [])
    axes = [
        axis for axis, (n, of_other) in enumerate(zip(one, other, strict=False)) if n != of_other
    ]
    if len(one) != len(other) or len(axes) != 1:
        return None
    added, length = sorted(sizes[axes[0]] for sizes in (one, other))
    one[axes[0]] = -1
    return (tuple(one), length, added) if length >= _LONGER * added > 0 else None


def _tuning(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, names: list[str]
) -> pl.DataFrame:
    """Spans of device work that Triton, or a convolution's search for an algorithm, measures."""
    with_frames = (*_ON_HOST, *_PYTHON)
    measured = _ranges(trace, names, _BENCHMARKS, with_frames)
    around = _containing(_ranges(trace, names, _AUTOTUNER, with_frames), measured)
    waits = _ranges(trace, names, _WAITS_FOR_EVENT, CUDA_CALLS)
    searches = _containing(_ranges(trace, names, _CONVOLUTIONS), waits)
    ranges = pl.concat(
        rows.select(*_THREAD, "start", "end", name=pl.lit(name))
        for rows, name in ((pl.concat([measured, around]), AUTOTUNING), (searches, SEARCH))
    )
    if ranges.is_empty():
        return _NONE
    ranges = intervals.union(ranges, [*_THREAD, "name"]).sort("start")
    inside = linking.label_by_interval(calls, ranges, _THREAD).drop_nulls("interval")
    # from the allocation before the first kernel to the last one, which is the chosen one at work
    free = pl.col("end").cum_max().shift(1).over("device")
    of_range = ranges.select("name", call=pl.int_range(pl.len()), begin="start")[inside["interval"]]
    rows = work.with_columns(free=free).drop("name")[inside["work"]].hstack(of_range)
    before = pl.max_horizontal("begin", "free").min()
    spans = rows.group_by("device", "name", "call").agg(
        start=pl.min_horizontal(pl.col("start").min(), before), end=pl.col("start").max()
    )
    return spans.with_columns(purpose=pl.lit(TUNING)).sort("device", "start")


def _nan_checks(
    work: pl.DataFrame, calls: pl.DataFrame, checks: pl.DataFrame, nodes: pl.DataFrame,
    steps: pl.DataFrame,
) -> pl.DataFrame:  # fmt: skip
    """Spans from the check of a gradient for NaN at the end of a node to the work after it.

    In the forward pass, where each operator saves its Python stack: the time between its work.
    """
    if checks.is_empty():
        return _NONE
    rows = linking.enclosing(checks.rename({"start": "ts"}), nodes, _THREAD).drop_nulls("slice")
    if rows.height < _LEAST_CHECKED * max(nodes.height, 1):
        return _NONE
    node_end = nodes["end"][rows["slice"]]
    checked = rows.select(*_THREAD, start="ts", end=node_end).unique("end", maintain_order=True)
    inside = linking.label_by_interval(calls, checked, _THREAD).drop_nulls("interval")
    call = inside.select("work", call="interval")
    lane = ["device", "stream"]
    placed = work.with_row_index("work").join(call, on="work", how="left").sort(*lane, "start")
    after = pl.col("start").shift(-1).over(lane)
    rows = placed.with_columns(end=pl.max_horizontal("end", after)).drop_nulls("call")
    spans = rows.group_by("device", "call").agg(pl.col("start").min(), pl.col("end").max())
    spans = spans.select("device", "start", "end", "call", name=None)
    others = pl.concat([nodes, steps]).sort("start")
    forward = calls.filter(linking.enclosing(calls, others, _THREAD)["slice"].is_null())
    rows = work.with_row_index("work").sort("device", "start").with_columns(
        start=pl.col("end").cum_max().shift().over("device"), end="start",
        name=pl.col("work").is_in(forward["work"].implode()),
    )  # fmt: skip
    between = (
        pl.col("name") & pl.col("name").shift().over("device") & (pl.col("start") < pl.col("end"))
    )
    rows = rows.filter(between).select("device", "start", "end", call=-1, name=pl.lit(FORWARD))
    spans = pl.concat([spans, rows], how="vertical_relaxed").sort("device", "start")
    return spans.with_columns(purpose=pl.lit(NAN_CHECK))


def _containing(ranges: pl.DataFrame, inner: pl.DataFrame) -> pl.DataFrame:
    """Return the innermost ranges around others of their thread."""
    if ranges.is_empty() or inner.is_empty():
        return ranges.clear()
    within = linking.enclosing(inner.rename({"start": "ts"}), ranges, _THREAD)
    return ranges[within["slice"].drop_nulls().unique().sort()]


def _count(ranges: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """How many of the ranges began before each call."""
    begun = np.searchsorted(ranges["start"].to_numpy(), calls["ts"].to_numpy(), side="right")
    return pl.Series(begun, dtype=pl.Int64)


def _attention(
    trace: Trace, work: pl.DataFrame, calls: pl.DataFrame, names: list[str]
) -> pl.DataFrame:
    """Kernels of softmax and products of batches, and between them."""
    if not (set(SOFTMAX) & set(names) and set(PRODUCTS) & set(names)):
        return _NONE
    operators = _ranges(trace, names, _OF_ATTENTION)
    inside = linking.enclosing(calls, operators, _THREAD).drop_nulls("slice")
    named = inside.select("work", operators["name"][inside["slice"]].cast(pl.String))
    rows = _with_pointwise(work, calls, named)
    if _ranges(trace, names, _FUSED).height:
        rows = _in_runs(rows)
        named = rows.drop_nulls("name").select("work", "name")
    each = pl.concat([named, _between(rows)])
    placed = calls.join(each, on="work", maintain_order="left")
    math = linking.label_by_interval(placed, _ranges(trace, names, _MATH), _THREAD)["interval"]
    rows = work[placed["work"]].with_columns(
        placed["name"], math.is_not_null().alias("call"),
        purpose=pl.lit(ATTENTION), place="name", of_tensor=None,
    )  # fmt: skip
    return rows.filter(pl.col("work_kind") == COMPUTE)


#: Name of the kernels that scale, mask and drop scores, and kernels that make a mask.
_MASK = "triu_tril|tril_kernel|triu_kernel"
BETWEEN = "pointwise kernels between them"


#: Kernels of attention by family, and names in their place.
KERNELS = {kernel_names.SOFTMAX: "softmax kernels", GEMM: "products beside them"}
_NAMES = {"s": KERNELS[kernel_names.SOFTMAX], "g": KERNELS[GEMM], "p": BETWEEN}
_LETTERS = {kernel_names.SOFTMAX: "s", GEMM: "g", ELEMENTWISE: "p", COPY: "p"}


def _attention_kernels(work: pl.DataFrame) -> pl.DataFrame:
    """Without operators: kernels of softmax between two products of a stream, and these.

    Pointwise kernels may run between them. The softmax of a loss, of a router or of sampling has
    no product on one of its sides.
    """
    names = distinct(work)
    if not matching(names, [kernel_names.MAY_BE_SOFTMAX]):
        return _NONE
    families = families_of(names)
    letters = {name: ord(_LETTERS[one]) for name, one in families.items() if one in _LETTERS}
    code = pl.col("name").cast(pl.String).replace_strict(letters, default=0, return_dtype=pl.UInt8)
    is_compute = pl.col("work_kind") == COMPUTE
    rows = work.sort("start").with_columns(code=pl.when(is_compute).then(code).otherwise(0))
    found = [rows.clear()]
    for lane in rows.partition_by("device", "stream", maintain_order=True):
        runs = re.finditer(b"g(?:p*sp*g)+", lane["code"].to_numpy().tobytes())
        found += [lane[slice(*run.span())] for run in runs]
    of_code = {ord(letter): name for letter, name in _NAMES.items()}
    name = pl.col("code").replace_strict(of_code, default=None, return_dtype=pl.String)
    purpose = pl.lit(ATTENTION)
    rows = pl.concat(found).with_columns(name=name, place="name", of_tensor=None, call=0)
    return _shaped(rows.with_columns(purpose=purpose))


def _with_pointwise(work: pl.DataFrame, calls: pl.DataFrame, named: pl.DataFrame) -> pl.DataFrame:
    """Add ``name`` of softmax and products to the launches in order, and ``pointwise``.

    Reductions count as pointwise: logsumexp, or the maximum that a softmax by hand subtracts. So
    do copies and memsets, which masked_fill and products need.
    """
    rows = calls.join(named, on="work", how="left").sort(*_THREAD, "ts", "work")
    kernels = work["name"][rows["work"]]
    of_name = families_of(kernels.unique().drop_nulls().cast(pl.String))
    pointwise = [name for name, one in of_name.items() if one in (ELEMENTWISE, COPY, "reduce")]
    pointwise += matching(of_name, [_MASK])
    passed = kernels.is_in(pointwise) | (work["work_kind"][rows["work"]] == MEMORY)
    return rows.with_columns(pointwise=passed & rows["name"].is_null())


def _in_runs(rows: pl.DataFrame) -> pl.DataFrame:
    """Keep launches that follow each other if a softmax and two products are among them."""
    is_part = pl.col("pointwise").fill_null(value=False) | pl.col("name").is_not_null()
    runs = rows.with_columns(run=pl.struct(*_THREAD, is_part).rle_id()).filter(is_part)
    softmax, products = (
        pl.col("name").is_in(names).sum().over("run") for names in (SOFTMAX, PRODUCTS)
    )
    return runs.filter(softmax > 0, products >= _SEVERAL).drop("run")


def _between(rows: pl.DataFrame) -> pl.DataFrame:
    """Pointwise kernels that are launched between a product and a softmax: work, name."""
    is_softmax, one = pl.col("name").is_in(SOFTMAX), pl.lit(1, pl.Int8)
    # the softmax, the product, or the other kernel before and after
    part = pl.when(is_softmax).then(one).when(pl.col("name").is_not_null()).then(2).otherwise(0)
    passed = pl.col("pointwise").fill_null(value=False)
    parts = rows.select("work", *_THREAD, passed, part=pl.when(~passed).then(part))
    sides = parts.with_columns(
        before=pl.col("part").forward_fill().over(_THREAD),
        after=pl.col("part").backward_fill().over(_THREAD),
    )
    before, after = pl.col("before"), pl.col("after")
    # 1 and 2: a softmax on one side, a product on the other
    inner = sides.filter("pointwise", before + after == 3, before * after == 2)
    return inner.select("work", name=pl.lit(BETWEEN))


#: Kernels are the same if these agree; least number of calls with and without a collective, and of
#: such kernels.
_SAME, _CALLS, _KERNELS = ("device", "name", "blocks"), 5, 3
#: A call overlaps a collective from this share of its time on. Calls without one have one size if
#: their 10th and 90th percentile differ by less than this factor.
_OVERLAPPED, _ALIKE = 0.9, 1.1
#: From this factor of the usual time on, and for this share of the kernels, they are slower.
_SLOWER, _NEARLY_ALL = 1.05, 0.8


def _slowed(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return the time that compute kernels take longer while collectives run.

    The usual time is the median of the calls of the same kernel and grid that overlap no
    collective; kernels whose time varies without one are left out.

    Args:
        trace: of one rank.
        work: its :func:`~traceanalyzer.analyzers.common.device_work.device_work`.

    Returns:
        device, name, call (the usual time in ns), start, end: a row per slower call; it starts when
        the call would have ended. Empty unless nearly all of several kernels are slower.
    """
    if trace.launch_configs.is_empty():
        return _NONE
    running = intervals.union(work.filter(work_kind=COMMUNICATION), ["device"])
    length, overlap = pl.col("end") - pl.col("start"), pl.col("overlap")
    kernels = work.filter(work_kind=COMPUTE)[["event", "device", "name", "start", "end"]]
    rows = intervals.overlap_with(kernels, running, ["device"]).with_columns(
        length=length, alone=overlap == 0, both=overlap >= _OVERLAPPED * length
    )
    if rows["both"].sum() < _CALLS * _KERNELS:
        return _NONE
    rows = rows.join(grids_of(trace), on="event")
    alone, both = (pl.col("length").filter(which) for which in ("alone", "both"))
    sums = rows.group_by(_SAME).agg(
        usual=alone.median(),
        alike=alone.quantile(0.9) <= _ALIKE * alone.quantile(0.1),
        longer=both.median(),
        calls=pl.min_horizontal(pl.col("alone").sum(), pl.col("both").sum()),
    )
    sums = sums.filter("alike", pl.col("calls") >= _CALLS)
    slower = sums.filter(pl.col("longer") >= _SLOWER * pl.col("usual"))
    if slower.height < max(_KERNELS, _NEARLY_ALL * sums.height):
        return _NONE
    calls = rows.filter("both").join(slower, on=_SAME, nulls_equal=True)
    usual = pl.col("usual").cast(pl.Int64)
    calls = calls.filter(pl.col("length") > usual)
    return calls.select("device", "name", "end", call=usual, start=pl.col("start") + usual)


def grids_of(trace: Trace) -> pl.DataFrame:
    """Return the number of blocks of kernels: event, local_memory, blocks."""
    blocks = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
    return trace.launch_configs.select("event", "local_memory", blocks=blocks)


def _shared(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return the time in which other processes use a device: device, name, call, start, end."""
    others = of_others(trace, work)
    if not others.any():
        return _NONE
    spans = intervals.union(work.filter(others), ["device", "pid"])
    name = pl.format("process {}", "pid")
    return spans.with_columns(name=name, call="pid", purpose=pl.lit(SHARED)).drop("pid")


def of_others(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Return which work is of another process than the steps, on a device of that process."""
    main = device_steps(trace)["pid"].drop_nulls().head(1)
    if not main.len() or work["pid"].drop_nulls().n_unique() < _SEVERAL:
        return pl.Series(np.zeros(work.height, np.bool_))
    others = ~pl.col("pid").is_in(main.implode())
    both = others & (~others).any().over("device")
    return work.select(both.fill_null(value=False)).to_series()
