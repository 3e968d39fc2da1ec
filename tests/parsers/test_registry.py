"""Formats of other packages, registered by entry point."""

import gzip
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from conftest import ROOT
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import OptionError, UnknownFormat
from traceanalyzer.parsers import chrome_trace, registry
from traceanalyzer.parsers.contract import Format, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.run.find import format_of
from traceanalyzer.trace import Meta, Trace


def parse(source, selection: Selection, progress=None) -> Trace:
    return Trace((Meta(source.path, "their-format"),))


THEIRS = Format(
    name="their-format",
    suffixes=(".their",),
    description="of another package",
    sniff=lambda head, path: head.startswith((b"THEIRS", b"{")),
    parse=parse,
    priority=1_000,
)
BROKEN = Format(
    name="broken-format",
    suffixes=(),
    description="",
    sniff=lambda head, path: 1 // 0 == 1,
    parse=parse,
    priority=2_000,
)
#: JSON of other formats.
OTHERS = (
    "py_spy/subprocesses.speedscope.json",
    "flight_recorder/gloo_json/nccl_trace_rank_1.json",
    "requests/jaeger.json",
)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Three entry points: a format, one whose sniffing fails, one that cannot be loaded."""
    entries = [
        EntryPoint(name, f"{__name__}:{value}", registry.ENTRY_POINTS)
        for name, value in (("a", "THEIRS"), ("b", "BROKEN"), ("c", "MISSING"))
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    for cached in (registry.formats, registry._loaded):
        cached.cache_clear()
    yield
    for cached in (registry.formats, registry._loaded):
        cached.cache_clear()


def test_a_format_of_another_package_is_read_by_its_content(tmp_path):
    path = tmp_path / "unknown"
    path.write_bytes(b"THEIRS\n1\n2\n")
    assert ta.read(path).meta.format == "their-format"


def test_plugin_does_not_override_built_in_detection(tmp_path):
    trace = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    assert ta.read(trace, kinds=["kernel"]).meta.format == "chrome-trace"
    assert ta.read(trace, format="their-format").meta.format == "their-format"


def test_the_first_key_shows_a_kineto_trace_and_no_other_format(monkeypatch):
    def imported():
        raise AssertionError("the other formats were imported")

    trace = Source(ROOT / "fixtures/nccl_8ranks/rank0.json.gz")
    others = [ROOT / f"fixtures/{name}" for name in OTHERS]
    assert not any(chrome_trace.is_kineto(Source(path).head()) for path in others)
    monkeypatch.setattr(registry, "_built_in", imported)
    assert registry.detect(trace) is chrome_trace.FORMAT


def test_plugin_is_tried_before_weak_built_in_formats(tmp_path):
    path = tmp_path / "raw.txt"
    path.write_bytes(b"THEIRS;main (a.py:1) 3\n" * 9)
    assert ta.read(path).meta.format == "their-format"


def test_broken_plugin_is_reported(tmp_path):
    path = tmp_path / "unknown"
    path.write_bytes(b"nobody's\0")
    with raises_wording(UnknownFormat):
        ta.read(path)
    with raises_wording(OptionError):
        ta.read(path, format="nope")


def test_priorities_are_unique():
    priorities = [f.priority for f in registry.formats()]
    assert len(set(priorities)) == len(priorities)
    assert priorities == sorted(priorities, reverse=True)


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (b"", "record it again"),
        (b"hello world", "--input-format"),
        (gzip.compress(b'{"traceEvents": [' + bytes(range(256)), mtime=0)[:12], "copy or record"),
    ],
)
def test_an_unknown_file_gets_a_remedy_and_no_list(tmp_path, content, remedy):
    (tmp_path / "x.json.gz").write_bytes(content)
    with pytest.raises(UnknownFormat, match=remedy) as raised:
        ta.read(tmp_path / "x.json.gz")
    assert "ncu-csv" not in str(raised.value)


def test_a_rewritten_file_is_recognised_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("main (train.py:1);step (train.py:2) 3\n")
    assert format_of(path) == "collapsed"
    path.write_text('{"traceEvents": []}')
    assert format_of(path) == "chrome-trace"
