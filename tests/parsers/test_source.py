"""Compressed files: read transparently; losses are reported, unusable files rejected."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest
import zstandard
from harness import differences
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import InputError, UnknownFormat

EVENTS = [
    {"ph": "X", "cat": "kernel", "name": f"k{n}", "pid": 0, "tid": 7, "ts": 10 * n, "dur": 5}
    for n in range(2000)
]
TEXT = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}).encode()


def zipped(path: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def issues_text(trace: ta.Trace) -> str:
    return " ".join(trace.issues["first"].drop_nulls())


def plain(folder: Path) -> ta.Trace:
    path = folder / "plain.json"
    path.write_bytes(TEXT)
    return ta.read(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "encoding",
    ["utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"],
)
def test_text_of_any_unicode_encoding_is_read(tmp_path: Path, encoding: str, packed: bool) -> None:
    path = tmp_path / "trace.json"
    text = TEXT.decode().encode(encoding)
    path.write_bytes(gzip.compress(text) if packed else text)
    assert differences(ta.read(path), plain(tmp_path)) == []


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\0\0"])
@pytest.mark.parametrize("rest", [b"", b"\0" * 99, b"\0 \r\n"])
def test_file_without_text_is_rejected(tmp_path: Path, mark: bytes, rest: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(mark + rest)
    with pytest.raises(UnknownFormat):
        ta.read(path)


def test_truncated_utf_16_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT.decode().encode("utf-16")[:20_001])
    trace = ta.read(path)
    assert trace.events.height > 90
    assert trace.issues["code"].to_list() == ["truncated"]


@pytest.mark.parametrize(
    "packed",
    [
        lambda path: path.write_bytes(gzip.compress(TEXT)),
        lambda path: path.write_bytes(zstandard.compress(TEXT)),
        lambda path: path.write_bytes(
            zstandard.compress(TEXT[:999]) + zstandard.compress(TEXT[999:])
        ),
        lambda path: zipped(path, ("trace.json", TEXT)),
        lambda path: zipped(path, ("a/", b""), ("a/trace.json", TEXT)),
    ],
    ids=["gzip", "zstd", "zstd-frames", "zip", "zip-folder"],
)
def test_compressed_trace_equals_the_trace(tmp_path, packed):
    path, calls = tmp_path / "trace.bin", []
    packed(path)
    trace = ta.read(path, progress=lambda done, size: calls.append((done, size)))
    assert differences(trace, plain(tmp_path)) == []
    assert trace.events.height == len(EVENTS)
    assert all(done <= size for done, size in calls)
    assert calls == sorted(calls)


@pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.compress, None], ids=["gz", "zst", "zip"]
)
def test_errors_of_the_progress_callback_are_passed_on(tmp_path, pack):
    path = tmp_path / "trace.bin"
    path.write_bytes(pack(TEXT)) if pack else zipped(path, ("trace.json", TEXT))

    def broken(done: int, size: int) -> None:
        raise RuntimeError(f"no display for {done} of {size}")

    with pytest.raises(RuntimeError, match="no display for"):
        ta.read(path, progress=broken)


def test_largest_member_is_read_and_reported(tmp_path):
    path = zipped(tmp_path / "a.zip", ("notes.txt", b"hello"), ("trace.json", TEXT))
    trace = ta.read(path)
    assert trace.events.height == len(EVENTS)
    check_wording(issues_text(trace))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gz", "zst"])
def test_bytes_after_the_compressed_stream_cost_nothing(tmp_path, pack):
    path = tmp_path / "trace.bin"
    path.write_bytes(pack(TEXT) + b"end of job\n")
    trace = ta.read(path)
    assert trace.events.height == len(EVENTS)
    assert "damaged-file" in trace.issues["code"]


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("kind", ["zip", "zstd"])
def test_loss_in_a_damaged_archive_is_reported(tmp_path, kind, share):
    if kind == "zip":
        data = bytearray(zipped(tmp_path / "whole.zip", ("trace.json", TEXT)).read_bytes())
        at = int(len(data) * share)
        data[at : at + 8] = bytes(8)
    else:
        whole = zstandard.compress(TEXT)
        data = bytearray(whole[: int(len(whole) * share)])
    path = tmp_path / "trace.bin"
    path.write_bytes(data)
    try:
        trace = ta.read(path)
    except InputError as error:  # nothing at all was left
        assert "damaged" in str(error) or "ends early" in str(error)  # noqa: PT017
    else:
        assert trace.events.height < len(EVENTS)
        assert "damaged" in issues_text(trace) or "ends early" in issues_text(trace)


def test_empty_archive_is_rejected(tmp_path):
    with raises_wording(InputError):
        ta.read(zipped(tmp_path / "a.zip"))


def test_encrypted_archive_is_rejected(tmp_path):
    path = zipped(tmp_path / "a.zip", ("trace.json", TEXT))
    data = bytearray(path.read_bytes())
    central = data.index(b"PK\x01\x02")
    data[6] |= 1
    data[central + 8] |= 1
    path.write_bytes(data)
    with raises_wording(InputError):
        ta.read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"other_key": []}', "JSON without traceEvents"),
        (' {"a": 1}', "JSON without traceEvents"),
        ("\x01\x02\x03 nothing", "unknown file format"),
    ],
)
def test_unknown_file_is_described(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UnknownFormat, match=message):
        ta.read(path)
