"""Rules: what they check, and the measurements that they return."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict, TypeVar, Unpack

import polars as pl

from traceanalyzer.analyzers.base import result_of
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common import kernel_names, soundness
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import MEMORY
from traceanalyzer.analyzers.common.names import frame_text
from traceanalyzer.analyzers.cuda_api.result import CudaApi
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.info.compute import Info
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import (
    LOOP,
    NAN_CHECK,
    ONE_BY_ONE,
    SCHEMA as TRAINING,
    TUNING,
)
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.analyzers.steps.slow_steps import ALL_OPERATORS
from traceanalyzer.analyzers.transfers.result import Transfers
from traceanalyzer.files import packaged
from traceanalyzer.findings.device_time import (
    BUBBLE,
    COPIES,
    DEVICE,
    LINK,
    OUTLIER,
    REPEATED,
    SLOW,
    DeviceTime,
    device_time,
)
from traceanalyzer.findings.program import Program, program
from traceanalyzer.frames import intervals
from traceanalyzer.result import SEVERITIES, Confidence, Fix, Result, Severity, memoized
from traceanalyzer.units import format_frac, format_ranges
from traceanalyzer.vocabulary import RECORDINGS_APART

R = TypeVar("R", bound=Result)

#: Advice of rules in ``advice.toml``: by module, then by name.
_PACKAGED = packaged("findings/advice.toml")
ADVICE: dict[str, dict[str, str]] = _PACKAGED
#: What kernels do that one change avoids together, and the key of the advice, by pattern of names.
KERNELS_TOGETHER: dict[str, tuple[str, str]] = _PACKAGED["kernels_together"]

#: A step waits for loader workers from this share of its time on; less may be that of a handover.
_WAITS_FOR_LOADER = 0.1


@dataclass(frozen=True)
class Answers:
    """Results of the analyzers that rules check.

    Attributes:
        results: results by the name of the analyzer; analyzers without a result are missing.
        one_job: whether all files can be from one job.
        least: the lowest threshold of rules by id; below it, idle time is not described.
    """

    results: Mapping[str, Result]
    one_job: bool = True
    least: Mapping[str, float] = field(default_factory=dict)

    @memoized
    def measured(self, rule: Rule) -> tuple[Measured, ...]:
        """Return the measurements of a rule, of which others ask whether it has a finding."""
        return tuple(rule.judge(self))

    def of(self, kind: type[R]) -> R | None:
        """Return the result of a class, or None."""
        return result_of(self.results, kind)

    @cached_property
    def time(self) -> DeviceTime:
        """The lost time of all devices by root cause."""
        kernels = self.of(Kernels)
        training = None if kernels is None else kernels.training
        return device_time(self.of(GpuIdle), self.of(CommOutliers), training)

    def is_little(self, id_: str, losses: pl.DataFrame) -> bool:
        """Whether a loss is empty, or below all thresholds of its rule: nobody asks what it is."""
        frac = self.time.frac(int(losses["lost_ns"].sum()))
        return not frac or frac < self.least.get(id_, 0.0)

    def place(self, work_kind: str) -> Mapping[str, Any]:
        """Return where the host launches exposed work of a kind, see :meth:`~.Kernels.place`."""
        kernels = self.of(Kernels)
        return {} if kernels is None else kernels.place(None, work_kind)

    @cached_property
    def free_of_loader(self) -> float:
        """Share of step time without steps that wait for loader workers: these have their rate."""
        idle, time = self.of(GpuIdle), self.time
        waits = time.of_cause(causes.DATALOADING)
        if idle is None or not idle.has_loader or idle.host.loads_in_process or not time.in_steps:
            return 1.0
        sums = waits.group_by(*DEVICE, "step").agg(pl.col("lost_ns").sum())
        steps = time.windows.select(*DEVICE, "step", ns=pl.col("end") - pl.col("start"))
        rows = steps.join(sums, on=[*DEVICE, "step"], how="left", nulls_equal=True)
        waiting = rows.filter(pl.col("lost_ns") >= _WAITS_FOR_LOADER * pl.col("ns"))
        return 1 - int(waiting["ns"].sum()) / max(time.whole_ns, 1)

    def of_engine(self, losses: pl.DataFrame) -> dict[str, float]:
        """Return the shares of idle time that findings about an inference engine explain.

        They are the time before decode steps, while devices wait for its scheduler, and the time in
        decode steps that fell back to eager execution.
        """
        if (steps := self.of(Steps)) is None or steps.phases.is_empty() or losses.is_empty():
            return {}
        whole = int((losses["end"] - losses["start"]).sum())
        before = intervals.overlap_with(losses, steps.before_decode, ["path", "rank"])["overlap"]
        eager = losses.join(
            steps.fallen_back, on=["path", "rank", "step"], how="semi", nulls_equal=True
        )
        length = eager["end"] - eager["start"]
        sums = {"exposed-scheduler": int(before.sum()), "eager-decode": int(length.sum())}
        return {id_: ns / whole for id_, ns in sums.items() if ns}

    def without_eager(self, losses: pl.DataFrame) -> pl.DataFrame:
        """Return losses without those in decode steps that fell back, if others are left."""
        steps, keys = self.of(Steps), ["path", "rank", "step"]
        if steps is None or steps.phases.is_empty():
            return losses
        rest = losses.join(steps.fallen_back, on=keys, how="anti", nulls_equal=True)
        much = int(rest["lost_ns"].sum()) >= MUCH_LEFT * int(losses["lost_ns"].sum())
        return rest if much else losses

    def of_tuning(self, lost: pl.DataFrame | None) -> dict[str, float]:
        """Return the share of intervals of a finding in which kernels are measured (tuning)."""
        kernels = self.of(Kernels)
        if kernels is None or kernels.training is None or lost is None:
            return {}
        tuning = kernels.training.filter(purpose=TUNING)
        rows = lost.rename({"start_ns": "start", "end_ns": "end"})
        whole = int((rows["end"] - rows["start"]).sum())
        if tuning.is_empty() or not whole:
            return {}
        within = intervals.overlap_with(rows, tuning, ["rank", "device"])["overlap"]
        return {"kernel-tuning": int(within.sum()) / whole}

    @cached_property
    def loops(self) -> pl.DataFrame:
        """Runs of kernels of one tensor each, the longest ones of a place first.

        Columns: place, path, rank, device, start, end, n, of_tensor, ``kernel_ns`` (within steps).
        """
        rows = of_purpose(self.of(Kernels), ONE_BY_ONE, self.time)
        runs = rows.group_by("place", *DEVICE, "call").agg(
            pl.col("start", "of_tensor").min(), pl.col("end").max(), n=pl.len(),
            kernel_ns=pl.col("ns").sum(),
        )  # fmt: skip
        whole = pl.col("kernel_ns").sum().over("place")
        order = [whole, pl.col("place"), *map(pl.col, DEVICE), pl.col("start")]
        runs = runs.filter(pl.col("kernel_ns") > 0)
        waiting = [
            place
            for (place,), one in runs.group_by("place")
            if str(place).startswith(LOOP)
            and 2 * self.between_launches(one, causes.SYNCHRONISATION) > self.between_launches(one)
        ]  # a finding about waits has their time
        runs = runs.filter(~pl.col("place").is_in(waiting))
        return runs.sort(order, descending=[True, *[False] * 5], nulls_last=True)

    @cached_property
    def nan_checks(self) -> pl.DataFrame:
        """Spans of devices with checks of gradients for NaN and the wait for their results."""
        return of_purpose(self.of(Kernels), NAN_CHECK, self.time)

    def between_launches(self, spans: pl.DataFrame, *of: str) -> int:
        """Return the idle time for the host to launch (or of causes) mostly in spans of devices."""
        lost = self.time.losses.filter(pl.col("cause").is_in(of or BETWEEN_LAUNCHES))
        return int(lost.filter(within(lost, spans))["lost_ns"].sum())

    @cached_property
    def remade(self) -> pl.DataFrame:
        """Idle time of other causes right beside that for modules that are loaded again and again.

        As many are unloaded as there are steps, or more: what has them is made and destroyed.
        """
        api = self.of(CudaApi)
        unloads = pl.col("call").str.contains("(?:Module|Library)Unload")
        n = 0 if api is None else int(api.calls.filter(unloads)["n"].sum())
        loads = (pl.col("cause") == causes.MODULE_LOADING).any().over("stretch")
        often = pl.lit(n >= max(self.time.windows.height, _MANY))
        makes = pl.col("cause").is_in(_MAKES)
        return self.time.in_stretches(often, loads, makes).drop("stretch")

    @cached_property
    def problems(self) -> pl.DataFrame:
        """What is wrong with the recordings, see :attr:`~.Info.problems`."""
        rows = info.problems if (info := self.of(Info)) is not None else soundness.NO_PROBLEMS
        return rows if self.one_job else rows.filter(pl.col("code") != RECORDINGS_APART)

    @cached_property
    def on_cpu(self) -> str:
        """What the CPU computes on data that is copied to it; empty if nothing.

        The optimizer of offloaded parameters, or an operator right after copies to the host.
        """
        idle, transfers = self.of(GpuIdle), self.of(Transfers)
        if idle is None or transfers is None:
            return ""
        code = idle.activity(causes.HOST_CODE)
        sums = transfers.copies.group_by("direction").agg(ns=pl.col("exposed_ns").sum())
        large = sums.filter(pl.col("ns") > _LEAST_COPIES * pl.col("ns").sum())["direction"]
        if code.steps_on_cpu and {"HtoD", "DtoH"} <= {*large}:
            return OPTIMIZER
        # others only read a number
        copied = re.search(causes.DEVICE_TO_HOST, code.after) and {"DtoH", "DtoM"} & {*large}
        return code.place if code.is_operator and copied else ""

    @property
    def by_gloo(self) -> bool:
        """Whether gloo reduces tensors of GPUs: its operators copy them to the host and back."""
        compared, copying = self.of(CommOutliers), self.place(MEMORY).get("outer") or ""
        of_gloo = compared is not None and compared.groups["kernel"].str.starts_with("gloo:").any()
        return of_gloo and copying.startswith("c10d::")

    @cached_property
    def nodes(self) -> dict[int, str | None]:
        """The node of each rank, as far as it is known."""
        windows, comm = self.time.windows.drop_nulls("rank"), self.of(CommOutliers)
        node = pl.col("path").str.extract(_OF_HANDLER)
        nodes: dict[int, str | None] = dict(windows.select("rank", node).unique().iter_rows())
        hosts = None if comm is None else comm.ranks.select("rank", "host").drop_nulls()
        return nodes if hosts is None else nodes | dict(hosts.iter_rows())

    def slower(self, times: pl.DataFrame) -> list[int]:
        """Return the ranks above the largest ratio of neighbouring times: half, or whole nodes.

        If that is below the median (a rank has less work): above the largest one from there on.

        Args:
            times: rank and ``ns``, above 0.
        """
        rows = times.sort("ns", "rank")
        if rows.height < _COMPARED:
            return []
        ratios = (rows["ns"] / rows["ns"].shift(1)).fill_null(0.0)
        n, half = int(ratios.arg_max() or 0), rows.height // 2 + 1
        if 2 * n < rows.height and not self._are_nodes({*rows["rank"][n:]}):
            n = half + int(ratios[half:].arg_max() or 0)
            n = n if ratios[n] >= _LONGER else rows.height
        return rows["rank"][n:].sort().to_list()

    def _are_nodes(self, ranks: Collection[int]) -> bool:
        """Whether these are all ranks of at most half of the nodes, several on each."""
        sizes, nodes = Counter(self.nodes.values()), [self.nodes.get(rank) for rank in ranks]
        return 2 * len({*nodes}) <= len(sizes) and all(
            name and 1 < n == sizes[name] for name, n in Counter(nodes).items()
        )

    def label(self, ranks: Sequence[int]) -> str:
        """Return ``rank 3``, ``ranks 3, 4``, or ``ranks 4-7 (all of node b)``.

        Nodes are recorded, or in the names of the files; half of one is often a CPU socket.
        """
        if len(ranks) == 1:
            return f"rank {ranks[0]}"
        names = sorted({self.nodes.get(rank) or "" for rank in ranks})
        there = [rank for rank in sorted(self.nodes) if self.nodes[rank] in names]
        half, place = len(there) // 2, f"node{'s' * (len(names) > 1)} {', '.join(names)}"
        even = len(names) == 1 and 2 * half == len(there)
        part = "half" if even and [*ranks] in (there[:half], there[half:]) else ""
        part = "all" if there == [*ranks] else part
        text = f" ({part} of {place})" * bool(part)
        return f"ranks {format_ranges(ranks)}{text}"

    @cached_property
    def memory_use(self) -> tuple[int, int] | None:
        """Peak of reserved memory, and memory of a GPU, in bytes; None if either is unknown."""
        memory, info = self.of(Memory), self.of(Info)
        if memory is None or info is None:
            return None
        peak, whole = memory.devices["reserved_peak_bytes"].max(), info.files["device_bytes"].min()
        return (peak, whole) if isinstance(peak, int) and isinstance(whole, int) else None

    @cached_property
    def reads_copies(self) -> bool:
        """Whether host code follows copies to the host that the same code or call makes."""
        idle, copying = self.of(GpuIdle), self.place(MEMORY).get("code")
        if idle is None or self.on_cpu:
            return False
        one = idle.activity(causes.HOST_CODE)
        code, copies = (
            int(self.time.of_cause(cause)["lost_ns"].sum()) for cause in (causes.HOST_CODE, COPIES)
        )
        same = bool(copying) and one.frame == copying
        return (same or one.falls_back) and "DtoH" in one.after and code > copies

    @property
    def without_cpus(self) -> dict[str, float]:
        """The rule that explains the time of host code, if threads of the process lack CPUs."""
        rows = steps.contended if (steps := self.of(Steps)) is not None else None
        return {"contended-cpus": 1.0} if rows is not None and rows.height else {}

    @property
    def by_chance(self) -> bool:
        """Whether operators of the CPU take longer in slow steps without a cause."""
        rows = steps.only_slow if (steps := self.of(Steps)) is not None else None
        return rows is not None and rows["name"].str.starts_with(ALL_OPERATORS).any()

    @cached_property
    def program(self) -> Program:
        """Framework and GPUs of the program, as far as they are known."""
        return program(self.results)


#: From this number of ranks on, slower ones are compared with the others.
_COMPARED = 3
#: Where a rank has less work, slower ones take at least this many times as long as the next one.
_LONGER = 1.1
#: Name of a file of torch.profiler's tensorboard_trace_handler: node, process, time.
_OF_HANDLER = r"([^/\\]+)_\d+\.\d+\.pt\.trace\.json"
#: Modules are loaded again and again from this number on, with other work to make what has them.
_MANY, _MAKES = 10, (causes.HOST_CODE, causes.MEMORY_MANAGEMENT, causes.API_CALLS)
OF_GLOO = (
    "gloo runs these collectives on the CPU: reduce tensors of GPUs on them "
    '(init_process_group("nccl"), also on AMD GPUs)'
)
#: What updates offloaded parameters.
OPTIMIZER = "the optimizer"
#: Least share of the exposed time of copies in each direction of offloaded parameters.
_LEAST_COPIES = 0.1


def of_purpose(kernels: Kernels | None, purpose: str, time: DeviceTime) -> pl.DataFrame:
    """Return device work of a purpose in training, with its duration within steps ``ns``."""
    rows = None if kernels is None else kernels.training
    if rows is None:
        rows = pl.DataFrame(schema=TRAINING | {"path": pl.String, "rank": pl.Int32})
    rows = rows.filter(purpose=purpose)
    if rows.is_empty():
        return rows.hstack([pl.Series("ns", dtype=pl.Int64)])
    return intervals.overlap_with(rows, time.windows, DEVICE).rename({"overlap": "ns"})


@memoized
def in_steps(result: Kernels, time: DeviceTime) -> pl.DataFrame:
    """Return the kernels that steps without warm-up launched; all kernels without steps."""
    if result.by_step is None:
        types = dict.fromkeys(("n", "total_ns", "busy_ns", "fusible_ns", "max_ns"), pl.Int64)
        return pl.DataFrame(schema={"kernel": pl.Categorical, **types})
    if not time.in_steps:
        return result.by_step
    rows, keys = result.by_step, ["path", "rank", "step"]
    steps = time.windows[keys].cast({pl.String: pl.Categorical})
    marked = rows[keys].with_row_index().join(steps, on=keys, how="semi", nulls_equal=True)["index"]
    return rows[marked] if 0 < marked.len() < rows.height else rows


def longest_first(rows: pl.DataFrame, kernels: pl.Series, column: str) -> pl.DataFrame:
    """Return kernel, n, ns (the sum of a column) of these kernels, the longest time first."""
    chosen = rows.lazy().filter(pl.col("kernel").is_in(kernels.implode()), pl.col(column) > 0)
    sums = chosen.group_by("kernel").agg(pl.col("n").sum(), ns=pl.col(column).sum())
    return largest_first(sums.collect().cast({"kernel": pl.String}), "ns", "kernel")


#: Families of kernels that fusion joins.
POINTWISE = (kernel_names.ELEMENTWISE, kernel_names.COPY)
#: Operators that make a tensor contiguous, and the share of the time of such a kernel from which on
#: it is a finding of its own.
_CONTIGUOUS, _MUCH = r"aten::(?:reshape|contiguous|clone|repeat|expand)\b", 0.15
#: Least share of kernels whose function is that of all.
_NEARLY_ALL = 0.8


def contiguous(result: Kernels, time: DeviceTime) -> Iterator[str]:
    """Yield kernels that take much time to make tensors contiguous, which fusion does not avoid."""
    copies = result.heaviest("name").filter(pl.col("family") == kernel_names.COPY)["kernel"]
    for kernel, _, ns in longest_first(in_steps(result, time), copies, "busy_ns").iter_rows():
        place = result.place(kernel)
        operators = f"{place.get('operator')} {place.get('outer')}"
        if time.frac(ns) >= _MUCH and re.search(_CONTIGUOUS, operators):
            yield kernel


def launched_in(result: Kernels, names: pl.Series) -> str:
    """Return the function that launches nearly all of some kernels, as a phrase; else empty."""
    if result.heavy is None:
        return ""
    rows = result.heavy.filter(pl.col("kernel").is_in(names.implode()))
    by = rows.group_by(place=pl.coalesce("called", "code")).agg(pl.col("ns").sum())
    name, ns = (*largest_first(by, "ns", "place").rows(), (None, 0))[0]
    return f" in {frame_text(name)}" if name and ns >= _NEARLY_ALL * int(rows["ns"].sum()) else ""


def within(rows: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Whether rows of devices are in spans for more than half of their time."""
    overlap = intervals.overlap_with(rows, spans, DEVICE)["overlap"].fill_null(0)
    return 2 * overlap > rows["end"] - rows["start"]


#: Causes of idle time between the kernels of a loop over tensors, which is slow to launch them.
BETWEEN_LAUNCHES = (causes.LAUNCH, causes.SHORT_GAP, causes.SYNCHRONISATION)


@dataclass(frozen=True)
class Measured:
    """One measurement of a rule, even if it is too small for a finding.

    Attributes:
        title: the problem in one line, with its cost.
        size: value to compare with the thresholds of the rule; by default ``total_ns`` as a share
            of the time.
        evidence: further numbers, one sentence each.
        advice: what to try.
        cost_ns: lost time, mean per step and device (per device if no steps are marked), or None.
        total_ns: the same in total over all devices; ``cost_ns`` is derived from it if it is None.
        most_gain_ns: the part of ``total_ns`` that can be gained at most, if it is less; or None.
        per: the unit of ``cost_ns``, if it is given.
        once: the cost arises once per device, not in each step; with steps, a warning at most.
        cost_bytes: memory cost in bytes, or None.
        cost_frac: the cost as a share of ``of``, or None; by default the size, if it is a share.
        of: what ``cost_frac`` is a share of; by default step time or the recorded time. Time in
            warm-up steps is in no cost of a step: an info, unless it is a third of all time.
        confidence: confidence that the cause is right; with ``low``, a warning at most.
        rank, device, step: place of the problem; None if there are several.
        intervals: path, rank, device, start_ns, end_ns on the clock of each file.
        ranks: the ranks that a fix changes: of a pipeline stage or with larger inputs (their work
            moves to others), or with a slow host.
        fix: see :class:`~traceanalyzer.drawings.Finding`.
        explained: share of the cost that other findings explain, by rule id.
    """

    title: str
    size: float | None = None
    evidence: tuple[str, ...] = ()
    advice: str = ""
    cost_ns: int | None = None
    total_ns: int | None = None
    most_gain_ns: int | None = None
    per: str = ""
    once: bool = False
    cost_bytes: int | None = None
    cost_frac: float | None = None
    of: str = ""
    confidence: Confidence = "high"
    rank: int | None = None
    device: int | None = None
    step: str | None = None
    intervals: pl.DataFrame | None = None
    ranks: tuple[int, ...] = ()
    fix: Fix = ""
    explained: Mapping[str, float] = field(default_factory=dict)


def without_others(share: float, left: float) -> str:
    """Return the share of a cost that no other finding counts, unless 90 % of it are left."""
    return f"; {format_frac(share)} in no other finding" * (left < NEARLY_ALL_LEFT)


#: What costs in warm-up steps are a share of.
WITH_WARM_UP = "the time of all steps, with warm-up"

#: Measures one result; the second argument has the results of the other analyses.
Measure = Callable[[Any, Answers], Iterable[Measured]]


def _nothing(_: Any) -> None:
    """Return that a result lacks nothing."""


@dataclass(frozen=True, eq=False)
class Rule:
    """A check for one kind of problem, with its thresholds.

    Attributes:
        id: name of the rule in options and results.
        analysis: name of the analysis that it checks.
        looks_for: the problem that it detects, as a phrase.
        measure: the value that is compared with the thresholds, as a phrase.
        levels: threshold of each severity; severities without a threshold are not used. A finding
            of confidence low is at most a warning.
        function: the function that measures.
        counts: the measure is a count, not a share.
        uses: names of analyses that add evidence if they have results.
        compares_ranks: whether the rule compares the ranks of one job.
        lacks: return what a result lacks for the rule; None if nothing.
    """

    id: str
    analysis: str
    looks_for: str
    measure: str
    levels: Mapping[Severity, float]
    function: Measure = field(repr=False)
    counts: bool = False
    uses: tuple[str, ...] = ()
    compares_ranks: bool = False
    lacks: Callable[[Any], str | None] = field(default=_nothing, repr=False)

    def judge(self, answers: Answers) -> Iterator[Measured]:
        """Yield the measurements above 0 of the result of its analysis, with their sizes."""
        for one in self.function(answers.results[self.analysis], answers):
            size = answers.time.frac(one.total_ns or 0) if one.size is None else one.size
            if size:
                is_share = one.cost_frac is None and not self.counts
                yield replace(one, size=size, cost_frac=size if is_share else one.cost_frac)

    def severity(self, size: float, confidence: Confidence = "high") -> Severity | None:
        """Return the severity of a size, ``low`` at most warning; None below all thresholds."""
        reached = [name for name, least in self.levels.items() if size >= least]
        highest = max(reached, key=SEVERITIES.index, default=None)
        return "warning" if highest == "critical" and confidence == "low" else highest


class _More(TypedDict, total=False):
    """Attributes of a :class:`Rule` that most rules do not need."""

    counts: bool
    uses: tuple[str, ...]
    compares_ranks: bool
    lacks: Callable[[Any], str | None]


def rule(
    analysis: str,
    looks_for: str,
    measure: str,
    levels: Mapping[Severity, float],
    **more: Unpack[_More],
) -> Callable[[Measure], Rule]:
    """Turn a measuring function into a :class:`Rule`; its id is the name of the function."""

    def decorate(function: Measure) -> Rule:
        name = function.__name__.strip("_").replace("_", "-")
        return Rule(name, analysis, looks_for, measure, levels, function, **more)

    return decorate


#: What most rules measure their time by.
OF_STEP = "as a share of step time (or of the recorded time)"

# --- rules by cause --------------------------------------------------------------------------

#: The rule of each cause of idle time.
IDLE_RULES = {
    causes.PROFILER: "profiler-overhead",
    causes.SHORT_GAP: "short-gaps",
    causes.DEVICE_WAIT: "device-wait",
    causes.DATALOADING: "data-loading",
    causes.BATCH_COPY: "batch-copies",
    causes.SMALL_COPIES: "small-copies",
    causes.COMMUNICATOR: "communicator-creation",
    causes.MODULE_LOADING: "module-loading",
    causes.GRAPH_BUILDING: "graph-building",
    causes.SYNCHRONISATION: "synchronisation",
    causes.MEMORY_MANAGEMENT: "memory-management",
    causes.CHECKPOINT_IO: "checkpoints",
    causes.PEER: "waiting-for-ranks",
    causes.API_CALLS: "api-calls",
    causes.LAUNCH: "launch-bound",
    causes.HOST_CODE: "host-code",
    causes.UNKNOWN: "unknown-idleness",
}
#: The rule of each cause that delays a rank, without its work.
DELAY_RULES = {**IDLE_RULES, COPIES: "exposed-copies"}
#: The rule of each cause of lost time; work of a straggler belongs to ``straggler``.
RULE_OF = {
    **DELAY_RULES,
    BUBBLE: "pipeline-bubble",
    REPEATED: "repeated-reduction",
    SLOW: "slow-collectives",
    OUTLIER: "collective-outliers",
    LINK: "slow-link",
}


#: From this share on that other findings do not explain, a finding counts only that share; from the
#: second one on, all of its cost.
MUCH_LEFT, NEARLY_ALL_LEFT = 0.2, 0.9


def explained_by(
    losses: pl.DataFrame, whole_ns: float, column: str = "lost_ns"
) -> dict[str, float]:
    """Return the share of a time that other findings explain, by rule id.

    Args:
        losses: cause and ``column``, the explained time in ns.
        whole_ns: the time to explain, in ns.
        column: name of the column with the times.
    """
    sums = losses.group_by("cause").agg(pl.col(column).sum()).sort("cause")
    shares: dict[str, float] = {}
    for cause, ns in sums.iter_rows():
        id_ = RULE_OF.get(cause) or "straggler"
        shares[id_] = shares.get(id_, 0.0) + min(ns / whole_ns, 1.0)
    return shares
