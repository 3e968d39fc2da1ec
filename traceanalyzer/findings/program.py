"""Framework and GPUs of the program, for advice that fits them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import polars as pl

from traceanalyzer.analyzers.base import result_of
from traceanalyzer.analyzers.common.gpu_api import AMD, XLA
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.info.compute import Info
from traceanalyzer.analyzers.memory.attribution import UNKNOWN
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.result import Result
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns
from traceanalyzer.vocabulary import RANKS_NUMBERED

#: GPUs older than Ampere: neither bfloat16 nor TF32 on tensor cores.
_BEFORE_AMPERE = re.compile(
    r"\b(?:[KMPV]\d{1,3}[a-z]?|T4|TITAN|GTX|RTX (?:20|[3-8]000\b(?! Ada))|Quadro)", re.IGNORECASE
)
#: Parts of advice about bfloat16, and those for GPUs without it.
_IN_FLOAT16 = (
    ("use bfloat16, which needs no scaler, or ", "use "),
    ("bfloat16 or float16|float16 or bfloat16|bfloat16", "float16"),
    (r"\bbf16\b", "fp16"),
)
#: Ranges and functions of JAX.
_OF_JAX = r"^PjitFunction\(|\b(?:pjit|pxla)\.py\(|PjRt"
#: Largest categories of memory that are named.
_CATEGORIES = 4
#: Most models of GPUs that are named.
_MODELS = 2


@dataclass(frozen=True)
class Program:
    """Framework and GPUs of a program.

    Attributes:
        pytorch: whether PyTorch was recorded, or the framework is unknown.
        trains: whether an optimizer or a backward pass was recorded.
        hip: whether it is known to call HIP.
        framework: the framework of a program without PyTorch, as ``Api.framework``.
        gpus: names of the GPUs.
        one_host: whether all ranks of the job were recorded on one host.
    """

    pytorch: bool = True
    gpus: str = ""
    one_host: bool = False
    trains: bool = True
    hip: bool = False
    framework: str = ""

    @property
    def xla(self) -> bool:
        """Whether JAX's or TensorFlow's profiler recorded it."""
        return self.framework == XLA

    @property
    def amd(self) -> bool:
        """Whether the GPUs are of AMD."""
        return self.hip or bool(AMD.search(self.gpus))

    @property
    def faster_precision(self) -> str:
        """Phrase for a precision that uses the tensor cores of these GPUs."""
        if not self.pytorch:
            half = "float16" if _BEFORE_AMPERE.search(self.gpus) else "bfloat16 or TF32"
            return f"{half} on tensor cores"
        if _BEFORE_AMPERE.search(self.gpus):
            return "mixed precision with float16 (torch.autocast with a gradient scaler)"
        if self.amd:
            return "mixed precision (torch.autocast, bfloat16)"
        half = "bfloat16" if self.gpus else "bfloat16 on Ampere and later, else float16"
        return (
            f"mixed precision (torch.autocast, {half}) or, on Ampere and later, TF32 "
            '(torch.set_float32_matmul_precision("high"))'
        )

    def fitting(self, advice: str) -> str:
        """Return advice without bfloat16 if the GPUs are known not to have it."""
        for pattern, text in _IN_FLOAT16 if _BEFORE_AMPERE.search(self.gpus) else ():
            advice = re.sub(pattern, text, advice)
        return advice

    @property
    def library(self) -> str:
        """Name of the library for GPU collectives."""
        return "RCCL" if self.amd else "NCCL"

    @property
    def clocks(self) -> str:
        """Command that prints clocks, power and temperature of these GPUs."""
        if self.amd:
            return "amd-smi metric --clock --power --temperature"
        return "nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE"

    @property
    def slow_link(self) -> str:
        """Advice for collectives that use little of their link."""
        link = "a missing NVLink bridge"
        name = "NVLink"
        if self.amd:
            link, name = "a missing xGMI (Infinity Fabric) link", "xGMI"
        return (
            f"Check which transport {self.library} uses (NCCL_DEBUG=INFO): P2P disabled, {link}, "
            f"shared memory or sockets instead of {name} or InfiniBand."
        )

    def slow_network(self, *, on_host: bool) -> str:
        """Return advice for collectives that are slow on all ranks."""
        if on_host and self.one_host:
            return (
                "Check the CPU usage of the host and its other processes: all ranks run on one "
                "host, so collectives use its CPUs and memory, not a network."
            )
        if on_host:
            return (
                "Compare nodes and time of day, and check which interface is used "
                "(GLOO_SOCKET_IFNAME): the network is slow or shared, or the CPUs are busy."
            )
        name = "Infinity Fabric" if self.amd else "NVLink"
        if self.one_host:
            return (
                f"Check the transport in the {self.library} log (NCCL_DEBUG=INFO), and other jobs "
                f"on the host: {name} or PCIe is slow or shared."
            )
        return (
            f"Compare nodes and time of day, check the transport in the {self.library} log "
            f"(NCCL_DEBUG=INFO), and other jobs on the fabric: the network or {name} is slow or "
            "shared."
        )


def program(results: Mapping[str, Result]) -> Program:
    """Return framework and GPUs from the results."""
    idle, info = result_of(results, GpuIdle), result_of(results, Info)
    steps = result_of(results, Steps)
    known = Program()
    if idle is not None:
        of = idle.program
        known = Program(of.pytorch, trains=of.trains, hip=of.hip, framework=of.framework)
    elif steps is not None and steps.code is not None:
        slices = (one for one in (steps.code, steps.only_slow, steps.between) if one is not None)
        jax = any(one["name"].cast(pl.String).str.contains(_OF_JAX).any() for one in slices)
        known = Program(pytorch=not jax, framework=XLA * jax)
    if info is None:
        return known
    names = info.files["devices"].drop_nulls().str.replace_all(r"\b\d+x ", "")
    gpus = ", ".join(names.unique().sort())
    return replace(known, gpus=gpus, one_host=_is_one_host(info.files))


def _is_one_host(files: pl.DataFrame) -> bool:
    """Whether all ranks of the job are in the files, and all files name the same host."""
    ranks, world = files["rank"].drop_nulls().n_unique(), files["world_size"].max()
    complete = isinstance(world, int) and ranks == world
    return complete and not files["host"].null_count() and files["host"].n_unique() == 1


#: The mean step is given if it differs from the median by more than this share.
_APART = 0.03


def described(results: Mapping[str, Result]) -> str:
    """Return what was recorded: ``8 ranks on 2 hosts, NVIDIA H100, 6 steps``, median step.

    Args:
        results: results of the analyzers.
    """
    parts = []
    info, steps = result_of(results, Info), result_of(results, Steps)
    if info is not None:
        files = info.recordings
        ranks, hosts = (files[name].drop_nulls().n_unique() for name in ("rank", "host"))
        count = format_count(ranks, "rank") if ranks else format_count(files.height, "file")
        if (info.issues["code"] == RANKS_NUMBERED).any():
            count = format_count(ranks, "process", "es")
        parts.append(f"{count} on {format_count(hosts, 'host')}" if hosts > 1 else count)
        models = {re.sub(r"^\d+x ", "", gpus) for gpus in files["devices"].drop_nulls()}
        parts += sorted(models - {"GPU"})[:_MODELS]
    number = steps.ranks.select(pl.col("steps").max()).item() if steps is not None else 0
    if steps is not None and number:
        median = steps.sums["median_ns"]
        length = format_ns(round(median)) if median else ""
        warm_up = steps.ranks.select(pl.col("warm_up").max()).item()
        after = f" after {warm_up:,} of warm-up" if warm_up else ""
        if number == 1 and length:
            parts.append(f"1 step of {length}{_mean(steps)}{after}")
        else:
            parts.append(f"{format_count(number, 'step')}{after}")
            parts += [f"median step {length}{_mean(steps)}"] if length else []
    return ", ".join(parts)


def _mean(steps: Steps) -> str:
    """Return the mean step, in which costs and shares are, if it differs from the median.

    That of an inference engine includes the time since the step before.
    """
    rows, median = steps.counted, steps.sums["median_ns"]
    of_engine = rows["phase"].null_count() < rows.height
    before = pl.col("before_ns").fill_null(0) if of_engine else 0
    mean = rows.select((pl.col("duration_ns") + before).mean()).item()
    if not median or abs(mean - median) <= _APART * median:
        return ""
    return f" (mean {format_ns(round(mean))}{' with the time before it' * of_engine})"


def peak_memory(results: Mapping[str, Result]) -> str:
    """Return the peak of the fullest device, and what was live then; empty if not recorded.

    ``peak memory 70.51 MiB allocated, 82 MiB reserved (optimizer state 34.0 %, ...)``.
    """
    memory = result_of(results, Memory)
    if memory is None or memory.devices["peak_bytes"].drop_nulls().is_empty():
        return ""
    keys = ["rank", "path", "device"]
    fullest = memory.devices.sort("peak_bytes", descending=True, nulls_last=True).head(1)
    top = fullest.row(0, named=True)
    live = memory.alive.join(fullest.select(keys), on=keys, how="semi", nulls_equal=True)
    sums = live.group_by("category").agg(pl.col("live_bytes").sum(), pl.col("live_frac").sum())
    largest = sums.sort("live_bytes", "category", descending=[True, False]).head(_CATEGORIES)
    shares = [
        f"{name} {format_frac(frac)}"
        for name, frac in largest.select("category", "live_frac").drop_nulls().iter_rows()
        if largest.height > 1 or name != UNKNOWN
    ]
    reserved = top["reserved_peak_bytes"]
    recorded = memory.devices.join(fullest.select(keys[:2]), on=keys[:2], nulls_equal=True)
    # without a history, only the memory at the snapshot is known
    known = (recorded["events"] > 1).any()
    what, column = ("peak memory", "peak") if known else ("memory at the snapshot", "end")
    text = f"{what} {format_bytes(top[f'{column}_bytes'])} allocated"
    text += f", {format_bytes(reserved)} reserved" if reserved else ""
    place = f"device {top['device']}"
    place += "" if top["rank"] is None else f" of rank {top['rank']}"
    several = [place] if memory.devices.height > 1 else []
    about = ", ".join([*several, *shares])
    return f"{text} ({about})" if about else text
