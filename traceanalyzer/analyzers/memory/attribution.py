"""The code behind each allocation, and its category, inferred from stack and lifetime.

Snapshots record a stack for each allocation. A ``[memory]`` instant of ``torch.profiler`` has only
a thread and a time, so the Python frame or operator running at that time is used instead.

What the program said about an allocation (``torch.cuda.memory._set_memory_metadata``,
``_annotate_memory``) is its category, and exact. Otherwise PyTorch does not record what an
allocation is for, but all training code passes through known functions: the optimizer allocates
its state, ``AccumulateGrad`` gradients, modules activations. The innermost such frame in a stack
counts. Rules are tried in order; the first match decides.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import columns, host_code, libraries, names
from traceanalyzer.analyzers.memory.ledger import Ledger
from traceanalyzer.files import packaged
from traceanalyzer.frames import intervals, stack_weights
from traceanalyzer.trace import Trace

#: A predicate on the function and file of a frame.
FrameTest = Callable[[str | None, str | None], bool]

#: Text in place of an unknown line.
NO_STACK = "(no stack recorded)"
_PYTHON = re.compile(r"\.(?:py|pyx|pyi|ipynb)$|^<(?:stdin|string|ipython-input.*|ipykernel.*)>$")
#: The autograd node that a backward pass calls for each function.
_NODE = re.compile(r"^torch::autograd::.*::apply\(")
#: C++ frames common to all allocations: stack capture, allocator, dispatcher.
_PLUMBING = re.compile(
    r"^(?:torch::(?:unwind|CapturedTraceback|cuda)::|c10::|at::(?:detail|_ops|\(anonymous)|"
    r"at::native::(?:new_)?empty|gather_with_cpp|std::)"
)
#: Frames of the stack capture and the interpreter, which PyTorch's viewer omits too.
_CAPTURE = re.compile(
    r"unwind::unwind|^torch::unwind|CapturedTraceback::gather|gather_with_cpp|^_start$|"
    r"^__libc_start_main|^_?Py(?:Eval|Object|Function)_"
)
_CAPTURE_FILES = re.compile(
    r"core/boxing|/Register|/Redispatch|pythonrun\.c$|Modules/main\.c$|Objects/(?:call|methodobject)\.c$|"
    r"ceval\.[ch]$|cpython/abstract\.h$"
)
#: Frames kept from the leaf and from the root of a stack, and characters of each.
_INNER = 200
_OUTER = 20
_LONGEST = 1000
_ANONYMOUS = "(anonymous namespace)::"
_SCHEMA = {"function": pl.String, "file": pl.String, "line": pl.Int32, "is_own_code": pl.Boolean}
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
CONFIDENCES = ("exact", "high", "medium", "low", "none")
CONFIDENCE = pl.Enum(CONFIDENCES)

#: Frames that mark an activity: patterns of function and file; one pair must match.
_MARKERS = packaged("analyzers/memory/markers.toml")
#: The innermost of these in a stack is the activity of the code: an optimizer may call a closure
#: that runs forward, a backward pass may run forward again.
_ACTIVITIES = (
    "optimizer", "accumulate", "backward", "communication", "loading", "replicating", "scattering",
    "forward",
)  # fmt: skip
#: Events whose text is about the memory at their address.
_MARKING = ("alloc", "annotate")
#: An allocation that lives for this many events is not a temporary of one call.
_LASTING = 100


@dataclass(frozen=True)
class Lines:
    """The code that each row of ``stacks`` is named by.

    Attributes:
        parent: row of the caller, ROOT for a root.
        frames: ``name``, ``file``, ``line`` of each row.
        own_code: the innermost frame of the user's code or of the chosen library; ROOT if none.
        displayed: the frame to display: ``own_code``, else the innermost Python frame, else the
            autograd node, else the innermost frame not common to all allocations.
        in_program: whether the frame belongs to the program, not to the stack capture or the
            interpreter.
    """

    parent: intervals.Ints
    frames: pl.DataFrame
    own_code: intervals.Ints
    displayed: intervals.Ints
    in_program: intervals.Bools

    def code_of(self, stacks: pl.Series) -> pl.DataFrame:
        """``function``, ``file``, ``line``, ``is_own_code`` of stacks; null without a stack."""
        rows = stacks.cast(pl.Int64)
        index = rows.fill_null(0).to_numpy()
        if not self.parent.size:
            return pl.DataFrame(schema=_SCHEMA).clear(stacks.len())
        code = self.frames[self.displayed[index]].select(
            function="name",
            file="file",
            line="line",
            is_own_code=pl.Series(self.own_code[index] != stack_weights.ROOT),
        )
        has_stack = pl.Series(rows.is_not_null())
        known: pl.DataFrame = code.select(
            pl.when(has_stack).then(pl.col(name)).alias(name) for name in _SCHEMA
        )
        return known

    def path(self, stack: int) -> list[str]:
        """The frames of a stack as text, innermost first; only both ends of a very deep stack."""
        rows = []
        while stack != stack_weights.ROOT:
            if self.in_program[stack]:
                rows.append(stack)
            stack = int(self.parent[stack])
        omitted = len(rows) - _INNER - _OUTER
        if omitted <= 0:
            return [self._text(row) for row in rows]
        inner, outer = rows[:_INNER], rows[-_OUTER:]
        return [*map(self._text, inner), f"({omitted:,} more)", *map(self._text, outer)]

    def paths(self, stacks: pl.Series) -> pl.Series:
        """Each stack as one text, outermost frame first, joined by ``;``; null without a stack."""
        texts = {
            row: ";".join(reversed(self.path(row))) for row in stacks.drop_nulls().unique().sort()
        }
        return stacks.replace_strict(texts, default=None, return_dtype=pl.String)

    def trimmed(self, stacks: pl.Series) -> pl.Series:
        """The stacks without leaf frames outside the program; null without a stack."""
        if not self.parent.size:
            return stacks
        leaf = stack_weights.nearest(self.parent, self.in_program)[stacks.fill_null(0).to_numpy()]
        known = pl.Series(leaf != stack_weights.ROOT) & stacks.is_not_null()
        return pl.Series(leaf).set(~known, None).cast(pl.UInt32)

    def _text(self, row: int) -> str:
        name, file, line = self.frames.row(row)
        place = file if line is None else f"{file}:{line}"
        return (f"{name} ({place})" if file else name)[:_LONGEST]


def lines(trace: Trace, library_names: Sequence[str] = ()) -> Lines:
    """Return the code of each stack of a trace.

    Args:
        trace: trace with the table ``stacks``.
        library_names: libraries whose frames count as own code; by default the user's code.
    """
    stacks = trace.stacks
    parent = stacks["parent"].cast(pl.Int64).fill_null(stack_weights.ROOT).to_numpy()
    frames = stacks.select(pl.col("name", "file").cast(pl.String), "line")
    is_own_code = _own_code_test(library_names)
    # in order of preference for display
    flags = _test_frames(
        frames,
        own_code=lambda name, file: (
            is_own_code(name, file) and (bool(library_names) or _is_python(file))
        ),
        python=lambda _, file: _is_python(file),
        node=lambda name, _: name is not None and _NODE.search(name) is not None,
        specific=lambda name, _: name is not None and _PLUMBING.search(name) is None,
    )
    in_program = _test_frames(frames, flag=_is_in_program)["flag"].to_numpy()
    displayed = np.arange(parent.size)
    for flag in reversed(flags.get_columns()):
        nearest = stack_weights.nearest(parent, flag.to_numpy())
        displayed = np.where(nearest == stack_weights.ROOT, displayed, nearest)
    own_code = stack_weights.nearest(parent, flags["own_code"].to_numpy())
    return Lines(parent, frames, own_code, displayed, in_program)


def _is_in_program(name: str | None, file: str | None) -> bool:
    """Whether a frame belongs to the program."""
    return not (_CAPTURE.search(name or "") or _CAPTURE_FILES.search(file or ""))


def _own_code_test(library_names: Sequence[str]) -> FrameTest:
    """Return the test for frames of the user's code, or of the given libraries."""
    match = libraries.by_component(library_names)
    return (lambda _, file: match(file) is not None) if library_names else libraries.is_own_code


def _is_python(file: str | None) -> bool:
    return file is not None and _PYTHON.search(file) is not None


def _test_frames(frames: pl.DataFrame, **tests: FrameTest) -> pl.DataFrame:
    """Return a flag column per test of ``name`` and ``file``, run once per distinct frame."""
    distinct = frames.select("name", "file").unique()
    pairs = distinct.rows()
    flags = {
        key: pl.Series([test(*pair) for pair in pairs], dtype=pl.Boolean)
        for key, test in tests.items()
    }
    keys = ["name", "file"]
    return columns.left_join(frames.select(keys), distinct.with_columns(**flags), keys).drop(keys)


def frame_text(name: str | None, file: str | None, line: int | None) -> str:
    """Format a frame as ``forward (model.py:40)``; a C++ frame as its function name."""
    if not name:
        return NO_STACK
    if not file or "::" in name:
        return re.split(
            r"[(<](?=.)", name.replace(_ANONYMOUS, "").removeprefix("void "), maxsplit=1
        )[0]
    short = _SEPARATOR.split(str(PurePath(file)))[-1]
    return f"{name} ({short})" if line is None else f"{name} ({short}:{line})"


# --- code of allocations without a stack -----------------------------------------------------


def code_running(trace: Trace, library_names: Sequence[str], events: pl.Series) -> pl.DataFrame:
    """Return ``function``, ``file``, ``line`` and ``is_own_code`` at rows of ``events``.

    Args:
        trace: trace with operators and Python frames.
        library_names: libraries whose frames count as own code; by default the user's code.
        events: rows of ``events``; null gives a null row.
    """
    is_own_code = _own_code_test(library_names)
    at = trace.events.select("pid", "tid", "ts")[events.drop_nulls()]
    slices = host_code.python_frames(trace, at, is_own_code).cast(pl.String).to_frame("slice")
    parsed = slices.unique().with_columns(frame=names.python_frame(pl.col("slice")))
    frames = columns.left_join(slices, parsed, "slice").unnest("frame")
    operator = host_code.places_of(trace).operator(at).cast(pl.String)
    code = frames.select(pl.coalesce("name", operator), "file", "line")
    own_code = _test_frames(
        code, is_own_code=lambda name, file: file is not None and is_own_code(name, file)
    )
    row = pl.select(pl.when(events.is_not_null()).then(events.is_not_null().cum_sum() - 1))
    return code.rename({"name": "function"}).hstack(own_code)[row.to_series()]


# --- categories ------------------------------------------------------------------------------


def categories(history: Ledger, lines: Lines) -> pl.DataFrame:
    """Return ``category`` and ``confidence`` of each allocation of a ledger, in its order."""
    inferred, recorded = _inferred_categories(history, lines), _recorded_categories(history)
    return inferred if recorded is None else inferred.update(recorded)


def _inferred_categories(history: Ledger, lines: Lines) -> pl.DataFrame:
    at = markers(lines)
    allocations = history.allocations
    stack, freed_by = allocations["stack"], allocations["freed_by"]
    innermost = np.stack([at[marker] for marker in _ACTIVITIES])
    activity = np.where(
        innermost.max(axis=0) == stack_weights.ROOT, len(_ACTIVITIES), innermost.argmax(axis=0)
    )

    def allocated_by(marker: str) -> intervals.Bools:
        return _flags_of(activity == _ACTIVITIES.index(marker), stack)

    def freed_in(marker: str) -> intervals.Bools:
        return _flags_of(at[marker] != stack_weights.ROOT, freed_by)

    live_at_end = (allocations["end"] >= history.positions).to_numpy()
    lifetime = (allocations["end"] - allocations["start"]).to_numpy()
    long_lived = lifetime >= max(history.positions // 100, _LASTING)
    lasting = lifetime >= _LASTING
    # without an alloc event, the stack is that of the free, which is a weaker hint
    only_freed = (allocations["origin"] == "freed").to_numpy()
    known = ~only_freed & stack.is_not_null().to_numpy()
    rules: tuple[tuple[intervals.Bools, str, str], ...] = (
        (only_freed & freed_in("zeroing"), "gradients", "medium"),
        (only_freed & freed_in("backward"), "activations", "medium"),
        (~known, UNKNOWN, "none"),
        (allocated_by("accumulate"), "gradients", "high"),
        (allocated_by("optimizer") & freed_in("optimizer"), "temporary", "medium"),
        (
            allocated_by("optimizer")
            & (long_lived | (live_at_end & (lasting | (history.positions <= _LASTING)))),
            "optimizer state",
            "high",
        ),
        (allocated_by("optimizer") & live_at_end, "optimizer state", "low"),
        (allocated_by("optimizer"), "temporary", "medium"),
        (allocated_by("communication"), "communication buffers", "medium"),
        (allocated_by("backward") & freed_in("backward"), "temporary", "medium"),
        (allocated_by("backward"), "gradients", "medium"),
        (allocated_by("loading"), "parameters", "medium"),
        (allocated_by("replicating"), "parameters", "medium"),
        (allocated_by("scattering"), "inputs", "medium"),
        (allocated_by("forward") & freed_in("backward"), "activations", "high"),
        (allocated_by("forward"), "activations", "medium"),
        (_flags_of(at["data"] != stack_weights.ROOT, stack), "inputs", "medium"),
        (_flags_of(at["copying"] != stack_weights.ROOT, stack), "inputs", "low"),
    )
    category = np.full(allocations.height, CATEGORIES.index(UNKNOWN), np.uint32)
    confidence = np.full(allocations.height, CONFIDENCES.index("none"), np.uint32)
    for matches, category_name, level in reversed(rules):
        category[matches] = CATEGORIES.index(category_name)
        confidence[matches] = CONFIDENCES.index(level)
    return pl.DataFrame(
        {
            "category": pl.Series(CATEGORIES).gather(category),
            "confidence": pl.Series(CONFIDENCES, dtype=CONFIDENCE).gather(confidence),
        }
    )


def _recorded_categories(history: Ledger) -> pl.DataFrame | None:
    """Return the last text of the program about each allocation; None if there is none.

    It is recorded with the allocation, or later by an event ``annotate`` at its address.
    """
    if history.source != "snapshot":
        return None
    texts = history.rows.select(
        "address",
        at=pl.int_range(1, pl.len() + 1),
        text=pl.when(pl.col("kind").is_in(_MARKING)).then(pl.col("category").cast(pl.String)),
    ).drop_nulls()
    if texts.is_empty():
        return None
    starts = history.allocations.select("address", "start", "end", row=pl.int_range(pl.len()))
    last = (
        texts.join_asof(
            starts.drop_nulls("address").sort("start"),
            left_on="at",
            right_on="start",
            by="address",
            check_sortedness=False,
        )
        .filter(pl.col("at") < pl.col("end"))
        .unique("row", keep="last")
    )
    return starts.select("row").join(last, on="row", how="left", maintain_order="left").select(
        category="text",
        confidence=pl.when(pl.col("text").is_not_null()).then(pl.lit("exact", CONFIDENCE)),
    )  # fmt: skip


def markers(lines: Lines) -> dict[str, intervals.Ints]:
    """Return for each stack the innermost frame with each marker; ROOT if none.

    Row numbers of a stack increase towards its leaf: of two frames the larger number is deeper.
    """
    frames = lines.frames.select(pl.col("name").fill_null(""), pl.col("file").fill_null(""))
    innermost = {}
    for marker, frames_of in _MARKERS.items():
        tests = [
            pl.all_horizontal(pl.col(column).str.contains(test) for column, test in one.items())
            for one in frames_of
        ]
        flags = frames.select(pl.any_horizontal(tests)).to_series().to_numpy()
        innermost[marker] = stack_weights.nearest(lines.parent, flags)
    return innermost


def _flags_of(flags: intervals.Bools, stacks: pl.Series) -> intervals.Bools:
    """Return the flags of stacks; False for null."""
    if not flags.size:
        return np.zeros(stacks.len(), np.bool_)
    known = stacks.is_not_null().to_numpy()
    of_stacks: intervals.Bools = flags[stacks.fill_null(0).to_numpy()] & known
    return of_stacks
