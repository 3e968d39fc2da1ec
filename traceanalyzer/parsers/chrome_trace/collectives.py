"""What one event tells of a collective: by its arguments, its name, its tensors."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import msgspec

from traceanalyzer.parsers.chrome_trace import coerce
from traceanalyzer.parsers.chrome_trace.coerce import text_of
from traceanalyzer.parsers.chrome_trace.decode import BAD_TEXT, NULL, Args, Event
from traceanalyzer.vocabulary import (
    COMMUNICATION_WORDS,
    DEVICE_KINDS,
    collective_of_kernel,
    collective_of_word,
    kind_of_category,
)

_HOST = re.compile(r"^(?:nccl|rccl|xccl|gloo|mpi|ucc):|^record_param_comms$|^c10d::")
_dims = msgspec.json.Decoder(list[Any])


@lru_cache(maxsize=1 << 16)
def tells(name: str) -> bool:
    """Whether a name may be communication's; plain words, since this sees every name."""
    small = name.lower()
    return any(word in small for word in COMMUNICATION_WORDS)


def collective(
    event: Event, args: Args
) -> tuple[str | None, str | None, int, int, str | None, int, str | None, int] | None:
    """(collective, dtype, elements in, out, group, size, ranks, seq), or None: no collective."""
    name = event.name if isinstance(event.name, str) else ""
    kind = kind_of_category(text_of(event.cat))
    host = kind in ("cpu_op", "user_annotation") and _HOST.search(name) is not None
    if args.collective is None and not host and kind not in ("kernel", "collective_comm"):
        return None
    word = args.collective if isinstance(args.collective, str) else None
    known = collective_of_word(word)
    if known is None:
        known = collective_of_kernel(name) if kind in DEVICE_KINDS else collective_of_word(name)
    dtype = args.dtype if isinstance(args.dtype, str) else None
    elements_in = coerce.integer(args.elements_in)
    if host and dtype is None and elements_in == NULL:
        dtype, elements_in = _tensor(args)
    return (
        known or word,
        dtype,
        elements_in,
        coerce.integer(args.elements_out),
        text_of(args.group),
        coerce.integer(args.group_size),
        text_of(args.group_ranks),
        coerce.integer(args.seq),
    )


def _tensor(args: Args) -> tuple[str | None, int]:
    """Dtype and number of elements of an operator's first tensors of one type."""
    try:
        dims, types = _dims.decode(args.input_dims), _dims.decode(args.input_type)
    except (*BAD_TEXT, msgspec.ValidationError):
        return None, NULL
    if not dims or not types or not isinstance(types[0], str):
        return None, NULL
    elements = _elements(dims[0])
    known = elements is not None and types[0] not in ("", "TensorList", "Scalar")
    return (types[0], coerce.integer(elements)) if known and elements is not None else (None, NULL)


def _elements(shape: Any) -> int | None:
    """Product of a shape; a list of shapes is the sum of their products."""
    if not isinstance(shape, list) or not shape:
        return None
    if isinstance(shape[0], list):
        parts = [_elements(part) for part in shape[:1024]]
        return sum(part for part in parts if part is not None)
    product = 1
    for size in shape[:64]:
        if not isinstance(size, int) or size < 0 or product > 1 << 62:
            return None
        product *= size
    return product
