"""An input file: its decompressed bytes, and the rank in its name. Independent of any format."""

import codecs
import contextlib
import io
import itertools
import os
import re
import stat
import zipfile
from collections.abc import Callable, Generator, Iterator
from pathlib import PurePath
from typing import IO, Any

from isal import isal_zlib

from traceanalyzer.errors import InputError, MalformedInput, UnreadableFile
from traceanalyzer.vocabulary import NSYS_TABLE, TRUNCATED

HEAD_BYTES = 1 << 16  # some writers put pages of metadata before the events
_READ = 1 << 20
#: Bytes read to recognise a file; a folder may contain thousands of files.
_HEAD_READ = 1 << 14
#: A damaged stream is decoded again in steps of this size, to keep all data before the damage.
_CAREFUL_READ = 64
#: Maximum size of a block in a zstd frame.
_ZSTD_BLOCK = 1 << 17
_ZSTD_HEADER = 18

_InflateError: type[Exception] = getattr(isal_zlib, "error")  # noqa: B009 - its stub hides it

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # an empty archive
    b"\x28\xb5\x2f\xfd": "zstd",
}
#: Beginning of a text in UTF-16 or UTF-32: its byte order mark, or ASCII characters with NULs. The
#: mark of UTF-32-LE begins with that of UTF-16-LE.
_ENCODINGS = (
    ("utf-32-le", codecs.BOM_UTF32_LE, re.compile(rb"(?:[ -~]\0\0\0){2}")),
    ("utf-32-be", codecs.BOM_UTF32_BE, re.compile(rb"(?:\0\0\0[ -~]){2}")),
    ("utf-16-le", codecs.BOM_UTF16_LE, re.compile(rb"(?:[ -~]\0){4}")),
    ("utf-16-be", codecs.BOM_UTF16_BE, re.compile(rb"(?:\0[ -~]){4}")),
)
_ENCODING_BYTES = 8
_RANK = re.compile(r"(?i)(?:^|[^a-z])(?:global_?)?(?:rank|worker)[-_.\[ ]?(\d{1,7})(?!\d)")
_OF_WORLD = re.compile(r"(?i)[-_.](\d{1,7})[-_]of[-_]\d{1,7}(?!\d)")
_NODE = re.compile(r"(?i)(?:^|[^a-z])node(?:[-_.\[ ]?(?:id|rank))?[-_.\[ ]?(\d{1,7})(?!\d)")
#: A table in a folder with a table of nsys.
_TABLE = re.compile(r"[A-Z]\w*\.(?:parquet|arrows?|feather)")


class Source:
    """One input file. Iterate :meth:`blocks` for its decompressed bytes.

    Text becomes UTF-8 without a byte order mark; Windows writes UTF-16. A truncated or damaged
    compressed stream yields what could be decoded; ``damage`` then describes the problem in one
    line, and the parser decides whether the rest is usable.

    Attributes:
        path: the file, as passed by the user.
        size: bytes on disk.
        compression: ``gzip``, ``zip``, ``zstd`` or None.
        is_plain: the bytes on disk are those of :meth:`blocks`.
        damage: the problem of the compressed stream, or None.
        written: size, time of the last change and inode of the file.
        tables: the files of a folder with one table each, by table; empty for a file. Such a folder
            has no bytes of its own.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.damage: str | None = None
        self._head: bytes | None = None
        try:
            info = os.stat(self.path)  # noqa: PTH116 - no Path object: the name is kept as given
            self.tables = table_files(self.path)
            if not stat.S_ISREG(info.st_mode) and not self.tables:
                kind = "a directory" if stat.S_ISDIR(info.st_mode) else "not a regular file"
                hint = "pass a file"
                if kind == "a directory":
                    hint += ", or use traceanalyzer.read_job for all files in it"
                raise UnreadableFile(self.path, f"is {kind}", hint=hint)
            self._file = os.devnull if self.tables else self.path
            with open(self._file, "rb") as file:  # noqa: PTH123
                magic = file.read(_ENCODING_BYTES)
            self.size = size_of(self.path)
        except (OSError, ValueError) as error:
            raise UnreadableFile(self.path, _reason(error)) from None
        self.written = (info.st_size, info.st_mtime_ns, info.st_ino)
        self.compression = next((c for m, c in _MAGIC.items() if magic.startswith(m)), None)
        self.is_plain = self.compression is None and _encoding(magic) == (b"", None)

    @property
    def issues(self) -> list[tuple[str, str, int, str | None]]:
        """The row of ``issues`` about damage of the compressed stream, if there is any."""
        return [("data_loss", "damaged-file", 1, self.damage)] if self.damage else []

    def require_unchanged(self) -> None:
        """Require that nobody has written the file since it was opened.

        Raises:
            UnreadableFile: it has changed.
        """
        try:
            info = os.stat(self.path)  # noqa: PTH116
        except OSError as error:
            raise UnreadableFile(self.path, _reason(error)) from None
        if (info.st_size, info.st_mtime_ns, info.st_ino) != self.written:
            what = "changed while it was read"
            raise UnreadableFile(self.path, what, hint="read it when the program has written it")

    def head(self) -> bytes:
        """Return the first 64 KiB after decompression; less for a shorter file."""
        if self._head is None:
            with contextlib.closing(self.blocks(HEAD_BYTES, step=_HEAD_READ)) as blocks:
                self._head = next(blocks, b"")[:HEAD_BYTES]
        return self._head

    def blocks(
        self,
        size: int = _READ,
        progress: Callable[[int, int], None] | None = None,
        step: int = _READ,
    ) -> Generator[bytes]:
        """Yield decompressed bytes in blocks of at least ``size`` (the last may be shorter).

        Args:
            size: bytes per block.
            progress: called with (bytes read, total bytes) of the file on disk.
            step: bytes to read from the file at a time.

        Raises:
            UnreadableFile: the file cannot be read.
            InputError: the compression is not supported.
        """
        self.damage = None
        parts: list[bytes] = []
        size_so_far = 0
        for piece in _as_utf8(self._decompressed(progress, step)):
            parts.append(piece)
            size_so_far += len(piece)
            if size_so_far >= size:
                yield b"".join(parts)
                parts, size_so_far = [], 0
        if size_so_far:
            yield b"".join(parts)

    def _decompressed(
        self, progress: Callable[[int, int], None] | None, step: int
    ) -> Iterator[bytes]:
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open(self._file, "rb", buffering=0))  # noqa: PTH123
            except OSError as error:
                raise UnreadableFile(self.path, _reason(error)) from None
            raw = self._raw(file, progress, step)
            if self.compression == "gzip":
                yield from self._gunzip(raw, 8 * step)
            elif self.compression == "zip":
                for block in self._unzip(file, step):
                    if progress:
                        progress(file.tell(), self.size)
                    yield block
            elif self.compression == "zstd":
                yield from self._unzstd(raw)
            else:
                yield from raw

    def _raw(
        self, file: IO[bytes], progress: Callable[[int, int], None] | None, step: int
    ) -> Iterator[bytes]:
        read = 0
        while True:
            try:
                block = file.read(step)
            except OSError as error:
                raise UnreadableFile(self.path, _reason(error), where=f"byte {read}") from None
            if not block:
                return
            read += len(block)
            if progress:
                progress(read, self.size)
            yield block

    def _gunzip(self, raw: Iterator[bytes], limit: int) -> Iterator[bytes]:
        """Yield all members of a gzip file; like gzip, ignore garbage after the last member."""
        inflater: Any = None
        # file offset, start of this member, bytes yielded of this member
        read = start = given = 0
        for block in raw:
            data = block
            while data:
                if inflater is None:
                    data = data.lstrip(b"\0") if read else data
                    if read and data and not data.startswith(b"\x1f"):
                        self.damage = f"bytes after the gzip stream ignored, from byte {read}"
                        return
                    if not data:
                        break
                    inflater, start, given = isal_zlib.decompressobj(31), read, 0
                try:
                    out = inflater.decompress(data, limit)
                except _InflateError as error:
                    yield from self._up_to_damage(start, given)
                    self.damage = f"{self.damage}: {error}"
                    return
                given += len(out)
                if out:
                    yield out
                rest = inflater.unused_data if inflater.eof else inflater.unconsumed_tail
                read += len(data) - len(rest)
                data, inflater = rest, None if inflater.eof else inflater
        if inflater is not None:
            self.damage = f"gzip stream ends early, at byte {read}: {TRUNCATED}"

    def _up_to_damage(self, start: int, given: int) -> Iterator[bytes]:
        """Yield the bytes of a gzip member up to its damage, after the first ``given`` bytes."""
        inflater = isal_zlib.decompressobj(31)
        with open(self.path, "rb") as file:  # noqa: PTH123
            file.seek(start)
            while block := file.read(_CAREFUL_READ):
                try:
                    out = inflater.decompress(block)
                except _InflateError:
                    break
                if len(out) > given:
                    yield out[given:]
                given = max(given - len(out), 0)
            self.damage = f"gzip stream damaged near byte {file.tell()}"

    def _unzip(self, file: IO[bytes], step: int) -> Iterator[bytes]:
        """Yield the largest member of a zip archive; most archives have only one."""
        try:
            with zipfile.ZipFile(file) as archive:
                member = self._largest(archive)
                with archive.open(member) as stream:
                    while block := stream.read(step):
                        yield block
        except InputError:
            raise
        except Exception as error:  # noqa: BLE001 - zipfile passes on errors of any decompressor
            self.damage = f"zip archive damaged: {error or type(error).__name__}"

    def _largest(self, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
        members = [m for m in archive.infolist() if not m.is_dir()]
        if not members:
            raise MalformedInput(self.path, "is an empty zip archive")
        member = max(members, key=lambda m: m.file_size)
        if len(members) > 1:
            self.damage = f"zip archive: only its largest member {member.filename!r} was read"
        if member.flag_bits & 1:
            raise MalformedInput(self.path, "is an encrypted zip archive", hint="unpack it")
        return member

    def _unzstd(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        try:
            import zstandard
        except ImportError:
            raise InputError(
                self.path,
                "is zstd-compressed and the zstandard package is not installed",
                hint="pip install zstandard, or unpack it with zstd -d",
            ) from None
        source: Any = JoinedBlocks(raw)
        stream = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True)
        given = 0
        try:
            while block := stream.read1(_ZSTD_BLOCK):
                given += len(block)
                yield block
            with open(self.path, "rb") as file:  # noqa: PTH123
                expected = zstandard.frame_content_size(file.read(_ZSTD_HEADER))
        except zstandard.ZstdError as error:
            self.damage = f"zstd stream damaged: {error}"
        else:
            if given < expected:  # -1: unknown
                self.damage = f"zstd stream ends early: {given} of {expected} bytes"


def _as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Convert UTF-16 and UTF-32, whose invalid parts become U+FFFD, and drop a byte order mark."""
    first = b""
    while len(first) < _ENCODING_BYTES and (piece := next(pieces, b"")):
        first += piece
    mark, encoding = _encoding(first)
    pieces = itertools.chain((first[len(mark) :],), pieces)
    if encoding is None:
        return pieces
    decoded = codecs.iterdecode(pieces, encoding, errors="replace")
    return (text.encode(errors="replace") for text in decoded)


def _encoding(first: bytes) -> tuple[bytes, str | None]:
    """Return the byte order mark of a file that begins so, and its encoding if it is not UTF-8."""
    for encoding, mark, ascii_only in _ENCODINGS:
        if first.startswith(mark):
            return mark, encoding
        if ascii_only.match(first):
            return b"", encoding
    return codecs.BOM_UTF8 if first.startswith(codecs.BOM_UTF8) else b"", None


def table_files(path: str) -> dict[str, str]:
    """Return the files of a folder that nsys exported, by table; empty for any other path."""
    if not os.path.isdir(path):  # noqa: PTH112 - the name is kept as it was given
        return {}
    names = sorted(os.listdir(path))  # noqa: PTH208
    tables = filter(_TABLE.fullmatch, names) if any(map(NSYS_TABLE.fullmatch, names)) else ()
    return {name.partition(".")[0]: os.path.join(path, name) for name in tables}  # noqa: PTH118


def size_of(path: str) -> int:
    """Return the bytes of a file, or of the tables of a folder."""
    return sum(map(os.path.getsize, table_files(path).values() or [path]))


def rank_from_name(path: str) -> int | None:
    """Return the rank in a file's name, or else in its folder's name; None without one.

    ``rank3.json``, ``trace_rank-3.json.gz``, ``worker3_step_12.json``, ``rank[3].json``,
    ``trace-3-of-8.json``.
    """
    rank = _last(_RANK, path)
    return _last(_OF_WORLD, path) if rank is None else rank


def rank_or_node_from_name(path: str) -> int | None:
    """Like :func:`rank_from_name`; the node's number where the name has no rank.

    For recordings of a whole node, such as ``profile_node3.txt``.
    """
    rank = rank_from_name(path)
    return _last(_NODE, path) if rank is None else rank


class JoinedBlocks(io.RawIOBase):
    """An iterator of blocks as a readable file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at most one block into a buffer; 0 at the end."""
        block = self._rest or next(self._blocks, b"")
        n = min(len(buffer), len(block))
        buffer[:n] = block[:n]
        self._rest = block[n:]
        return n


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


def _last(pattern: re.Pattern[str], path: str) -> int | None:
    for part in reversed(PurePath(path).parts[-2:]):
        matches = pattern.findall(part)
        if matches:
            return int(matches[-1])
    return None
