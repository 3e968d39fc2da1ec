"""The byte fuzzer's corpus: compiled and Python code read or reject each file alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus import FORMATS, members
from harness import differences, patched
from test_fuzz_formats import outcome

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.parsers.chrome_trace import arrays
from traceanalyzer.parsers.memory_snapshot import machine


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FORMATS)
def test_corpus_files_are_read_or_rejected_as_recorded(name: str, tmp_path: Path) -> None:
    files, path = members(name), tmp_path / "rank0"
    assert len(files) >= 10
    read = 0
    for number, data in enumerate(files):
        path.write_bytes(data)
        compiled = outcome(path, name)
        with patched(arrays, _scan=None), patched(machine, _machine=None):
            plain = outcome(path, name)
        if isinstance(compiled, ta.Trace) and isinstance(plain, ta.Trace):
            assert schema.check(compiled.tables) == [], number
            assert differences(compiled, plain) == [], number
            read += 1
        else:
            assert compiled == plain, number
    assert 0 < read < len(files)
