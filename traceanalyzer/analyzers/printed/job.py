"""What the logs of a job say of its end, its collectives, NCCL's network, and engines that serve.

The problems are the same in ``printed``, ``hang`` and ``diagnose``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import polars as pl

from traceanalyzer.analyzers.common.aggregates import wide
from traceanalyzer.analyzers.common.display import sentences
from traceanalyzer.analyzers.printed import Options
from traceanalyzer.analyzers.printed.result import Form, Problem, table
from traceanalyzer.files import packaged
from traceanalyzer.units import (
    NS_PER_S,
    format_count,
    format_first,
    format_frac,
    format_ns,
    format_ranges,
    format_times,
)

_EVENTS, _ENGINE, _OOM, _CONTEXT = FORMS = (
    "job_events", "engine", "out_of_memory", "job_context",
)  # fmt: skip
_NUMBERS = dict.fromkeys(("number", "n_in", "n_out", "n", "last", "total_ns"), pl.Int64)
_TEXTS = ("what", "message", "group", "op", "ranks", "shape", "gpu", "function", "host")
_TABLE = (
    "name: event, function, host, what: detail, message, n: times, total_ns: time, first_at, line"
)
_RATES = ("tokens_per_s", "prompt_tokens_per_s")
_OF_LINES = {
    **dict.fromkeys((*_RATES, "kv_cache_frac", "kv_cache_percent"), pl.Float64),
    **dict.fromkeys(("running", "waiting", "preemptions"), pl.Int64),
}
_LINE_TABLE = (
    "name: software, engine, tokens_per_s: generated tokens/s, prompt_tokens_per_s: prompt "
    "tokens/s, running: running requests, waiting: waiting requests, kv_cache_frac: KV cache, "
    "preemptions, line"
)
#: The KV cache is full from this share on, and not the limit below the other.
_FULL, _NOT_FULL = 0.9, 0.5
#: Lines without a token, or with waiting requests, from which they are a problem.
_LEAST = 3
#: Advice and size of each kind; those that a line of the log explains have a title.
_KINDS: dict[str, dict[str, Any]] = packaged("analyzers/printed/problems.toml")
_HANGS = ("call", "missed barrier", "timeout", "signal", "stuck watchdog")
_PROCESS = ("killed process", "crashed process", "failed process")
#: Kinds of failures, from which a job may go on, and the last line of a traceback.
_FAILURES = (*(kind for kind, one in _KINDS.items() if one["size"] >= 1), *_HANGS, "error")
_IS_FAILURE = pl.col("name").is_in([*_FAILURES, "Xid", "GPU memory"]) | (pl.col("form") == _OOM)
#: By the number of an error of NVIDIA's driver.
_XIDS = {number: kind for kind, one in _KINDS.items() for number in one.get("xids", ())}
#: Forms of steps, and lines of steps after an error from which the program went on: other ranks may
#: print one more.
_STEPS, _WENT_ON = ("timers", "throughput", "engine"), 2
#: Lines of a file are fewer.
_FILE = 1 << 40
#: Most calls, and runs of ranks, that a problem names; problems of a verdict; length of a message.
_MOST_CALLS, _MOST_RUNS, _NAMED, _LONGEST = 8, 12, 3, 90
#: Collectives to which all ranks pass equal sizes.
_EQUAL_SIZES = ("allreduce", "broadcast", "reduce", "allgather_base", "reduce_scatter_base")
#: Interfaces that lead to no other host.
_VIRTUAL = r"^(?:lo\d*|docker|virbr|veth|br-|cni|flannel|cali)"
#: From this many times on, it happens in many steps.
_MANY = 10
#: Other lines of the watchdog report errors, too.
_IS_TIMEOUT = re.compile("Watchdog caught|Timeout at")
#: The rest of a message after what matters.
_DETAILS = re.compile(r"^(?:: |NCCL (?:WARN|INFO) )|(?<=[\w\]])\. .*")


def form(rows: pl.DataFrame, _options: Options) -> Form | None:
    """Return the events of the logs of jobs, and the problems that they show.

    ``job_events``: one row per event of a rank: name (its kind), what, message (from the first such
    line), n, printed_ns, first_at, line. ``engine``: one row per line: name (vLLM, SGLang), engine,
    tokens_per_s (generated), prompt_tokens_per_s, running, waiting, kv_cache_frac, preemptions,
    printed_ns, line.
    """
    events = _events(rows)
    percent = pl.col("kv_cache_percent") / 100
    lines = wide(rows, _ENGINE, _OF_LINES, ("engine",)).with_columns(
        kv_cache_frac=pl.coalesce("kv_cache_frac", percent)
    )
    at = pl.from_epoch("printed_ns", "ns").dt.strftime("%Y-%m-%d %H:%M:%S")
    printed = events.filter(form=_EVENTS).with_columns(first_at=at)
    each = _problems(rows, events, lines)
    if printed.is_empty() and lines.is_empty() and not each:
        return None
    tables = (
        table("job_events", "Events in logs of jobs", _known(printed), _TABLE),
        table("engine", "Lines of engines", _known(lines), _LINE_TABLE, detail=True),
    )
    return Form(
        tuple(one for one in tables if one.frame.height),
        sentences(*(one.title for one in each[:_NAMED])) or _throughput(lines),
        urgent=any(one.size >= 1 for one in each),
        problems=each,
    )


def _known(rows: pl.DataFrame) -> pl.DataFrame:
    unused = ("block", "row", "is_cut", "kv_cache_percent", "form", "went_on", "at")
    return rows.drop(*unused, strict=False)


def _events(rows: pl.DataFrame) -> pl.DataFrame:
    """Return events and their context, with ``last`` line, ``went_on`` and ``at``, their order."""
    named = pl.concat_str(pl.lit("Xid "), "number", pl.lit(" of GPU "), "gpu")
    is_xid = pl.col("name") == "Xid"
    of_xid = pl.col("number").replace_strict(_XIDS, default="other Xid", return_dtype=pl.String)
    forms = (wide(rows, form, _NUMBERS, _TEXTS).with_columns(form=pl.lit(form))
             for form in (_EVENTS, _CONTEXT))  # fmt: skip
    events = pl.concat(forms).with_columns(
        what=pl.coalesce(named, "what", pl.concat_str("op", pl.lit(" "), "number"), "op"),
        name=pl.when(is_xid).then(of_xid).otherwise("name"),
        last=pl.coalesce("last", "line"),
    )
    goes = going(rows)
    late = [kind for kind, one in _KINDS.items() if one.get("late")]
    at = [goes.at(*row) for row in events.select("path", "line", "last").iter_rows()]
    went_on = [goes.went_on(*row) for row in events.select("path", "last", "name").iter_rows()]
    return events.with_columns(
        went_on=pl.Series(went_on, dtype=pl.Boolean), at=pl.Series(at, dtype=pl.Int64)
    ).with_columns(at=pl.when(pl.col("name").is_in(late)).then(-1).otherwise("at"))


# --- failures from which a job goes on -----------------------------------------------------------


class Going(NamedTuple):
    """Where the jobs of logs went on after failures, by path.

    Attributes:
        order: the place of a log among all, by its first failure, times ``_FILE``.
        resumed: the last line that says that failed processes are restarted, before further steps.
        restarts: such lines.
        steps: a line of a step after which there is one more at most.
        latest: the last line of a step.
        failed: the last line of a failed process that was not restarted.
        handled: the last line that says that the program handles errors of memory.
    """

    order: dict[str, int]
    resumed: dict[str, int]
    restarts: dict[str, int]
    steps: dict[str, int]
    latest: dict[str, int]
    failed: dict[str, int]
    handled: dict[str, int]

    def went_on(self, path: str, line: int, kind: str) -> bool:
        """Return whether the job went on after the last line of a failure."""
        if line <= self.resumed.get(path, 0):
            return True
        until = self.steps.get(path, 0) if kind not in _PROCESS else 0
        until = max(until, self.handled.get(path, 0)) if kind == "GPU memory" else until
        return self.failed.get(path, 0) <= line < until

    def at(self, path: str, first: int, last: int) -> int:
        """Return the order of a failure: of its first line after the job went on.

        A failure before further steps is hardly the cause of a later end.
        """
        steps = self.steps.get(path, 0)
        went_on = max(self.resumed.get(path, 0), steps)
        line = last if first <= went_on < last else first
        return self.order.get(path, 0) + line + (_FILE // 2 if last < steps else 0)


def going(rows: pl.DataFrame) -> Going:
    """Return where jobs went on: training programs, and those that torchrun restarts."""
    numbers = {"n": pl.Int64, "last": pl.Int64, "number": pl.Int64}
    forms = (wide(rows, form, numbers, ("what",)) for form in (_EVENTS, _CONTEXT))
    events = pl.concat(forms).with_columns(last=pl.coalesce("last", "line"))
    # a step is one more line of the same timer: DeepSpeed prints several lines per step
    lines = rows.filter(pl.col("form").is_in(_STEPS)).group_by("path", "form", "name")
    steps, latest = _latest(events, "step", of="number"), _latest(events, "step")
    for path, _, _, of_series in lines.agg(pl.col("line").unique().sort(descending=True)).rows():
        latest[path] = max(latest.get(path, 0), of_series[0])
        if len(of_series) >= _WENT_ON:
            steps[path] = max(steps.get(path, 0), of_series[_WENT_ON - 1])
    ends = pl.col("path").replace_strict(latest, default=0, return_dtype=pl.Int64)
    again = events.filter(pl.col("name") == "restart", pl.col("last") < ends)
    resumed = _latest(again, "restart")
    failed = _latest(events, *_PROCESS)
    times = rows.filter(_IS_FAILURE).group_by("path").agg(pl.col("printed_ns").min())
    ordered = times.sort("printed_ns", "path", nulls_last=True)["path"]
    return Going(
        {path: place * _FILE for place, path in enumerate(ordered)},
        resumed,
        dict(again.group_by("path").agg(pl.col("what").n_unique()).rows()),
        steps,
        latest,
        {path: line for path, line in failed.items() if line > resumed.get(path, 0)},
        _latest(events, "recovery"),
    )


def _latest(events: pl.DataFrame, *names: str, of: str = "last") -> dict[str, int]:
    """Return the last line of these kinds by path; of steps, ``number`` is the one before it."""
    named = events.filter(pl.col("name").is_in(names), pl.col(of) > 0)
    return dict(named.group_by("path").agg(pl.col(of).max()).rows())


# --- problems ------------------------------------------------------------------------------------


def _problems(rows: pl.DataFrame, events: pl.DataFrame, lines: pl.DataFrame) -> tuple[Problem, ...]:
    """Return the problems of events and lines; those after which the job went on are warnings."""
    goes, is_failure = going(rows), pl.col("name").is_in(_FAILURES)
    ooms = rows.filter(form=_OOM).select("path", "line")
    ended = {goes.went_on(path, line, "GPU memory") for path, line in ooms.rows()}
    ended |= {*events.filter(name="GPU memory")["went_on"]}
    kinds = _by_kind(events.filter(~(is_failure & pl.col("went_on"))))
    each = [*_failures(kinds, goes.latest), *_network(kinds, rows), *_engines(kinds, lines)]
    each += _compilations(kinds)
    past = _by_kind(events.filter(is_failure, "went_on"))
    times = format_count(sum(goes.restarts.values()), "restart") if goes.restarts else "it"
    before = (
        one._replace(size=0.5, title=f"{one.title} The job went on after {times}.")
        for one in _first(list(_failures(past, goes.latest)), has_cause=True in ended)
    )
    return (*_first(each, has_cause=False in ended), *before)


def _by_kind(events: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {str(kind): of_kind for (kind,), of_kind in events.group_by("name")}


def _failures(kinds: Mapping[str, pl.DataFrame], steps: Mapping[str, int]) -> Iterator[Problem]:
    yield from _collectives(kinds)
    yield from _of_kinds(kinds, steps)


def _first(each: list[Problem], *, has_cause: bool) -> list[Problem]:
    """Return the problems without consequences of another one; if all are, the first."""
    follows = [one for one in each if _KINDS[one.kind].get("follows")]
    has_cause |= any(one.size >= 1 and one not in follows for one in each)
    first = min(follows, key=lambda one: (-one.size, one.at), default=None)
    return [one for one in each if one not in follows or (one is first and not has_cause)]


def _problem(kind: str, title: str, size: float = 0, ranks: tuple[int, ...] = ()) -> Problem:
    return Problem(kind, title, _KINDS[kind]["advice"], size or _KINDS[kind]["size"], ranks)


def _of_kinds(kinds: Mapping[str, pl.DataFrame], steps: Mapping[str, int]) -> Iterator[Problem]:
    """Yield the problems that a line explains, such as that the time limit was reached."""
    errors = _last_errors(kinds, steps)
    for kind, known in _KINDS.items():
        events = kinds.get(kind)
        events = _at_end(errors.filter(pl.col("step") > 0)) if kind == "error" else events
        if events is None or events.is_empty() or "title" not in known:
            continue
        events = events.sort("at", "line")
        first, ranks = events.row(0, named=True), events["rank"].drop_nulls().unique().to_list()
        message, n = _message(events)
        if kind == "failed process" and errors.height:
            before = errors.filter(pl.col("line") <= first["last"], path=first["path"])
            message, n = _message(_at_end(before)) if before.height else (message, n)
        who = f" on {_ranks(ranks)}" if ranks else ""
        times = f" ({format_times(n)})" if n > 1 else ""
        text = f"{known['title']}{who}: {message}{times}"
        text += "." * (not text.endswith("..."))
        size = _size(kind, message, events, steps)
        yield _problem(kind, text, size, tuple(ranks))._replace(at=first["at"])


def _message(events: pl.DataFrame) -> tuple[str, int]:
    """Return what events of a kind, in their order, say, and how often."""
    if what := events["what"].drop_nulls().unique().sort().to_list():
        return format_first(what, _MOST_CALLS), int(events["n"].sum())
    first = events["message"][0]
    same = events["message"].str.replace_all(r"\d+", "#") == re.sub(r"\d+", "#", first)
    message = _DETAILS.sub("", first).strip(" .")
    cut = message if len(message) <= _LONGEST else f"{message[:_LONGEST].rstrip(' .')}..."
    return cut, int(events.filter(same)["n"].sum())


def _at_end(errors: pl.DataFrame) -> pl.DataFrame:
    """Return the errors in Python after which their processes printed least."""
    return errors.filter(pl.col("number") == pl.col("number").min().over("path"))


def _last_errors(kinds: Mapping[str, pl.DataFrame], steps: Mapping[str, int]) -> pl.DataFrame:
    """Return the errors in Python after the last step of each log, in their order."""
    none = dict.fromkeys(("last", "number"), pl.Int64)
    errors = kinds.get("error", pl.DataFrame(schema={"path": pl.String, **none}))
    step = pl.col("path").replace_strict(steps, default=0, return_dtype=pl.Int64)
    errors = errors.with_columns(step=step).filter(pl.col("last") > pl.col("step"))
    return errors.sort("at", "line") if errors.height else errors


def _size(kind: str, message: str, events: pl.DataFrame, steps: Mapping[str, int]) -> float:
    """Return the size of a problem that depends on its lines; 0 for that of its kind."""
    if kind == "loss scale" and "minimum" in str(events["message"].to_list()):
        return 1
    if kind == "NaN loss":
        rows = events.select("path", "last").iter_rows()
        is_last = any(last >= steps.get(path, 0) for path, last in rows)
        return 0 if is_last and events["n"].sum() >= _LEAST else 0.25
    often = kind == "trace cache" and events["n"][0] >= _MANY
    hot = kind == "slow clocks" and message != "SW Power Cap"
    return 0.5 if often or hot else 0


# --- collectives ---------------------------------------------------------------------------------


class _Work(NamedTuple):
    """A collective of one rank that timed out."""

    rank: int
    group: str
    number: int
    kind: str
    size: str


def _collectives(kinds: Mapping[str, pl.DataFrame]) -> Iterator[Problem]:
    """Yield what hung: of mismatch, barrier, timeout and watchdog the first that explains it."""
    none = pl.DataFrame()
    rows = {kind: list(kinds.get(kind, none).iter_rows(named=True)) for kind in _HANGS}
    found = (
        _mismatch(rows["call"])
        or _hung("missed barrier", rows, "its monitored barrier was not reached")
        or _timeout(rows["timeout"], rows["signal"])
        or _hung("stuck watchdog", rows, "NCCL's watchdog was stuck for {:,} s")
    )
    if found:
        yield found._replace(at=min(row["at"] for each in rows.values() for row in each))


def _hung(kind: str, rows: Mapping[str, list[dict[str, Any]]], what: str) -> Problem | None:
    """Describe the ranks that did not reach a barrier, or whose watchdog itself waits."""
    named = (row["ranks"] or str(row["rank"]) for row in rows[kind])
    ranks = sorted({int(rank) for one in named for rank in one.split(", ")})
    most = max((row["number"] or 0 for row in rows[kind]), default=0)
    title = f"The job hung: {what.format(most)} on {_ranks(ranks)}."
    return _problem(kind, title, ranks=tuple(ranks)) if ranks else None


def _mismatch(rows: list[dict[str, Any]]) -> Problem | None:
    """Describe ranks that found that they call different collectives, by the first call of each."""
    calls = dict[int, tuple[str, str]]()
    for row in rows:
        number = "" if row["number"] is None else f" {row['number']}"
        of = f" of [{row['shape']}]" if row["shape"] else ""
        calls.setdefault(row["rank"], (f"{_name(row['op'])}{number}", of))
    if len({*calls.values()}) <= 1:
        return None
    each = dict[str, list[int]]()
    for rank, call in sorted(calls.items()):
        each.setdefault("".join(call), []).append(rank)
    is_size = len({name for name, _ in calls.values()}) == 1
    what = "pass different sizes to one collective" if is_size else "call different collectives"
    return _problem("call", f"Ranks {what}: {_listed(each)}.")


def _timeout(rows: list[dict[str, Any]], signals: list[dict[str, Any]]) -> Problem | None:
    """Describe the first collective of each rank and group that timed out."""
    works = sorted(_works(rows), key=lambda one: (one.number, one.rank))
    if not works or not any(_IS_TIMEOUT.search(row["message"]) for row in rows):
        return None
    of = {row["group"].partition("(")[0] for row in rows if row["group"]}  # 0 is 0(default_pg)
    signals = [one for one in signals if not of or (one["group"] or "").partition("(")[0] in of]
    each, reasons, culprits = dict[str, list[int]](), dict[str, None](), list[int]()
    groups, named = dict[str, dict[int, _Work]](), dict[tuple[object, ...], set[tuple[str, str]]]()
    for one in works:
        groups.setdefault(one.group, {}).setdefault(one.rank, one)
        named.setdefault(one[1:3], set()).update({(one.kind, one.size)} if one.kind else ())
    differ = False
    for group, first in groups.items():
        for one in first.values():
            call, differs = _call(one, named[one[1:3]])
            each.setdefault(call + f" of group {group}" * (len(groups) > 1), []).append(one.rank)
            differ |= differs
        least = min(one.number for one in first.values())
        behind = [one.rank for one in first.values() if one.number == least]
        if len(behind) < len(first):
            reasons[f"{_ranks(behind)} {'are' if len(behind) > 1 else 'is'} behind"] = None
            culprits += behind
    if len(groups) == 1 and (absent := _absent(signals, works[0].number, {w.rank for w in works})):
        reasons[f"{_ranks(absent)} did not call it"] = None
        culprits = absent
    why = "".join(f"; {one}" for one in reasons)
    title = f"NCCL's watchdog reports a timeout of {_listed(each)}{why}."
    return _problem("different calls" if differ else "timeout", title, ranks=tuple(culprits))


def _works(rows: list[dict[str, Any]]) -> list[_Work]:
    """Return the collectives that timed out, in the order of the log.

    A line names the kind of a collective or its group: those of one rank and number are one.
    """
    known = dict[tuple[int, int], _Work]()  # a rank's number in two groups at once is rare
    for row in rows:
        kind, size, out = _name(row["op"] or ""), row["n_in"] or 0, row["n_out"] or 0
        # coalesced gathers of equal parts; sends and receives may differ in size
        gathers = kind == "coalesced" and 0 < size < out
        alike = kind in _EQUAL_SIZES or (gathers and out % size == 0)
        key = row["rank"], row["number"]
        before = known.get(key, _Work(key[0], "", key[1], "", ""))
        known[key] = before._replace(
            group=before.group or row["group"] or "",
            kind=before.kind or kind,
            size=before.size or (str(size) if alike and size else ""),
        )
    if len({one.group for one in known.values()} - {""}) > 1:
        return [*known.values()]
    return [one._replace(group="") for one in known.values()]


def _absent(signals: list[dict[str, Any]], number: int, known: set[int]) -> list[int]:
    """Return the ranks that did not call a collective, as they say when others time out."""
    enqueued = {row["rank"]: row["number"] for row in signals}
    return sorted(rank for rank, last in enqueued.items() if last < number and rank not in known)


def _call(one: _Work, named: set[tuple[str, str]]) -> tuple[str, bool]:
    """Return the name of a collective, and whether ranks call others with its number."""
    kinds, sizes = {kind for kind, _ in named}, {size for _, size in named} - {""}
    # if not all are gathers, sizes of coalesced ones may differ
    if len(kinds) <= 1 and (len(sizes) <= 1 or ("coalesced", "") in named):
        return f"{next(iter(kinds), 'work')} {one.number}", False
    of = f" of {int(one.size):,} elements" if one.size else ""
    return f"{one.kind or 'work'} {one.number}{of}", True


def _name(kind: str) -> str:
    return kind.lower().lstrip("_")


def _listed(each: dict[str, list[int]]) -> str:
    return format_first([f"{call} on {_ranks(some)}" for call, some in each.items()], _MOST_CALLS)


def _ranks(ranks: list[int]) -> str:
    runs = format_ranges(sorted(ranks)).split(", ")
    more = f", ... ({len(ranks):,} in total)" if len(runs) > _MOST_RUNS else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(runs[:_MOST_RUNS])}{more}"


# --- network -------------------------------------------------------------------------------------

_NONE = pl.DataFrame(
    schema=dict.fromkeys(("path", "what", "host", "message"), pl.String)
    | dict.fromkeys(("n", "line"), pl.Int64)
)


def _network(kinds: Mapping[str, pl.DataFrame], rows: pl.DataFrame) -> Iterator[Problem]:
    """Yield what NCCL says of slow transports between nodes, and between the GPUs of one."""
    paths, chosen, interfaces, set_to = (
        kinds.get(kind, _NONE) for kind in ("transport", "network", "interface", "setting")
    )
    counts = dict(paths.group_by("what").agg(pl.col("n").sum()).rows())
    between = pl.col("path").is_in(
        [*_on_nodes(kinds, rows), *paths.filter(what="NET/Socket")["path"]]
    )
    is_socket, names = pl.col("what") == "Socket", {*interfaces["what"]}
    settings = {*set_to["what"]}
    why = ": no InfiniBand device or library was found" * ("no InfiniBand" in kinds)
    is_set = "NCCL_IB_DISABLE" in settings
    why = ": NCCL_IB_DISABLE=1 is set" if is_set else why
    over = f"TCP sockets between nodes{f' ({format_first(sorted(names), _NAMED)})' * bool(names)}"
    if "NET/Socket" in counts or chosen.filter(is_socket, between).height:
        example = paths.filter(what="NET/Socket")["message"].head(1)
        kind = "sockets by setting" if is_set else "sockets"
        yield _problem(kind, f"NCCL uses {'; '.join([over, *example])}{why}.")
    elif "Socket" in {*chosen["what"]} and "nodes" not in kinds and not counts:
        yield _problem("may be sockets", f"NCCL would use {over}{why}.")
    used = interfaces if "lost connection" in kinds else interfaces.filter(between)
    if virtual := sorted({name for name in used["what"] if re.match(_VIRTUAL, name)}):
        title = f"NCCL uses {format_first(virtual, _NAMED)}, which leads to no other host."
        yield _problem("virtual interface", title)
    copies = counts.get("SHM", 0) + counts.get("direct shared memory", 0)
    if "NCCL_P2P_DISABLE" in settings or copies > counts.get("P2P", 0):
        kind = "P2P disabled" if "NCCL_P2P_DISABLE" in settings else "host copies"
        begin = "NCCL_P2P_DISABLE=1 is set: the" if kind == "P2P disabled" else "The"
        yield _problem(kind, f"{begin} GPUs of a node exchange data through host memory (SHM).")


def _on_nodes(kinds: Mapping[str, pl.DataFrame], rows: pl.DataFrame) -> set[str]:
    """Return the logs of jobs on several nodes: by NCCL's count, or by hosts where it is missing.

    Hosts that NCCL names after a step, a failure or a restart may be those of another job.
    """
    counted, hosts = (kinds.get(kind, _NONE) for kind in ("nodes", "network"))
    ends = pl.col("form").is_in(_STEPS) | pl.col("name").is_in(["step", "restart"])
    until = rows.filter(ends | _IS_FAILURE).group_by("path").agg(until=pl.col("line").min())
    first = (
        hosts.join(counted, on="path", how="anti")
        .join(until, on="path", how="left")
        .filter((pl.col("line") < pl.col("until")).fill_null(value=True))
    )
    sums = (
        counted.group_by("path").agg(n=pl.col("what").cast(pl.Int64).max()),
        first.drop_nulls("host").group_by("path").agg(n=pl.col("host").n_unique().cast(pl.Int64)),
    )
    return {*pl.concat(sums).filter(pl.col("n") > 1)["path"]}


# --- compilation ---------------------------------------------------------------------------------

#: Kinds that make code again, with what says why; from how many times on they are a problem.
_COMPILES = {
    "recompilation": ("guard", 2, "torch.compile recompiles"),
    "graph break": ("graph break reason", 1, "torch.compile breaks the graph at"),
    "XLA compilation": ("XLA inputs", 5, "JAX compiles"),
}


#: Time of further compilations of a function from which on they are a warning.
_AGAIN_NS = 10 * NS_PER_S


def _compilations(kinds: Mapping[str, pl.DataFrame]) -> Iterator[Problem]:
    """Yield the function whose compilations take most time, else are most, on a rank, and why."""
    for kind, (reasons, least, text) in _COMPILES.items():
        if kind not in kinds:
            continue
        sums = _most(kinds[kind], "function").filter(pl.col("n") >= least)
        if sums.is_empty():
            continue
        most = sums.row(0, named=True)
        rows = [kinds[one] for one in (reasons, kind) if one in kinds]
        why = pl.concat(rows, how="diagonal").filter(
            pl.col("function").eq_missing(most["function"]), pl.col("what") != ""
        )
        why = _most(why, "what").head(_NAMED)
        named = [
            f"{what} ({format_times(n)})" if n > 1 else what for what, n in why["what", "n"].rows()
        ]
        took = f", {format_ns(most['total_ns'])}" * (most["total_ns"] > 0)
        title = f"{text} {most['function'] or 'code'} ({format_times(most['n'])}{took})"
        others = sums.height - 1
        title += f", and {format_count(others, 'other function')}" * (others > 0)
        title += f": {'; '.join(named)}" * bool(named)
        again_ns = most["total_ns"] * (most["n"] - 1) // most["n"]
        is_often = again_ns >= _AGAIN_NS if most["total_ns"] else most["n"] >= _MANY
        yield _problem(kind, f"{title}.", 0.5 if is_often else 0)


def _most(events: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return times and time of each name on the rank that has most; the longest first."""
    of_rank = events.group_by("path", "rank", name).agg(
        pl.col("n", "total_ns").sum(), pl.col("line").min()
    )
    sums = of_rank.group_by(name).agg(pl.col("n", "total_ns").max(), pl.col("line").min())
    return sums.sort("total_ns", "n", "line", name, descending=[True, True, False, False])


# --- engines -------------------------------------------------------------------------------------


def _engines(kinds: Mapping[str, pl.DataFrame], lines: pl.DataFrame) -> Iterator[Problem]:
    """Yield what engines say: no tokens, a full cache, requests that wait."""
    running = lines.filter(pl.col("running") > 0)
    none = pl.all_horizontal(pl.col(name).fill_null(0) == 0 for name in _RATES)
    runs = lines.with_columns(
        run=(none & (pl.col("running") > 0)).rle_id().over("path", "rank", "engine")
    )
    is_last = pl.col("run") == pl.col("run").max().over("path", "rank", "engine")
    runs = runs.filter(none, is_last, pl.col("running") > 0)
    longest = max(runs.group_by("path", "rank", "engine", "run").len()["len"], default=0)
    if longest >= _LEAST:
        text = f"The engine generates no token in {longest:,} lines one after the other"
        yield _problem("no tokens", f"{text}, while requests run.")
    waits = running.filter(pl.col("waiting") > 0)
    preempted = _preempted(kinds.get("preempted"), lines)
    used, most = waits.select(pl.col("kv_cache_frac").median(), pl.col("waiting").max()).row(0)
    often = waits.height >= _LEAST and 2 * waits.height >= running.height and used is not None
    again = format_count(preempted, "preemption")
    of_lines = f" in {format_count(running.height, 'line')} of the engine" * bool(running.height)
    is_frequent = preempted >= max(_MANY, running.height)
    if often and used >= _FULL:
        text = f"The KV cache is full ({format_frac(used)}, median), up to {most:,} requests wait"
        yield _problem("full KV cache", f"{text}{f'; {again} of requests' * bool(preempted)}.")
    elif is_frequent:
        yield _problem(
            "full KV cache", f"The KV cache is often full: {again} of requests{of_lines}."
        )
    elif preempted:
        yield _problem("preemptions", f"{again} of requests{of_lines}: the KV cache was full then.")
    elif often and used < _NOT_FULL:
        title = f"Up to {most:,} requests wait, and the KV cache is not full ({format_frac(used)})."
        yield _problem("waiting requests", title)


def _preempted(events: pl.DataFrame | None, lines: pl.DataFrame) -> int:
    """Return how often requests were preempted: vLLM logs the first and each fiftieth one."""
    counted = int(lines["preemptions"].sum())
    if events is None:
        return counted
    numbers = events.group_by("path", "rank").agg(pl.col("number").max(), pl.col("n").sum())
    return max(counted, int(numbers.select(pl.coalesce("number", "n").sum()).item()))


def _throughput(lines: pl.DataFrame) -> str:
    """Return a sentence on throughput and load while requests run."""
    running = lines.filter(pl.col("running") > 0)
    rate, n = running.select(pl.col("tokens_per_s", "running").median()).row(0)
    if rate is None:
        return ""
    load = format_count(round(n), "running request")
    return f"The engine generates {rate:,.5g} tokens/s with {load} (medians)."
