"""Rule for a kernel that takes a large part of the time and is not a matrix product."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE
from traceanalyzer.analyzers.common.kernel_names import CONVOLUTION, GEMM, KV_CACHE
from traceanalyzer.analyzers.common.names import called_from, called_in, frame_text, launched_by
from traceanalyzer.analyzers.efficiency.peaks import peaks_of
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import (
    ACCUMULATES,
    AGAIN,
    ATTENTION,
    AVOIDABLE,
    CLIPS,
    ONE_BY_ONE,
    TUNING,
    UPDATES,
)
from traceanalyzer.analyzers.transfers.result import Transfers
from traceanalyzer.findings import busy
from traceanalyzer.findings.device_time import DEVICE, DeviceTime, intervals_of, with_step
from traceanalyzer.findings.rule import (
    ADVICE,
    KERNELS_TOGETHER,
    OF_STEP,
    POINTWISE,
    Answers,
    Measured,
    Rule,
    in_steps,
    launched_in,
    of_purpose,
    rule,
)
from traceanalyzer.frames import intervals
from traceanalyzer.units import format_count, format_ns

#: Families whose kernels take most of the time of a healthy program.
_USUAL = (
    GEMM, CONVOLUTION, kernel_names.ATTENTION, KV_CACHE, COMMUNICATION, "moe", "recurrent",
)  # fmt: skip

#: So few calls all may be as long.
_FEW = 2

#: From these shares on, a kernel of a kind that is known to be slow is info, and a warning.
_INFO, _WARNING = 0.15, 0.17
#: A kernel of another kind may be what the program is for: it is info from the first share on, and
#: a warning from the second one on in PyTorch, if its operator is known, or it can be tuned.
_LEAST, _MUCH = 0.2, 0.3
#: A fusion of XLA is info from this share on: it has many operations.
_MOST = 0.5

#: From this share of its time on, a kernel is counted by memory-bound-kernels.
_FUSIBLE = 0.5

_TEXTS = ADVICE["heavy_kernels"]
#: Fusions of XLA.
_FUSIONS = r"(?:^|_)fusion(?:_\d+)*$"
#: Advice by names of the kernel and of the operators that launch it; the first match counts.
_ADVICE = (
    (r"^aten::(?:new_)?empty|^aten::resize_", _TEXTS["filling"]),
    ("^CUDA graph", _TEXTS["graph"]),
    (r"(?i)embedding.*backward", _TEXTS["embedding"]),
    (r"(?i)index(?:ing|_put|_?backward)", _TEXTS["indexing"]),
    (r"(?i)scatter|index_(?:add|copy|reduce)", _TEXTS["scattering"]),
    (kernel_names.CHANGES_LAYOUT.pattern, _TEXTS["layout"]),
    (
        r"(?i)sort|top_?k|radix_?(?:find|select)|unique|nonzero|(?<!selective)(?<!selective_)scan|cumsum",
        _TEXTS["sorting"],
    ),
    (r"aten::(?:reshape|contiguous|clone|repeat|expand)\b", _TEXTS["copying"]),
    (r"\belementwise_kernel<.*direct_copy", _TEXTS["copying"]),  # of strided tensors
    (r"(?i)\bcast|_to_copy|aten::to\b|direct_copy|float16_copy|copy_kernel", _TEXTS["casting"]),
    (r"(?i)triton", _TEXTS["tuning"]),
    (_FUSIONS, _TEXTS["of_fusion"]),
)
#: Least time that fills gradients of tables with 0 per time of an update: it writes each of them
#: once, while the update reads and writes values, gradients and states.
_OF_TABLES = 0.05
#: Kernels that fill the gradient of a table with 0.
_FILLS = (
    pl.col("operator").str.contains(r"^aten::(?:(?:fill|zero)_|embedding_dense_backward)$")
    & pl.col("name").str.contains("(?i)fill|zero|memset")
    & pl.col("outer").str.ends_with("EmbeddingBackward0")
)
#: A sum of gradients reads two tables and writes one: it takes at most so many times the fill.
_OF_SUMS = 4
#: Functions and kernels that read host memory.
_READS_HOST = r"(?i)pinned_?tensor|(?<![a-z])uva(?![a-z])|UVAIndex|zero_?copy"
#: Kernels that cast logits for the loss.
_CASTS = "direct_copy|float16_copy"
#: What kernels do, by the name of its advice.
_WHAT = {advice: what for what, advice in KERNELS_TOGETHER.values()}
_RELAYOUT, _SORTING = "convert between NCHW and NHWC", "sort or select"
#: Kernels that one change avoids together: pattern, what they do, and advice (without: the one of
#: :data:`_ADVICE`). The first match counts, and no family exempts them.
_TOGETHER = (
    (kernel_names.CHANGES_LAYOUT.pattern, _RELAYOUT, _TEXTS["layout"]),
    *((names, what, _TEXTS.get(advice, "")) for names, (what, advice) in KERNELS_TOGETHER.items()),
)
#: Families of kernels that belong together: what they do, and advice.
_TOGETHER_IN = {
    "optimizer": ("update the parameters", _TEXTS["updating"]),
    "norm": ("normalize", ""),
}
#: Advice by kind; empty: by the operators that launch the kernel.
_KINDS = {what: advice for _, what, advice in _TOGETHER} | dict(_TOGETHER_IN.values())
#: Kinds of healthy programs, too (SyncBatchNorm has no kernels of cuDNN).
_USUALLY_LESS = ["normalize batches without cuDNN", "apply LoRA adapters", _WHAT["dequantizing"]]
_USUALLY_LESS += [what for what, _ in _TOGETHER_IN.values()]
#: One type or layout for all avoids all of a kind: it is info and a warning from these shares on
#: (kinds, or their advice).
_SOONER: dict[str, tuple[float, ...]] = {
    _WHAT["casting"]: (_INFO, 0.12),
    _RELAYOUT: (0.05, 0.1),
    _WHAT["fp8"]: (0.1, 0.25),
    _TEXTS["copying"]: (0.05,),
}

#: Operators whose kernels sort indices to add up elements; which are not of such a backward pass.
_SORTS_INDICES = r"index_put|embedding_dense"
_ACCUMULATES = r"(?i)^(?=.*index_put)(?=.*(?:indexing_backward|sort))(?!.*IndexBackward)"

#: No kernel with a smaller share is a finding.
_LEAST_NAMED = 0.05
#: Multiprocessors of a small GPU.
_LEAST_UNITS = 16
#: Bytes of local memory per thread that slow a kernel down.
_MUCH_LOCAL = 128


@rule(
    "kernels",
    "one kernel (or kernels that one change avoids together, such as sorts or updates of "
    "parameters), of no kind that usually takes most time, with a large part of the time",
    f"time of the kernels {OF_STEP}",
    {"info": _INFO, "warning": _WARNING},
    uses=("gpu_idle", "transfers"),
)
def one_kernel(result: Kernels, answers: Answers) -> Iterator[Measured]:
    """Yield kernels, or kinds of them, that take a large part of the time."""
    time = answers.time
    if not time.whole_ns:
        return
    yield from _matrix_updates(result, answers)
    yield from _avoidable(result, answers)
    sums = kinds(result, time, without_attention=busy.is_found(busy.unfused_attention, answers))
    sums = sums.with_columns(pl.col("total_ns").clip(upper_bound=time.busy_ns))
    doubles = busy.double_in(result, time)["kernel"]
    pointwise = (busy.memory_bound_kernels, busy.separate_norms)
    if fused := any(busy.is_found(one, answers) for one in pointwise):
        sums = sums.filter(pl.col("fusible_ns") < _FUSIBLE * pl.col("total_ns"))
    in_pytorch = result.has_operators and answers.program.pytorch
    stalls, families = _stalls(result, answers), result.heaviest("name")
    transforms = set(families.filter(family="fft")["kernel"])
    fusible = families.filter(pl.col("family").is_in(POINTWISE))["kernel"]
    together = {*fusible} if fused and launched_in(result, fusible) else {}
    others, tables = 0, _table_sums(result, sums["kernel"], together)
    for row in sums.iter_rows(named=True):
        kind = _KINDS.get(row["kind"])
        adds_tables = row["kernel"] == tables[0]
        if kind is None and others and not adds_tables:
            continue  # the largest one of them that is a finding is enough
        place = result.place(row["kernel"])
        if place.get("operator") and ".py(" in (place.get("called") or ""):
            place = {**place, "annotation": None}  # the function in it says more
        advice = kind or _advice(row["kernel"], place)
        limit, remedy = _limit(result, row["kernel"], answers.program.gpus)
        if row["kernel"] in transforms and remedy != _TEXTS["more_blocks"]:
            continue
        if row["kernel"] in together and advice == _TEXTS["profile"] and not remedy:
            continue  # one finding names the function
        advice = remedy if remedy and advice == _TEXTS["profile"] else advice
        if tables[0] and _fills_most(result, row["kernel"]):
            continue  # counted there
        who, advice, factor = _of_tables(result, row, advice, tables)
        row["total_ns"] = min(round(factor * row["total_ns"]), time.busy_ns)
        share, named = time.frac(row["total_ns"]), bool(place.get("annotation"))
        known = bool(place.get("operator")) or (in_pytorch and advice != _TEXTS["graph"])
        size = _size(share, row, advice, known=known)
        others += kind is None and not adds_tables and (size >= _INFO or share < _LEAST_NAMED)
        yield Measured(
            size=size,
            cost_frac=time.frac(row["total_ns"] - fused * row["fusible_ns"]),
            title=f"{who} {time.share(row['total_ns'])}{_launched(row, place)}.",
            evidence=(
                *limit,
                (
                    f"{format_count(row['n'], 'call')}, "
                    f"{format_ns(round(row['call_ns'] / row['n']))} each on average."
                ),
                *called_from(place) * named,
            ),
            advice=advice,
            total_ns=row["total_ns"] - fused * row["fusible_ns"],
            confidence="medium",  # it may be the work that the program is for
            explained=_explained(row, doubles, stalls),
        )


def _explained(
    row: Mapping[str, Any], doubles: pl.Series, stalls: Mapping[str, int]
) -> dict[str, float]:
    """Return the rules that count all the time of kernels."""
    stalled = sum(stalls.get(one, 0) for one in row["names"])
    rules = ["double-precision"] * (row["kernel"] in doubles)
    return dict.fromkeys(rules + ["migrations"] * (2 * stalled >= row["total_ns"]), 1.0)


def _launched(row: Mapping[str, Any], place: Mapping[str, Any]) -> str:
    """Return what launches kernels of a kind, as the end of a title."""
    launched = f"{launched_by(place)}{'' if place.get('annotation') else called_in(place)}"
    if row["kernels"] > 1:  # the place is that of the largest one
        return launched.replace(", launched", ", mostly launched")
    return launched


def _of_tables(
    result: Kernels, row: Mapping[str, Any], advice: str, tables: tuple[str, float]
) -> tuple[str, str, float]:
    """Return the start of the title, advice, and 1 + fills / sums of gradients of a table."""
    kernel, fills = tables
    if row["kernel"] == kernel:
        return _TEXTS["who_sums"].format(kernel), _TEXTS["sparse_sums"], 1 + fills
    is_update = advice == _TEXTS["updating"]
    is_sparse = is_update and _fills_tables(result, row["kernel"]) >= _OF_TABLES
    return _who(row), _TEXTS["sparse"] if is_sparse else advice, 1.0


def _table_sums(result: Kernels, kernels: pl.Series, without: Iterable[str]) -> tuple[str, float]:
    """Return the first kernel that adds up gradients of tables, and fills / sums; or nothing."""
    if (rows := result.heavy) is None:
        return "", 0.0
    rows = rows.filter(work_kind=COMPUTE).unique("kernel", keep="first")
    adds = {*rows.filter(pl.col("outer").str.ends_with(ACCUMULATES))["kernel"]} - {*without}
    each = ((kernel, _fills_tables(result, kernel)) for kernel in kernels if kernel in adds)
    return next((one for one in each if _OF_SUMS * one[1] >= 1), ("", 0.0))


def _fills_tables(result: Kernels, kernel: str) -> float:
    """Return the time that fills gradients of embedding tables with 0 / the time of a kernel."""
    if (rows := result.heavy) is None:
        return 0.0
    of_kernel = pl.col("kernel") == kernel
    filled, ns = (int(rows.filter(of)["ns"].sum()) for of in (_FILLS, of_kernel))
    return filled / max(ns, 1)


def _fills_most(result: Kernels, kernel: str) -> bool:
    """Whether a kernel mostly fills gradients of embedding tables with 0."""
    rows = result.heavy
    return rows is not None and rows.filter(kernel=kernel).head(1).filter(_FILLS).height > 0


def _stalls(result: Kernels, answers: Answers) -> dict[str, int]:
    """Return the time of page faults or migrations of managed memory in kernels."""
    if (transfers := answers.of(Transfers)) is None:
        return {}
    names = result.heaviest("name").select("kernel", name=pl.col("name").cast(pl.String))
    rows = names.join(transfers.stalled, left_on="name", right_on="kernel")
    return dict(rows["kernel", "total_ns"].iter_rows())


def kinds(result: Kernels, time: DeviceTime, *, without_attention: bool = False) -> pl.DataFrame:
    """Return the time and names of kernels by kind (what they do, else their name), longest first.

    Without kernels of usual families, one long call of several (a finding about that call), loops
    with a kernel per tensor, growing copies and unfused attention, which are findings, too.
    """
    names, sums = result.heaviest("name"), ["n", "call_ns", "total_ns", "fusible_ns"]
    together = [
        pl.when(pl.col("kernel").str.contains(pattern)).then(pl.lit(what))
        for pattern, what, _ in _TOGETHER
    ]
    families = {name: what for name, (what, _) in _TOGETHER_IN.items()}
    labels = names.unique("kernel", keep="first", maintain_order=True).select(
        "kernel",
        "family",
        kind=pl.coalesce(*together, pl.col("family").replace_strict(families, default=None)),
        is_usual=pl.col("family").is_in(_USUAL),
    )
    labels = _by_operator(result, labels)
    labels = labels.filter(pl.col("kind").is_not_null() | ~pl.col("is_usual"))
    growing = [kernel for kernel, *_ in busy.growing_copies(result, time)]
    each = (
        in_steps(result, time)
        .filter(~pl.col("kernel").is_in(growing))
        .rename({"total_ns": "call_ns", "busy_ns": "total_ns"})
        .group_by("kernel")
        .agg(pl.col(sums).sum(), pl.col("max_ns").max())
        .cast({"kernel": pl.String})
        .join(labels.with_columns(pl.coalesce("kind", "kernel")), on="kernel")
    )
    attention = of_purpose(result, ATTENTION, time).select("ns", name="place")
    avoidable = of_purpose(result, AVOIDABLE, time).select("ns", "name")
    each = _without(each, names, pl.concat([*[attention] * without_attention, avoidable]))
    # nothing else that is cast is as large as logits, and is cast as often as there are losses
    mean, of_logits = pl.col("call_ns") / pl.col("n"), pl.col("kernel").str.contains("LogSoftMax")
    is_cast = pl.col("kernel").str.contains(_CASTS) & (2 * mean >= mean.filter(of_logits).min())
    is_cast &= pl.col("n") <= 4 * pl.col("n").filter(of_logits).max()
    kind = pl.when(is_cast).then(pl.lit(_WHAT["loss"])).otherwise("kind")
    each = each.with_columns(kind=kind, cast=is_cast.fill_null(value=False))
    in_loops = of_purpose(result, ONE_BY_ONE, time).group_by("name").agg(loop_ns=pl.col("ns").sum())
    loops = names[["name", "kernel"]].join(in_loops, on="name").group_by("kernel")
    each = each.join(loops.agg(pl.col("loop_ns").sum()), on="kernel", how="left")
    every = (
        largest_first(each, "total_ns", "kernel")
        .group_by("kind", maintain_order=True)
        .agg(
            pl.col("kernel").sort_by("cast", maintain_order=True).first(),
            pl.len().alias("kernels"),
            pl.col("kernel").alias("names"),
            pl.col(*sums, "loop_ns").sum(),
            pl.col("max_ns").max(),
        )
    )
    is_one_call = (2 * pl.col("max_ns") >= pl.col("call_ns")) & (pl.col("n") > _FEW)
    every = every.filter(~is_one_call, 2 * pl.col("loop_ns") < pl.col("total_ns"))
    return largest_first(every, "total_ns", "kernel")


def _without(each: pl.DataFrame, names: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return sums of kernels without calls that other findings count."""
    rows = calls.join(names, on="name").group_by("kernel")
    each = each.join(rows.agg(counted=pl.col("ns").sum(), calls=pl.len()), on="kernel", how="left")
    return each.with_columns(
        pl.col("n") - pl.col("calls").fill_null(0),
        pl.col("call_ns", "total_ns") - pl.col("counted").fill_null(0),
    ).filter(pl.col("n") > 0, pl.col("total_ns") > 0)


def _by_operator(result: Kernels, labels: pl.DataFrame) -> pl.DataFrame:
    """Add the other kernels of the operators of some kinds, and join those of unknown families.

    Forward and backward operator count as one. Their kind is the kernel with most time.
    """
    if result.heavy is None:
        return labels
    operator = pl.col("operator").str.replace_all(r"_backward\w*$|\b_+|_+$", "")
    places = result.heavy.filter(work_kind=COMPUTE).select("kernel", "ns", operator=operator)
    rows = labels.join(places, on="kernel", how="left").sort("ns", descending=True, nulls_last=True)
    is_whole = pl.col("kind").is_in([_WHAT["unfolding"], _WHAT["decomposing"]])
    of_indices = pl.col("operator").str.contains(_SORTS_INDICES).fill_null(value=False)
    sorts = of_indices & (pl.col("kind") == _SORTING)
    rows = rows.with_columns(kind=pl.when(~sorts.fill_null(value=False)).then("kind"))
    is_other = (pl.col("family") == kernel_names.OTHER) | of_indices
    is_other &= pl.col("kind").is_null()
    by = pl.coalesce("operator", "kernel")
    whole = pl.col("kind").filter(is_whole).first().over(by)
    first = pl.col("kernel").filter(is_other).first().over(by)
    return rows.with_columns(kind=pl.coalesce(whole, "kind", pl.when(is_other).then(first)))


def _matrix_updates(result: Kernels, answers: Answers) -> Iterator[Measured]:
    """Yield an optimizer step that mostly multiplies matrices."""
    time, rows = answers.time, of_purpose(result, UPDATES, answers.time)
    total, ranks = int(rows["ns"].sum()), rows.n_unique(["path", "rank"])
    if not total:
        return
    alone = ranks > 1 and not rows["call"].max()
    name = rows["place"].mode().sort()[0]
    yield Measured(
        title=f"{name} takes {time.share(total)}, mostly matrix products.",
        evidence=(f"No collective runs in it: each of {ranks:,} ranks computes all of it.",)
        * alone,
        advice=_TEXTS["divide"] * alone + _TEXTS["fewer_products"],
        total_ns=total,
        confidence="medium",
    )


def _avoidable(result: Kernels, answers: Answers) -> Iterator[Measured]:
    """Yield kernels that a change of one setting or line avoids."""
    rows, time = of_purpose(result, AVOIDABLE, answers.time), answers.time
    for (what,), calls in rows.group_by("place", maintain_order=True):
        times = calls["call"].max()
        kept = 1 / times if what == CLIPS and isinstance(times, int) else 0.0
        total = round(int(calls["ns"].sum()) * (1 - kept))
        share = time.frac(total)
        size = _WARNING if share >= _MUCH_AVOIDED else _INFO if share >= _AVOIDED else 0.0
        if size:
            _, again, of = str(what).rpartition(AGAIN)
            texts = (ADVICE[name][again or of] for name in ("avoidable_work", "avoidable"))
            text, advice = (each.format(times, frame_text(of)) for each in texts)
            title = f"{text}: {time.share(total)}."
            yield Measured(title, size=size, advice=advice, total_ns=total, confidence="medium")


#: Avoidable work is info and a warning from these shares on.
_AVOIDED, _MUCH_AVOIDED = 0.03, 0.1


def _size(share: float, row: Mapping[str, Any], advice: str, *, known: bool) -> float:
    """Return the share of a kind of kernels, less where it may be what the program is for.

    It rarely is in PyTorch, or where an operator launches it (``known``).
    """
    sooner = _SOONER.get(row["kind"], _SOONER.get(advice, ()))
    levels = zip(sooner, (_INFO, _WARNING), strict=False)
    share = max(share, *(size for least, size in levels if share >= least), 0.0)
    general = ("profile", "tuning", "graph", "more_blocks", "spilling", "of_fusion")
    usual = [_TEXTS[name] for name in general]
    if row["kind"] not in _USUALLY_LESS and advice not in usual:
        return share
    known |= advice in (_TEXTS["tuning"], _TEXTS["more_blocks"], _TEXTS["spilling"])
    known &= row["kind"] != _TOGETHER_IN["norm"][0]
    if advice == _TEXTS["of_fusion"] and share < _MOST:
        return 0.0
    return share if known and share >= _MUCH else (_INFO if share >= _LEAST else 0.0)


def _limit(result: Kernels, kernel: str, gpus: str) -> tuple[tuple[str, ...], str]:
    """Return what limits a kernel and advice: few blocks for the GPU, or spilled registers."""
    if result.by_step is None:
        return (), ""
    rows, units = result.by_step.filter(kernel=kernel), peaks_of(gpus).units
    grids = rows.drop_nulls("blocks").group_by("blocks").agg(pl.col("total_ns").sum())
    blocks = grids.sort("total_ns", "blocks")["blocks"].last()
    if isinstance(blocks, int) and 2 * blocks <= (units or _LEAST_UNITS):
        of = f"the {units} multiprocessors of this GPU" if units else "the multiprocessors of a GPU"
        text = f"Its grid has {format_count(blocks, 'block')}: most of {of} have no work."
        return (text,), _TEXTS["more_blocks"]
    local = rows["local_memory"].max()
    if not isinstance(local, int) or local < _MUCH_LOCAL:
        return (), ""
    where = "local memory (scratch): spilled registers, or arrays of a thread"
    return (f"Each thread uses {local:,} B of {where}.",), _TEXTS["spilling"]


def _who(row: Mapping[str, Any]) -> str:
    """Return the kernel, or what its kind does, as the start of a sentence."""
    if row["kind"] == row["kernel"]:
        if row["kernels"] > 1:
            return f"{row['kernels']} kernels of one operator, mostly {row['kernel']}, take"
        what = "graph" if row["kernel"].startswith("CUDA graph") else "kernel"
        return f"One {what}, {row['kernel']}, takes"
    return f"Kernels that {row['kind']}, mostly {row['kernel']}, take"


def _advice(kernel: str, place: Mapping[str, Any]) -> str:
    """Return advice by the operators that launch the kernel, else by its name."""
    names = [f"{place.get('operator') or ''} {place.get('outer') or ''}", kernel]
    if re.search(r": _?reorder_cache$", place.get("called") or ""):
        return _TEXTS["reordering"]
    if re.search(_ACCUMULATES, " ".join(names)):
        return _TEXTS["accumulating"]
    if re.search(_READS_HOST, f"{kernel} {place.get('code')} {place.get('called')}"):
        return _TEXTS["host_memory"]
    matches = (text for name in names for pattern, text in _ADVICE if re.search(pattern, name))
    return next(matches, _TEXTS["profile"])


@rule(
    "kernels",
    "kernels that run only to measure which of them is the fastest: Triton's autotuning, and the "
    "search of cudnn.benchmark",
    f"time of each search, until the chosen kernel runs, {OF_STEP}",
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
        title=f"{sums['name'][0]}{where if time.in_steps else ''}: {time.share(total)}.",
        evidence=(
            (
                f"{format_count(rows.filter(pl.col('ns') > 0).height, 'search', 'es')} for "
                "the fastest kernel; other findings do not count their kernels."
            ),
        ),
        advice=ADVICE["tuning"][sums["name"][0]],
        total_ns=total,
        most_gain_ns=total,
        confidence="high" if time.in_steps else "low",  # it may be the start of the program
        step=only,
        intervals=intervals_of(losses),
    )


RULES: tuple[Rule, ...] = (one_kernel, _kernel_tuning)
