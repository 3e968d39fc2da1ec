"""Performance targets (bars) and their evaluation, as functions of :class:`Results`.

A bar without a measurement is reported as not measured, never as met.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.results import Results

COMMANDS = ("gpu-idle", "kernels", "launches", "operators", "overlap", "steps")
ALGEBRA = ("union", "gaps", "nest", "link")
INFLATERS = ("inflate zlib", "inflate zlib_ng", "inflate isal")


@dataclass(frozen=True)
class Bar:
    """One target.

    Attributes:
        what: the quantity.
        trace: the input.
        value: the measurement; None if not measured.
        limit: the target; None for information only.
        unit: unit of both.
        at_least: the value must be at least the limit instead of at most.
    """

    what: str
    trace: str
    value: float | None
    limit: float | None
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Return whether the target is met; None without measurement or target."""
        if self.value is None or self.limit is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def bars(results: Results) -> list[Bar]:
    """Return every bar of each input."""
    return [
        *_full_table(results),
        *_comm_outliers(results),
        *_commands(results),
        *(Bar(f"`{name}`, 10 million rows", "", results.best(name), 2, "s") for name in ALGEBRA),
        *_memory(results),
        *_steady(results),
        *_gzipped(results),
        *_stacks(results),
        *_nsys(results),
        *_snapshots(results),
        Bar("`--help`", "", results.best("--help"), 0.3, "s"),
        Bar("`comm-outliers`", "gen1.json", results.best("comm-outliers", "gen1.json"), 1.0, "s"),
    ]


def _full_table(results: Results) -> Iterator[Bar]:
    for m in results.of("read"):
        yardstick = results.best("orjson.loads", m.trace)
        yield Bar("full table / `orjson.loads`", m.trace or "", _ratio(m.best, yardstick), 0.5, "x")
    for m in results.of("HTA"):
        ours = results.best("read", m.trace)
        yield Bar("HTA / full table", m.trace or "", _ratio(m.best, ours), 25, "x", at_least=True)


def _comm_outliers(results: Results) -> Iterator[Bar]:
    for m in results.of("comm-outliers"):
        yardstick = results.best("orjson.loads", m.trace)
        if yardstick:
            what = "(`comm-outliers` - imports) / `orjson.loads`"
            yield Bar(
                what,
                m.trace or "",
                _ratio(_work(results, "comm-outliers", m.trace), yardstick),
                0.25,
                "x",
            )


def _commands(results: Results) -> Iterator[Bar]:
    """Compare commands with reading their data, in memory, and with loading in HTA."""
    for m in results.of(*COMMANDS):
        command, trace = m.task, m.trace or ""
        if trace.endswith(".sqlite"):
            continue
        reading = results.best(f"read for {command}", m.trace)
        imports = results.best(f"imports for {command}")
        loading = None if reading is None or imports is None else imports + reading
        what = f"`{command}` / starting and reading what it needs"
        yield Bar(what, trace, _ratio(m.best, loading), None, "x")
        megabytes = (m.size or 0) / 1e6
        yield Bar(f"peak memory, `{command}`", trace, _megabytes(m.peak_rss), megabytes, "MB")
        hta = results.best("HTA", m.trace)
        if hta:
            what = f"HTA's loading alone / `{command}`"
            yield Bar(what, trace, _ratio(hta, m.best), 15, "x", at_least=True)


def _memory(results: Results) -> Iterator[Bar]:
    for m in results.of("read"):
        limit = 200 + 0.6 * (m.size or 0) / 1e6
        yield Bar("peak memory, full table", m.trace or "", _megabytes(m.peak_rss), limit, "MB")
    for m in results.of("comm-outliers"):
        if m.trace and m.trace.startswith("few"):
            what = "peak memory, `comm-outliers`, few kernels"
            yield Bar(what, m.trace, _megabytes(m.peak_rss), 300, "MB")


def _steady(results: Results) -> Iterator[Bar]:
    """Compare the speed on large and small inputs of the same kind."""
    for kind in ("gen", "rep"):
        small, large = (results.find("read", f"{kind}{mb}.json") for mb in (200, 1000))
        if small and large:
            ratio = _ratio(large.megabytes_per_second, small.megabytes_per_second)
            what = "full table, MB/s at 1 GB / at 200 MB"
            yield Bar(what, f"{kind}1000.json", ratio, 0.85, "x", at_least=True)


def _gzipped(results: Results) -> Iterator[Bar]:
    for m in results.of("comm-outliers"):
        if not (m.trace and m.trace.endswith(".json.gz")):
            continue
        times = [results.best(inflater, m.trace) for inflater in INFLATERS]
        fastest = min((time for time in times if time), default=None)
        whole, work = m.best, _work(results, "comm-outliers", m.trace)
        what = "`comm-outliers` / bare inflating, fastest library"
        yield Bar(what, m.trace, _ratio(whole, fastest), None, "x")
        what = "(`comm-outliers` - imports) / bare inflating, zlib"
        yield Bar(what, m.trace, _ratio(work, times[0]), None, "x")


def _stacks(results: Results) -> Iterator[Bar]:
    for m in results.of("py-spy-report"):
        if m.trace and m.trace.startswith("shallow"):
            yield Bar("`py-spy-report`", m.trace, m.best, 6, "s")
            yield Bar("peak memory, `py-spy-report`", m.trace, _megabytes(m.peak_rss), 1000, "MB")
            continue
        trace, peer = m.trace or "", results.find("itwinai", m.trace)
        loop = results.best("plain loop", m.trace)
        yield Bar("`py-spy-report` / plain loop", trace, _ratio(m.best, loop), 3, "x")
        if peer:
            faster = _ratio(peer.best, m.best)
            yield Bar("itwinai / `py-spy-report`", trace, faster, 15, "x", at_least=True)
            memory = _ratio(_megabytes(m.peak_rss), _megabytes(peer.peak_rss))
            yield Bar("peak memory, `py-spy-report` / itwinai", trace, memory, 0.1, "x")

    for m in results.of("flamegraph"):
        peer_time = results.best("flamegraph.pl", m.trace)
        faster = _ratio(peer_time, m.best)
        yield Bar("`flamegraph.pl` / `flamegraph`", m.trace or "", faster, 5, "x", at_least=True)


def _nsys(results: Results) -> Iterator[Bar]:
    """Compare reading of nsys exports with bare reading and pandas, in time and memory."""
    exports = [m for m in results.measurements if m.trace and m.trace.endswith(".sqlite")]
    speeds = {m.trace: m.megabytes_per_second for m in exports if m.task == "kernels"}
    large = max(speeds, key=lambda name: (len(name or ""), name), default="")
    for m in exports:
        trace = m.trace or ""
        if trace != large:
            continue
        if m.task == "kernels":
            bare, pandas = (results.best(t, trace) for t in ("ADBC, bare columns", "pandas"))
            yield Bar("`kernels` / bare columns, ADBC", trace, _ratio(m.best, bare), 2, "x")
            yield Bar("pandas / `kernels`", trace, _ratio(pandas, m.best), 8, "x", at_least=True)
            yield Bar("peak memory, `kernels`", trace, _megabytes(m.peak_rss), 700, "MB")
        elif m.task in ("gpu-idle", "annotations"):
            yield Bar(f"`{m.task}`", trace, m.best, 20, "s")
            yield Bar(f"peak memory, `{m.task}`", trace, _megabytes(m.peak_rss), 2500, "MB")
    if len(speeds) > 1:
        small = min(speeds, key=lambda name: (len(name or ""), name))
        steady = _ratio(speeds[large], speeds[small])
        what = "`kernels`, MB/s at 1.4 GB / at 100 MB"
        yield Bar(what, large or "", steady, 0.85, "x", at_least=True)


def _snapshots(results: Results) -> Iterator[Bar]:
    """Compare memory snapshots with bare unpickling and the viewer of PyTorch."""
    for m in results.of("read snapshot"):
        trace, bare = m.trace or "", results.find("pickle.load", m.trace)
        if bare is None:
            continue
        yield Bar("tables / `pickle.load`", trace, _ratio(m.best, bare.best), 3, "x")
        # numpy and polars alone need as much as 100,000 events
        few = trace == "snapshot100000.pickle"
        limit = None if few else _megabytes(bare.peak_rss) or 0
        yield Bar("peak memory, tables", trace, _megabytes(m.peak_rss), limit, "MB")
    for m in results.of("memory page"):
        peer, trace = results.find("trace_plot", m.trace), m.trace or ""
        yield Bar("`memory`", trace, results.best("memory", m.trace), 8, "s")
        yield Bar("`memory`'s page", trace, _megabytes(m.rows), 5, "MB")
        if peer:
            faster = _ratio(peer.best, m.best)
            yield Bar("`trace_plot` / `memory`", trace, faster, 4, "x", at_least=True)
            smaller = _ratio(peer.rows, m.rows)
            yield Bar("page of `trace_plot` / ours", trace, smaller, 40, "x", at_least=True)
    large = results.find("read snapshot", "snapshot5000000.pickle")
    if large:
        peak = _megabytes(large.peak_rss)
        yield Bar("peak memory, tables", large.trace or "", peak, 6000, "MB")


def _work(results: Results, command: str, trace: str | None) -> float | None:
    """Return the time of a command without starting Python and imports."""
    whole, imports = results.best(command, trace), results.best(f"imports for {command}")
    return None if whole is None or imports is None else whole - imports


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _megabytes(size: int | None) -> float | None:
    return None if size is None else size / 1e6
