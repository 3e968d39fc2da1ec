"""Results as Markdown tables, and those tables in the documentation.

``python -m benchmarks.report benchmarks/results/NAME.json`` puts all tables of a run into
benchmarks/RESULTS.md, and what users can expect into docs/performance.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import results
from benchmarks.bars import INFLATERS, Bar, bars
from benchmarks.inputs import ROOT
from benchmarks.results import Measurement, Results
from benchmarks.routes import ROUTES

PAGE = ROOT / "docs" / "performance.md"
FULL_PAGE = ROOT / "benchmarks" / "RESULTS.md"
BEGIN, END = "<!-- begin: make bench -->", "<!-- end: make bench -->"
_SHARE = "share of `orjson.loads`"

#: Inputs of the summary, as text.
_INPUTS = {
    "gen200.json": "Chrome trace, 200 MB",
    "gen1000.json": "Chrome trace, 1 GB",
    "gen1000.json.gz": "the same, compressed",
    "nsys420000.sqlite": "nsys export, 100 MB, 420,000 kernels",
    "nsys6000000.sqlite": "nsys export, 1.4 GB, 6,000,000 kernels",
    "stacks300.txt": "py-spy stacks, 300 MB",
    "snapshot1000000.pickle": "memory snapshot, 1,000,000 events",
    "snapshot5000000.pickle": "memory snapshot, 5,000,000 events",
}
#: Rows of the summary: a command, its input, and the peer on the same input.
_SUMMARY = (
    ("comm-outliers", "gen200.json", "HTA"),
    ("gpu-idle", "gen200.json", ""),
    ("operators", "gen200.json", ""),
    ("diagnose", "gen200.json", ""),
    ("report", "gen200.json", ""),
    ("read", "gen1000.json", "orjson.loads"),
    ("comm-outliers", "gen1000.json", ""),
    ("comm-outliers", "gen1000.json.gz", ""),
    ("diagnose", "nsys420000.sqlite", ""),
    ("kernels", "nsys6000000.sqlite", "pandas"),
    ("annotations", "nsys6000000.sqlite", ""),
    ("gpu-idle", "nsys6000000.sqlite", ""),
    ("py-spy-report", "stacks300.txt", "itwinai"),
    ("flamegraph", "stacks300.txt", "flamegraph.pl"),
    ("memory page", "snapshot1000000.pickle", "trace_plot"),
    ("memory", "snapshot5000000.pickle", "pickle.load"),
)


def markdown(measured: Results) -> str:
    """All tables of a run."""
    others = [m for m in measured.measurements if m.task not in {*INFLATERS, *ROUTES}]
    sections = [
        _circumstances(measured),
        "### Bars\n\n"
        + table("<<>><", ("what", "input", "measured", "bar", ""), _bar_rows(measured)),
        "### Times and memory\n\n" + table("<<>>>>>>", _HEADINGS, _rows(measured, others)),
    ]
    inflated = measured.of(*INFLATERS)
    if inflated:
        sections.append("### Inflating alone\n\n" + _inflaters(inflated))
    tried = measured.of(*ROUTES)
    if tried:
        sections.append(f"### Routes tried, on `{tried[0].trace}`\n\n" + _routes(tried, measured))
    return "\n\n".join(sections) + "\n"


def summary(measured: Results) -> str:
    """Return what users can expect, beside other tools, and the targets that were missed."""
    headings = ("command", "input", "s", "MB", "other tool", "s", "MB")
    rows = []
    for task, trace, peer in _SUMMARY:
        cells = (*_time_and_memory(measured, task, trace), peer)
        theirs = _time_and_memory(measured, peer, trace) if peer else ("", "")
        rows.append((f"`{task}`", _INPUTS[trace], *cells, *theirs))
    missed = [row[:4] for row in _bar_rows(measured) if "missed" in row[-1]]
    targets = ("missed target", "input", "measured", "target")
    tables = [table("<<>><>>", headings, rows), table("<<>>", targets, missed)]
    return "\n\n".join([_circumstances(measured), *tables]) + "\n"


def _time_and_memory(measured: Results, task: str, trace: str) -> tuple[str, str]:
    m = measured.find(task, trace)
    return (_seconds(m), _number(_mb(m.peak_rss))) if m else ("not measured", "")


def write(measured: Results) -> str:
    """Put a run into both pages; return all its tables."""
    text = markdown(measured)
    include(text, FULL_PAGE)
    include(summary(measured))
    return text


def include(text: str, page: Path = PAGE, markers: tuple[str, str] = (BEGIN, END)) -> None:
    """Put a run's tables between the page's markers."""
    begin, end = markers
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def _circumstances(measured: Results) -> str:
    before, after = measured.load
    parts = [
        f"Taken {measured.taken}",
        *(f"{value}" for value in measured.machine.values()),
        ", ".join(f"{name} {version}" for name, version in measured.versions.items()),
        f"load average {before:.1f} before and {after:.1f} after",
    ]
    return "; ".join(parts) + "."


def _bar_rows(measured: Results) -> Iterable[Sequence[str]]:
    for bar in bars(measured):
        sign = "≥" if bar.at_least else "≤"
        yield (
            bar.what,
            _code(bar.trace),
            "not measured" if bar.value is None else _quantity(bar.value, bar),
            "none" if bar.limit is None else f"{sign} {_quantity(bar.limit, bar)}",
            {True: "met", False: "**missed**", None: ""}[bar.met],
        )


def _quantity(value: float, bar: Bar) -> str:
    return f"{value:.0f} MB" if bar.unit == "MB" else f"{value:.2f} {bar.unit}"


_HEADINGS = (
    *("task", "input", "best, s", "median, s", "MB/s"),
    *(_SHARE, "peak RSS, MB", "peak PSS, MB"),
)


def _rows(measured: Results, measurements: Iterable[Measurement]) -> Iterable[Sequence[str]]:
    for m in measurements:
        yardstick = measured.best("orjson.loads", m.trace)
        share = m.best / yardstick if m.best and yardstick else None
        yield (
            m.task,
            _code(m.trace),
            _seconds(m),
            "" if m.median is None else _time(m.median),
            _number(m.megabytes_per_second),
            _number(share, 2),
            _number(_mb(m.peak_rss)),
            _number(_mb(m.peak_pss)),
        )


def _inflaters(inflated: list[Measurement]) -> str:
    traces = list(dict.fromkeys(m.trace for m in inflated))
    by_place = {(m.trace, m.task): m for m in inflated}
    rows = []
    for trace in traces:
        of_trace = [by_place.get((trace, task)) for task in INFLATERS]
        size = next((_mb(m.size) for m in of_trace if m), None)
        speeds = [_number(m.megabytes_per_second) if m else "" for m in of_trace]
        rows.append((_code(trace), _number(size), *speeds))
    libraries = (task.removeprefix("inflate ").replace("_", "-") for task in INFLATERS)
    return table("<>>>>", ("input", "MB", *(f"{name}, MB/s" for name in libraries)), rows)


def _routes(tried: list[Measurement], measured: Results) -> str:
    rows = []
    for m in tried:
        yardstick = measured.best("orjson.loads", m.trace)
        share = m.best / yardstick if m.best and yardstick else None
        summary = (ROUTES[m.task].__doc__ or "").strip().split("\n")[0]
        rows.append((_code(m.task), summary, _seconds(m), _number(share, 2)))
    return table("<<>>", ("route", "what", "best, s", _SHARE), rows)


def table(alignment: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; ``alignment`` has a ``<`` or ``>`` for each column."""
    rule = ["--:" if side == ">" else "---" for side in alignment]
    lines = [headings, rule, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _seconds(m: Measurement) -> str:
    if m.error or m.best is None:
        return f"failed: {m.error}".replace("|", "\\|")
    return _time(m.best)


def _time(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds >= 0.1 else f"{seconds:.3f}"


def _code(name: str | None) -> str:
    return f"`{name}`" if name else ""


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _mb(size: int | None) -> float | None:
    return None if size is None else size / 1e6


if __name__ == "__main__":
    write(results.load(Path(sys.argv[1])))
