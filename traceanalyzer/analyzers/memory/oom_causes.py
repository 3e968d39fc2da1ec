"""Causes of failed memory requests, and recommended fixes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.memory import regions
from traceanalyzer.analyzers.memory.attribution import UNKNOWN as UNKNOWN_USE, frame_text
from traceanalyzer.analyzers.memory.rank_memory import RankMemory
from traceanalyzer.files import packaged
from traceanalyzer.units import format_bytes

#: Advice: about failed requests by cause, about the peak by category of memory, and other.
ADVICE: dict[str, dict[str, str]] = packaged("analyzers/memory/advice.toml")

FRAGMENTATION = "fragmentation"
LIMIT = "limit"
ELSEWHERE = "another pool or stream"
OUTSIDE = "outside PyTorch"
DEMAND = "real demand"
GROWTH = "steady growth"
UNKNOWN = "not known"
CAUSE = pl.Enum((FRAGMENTATION, LIMIT, ELSEWHERE, OUTSIDE, DEMAND, GROWTH, UNKNOWN))

#: Segment sizes: 2 MiB for small requests, 20 MiB up to 10 MiB, then multiples of 2 MiB.
_LARGE_SEGMENT = 20 << 20
_LARGE_REQUEST = 10 << 20
#: Minimum share of the device's capacity for memory outside PyTorch to be the cause.
_OUTSIDE_FRAC = 0.1
#: A smaller share of unused memory is no fragmentation: the next request would fail.
_FRAGMENTED = 0.01
#: Unused memory with a smaller part of the request is not why it failed.
_SUFFICES = 0.5
#: A request above this multiple of the capacity is a bug in the requested shape.
_ABSURD = 16

#: Minimum size of segments that ``max_split_size_mb`` would keep whole.
SPLIT_BYTES = 200 << 20


@dataclass(frozen=True)
class Situation:
    """Memory of the device when a request failed, in bytes; 0 if not known.

    Attributes:
        request: requested size.
        device_free: free memory of the device.
        reserved: reserved by the allocator.
        allocated: allocated part of reserved memory.
        unused: free part of reserved memory.
        usable: unused memory in segments that can serve the request: same size class and stream,
            no private pool.
        largest_free: largest usable block.
        pending: freed memory that another stream may still use.
        outside: neither reserved nor free; 0 if the capacity is not known.
        expandable: segments are expandable.
        limited: large blocks are not split.
        divided: some large segments have both live and free blocks.
    """

    request: int = 0
    device_free: int = 0
    reserved: int = 0
    allocated: int = 0
    unused: int = 0
    usable: int = 0
    largest_free: int = 0
    pending: int = 0
    outside: int = 0
    expandable: bool = False
    limited: bool = False
    divided: bool = False

    @property
    def missing(self) -> int:
        """Bytes by which the request exceeds all free memory."""
        return max(self.request - self.unused - self.device_free, 0)

    @property
    def capacity(self) -> int:
        """Memory of the device, without memory outside PyTorch if that is not known."""
        return self.reserved + self.device_free + self.outside


def situation(sizes: dict[str, int | None], rank: RankMemory, *, divided: bool) -> Situation:
    """Return the situation of a row of errors."""
    split = rank.settings.get("max_split_size")
    return Situation(
        **{name.removesuffix("_bytes"): size or 0 for name, size in sizes.items()},
        expandable=rank.expandable,
        limited=isinstance(split, int) and split > 0,
        divided=divided,
    )


def cause(at: Situation) -> str:
    """Return why the request failed: the first matching cause.

    ``limit``: the device had room for a new segment; ``fragmentation``: usable memory and free
    memory of the device would suffice if contiguous; ``another pool or stream``: all unused memory
    would suffice; ``outside PyTorch``: the missing memory is used outside; else ``real demand``.
    With less unused memory than 1 % of reserved memory, or than half of the request, the request is
    real demand even if it would just fit.
    """
    if at.device_free >= segment_size(at.request, expandable=at.expandable):
        return LIMIT
    if at.unused < max(_FRAGMENTED * at.reserved, _SUFFICES * at.request):
        return OUTSIDE if _is_outside(at) else DEMAND
    if at.largest_free < at.request <= at.usable + at.device_free and (
        at.usable >= _SUFFICES * at.request
    ):
        return FRAGMENTATION
    if not at.missing:
        return ELSEWHERE
    return OUTSIDE if _is_outside(at) else DEMAND


def _is_outside(at: Situation) -> bool:
    return at.outside > 0 and at.outside >= max(_OUTSIDE_FRAC * at.capacity, at.missing)


_LIMITED = "a memory limit, or memory freed after the error; the device had room."


def sentence(row: Mapping[str, Any]) -> str:
    """Return the cause of a row of errors as a sentence."""
    match row["cause"]:
        case "fragmentation":
            return "Cause: fragmentation: the free memory would be enough if it were contiguous."
        case "limit":
            return f"Cause: {_LIMITED}"
        case "another pool or stream":
            return "Cause: the free memory belongs to another pool or stream."
        case "outside PyTorch":
            return f"Cause: {format_bytes(row['outside_bytes'])} used outside PyTorch."
        case "steady growth":
            least = segment_size(row["request_bytes"] or 0, expandable=True)
            had_room = (row["device_free_bytes"] or 0) >= least
            limit = f" It met {_LIMITED}" * had_room
            return f"Cause: steady growth: without it, the request would fit.{limit}"
        case "real demand":
            missing = row["missing_bytes"]
            more = (
                f"{format_bytes(missing)} more than available"
                if missing
                else "hardly any memory is unused"
            )
            return f"Cause: real demand; {more}."
    return "Cause unknown: segments or free memory were not recorded."


def segment_size(request: int, *, expandable: bool) -> int:
    """Return the size of the segment that the allocator creates for a request."""
    size = -(-request // regions.ROUND) * regions.ROUND
    if size <= regions.SMALL_REQUEST:
        return regions.SMALL_SEGMENT
    if expandable:
        return -(-size // _LARGE_SEGMENT) * _LARGE_SEGMENT
    return (
        _LARGE_SEGMENT
        if size < _LARGE_REQUEST
        else -(-size // regions.SMALL_SEGMENT) * regions.SMALL_SEGMENT
    )


def advice(at: Situation, reason: str) -> str:
    """Return the recommended fix for a cause."""
    if at.request > _ABSURD * at.capacity:
        return "check the requested shape: no device has that much memory"
    if at.pending and 2 * at.pending >= at.missing:
        return (
            f"{_advice(at, reason)}; {format_bytes(at.pending)} of live memory was freed but waits "
            "for another stream (record_stream, FSDP without limit_all_gathers)"
        )
    return _advice(at, reason)


def _advice(at: Situation, reason: str) -> str:
    if reason == FRAGMENTATION and at.expandable:
        return (
            "free memory earlier with garbage_collection_threshold:0.8, or allocate the largest "
            "tensors first (segments are expandable already)"
        )
    if reason == FRAGMENTATION:
        more = " or max_split_size_mb:200" if at.divided and not at.limited else ""
        return (
            f"set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True{more} (expandable segments grow "
            "in place, so that free blocks can be merged)"
        )
    if reason == DEMAND and at.capacity and not _is_usual(at.capacity):
        had = format_bytes(at.capacity)
        return (
            f"check first what else uses the GPU (nvidia-smi): PyTorch had {had} of it, less than "
            f"GPUs have (--capacity SIZE); if nothing does, {ADVICE['failed'][reason]}"
        )
    return ADVICE["failed"][reason]


#: Memory of GPUs, and of their parts (MIG), in GiB; the driver and contexts take a part of it.
_SIZES = (4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192, 256, 288)
_LEAST_OF_SIZE = 0.87


def _is_usual(capacity: int) -> bool:
    """Whether there are GPUs with that much memory."""
    return any(_LEAST_OF_SIZE * size <= capacity / (1 << 30) <= size for size in _SIZES)


#: Growth of a smaller share of allocated memory is not the cause of an error.
_MUCH = 0.1


def is_growth(grown: int, row: Mapping[str, Any]) -> bool:
    """Whether growth from step to step is the cause of a row of errors.

    It is if it exceeds the request, a share of the allocated memory and, if the error is due to
    fragmentation, all reserved memory that was free.
    """
    least = max(row["request_bytes"] or 0, row["missing_bytes"] or 0, 1)
    if row["cause"] == FRAGMENTATION:
        least = max(least, row["unused_bytes"] or 0)
    return bool(grown >= max(least, _MUCH * row["allocated_bytes"]))


#: Frames of memory of torch.load, and the least share of live memory.
_LOADED, _LOADED_FRAC = r"\bserialization\.py", 0.2
#: Frames of a request in a loss of classes, and its least size as a share of live memory.
_IN_LOSS, _LARGE_FRAC = r"(?i)cross_?entropy|nll_loss|log_?softmax", 0.03


def demand_advice(request: int, frames: str, live: pl.DataFrame) -> str:
    """Return what to do first about a request, by what it and live memory were allocated for.

    Args:
        request: its size in bytes.
        frames: the frames of the request.
        live: function, file, line, category, n, live_bytes, live_frac, stack: memory live at the
            error, largest first.
    """
    first = _advice_on_serving(frames, live)
    loaded = live.filter(pl.col("stack").str.contains(_LOADED))
    if loaded["live_frac"].sum() >= _LOADED_FRAC:
        where = frame_text(*loaded.select("function", "file", "line").row(0))
        size = format_bytes(int(loaded["live_bytes"].sum()))
        return (
            f"{first}free what torch.load loaded in {where}, {size} of live memory "
            '(map_location="cpu", '
            "and delete the dictionary after load_state_dict); then "
        )
    of_loss = int(live.filter(pl.col("stack").str.contains(_IN_LOSS))["live_bytes"].sum())
    of_loss += request * bool(re.search(_IN_LOSS, frames))
    if of_loss >= _LARGE_FRAC * int(live["live_bytes"].sum()):
        return (
            f"{first}compute the loss for a part of the tokens at a time, or with a fused kernel "
            "(Liger's fused linear cross-entropy, cut-cross-entropy) that never stores all logits; "
            "then "
        )
    for row in may_be_kept(live, request).iter_rows(named=True) if not first else ():
        line = frame_text(row["function"], row["file"], row["line"])
        return (
            f"if {line} keeps what earlier requests or steps allocated (memory --growth "
            "--step-every TIME shows it), free it or limit its number; otherwise "
        )
    return first


#: Frames of the preallocated KV cache of inference engines, and of rollouts in these engines.
_KV_CACHE = r"(?i)kv_?cache|kv_?pool|[/\\]mem_cache[/\\]|memory_pool\.py|[/\\]cache_engine\.py"
_ROLLOUT = (
    r"(?i)(?:^|[/\\])(?:vllm|sglang|lmdeploy|tensorrt_llm)[/\\]|gpu_(?:model_runner|worker)\.py"
    r"|rollout"
)
#: Frames in the package of an engine, not in a folder of the same name.
_ENGINES = {
    "vllm": r"[/\\]vllm[/\\](?:v1|attention|core|engine|executor|model_executor|worker)[/\\]",
    "sglang": r"[/\\]sglang[/\\]srt[/\\]",
}


def _advice_on_serving(frames: str, live: pl.DataFrame) -> str:
    """Return what to do first if a KV cache, or memory of a rollout, fills the GPU; else nothing.

    Args:
        frames: the frames of the request.
        live: as of :func:`demand_advice`.
    """
    stack = pl.col("stack")
    for pattern, key in ((_KV_CACHE, "kv cache"), (_ROLLOUT, "rollout")):
        rows = live.filter(stack.str.contains(pattern), pl.col("category") == UNKNOWN_USE)
        trains = not re.search(_ROLLOUT, frames)
        if rows["live_frac"].sum() >= MUCH_LIVE and (trains or key == "kv cache"):
            where = frame_text(*rows.select("function", "file", "line").row(0))
            size = format_bytes(int(rows["live_bytes"].sum()))
            of = ";".join([frames, *rows["stack"]])
            engine = next((name for name, inside in _ENGINES.items() if re.search(inside, of)), "")
            smaller, release = (
                ADVICE[f"engine {what}"].get(engine, "") for what in ("cache", "release")
            )
            after = ADVICE["other"]["between phases"].format(engine=release) if trains else ""
            text = ADVICE["other"][key].format(where=where, size=size, engine=smaller)
            return f"{text}{after}; then "
    return ""


#: Least share of live memory that a line keeps, and blocks of unknown use that it may keep.
MUCH_LIVE, _MANY_BLOCKS = 0.3, 8


def may_be_kept(live: pl.DataFrame, request: int) -> pl.DataFrame:
    """Return the row of the line with most live memory, if it is many blocks of unknown use.

    Without them, the request would fit.
    """
    return live.head(1).filter(
        pl.col("category") == UNKNOWN_USE, pl.col("live_frac") >= MUCH_LIVE,
        pl.col("n") >= _MANY_BLOCKS, pl.col("live_bytes") >= request,
    )  # fmt: skip


#: Functions that need no gradients, in a stack of frames.
EVALUATES = r"(?i)(?:^|;)((?:\w+_)?(?:eval|valid|infer|predict)\w* \([^;]*\))"
#: Frames of libraries that call the line that allocates.
_OF_LIBRARY = r"(?:site|dist)-packages|[/\\]torch[/\\]|^(?:aten|at|c10|torch)::"


@dataclass(frozen=True)
class Kept:
    """Blocks of one stack that were allocated one after another, and of which none was freed.

    Attributes:
        n: number of blocks.
        total: their size in bytes.
        frames: the stack, outermost frame first, joined by ``;``.
    """

    n: int
    total: int
    frames: str

    @property
    def advice(self) -> str:
        """Return what to do about them, with the two innermost lines outside of libraries."""
        lines = [one for one in self.frames.split(";") if not re.search(_OF_LIBRARY, one)]
        where = (
            " in ".join(re.sub(r"[^( ]*[/\\]", "", one) for one in lines[-2:][::-1]) or "one line"
        )
        is_evaluation = re.search(EVALUATES, self.frames)
        of_evaluation = "Evaluate under torch.no_grad(). " if is_evaluation else ""
        return (
            f"free what {where} allocates: {self.n} blocks, {format_bytes(self.total)}, one after "
            f"another, and none of them was freed. {of_evaluation}If a list or cache keeps "
            "results, keep them on the CPU (.cpu()) or only their sums (.item())"
        )


def growth_advice(grown: int) -> str:
    """Return the recommended fix for memory that grew from step to step."""
    return (
        f"check what keeps the {format_bytes(grown)} of growth alive (traceanalyzer memory "
        "--growth): a list of losses, a retained graph, a cache"
    )


#: Reserved memory above this multiple of the allocated peak is mostly fragmentation or unused.
_MUCH_RESERVED = 1.5


def advice_on_peak(category: str, allocated: int, reserved: int | None, line: str) -> str:
    """Return what reduces the peak, by the largest category of live memory.

    Args:
        category: the category with most live memory.
        allocated: allocated memory at its peak, in bytes.
        reserved: reserved memory at its peak, in bytes, if known.
        line: the line of code that allocated half of it or more, or nothing.
    """
    if reserved and reserved > _MUCH_RESERVED * allocated:
        return (
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: much reserved memory is not "
            "allocated"
        )
    unknown = ADVICE["other"]["unknown category"]
    of_line = f"allocate less in {line}, which keeps most of it" if line else unknown
    return ADVICE["peak"].get(category, of_line)
