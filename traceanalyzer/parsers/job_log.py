"""Logs of jobs: what they say of failed collectives, and of errors far from their beginning.

``ProcessGroupNCCL`` prints a line for each collective that timed out: the rank in square brackets
is that within the group, the one before it, which newer versions print, is that of the job. With
TORCH_DISTRIBUTED_DEBUG=DETAIL, ranks compare what they call, and print where they differ.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple

from traceanalyzer.parsers import printed_text
from traceanalyzer.parsers.source import Source
from traceanalyzer.units import format_first, format_ranges

_SUFFIXES = ("", ".log", ".out", ".err", ".txt")
#: What is worth reading in a log, wherever it is: errors, and the first table.
_ERRORS = (
    b"Tried to allocate", b"Watchdog caught", b"detected by watchdog at work", b"at NCCL work: ",
    b"dump signal due to", b"mismatch between collectives", b"to pass monitoredBarrier in ",
    b"watchdog got stuck for ",
)  # fmt: skip
_TABLES = (
    b"Self CPU ", b"memory summary, device ID", b"Flops Profiler", b"time (ms) | ",
    b"elapsed time per iteration", b"RunningAvgSamplesPerSec=", b" Max_MA ", b"comm op: ",
    b"Comm. Op", b"tps: ", b"_runtime'", b"iter ",
)  # fmt: skip
_BEFORE, _AFTER, _TABLE, _MOST = 512, 2048, 1 << 16, 1 << 20
#: Most calls, and runs of ranks, that an error names.
_MOST_CALLS, _MOST_RUNS = 8, 12
_RANK = (
    rb"(?:\[rank(\d{1,7})\]:[^\n]{0,200}?)?"
    rb"\[(?:PG (?:ID \d{1,9} PG GUID )?([^\]\n]{1,200}?) )?Rank (\d{1,7})\] {1,3}"
)
_TIMED_OUT = re.compile(
    _RANK + rb"(?:Watchdog caught collective operation timeout: WorkNCCL\(\w{1,9}=|Timeout at NCCL "
    rb"work: |(?:Exception|failure) [^:\n]{0,80}at work(?: sequence id)?: )(\d{1,15})"
    rb"(?:, OpType=(\w{1,32})(?:, NumelIn=(\d{1,15})(?:, NumelOut=(\d{1,15}))?)?)?"
)
#: What a rank prints that did not time out itself.
_SIGNALLED = re.compile(
    _RANK + rb"Received a dump signal due to a collective timeout[^\n]{0,200}?"
    rb"Last enqueued NCCL work: (-?\d{1,15})"
)
_BARRIER = re.compile(
    rb"\bRanks? (\d{1,7}(?:, \d{1,7}){0,9999}) failed to pass monitoredBarrier in "
)
_STUCK = re.compile(_RANK + rb"[^\n]{0,40}?watchdog got stuck for (\d{1,7}) seconds")
#: Collectives to which all ranks pass equal sizes.
_EQUAL_SIZES = ("allreduce", "broadcast", "reduce", "allgather_base", "reduce_scatter_base")
_DUMPS = (
    "record what each rank waits for, in all ranks: TORCH_NCCL_DUMP_ON_TIMEOUT=1 and "
    "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 write dumps that traceanalyzer hang reads; py-spy dump "
    "--pid PID shows the line of a rank that still hangs"
)
_CALLED = re.compile(
    rb"\bRank (\d{1,7}) is running collective:\s{1,9}CollectiveFingerPrint\("
    rb"(?:SequenceNumber=(\d{1,15}),? ?)?OpType=(\w{1,32})(?:, TensorShape=\[([\d, ]{0,200})\])?"
)
_DIFFERENT = (
    "in one group, these ranks call different collectives, or pass different sizes to one: compare "
    "their code and inputs"
)
_STACKS = (
    "a call of CUDA or NCCL did not return, such as cudaEventDestroy while another thread that "
    "holds the GIL calls CUDA: py-spy dump --native --pid PID, or gdb, shows both threads"
)
_COMPARE = (
    "the traceback below that line in the log names the call of this rank; find why the other rank "
    "takes another branch, or passes another size (batches, parameters and uneven inputs differ)"
)


class _Work(NamedTuple):
    """A collective of one rank that timed out."""

    rank: int
    group: str
    number: int
    kind: str
    size: str


def notable(source: Source) -> bytes:
    """Return what a whole log says of errors, and its tables up to the first, at most 1 MiB.

    Other files have nothing. A file is read once, as long as it does not change.

    Raises:
        InputError: the file cannot be read or decompressed.
    """
    head = source.head()
    name = source.path.lower().removesuffix(".gz").removesuffix(".zst")
    is_log = PurePath(name).suffix in _SUFFIXES
    if not is_log or b"\0" in head or head.lstrip()[:1] in (b"{", b"<"):
        return b""
    found, source.damage = _read(source.path, source.written)
    return found


@lru_cache(maxsize=16)
def _read(path: str, written: tuple[int, ...]) -> tuple[bytes, str | None]:  # noqa: ARG001 - a key
    source = Source(path)
    found, rest = b"", b""
    marks: Sequence[bytes] = (*_ERRORS, *_TABLES)
    with contextlib.closing(source.blocks()) as blocks:
        for block in chain(blocks, (b"\n",)):
            text = rest + block
            end = text.rfind(b"\n", -_TABLE) + 1 or len(text)  # a number in half is another one
            text, rest = text[:end], text[end:]
            found += b"".join(_around(text, [mark for mark in marks if mark in text]))
            if len(found) > _MOST:
                break
            if len(found) > _TABLE or printed_text.sniff(found, path):
                marks = _ERRORS
    return found, source.damage


def _around(text: bytes, marks: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the text around each mark, from the beginning of a line, each byte once."""
    until = 0
    for match in re.finditer(b"|".join(map(re.escape, marks)), text) if marks else ():
        line = text.rfind(b"\n", until, max(match.start() - _BEFORE, 0)) + 1
        start = max(line, match.start() - _TABLE, until)
        if start != until or not start:
            yield b"\n"
        until = max(match.end() + _AFTER, until)
        yield text[start:until]


def failed_collectives(text: bytes) -> tuple[str, str] | None:
    """Return which ranks failed in which collectives, and advice; None if a text says nothing."""
    return _mismatch(text) or _barrier(text) or _timeout(text) or _stuck(text)


def _mismatch(text: bytes) -> tuple[str, str] | None:
    """Describe ranks that found that they call different collectives, by the first call of each."""
    calls = dict[int, tuple[str, str]]()
    for rank, number, kind, shape in _CALLED.findall(text):
        name = f"{_name(kind)} {number.decode()}".rstrip()
        calls.setdefault(int(rank), (name, f" of [{shape.decode()}]" if shape else ""))
    if len({*calls.values()}) <= 1:
        return None
    each = dict[str, list[int]]()
    for rank, call in sorted(calls.items()):
        each.setdefault("".join(call), []).append(rank)
    is_size = len({name for name, _ in calls.values()}) == 1
    what = "pass different sizes to one collective" if is_size else "call different collectives"
    return f"the log of a job whose ranks {what}: {_listed(each)}", _COMPARE


def _barrier(text: bytes) -> tuple[str, str] | None:
    """Describe the ranks that did not reach a monitored barrier."""
    late = {int(rank) for found in _BARRIER.findall(text) for rank in found.split(b", ")}
    each = {"its monitored barrier was not reached": sorted(late)}
    return (f"the log of a job that hung: {_listed(each)}", _DUMPS) if late else None


def _stuck(text: bytes) -> tuple[str, str] | None:
    """Describe the ranks whose watchdog itself waits."""
    waits = {int(rank or of_group): int(s) for rank, _, of_group, s in _STUCK.findall(text)}
    if not waits:
        return None
    each = {f"NCCL's watchdog was stuck for {max(waits.values()):,} s": sorted(waits)}
    return f"the log of a job that hung: {_listed(each)}", _STACKS


def _timeout(text: bytes) -> tuple[str, str] | None:
    """Describe the first collective of each rank and group that timed out."""
    works = sorted(_works(text), key=lambda one: (one.number, one.rank))
    if not works:
        return None
    each, reasons = dict[str, list[int]](), dict[str, None]()
    groups, named = dict[str, dict[int, _Work]](), dict[tuple[object, ...], set[tuple[str, str]]]()
    for one in works:
        groups.setdefault(one.group, {}).setdefault(one.rank, one)
        named.setdefault(one[1:3], set()).update({(one.kind, one.size)} if one.kind else ())
    for group, first in groups.items():
        for one in first.values():
            call, differs = _call(one, named[one[1:3]])
            each.setdefault(call + f" of group {group}" * (len(groups) > 1), []).append(one.rank)
            if differs:
                reasons[_DIFFERENT] = None
        least = min(one.number for one in first.values())
        behind = [one.rank for one in first.values() if one.number == least]
        if len(behind) < len(first):
            reasons[f"{_ranks(behind)} {'are' if len(behind) > 1 else 'is'} behind"] = None
    if len(groups) == 1 and (absent := _absent(text, works[0].number, {w.rank for w in works})):
        reasons[f"{_ranks(absent)} did not call it"] = None
    why = "".join(f"; {one}" for one in reasons)
    return f"the log of NCCL's watchdog: timeout of {_listed(each)}{why}", _DUMPS


def _works(text: bytes) -> list[_Work]:
    """Return the collectives that timed out, in the order of the log.

    A line names the kind of a collective or its group: those of one rank and number are one.
    """
    known = dict[tuple[int, int], _Work]()  # a rank's number in two groups at once is rare
    for rank, group, of_group, number, kind, size, out in _TIMED_OUT.findall(text):
        # coalesced gathers of equal parts; sends and receives may differ in size
        gathers = _name(kind) == "coalesced" and 0 < int(size or 0) < int(out or 0)
        alike = _name(kind) in _EQUAL_SIZES or (gathers and int(out) % int(size) == 0)
        key = int(rank or of_group), int(number)
        before = known.get(key, _Work(key[0], "", key[1], "", ""))
        known[key] = before._replace(
            group=before.group or group.decode(errors="replace"),
            kind=before.kind or _name(kind),
            size=before.size or (size.decode() if alike else ""),
        )
    if len({one.group for one in known.values()} - {""}) > 1:
        return [*known.values()]
    return [one._replace(group="") for one in known.values()]


def _absent(text: bytes, number: int, known: set[int]) -> list[int]:
    """Return the ranks that did not call a collective, as they say when others time out."""
    found = _SIGNALLED.findall(text)
    enqueued = {int(rank or of_group): int(last) for rank, _, of_group, last in found}
    return sorted(rank for rank, last in enqueued.items() if last < number and rank not in known)


def _call(one: _Work, named: set[tuple[str, str]]) -> tuple[str, bool]:
    """Return the name of a collective, and whether ranks call others with its number."""
    kinds, sizes = {kind for kind, _ in named}, {size for _, size in named} - {""}
    # if not all are gathers, sizes of coalesced ones may differ
    if len(kinds) <= 1 and (len(sizes) <= 1 or ("coalesced", "") in named):
        return f"{next(iter(kinds), 'work')} {one.number}", False
    of = f" of {int(one.size):,} elements" if one.size else ""
    return f"{one.kind or 'work'} {one.number}{of}", True


def _name(kind: bytes) -> str:
    return kind.decode().lower().lstrip("_")


def _listed(each: dict[str, list[int]]) -> str:
    return format_first([f"{call} on {_ranks(some)}" for call, some in each.items()], _MOST_CALLS)


def _ranks(ranks: list[int]) -> str:
    runs = format_ranges(sorted(ranks)).split(", ")
    more = f", ... ({len(ranks):,} in total)" if len(runs) > _MOST_RUNS else ""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(runs[:_MOST_RUNS])}{more}"
