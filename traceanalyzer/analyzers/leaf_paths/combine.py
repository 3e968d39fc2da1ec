"""Several files' paths in one report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import polars as pl

from traceanalyzer.analyzers.leaf_paths.extract import LIBRARY, PATH, Part
from traceanalyzer.analyzers.leaf_paths.question import Question
from traceanalyzer.analyzers.leaf_paths.result import LeafPaths
from traceanalyzer.errors import InputError, OptionError
from traceanalyzer.limits import MOST_WEIGHT
from traceanalyzer.units import NS_PER_S, format_weight


def combine(
    parts: Sequence[Part],
    question: Question,
    *,
    rate: float | None = None,
    skipped: Sequence[tuple[str, str]] = (),
) -> LeafPaths:
    """The report over all parts; ``rate`` (samples a second) turns samples into seconds.

    Raises:
        InputError: the files count different things.
        OptionError: there are no parts, or the rate makes no sense.
    """
    if not parts:
        raise OptionError("no trace was given")
    for part in parts:
        if part.unit != parts[0].unit:
            counts = f"counts {part.unit or 'something'}, {parts[0].path} {parts[0].unit or 'not'}"
            raise InputError(part.path, counts, hint="give files that count the same")
    unit, scale = _unit(parts[0].unit or "", rate)
    total = math.fsum(part.total for part in parts) * scale
    rows = pl.concat([part.rows for part in parts]).with_columns(pl.col("samples") * scale)
    if question.aggregate and len(parts) > 1:
        keys = ["group", *PATH, *LIBRARY, "library"]
        rows = rows.group_by(keys, maintain_order=True).agg(pl.col("samples").sum())
    paths = rows.sort("samples", descending=True, maintain_order=True)
    paths = paths.with_columns(samples_frac=_share("samples", total))
    paths = paths.with_columns(proportion=_proportion(paths, unit))
    files = pl.concat(
        part.processes.with_columns(file=pl.lit(part.path if len(parts) > 1 else None, pl.String))
        for part in parts
    ).with_columns(pl.col("samples") * scale)
    tagged = rows.filter(pl.col("library").is_not_null())["samples"].sum()
    order = ("group", "name", "path", "line", *LIBRARY, "library", "samples", "samples_frac")
    processes = files.sort("samples", descending=True, maintain_order=True).select(
        "file", "pid", "command", "role", "samples", samples_frac=_share("samples", total)
    )
    leaves = rows.group_by(PATH, maintain_order=True).agg(pl.col("samples").sum())
    return LeafPaths(
        question=question,
        total_samples=total,
        unit=unit,
        tagged_samples=float(tagged),
        idle_samples=math.fsum(part.idle for part in parts) * scale,
        left_out_samples=math.fsum(part.left_out for part in parts) * scale,
        leaf=next(leaves.sort("samples", descending=True).head(1).iter_rows(named=True), {}),
        paths=_whole(paths.select(*order, "proportion")),
        groups=_whole(_groups(parts, total, scale)) if question.group_by else None,
        processes=_whole(processes),
        skipped=tuple(skipped),
    )


def _unit(unit: str, rate: float | None) -> tuple[str, float]:
    """The unit shown, and what weights are multiplied by."""
    if rate is None or unit == "ns":
        return unit, 1.0
    if unit != "samples":
        raise OptionError(f"seconds are for samples, and this file counts {unit or 'something'}")
    if not (math.isfinite(rate) and rate > 0):
        raise OptionError(f"a rate of {rate:g} samples a second makes no sense")
    return "ns", NS_PER_S / rate


def _whole(frame: pl.DataFrame) -> pl.DataFrame:
    """Weights as whole numbers where all of them are."""
    found = [name for name in ("samples", "self", "total") if name in frame.columns]
    if not all(_is_whole(frame[name]) for name in found):
        return frame
    return frame.with_columns(pl.col(found).cast(pl.Int64))


def _is_whole(weights: pl.Series) -> bool:
    return bool(((weights == weights.round()) & (weights.abs() <= MOST_WEIGHT)).all())


def _share(name: str, total: float) -> pl.Expr:
    return pl.col(name) / total if total else pl.lit(0.0)


def _proportion(paths: pl.DataFrame, unit: str) -> pl.Series:
    """``53.05% (7468)``, as itwinai's report writes it."""
    percent = _texts(paths["samples_frac"], lambda value: f"{100 * value:.2f}%")
    count = _texts(paths["samples"], lambda value: f"({_count(value, unit)})")
    return percent + " " + count


def _count(weight: float, unit: str) -> str:
    """Samples without their unit and commas, as itwinai's report has them."""
    return format_weight(weight, unit) if unit in ("ns", "bytes") else f"{weight:.12g}"


def _texts(values: pl.Series, write: Callable[[float], str]) -> pl.Series:
    """Numbers as text, each distinct one written once."""
    if values.is_empty():
        return pl.Series(dtype=pl.String)
    distinct = values.unique()
    told = pl.Series([write(value) for value in distinct], dtype=pl.String)
    return values.replace_strict(distinct, told, return_dtype=pl.String)


def _groups(parts: Sequence[Part], total: float, scale: float) -> pl.DataFrame:
    found = pl.concat([part.groups for part in parts if part.groups is not None])
    keys = [name for name in found.columns if name not in ("self", "total")]
    return (
        found.group_by(keys, maintain_order=True)
        .agg(pl.col("self", "total").sum() * scale)
        .sort("self", "total", *keys, descending=[True, True, *[False] * len(keys)])
        .select(
            *keys,
            "self",
            "total",
            self_frac=_share("self", total),
            total_frac=_share("total", total),
        )
    )
