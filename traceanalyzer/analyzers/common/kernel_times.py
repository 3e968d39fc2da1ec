"""Differences between the kernels of one rank or step and those of the others."""

import re
from dataclasses import dataclass, replace

import polars as pl

from traceanalyzer.analyzers.common.device_steps import LEVEL, two_levels
from traceanalyzer.analyzers.common.kernel_names import (
    ATTENTION,
    CONVOLUTION,
    COPY,
    ELEMENTWISE,
    GEMM,
    families_of,
)
from traceanalyzer.units import format_count, format_ns

#: Smaller differences are ignored.
_APART = 0.05

#: If at least this share of the usual kernel time is slower alike, the GPU is the cause, not the
#: work.
_ALL = 0.9

#: "All" kernels have this share of the time.
_NEARLY_ALL = 0.99

#: Up to this many calls are named if only they are longer, each among more than so many calls.
_SINGLE, MANY_CALLS = 3, 10

#: Fewer kernels may all depend on the size of the inputs.
_FEW = 3

#: Kernels that work on parameters and gradients: their time does not depend on the input.
_OF_PARAMETERS = "(?i)multi_tensor|adam|adagrad|sgd|lamb_|lion_|muon|optimizer"
#: Kernels take as long as usual if they are slower by at most this share of what others are, and
#: as much longer as these from this share on.
_LITTLE, _AS_MUCH = 0.25, 0.75

SLOW_GPU, MORE_KERNELS, LARGER_INPUTS = "slow GPU", "more kernels", "larger inputs"
LONG_CALL, OTHER_KERNELS = "long call", "other kernels"
#: Grids are equal, but times do not show whether the GPU is slow.
PERHAPS_SLOW = "slow GPU or larger padded inputs"
#: Differences in work that a better balance removes.
UNEQUAL = (MORE_KERNELS, LARGER_INPUTS)

_CHECK_GPU = (
    "Check the clocks, power cap and temperature of {gpu} ({clocks}) and other processes there; "
    "exclude the node if it stays slow."
)
_ADVICE = {
    SLOW_GPU: _CHECK_GPU,
    PERHAPS_SLOW: _CHECK_GPU,
    MORE_KERNELS: "Balance the work: {balance}.",
    LARGER_INPUTS: "Balance the work: inputs of equal size (bucket by sequence length, equal "
    "numbers of tokens), {balance}.",
    OTHER_KERNELS: "Compare what this rank runs with the other ranks: settings (autocast, TF32, "
    "attention backend, hooks, logging), environment, versions of libraries, model of the GPU.",
    LONG_CALL: "Check what else used the GPU at that moment (another process, page migrations, a "
    "kernel that waits for the host), and whether another recording has such a call again.",
}

_CHECK_MEMORY = (
    "Check the memory of {gpu}: its clock, corrected errors and remapped rows (nvidia-smi -q -d "
    "CLOCK,ECC,ROW_REMAPPER; rocm-smi --showclocks --showrasinfo), and other processes there; "
    "exclude the node if it stays slow."
)
#: Kernels of experts, which work on the tokens that a router gives them.
_OF_EXPERTS = r"(?i)group(?:ed)?_?(?:gemm|problem|mm)|moe|expert"
#: Kernels of embedding tables (FBGEMM).
_OF_TABLES = r"split_embedding|embedding_bag"
_SHARD_TABLES = (
    "Spread the embedding tables evenly: shard the tables with most lookups by row or column, and "
    "give the planner of TorchRec their pooling factors (ParameterConstraints)."
)
BALANCE_EXPERTS = (
    "Balance the tokens per expert (auxiliary loss or bias of the router, capacity factor), or "
    "place the experts with most tokens on different ranks, or several times (EPLB)."
)

ZIGZAG = (
    "With context parallelism and causal attention, give each rank one part from the start and one "
    "from the end of the sequence (zigzag order), because later tokens attend to more."
)

#: The GPU, and the balance, if steps are compared.
_IN_STEPS, _OF_STEPS = "this GPU in those steps", "equal work in every step"


@dataclass(frozen=True)
class Difference:
    """A difference between kernels.

    Attributes:
        why: :data:`SLOW_GPU`, :data:`PERHAPS_SLOW`, :data:`MORE_KERNELS`, :data:`OTHER_KERNELS`,
            :data:`LARGER_INPUTS` or :data:`LONG_CALL`.
        text: the same as a clause with numbers: ``more kernels run than ...``.
        attends: additional kernels are nearly all of attention, as with more blocks of a sequence.
        alone: the kernel that only this rank or step runs, in addition to what the others run.
        by_speed: the GPU is known to be slow only if steps have two speeds, see :func:`has_levels`.
    """

    why: str
    text: str
    attends: bool = False
    alone: str = ""
    by_speed: bool = False

    def of_gpu(self) -> "Difference":
        """Return the difference if the speeds of more steps show that it is the GPU."""
        return replace(self, why=SLOW_GPU, text=self.text.replace(_OR_PADDED, _OF_GPU))

    def advice(self, clocks: str, gpu: str = _IN_STEPS, balance: str = _OF_STEPS) -> str:
        """Return advice by what shows clocks, for this GPU and this method to balance the work."""
        if self.attends:
            return ZIGZAG
        if self.why in (*UNEQUAL, OTHER_KERNELS) and re.search(_OF_EXPERTS, self.text):
            return BALANCE_EXPERTS
        if self.why in UNEQUAL and re.search(_OF_TABLES, self.text):
            return _SHARD_TABLES
        if _OF_MEMORY in self.text:
            return _CHECK_MEMORY.format(gpu=gpu)
        return _ADVICE[self.why].format(gpu=gpu, balance=balance, clocks=clocks)


#: Other kernels run for larger inputs if their number grows by less than this share of their time.
_FEW_MORE = 0.25


def compare(kernels: pl.DataFrame, key: str, value: object, who: str) -> Difference | None:
    """Compare the kernels of one rank or step with those of the median one.

    Kernels are the same if name and grid agree. The difference in time is the sum of longer
    durations of the same kernels, and of additional kernels::

        longer = sum(n * (mean - usual mean)),  additional = sum((n - usual n) * usual mean)

    Args:
        kernels: kernel, blocks (of the grid, null where not recorded), n, total_ns, max_ns, step
            and ``key``.
        key: ``rank`` or ``step``.
        value: the rank or step to compare.
        who: phrase for the others: ``on the other ranks``.

    Returns:
        The difference; None if it is below 5 % or there are no others.
    """
    rows = _with_usual(kernels, key, value)
    usual_ns = float(rows["usual_ns"].sum())
    n, mean, usual_n, usual = (pl.col(name) for name in ("n", "mean", "usual_n", "usual_mean"))
    longer = float(rows.select((n * (mean - usual)).sum()).item())
    more = float(rows.select(((n - usual_n) * usual).sum()).item())
    if not usual_ns or longer + more < _APART * usual_ns:
        return None
    if more <= longer:
        if calls := _long_calls(rows):
            return _single(kernels, rows, calls, key, value, who)
        these = kernels if key == "step" else kernels.filter(pl.col(key) == pl.lit(value))
        return _longer(rows, these, who, _slow_steps(kernels, key, value))
    counts = _with_usual(kernels.with_columns(blocks=pl.lit(None, pl.Int64)), key, value)
    more_often = counts.filter(n > usual_n * (1 + _APART))["kernel"]
    if more_often.is_empty():
        return Difference(LARGER_INPUTS, f"kernels have larger grids than {who} (larger inputs)")
    added = _added(rows.filter(pl.col("kernel").is_in(more_often.implode())), rows, more, who)
    if added is not None:
        return added
    only = rows.filter((usual_n == 0) & (pl.col("total_ns") > more / 2))
    if only.height:
        top = only.sort("total_ns", "kernel", descending=[True, False]).row(0, named=True)
        text = f"{top['kernel']} ({format_ns(top['total_ns'])}) does not run {who}"
        others = rows.filter((n == 0) | ((pl.col("kernel") == top["kernel"]) & (usual_n > 0)))
        alone = top["kernel"] if others["usual_ns"].sum() < _APART * more else ""
        return Difference(MORE_KERNELS if key == "step" else OTHER_KERNELS, text, alone=alone)
    count, usual_count = int(counts["n"].sum()), round(counts["usual_n"].sum())
    if count / max(usual_count, 1) - 1 < _FEW_MORE * more / usual_ns:
        return Difference(LARGER_INPUTS, f"kernels take longer than {who} (larger inputs)")
    extra = rows.select("kernel", ns=(n - usual_n) * usual).group_by("kernel").agg(pl.sum("ns"))
    attention = [name for name, one in families_of(extra["kernel"]).items() if one == ATTENTION]
    attends = extra.filter(pl.col("kernel").is_in(attention))["ns"].sum() >= _ALL * more
    most = extra.filter(2 * pl.col("ns") >= more).sort("ns", "kernel")["kernel"].tail(1)
    mostly = ", mostly of attention" if attends else "".join(f", mostly {name}" for name in most)
    text = f"more kernels run than {who} ({count:,} instead of {usual_count:,}{mostly})"
    return Difference(MORE_KERNELS, text, attends)


def _added(
    more_often: pl.DataFrame, rows: pl.DataFrame, more: float, who: str
) -> Difference | None:
    """Return the difference if a kernel with a grid of its own runs in addition to all others.

    Kernels of larger inputs run in place of those that the others run. More than half of the
    additional time is its.
    """
    missing = rows.select(((pl.col("usual_n") - pl.col("n")).clip(0) * pl.col("usual_mean")).sum())
    shared = rows.filter(pl.col("usual_n") > 0)["kernel"]
    only = more_often.filter(
        pl.col("blocks").is_not_null(), pl.col("usual_n") == 0, pl.col("total_ns") > more / 2,
        pl.col("kernel").is_in(shared.implode()),
    )  # fmt: skip
    if only.is_empty() or missing.item() >= _APART * more:
        return None
    top = only.sort("total_ns", "kernel", descending=[True, False]).row(0, named=True)
    calls = format_count(int(top["n"]), "more call")
    return Difference(
        MORE_KERNELS,
        f"{calls} of {top['kernel']} with a grid of {top['blocks']:,} blocks "
        f"({format_ns(top['total_ns'])}), which {'does' if top['n'] == 1 else 'do'} not run {who}",
    )


def _long_calls(rows: pl.DataFrame) -> int:
    """Return the number of calls without which kernels take as long as usual; 0 if many do."""
    known = rows.filter(pl.col("n") > 0)
    usual = pl.col("usual_mean")
    longest = known.select(over=pl.col("max_ns") - usual, max_ns="max_ns", usual=usual)
    longest = longest.sort("over", descending=True).head(_SINGLE)
    total = float(known["total_ns"].sum())
    expected = float(known.select((pl.col("n") * usual).sum()).item())
    for calls, (_, took, usual_ns) in enumerate(longest.iter_rows(), 1):
        total, expected = total - took, expected - usual_ns
        if int(known["n"].sum()) <= MANY_CALLS * calls:
            return 0
        if total <= (1 + _APART) * expected:
            return calls
    return 0


def _single(
    kernels: pl.DataFrame, rows: pl.DataFrame, calls: int, key: str, value: object, who: str
) -> Difference:
    """Return the difference if only a few calls are longer."""
    over = pl.col("max_ns") - pl.col("usual_mean")
    top = rows.filter(pl.col("n") > 0).sort(over, "kernel", descending=[True, False])
    worst = top.row(0, named=True)
    step = ""
    if key != "step":
        same = pl.col("kernel") == worst["kernel"], pl.col("max_ns") == worst["max_ns"]
        steps = kernels.filter(pl.col(key) == pl.lit(value), *same)["step"].drop_nulls()
        step = f" in {steps[0]}" if steps.len() else ""
    others = int(rows["n"].sum()) - calls
    count = "one call" if calls == 1 else f"the longest of {calls} long calls,"
    return Difference(
        LONG_CALL,
        f"{count} of {worst['kernel']}{step} takes {format_ns(worst['max_ns'])} instead of "
        f"{format_ns(worst['usual_mean'])}; the other {others:,} kernels take as long as {who}",
    )


def _slow_steps(kernels: pl.DataFrame, key: str, value: object) -> tuple[int, int, float]:
    """Return the number of slow steps, of all steps, and the slowdown in slow steps."""
    if key == "step":
        return 0, 0, 1.0
    is_this = pl.col(key) == pl.lit(value)
    sums = kernels.drop_nulls("step").group_by(key, "step").agg(pl.col("total_ns").sum())
    usual = sums.filter(~is_this).group_by("step").agg(usual=pl.col("total_ns").median())
    each = sums.filter(is_this).join(usual, on="step").filter(pl.col("usual") > 0)
    slow = each.filter(pl.col("total_ns") > (1 + _APART) * pl.col("usual"))
    times = float(slow["total_ns"].sum()) / max(float(slow["usual"].sum()), 1.0)
    return slow.height, each.height, times


def _typical(rows: pl.DataFrame) -> float:
    """Return how many times as long kernels take: half of their usual time takes longer."""
    factors = rows.select(
        ns=pl.col("n") * pl.col("usual_mean"), factor=pl.col("mean") / pl.col("usual_mean")
    ).sort("factor")
    half = factors.filter(pl.col("ns").cum_sum() >= pl.col("ns").sum() / 2)["factor"]
    return float(half[0]) if half.len() else 1.0


def _longer(
    rows: pl.DataFrame, kernels: pl.DataFrame, who: str, slow_steps: tuple[int, int, float]
) -> Difference | None:
    """Return the difference if the same kernels take longer: all or some, in all or some steps."""
    if (factor := _except_parameters(rows)) > 1 + _APART:
        if by_gpu := _by_gpu(rows, kernels, factor, who):
            return by_gpu
        return Difference(
            LARGER_INPUTS,
            f"all kernels but those of the optimizer take {factor:.2f} times as long as the same "
            f"kernels {who} (larger inputs)",
        )
    slow, steps, times = slow_steps
    if 0 < slow < steps * _ALL:
        return Difference(
            SLOW_GPU,
            f"in {slow:,} of {steps:,} steps kernels take {times:.2f} times as long as {who} "
            "(throttled GPU, other work on it, or larger inputs)",
        )
    no_grids = rows["blocks"].null_count() == rows.height
    for slower, others, (these, those, cause) in _PARTS:
        if (factor := _only(rows, slower, others)) > 1 + _APART:
            or_inputs = ", or larger inputs" * (no_grids and slower == _MEMORY)
            text = (
                f"{these} take {factor:.2f} times as long as the same kernels {who}, {those} as "
                f"long as there ({cause}{or_inputs})"
            )
            return Difference(SLOW_GPU, text)
    rows = rows.filter(pl.col("n") > 0, pl.col("usual_n") > 0)  # others have no median
    if rows.is_empty():
        return None
    factor = _typical(rows)
    is_longer = pl.col("mean") >= pl.col("usual_mean") * (1 + (factor - 1) / 2)
    usual = rows.with_columns(ns=pl.col("n") * pl.col("usual_mean"))
    alike = float(usual.filter(is_longer)["ns"].sum()) / max(float(usual["ns"].sum()), 1.0)
    if alike >= _ALL and factor > 1 + _APART:
        limited = pl.min_horizontal(pl.col("mean") / pl.col("usual_mean"), 2 * factor)
        factor = float(usual.select((pl.col("ns") * limited).sum() / pl.col("ns").sum()).item())
        few = rows["kernel"].n_unique() < _FEW or no_grids
        or_inputs = ", or larger inputs" if few else ""
        which = "all" if alike > _NEARLY_ALL else "nearly all"
        return Difference(
            SLOW_GPU,
            f"{which} kernels take {factor:.2f} times as long as the same kernels {who} (slow or "
            f"throttled GPU{or_inputs})",
        )
    over = (pl.col("n") * (pl.col("mean") - pl.col("usual_mean"))).alias("over")
    top = rows.with_columns(over).sort("over", "kernel", descending=[True, False])
    worst = top.row(0, named=True)
    return Difference(
        LARGER_INPUTS,
        f"some kernels take longer than {who} (larger inputs), mostly {worst['kernel']} "
        f"({worst['mean'] / worst['usual_mean']:.2f} times as long)",
    )


def _by_gpu(
    rows: pl.DataFrame, kernels: pl.DataFrame, factor: float, who: str
) -> Difference | None:
    """Return the difference if kernels with equal grids are slower: by a slow or shared GPU.

    Larger inputs have other grids; with equal ones (padded inputs), they make all calls longer, by
    another factor in each step. So it is the GPU if only some calls are longer, or steps have two
    speeds; otherwise it may be either.

    Args:
        rows: what is compared.
        kernels: those of all steps (of the rank).
        factor: how many times as long kernels take.
        who: phrase for the others.
    """
    usual_names = rows.filter(pl.col("usual_n") > 0)["kernel"].implode()
    other_grids = rows.filter(pl.col("usual_n") == 0, pl.col("kernel").is_in(usual_names))
    known = rows.filter(pl.col("n") > 0, pl.col("usual_n") > 0)
    if known["blocks"].null_count() or other_grids.height:
        return None
    longest, usual = (known.select((pl.col("n") * pl.col(c)).sum()).item() for c in _LONGEST)
    some = longest / usual - 1 < _LITTLE * (factor - 1)
    of_parameters = pl.col("kernel").cast(pl.String).str.contains(_OF_PARAMETERS)
    each = kernels.filter(~of_parameters).drop_nulls("step").group_by("step")
    is_sure = some or has_levels(each.agg(pl.col("total_ns").sum())["total_ns"])
    cause = _OF_GPU if is_sure else _OR_PADDED
    which = "some calls of all kernels" if some else "all kernels"
    text = (
        f"{which} but those of the optimizer take longer, {factor:.2f} times as long on average as "
        f"the same kernels with equal grids {who} (throttled GPU, {cause})"
    )
    return Difference(SLOW_GPU if is_sure else PERHAPS_SLOW, text, by_speed=not some)


_LONGEST = ("max_ns", "usual_max")
_OF_GPU, _OR_PADDED = "or other work on it", "other work on it, or larger padded inputs"
#: Fewer steps show no levels.
_LEAST_STEPS = 5


def has_levels(times: pl.Series) -> bool:
    """Whether times of steps (or speeds) have one level or two, as of a clock that falls.

    Few steps, or one that differs, show none.
    """
    if times.len() < _LEAST_STEPS:
        return False
    ordered = times.sort()
    return bool(ordered[-1] <= (1 + LEVEL) * ordered[0]) or two_levels(times) is not None


def _except_parameters(rows: pl.DataFrame) -> float:
    """Return how many times as long kernels take if those of the optimizer take as long as usual.

    Pointwise kernels must be slower too: they and the optimizer wait for memory, which keeps its
    speed when the clock of the multiprocessors falls. 1 if optimizer or pointwise kernels are
    missing, or only some kernels are slower.
    """
    rows = rows.filter(pl.col("n") > 0, pl.col("usual_n") > 0)
    of_parameters = pl.col("kernel").str.contains(_OF_PARAMETERS)
    others = rows.filter(~of_parameters)
    families = families_of(others["kernel"].unique())
    pointwise = [name for name, family in families.items() if family in (ELEMENTWISE, COPY)]
    parts = rows.filter(of_parameters), others.filter(pl.col("kernel").is_in(pointwise))
    if any(part.is_empty() for part in parts):
        return 1.0
    factor = _typical(others)
    fixed, memory = map(_typical, parts)
    alike = fixed - 1 < _LITTLE * (factor - 1) and memory - 1 > _AS_MUCH * (factor - 1)
    return factor if alike else 1.0


#: Families of kernels that compute, of those that only wait for memory, and of more of them.
_COMPUTE, _STREAMS = (GEMM, CONVOLUTION, ATTENTION), (ELEMENTWISE, COPY)
_MEMORY = (*_STREAMS, "optimizer", "softmax", "norm")
_OF_MEMORY = "slow memory of the GPU"
_COMPUTED = "matrix products and attention"
_STREAMED = "kernels that wait for memory"
#: What is slower, what is not, and how that is said.
_PARTS = (
    (_COMPUTE, _STREAMS, (_COMPUTED, _STREAMED, "lower clock of the GPU")),
    (_MEMORY, _COMPUTE, (_STREAMED, _COMPUTED, _OF_MEMORY)),
)


def _only(rows: pl.DataFrame, slow: tuple[str, ...], others: tuple[str, ...]) -> float:
    """Return how many times as long the kernels of some families take, if those of others do not.

    Memory keeps its speed when the clock of the multiprocessors falls, and multiprocessors theirs
    with slow memory. Larger inputs would give the others other grids: nearly all of them must be
    known. 1 if the kernels are few, or not slower alike.
    """
    families = families_of(rows["kernel"].unique())
    slower, usual = (
        rows.filter(pl.col("kernel").is_in([name for name, one in families.items() if one in of]))
        for of in (slow, others)
    )
    is_known = (pl.col("n") > 0) & (pl.col("usual_n") > 0)
    known = usual.filter(is_known)
    most_ns = _ALL * float(usual["total_ns"].sum())
    if slower.height < _FEW or float(known["total_ns"].sum()) < max(most_ns, 1):
        return 1.0
    expected = float(known.select((pl.col("n") * pl.col("usual_mean")).sum()).item())
    factor, fixed = _typical(slower), float(known["total_ns"].sum()) / max(expected, 1.0)
    over = pl.col("mean") / pl.col("usual_mean") - 1
    alike = (over > (factor - 1) / 2) & (over < 2 * (factor - 1)) & is_known
    slow_ns = float(slower.filter(alike)["total_ns"].sum())
    whole_ns = float(slower["total_ns"].sum())
    return factor if slow_ns >= _ALL * whole_ns and fixed - 1 < _LITTLE * (factor - 1) else 1.0


def _with_usual(kernels: pl.DataFrame, key: str, value: object) -> pl.DataFrame:
    """Join the kernels of one rank or step with the median of the others.

    Returns:
        kernel, blocks, n, total_ns, max_ns, mean, usual_n, usual_mean, usual_max, usual_ns. Missing
        kernels count with 0 calls; a kernel that the others do not have gets the mean of this one.
    """
    same = ["kernel", "blocks"]
    # keys of several texts would be copied for each row
    texts = [name for name in {key, "kernel"} if not kernels[name].dtype.is_integer()]
    sums = (
        kernels.with_columns(pl.col(texts).cast(pl.Categorical))
        .group_by(key, *same)
        .agg(pl.col("n", "total_ns").sum(), pl.col("max_ns").max())
    )
    is_this = pl.col(key) == pl.lit(value)
    others = sums.filter(~is_this)
    count = max(others[key].n_unique(), 1)
    mean = pl.col("total_ns") / pl.col("n")
    # the two in the middle, if those without the kernel have 0 calls
    middle = (pl.col("n").get(n // 2, null_on_oob=True).fill_null(0) for n in (count - 1, count))
    ordered = others.sort("n", descending=True).group_by(same)
    usual = ordered.agg(
        usual_n=sum(middle) / 2, usual_mean=mean.median(), usual_max=pl.col("max_ns").median()
    )
    this = sums.filter(is_this).with_columns(mean=mean)
    rows = this.join(usual, on=same, how="full", coalesce=True, nulls_equal=True).with_columns(
        pl.col("n", "total_ns", "max_ns", "usual_n").fill_null(0)
    )
    rows = rows.with_columns(
        mean=pl.coalesce("mean", "usual_mean"), usual_mean=pl.coalesce("usual_mean", "mean")
    )
    rows = rows.with_columns(usual_ns=pl.col("usual_n") * pl.col("usual_mean"))
    return rows.with_columns(pl.col(texts).cast(pl.String)).sort(same)
