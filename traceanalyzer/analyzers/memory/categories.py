"""What an allocation is for, as far as its stack and its life tell.

PyTorch does not record it, but code that every training runs through tells: the optimizer makes
its state, ``AccumulateGrad`` gradients, modules activations. Rules are asked one after the other;
the first that holds decides.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceanalyzer.analyzers.memory.ledger import Bools, Ledger
from traceanalyzer.analyzers.memory.lines import Lines

UNKNOWN: Final = "unknown"
CATEGORIES: Final = (
    "parameters",
    "gradients",
    "activations",
    "optimizer state",
    "inputs",
    "communication buffers",
    "temporary",
    UNKNOWN,
)
CONFIDENCES: Final = ("sure", "likely", "guess", "none")
CATEGORY = pl.Enum(CATEGORIES)
CONFIDENCE = pl.Enum(CONFIDENCES)

_ANY: Final = ""
_MODULES: Final = r"torch[/\\]nn[/\\](?:modules[/\\]\w+|init|parameter)\.py$"
#: What a frame shows, by regular expressions of its function and of its file; one pair must match.
_SIGNS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "optimizer": (
        (_ANY, r"(?:^|[/\\])(?:optim|optimizers?)[/\\]\w+\.py$"),
        (_ANY, r"bitsandbytes[/\\]optim[/\\]"),
    ),
    "zeroing": ((r"^zero_grad$", _ANY),),
    "accumulate": ((r"AccumulateGrad|accumulate_grad", _ANY),),
    "backward": (
        (r"autograd::Engine|^_engine_run_backward$|CompiledFunctionBackward", _ANY),
        (r"^backward$", r"torch[/\\](?:autograd[/\\]\w+|_tensor)\.py$"),
    ),
    "communication": (
        (r"c10d::|ProcessGroup(?:NCCL|Gloo)|^nccl[A-Z]", _ANY),
        (_ANY, r"torch[/\\]distributed[/\\]"),
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
    "data": ((_ANY, r"torch[/\\]utils[/\\]data[/\\]"),),
    "copying": (
        (r"::_to_copy|^pin_memory$|^send_to_device$", _ANY),
        (r"^(?:to|cuda)_?(?:device|gpu)?$", r"\.py$"),
    ),
}


def categories(of: Ledger, lines: Lines) -> pl.DataFrame:
    """``category`` and ``confidence`` of each allocation of a ledger, in its order."""
    signs = _signs(lines)
    allocations = of.allocations
    stack, freed_by = allocations["stack"], allocations["freed_by"]

    def by(sign: str) -> Bools:
        return _at(signs[sign], stack)

    freed_in_backward = _at(signs["backward"], freed_by)
    lasts = (allocations["end"] >= of.positions).to_numpy() | ~_short(of)
    # of one freed only, the stack is that of its free, which tells less
    only_freed = (allocations["origin"] == "freed").to_numpy()
    known = ~only_freed & stack.is_not_null().to_numpy()
    rules: tuple[tuple[Bools, str, str], ...] = (
        (only_freed & _at(signs["zeroing"], freed_by), "gradients", "likely"),
        (only_freed & freed_in_backward, "activations", "likely"),
        (~known, UNKNOWN, "none"),
        (by("accumulate"), "gradients", "sure"),
        (by("optimizer") & lasts, "optimizer state", "sure"),
        (by("optimizer"), "temporary", "likely"),
        (by("communication"), "communication buffers", "likely"),
        (by("backward") & freed_in_backward, "temporary", "likely"),
        (by("backward"), "gradients", "likely"),
        (by("loading") & ~by("forward"), "parameters", "likely"),
        (by("forward") & freed_in_backward, "activations", "sure"),
        (by("forward"), "activations", "likely"),
        (by("data"), "inputs", "likely"),
        (by("copying"), "inputs", "guess"),
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


def _short(of: Ledger) -> Bools:
    """Allocations that are gone within a hundredth of the history, or 100 events."""
    length = of.allocations["end"] - of.allocations["start"]
    return (length < max(of.positions // 100, 100)).to_numpy()


def _signs(lines: Lines) -> dict[str, Bools]:
    """Which signs the frames of each stack show."""
    told = lines.frames.select(pl.col("name").fill_null(""), pl.col("file").fill_null(""))
    found = {}
    for sign, pairs in _SIGNS.items():
        shown = [pl.col("name").str.contains(n) & pl.col("file").str.contains(f) for n, f in pairs]
        found[sign] = lines.marked(told.select(pl.any_horizontal(shown)).to_series().to_numpy())
    return found


def _at(flags: Bools, stacks: pl.Series) -> Bools:
    """Flags of stacks; False where there is none."""
    if not flags.size:
        return np.zeros(stacks.len(), np.bool_)
    found: Bools = flags[stacks.fill_null(0).to_numpy()] & stacks.is_not_null().to_numpy()
    return found
