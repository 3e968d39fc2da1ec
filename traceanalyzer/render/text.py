"""Text of values from files: escaped, shortened, one unit per column.

Every renderer uses these functions. The unit of a column or an axis follows from the suffix of its
name and the size of its values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from traceanalyzer.units import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    TIMES_FRAC,
    format_bytes,
    format_change,
    format_frac,
    format_ns,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceanalyzer.drawings import Finding, Table

# C0 and C1 controls, DEL; soft hyphen and zero-width characters; line separators; marks,
# embeddings, overrides and isolates that change the direction of text; the BOM; interlinear and tag
# characters. They can hide text, move the cursor or reorder the text around them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
_ELLIPSIS = "..."
_LONG_WORD = re.compile(r"\S{121,}")
_ARGUMENTS = "<[^<>]*>"
for _ in range(6):  # nested
    _ARGUMENTS = rf"<(?:[^<>]|(?<=-)>|{_ARGUMENTS})*>"
#: Arguments of a C++ template; not ``a < b`` or ``<module>``. Longer ones are left out.
_TEMPLATE, _LONG_ARGUMENTS = re.compile(rf"(?<=[\w:]){_ARGUMENTS}"), 60

TIMES = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "us"), (1, "ns"))
SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))

#: Suffix of a column's name -> (units, largest first).
_UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "ns": TIMES,
    "bytes": SIZES,
    "frac": ((0.01, "%"),),
    "gbps": ((1, "GB/s"),),
    "tflops": ((1, "TFLOP/s"),),
    "flops": ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP")),
}
_WHOLE_UNITS = ("ns", "B")
#: Medians of columns with one unit, in this unit.
_LEAST, _MOST = 0.01, 100_000

#: Integers that are identifiers, whose digits are not grouped.
_IDENTIFIERS = frozenset(
    (
        "rank",
        "pid",
        "tid",
        "device",
        "stream",
        "step",
        "seq",
        "correlation",
        "external_id",
        "event",
        "line",
        "library_function_line",
    )
)


#: Texts that are left out, see :func:`without`.
_LEFT_OUT: ContextVar[tuple[str, ...]] = ContextVar("_LEFT_OUT", default=())


@contextmanager
def without(parts: Sequence[str]) -> Iterator[None]:
    """Leave out these parts of all texts that are rendered, such as folders of a user's machine."""
    token = _LEFT_OUT.set(tuple(parts))
    try:
        yield
    finally:
        _LEFT_OUT.reset(token)


def visible(text: str) -> str:
    r"""Escape control, zero-width and direction characters: ESC becomes ``\x1b``."""
    for part in _LEFT_OUT.get():
        text = text.replace(part, "")
    return _UNSAFE.sub(_spelled, text)


def shorten(text: str, width: int) -> str:
    """Shorten text to ``width`` characters by cutting the middle: ``ncclDevKernel_...bf16)``."""
    if len(text) <= width:
        return text
    kept = max(width - len(_ELLIPSIS), 2)
    tail = kept // 2
    return f"{text[: kept - tail]}{_ELLIPSIS}{text[-tail:]}"


def prose(text: str) -> str:
    """Escape a sentence, and shorten long arguments of C++ templates and words."""
    brief = _TEMPLATE.sub(lambda m: "<...>" if len(m[0]) > _LONG_ARGUMENTS else m[0], visible(text))
    return _LONG_WORD.sub(lambda match: shorten(match[0], 72), brief)


#: A verdict shows at most so many sentences, with at most so many numbers; the rest are points.
_SENTENCES, _NUMBERS = 3, 5
#: Where to read more stays beside what it is about.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\.\.\.)(?<!e\.g\.)(?<!i\.e\.) (?=\S)(?!See )")
#: A number, not part of a name: ``ProfilerStep#12``, ``rank 5``, ``train.py:19`` are names.
_NUMBER = re.compile(r"(?<![\w#.:/\[-])(?<!ank )(?<!vice )\d[\d.,]*")


def answer(verdict: str) -> tuple[str, list[str]]:
    """Return the start of a verdict, as much as is read at a glance, and its further sentences."""
    first, *rest = _SENTENCE_END.split(verdict)
    lead, numbers = [first], len(_NUMBER.findall(first))
    while rest and len(lead) < _SENTENCES:
        numbers += len(_NUMBER.findall(rest[0]))
        if numbers > _NUMBERS:
            break
        lead.append(rest.pop(0))
    return " ".join(lead), rest


def first_sentence(text: str) -> str:
    """Return the text up to the end of its first sentence."""
    return _SENTENCE_END.split(text, maxsplit=1)[0]


def costs(finding: Finding) -> list[str]:
    """Return the cost of a finding: ``1.45 ms per step and GPU``, ``20.7 % of step time``."""
    time = format_ns(finding.cost_ns)
    texts = [f"{time} per {finding.per}" if time and finding.per else time]
    texts.append(format_bytes(finding.cost_bytes))
    if finding.cost_frac is not None:
        texts.append(f"{format_frac(finding.cost_frac)} of {finding.of}")
    return [text for text in texts if text]


def further_costs(finding: Finding) -> list[str]:
    """Return the costs whose numbers are not in the title."""
    return [text for text in costs(finding) if " ".join(text.split()[:2]) not in finding.title]


def gain(finding: Finding) -> str:
    """Return the gain of removing the cause of a finding; empty if it is at most the cost."""
    is_bound = finding.gain_basis == "bound"
    if not finding.gain_ns or (is_bound and finding.gain_ns >= (finding.cost_ns or 0)):
        return ""
    per = " per step" if finding.per.startswith("step") else ""
    share = format_frac(finding.gain_frac) + f" of {finding.gain_of}" * bool(finding.gain_of)
    return f"{'at most ' * is_bound}{format_ns(finding.gain_ns)}{per} ({share})"


def spaced(column: str) -> str:
    """Return the name of a column with spaces: ``bus bandwidth`` for ``bus_bandwidth``."""
    return column.replace("_", " ")


@dataclass(frozen=True)
class Scale:
    """Display unit of a column: values are divided by ``factor``."""

    factor: float = 1
    unit: str = ""

    def heading(self, label: str) -> str:
        """Return the label with its unit: ``median [us]``."""
        return f"{label} [{self.unit}]" if self.unit else label


def kind_of(column: str) -> str:
    """Return the suffix of a column that selects its units (``ns``, ``bytes``, ...), or empty."""
    return next((kind for kind in _UNITS if column.endswith(f"_{kind}")), "")


def is_identifier(column: str) -> bool:
    """Return whether a column contains identifiers, whose digits are not grouped."""
    return column in _IDENTIFIERS


def scale_of(column: str, magnitude: float) -> Scale:
    """Return the largest unit of the column in which ``magnitude`` is at least 1."""
    units = _UNITS.get(kind_of(column), ((1, ""),))
    return Scale(*next((pair for pair in units if magnitude >= pair[0]), units[-1]))


@dataclass(frozen=True)
class Cells:
    """A column of a table as text: label, unit, a text per value, whether it is numeric."""

    name: str
    label: str
    scale: Scale
    texts: list[str]
    numeric: bool


def row_sentences(table: Table, column: str, rows: int) -> Iterator[str]:
    """Yield each text of a column of ``table.sentences`` after the rows that it is about.

    Rows are named by the first column: ``3: TEXT`` for numbers, else ``why: NAME, NAME: TEXT``.
    """
    texts = table.frame.head(rows).select(next(iter(table.columns)), column).drop_nulls()
    label = "" if texts.dtypes[0].is_integer() else f"{visible(table.columns[column])}: "
    about: dict[str, list[str]] = {}
    for name, text in texts.iter_rows():
        about.setdefault(str(text), []).append(str(name))
    for text, names in about.items():
        yield prose(f"{label}{', '.join(names)}: {text}")


def table_cells(table: Table, rows: int) -> Iterator[Cells]:
    """Yield the first rows of each column.

    All times of a table have the same unit where possible, and always those in one group of
    ``table.alike``, which have the same decimals, too.
    """
    values = {column.name: column.to_list() for column in table.frame.head(rows)}
    times = [name for name in table.columns if name.endswith("_ns")]
    common = _common_scale([_numbers(values[name]) for name in times])
    for name, label in table.columns.items():
        group = next((names for names in table.alike if name in names), (name,))
        group = tuple(other for other in group if other in values)
        comparable = [value for other in group for value in values[other]]
        scale = common if name in times else None
        scale, texts = cells(name, values[name], table.missing.get(name, ""), comparable, scale)
        yield Cells(name, label, scale, texts, is_number(values[name]))


def _common_scale(columns: Sequence[Sequence[float]]) -> Scale | None:
    """Return the largest unit in which the medians of all columns have two digits, if any.

    None if the smallest median needs a unit in which a time has too many digits. Columns of zeros
    have any unit.
    """
    medians = [median for median in map(_middle, columns) if median]
    if not medians:
        return None
    for factor, unit in TIMES:
        if max(medians) >= factor and min(medians) >= _LEAST * factor:
            largest = max(abs(number) for column in columns for number in column)
            return Scale(factor, unit) if largest < _MOST * factor else None
    return None


def cells(
    column: str,
    values: Sequence[Any],
    missing: str = "",
    comparable: Sequence[Any] | None = None,
    scale: Scale | None = None,
) -> tuple[Scale, list[str]]:
    """Return a column as text: its unit and one text per value, all with the same decimals.

    A null becomes ``missing``. The unit is ``scale``, or chosen by the values of ``comparable``, by
    default those of the column: by the median of the values that are not 0, so that one outlier
    does not turn the others into zeros; the median has four significant digits. Each size has its
    own unit, as one column may range from 4 B to 4 GiB.
    """
    if column.endswith("_bytes"):
        return Scale(), [missing if value is None else _size(value) for value in values]
    scaled = values if comparable is None else comparable
    numbers = _numbers(scaled)
    middle = _middle(numbers)
    # no more than five digits before the point
    scale = scale or scale_of(column, max([middle, *(abs(n) * 1_000 / _MOST for n in numbers)]))
    whole = scale.unit in _WHOLE_UNITS or (
        not scale.unit and all(isinstance(number, int) for number in numbers)
    )
    decimals = 0 if whole else _decimals(scale, middle / scale.factor)
    grouping = "" if is_identifier(column) else ","
    form = f"{grouping}d" if whole and scale.factor == 1 else f"{grouping}.{decimals}f"
    texts = [missing if v is None else _cell(v, scale, form) for v in values]
    if column == "change_frac":
        return scale, [_change(v, text) for v, text in zip(values, texts, strict=True)]
    return scale, texts


def _change(value: float | None, text: str) -> str:
    """Return a change in percent, or as a multiple if it is large."""
    return text if value is None or value < TIMES_FRAC else format_change(value)


def is_number(values: Sequence[Any]) -> bool:
    """Return whether a column is numeric, and so aligned to the right."""
    return bool(_numbers(values))


def _numbers(values: Sequence[Any]) -> list[float]:
    return [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]


def _middle(numbers: Sequence[float]) -> float:
    sizes = sorted(abs(number) for number in numbers if number and math.isfinite(number))
    return sizes[len(sizes) // 2] if sizes else 0


def _decimals(scale: Scale, middle: float) -> int:
    if scale.unit == "%":
        return 1
    digits_before_point = 1 + math.floor(math.log10(middle)) if middle >= 1 else 1
    return min(max(4 - digits_before_point, 0), 3)


def _size(value: Any) -> str:
    """Return a size as text; a query may give the name of a size to a column of texts."""
    return format_bytes(value) if isinstance(value, (int, float)) else _cell(value, Scale(), "")


def _cell(value: Any, scale: Scale, form: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        # integers stay exact above 2**53
        exact = form.endswith("d")
        if exact and not math.isfinite(value):
            return str(value)
        text = format(round(value) if exact else value / scale.factor, form)
        # not -0.0
        return text if exact or text.strip("-0.,") else text.lstrip("-")
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item, scale, form) for item in value)
    return visible(str(value))


def _spelled(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
