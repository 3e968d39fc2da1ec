"""Pieces to batches, in order, on as many cores as it pays.

Workers are fresh interpreters that run :mod:`~traceanalyzer.parsers.chrome_trace.worker`: a
process with threads is never forked, and a script of the user is never imported again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self

import msgspec

from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.parsers.chrome_trace.batch import Batch, unpack
from traceanalyzer.parsers.chrome_trace.container import Piece
from traceanalyzer.parsers.chrome_trace.text import Text
from traceanalyzer.parsers.chrome_trace.want import Want
from traceanalyzer.parsers.chrome_trace.worker import HEADER, LENGTH, process

_MAX_WORKERS = 8
_IN_FLIGHT = 2


def worker_count(text: Text, size: int, want: Want) -> int:
    """How many workers pay for a file of this size on disk; 0: stay in this process."""
    searched = bool(want.boundary)
    if searched and not text.shared:
        return 0  # inflating is the work; the search keeps up with it in this process
    threshold = (256 << 20) if searched else (24 << 20 if text.shared else 3 << 20)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if size < threshold or not cores or cores < 2 or os.name != "posix":
        return 0
    return min(cores, _MAX_WORKERS)


def batches(
    text: Text, pieces: Iterator[Piece], want: Want, path: str, workers: int
) -> Iterator[tuple[Piece, Batch]]:
    """Each piece with its batch, in the pieces' order.

    The last piece is read whole, without a search: it holds the end of the array.
    """
    if workers == 0:
        for piece in pieces:
            data = text.read(piece.offset, piece.length)
            yield piece, process(data, piece.offset, _whole(want) if piece.last else want)
        return
    with _Workers(workers, path, want) as pool:
        waiting: deque[tuple[Piece, Callable[[], Batch]]] = deque()
        for piece in pieces:
            waiting.append((piece, pool.submit(text, piece)))
            if len(waiting) >= workers * _IN_FLIGHT:
                done, result = waiting.popleft()
                yield done, result()
        while waiting:
            done, result = waiting.popleft()
            yield done, result()


def _whole(want: Want) -> Want:
    return msgspec.structs.replace(want, boundary=b"")


class _Workers:
    """Running workers, each with a pipe in and out and a thread that waits for its replies."""

    def __init__(self, count: int, path: str, want: Want) -> None:
        self._want = want
        self._turn = 0
        package_parent = str(Path(__file__).parents[3])
        inherited = os.environ.get("PYTHONPATH")
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (package_parent, inherited))),
        }
        command = [sys.executable, "-m", "traceanalyzer.parsers.chrome_trace.worker"]
        self._processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
            for _ in range(count)
        ]
        self._readers = [ThreadPoolExecutor(1) for _ in range(count)]
        name, wanted = os.fsencode(path), msgspec.msgpack.encode(want)
        for worker in self._processes:
            for part in (name, wanted):
                _write(worker, LENGTH.pack(len(part)) + part)

    def submit(self, text: Text, piece: Piece) -> Callable[[], Batch]:
        """Send a piece to the next worker; the returned function waits for its batch."""
        if piece.last and self._want.boundary:
            data = text.read(piece.offset, piece.length)
            return lambda: process(data, piece.offset, _whole(self._want))
        worker, reader = self._processes[self._turn], self._readers[self._turn]
        self._turn = (self._turn + 1) % len(self._processes)
        _write(worker, HEADER.pack(piece.offset, piece.length, not text.shared))
        if not text.shared:
            _write(worker, text.read(piece.offset, piece.length))
        return reader.submit(_receive, worker).result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker, reader in zip(self._processes, self._readers, strict=True):
            worker.kill()
            reader.shutdown(cancel_futures=True)
            with contextlib.suppress(BrokenPipeError):
                _pipe(worker.stdin).close()
            _pipe(worker.stdout).close()
            worker.wait()


def _write(worker: subprocess.Popen[bytes], data: bytes) -> None:
    pipe = _pipe(worker.stdin)
    try:
        pipe.write(data)
        pipe.flush()
    except BrokenPipeError:
        raise _ended_early(worker) from None


def _receive(worker: subprocess.Popen[bytes]) -> Batch:
    pipe = _pipe(worker.stdout)
    length = pipe.read(LENGTH.size)
    data = pipe.read(LENGTH.unpack(length)[0]) if len(length) == LENGTH.size else b""
    if not data:
        raise _ended_early(worker)
    return unpack(data)


def _ended_early(worker: subprocess.Popen[bytes]) -> TraceAnalyzerError:
    return TraceAnalyzerError(
        f"a reading process ended early (status {worker.wait()}); is there enough memory?"
    )


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("opened with PIPE")
    return pipe
