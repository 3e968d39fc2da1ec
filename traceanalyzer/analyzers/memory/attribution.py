"""The code that made an allocation, and what it is for, as far as its stack and life tell.

The stacks of a snapshot name the code. A ``[memory]`` instant of ``torch.profiler`` has no stack,
but a thread and a time: the Python frame or the operator that was running then tells what the stack
of a snapshot would.

PyTorch does not record what an allocation is for, but code that every training runs through tells:
the optimizer makes its state, ``AccumulateGrad`` gradients, modules activations. The innermost such
code in a stack counts. Rules are asked one after the other; the first that holds decides.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import columns, libraries, names, whereabouts
from traceanalyzer.analyzers.memory.ledger import Ledger
from traceanalyzer.frames import intervals, stack_weights
from traceanalyzer.trace import Trace

#: A test of a frame by its function and file.
Test = Callable[[str | None, str | None], bool]

#: What stands in the place of a line that is not known.
NO_STACK = "(no stack recorded)"
_PYTHON = re.compile(r"\.(?:py|pyx|pyi|ipynb)$|^<(?:stdin|string|ipython-input.*|ipykernel.*)>$")
#: What a backward pass calls of each function.
_NODE = re.compile(r"^torch::autograd::.*::apply\(")
#: C++ frames that every allocation has: how the stack was taken, the allocator, the dispatcher.
_PLUMBING = re.compile(
    r"^(?:torch::(?:unwind|CapturedTraceback|cuda)::|c10::|at::(?:detail|_ops|\(anonymous)|"
    r"at::native::(?:new_)?empty|gather_with_cpp|std::)"
)
#: Frames of the capture of stacks and of the interpreter, which PyTorch's viewer leaves out too.
_CAPTURE = re.compile(
    r"unwind::unwind|^torch::unwind|CapturedTraceback::gather|gather_with_cpp|^_start$|"
    r"^__libc_start_main|^_?Py(?:Eval|Object|Function)_"
)
_CAPTURE_FILES = re.compile(
    r"core/boxing|/Register|/Redispatch|pythonrun\.c$|Modules/main\.c$|Objects/(?:call|methodobject)\.c$|"
    r"ceval\.[ch]$|cpython/abstract\.h$"
)
#: Frames shown of a stack from its leaf and from its root, and letters of each.
_INNER = 200
_OUTER = 20
_LONGEST = 1000
_ANONYMOUS = "(anonymous namespace)::"
_SCHEMA = {
    "function": pl.String,
    "file": pl.String,
    "line": pl.Int32,
    "own": pl.Boolean,
}
#: The columns that name a line of code.
LINE = tuple(_SCHEMA)
_SEPARATOR = re.compile(r"[/\\]")

UNKNOWN = "unknown"
CATEGORIES = (
    "parameters",
    "gradients",
    "activations",
    "optimizer state",
    "inputs",
    "communication buffers",
    "temporary",
    UNKNOWN,
)
CONFIDENCES = ("sure", "likely", "guess", "none")
CATEGORY = pl.Enum(CATEGORIES)
CONFIDENCE = pl.Enum(CONFIDENCES)

_ANY = ""
_PARALLEL = r"torch[/\\]nn[/\\]parallel[/\\]"
_MODULES = r"torch[/\\]nn[/\\](?:modules[/\\]\w+|init|parameter)\.py$"
#: What a frame shows, by regular expressions of its function and of its file; one pair must match.
_SIGNS: dict[str, tuple[tuple[str, str], ...]] = {
    "optimizer": (
        (_ANY, r"torch[/\\]optim[/\\]|apex[/\\](?:contrib[/\\])?optimizers[/\\]"),
        (
            _ANY,
            r"bitsandbytes[/\\]optim[/\\]|timm[/\\]optim[/\\]|transformers[/\\]optimization\.py$",
        ),
        (_ANY, r"deepspeed[/\\](?:ops[/\\](?:adam|lamb|lion)|runtime[/\\].*optimizer\w*\.py$)"),
    ),
    "zeroing": ((r"^zero_grad$", _ANY),),
    "accumulate": ((r"AccumulateGrad|accumulate_grad", _ANY),),
    "backward": (
        (r"autograd::Engine|^_engine_run_backward$|CompiledFunctionBackward", _ANY),
        (r"^backward$", r"torch[/\\](?:autograd[/\\]\w+|_tensor)\.py$"),
    ),
    "communication": (
        (r"c10d::|ProcessGroup(?:NCCL|Gloo)|^nccl[A-Z]", _ANY),
        (_ANY, r"torch[/\\]distributed[/\\](?:distributed_c10d|_functional_collectives)\.py$"),
        (
            _ANY,
            r"fsdp[/\\](?:_fully_shard[/\\])?_(?:flat_param|fsdp_param|fsdp_collectives)\w*\.py$",
        ),
    ),
    "loading": (
        (r"^(?:_apply|to|cuda|half|bfloat16|to_empty|reset_parameters|\w+_)$", _MODULES),
        (r"load_state_dict|_load_from_state_dict", r"torch[/\\]nn[/\\]modules[/\\]module\.py$"),
        (r"^from_pretrained$|^_load_pretrained_model$", r"\.py$"),
        (r"^set_module_tensor_to_device$", r"\.py$"),
    ),
    "forward": (
        (r"^(?:_call_impl|_wrapped_call_impl)$", r"torch[/\\]nn[/\\]modules[/\\]module\.py$"),
        (r"^forward\w*$", r"\.py$"),
    ),
    "replicating": (
        (r"broadcast_coalesced|^replicate$", _PARALLEL + r"(?:comm|replicate|data_parallel)\.py$"),
    ),
    "scattering": (
        (r"^scatter(?:_kwargs)?$", _PARALLEL + r"(?:comm|scatter_gather|data_parallel)\.py$"),
    ),
    "data": ((_ANY, r"torch[/\\]utils[/\\]data[/\\]"),),
    "copying": (
        (r"::_to_copy|^pin_memory$|^send_to_device$", _ANY),
        (r"^(?:to|cuda)_?(?:device|gpu)?$", r"\.py$"),
    ),
}
#: Of these the innermost in a stack tells what the code was at: an optimizer may call a closure
#: that runs forward, a backward pass may run forward again.
_DOING = (
    "optimizer", "accumulate", "backward", "communication", "loading", "replicating", "scattering",
    "forward",
)  # fmt: skip
#: What lasts so many events is no temporary of one call.
_LASTING = 100


@dataclass(frozen=True)
class Lines:
    """For each row of ``stacks``, the code to name it by.

    Attributes:
        parent: the row of the caller, ROOT for a root.
        frames: ``name``, ``file``, ``line`` of each row.
        own: the innermost frame that is the user's, or of the library asked for; ROOT without one.
        shown: the frame to show: ``own``, else the innermost Python frame, else the node of
            the backward pass, else the innermost one that not every allocation has.
        kept: frames of the program: not of the capture of stacks, nor of the interpreter.
    """

    parent: intervals.Ints
    frames: pl.DataFrame
    own: intervals.Ints
    shown: intervals.Ints
    kept: intervals.Bools

    def of(self, stacks: pl.Series) -> pl.DataFrame:
        """``function``, ``file``, ``line`` of stacks, and if it is ``own``; null without one."""
        rows = stacks.cast(pl.Int64)
        known = rows.fill_null(0).to_numpy()
        if not self.parent.size:
            return pl.DataFrame(schema=_SCHEMA).clear(stacks.len())
        told = self.frames[self.shown[known]].select(
            function="name",
            file="file",
            line="line",
            own=pl.Series(self.own[known] != stack_weights.ROOT),
        )
        there = pl.Series(rows.is_not_null())
        shown = [pl.when(there).then(pl.col(name)).alias(name) for name in told.columns]
        found: pl.DataFrame = told.select(shown)
        return found

    def path(self, stack: int) -> list[str]:
        """The frames of a stack as text, the innermost first; of a very deep one both ends."""
        rows = []
        while stack != stack_weights.ROOT:
            if self.kept[stack]:
                rows.append(stack)
            stack = int(self.parent[stack])
        left_out = len(rows) - _INNER - _OUTER
        if left_out <= 0:
            return [self._text(row) for row in rows]
        inner, outer = rows[:_INNER], rows[-_OUTER:]
        return [*map(self._text, inner), f"({left_out:,} more)", *map(self._text, outer)]

    def paths(self, stacks: pl.Series) -> pl.Series:
        """Each stack as one text, the outermost frame first, ``;`` between; null without one."""
        texts = {
            row: ";".join(reversed(self.path(row))) for row in stacks.drop_nulls().unique().sort()
        }
        return stacks.replace_strict(texts, default=None, return_dtype=pl.String)

    def trimmed(self, stacks: pl.Series) -> pl.Series:
        """The stacks from their innermost frame of the program on; null without one."""
        if not self.parent.size:
            return stacks
        leaf = stack_weights.nearest(self.parent, self.kept)[stacks.fill_null(0).to_numpy()]
        known = pl.Series(leaf != stack_weights.ROOT) & stacks.is_not_null()
        return pl.Series(leaf).set(~known, None).cast(pl.UInt32)

    def _text(self, row: int) -> str:
        name, file, line = self.frames.row(row)
        place = file if line is None else f"{file}:{line}"
        return (f"{name} ({place})" if file else name)[:_LONGEST]


def lines(trace: Trace, library_names: Sequence[str] = ()) -> Lines:
    """The code of each stack of a trace.

    Args:
        trace: with the table ``stacks``.
        library_names: libraries whose frames count as one's own; by default the user's code does.
    """
    stacks = trace.stacks
    parent = stacks["parent"].cast(pl.Int64).fill_null(stack_weights.ROOT).to_numpy()
    frames = stacks.select(pl.col("name", "file").cast(pl.String), "line")
    is_own = _own(library_names)
    # that which is best to show comes first
    flags = _tested(
        frames,
        own=lambda name, file: is_own(name, file) and (bool(library_names) or _is_python(file)),
        python=lambda _, file: _is_python(file),
        node=lambda name, _: name is not None and _NODE.search(name) is not None,
        telling=lambda name, _: name is not None and _PLUMBING.search(name) is None,
    )
    kept = _tested(frames, kept=_is_kept)["kept"].to_numpy()
    shown = np.arange(parent.size)
    for flag in reversed(flags.get_columns()):
        found = stack_weights.nearest(parent, flag.to_numpy())
        shown = np.where(found == stack_weights.ROOT, shown, found)
    own = stack_weights.nearest(parent, flags["own"].to_numpy())
    return Lines(parent, frames, own, shown, kept)


def _is_kept(name: str | None, file: str | None) -> bool:
    """Whether a frame is of the program."""
    return not (_CAPTURE.search(name or "") or _CAPTURE_FILES.search(file or ""))


def _own(library_names: Sequence[str]) -> Test:
    """Whether a frame is the user's, or of the libraries asked for."""
    match = libraries.by_component(library_names)
    return (lambda _, file: match(file) is not None) if library_names else libraries.is_own


def _is_python(file: str | None) -> bool:
    return file is not None and _PYTHON.search(file) is not None


def _tested(frames: pl.DataFrame, **tests: Test) -> pl.DataFrame:
    """The results of tests of ``name`` and ``file``; each distinct frame is tested once."""
    distinct = frames.select("name", "file").unique()
    pairs = distinct.rows()
    flags = {
        key: pl.Series([test(*pair) for pair in pairs], dtype=pl.Boolean)
        for key, test in tests.items()
    }
    keys = ["name", "file"]
    return columns.looked_up(frames.select(keys), distinct.with_columns(**flags), keys).drop(keys)


def frame_text(name: str | None, file: str | None, line: int | None) -> str:
    """A frame as people write it: ``forward (model.py:40)``; of C++ the function's name alone."""
    if not name:
        return NO_STACK
    if not file or "::" in name:
        return re.split(
            r"[(<](?=.)", name.replace(_ANONYMOUS, "").removeprefix("void "), maxsplit=1
        )[0]
    short = _SEPARATOR.split(str(PurePath(file)))[-1]
    return f"{name} ({short})" if line is None else f"{name} ({short}:{line})"


# --- code of what has no stack ---------------------------------------------------------------


def code_running(trace: Trace, library_names: Sequence[str], events: pl.Series) -> pl.DataFrame:
    """``function``, ``file``, ``line`` and ``own`` at rows of ``events``; null for null.

    Args:
        trace: with operators and Python frames.
        library_names: libraries whose frames count as one's own; by default the user's code does.
        events: rows.
    """
    is_own = _own(library_names)
    at = trace.events.select("pid", "tid", "ts")[events.drop_nulls()]
    frame = whereabouts.python_frames(trace, at, is_own).cast(pl.String)
    functions = (
        frame.unique().to_frame("slice").with_columns(told=names.python_frame(pl.col("slice")))
    )
    told = columns.looked_up(frame.to_frame("slice"), functions, "slice").unnest("told")
    operator = whereabouts.places_of(trace).operator(at).cast(pl.String)
    found = told.select(pl.coalesce("name", operator), "file", "line")
    own = _tested(found, own=lambda name, file: file is not None and is_own(name, file))
    row = pl.select(pl.when(events.is_not_null()).then(events.is_not_null().cum_sum() - 1))
    return found.rename({"name": "function"}).hstack(own)[row.to_series()]


# --- what it is for --------------------------------------------------------------------------


def categories(of: Ledger, lines: Lines) -> pl.DataFrame:
    """``category`` and ``confidence`` of each allocation of a ledger, in its order."""
    at = signs(lines)
    allocations = of.allocations
    stack, freed_by = allocations["stack"], allocations["freed_by"]
    innermost = np.stack([at[sign] for sign in _DOING])
    doing = np.where(
        innermost.max(axis=0) == stack_weights.ROOT, len(_DOING), innermost.argmax(axis=0)
    )

    def by(sign: str) -> intervals.Bools:
        return _at(doing == _DOING.index(sign), stack)

    def freed(sign: str) -> intervals.Bools:
        return _at(at[sign] != stack_weights.ROOT, freed_by)

    stays = (allocations["end"] >= of.positions).to_numpy()
    length = (allocations["end"] - allocations["start"]).to_numpy()
    lasts = length >= max(of.positions // 100, _LASTING)
    old = length >= _LASTING
    # of one freed only, the stack is that of its free, which tells less
    only_freed = (allocations["origin"] == "freed").to_numpy()
    known = ~only_freed & stack.is_not_null().to_numpy()
    rules: tuple[tuple[intervals.Bools, str, str], ...] = (
        (only_freed & freed("zeroing"), "gradients", "likely"),
        (only_freed & freed("backward"), "activations", "likely"),
        (~known, UNKNOWN, "none"),
        (by("accumulate"), "gradients", "sure"),
        (by("optimizer") & freed("optimizer"), "temporary", "likely"),
        (
            by("optimizer") & (lasts | (stays & (old | (of.positions <= _LASTING)))),
            "optimizer state",
            "sure",
        ),
        (by("optimizer") & stays, "optimizer state", "guess"),
        (by("optimizer"), "temporary", "likely"),
        (by("communication"), "communication buffers", "likely"),
        (by("backward") & freed("backward"), "temporary", "likely"),
        (by("backward"), "gradients", "likely"),
        (by("loading"), "parameters", "likely"),
        (by("replicating"), "parameters", "likely"),
        (by("scattering"), "inputs", "likely"),
        (by("forward") & freed("backward"), "activations", "sure"),
        (by("forward"), "activations", "likely"),
        (_at(at["data"] != stack_weights.ROOT, stack), "inputs", "likely"),
        (_at(at["copying"] != stack_weights.ROOT, stack), "inputs", "guess"),
    )
    category = np.full(allocations.height, CATEGORIES.index(UNKNOWN), np.uint32)
    confidence = np.full(allocations.height, CONFIDENCES.index("none"), np.uint32)
    for holds, what, how in reversed(rules):
        category[holds] = CATEGORIES.index(what)
        confidence[holds] = CONFIDENCES.index(how)
    return pl.DataFrame(
        {
            "category": pl.Series(CATEGORIES, dtype=CATEGORY).gather(category),
            "confidence": pl.Series(CONFIDENCES, dtype=CONFIDENCE).gather(confidence),
        }
    )


def signs(lines: Lines) -> dict[str, intervals.Ints]:
    """For each stack the innermost frame that shows each sign; ROOT where none does.

    Rows of a stack grow towards its leaf, so that of two frames the larger number lies deeper.
    """
    told = lines.frames.select(pl.col("name").fill_null(""), pl.col("file").fill_null(""))
    found = {}
    for sign, pairs in _SIGNS.items():
        shown = [pl.col("name").str.contains(n) & pl.col("file").str.contains(f) for n, f in pairs]
        shows = told.select(pl.any_horizontal(shown)).to_series().to_numpy()
        found[sign] = stack_weights.nearest(lines.parent, shows)
    return found


def _at(flags: intervals.Bools, stacks: pl.Series) -> intervals.Bools:
    """Flags of stacks; False where there is none."""
    if not flags.size:
        return np.zeros(stacks.len(), np.bool_)
    found: intervals.Bools = flags[stacks.fill_null(0).to_numpy()] & stacks.is_not_null().to_numpy()
    return found
