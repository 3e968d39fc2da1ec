"""Stacks of processes at one moment: ``py-spy dump``, as text or JSON, and Python's faulthandler.

Every thread is one sample of weight 1. In JSON its ``tid`` is the id that Python and the Flight
Recorder use, as in texts of faulthandler, in text of py-spy that of the operating system. A file
may have several processes, one text after the other. ``ray stack`` prints a line of ``ps`` before
the stacks of each worker.

Specification: <https://github.com/benfred/py-spy#dump>,
<https://docs.python.org/3/library/faulthandler.html>
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.trace import Meta, Trace, issue_rows
from traceanalyzer.vocabulary import PY_SPY_DUMP

_TEXT = re.compile(
    rb"\s*+(?:Process \d+: [^\n]*\nPython v[^\n]*\n"
    rb"|(?:(?:Stack dump for |Process \d+: )[^\n]*\n\s*+)?Thread "
    rb"(?:(?:0x[0-9A-Fa-f]{1,16}|\d{1,18}) )?\([a-z+]*\)[^\n]*\n"
    rb"[ \t]{2,8}+\S[^\n]* \(\S[^\n]*\)\r?\n"
    rb"|(?:(?:Fatal Python error:|Timeout \(|Process \d+ )[^\n]*\n\s*+)?"
    rb"(?:Current thread|Thread) 0x[0-9a-f]{1,16}"
    rb" (?:\[[^\n]*\] )?\(most recent call first\):\r?\n)"
)
_JSON = re.compile(rb'\s*+\[\s*+\{\s*+"pid"\s*+:\s*+\d+\s*+,\s*+"thread_id"\s*+:')
#: The columns of ps: user, process, CPU, memory (3), terminal, state, start, time, command.
_PROCESS = re.compile(
    r"(?:Process (\d{1,9}): |Stack dump for \S{1,80} +(\d{1,9})(?: +\S+){8} )(.*)"
)
_THREAD = re.compile(r"Thread (?:(0x[0-9A-Fa-f]{1,16}|\d{1,18}) )?\(([a-z+]*)\)(?:: \"(.*)\")?")
_FRAME = re.compile(r"(?: {4}|\t {0,4})(\S.*?) \((.+?)(?::(\d{1,9}))?\)")
#: The same of faulthandler: a thread, with its name from Python 3.14 on, and file, line, function.
_OF_HANDLER = re.compile(
    r"(?:Current thread|Thread) (0x[0-9a-f]{1,16}) (?:\[(.*)\] )?\(most recent call first\):"
)
_FILE = re.compile(r'  File "(.*)", line (\d{1,9}) in (.*)')
#: What faulthandler says besides, and the first line of a process of py-spy.
_OTHERS = (
    *("Python v", "        ", "Fatal Python error: ", "Timeout (", "Extension modules: "),
    *("  <no Py", "  ...", "  <truncated", "Current thread's C stack", "  Binary file "),
)
_MAIN_THREAD = "MainThread"
#: The outermost frame of a main thread.
_MAIN = ("<module>", "_run_module_as_main")
_RANK = re.compile(r"(?:^|\s)--?(?:global[-_])?rank[= ](\d{1,7})(?=\s|$)")
#: A dump has one stack per thread; larger files are not dumps.
_MOST_BYTES = 1 << 26
#: Threads and frames in JSON; each takes some hundred bytes of memory.
_MOST_OBJECTS = 1 << 21
_MOST_LINES = 1 << 31
_LONGEST_LINE = 4096


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether these are the first bytes of a dump."""
    return bool(_TEXT.match(head) or _JSON.match(head))


class _Thread(NamedTuple):
    """One thread: frames are (name, file, line), the innermost first."""

    pid: int | None
    tid: int | None
    name: str | None
    state: str
    frames: list[tuple[str, str | None, int | None]]


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read the dump of one process, or of several.

    The rank is that of the file's name, else ``--rank N`` of the recorded command line.

    Raises:
        MalformedInput: the file has no thread, or is not a dump.
        UnreadableFile: the file cannot be read.
    """
    data = b""
    for block in source.blocks(progress=progress):
        data += block
        if len(data) > _MOST_BYTES:
            raise MalformedInput(source.path, "larger than any output of py-spy dump")
    is_json = data.lstrip()[:1] == b"["
    commands, threads, bad = _from_json(source, data) if is_json else _from_text(data)
    if not threads:
        raise MalformedInput(
            source.path, "no thread in it", hint="record with py-spy dump --pid PID > FILE"
        )
    rank = rank_from_name(source.path)
    of_process = {
        pid: int(match[1]) for pid, one in commands.items() if (match := _RANK.search(one))
    }
    if rank is None and len(commands) < 2:
        rank = next(iter(of_process.values()), None)
    issues = [("data_loss", "bad-line", bad, None), *source.issues]
    wanted = selection.kinds is None or bool(selection.kinds & {"sample", "lane"})
    meta = Meta(path=source.path, format=PY_SPY_DUMP, rank=rank, weight_unit="samples")
    ranks = [of_process.get(one.pid or -1) if rank is None else rank for one in threads]
    tables = _tables(threads, commands, ranks) if wanted else {}
    return Trace(sources=(meta,), issues=issue_rows(issues, rank), **tables)


def _from_text(data: bytes) -> tuple[dict[int, str], list[_Thread], int]:
    """Return the command lines of processes, the threads, and the number of unknown lines."""
    commands, threads, bad = dict[int, str](), list[_Thread](), 0
    pid: int | None = None
    for line in data.decode(errors="replace").splitlines():
        if len(line) > _LONGEST_LINE:
            bad += not line.startswith(_OTHERS)
        elif match := _FRAME.fullmatch(line):
            if threads:
                threads[-1].frames.append((match[1], match[2], _line(match[3])))
        elif match := _FILE.fullmatch(line):
            if threads:
                threads[-1].frames.append((match[3], match[1], _line(match[2])))
        elif match := _THREAD.match(line):
            threads.append(
                _Thread(pid, int(match[1] or str(len(threads) + 1), 0), match[3], match[2], [])
            )
        elif match := _OF_HANDLER.fullmatch(line):
            threads.append(_Thread(pid, int(match[1], 0), match[2], "", []))
        elif match := _PROCESS.fullmatch(line):
            pid = int(match[1] or match[2])
            commands.setdefault(pid, match[3])
        elif threads and line.strip() and not line.startswith(_OTHERS):
            bad += 1
    if threads and not threads[-1].state:
        return commands, _of_processes(threads), bad
    return commands, [_named(one) for one in threads], bad


def _of_processes(threads: list[_Thread]) -> list[_Thread]:
    """Return the threads of the last dump of each process that faulthandler wrote.

    A dump begins with the newest thread and ends with the main thread. Dumps of one process have
    threads with the same numbers.
    """
    dumps: list[list[_Thread]] = [[]]
    for one in threads:
        dumps[-1].append(one)
        if one.frames and one.frames[-1][0] in _MAIN:
            dumps.append([])
    last: dict[int, list[_Thread]] = {}
    for dump in filter(None, dumps):
        dump[-1] = dump[-1]._replace(name=_MAIN_THREAD)
        last[dump[-1].tid or 0] = dump
    many = len(last) > 1
    return [
        one._replace(pid=number if many else one.pid)
        for number, dump in enumerate(last.values(), 1)
        for one in dump
    ]


def _named(one: _Thread) -> _Thread:
    """Name the main thread of dumps without names: it alone runs a module."""
    is_main = one.name is None and one.frames and one.frames[-1][0] in _MAIN
    return one._replace(name=_MAIN_THREAD) if is_main else one


def _line(text: str | None) -> int | None:
    return int(text) if text else None


def _from_json(source: Source, data: bytes) -> tuple[dict[int, str], list[_Thread], int]:
    if data.count(b"{") > _MOST_OBJECTS:
        raise MalformedInput(source.path, "more threads and frames than any output of py-spy dump")
    try:
        rows = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise MalformedInput(
            source.path, f"damaged JSON of py-spy dump: {error.msg}", where=f"byte {error.pos:,}"
        ) from None
    threads = [_thread(row) for row in rows if isinstance(row, dict)]
    infos = [row.get("process_info") for row in rows if isinstance(row, dict)]
    known = [
        (_whole(one.get("pid")), _text(one.get("command_line")))
        for one in infos
        if isinstance(one, dict)
    ]
    commands = {pid: command for pid, command in known if pid is not None and command}
    return commands, threads, len(rows) - len(threads)


def _thread(row: dict[str, Any]) -> _Thread:
    frames = row.get("frames")
    state = "active" if row.get("active") is True else "idle"
    return _Thread(
        _whole(row.get("pid")),
        _whole(row.get("thread_id")),
        _text(row.get("thread_name")),
        state,
        list(_frames(frames if isinstance(frames, list) else [])),
    )


def _frames(rows: list[Any]) -> Iterator[tuple[str, str | None, int | None]]:
    for row in rows:
        if isinstance(row, dict):
            line = _whole(row.get("line"))
            known = line if line and line < _MOST_LINES else None
            yield _text(row.get("name")) or "?", _text(row.get("filename")), known


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _text(value: Any) -> str | None:
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


def _tables(
    threads: list[_Thread], commands: dict[int, str], ranks: list[int | None]
) -> dict[str, Any]:
    """Return events, stacks and lanes."""
    import numpy as np
    import polars as pl

    from traceanalyzer import schema
    from traceanalyzer.frames.stacks import Interner
    from traceanalyzer.parsers.tables import Frame, Lanes, lanes_table, sample_events, stacks_table

    numbers: dict[Frame, int] = {}
    tree, lanes = Interner(), Lanes(commands={**commands})
    leaves, lane_of = [], []
    for one in threads:
        rows = [numbers.setdefault(Frame(*f), len(numbers)) for f in one.frames]
        leaves.append(tree.path(reversed(rows)))
        lane_of.append(lanes.of(one.pid, one.tid))
        if one.tid is not None:
            lanes.add_thread(one.pid, one.tid, one.name)
    built = tree.tree(np.array(leaves, np.uint32))
    weights = np.ones(len(threads))
    state = pl.Series([one.state or None for one in threads], dtype=schema.NAME)
    lane = np.array(lane_of, np.uint32)
    return {
        "events": sample_events(
            lanes, lane, weights, built.leaf, None, category=state
        ).with_columns(rank=pl.Series(ranks, dtype=pl.Int32)),
        "stacks": stacks_table(built, numbers),
        "lanes": lanes_table(lanes, ranks[0] if len({*ranks}) == 1 else None),
    }


FORMAT: Format = Format(
    name=PY_SPY_DUMP,
    suffixes=(".txt", ".json"),
    description="stacks of processes at one moment: py-spy dump, text or JSON, and faulthandler",
    sniff=sniff,
    parse=parse,
    priority=55,
)
