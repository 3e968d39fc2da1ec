"""Build the table ``metrics`` of a report, a chunk of rows at a time.

Chunks whose lines are all rows are read by polars directly. Others (headers, messages, the output
of the program, damaged rows) are first separated line by line.
"""

from __future__ import annotations

import re

import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.ncu_csv import (
    Layout,
    Messages,
    Numbers,
    chunks,
    closed,
    is_short,
    regular_rows,
    sections,
    text_values,
    unit_of,
)
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.parsers.tables import as_table
from traceanalyzer.trace import Device, Issue, Meta, Trace, issue_rows
from traceanalyzer.vocabulary import NCU_CSV

_BLOCK = 8 << 20
#: Columns that identify a launch within a file.
IDENTITY = ("host", "pid", "id", "kernel", "device", "grid", "block")
_TEXTS = ("host", "kernel", "cc", "grid", "block", "section", "label", "metric", "unit", "text",
          "rule", "rule_type", "speedup_type")  # fmt: skip
_WHOLE = {"pid": pl.Int64, "id": pl.Int64, "device": pl.Int32, "launches": pl.Int64}
_NAME_METRIC = ("device__attribute_display_name", "Display Name")
#: How to write a report that ``roofline`` reads.
RECORD = "record with ncu --set full --csv --page raw --log-file FILE.csv COMMAND"
_NO_PERMISSION = re.compile(r"ERR_NVGPUCTRPERM")


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read a report; messages of ncu and the output of the program between rows are skipped.

    Raises:
        MalformedInput: no table, or a table without rows; the message has the error of ncu.
        UnreadableFile: the file cannot be read.
    """
    reader = _Reader(selection)
    for chunk in chunks(source.blocks(_BLOCK, progress)):
        reader.add(chunk)
    if not reader.rows:
        raise _no_rows(source, reader)
    rank = rank_from_name(source.path)
    return trace_of(source, NCU_CSV, reader.frames, reader.issues(source), rank)


def trace_of(
    source: Source,
    form: str,
    frames: list[pl.DataFrame],
    issues: list[Issue],
    rank: int | None,
) -> Trace:
    """Return the trace with the metrics of a report, whose launches are numbered here."""
    for at, launch in enumerate(_launches(frames)):
        rows = frames[at].with_columns(launch=launch, rank=pl.lit(rank, pl.Int32))
        frames[at] = as_table(rows, "metrics")
    metrics = pl.concat(frames, rechunk=False) if frames else schema.empty("metrics")
    frames.clear()
    meta = Meta(path=source.path, format=form, rank=rank, devices=_devices(metrics))
    return Trace((meta,), metrics=metrics, issues=issue_rows(issues, rank))


def _launches(frames: list[pl.DataFrame]) -> list[pl.Series]:
    """Return the number of the launch of each row, for each frame.

    Rows of a launch follow each other, except where a file has several tables of one launch.
    """
    changed = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in IDENTITY)
    begins = [frame.select(begin=changed | (pl.int_range(pl.len()) == 0)) for frame in frames]
    firsts = [
        frame.select(IDENTITY).filter(begin["begin"])
        for frame, begin in zip(frames, begins, strict=True)
    ]
    if not firsts:
        return []
    every = pl.concat(firsts)
    keys = every.unique(maintain_order=True).with_row_index("launch")
    joined = every.join(keys, on=IDENTITY, how="left", nulls_equal=True, maintain_order="left")
    numbers, at = [], 0
    for first, begin in zip(firsts, begins, strict=True):
        of_frame = joined["launch"].slice(at, first.height)
        at += first.height
        numbers.append(of_frame.gather(begin["begin"].cast(pl.UInt32).cum_sum() - 1))
    return numbers


def _devices(metrics: pl.DataFrame) -> tuple[Device, ...]:
    """Return the GPUs by the name that the raw page contains."""
    names = metrics.filter(pl.col("metric").cast(pl.String).is_in(_NAME_METRIC))
    pairs = names.select("device", pl.col("text").cast(pl.String)).drop_nulls().unique()
    return tuple(Device(device, name) for device, name in pairs.sort("device", "text").rows())


def _no_rows(source: Source, reader: _Reader) -> MalformedInput:
    messages = reader.messages
    message = next(iter((*messages.errors, *messages.warnings)), None)
    if message:
        hint = RECORD
        if _NO_PERMISSION.search(" ".join(messages.errors)):
            hint = "let users read GPU counters: https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        return MalformedInput(source.path, f"a report of ncu without kernels: {message}", hint=hint)
    if reader.layout is None:
        return MalformedInput(source.path, "output of ncu without a table", hint=RECORD)
    what = "the table of ncu has no complete row"
    return MalformedInput(source.path, source.damage or what, hint=RECORD)


class _Reader:
    """The rows of a report, and what was skipped.

    Attributes:
        layout: of the current table.
        messages: lines that are not rows.
        frames: the metrics and rules of each chunk.
        rows: number of rows of tables.
        bad: number of rows without a kernel, which are skipped.
        truncated: whether the last row is incomplete.
    """

    def __init__(self, selection: Selection) -> None:
        kinds = selection.kinds
        self.is_wanted = kinds is None or "metric" in kinds
        self.substrings = selection.metrics
        self.layout: Layout | None = None
        self.messages = Messages()
        self.frames: list[pl.DataFrame] = []
        self.rows = self.bad = 0
        self.truncated = False
        self._numbers = Numbers()
        self._units: pl.DataFrame | None = None  # of a wide table

    def add(self, chunk: bytes) -> None:
        """Read a chunk, which ends with a line."""
        self.truncated = False
        before = self.bad + self.messages.bad
        self._add_chunk(chunk)
        if not chunk.endswith(b"\n"):  # only the last chunk
            dropped = self.bad + self.messages.bad > before
            self.truncated = dropped or is_short(chunk, self.layout)
            self.bad -= dropped

    def _add_chunk(self, chunk: bytes) -> None:
        rows = regular_rows(chunk, self.layout) if self.layout else 0
        if rows and self._add_rows(chunk, rows):
            return
        for layout, records in sections(chunk, self.layout, self.messages):
            if records and layout:
                self._add_records(records, layout)
            else:
                self.layout, self._units = layout, None

    def _add_records(self, records: list[bytes], layout: Layout) -> None:
        """Add rows; without those that prevent reading the others, which are counted."""
        if not self._add_rows(b"\n".join(records), len(records)):
            readable = self._readable(records, layout)
            if readable and not self._add_rows(b"\n".join(readable), len(readable)):
                self.messages.bad += len(readable)

    def _readable(self, records: list[bytes], layout: Layout) -> list[bytes]:
        """Return the rows that polars reads as one row each, by bisection."""
        read = _cells(b"\n".join(records), layout, self._places(layout))
        if read is not None and read.height == len(records):
            return records
        if middle := len(records) // 2:
            halves = records[:middle], records[middle:]
            return [row for half in halves for row in self._readable(half, layout)]
        rows = closed(records[0].split(b"\n"), layout, self.messages)
        return self._readable(rows, layout) if rows else []

    def _add_rows(self, text: bytes, count: int) -> bool:
        """Add rows; return False if polars reads another number of rows."""
        layout = self.layout
        if layout is None:
            return False
        raw = _cells(text, layout, self._places(layout))
        if raw is None or raw.height != count:
            return False
        self.rows += count
        if not self.is_wanted:
            return True
        if layout.is_wide:
            self._add_wide(raw, layout)
        else:
            self._add_long(raw)
        return True

    def _places(self, layout: Layout) -> dict[str, int]:
        """Return the columns to read: those of the schema, and wanted metrics of wide tables."""
        places = dict(layout.columns)
        for place, name, _ in layout.metrics:
            if self._wants(name):
                places[f"metric {place}"] = place
        return places

    def _wants(self, metric: str) -> bool:
        return not self.substrings or any(part in metric for part in self.substrings)

    def _add_long(self, raw: pl.DataFrame) -> None:
        """Add rows of a long table or a summary."""
        has_rule = "rule" in raw.columns
        names = raw["metric"].unique().drop_nulls().to_list()
        wanted = [name for name in names if name and self._wants(name)]
        metric = pl.col("metric").is_in(wanted)
        rule = pl.col("rule").fill_null("") != "" if has_rule else pl.lit(value=False)
        filled = pl.col("metric").fill_null("") != ""
        self._count_bad(raw.filter(~filled & ~rule).height)
        self._append(raw.filter(metric & filled), raw.filter(rule) if has_rule else None)

    def _add_wide(self, raw: pl.DataFrame, layout: Layout) -> None:
        """Add rows of a wide table as one row per metric."""
        blank = (pl.col("kernel").fill_null("") == "") & (pl.col("id").fill_null("") == "")
        units, rows = raw.filter(blank), raw.filter(~blank)
        if self._units is None:
            self._units = _units_of(layout, units.head(1), self._places(layout))
            units = units.slice(1)
        self._count_bad(units.height)
        self.rows -= raw.height - rows.height
        names = [name for name in raw.columns if name.startswith("metric ")]
        kept = [name for name in raw.columns if not name.startswith("metric ")]
        long = rows.unpivot(names, index=kept, variable_name="place", value_name="value")
        joined = long.join(self._units, on="place", how="left", maintain_order="left").drop("place")
        # the rows of a launch follow each other
        order = joined.with_row_index("at").with_columns(pl.col("at") % max(rows.height, 1))
        self._append(order.sort("at", maintain_order=True).drop("at"), None)

    def _count_bad(self, count: int) -> None:
        self.bad += count
        self.rows -= count

    def _append(self, rows: pl.DataFrame, rules: pl.DataFrame | None) -> None:
        if rows.height:
            self.frames.append(_typed(self._with_values(rows)))
        if rules is not None and rules.height:
            speedup = pl.Series([None] * rules.height, dtype=pl.Float64)
            if "speedup" in rules.columns:
                speedup = self._numbers.convert(rules["speedup"]) / 100
            known = rules.drop("metric", "unit", "value", strict=False).rename(
                {"description": "text"} if "description" in rules.columns else {}
            )
            self.frames.append(_typed(known.with_columns(speedup_frac=speedup)))

    def _with_values(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with values in base units."""
        numbers = self._numbers.convert(rows["value"])
        texts = text_values(rows["value"], numbers)
        unit = rows["unit"] if "unit" in rows.columns else pl.Series([""] * rows.height)
        unit = unit.fill_null("")
        names = unit.unique().to_list()
        base = [unit_of(name) for name in names]
        values = numbers * unit.replace_strict(names, [b[1] for b in base], return_dtype=pl.Float64)
        units = unit.replace_strict(names, [b[0] or None for b in base], return_dtype=pl.String)
        plain = rows.drop("unit", "rule", "rule_type", "description", "speedup_type", strict=False)
        return plain.with_columns(
            value=values.set(~values.is_finite(), None), text=texts, unit=units
        )

    def issues(self, source: Source) -> list[Issue]:
        """Return what was skipped or is unusual."""
        messages = self.messages
        error, warning = (next(iter(texts), None) for texts in (messages.errors, messages.warnings))
        return [
            ("data_loss", "bad-line", self.bad + messages.bad, None),
            ("data_loss", "truncated", int(self.truncated), "the last row"),
            ("data_loss", "ncu-error", messages.counts["errors"], error),
            ("notice", "ncu-warning", messages.counts["warnings"], warning),
            ("info", "program-output", messages.other, None),
            ("info", "decimal-comma", self._numbers.with_comma, None),
            *source.issues,
        ]


def _cells(text: bytes, layout: Layout, places: dict[str, int]) -> pl.DataFrame | None:
    """Return the cells of some columns as text; None if polars cannot read them."""
    # the first line determines the number of columns; short rows end with nulls
    first = layout.delimiter.join(['""'] * layout.width).encode() + b"\n"
    columns = sorted(set(places.values()))
    try:
        read = pl.read_csv(
            first + text,
            has_header=False,
            separator=layout.delimiter,
            columns=columns,
            infer_schema=False,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
        )
    except (pl.exceptions.PolarsError, OSError):
        return None
    at = dict(zip(columns, read.columns, strict=True))
    return read.slice(1).select(pl.col(at[place]).alias(name) for name, place in places.items())


def _units_of(layout: Layout, first: pl.DataFrame, places: dict[str, int]) -> pl.DataFrame:
    """Return place, metric and unit of each column: of the header, or of the line below it."""
    below = first.row(0, named=True) if first.height else {}
    rows = []
    for place, name, unit in layout.metrics:
        key = f"metric {place}"
        if key in places:
            rows.append((key, name, unit if unit is not None else below.get(key) or ""))
    types = dict.fromkeys(("place", "metric", "unit"), pl.String)  # also without any metric
    return pl.DataFrame(rows, schema=types, orient="row")


def _typed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return all columns of the table but ``launch`` and ``rank``, in their types."""
    present: list[pl.Expr] = []
    for column in schema.TABLES["metrics"]:
        name = column.name
        if name in ("launch", "rank"):
            continue
        if name not in rows.columns:
            default = 1 if name == "launches" else None
            present.append(pl.lit(default, column.dtype).alias(name))
        elif name in _WHOLE:
            digits = pl.col(name).str.replace_all(r"[.,\s]", "")
            whole = digits.cast(pl.Int64, strict=False).cast(_WHOLE[name], strict=False)
            present.append(whole.fill_null(1) if name == "launches" else whole)
        elif name in _TEXTS:
            text = pl.col(name).str.strip_chars()
            present.append(pl.when(text != "").then(text).cast(column.dtype).alias(name))
        else:
            present.append(pl.col(name))
    return rows.select(present)
