"""``key_averages().table()`` of torch.profiler: one row per operator.

The dashes below the header give the positions of the columns, by which every row is cut: names
contain blanks. With stacks, a row goes on in further lines that have only a location. Cells between
``|`` (Markdown) or tabs (copied from a spreadsheet) are cut there; such a table has no last rule.
Rows that are not below the dashes, or without any, are cut at two blanks or more.
"""

import re
from collections.abc import Callable

from traceanalyzer.parsers.printed_text.lines import Line, Rows, count, nanoseconds, number, size

FORM = "key_averages"

_RULE = re.compile(r" *+-{2,}+(?: {2}-{2,}+){3,} *+")
_HEADER = re.compile(r"[\s|]*Name\b(?:\s*(?P<separator>[|\t]))?.*(?:# of Calls|Number of Calls)")
_FOOTER = re.compile(r"\s*(?:Self )?(CPU|[A-Z]\w*) time total: (\S+)\s*$")
#: What is between cells; a name may extend to the percentage after it.
_BLANKS = re.compile(r"(?<=[^\d. -]) ?(?=-?\d{1,3}\.\d\d%)| {2,}")
#: Lines without a row after which a table without its end counts as truncated.
_MOST_OTHERS = 200
#: Continuation lines of one row: the frames of a stack.
_MOST_LINES = 1000

_Read = Callable[[str], float | None]


def _share(text: str) -> float | None:
    return number(text.strip().replace("%", "e-2"))


#: Metric and unit by the heading; ``CUDA`` stands for any device.
_COLUMNS: dict[str, tuple[str, _Read]] = {
    "Self CPU %": ("self_host_frac", _share),
    "CPU total %": ("total_host_frac", _share),
    "Self CUDA %": ("self_device_frac", _share),
    "Self CPU": ("self_host_ns", nanoseconds),
    "Self CPU total": ("self_host_ns", nanoseconds),
    "CPU total": ("total_host_ns", nanoseconds),
    "Self CUDA": ("self_device_ns", nanoseconds),
    "Self CUDA total": ("self_device_ns", nanoseconds),
    "CUDA total": ("total_device_ns", nanoseconds),
    "CPU Mem": ("total_host_memory_bytes", size),
    "Self CPU Mem": ("self_host_memory_bytes", size),
    "CUDA Mem": ("total_device_memory_bytes", size),
    "Self CUDA Mem": ("self_device_memory_bytes", size),
    "# of Calls": ("calls", number),
    "Number of Calls": ("calls", number),
    "Node ID": ("node", number),
}
_TEXTS = {"Overload Name": "overload", "Input Shapes": "input_dims"}
_STACK, _FLOPS = "Source Location", re.compile(r"Total (\w?)FLOPs$")
_DEVICE = re.compile(r"^(Self )?(?!CPU\b)([A-Z][A-Z0-9]{1,14})( (?:total|Mem)| %| time avg)?$")


class Reader:
    """Reads the tables of one process.

    Attributes:
        rows: where rows are added.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._spans: list[tuple[int, int]] = []
        self._headings: list[str] = []
        self._state, self._head, self._separator = "outside", "", ""
        self._block, self._row, self._others = 0, 0, 0
        self._pending: tuple[Line, list[str], list[str]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next line may belong to a table."""
        return self._state != "outside"

    def feed(self, line: Line) -> bool:
        """Read a line; return whether it belongs to a table."""
        if line.text.endswith(("-", "- ", "-  ")) and _RULE.fullmatch(line.text):
            return self._dashes(line.text)
        if match := _HEADER.match(line.text):
            self.close(line)
            self._head, self._state = line.text, "header"
            self._separator = match["separator"] or ""
            if self._separator:
                self._begin(self._cells(line.text))
            return True
        apart = len(_BLANKS.split(line.text.strip()))
        if self._state == "header" and apart == len(_BLANKS.split(self._head.strip())):
            self._start([])
        is_footer = _FOOTER.match(line.text) or self._separator not in line.text
        if self._state == "rows" and is_footer:
            self._flush()
            self._state = "footer"
        if self._state == "footer":
            return self._footer(line)
        return self._state == "rows" and self._table_row(line)

    def close(self, line: Line) -> None:
        """End the text: a table without its last rule is truncated."""
        self._flush()
        if self._state in ("header", "rows") and self._spans and not self._separator:
            self.rows.note("data_loss", "truncated-table", line)
        self._state = "outside"

    def _dashes(self, rule: str) -> bool:
        if self._state == "rows":
            self._flush()
            self._state = "footer"
        elif self._state == "header":
            self._start([group.span() for group in re.finditer(r"-{2,}", rule)])
        return True

    def _start(self, spans: list[tuple[int, int]]) -> None:
        """Start a table at the dashes below its header; other text may join those above it."""
        head, end = self._head, spans[0][1] if spans else 0
        is_left = head.index("Name") + len("Name") < end
        self._spans = spans
        # until PyTorch 1.5, headings are wider than their columns
        apart = _BLANKS.split(head.strip())
        fits = len(spans) == len(apart) or (len(spans) > len(apart) and not is_left)
        self._spans = spans if fits else []
        self._begin(apart if is_left or not fits else self._cells(head))

    def _begin(self, headings: list[str]) -> None:
        self._headings = [heading.strip() for heading in headings]
        known = any(_general(heading) in _COLUMNS for heading in self._headings)
        self._state = "rows" if known else "outside"
        if known:
            self._block, self._row, self._others = self.rows.block(), 0, 0

    def _cells(self, text: str) -> list[str]:
        """Cut a line at the columns; the last one extends to the end of the line."""
        if self._separator:
            return text.strip(" ").removeprefix("|").removesuffix("|").split(self._separator)
        cells = [text[start:end] for start, end in self._spans[:-1]]
        return [*cells, text[self._spans[-1][0] if self._spans else 0 :]]

    def _table_row(self, line: Line) -> bool:
        text = line.text
        if not text.strip(" \t|:-" if self._separator else None):  # Markdown's rule, too
            return self._pending is not None
        cells = self._cells(text)
        blank = not "".join(cells[:-2] or cells).strip()
        if blank and self._pending is not None and _STACK in self._headings:
            if len(self._pending[2]) < _MOST_LINES:
                self._pending[2].append("".join(cells[-2:]).strip())
            return True
        if not (cells := self._row_cells(text)):
            return self._no_row(line, text)
        self._flush()
        self._others = 0
        self._pending = (line, cells, [])
        return True

    def _row_cells(self, text: str) -> list[str]:
        """Return the cells of a row, cut at the columns or at blanks; none for other text."""
        gaps = "".join(text[end : end + 2] for _, end in self._spans[:-1]).strip()
        for cells in ([] if gaps else self._cells(text), _BLANKS.split(text.strip())):
            if len(cells) == len(self._headings) and self._values(cells).get("calls") is not None:
                return cells
        return []

    def _no_row(self, line: Line, text: str) -> bool:
        """Count a line inside a table that is not a row; return whether it was one."""
        self._others += 1
        was_row = text.rstrip().count("  ") >= len(self._headings) - 2 or "%  " in text
        code = ("data_loss", "bad-row") if was_row else ("notice", "line-in-table")
        self.rows.note(*code, line)
        if self._others > _MOST_OTHERS:
            self.close(line)
        return was_row

    def _flush(self) -> None:
        """Add the row whose lines are complete."""
        if self._pending is None:
            return
        line, cells, more = self._pending
        self._pending = None
        values: dict[str, float | str | None] = dict(self._values(cells))
        texts = {_TEXTS[h]: c.strip() for h, c in self._by_heading(cells).items() if h in _TEXTS}
        frames = [frame for frame in [self._location(cells), *more] if frame and frame != "--"]
        if frames:
            texts["stack"] = "\n".join(frames)  # innermost first
        values |= {metric: text for metric, text in texts.items() if text}
        self.rows.add(FORM, (self._block, self._row), line, values, name=cells[0].strip())
        self._row += 1

    def _by_heading(self, cells: list[str]) -> dict[str, str]:
        return dict(zip(self._headings, cells, strict=True))

    def _values(self, cells: list[str]) -> dict[str, float | None]:
        """Return the numbers of a row; other cells are None."""
        known = {_general(heading): cell for heading, cell in self._by_heading(cells).items()}
        values = {
            _COLUMNS[h][0]: _COLUMNS[h][1](cell) for h, cell in known.items() if h in _COLUMNS
        }
        return values | {"flops": self._flops(cells)}

    def _flops(self, cells: list[str]) -> float | None:
        """Return the FLOPs; PyTorch exchanges them with the location, if there are both."""
        by_heading = self._by_heading(cells)
        match = next(filter(None, map(_FLOPS.match, by_heading)), None)
        if match is None:
            return None
        return count(by_heading.get(_STACK, by_heading[match[0]]).strip() + match[1])

    def _location(self, cells: list[str]) -> str:
        by_heading = self._by_heading(cells)
        flops = [cell for heading, cell in by_heading.items() if _FLOPS.match(heading)]
        return [*flops, by_heading[_STACK]][0].strip() if _STACK in by_heading else ""

    def _footer(self, line: Line) -> bool:
        match = _FOOTER.match(line.text)
        if match is None:
            self._state = "outside" if line.text.strip() else self._state
            return False
        metric = "host_ns" if match[1] == "CPU" else "device_ns"
        self.rows.add(FORM, (self._block, None), line, {metric: nanoseconds(match[2])})
        return True


def _general(heading: str) -> str:
    """Return a heading with ``CUDA`` for any device: ``Self XPU`` is ``Self CUDA``."""
    match = _DEVICE.match(heading)
    return f"{match[1] or ''}CUDA{match[3] or ''}" if match else heading
