"""Sorted rows and selected columns of the tables of a result (``--sort`` and ``--columns``)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TypeVar

import polars as pl

from traceanalyzer.errors import OptionError
from traceanalyzer.result import Result, Table

R = TypeVar("R", bound=Result)

_DESCENDING = {"asc": False, "desc": True}
_UNITS = ("_ns", "_bytes", "_frac", "_gbps", "_tflops")


def arranged(result: R, *, sort: Sequence[str] = (), columns: Sequence[str] = ()) -> R:
    """Return the result with sorted rows and only some columns in its tables.

    A column is ``TABLE.COLUMN``, or ``COLUMN`` of every table that has it, by its name (with or
    without unit) or its heading; a table by its name or title. Tables without any of the columns
    stay as they are.

    Args:
        result: the result.
        sort: columns to sort by, the most important first: numbers in descending order (lists by
            their length), text ascending; ``COLUMN:asc`` and ``COLUMN:desc`` override that. Nulls
            come last.
        columns: columns to keep, in order.

    Raises:
        OptionError: no table has the column; the message lists the columns.
    """
    keys = [_ordered(text, result.tables) for text in sort]
    _require("--sort", [name for name, _ in keys], result.tables)
    _require("--columns", columns, result.tables)
    tables = tuple(_selected(_sorted(table, keys), columns) for table in result.tables)
    view = replace(result._view, tables=tables)
    changed = copy(result)
    vars(changed)["_view"] = view
    return changed


def _ordered(text: str, tables: Sequence[Table]) -> tuple[str, bool | None]:
    """Return the column of a text like ``COLUMN:desc``, and whether it is descending, if given.

    Headings may contain a colon: ``idle: launches``.
    """
    name, colon, order = text.rpartition(":")
    if any(_column(table, text) for table in tables):
        return text, None
    if colon and order.strip() in _DESCENDING:
        return name, _DESCENDING[order.strip()]
    if colon and any(_column(table, name) for table in tables):
        raise OptionError(f"--sort: unknown order {order!r}; use :asc or :desc")
    return text, None


def _require(option: str, names: Sequence[str], tables: Sequence[Table]) -> None:
    for name in names:
        if not any(_column(table, name) for table in tables):
            lists = [f"{table.name}: {', '.join(_short_names(table))}" for table in tables]
            raise OptionError(f"{option}: unknown column {name!r}; tables have {'; '.join(lists)}")


def _short_names(table: Table) -> list[str]:
    return [_without_unit(name) for name in table.columns or table.frame.columns]


def _column(table: Table, text: str) -> str | None:
    """Return the column of the table that a text names, or None."""
    first, dot, rest = text.partition(".")
    if dot and _plain(first) not in (table.name, _plain(table.title)):
        return None
    names = table.frame.columns
    known = {_without_unit(name): name for name in reversed(names)}
    known |= {_plain(label): name for name, label in table.columns.items()}
    known |= {name: name for name in names}
    if "n" in names:
        known.setdefault("count", "n")
    return known.get(_plain(rest if dot else first))


def _sorted(table: Table, sort: Sequence[tuple[str, bool | None]]) -> Table:
    keys, descending = list[pl.Expr](), list[bool]()
    hide_first = table.hiding_order
    for name, is_descending in sort:
        column = _column(table, name)
        if column is not None:
            dtype = table.frame.schema[column]
            is_number = dtype.is_numeric() or dtype.is_nested() or dtype == pl.Boolean
            keys.append(_key(column, dtype))
            descending.append(is_number if is_descending is None else is_descending)
            hide_first = tuple(one for one in hide_first if one != column)
    if not keys:
        return table
    frame = table.frame.sort(keys, descending=descending, nulls_last=True, maintain_order=True)
    return replace(table, frame=frame, hide_first=hide_first)


def _key(column: str, dtype: pl.DataType) -> pl.Expr:
    """Return what to sort a column by: lists by length, categories by name."""
    if dtype.is_nested():
        return pl.col(column).list.len()
    return pl.col(column).cast(pl.String) if dtype == pl.Categorical else pl.col(column)


def _selected(table: Table, columns: Sequence[str]) -> Table:
    selected = [column for text in columns if (column := _column(table, text))]
    if not selected:
        return table
    names = list(dict.fromkeys(selected))
    labels = {name: table.columns.get(name, _without_unit(name)) for name in names}
    displayed = labels if table.columns else {}
    return replace(table, frame=table.frame.select(names), columns=displayed, hide_first=None)


def _plain(text: str) -> str:
    return text.strip().lower().replace(" ", "_").replace("-", "_")


def _without_unit(name: str) -> str:
    return next((name.removesuffix(unit) for unit in _UNITS if name.endswith(unit)), name)
