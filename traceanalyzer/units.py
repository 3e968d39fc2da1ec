"""Conversion of numbers with units to and from text."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from traceanalyzer.errors import OptionError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

_TIME_UNITS = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_BYTE_FACTORS: dict[str, int] = {
    **{unit.lower(): 1024**power for power, unit in enumerate(_BYTE_UNITS)},
    **{letter: 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*")
_DURATION = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*(ns|us|µs|ms|s|m|h)?\s*")


def format_ns(ns: float | None) -> str:
    """Format nanoseconds: ``812 ns``, ``7.64 ms``, ``1.2 s``."""
    if ns is None:
        return ""
    if abs(ns) < NS_PER_US:
        return f"{ns:.0f} ns"
    for unit, factor in (("us", NS_PER_US), ("ms", NS_PER_MS), ("s", NS_PER_S)):
        value = ns / factor
        if abs(value) < 999.5 or unit == "s":
            return f"{value:.4g} {unit}" if abs(value) < 1000 else f"{value:.0f} {unit}"
    raise AssertionError("unreachable")


def format_bytes(size: float | None) -> str:
    """Format bytes in binary units: ``512 B``, ``25.3 MiB``."""
    if size is None:
        return ""
    value, unit = float(size), 0
    while abs(value) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.4g} {_BYTE_UNITS[unit]}"


def format_frac(frac: float | None) -> str:
    """Format a ratio in [0, 1] as a percentage: ``22.9 %``."""
    return "" if frac is None else f"{100 * frac:.1f} %"


#: From this change on, the value is that many times the value before.
TIMES_FRAC = 2.0


def format_change(frac: float) -> str:
    """Format a change with its sign: ``+9.3 %``, or ``18.5 times`` from three times as much on."""
    if frac >= TIMES_FRAC:
        return format_ratio(frac + 1)
    return f"{'+' if frac >= 0 else '-'}{format_frac(abs(frac))}"


def format_ratio(ratio: float) -> str:
    """Format how many times as much something is: ``2.45 times``, ``140,000 times``."""
    return f"{ratio:{',.0f' if ratio >= 1000 else '.3g'}} times"


def format_ranges(numbers: Iterable[int]) -> str:
    """Format sorted integers with ranges: ``0-3, 6``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def format_first(items: Sequence[object], most: int = 5) -> str:
    """Format the first items of a list: ``a, b and 3 more``."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def one_of(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Suggest a known name for an unknown one: ``did you mean 'a'?``, else ``choose one of a, b``.

    Args:
        name: the unknown name.
        known: the known names.
        otherwise: what to say instead if none is similar.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    return (
        f"did you mean {close[0]!r}?"
        if close
        else (otherwise or f"choose one of {', '.join(names)}")
    )


def format_count(n: int, thing: str, plural: str = "s") -> str:
    """Format a count: ``1 launch``, ``2,048 launches`` (with the plural ending ``es``)."""
    return f"{n:,} {thing}{'' if n == 1 else plural}"


def format_times(n: int) -> str:
    """Format a number of repetitions: ``once``, ``2,048 times``."""
    return "once" if n == 1 else f"{n:,} times"


def format_weight(weight: float, unit: str) -> str:
    """Format the weight of samples: ``1,902 samples``, ``7.64 ms``, ``25.3 MiB``."""
    if unit == "ns":
        return format_ns(weight)
    if unit == "bytes":
        return format_bytes(weight)
    form = ",.0f" if float(weight).is_integer() else ",.2f" if abs(weight) >= 0.01 else ".3g"
    return f"{weight:{form}} {unit.removesuffix('s') if weight == 1 else unit}".rstrip()


def parse_ns(text: str, option: str = "") -> int:
    """Parse ``"1.5s"``, ``"300us"``, ``"2m"`` or ``"0"`` to nanoseconds; a unit is required.

    Args:
        text: a duration.
        option: the option that it is the value of, for the error.

    Raises:
        OptionError: the text is not a duration with a unit.
    """
    match, of = _DURATION.fullmatch(text), f"{option}: " if option else ""
    if match is None:
        raise OptionError(f"{of}{text!r} is not a duration; write it like 1.5s, 300us or 2m")
    number, unit = match.groups()
    if unit is None and float(number):
        raise OptionError(f"{of}{text!r} has no unit; write {number}us, {number}ms or {number}s")
    factor = {**_TIME_UNITS, "m": 60 * NS_PER_S, "h": 3600 * NS_PER_S}[unit or "s"]
    return round(float(number) * factor)


def parse_bytes(text: str, option: str = "") -> int:
    """Parse ``"80GiB"``, ``"80G"``, ``"80 GB"`` (10^9) or plain bytes.

    Args:
        text: a size.
        option: the option that it is the value of, for the error.

    Raises:
        OptionError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.lower())
    factor = _BYTE_FACTORS.get(match[2] or "b", 0) if match else 0
    if match is None or not factor:
        of = f"{option}: " if option else ""
        raise OptionError(f"{of}{text!r} is not a size; write it like 80GiB or 512MiB")
    return round(float(match[1]) * factor)


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that compares numbers by value."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part.lower())
        for part in re.split(r"(\d+)", name)
        if part
    ]
