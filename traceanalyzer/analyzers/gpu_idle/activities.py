"""What the host does in the gaps of one cause, and the change that fits it."""

import re
from collections import defaultdict
from dataclasses import dataclass, replace

import polars as pl

from traceanalyzer.analyzers.common.gpu_api import Api
from traceanalyzer.analyzers.common.kernel_names import code_text
from traceanalyzer.analyzers.common.names import frame_text, one_name_for_numbers
from traceanalyzer.analyzers.common.step_marks import REPETITION
from traceanalyzer.analyzers.common.waits import DATA, DISK, SLEEPS, advice, wait_of
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.units import NS_PER_MS, format_ns
from traceanalyzer.vocabulary import INFERENCE_ENGINES, ON_CPU

#: Where a main thread runs code between operators.
OUTSIDE = "outside operators"

OPTIMIZER, PARALLEL, BACKWARD, FORWARD = "optimizer", "parallel", "backward", "forward"

#: Ranges, operators and functions of parts of a training step, the first that matches counts.
_PARTS = {
    PARALLEL: r"DistributedDataParallel|FullyShardedDataParallel|FSDP|_flatten_dense_tensors",
    "zero_grad": "zero_grad",
    OPTIMIZER: r"(?i)optimizer|torch[/\\]optim[/\\]|(?:^|[ .])(?:adam|adagrad|lion)_update",
    BACKWARD: r"(?i)backward|autograd",
    FORWARD: r"(?i)forward|^nn\.Module: |generate|(?:train|eval|valid|test)\w*_step|^execute_",
}
#: Functions that log or send measurements.
LOGS = re.compile(
    r"(?i)wandb|mlflow|tensorboard|comet_ml|neptune|summarywriter|logging[/\\]"
    r"|(?:^|[ ._])(?:log(?!_?(?:softmax|sigmoid|prob|sum|normal|cosh|det))|report|track|add_scalar)"
    r"(?:_|\b)"
)
#: Functions that write results: a GPU does not make them faster.
_RESULTS = re.compile(r"(?:: |[._])(?:save|write|export|dump|imwrite)(?:_(?!ckpt|checkpoint)\w+)?$")
#: Operators that read a number from the device, and those whose size depends on its data.
_READS_NUMBER = re.compile(r"item|_local_scalar_dense|is_nonzero|aten::equal$")
_SIZE_OF_DATA = re.compile(r"nonzero|masked_select|unique|repeat_interleave|aten::(?:index|where)$")
#: Calls and operators that copy, and calls that wait for an event.
_COPIES = re.compile(r"(?i)memcpy|aten::(?:copy_|to|_to_copy|cpu|cuda)$")
_EVENT = re.compile(r"(?i)EventSynchronize")
#: Names of functions that load a model or read data, and do not save.
_LOADS = re.compile(r"(?i)load|read|from_pretrained|restore")
_WRITES = re.compile(r"(?:^|[ _.:])(?:write|save|dump)|(?:Write|Save|Dump)(?:[A-Z_ ]|$)")
_SAVES = re.compile(r"(?i)save|write|store|sync|dump|export")


#: What may make pauses at any place.
COLLECTOR = "in Python's garbage collector"
QUOTA = "because of the CPU quota of its container"
OVERLOAD = "because of other processes on its CPUs"
REGULAR = "because of garbage collection, a CPU quota or another process"
_CPU_STAT = (
    "compare nr_throttled and throttled_usec in cpu.stat of the container's cgroup before and after"
)
#: How they occur, as the end of a phrase.
_HOW = {
    COLLECTOR: " on one rank at a time",
    QUOTA: " until multiples of 100 ms, in no particular operator",
    OVERLOAD: " on all ranks at once, in no particular operator",
    REGULAR: " at regular times, in no particular operator",
}
#: Advice on them.
_UNPAUSED = {
    COLLECTOR: "Choose when Python collects garbage: gc.freeze() and gc.disable() after the setup, "
    "then gc.collect() every N steps, on all ranks in the same step. PyTorch 2.9 and newer records "
    "it (_ExperimentalConfig(record_python_gc_info=True)); else look for other processes on the "
    "cores.",
    QUOTA: "Linux stops all threads of a container that has used its CPU quota (cpu.max) until the "
    f"next period of 100 ms (CFS throttling): {_CPU_STAT}, raise or remove the CPU limit "
    "(Kubernetes: resources.limits.cpu, docker run --cpus), or run fewer threads (loader workers, "
    "OMP_NUM_THREADS).",
    REGULAR: "Something stops the program at regular times, whatever it runs: Python's garbage "
    "collection (gc.freeze() after the setup, gc.collect() every N steps on all ranks), a CPU "
    f"quota ({_CPU_STAT}), or another process on the cores (top, pidstat 1).",
    OVERLOAD: "The hosts of all ranks pause at the same time, whatever they run: look for other "
    "processes on the cores (/proc/pressure/cpu, top), run fewer threads, and for a CPU quota "
    f"{_CPU_STAT}.",
}


@dataclass(frozen=True)
class Activity:
    """What the host does in half or more of the time in the gaps of a cause.

    Texts are empty if they are not known.

    Attributes:
        place: the innermost function, operator or range.
        frame: the innermost frame of your own code.
        called: the frame that it calls.
        range: the innermost annotation that is not a step.
        phase: the innermost annotation that launches work (without a GPU: runs operators).
        after: the device work before the gap.
        rival: another Python thread that runs meanwhile, and keeps the host from launching.
        pauses: single long gaps at any place, as a phrase: ``up to 61 ms on one rank at a time``.
        paused_by: what probably makes them, such as :data:`QUOTA`.
        sampled: the place, if only samples show it: a function of a program or library.
    """

    place: str = ""
    frame: str = ""
    called: str = ""
    range: str = ""
    phase: str = ""
    after: str = ""
    rival: str = ""
    pauses: str = ""
    paused_by: str = ""
    sampled: str = ""

    @property
    def wait(self) -> str | None:
        """What the thread waits for; None if it does something."""
        is_work = not self.place or re.search(causes.SENDS_OBJECTS, self.place)
        return None if is_work else wait_of(self.place)

    @property
    def part(self) -> str:
        """The part of a training step: of the place, or of the range around it."""
        names = (self.place, self.range)
        parts = (p for name in names for p, test in _PARTS.items() if re.search(test, name))
        return next(parts, "")

    @property
    def copies_buffers(self) -> bool:
        """Whether DistributedDataParallel copies broadcast buffers back, one after another."""
        return self.place == "aten::copy_" and bool(_BUFFERS.search(self.called))

    @property
    def stages_for_mpi(self) -> bool:
        """Whether MPI sends what was copied from the device right before."""
        return self.place.startswith("MPI_") and "DtoH" in self.after

    @property
    def in_autograd(self) -> bool:
        """Whether the main thread is in the call that starts the backward pass."""
        return "run_backward" in self.place

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator, which launches nothing in a gap: it computes on the CPU."""
        return not self.sampled and bool(re.match(causes.COMPUTES, self.place))

    @property
    def falls_back(self) -> bool:
        """Whether cudf.pandas runs a call in pandas, with copies of its data."""
        return self.place == FALLBACK

    @property
    def moves_to_gpu(self) -> bool:
        """Whether an option of the program moves this work to the GPU, which then runs it."""
        return bool(re.search(f"{_OF_PME}|{_OF_LAYERS}", self.place))

    @property
    def steps_on_cpu(self) -> bool:
        """Whether it is an optimizer step without kernels: its parameters are on the CPU."""
        after_kernel = self.after and not re.search("(?i)cpy|copy", self.after)
        launches = self.phase or (after_kernel and not self.range)
        return self.part == OPTIMIZER and (self.is_operator or not launches)

    @property
    def runs_python(self) -> bool:
        """Whether your own code, or what it calls, is innermost."""
        if self.wait or not self.frame or self.in_autograd:
            return False
        return self.place in ("", self.frame) or frame_text(self.place) != self.place

    @property
    def text(self) -> str:
        """The place for a sentence: ``slow_augment (train.py:19)``; empty if unknown.

        If your own code calls it through a library: ``recv_into inside run.log, step (train.py:5)``
        """
        place = code_text(self.place or self.frame) + " (CPU operator)" * self.is_operator
        if self.falls_back and self.phase:
            place = f"{self.phase} in pandas ({self.place})"
        if self.called not in ("", self.place):
            place += f" inside {frame_text(self.called)}"
        named = self.place == "" or self.called or self.wait or self.is_operator
        if self.frame not in ("", self.place) and named:
            place += f", {self.line}" * (self.line not in place)
        return place

    @property
    def line(self) -> str:
        """The innermost frame of your own code for a sentence; empty if unknown."""
        return frame_text(self.frame)

    @property
    def where(self) -> str:
        """The nearest own frame, or else the range, as a phrase: `` in step (train.py:5)``."""
        name = self.line or self.range
        return f" in {name}" if name not in ("", self.place) else ""


def of_gaps(
    gaps: pl.DataFrame, pauses: pl.DataFrame | None = None, by: str = COLLECTOR
) -> Activity:
    """Return what the host does in most of the time of these gaps, rows of ``GpuIdle.gaps``."""
    columns = {
        "place": "innermost", "frame": "own_code", "called": "called", "range": "annotation",
        "phase": "phase", "after": "before", "rival": "rival",
    }  # fmt: skip
    text = ""
    if pauses is not None and pauses.height:
        how = _HOW[by] * (by in (QUOTA, REGULAR) or pauses["rank"].n_unique() > 1)
        text = f"up to {format_ns((pauses['end'] - pauses['start']).max())}{how}"  # type: ignore[arg-type]
    one = Activity(**{name: main_place(gaps, at)[0] for name, at in columns.items()}, pauses=text)
    one = replace(one, paused_by=by if text else "")
    if pauses is None or one.place or one.frame:
        return one
    mostly = pl.when(2 * pl.col("sampled_frac") >= 1).then("sampled")
    place = main_place(gaps.with_columns(sampled=mostly), "sampled")[0]
    return replace(one, place=place, sampled=place)


#: The range in which cudf.pandas runs a call in pandas.
FALLBACK = "EXECUTE_SLOW"
#: Pauses: least number, their share of host code, difference of their places in the shortest step.
_PAUSES, NEARLY_ALL, _ELSEWHERE = 3, 0.9, 0.1


def pauses(gaps: pl.DataFrame, steps: pl.DataFrame, whole_ns: int) -> pl.DataFrame:
    """Return single long gaps that host code leaves in some steps, at another place each time.

    Python's garbage collector stops a program so: when many objects were created, wherever it is.
    They are 3 or more, half as long as the longest of them or longer, with nearly all time of host
    code, in at most half of the steps of devices, mostly in another step each; if several ranks are
    recorded, on several. What is recorded around them launches work.

    Args:
        gaps: rows of :attr:`GpuIdle.gaps`, of host code.
        steps: rows of :attr:`GpuIdle.steps`.
        whole_ns: time of host code in all steps.
    """
    keys, length = ["rank", "path", "device", "step"], pl.col("end") - pl.col("start")
    begin = steps.select(*keys, begin="start")
    rows = gaps.filter(2 * length >= length.max()).join(begin, on=keys, nulls_equal=True)
    if not _PAUSES <= rows.height <= steps.height / 2:
        return rows.clear()
    one, several = of_gaps(rows), steps["rank"].n_unique() > 1
    at, shortest = rows["start"] - rows["begin"], steps.select(length.min()).item()
    are_pauses = (
        one.place in ("", one.phase)
        and not (one.wait or one.rival)
        and rows["cause_ns"].sum() >= NEARLY_ALL * whole_ns
        and at.max() - at.min() > _ELSEWHERE * shortest  # type: ignore[operator]
        and 2 * rows["step"].n_unique() > rows.height
        and several == (rows["rank"].n_unique() > 1)
    )
    return rows if are_pauses else rows.clear()


#: The period of a CPU quota, and how far from its multiples pauses end.
_PERIOD_NS, _APART_NS = 100 * NS_PER_MS, 3 * NS_PER_MS
#: The least pause, the distance of parts of one, and the share of late launches and host code.
_LEAST_NS, _PARTS_NS, MOSTLY = 5 * NS_PER_MS, NS_PER_MS, 0.5
#: Regular pauses: difference of lengths, distance from multiples of a period; if there are three.
_SAME_LENGTH, _OF_PERIOD, _OF_THREE = 0.25, 0.1, 0.1


IS_LONG = pl.col("end") - pl.col("start") >= _LEAST_NS


def stops(gaps: pl.DataFrame, steps: pl.DataFrame, *, one_clock: bool) -> tuple[pl.DataFrame, str]:
    """Return pauses of 5 ms and more in which the operating system stops the host, and by what.

    All such pauses are: 3 or more per device, at another place in a step each. Those of a CPU quota
    end at multiples of 100 ms. Other processes stop all ranks at the same time, in at most half of
    the steps; or the pauses are as long each, and regular.

    Args:
        gaps: rows of :attr:`GpuIdle.gaps`, of late launches and host code.
        steps: rows of :attr:`GpuIdle.steps`.
        one_clock: the times of all ranks are on one axis.
    """
    keys, length = ["rank", "path", "device"], pl.col("end") - pl.col("start")
    ends = pl.col("at_ns") + length
    is_new = (pl.col("at_ns") - ends.shift(1) > _PARTS_NS).over(keys).fill_null(value=True)
    parts = gaps.filter(IS_LONG).sort(*keys, "at_ns")
    first = pl.col(*keys, "step", "cause", "at_ns", "start").first()
    rows = parts.group_by(is_new.cum_sum().alias("stop"), maintain_order=True).agg(
        first, pl.col("end").last(), pl.col("cause_ns").sum(), until=ends.last()
    )
    begin = steps.select(*keys, "step", begin="start")
    rows = rows.join(begin, on=[*keys, "step"], nulls_equal=True)
    n, at = pl.len().over(keys), pl.col("start") - pl.col("begin")
    until = pl.col("until") - pl.col("until").first().over(keys) + _PERIOD_NS // 2
    times = (apart := pl.col("until").diff().over(keys)) / apart.min()
    near = pl.when(n.max() > _PAUSES).then(1.0).otherwise(_OF_THREE)
    found = rows.select(
        are_stops=(n >= _PAUSES).all(),
        elsewhere=at.max() - at.min() > _ELSEWHERE * pl.lit(steps.select(length.min()).item()),
        of_quota=((until % _PERIOD_NS - _PERIOD_NS // 2).abs() <= _APART_NS).all(),
        regular=(length.max() <= (1 + _SAME_LENGTH * near) * length.min()).all()
        & ((times - times.round()).abs() <= _OF_PERIOD * near).all(),
    ).row(0, named=True)
    if not rows.height or not (found["are_stops"] and found["elsewhere"]):
        return rows.clear(), ""
    if found["of_quota"]:
        return rows, QUOTA
    is_later = (pl.col("at_ns") > pl.col("until").cum_max().shift(1)).fill_null(value=False)
    together = rows.sort("at_ns").group_by(is_later.cum_sum()).agg(pl.col("rank").n_unique())
    n_ranks = steps["rank"].n_unique()
    if 2 * rows.height <= steps.height:
        if one_clock and n_ranks > 1 and (together["rank"] == n_ranks).all():
            return rows, OVERLOAD
        known = parts["innermost"].drop_nulls().n_unique() >= _PAUSES
        if found["regular"] and known and not main_place(parts, "innermost")[0]:
            return rows, REGULAR
    return rows.clear(), ""


def main_place(gaps: pl.DataFrame, *columns: str) -> tuple[str, int, int]:
    """Return the place of the host in half of the time of these gaps or more.

    Ranges whose names differ by the number at their end are one place: ``IO *``.

    Args:
        gaps: rows of :attr:`GpuIdle.gaps` with one cause.
        columns: the place, the first of them that is known; by default your own code.

    Returns:
        Its name, time in ns and number of gaps; an empty name if there is none.
    """
    known = [one for one in columns or causes.PLACES if gaps[one].null_count() < gaps.height]
    times: defaultdict[str, list[int]] = defaultdict(list)
    for step, ns, *found in gaps[["step", "cause_ns", *known]].iter_rows():
        name = next(filter(None, found), step)
        # the step annotation has no information about the place
        if name != step and name != REPETITION.sub("", step or ""):
            times[name].append(ns)
    for name, plain in one_name_for_numbers(times).items():
        times[plain] += times.pop(name)
    places = [(name, sum(each), len(each)) for name, each in times.items()]
    main = min(places, key=lambda one: (-one[1], one[0]), default=("", 0, 0))
    return main if main[1] > 0 and 2 * main[1] >= gaps["cause_ns"].sum() else ("", 0, 0)


# --- host code -----------------------------------------------------------------------------------


def doing(one: Activity, *, on_host: bool, stacks: bool = False) -> str:
    """Return what the host does instead of launching (without a GPU: outside operators).

    Args:
        one: what it does.
        on_host: no GPU work was recorded.
        stacks: stacks were recorded: without a place, no function takes half of the time.
    """
    if one.wait:
        place = (one.wait == SLEEPS and one.line) or one.text
        return f"waiting while the host {one.wait} in {place}"
    if one.rival:
        return f"waiting while another Python thread runs and holds the GIL: {one.rival}"
    if one.pauses:
        return f"waiting while the host pauses for {one.pauses}, probably {one.paused_by}"
    if on_host:
        if one.runs_python:
            return f"Python {OUTSIDE}, {one.text}"
        return f"code {OUTSIDE}, in {one.text}" if one.text else f"unrecorded code {OUTSIDE}"
    if re.search(causes.TRACES, one.place):
        return f"waiting while TensorFlow traces {one.line or 'a function'}"
    if one.steps_on_cpu:
        return f"waiting while {one.range or one.text} runs on the CPU"
    if one.text:
        return f"waiting while the host runs {one.text}"
    return f"waiting while the host runs {'other code' if stacks else 'code that was not recorded'}"


def heading(one: Activity, *, on_host: bool) -> str:
    """Return host code with its place as the name of a part of the time; empty if not known."""
    if not one.wait and (one.rival or one.pauses):
        return f"GIL held by {one.rival}" if one.rival else f"pauses, probably {one.paused_by}"
    if not one.text:
        return ""
    code = f"{'Python' if one.runs_python else 'code'} {OUTSIDE}" if on_host else "host code"
    return f"{code}, mostly {one.line or code_text(one.place)}"


def clause(waiting: str, where: str = "", *, several: bool = False) -> str:
    """Return what a main thread or device does in idle time, and where: ``idle in step 3 while``.

    Args:
        waiting: the cause, as ``GpuIdle.waiting``.
        where: a phrase: `` in 2 of 6 steps``.
        several: whether it is said of several.
    """
    if OUTSIDE in waiting:
        comma = "," * (", " in waiting and bool(where))
        return f"{'run' if several else 'runs'} {waiting}{comma}{where}"
    return f"idle{where}, {waiting}".replace(", waiting while", " while")


def idle_name(*names: str) -> str:
    """Return causes as the name of a state: a main thread that runs Python is not idle."""
    text = ", ".join(names)
    return text if all(OUTSIDE in name for name in names) else f"idle: {text}"


_BROADCASTS = re.compile(r"(?i)broadcast")
_FOREACH = (
    "Update all parameters with a few calls: foreach=True or fused=True (torch.optim), or "
    "torch.compile around optimizer.step."
)
#: Kernels of foreach operators, and the dispatch of DTensors in Python.
_JOINED, _DTENSOR = "multi_tensor_apply", r"torch[/\\]distributed[/\\](?:_)?tensor[/\\]|DTensor"
_FUSED = (
    "The optimizer calls foreach operators already: use fused=True (torch.optim), or torch.compile "
    "around optimizer.step. {}PyTorch dispatches each tensor of such a call in Python."
)
_SCALER = "grad_scaler"
_NO_SCALER = (
    "GradScaler.step reads from the GPU whether all gradients are finite before it updates: use "
    "bfloat16, which needs no scaler, or fused=True (torch.optim), which checks on the GPU."
)
_ON_GPU = (
    "Keep parameters and optimizer state on the GPU: create the optimizer after model.to(device), "
    "without CPU offload. If they do not fit, use a fused optimizer for CPUs (fused=True, "
    "DeepSpeedCPUAdam)."
)
#: Optimizers of offloaded states, which run on the CPU on purpose.
OFFLOADED = r"(?:cpu_?|CPU)(?:[Aa]dam|[Aa]dagrad|[Ll]ion)|(?:^|[ .])(?:adam|adagrad|lion)_update"
_LESS_OFFLOAD = (
    "The optimizer runs on the CPU because its state is offloaded: keep the state on the GPU if it "
    "fits (more GPUs, 8-bit states), offload a part of it (DeepSpeed: ratio of offload_optimizer), "
    "or give the process more CPU threads (OMP_NUM_THREADS)."
)
NO_BUFFERS = (
    "DistributedDataParallel copies and broadcasts all buffers before each forward pass: use "
    "broadcast_buffers=False (each rank then has running statistics of its own), or exclude "
    "constant buffers (DistributedDataParallel._set_params_and_buffers_to_ignore_for_model)."
)
_BUFFERS = re.compile(r"parallel[/\\]distributed\.py\(\d+\): _(?:pre_forward|sync_\w*buffers)")
_OF_PARALLEL = (
    "Reduce the host work of {place} before each pass: fewer, larger parameters or FSDP units, "
    "gradient_as_bucket_view=True, no find_unused_parameters."
)


def advice_on_host_code(one: Activity, program: Api, *, code: str, on_host: bool) -> str:
    """Return the change that fits what the host does in gaps without a call or launch.

    Args:
        one: what it does.
        program: its API and framework.
        code: what to record to see more code; empty if Python stacks were recorded.
        on_host: no GPU work was recorded: the gaps are between operators.
    """
    pytorch = program.pytorch
    if one.wait:
        return advice_on_wait(one)
    if one.pauses or one.rival:
        saves = any(re.search(test, one.rival) for test in causes.SAVING)
        saves &= pytorch and bool(_SAVES.search(one.rival))
        of_rival = causes.OF_SAVER if saves else causes.OF_RIVAL
        return _UNPAUSED[one.paused_by] if one.pauses else of_rival.format(rival=one.rival)
    if one.in_autograd:
        return causes.OF_COMPILED if one.after.startswith("triton_") else _OF_AUTOGRAD
    names = (one.place, one.called, one.frame)
    if text := next(filter(None, (_of_name(name, one, pytorch=pytorch) for name in names)), ""):
        return text
    if pytorch and (text := _of_part(one, on_host=on_host)):
        return text
    if one.runs_python:
        return _of_python(one, pytorch=pytorch, trains=program.trains)
    if one.is_operator:
        return (
            f"{one.place} computes on the CPU{one.where}: move its input to the GPU (.to(device)), "
            "or call it less often."
        )
    if not one.text:
        how = f"Record the host code first: {code} shows what runs in these gaps"
        return f"{how if code else _RANGES}."
    see = f" {code[:1].upper()}{code[1:]} shows the line." if code and not one.sampled else ""
    if not on_host and one.phase == one.place:
        compiled = " (torch.compile, CUDA graphs)" if pytorch else " (CUDA graphs)"
        return f"Shorten the host code of {one.text} between launches{compiled}.{see}"
    if on_host and one.part == BACKWARD:
        return (
            f"In {one.text} the main thread waits for the autograd thread, and that for the GPU: "
            "record both (ProfilerActivity.CPU and CUDA)."
        )
    if on_host:
        return f"Shorten the Python code in {one.text} outside operators.{see}"
    change = _OF_SAMPLED if one.sampled else "launches no GPU work: run it less often"
    return f"{one.text} {change}, or in another thread.{see}"


_OF_SAMPLED = "runs on the CPU between GPU work: compute it on the GPU"


OF_PROVIDER = (
    "No kernel for {operator} with these types and this opset is in the execution provider of the "
    "GPU, so ONNX Runtime runs it on the CPU, with a copy to the host before it and one back after "
    "it: export the model with another opset or with operators that the provider has, use the "
    "TensorRT provider, or write a custom operator. The session's log at level VERBOSE lists the "
    "nodes of each provider."
)
_OF_AUTOGRAD = (
    "Between the operators of the backward pass the autograd threads run hooks (gradient buckets "
    "of DDP or FSDP, register_hook), or wait for a CPU: run fewer or shorter hooks, and give each "
    "rank cores of its own (OMP_NUM_THREADS, taskset)."
)
_ASYNCHRONOUS = (
    "{place} chooses the requests of a step while the GPU waits: let the engine do so during the "
    "step before (vLLM --async-scheduling, the overlap scheduler of SGLang and TensorRT-LLM), or "
    "limit the requests at a time (vLLM --max-num-seqs, SGLang --max-running-requests)."
)
_RETRACING = (
    "tf.function traces again for each new shape, type or Python value: pad to few shapes, pass "
    "tensors, and set input_signature or reduce_retracing=True."
)
_NO_FALLBACK = (
    "cuDF has no operation for {place}: rewrite it with those that it has (expressions of columns "
    "in place of a function per row). %%cudf.pandas.profile lists the calls that run on the CPU."
)
_PME_ON_GPU = (
    "GROMACS computes {place} on the CPU: mdrun -nb gpu -pme gpu -bonded gpu -update gpu moves to "
    "the GPU what the simulation allows."
)
_MORE_LAYERS = (
    "llama.cpp computes layers on the CPU ({place}): put all on the GPU (-ngl 99), if they do not "
    "fit with a smaller quantization or context, or only experts on the CPU (--n-cpu-moe)."
)
_RANGES = "Ranges (NVTX, roctx, record_function) around the code between launches show its parts"


def _of_part(one: Activity, *, on_host: bool = False) -> str:
    """Return advice for a part of a training step; empty for other code, or if it is not known."""
    if one.part == PARALLEL:
        buffers = _BROADCASTS.search(one.after) or "flatten_dense_tensors" in one.place
        return NO_BUFFERS if buffers else _OF_PARALLEL.format(place=one.range or one.text)
    if one.part == "zero_grad":
        return causes.OF_ZERO_GRAD
    if one.part != OPTIMIZER:
        return ""
    if "offload" in f"{one.place} {one.called} {one.range}".lower():
        return _LESS_OFFLOAD
    if _SCALER in one.called:
        return _NO_SCALER
    return _ON_GPU if one.steps_on_cpu and not on_host else _of_optimizer(one)


def _of_optimizer(one: Activity) -> str:
    """Return advice for the launches of an optimizer, by whether it calls foreach operators."""
    names = f"{one.place} {one.called} {one.frame}"
    if re.search(r"(?<![A-Za-z])fused", names):
        return causes.FUSED_ALREADY
    is_dtensor = re.search(_DTENSOR, names)
    if not is_dtensor and _JOINED not in one.after:
        return _FOREACH
    some = "Its parameters are DTensors:", "If they are DTensors (FSDP2, tensor parallelism),"
    return _FUSED.format(f"{some[not is_dtensor]} ")


def _of_python(one: Activity, *, pytorch: bool, trains: bool) -> str:
    if LOGS.search(caller := one.called or one.frame) or _RESULTS.search(caller):
        return f"Call {frame_text(caller)} less often, or from another thread or process."
    if not pytorch:
        return f"Make {one.text} faster, or call it less often."
    if one.line.startswith("<module>"):
        return f"Shorten the Python code between operators in {one.line}."
    if one.part or one.phase == one.place:
        return f"Compile {one.text} (torch.compile), or shorten its Python code between operators."
    loader = ", or, if it prepares data, in the workers of the DataLoader" * trains
    return (
        f"Make {one.text} faster (tensor operators instead of Python loops), or call it less often"
        f"{loader}."
    )


def advice_on_wait(one: Activity) -> str:
    """Return the change that fits a wait of the host."""
    if one.wait == DATA and LOGS.search(caller := one.called or one.frame):
        line = f" ({one.line})" if one.line not in ("", frame_text(caller)) else ""
        return (
            f"{frame_text(caller)} waits for a reply{line}: call it less often, or from another "
            "thread."
        )
    text = advice(one.wait or "", one.rival)
    line = "" if one.wait == DISK else one.line  # a configuration, not a line, swaps
    return f"In {line}: {text[0].lower()}{text[1:]}." if line else f"{text}."


def advice_on_data(one: Activity, *, loader: bool) -> str:
    """Return the change that fits data loading without a DataLoader; empty if it is not known."""
    if one.wait and one.wait != DATA:
        return advice_on_wait(one)
    if not one.text:
        return ""
    return (
        f"{one.text} runs on the thread that launches GPU work: call it ahead in a background "
        f"thread{', or load the data with DataLoader(num_workers=4)' * loader}."
    )


#: Advice for data that is copied to the host only because MPI sends it from there.
GPU_AWARE = (
    "Data is copied to the host for MPI and back: pass pointers to device memory to a GPU-aware "
    "MPI (Open MPI with UCX, MPICH_GPU_SUPPORT_ENABLED=1), or use NCCL."
)


def advice_on_collectives(one: Activity) -> str:
    """Return the change that fits collectives that no rank delays."""
    if one.stages_for_mpi:
        return GPU_AWARE
    name = frame_text(one.called or one.place)
    if "_object" in name:
        return (
            f"{name} pickles and sends Python objects through the CPU{one.where}: send tensors "
            "(broadcast, all_gather_into_tensor, all_reduce), or call it less often."
        )
    return (
        f"Start the collectives{one.where} earlier, so that they overlap with compute, or "
        "communicate less often (larger buckets, gradient accumulation)."
    )


# --- synchronisation, launches, files ------------------------------------------------------------


def advice_on_synchronisation(one: Activity, call: str, operator: str, *, pytorch: bool) -> str:
    """Return the change that fits the calls that wait for the device; empty if none is known.

    Args:
        one: what the host does in most of the gaps.
        call: the call with most time, or nothing.
        operator: the operator that makes it, or nothing.
        pytorch: whether the program is known to use PyTorch.
    """
    if one.steps_on_cpu:
        return _ON_GPU
    if not (call or operator):
        return ""
    if not pytorch:
        form = " (or its asynchronous form)" * ("Memcpy" in call)
        what = f"{call or operator}{one.where} less often{form}"
        return f"Call {what}, so that the host can run ahead."
    if one.copies_buffers:
        return NO_BUFFERS
    if _SCALER in one.called:
        return _NO_SCALER
    if _READS_NUMBER.search(operator):
        return (
            f"{operator} reads a number from the GPU{one.where}: keep it as a tensor, and call "
            ".item() only in the steps that print it."
        )
    if _SIZE_OF_DATA.search(operator):
        return (
            f"{operator} waits for a size that depends on the data{one.where}: use torch.where, or "
            "a mask or tensor of fixed size."
        )
    if _COPIES.search(f"{call} {operator}"):
        inside = f"{operator} ({call})" if operator else call
        return (
            f"{inside} waits for a copy{one.where}: copy with non_blocking=True from or to pinned "
            "memory, and read results one step later."
        )
    if _EVENT.search(call):
        return f"Wait for the event{one.where} later, when its result is needed ({call})."
    return "" if operator else _on_call(one, call)


def _on_call(one: Activity, call: str) -> str:
    """Return advice on a call that waits for the device, and that no operator makes."""
    if "DtoH" in one.after:
        return (
            f"{call} waits for results that are copied to the host{one.where} (.item(), .cpu(), "
            "print): keep them as tensors, and read them only in the steps that print them."
        )
    in_deepspeed = "deepspeed" in f"{one.place} {one.called}"
    timer = "wall_clock_breakdown of DeepSpeed" if in_deepspeed else "a timer that calls it"
    return f"Remove {call} from the loop{one.where}: torch.cuda.synchronize, or {timer}."


def advice_on_launches(one: Activity, place: str, next_work: str) -> str:
    """Return the change that fits the launches that come late; empty if none fits better.

    Args:
        one: what the host does in most of the gaps.
        place: the range or operator with most of the wait time for launches, or nothing.
        next_work: the device work after most gaps, or nothing.
    """
    if one.pauses:
        return _UNPAUSED[one.paused_by]
    of_parallel = re.search(_PARTS[PARALLEL], place) and _of_part(one) == NO_BUFFERS
    if of_parallel or one.copies_buffers:
        return NO_BUFFERS
    if re.search(_PARTS[OPTIMIZER], place):
        return _of_optimizer(one)
    if next_work[:6] in ("Memcpy", "Memset") and one.after[:6] in ("Memcpy", "Memset"):
        what = "copies" if next_work.startswith("Memcpy") else "memsets"
        return (
            f"Most of these launches are {what} ({next_work}){one.where}: pack the data into one "
            f"buffer and use one call, or fill it on the device."
        )
    return ""


#: What frees device memory, and advice about ``{place}``.
_KEEP_OBJECTS = (
    "{place} runs when objects die, in the middle of a step: keep them from step to step, close "
    "them outside of the loop, and break reference cycles, which only the garbage collector ends."
)
_FREES = {
    "empty_cache": "Remove torch.cuda.empty_cache from {place}: it waits for the GPU and frees "
    "memory that the next step allocates again.",
    r"\b__del__\b|finali[sz]er?\b": _KEEP_OBJECTS,
}


def freeing(gaps: pl.DataFrame) -> tuple[str, str]:
    """Return where the program frees device memory on its own, and advice; empty if it does not.

    In a quarter of the time of memory management, it empties PyTorch's cache, or objects die.
    """
    frames = pl.concat_str("own_code", "called", "python", separator=" ", ignore_nulls=True)
    for pattern, text in _FREES.items():
        rows = gaps.filter(frames.str.contains(pattern))
        name = frame_text(main_place(rows)[0])
        if name and 4 * rows["cause_ns"].sum() >= gaps["cause_ns"].sum():
            return f" in {name}", text.format(place=name)
    return "", ""


def advice_on_stream_wait(gaps: pl.DataFrame) -> str:
    """Return advice for gaps in which the stream waits; empty if what it waits for is unknown."""
    call = main_place(gaps, "waits_for")[0]
    text = f"{call} makes the stream wait: wait only for the event of the work that is needed, or "
    return f"{text}launch that work earlier." if call else ""


def advice_on_files(place: str, *, pytorch: bool) -> str:
    """Return advice for a function that saves or loads; empty if its name does not tell."""
    name = frame_text(place)
    if re.search("async_save|[/(]staging|_state_dict_utils", name):
        return _STAGE_FASTER.format(name)
    if not name or bool(_SAVES.search(name)) == bool(_LOADS.search(name)):
        return ""
    if _SAVES.search(name):
        return (
            f"Call {name} less often, or save asynchronously"
            f" ({'torch.distributed.checkpoint.async_save' if pytorch else 'in another thread'})."
        )
    return f"Call {name} before the loop, or ahead of its use in a background thread."


_STAGE_FASTER = (
    "{} copies the state to host memory before it returns: keep that memory, pinned, from one "
    "checkpoint to the next (cache_staged_state_dict, a staging thread), copy fewer bytes per rank "
    "(sharded state), or save less often."
)
#: Functions around code that torch.compile skips, or has compiled before.
_AROUND = r".*torch[/\\](?:_compile|_dynamo[/\\](?:eval_frame|external_utils|decorators))\.py"
#: Host code by its name: compilation, evaluation, collection of garbage.
_COMPILES = re.compile(rf"(?i)^(?!{_AROUND}).*(?:_?dynamo|inductor|compil|autotun)")
_EVALUATES = re.compile(r"(?i)(?:^|[^a-z])(?:eval(?!_frame)|valid|test)")
_COLLECTS = re.compile(r"(?i)gc\.collect|garbage|^python gc$|^<built-in function collect>$")
#: The rest of a function after a graph break of torch.compile.
_RESUMES = re.compile(r"torch_dynamo_resume_in_(\w+?)_at_[\d*]+")
#: What finds compiled code for a call, in each step.
_LOOKS_UP = "TorchDynamo Cache Lookup"
_FEWER_GUARDS = (
    f"{_LOOKS_UP} checks the guards before each compiled region, in each call: use fewer and "
    "larger regions (TORCH_LOGS=graph_breaks prints why they end, torch.compile(fullgraph=True) "
    "makes it an error), and once no guard fails any more "
    "torch.compiler.set_stance(skip_guard_eval_unsafe=True)."
)


#: Work of GROMACS and of llama.cpp on the CPU.
_OF_PME, _OF_LAYERS = "^PME (?:mesh|spread|gather|3D|solve|conv)", "^ggml_"
#: Advice by the name of a function or range, about ``{place}``.
_OF_NAME = {
    rf"(?:{INFERENCE_ENGINES})[/\\].*(?:schedul|batch_to_run)|batch_to_run$": _ASYNCHRONOUS,
    _LOOKS_UP: _FEWER_GUARDS,
    r"importlib\._bootstrap": causes.IMPORT_FIRST,
    "PyFunc": causes.NO_PY_FUNCTION,
    causes.TRACES: _RETRACING,
    FALLBACK: _NO_FALLBACK,
    OFFLOADED: _LESS_OFFLOAD,
    causes.SENDS_OBJECTS: causes.NO_OBJECTS,
    _OF_PME: _PME_ON_GPU,
    _OF_LAYERS: _MORE_LAYERS,
    re.escape(ON_CPU): OF_PROVIDER,
    r"^aten::_?pin_memory$": causes.PINS,
    r"\b__del__$": _KEEP_OBJECTS,
    r"\b(?:debugging|callback)\.py\b.{0,12} \w*callback": (
        "{place} is a callback of a jitted function (jax.debug.print, pure_callback, io_callback), "
        "and the device waits for it: remove it from the jitted step, call it in every Nth step "
        "only (jax.lax.cond), or return the values and print them outside."
    ),
}


def _of_name(name: str, one: Activity, *, pytorch: bool) -> str:
    """Return advice for known functions and ranges, compilation and collection of garbage."""
    if text := next((text for test, text in _OF_NAME.items() if re.search(test, name)), ""):
        place = one.text if name == one.place else frame_text(name)
        return text.format(place=place, operator=name.split()[0])
    if _RESUMES.search(name):
        function = frame_text(_RESUMES.sub(r"\1", name))
        return (
            f"A graph break ends the compiled code in {function}: "
            "TORCH_LOGS=graph_breaks prints the reason of each, torch.compile(fullgraph=True) "
            "makes it an error."
        )
    tests = (_COMPILES, _COLLECTS, *[_WRITES] * (name == one.range))
    known = any(test.search(name) for test in tests) or "empty_cache" in name
    return advice_on_slice(name, pytorch=pytorch) if known else ""


def advice_on_slice(name: str, *, pytorch: bool) -> str:
    """Return the change that fits host code that runs in some steps only, or between steps."""
    text = frame_text(name)
    if any(re.search(pattern, name) for pattern in causes.DATALOADER):
        program = Api(hip=False, pytorch=pytorch, trains=True)
        return causes.advice(causes.DATALOADING, program, code="")
    if _COMPILES.search(name):
        dynamic = ", torch.compile(dynamic=True)" * pytorch
        log = "TORCH_LOGS=recompiles" if pytorch else "JAX_EXPLAIN_CACHE_MISSES=1"
        return (
            f"{text} compiles in these steps: keep shapes and flags equal in all steps (padding"
            f"{dynamic}); {log} prints the reason."
        )
    if name == "Python GC":
        return _UNPAUSED[COLLECTOR]
    if _COLLECTS.search(name):
        return (
            f"Do not call {text} in the loop: call gc.freeze() before it, and collect garbage on "
            "all ranks in the same step."
        )
    if "empty_cache" in name:
        return f"Do not call {text} in the loop."
    if _EVALUATES.search(name):
        return f"Call {text} less often, on fewer batches, or in another process."
    if LOGS.search(name):
        return f"Call {text} less often, or from another thread."
    return (
        advice_on_files(name, pytorch=pytorch)
        or f"Run {text} less often, make it shorter, or move it out of the loop."
    )
