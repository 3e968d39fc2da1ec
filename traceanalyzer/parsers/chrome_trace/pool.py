"""Pieces to batches, in order, on several cores: a scan leaves the interpreter free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from traceanalyzer.parsers.chrome_trace.batch import Batch
from traceanalyzer.parsers.chrome_trace.container import Piece
from traceanalyzer.parsers.chrome_trace.text import Text
from traceanalyzer.parsers.chrome_trace.want import Want
from traceanalyzer.parsers.chrome_trace.worker import process
from traceanalyzer.parsers.threads import threads


def batches(text: Text, pieces: Iterator[Piece], want: Want) -> Iterator[tuple[Piece, list[Batch]]]:
    """Each piece with its batches, in the pieces' order; a few pieces are under way at a time.

    The first piece, which is small, is read before anything is started: it may be all there is.
    """
    first = next(pieces)
    yield first, process(text.read(first.offset, first.length), first.offset, want)
    if first.last:
        return
    most = threads()
    waiting: deque[tuple[Piece, Future[list[Batch]]]] = deque()
    with ThreadPoolExecutor(most) as pool:
        try:
            for piece in pieces:
                data = text.later(piece.offset, piece.length)
                waiting.append((piece, pool.submit(_process, data, piece.offset, want)))
                if len(waiting) > most:
                    done, result = waiting.popleft()
                    yield done, result.result()
            while waiting:
                done, result = waiting.popleft()
                yield done, result.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _process(data: Callable[[], bytes], offset: int, want: Want) -> list[Batch]:
    return process(data(), offset, want)
