"""Forward operators of backward nodes, by autograd's sequence numbers.

An operator that creates a node of the backward pass and this node have the same sequence number.
Each thread counts for itself: a node also has the id of the thread that created it, which PyTorch
numbers in its own way, without the thread's id in the system.
"""

import numpy as np
import polars as pl

from traceanalyzer.frames import nesting
from traceanalyzer.trace import Trace

#: Columns that identify the thread in which a node was created.
_CREATOR = ["pid", "forward_id"]

_STEM = r"([A-Za-z_0-9]+?)(?:Backward\d*)?$"


def numbers(trace: Trace, tree: pl.DataFrame) -> pl.DataFrame:
    """Return the operators with a sequence number.

    Args:
        trace: trace of one rank, with ``args`` of events.
        tree: rows of :func:`~traceanalyzer.analyzers.operators.call_tree.build` with ``event``.

    Returns:
        ``row`` (of ``tree``), ``pid``, ``thread``, ``start``, ``name``, ``sequence``,
        ``forward_id`` (PyTorch's number of the thread that created the node; 0 in the forward
        pass). Empty if ``args`` were not read.
    """
    operators = (tree["kind"] == "cpu_op").arg_true()
    rows = tree.select("thread", "start", "name")[operators].with_columns(row=operators)
    events = trace.events.select("pid", *(["args"] * ("args" in trace.events.columns)))
    events = events[tree["event"][operators]]
    args = events["args"] if "args" in events.columns else pl.repeat(None, rows.height, eager=True)
    text = args.cast(pl.String).alias("args")
    return rows.hstack([events["pid"], text]).select(
        "row", "pid", "thread", "start", pl.col("name").cast(pl.String),
        sequence=_integer("Sequence number"),
        forward_id=_integer("Fwd thread id").fill_null(0),
    ).drop_nulls("sequence")  # fmt: skip


def _integer(key: str) -> pl.Expr:
    text = pl.col("args").str.extract(rf'"{key}"\s*:\s*"?(\d{{1,18}})\b')
    return text.cast(pl.Int64, strict=False)


def forward_calls(operators: pl.DataFrame, height: int) -> nesting.Rows:
    """Return the forward operator that created each backward node.

    That is the last one with the sequence number of the node that started before it, in the thread
    that created the node.

    Args:
        operators: rows of :func:`numbers`.
        height: number of rows of the tree.

    Returns:
        A row of the tree for each row of the tree; ROOT for other calls and unknown operators.
    """
    backward = operators.filter(pl.col("forward_id") > 0)
    forward = operators.filter(pl.col("forward_id") == 0)
    threads = _threads(backward, forward)
    by = ["creator", "sequence"]
    left = backward.join(threads, on=_CREATOR).select("row", "start", *by).sort("start", "row")
    right = forward.select("start", pl.col("thread").alias("creator"), "sequence", call="row")
    links = left.join_asof(
        right.sort("start", "call"), on="start", by=by, allow_exact_matches=False,
        check_sortedness=False,
    ).drop_nulls("call")  # fmt: skip
    calls = np.full(height, nesting.ROOT, np.int32)
    calls[links["row"].to_numpy()] = links["call"].to_numpy()
    return calls


def _threads(backward: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Return the thread of each forward id: pid, forward_id, creator.

    That is the thread with most operators of the same sequence number and name (``aten::addmm``,
    ``AddmmBackward0``); each thread has one id.
    """
    of_node = backward.select(*_CREATOR, "sequence", stem=_stem()).unique()
    of_call = forward.select("pid", "sequence", creator="thread", base=_stem()).unique()
    pairs = of_node.join(of_call, on=["pid", "sequence"], nulls_equal=True)
    scores = pairs.group_by(*_CREATOR, "creator").agg(
        same=(pl.col("stem") == pl.col("base")).sum(), n=pl.col("sequence").n_unique()
    )
    ordered = scores.sort(
        "same", "n", *_CREATOR, "creator", descending=[True, True, False, False, False]
    )
    threads: dict[tuple[int, int], int] = {}
    for pid, forward_id, creator, *_ in ordered.iter_rows():
        if (pid, forward_id) not in threads and creator not in threads.values():
            threads[pid, forward_id] = creator
    types = dict.fromkeys((*_CREATOR, "creator"), pl.Int64)
    rows = [(*key, creator) for key, creator in threads.items()]
    frame = pl.DataFrame(rows, schema=types, orient="row")
    return frame.cast({"creator": forward.schema["thread"]})


def _stem() -> pl.Expr:
    """Return ``addmm`` of ``aten::addmm`` and of ``AddmmBackward0``."""
    return pl.col("name").str.extract(_STEM).str.to_lowercase().str.replace_all("_", "")
