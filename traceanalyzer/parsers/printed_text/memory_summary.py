"""``torch.cuda.memory_summary()``: what PyTorch's allocator counts, and A4SFramework's line above.

Figures are floored to the unit printed behind them, which is the largest error of a figure. The
message of an out-of-memory error, whose figures are rounded to two digits, is a form of its own.
"""

import re

from traceanalyzer.parsers.printed_text.lines import Line, Rows, count, number, size

FORM, ERROR = "memory_summary", "out_of_memory"

_HEAD = re.compile(r"\|\s*PyTorch (\w+) memory summary, device ID (\d{1,4})\s*\|$")
_PROBLEMS = re.compile(r"\|\s*\w+ OOMs: (\d{1,18})\s*\|\s*\w+ retries: (\d{1,18})\s*\|")
_RULE = re.compile(r"\|={20,}\|\s*$")
_ROW = re.compile(r"\|([^|]{10,40})\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|\s*$")
_CELL = re.compile(r"\s*-?\d+ *([A-Za-z]*)\s*$")
_REQUIREMENT = re.compile(r"\bMemory requirement: (\d+(?:\.\d+)?) MB\s*$")
_SIZE = r"(\d[\d.]{0,15} (?:[KMGT]iB|bytes))"
_WANTED = re.compile(rf"(?:\b([A-Z]{{2,8}}) )?out of memory\. Tried to allocate {_SIZE}")
#: What the message of an error says, in PyTorch 1.0 to 2.10.
_FIGURES = {
    "capacity_bytes": re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity"),
    "free_bytes": re.compile(rf"{_SIZE} (?:is )?free\b"),
    "allowed_bytes": re.compile(rf"{_SIZE} allowed;"),
    "allocated_bytes": re.compile(rf"{_SIZE} (?:is allocated by PyTorch|already allocated)"),
    "unused_bytes": re.compile(rf"{_SIZE} (?:is reserved by PyTorch but unallocated|cached\b)"),
    "reserved_bytes": re.compile(rf"{_SIZE} reserved in total by PyTorch"),
}
_DEVICE = re.compile(r"\b[A-Z]?PU (\d{1,4})\b")
_METRICS = ("current", "peak", "total_allocated", "total_freed")
#: Rows that count in numbers, not in bytes.
_COUNTED = ("Allocations", "Active allocs", "segments", "allocs", "Oversize")
_MOST_OTHERS = 100


class Reader:
    """Reads the summaries of one process."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.is_open = False
        self._block, self._row, self._others = 0, 0, 0
        self._name = ""
        self._wanted: dict[str, float | None] = {}

    def feed(self, line: Line) -> bool:
        """Read a line; return whether it belongs to a summary."""
        text = line.text.partition("#")[0].strip()  # users comment the rows
        if match := _HEAD.search(text):
            self.close(line)
            self._block, self._row, self._others, self._name = self.rows.block(), 0, 0, ""
            self.is_open = True
            device = {"device": float(match[2]), **self._wanted}
            self._wanted = {}
            self.rows.add(FORM, (self._block, None), line, device)
            return True
        if match := _REQUIREMENT.search(line.text):
            requirement = size(f"{match[1]} MB")
            self.rows.add(FORM, (self.rows.block(), None), line, {"requirement_bytes": requirement})
            return True
        if match := _WANTED.search(line.text):
            self._wanted = {"requested_bytes": size(match[2])}
            return self._error(line, line.text[match.start() :], match[1])
        return self.is_open and self._inside(line, text)

    def _error(self, line: Line, text: str, api: str | None) -> bool:
        """Read the figures of the message of an error, if it has them; its API is the name."""
        matches = {name: pattern.search(text) for name, pattern in _FIGURES.items()}
        texts = {name: one[one.lastindex or 0] for name, one in matches.items() if one}
        known = {name: size(text.replace("bytes", "B")) for name, text in texts.items()}
        device = _DEVICE.search(text)
        figures = {"device": float(device[1]) if device else None, **self._wanted, **known}
        self.rows.add(ERROR, (self.rows.block(), None), line, figures, name=api or "")
        return True

    def close(self, line: Line) -> None:
        """End the text: a summary without its last line is truncated."""
        if self.is_open:
            self.rows.note("data_loss", "truncated-table", line)
        self.is_open = False

    def _inside(self, line: Line, text: str) -> bool:
        if _RULE.match(text):
            self.is_open = self._row == 0
            return True
        if match := _PROBLEMS.fullmatch(text):
            problems = {"ooms": number(match[1]), "retries": number(match[2])}
            self.rows.add(FORM, (self._block, None), line, problems)
            return True
        if re.fullmatch(r"\|-{20,}\|", text) or text.replace(" ", "").startswith("|Metric|"):
            return True
        match = _ROW.match(text)
        values = None if match is None else self._values(match)
        if match is None or values is None:
            if text[:1] == "|" and not text[1:].lstrip().startswith("from "):
                self._name = ""  # the rows below are of this one
            return self._no_row(line, text)
        self._others = 0
        self.rows.add(FORM, (self._block, self._row), line, values, name=self._full_name(match))
        self._row += 1
        return True

    def _full_name(self, match: re.Match[str]) -> str:
        """Return the name of a row: that of its group for ``from large pool``."""
        name = match[1].strip()
        if name.startswith("from "):
            return f"{self._name}, {name.removeprefix('from ')}"
        self._name = name
        return name

    def _values(self, match: re.Match[str]) -> dict[str, float | str | None] | None:
        name = match[1].strip()
        group = self._name if name.startswith("from ") else name
        cells = [match[i] for i in range(2, 6)]
        if not group or not all(map(_CELL.match, cells)):
            return None
        if any(word in group for word in _COUNTED):
            numbers = [count(cell) for cell in cells]
            return {f"{m}_n": n for m, n in zip(_METRICS, numbers, strict=True)}
        sizes = [size(cell) for cell in cells]
        unit = _CELL.match(cells[1])
        values = {f"{m}_bytes": n for m, n in zip(_METRICS, sizes, strict=True)}
        return {**values, "unit_bytes": size(f"1 {unit[1]}") if unit else None}

    def _no_row(self, line: Line, text: str) -> bool:
        self._others += 1
        is_row = text.startswith("|") or text.endswith("|")
        code = ("data_loss", "bad-row") if is_row else ("notice", "line-in-table")
        if text:
            self.rows.note(*code, line)
        if self._others > _MOST_OTHERS:
            self.close(line)
        return is_row
