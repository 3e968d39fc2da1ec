"""Decompressed bytes of a source by offset, independent of compression."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from traceanalyzer.errors import UnreadableFile
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.source import Source

_BLOCK = 1 << 21
_SMALL = 1 << 16


class Text(Protocol):
    """Random access to decompressed bytes that are not released yet."""

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes from an offset; fewer than requested only at the end."""

    def later(self, offset: int, length: int) -> Callable[[], bytes]:
        """Return a function for :meth:`read` that works in any thread and after the release."""

    def release(self, offset: int) -> None:
        """Release the bytes before this offset."""

    def close(self) -> None:
        """Stop reading."""


def open_text(source: Source, progress: Progress | None) -> Text:
    """Return the text of a source; a compressed one is read ahead."""
    if source.is_plain:
        return _PlainText(source, progress)
    return _StreamedText(source, progress)


class _PlainText:
    """A file whose bytes are the text."""

    def __init__(self, source: Source, progress: Progress | None) -> None:
        self._source, self._progress = source, progress
        try:
            self._file = os.open(source.path, os.O_RDONLY)
        except OSError as error:
            raise UnreadableFile(source.path, str(error.strerror).lower()) from None

    def read(self, offset: int, length: int) -> bytes:
        try:
            return _read_range(self._file, offset, length)
        except OSError as error:
            raise UnreadableFile(
                self._source.path, str(error.strerror).lower(), where=f"byte {offset}"
            ) from None

    def later(self, offset: int, length: int) -> Callable[[], bytes]:
        return lambda: self.read(offset, length)

    def release(self, offset: int) -> None:
        if self._progress:
            self._progress(min(offset, self._source.size), self._source.size)

    def close(self) -> None:
        os.close(self._file)


class _StreamedText:
    """A file to be decompressed or decoded, in a thread; blocks are kept until released."""

    def __init__(self, source: Source, progress: Progress | None) -> None:
        self._blocks: list[bytes] = []
        self._start = 0  # offset of the first kept block
        self._end = 0
        self._ended = False
        blocks = source.blocks(_BLOCK, progress)
        # for a small file a thread costs more than it saves
        self._ahead = None if source.size < _SMALL else _Ahead(blocks)
        self._next = self._ahead.next if self._ahead else partial(next, blocks, None)

    def read(self, offset: int, length: int) -> bytes:
        self._fill(offset + length)
        parts, at = [], self._start
        for block in self._blocks:
            low, high = max(offset - at, 0), min(offset + length - at, len(block))
            if low < high:
                parts.append(block[low:high] if high - low < len(block) else block)
            at += len(block)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def later(self, offset: int, length: int) -> Callable[[], bytes]:
        data = self.read(offset, length)  # only one thread may read a stream
        return lambda: data

    def release(self, offset: int) -> None:
        while self._blocks and self._start + len(self._blocks[0]) <= offset:
            self._start += len(self._blocks.pop(0))

    def close(self) -> None:
        if self._ahead:
            self._ahead.close()

    def _fill(self, end: int) -> None:
        while self._end < end and not self._ended:
            block = self._next()
            if block is None:
                self._ended = True
            else:
                self._blocks.append(block)
                self._end += len(block)


class _Ahead:
    """An iterator of blocks run in a thread, a few blocks ahead; inflating releases the GIL."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._queue: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=4)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(blocks,), daemon=True)
        self._thread.start()

    def _run(self, blocks: Iterator[bytes]) -> None:
        try:
            for block in blocks:
                self._put(block)
                if self._stop.is_set():
                    return
            self._put(None)
        except BaseException as error:  # noqa: BLE001 - raised again by next()
            self._put(error)

    def _put(self, item: bytes | BaseException | None) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=0.1)
                return

    def next(self) -> bytes | None:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def _read_range(file: int, offset: int, length: int) -> bytes:
    """Return bytes of an open file from an offset; fewer only at its end."""
    parts = []
    while length > 0:
        part = os.pread(file, length, offset)
        if not part:
            break
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
