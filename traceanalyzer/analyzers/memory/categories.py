"""What an allocation is for, as far as its stack and its life tell.

PyTorch does not record it, but code that every training runs through tells: the optimizer makes
its state, ``AccumulateGrad`` gradients, modules activations. The innermost such code in a stack
counts. Rules are asked one after the other; the first that holds decides.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from traceanalyzer.analyzers.memory.ledger import Bools, Ledger
from traceanalyzer.analyzers.memory.lines import Lines
from traceanalyzer.frames.ancestors import NONE, Ints, nearest

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
    "data": ((_ANY, r"torch[/\\]utils[/\\]data[/\\]"),),
    "copying": (
        (r"::_to_copy|^pin_memory$|^send_to_device$", _ANY),
        (r"^(?:to|cuda)_?(?:device|gpu)?$", r"\.py$"),
    ),
}
#: Of these the innermost in a stack tells what the code was at: an optimizer may call a closure
#: that runs forward, a backward pass may run forward again.
_DOING: Final = ("optimizer", "accumulate", "backward", "communication", "loading", "forward")
#: What lasts so many events is no temporary of one call.
_LASTING: Final = 100


def categories(of: Ledger, lines: Lines) -> pl.DataFrame:
    """``category`` and ``confidence`` of each allocation of a ledger, in its order."""
    at = _signs(lines)
    allocations = of.allocations
    stack, freed_by = allocations["stack"], allocations["freed_by"]
    innermost = np.stack([at[sign] for sign in _DOING])
    doing = np.where(innermost.max(axis=0) == NONE, len(_DOING), innermost.argmax(axis=0))

    def by(sign: str) -> Bools:
        return _at(doing == _DOING.index(sign), stack)

    def freed(sign: str) -> Bools:
        return _at(at[sign] != NONE, freed_by)

    stays = (allocations["end"] >= of.positions).to_numpy()
    length = (allocations["end"] - allocations["start"]).to_numpy()
    lasts = length >= max(of.positions // 100, _LASTING)
    old = length >= _LASTING
    # of one freed only, the stack is that of its free, which tells less
    only_freed = (allocations["origin"] == "freed").to_numpy()
    known = ~only_freed & stack.is_not_null().to_numpy()
    rules: tuple[tuple[Bools, str, str], ...] = (
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
        (by("forward") & freed("backward"), "activations", "sure"),
        (by("forward"), "activations", "likely"),
        (_at(at["data"] != NONE, stack), "inputs", "likely"),
        (_at(at["copying"] != NONE, stack), "inputs", "guess"),
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


def _signs(lines: Lines) -> dict[str, Ints]:
    """For each stack the innermost frame that shows each sign; NONE where none does.

    Rows of a stack grow towards its leaf, so that of two frames the larger number lies deeper.
    """
    told = lines.frames.select(pl.col("name").fill_null(""), pl.col("file").fill_null(""))
    found = {}
    for sign, pairs in _SIGNS.items():
        shown = [pl.col("name").str.contains(n) & pl.col("file").str.contains(f) for n, f in pairs]
        shows = told.select(pl.any_horizontal(shown)).to_series().to_numpy()
        found[sign] = nearest(lines.parent, shows)
    return found


def _at(flags: Bools, stacks: pl.Series) -> Bools:
    """Flags of stacks; False where there is none."""
    if not flags.size:
        return np.zeros(stacks.len(), np.bool_)
    found: Bools = flags[stacks.fill_null(0).to_numpy()] & stacks.is_not_null().to_numpy()
    return found
