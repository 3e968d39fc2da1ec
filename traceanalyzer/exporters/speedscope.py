"""speedscope JSON: one sampled profile per thread of a trace with sampled stacks."""

from collections.abc import Iterator
from typing import IO, Any

import orjson
import polars as pl

from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Trace, record_hint

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {"samples": "none", "ns": "nanoseconds", "bytes": "bytes", None: "none"}
_OWNER = ("rank", "pid", "tid", "category")
#: Samples per batch, to limit memory.
_BLOCK = 1 << 12


def write_speedscope(trace: Trace, file: IO[bytes]) -> None:
    """Write the samples of a trace, in order, with one profile per process, thread and category.

    Not written: other events, times, command lines of processes, issues.

    Args:
        trace: the trace.
        file: a binary file; need not be seekable.

    Raises:
        MissingData: the trace has no samples, or their weights have different units.
    """
    samples = trace.events.filter(pl.col("kind") == "sample")
    if samples.is_empty():
        raise MissingData(
            f"{trace.meta.path}: no sampled stacks, which a speedscope profile requires; "
            f"{record_hint(trace.meta, 'sample')}"
        )
    units = {meta.weight_unit for meta in trace.sources}
    if len(units) > 1:
        raise MissingData(
            f"{trace.meta.path}: samples with different units "
            f"({', '.join(sorted(map(str, units)))}); convert one file at a time"
        )
    frames, number = _frames(trace.stacks)
    parents = trace.stacks["parent"].to_list()
    file.write(b'{"$schema":' + orjson.dumps(_SCHEMA) + b',"exporter":"traceanalyzer"')
    file.write(b',"shared":{"frames":' + orjson.dumps(frames) + b'},\n"profiles":[')
    unit = _UNITS[units.pop()]
    names = _thread_names(trace.lanes)
    several = samples["rank"].n_unique() > 1
    for place, samples_of_profile in enumerate(samples.partition_by(_OWNER, maintain_order=True)):
        file.write(b",\n" if place else b"\n")
        name = _profile_name(samples_of_profile.row(0, named=True), names, several)
        _write_profile(file, samples_of_profile, name, unit, (parents, number))
    file.write(b"\n]}\n")


def _write_profile(
    file: IO[bytes],
    samples: pl.DataFrame,
    name: str,
    unit: str,
    tree: tuple[list[int | None], list[int]],
) -> None:
    weights = [_number(weight) for weight in samples["weight"].fill_null(1.0)]
    head = {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weights),
    }
    file.write(orjson.dumps(head)[:-1] + b',"weights":' + orjson.dumps(weights))
    file.write(b',"samples":[')
    paths = _paths(samples["stack"].to_list(), *tree)
    for start in range(0, samples.height, _BLOCK):
        block = [next(paths) for _ in range(min(_BLOCK, samples.height - start))]
        file.write((b"," if start else b"") + orjson.dumps(block)[1:-1])
    file.write(b"]}")


def _paths(
    leaves: list[int | None], parents: list[int | None], number: list[int]
) -> Iterator[list[int]]:
    """Yield the frames of each stack, outermost first."""
    for leaf in leaves:
        path = []
        node = leaf
        while node is not None:
            path.append(number[node])
            node = parents[node]
        yield path[::-1]


def _frames(stacks: pl.DataFrame) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the distinct frames in speedscope's form, and the frame number of each row."""
    columns = ["name", "file", "line"]
    distinct = stacks.select(columns).unique(maintain_order=True).with_row_index("_frame")
    joined = stacks.join(distinct, on=columns, how="left", nulls_equal=True, maintain_order="left")
    entries = [
        {key: value for key, value in row.items() if value is not None}
        for row in distinct.drop("_frame").to_dicts()
    ]
    return entries, joined["_frame"].to_list()


def _thread_names(lanes: pl.DataFrame) -> dict[tuple[Any, ...], tuple[str | None, bool]]:
    threads = lanes.drop_nulls("tid").select("rank", "pid", "tid", "label", "textual")
    return {row[:3]: row[3:] for row in threads.rows()}


def _profile_name(
    row: dict[str, Any], names: dict[tuple[Any, ...], tuple[str | None, bool]], several: bool
) -> str:
    """Return the profile name in py-spy's style; the label of a textual thread."""
    label, textual = names.get((row["rank"], row["pid"], row["tid"]), (None, False))
    parts = [f"Rank {row['rank']}"] if several and row["rank"] is not None else []
    if textual and label:
        return " ".join([*parts, label])
    if row["pid"] is not None:
        parts.append(f"Process {row['pid']}")
    if row["tid"] is not None:
        parts.append(f"Thread {row['tid']}")
        if label is not None:
            parts.append(f'"{label}"')
    if row["category"] in ("before", "after"):
        parts.append(row["category"])
    return " ".join(parts)


def _number(weight: float) -> float:
    return int(weight) if weight.is_integer() else weight
