"""Measure all inputs of an analysis: one by one, in worker processes, or on a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from traceanalyzer.errors import InputError, UnreadableFile
from traceanalyzer.machine import cores, free_memory
from traceanalyzer.run.find import is_summary
from traceanalyzer.run.pieces import Opened, OpenedInputs, State, bytes_of
from traceanalyzer.run.questions import Questions
from traceanalyzer.run.read import Issues, ranks_apart, report_read
from traceanalyzer.trace import Trace

if TYPE_CHECKING:
    from traceanalyzer.run.workers import Ended

#: Files of up to this size are tasks of several files: fewer messages, and tables computed at once.
#: At most so many files; fewer if there are not so many tasks, so that all cores are used.
_SMALL_BYTES = 1 << 17
_FEWEST, _MOST, _TASKS = 4, 16, 16
#: Estimated time of a short analysis of a file and of its bytes, and to start the workers.
_FILE_SECONDS, _BYTE_SECONDS, _START_SECONDS = 0.03, 4e-9, 0.6
#: Estimated memory to analyze a file: of the program, and for each of its bytes; if processes share
#: its ranks, each has fewer of them waiting, but all have temporary data at the same time.
_PROGRAM_BYTES, _BYTES_PER_BYTE, _BYTES_PER_SHARED_BYTE = 150 << 20, 2, 4
#: Estimated size of a compressed file when decompressed.
_INFLATED = {".gz": 10, ".zst": 10, ".zip": 10}

#: Ranks of a file; None for all.
_Ranks = frozenset[int] | None


def measure_all(opened: OpenedInputs, questions: Questions) -> None:
    """Measure all inputs in order, in worker processes or a cluster if allowed and worth it.

    Workers share the ranks of a large file if there are fewer files than workers. A file that ends
    its worker is skipped.
    """
    paths = [one for one in opened.items if isinstance(one, str) and is_summary(one)]
    items = [one for one in opened.items if isinstance(one, Trace) or one not in paths]
    if paths:
        from traceanalyzer.run.summaries import join_summaries

        join_summaries(opened, questions, paths)
    chunks = _chunks(items, _shares(opened, items) if questions.is_slow else {})
    apart = _apart(opened, chunks)
    if apart is None:
        for one in opened.each(items):
            questions.measure(opened, one)
        return

    def task(items: Sequence[Trace | str], ranks: _Ranks = None) -> tuple[OpenedInputs, Questions]:
        return opened.of(items, ranks), questions.empty()

    tasks = [task(chunk.items, ranks) for chunk in chunks for ranks in chunk.shares]
    with closing(apart(tasks)) as answers:
        for chunk in chunks:
            of_chunk = [next(answers) for _ in chunk.shares]
            if _ended(of_chunk) and len(chunk.items) > 1:  # one of the files ended the worker
                for item in chunk.items:
                    with closing(apart([task([item])])) as alone:
                        _take(opened, questions, [item], [next(alone)])
            else:
                _take(opened, questions, chunk.items, of_chunk)


def _take(
    opened: OpenedInputs, questions: Questions, items: Sequence[Trace | str], answers: Sequence[Any]
) -> None:
    """Add the results of workers for some inputs, or measure the inputs in this process."""
    if ended := _ended(answers):
        path = str(items[0])
        opened.state.fail(path, UnreadableFile(path, f"the process that read it {ended.why}"))
    elif answers and _are_usable(opened, answers):
        for state, measured, _ in answers:
            opened.state.join(state)
            questions.join(measured)
        known = [bytes_of(item) for item in items if isinstance(item, str)]
        sizes = [int(size) for size in known if math.isfinite(size)]
        report_read(sizes, answers[0][2], opened.how.progress, opened.how.on_trace)
    else:
        for one in opened.each(items):
            questions.measure(opened, one)


def _ended(answers: Sequence[Any]) -> Ended | None:
    """Return the first worker that ended."""
    from traceanalyzer.run.workers import Ended

    return next((one for one in answers if isinstance(one, Ended)), None)


def _are_usable(opened: OpenedInputs, answers: Sequence[Any]) -> bool:
    """Whether the results of workers are those that this process would have.

    Recordings that files of different workers share are detected when read again here, and so is
    what only some of the shares of a file lack.
    """
    if not all(answers) or any(opened.state.repeats.repeated(one[0].repeats) for one in answers):
        return False
    first, *others = ([frame for _, frame in issues] for _, _, issues in answers)
    return not others or (
        all(one[0].is_complete for one in answers)
        and all(
            len(one) == len(first) and all(map(pl.DataFrame.equals, one, first)) for one in others
        )
        and all(one[0].read_again == answers[0][0].read_again for one in answers)
    )


@dataclass(frozen=True)
class _Chunk:
    """Inputs that are measured together.

    Attributes:
        items: the inputs.
        shares: what each worker reads of them: None for all, or some ranks of a file; empty if this
            process reads them.
    """

    items: list[Trace | str]
    shares: Sequence[_Ranks]


def _shares(opened: OpenedInputs, items: Sequence[Trace | str]) -> dict[str, list[_Ranks]]:
    """Return the ranks that each worker reads of large files, if there are fewer than workers.

    Each reads all of a file and keeps its ranks: that needs a third more CPU time in total. By
    default, each has two cores for its threads.
    """
    how = opened.how
    files = [item for item in items if isinstance(item, str)]
    limit, free = how.workers, math.inf
    if limit == "auto":
        limit, free = cores() // 2, free_memory()
    is_whole = how.read is None and how.assume_rank is None and how.rank is None
    if not is_whole or not opened.is_split or how.client is not None or limit < 2 * len(files):
        return {}
    shares: dict[str, list[_Ranks]] = {}
    for path in files:
        with suppress(InputError):  # it is raised when the file is read
            ranks = ranks_apart(path, how.format)
            number = min(len(ranks), limit // len(files))
            needed = number * _PROGRAM_BYTES + bytes_of(path) * _BYTES_PER_SHARED_BYTE
            if number > 1 and needed <= free:
                ends = [len(ranks) * i // number for i in range(number + 1)]
                shares[path] = [frozenset(ranks[low:high]) for low, high in pairwise(ends)]
    return shares


def _chunks(items: Sequence[Trace | str], shares: Mapping[str, Sequence[_Ranks]]) -> list[_Chunk]:
    """Return the inputs in ordered groups, with what each worker may read of them."""
    chunks: list[_Chunk] = []
    for size, run_of in groupby(items, key=_size_class):
        run = list(run_of)
        length = min(max(len(run) // _TASKS, _FEWEST), _MOST) if size == "small" else 1
        for at in range(0, len(run), length):
            some = run[at : at + length]
            of_file = shares.get(some[0]) if isinstance(some[0], str) else None
            chunks.append(_Chunk(some, () if size == "unknown" else of_file or [None]))
    return chunks


def _apart(
    opened: OpenedInputs, chunks: Sequence[_Chunk]
) -> Callable[[Sequence[Any]], Generator[Any]] | None:
    """Return the function that runs tasks in other processes; None if this one reads the inputs."""
    client = opened.how.client
    number = 0 if client is not None else _number_of_workers(opened.how.workers, chunks)
    if number == 1:
        return None
    from traceanalyzer.run import workers

    if client is not None:
        return partial(workers.each_on_cluster, client, _measured_on_host)
    threads = max(1, cores() // number)
    return partial(workers.each, _measured_apart, number=number, threads=threads)


def _number_of_workers(wanted: int | Literal["auto"], chunks: Sequence[_Chunk]) -> int:
    """Return the number of processes that read the inputs; 1 is this process."""
    sizes = [
        bytes_of(str(item))
        * _INFLATED.get(PurePath(str(item)).suffix.lower(), 1)
        / len(chunk.shares)
        for chunk in chunks
        for item in chunk.items
        for _ in chunk.shares
    ]
    if wanted != "auto":
        return max(1, min(wanted, len(sizes)))
    if len(sizes) < 2:
        return 1
    fitting = free_memory() // (_PROGRAM_BYTES + _BYTES_PER_BYTE * max(sizes))
    number = max(1, int(min(cores(), fitting, len(sizes))))
    seconds = len(sizes) * _FILE_SECONDS + sum(sizes) * _BYTE_SECONDS
    return number if seconds - seconds / number > _START_SECONDS else 1


def _size_class(item: Trace | str) -> Literal["small", "large", "unknown"]:
    size = bytes_of(item) if isinstance(item, str) else math.inf
    if size == math.inf:
        return "unknown"
    return "small" if size <= _SMALL_BYTES else "large"


def _measured_apart(task: tuple[OpenedInputs, Questions]) -> tuple[State, Questions, Issues]:
    """Run a task in a worker; return what was found and measured, and the issues of its files."""
    opened, questions = task
    issues: Issues = []
    how = opened.how
    opened.how = replace(how, on_trace=lambda trace: issues.append((trace.sources, trace.issues)))
    several: Iterable[Opened] = list(opened)
    if opened.state.is_complete:
        questions.prepare(several)
    else:  # again one by one: only earlier inputs count
        opened.state, several = State(), opened
        issues.clear()
    for one in several:
        questions.measure(opened, one)
    opened.how = how
    return opened.state, questions, issues


def _measured_on_host(task: tuple[OpenedInputs, Questions]) -> tuple[State, Questions, Issues]:
    """Run a task on a worker that may be another machine, without the files it cannot see."""
    from traceanalyzer.run.workers import unseen

    opened, _ = task
    hidden = {path: why for path in opened.items if isinstance(path, str) and (why := unseen(path))}
    opened.items = [item for item in opened.items if item not in hidden]
    answer = _measured_apart(task)
    for path, why in hidden.items():
        answer[0].fail(path, UnreadableFile(path, why))
    return answer
