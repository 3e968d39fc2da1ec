"""Bounded pages of results, and the process that executes tools."""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from time import monotonic
from typing import Any

from traceanalyzer.errors import OptionError, TraceAnalyzerError
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.render.data import as_json
from traceanalyzer.render.pieces import resource
from traceanalyzer.render.text import shorten, visible
from traceanalyzer.result import SCHEMA_VERSION, Result
from traceanalyzer.run.read import OfAllFiles
from traceanalyzer.tools.mcp.tools import MOST_ROWS, PAGE, ROWS, Roots, Schema, tools

#: Most characters of an answer, and of a text in it.
MOST_CHARACTERS, MOST_TEXT = 100_000, 2_000
#: Length of texts if one row is too long.
_SHORT_TEXT = 200
#: Significant digits of numbers that are not integers.
_DIGITS = 6
_LONGEST_ERROR = 2_000
_KEPT_RESULTS = 4
_PROGRESS_SECONDS = 0.25

#: JSON schema of every answer, published as ``docs/result.schema.json``.
RESULT_SCHEMA: Schema = json.loads(resource(__package__, "result.schema.json"))


class Answers:
    """Answers calls of tools; keeps the last results for their next pages."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._results: OrderedDict[str, Result] = OrderedDict()

    def answer(
        self, name: str, arguments: Mapping[str, Any], progress: Progress | None = None
    ) -> dict[str, Any]:
        """Return a page of the result of a tool as plain values that JSON can hold.

        Args:
            name: name of the tool.
            arguments: arguments of its schema; null counts as absent.
            progress: called with bytes done and total bytes of all files.

        Raises:
            TraceAnalyzerError: an argument is invalid, or the analysis raises it.
        """
        tool = tools().get(name)
        if tool is None:
            raise OptionError(f"unknown tool {name!r}; tools: {', '.join(tools())}")
        given = {key: value for key, value in arguments.items() if value is not None}
        tool.check(given)
        files = [file for path in tool.paths(given) for file in self._roots.files(path)]
        asked = {key: value for key, value in given.items() if key not in PAGE}
        key = json.dumps([name, asked, files], sort_keys=True)
        result = self._results.pop(key, None)
        if result is None:
            total = sum(size for _, size, _ in files)
            meter = None if progress is None else OfAllFiles(progress, total)
            result = tool.call(given, self._roots, meter)
        self._results[key] = result
        if len(self._results) > _KEPT_RESULTS:
            self._results.popitem(last=False)
        return bounded(result, **{name: given[name] for name in PAGE if name in given})


def bounded(
    result: Result, *, tables: Sequence[str] = (), offset: int = 0, limit: int = ROWS
) -> dict[str, Any]:
    """Return a page of a result within :data:`MOST_CHARACTERS` characters of JSON.

    Rows are left for the next page, and long texts shortened, until it fits.

    Args:
        result: the result.
        tables: tables to return rows of; default: all.
        offset: first row of each table.
        limit: most rows per table.

    Raises:
        OptionError: unknown table, or numbers alone are too long.
    """
    longest = MOST_TEXT
    while True:
        values = page_of(result, tables, offset, limit, longest)
        if len(json.dumps(values, ensure_ascii=False)) <= MOST_CHARACTERS:
            return values
        if limit == 1 and longest == _SHORT_TEXT:
            raise OptionError("the answer is too long; choose tables")
        limit, longest = (limit // 2, longest) if limit > 1 else (1, _SHORT_TEXT)


def page_of(
    result: Result, tables: Sequence[str], offset: int, limit: int, longest: int
) -> dict[str, Any]:
    """Return ``to_dict()`` of a result with ``limit`` rows per table, and ``page``.

    Raises:
        OptionError: the result has no table of a name in ``tables``.
    """
    parts = tuple(replace(one, frame=one.frame.slice(offset, limit)) for one in result.tables)
    part = copy(result)
    vars(part)["_view"] = replace(result._view, tables=parts)
    heights = {table.name: table.frame.height for table in result.tables}
    sliced = Result.to_dict(part)
    values = {"schema_version": SCHEMA_VERSION} | part.to_dict()
    counts = {}
    for name, value in values.items():
        if name == "notes":
            values[name] = value[:MOST_ROWS]
        elif isinstance(value, list):
            is_sliced = name in heights and value == sliced[name]
            counts[name] = heights[name] if is_sliced else len(value)
            values[name] = value if is_sliced else value[offset : offset + limit]
    unknown = [name for name in tables if name not in counts]
    if unknown:
        raise OptionError(f"no table {unknown[0]!r}; tables: {', '.join(counts)}")
    chosen = set(tables or counts)
    for name in counts.keys() - chosen:
        values[name] = []
    is_last = all(count <= offset + limit for name, count in counts.items() if name in chosen)
    next_offset = None if is_last else offset + limit
    values["page"] = {"offset": offset, "rows": counts, "next_offset": next_offset}
    cleaned: dict[str, Any] = _cleaned(json.loads(as_json(values)), longest)
    return {name: cleaned[name] for name in RESULT_SCHEMA["required"]} | cleaned


def _cleaned(value: Any, longest: int) -> Any:
    """Return a value with visible texts of at most ``longest`` letters and rounded numbers."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, str):
        return shorten(visible(value), longest)
    if isinstance(value, list):
        return [_cleaned(one, longest) for one in value]
    if isinstance(value, dict):
        return {_cleaned(key, longest): _cleaned(one, longest) for key, one in value.items()}
    return value


def work(folders: Sequence[str]) -> None:
    """Answer calls from standard input until it is closed, a line of JSON each.

    A call is ``{"tool": ..., "arguments": ...}``. Lines of standard output are ``{"done": ...,
    "total": ...}`` (bytes), then ``{"answer": ...}`` or ``{"error": ...}``. Anything else that is
    printed goes to standard error.
    """
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answers = Answers(Roots(folders))

    def write(**line: Any) -> None:
        output.write(json.dumps(line) + "\n")
        output.flush()

    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = answers.answer(call["tool"], call["arguments"], _throttled(write))
        except TraceAnalyzerError as error:
            write(error=_one_line(str(error)))
        except MemoryError:
            write(error="out of memory; use rank, since or until to read less")
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            write(error=_one_line(f"{place}{(error.strerror or str(error)).lower()}"))
        except Exception as error:  # noqa: BLE001 - a client never sees a traceback
            write(error=_one_line(f"internal error: {type(error).__name__}: {error}"))
        else:
            write(answer=answer)


def _throttled(write: Callable[..., None]) -> Progress:
    """Return a callback that writes progress a few times per second, if there is some."""
    last, following = -1, 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last, following
        now = monotonic()
        if done > last and now >= following:
            last, following = done, now + _PROGRESS_SECONDS
            write(done=done, total=total)

    return progress


def _one_line(message: str) -> str:
    return shorten(visible(message), _LONGEST_ERROR)
