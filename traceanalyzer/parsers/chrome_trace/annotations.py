"""What CUDA graphs were annotated with in their capture, as arguments of their kernels.

Source: ``torch.cuda.graph_annotations``. A trace that was not exported with
``cuda_graph_annotations`` has the annotations in a file beside it or in the folder above:
``kernel_annotations_rank0_*.json``, the annotations of each node: dictionaries of arguments, or
names.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from traceanalyzer.trace import Trace, issue_rows

_NAME = "kernel_annotations_rank{}[_.]*json"
_MAX_BYTES = 64 << 20
#: torchtitan names traces by rank: ``000003.1764412345.pt.trace.json``.
_RANK = re.compile(r"(\d{1,7})\.")
_NODE, _GRAPH = (
    pl.col("args").str.extract(rf'"{name}"\s*:\s*(\d+)').cast(pl.UInt64, strict=False)
    for name in ("graph node id", "graph id")
)


def annotated(trace: Trace) -> Trace:
    """Return a trace of graphs with the annotations of their nodes in ``args``, if there are any.

    A file that cannot be read is a notice in ``issues``. Nodes are numbered by their id, or by
    that of the graph in the upper and their own in the lower 32 bits.
    """
    path = _file_of(trace.meta.path, trace.meta.rank)
    if path is None:
        return trace
    try:
        texts = _texts(path)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        row = ("notice", "annotations-unreadable", 1, f"{path.name}: {error}")
        issues = pl.concat([trace.issues, issue_rows([row], trace.meta.rank)])
        return replace(trace, issues=issues)
    known = pl.DataFrame(list(texts.items()), {"id": pl.UInt64, "added": pl.String}, orient="row")
    added = pl.coalesce(
        number.replace_strict(known["id"], known["added"], default=None)
        for number in (_NODE, _GRAPH * (1 << 32) + _NODE)
    )
    args = pl.col("args").str.strip_chars_end().str.strip_suffix("}")
    with_added = pl.concat_str(args, pl.lit(","), added, pl.lit("}"))
    return replace(
        trace, events=trace.events.with_columns(args=pl.coalesce(with_added, pl.col("args")))
    )


def _file_of(path: str, rank: int | None) -> Path | None:
    """Return the annotations of the rank of a trace; without a rank, those of rank 0."""
    trace = Path(path)
    if rank is None:
        named = _RANK.match(trace.name)
        rank = int(named[1]) if named else 0
    folders = trace.absolute().parents[:2]
    files = (file for one in folders for file in sorted(one.glob(_NAME.format(rank))))
    return next(files, None)


def _texts(path: Path) -> dict[int, str]:
    """Return the arguments of each node as the inside of a JSON object."""
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError("larger than 64 MiB")
    merged = {}
    for node, annotations in msgspec.json.decode(path.read_bytes()).items():
        args: dict[str, Any] = {}
        for one in annotations:
            args |= one if isinstance(one, dict) else {"annotation": one}
        if args and 0 <= (number := int(node)) < 1 << 64:
            merged[number] = msgspec.json.encode(args).decode()[1:-1]
    return merged
