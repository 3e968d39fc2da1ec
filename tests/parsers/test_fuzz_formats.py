"""Every format with damaged structure and bytes: deterministic result or error."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from random import Random, SystemRandom

import pytest
from damage import FORMATS, SHARE, damaged
from harness import differences

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import InputError
from traceanalyzer.schema import ON_REQUEST

#: Damaged files of each format in ``make test-all``; ``make fuzz`` tries as many as it can.
CASES = 10
#: Seconds of one file of some 100 KB, and bytes of Python's that reading it may hold.
PATIENCE, MOST = 20.0, 256 << 20


def outcome(path: Path, name: str) -> ta.Trace | str:
    """What a file is read to, or the one line that says why not."""
    try:
        return ta.read(path, format=name)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either way is right
        return str(error)


def survives(path: Path, name: str, data: bytes) -> bool:
    """Whether a damaged file is read; either way it is in time, in little memory, and always so."""
    path.write_bytes(data)
    started = time.process_time()
    first, second = outcome(path, name), outcome(path, name)
    assert time.process_time() - started < 2 * PATIENCE
    if isinstance(first, str) or isinstance(second, str):
        assert first == second
        return False
    assert schema.check(first.tables) == []
    assert differences(first, second) == []
    if name == "chrome-trace":
        more = ta.read(path, format=name, columns=ON_REQUEST)
        assert more.events.drop(ON_REQUEST).equals(first.events)
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_rejected(name: str, tmp_path: Path, thorough: bool) -> None:
    tracemalloc.start()
    try:
        for seed in range(CASES if thorough else CASES // 3):
            data = damaged(name, Random(f"{name} {seed}"))  # noqa: S311
            try:
                survives(tmp_path / "rank0", name, data)
            except Exception as error:
                raise AssertionError(f'damaged("{name}", Random("{name} {seed}"))') from error
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FORMATS)
def test_many_more(name: str, tmp_path: Path) -> None:
    """``make fuzz``: new seeds until the time is up; failing files are kept, with their seed."""
    end = time.monotonic() + SHARE
    seed = first = SystemRandom().randrange(1 << 40)
    read = 0
    while time.monotonic() < end:
        data = damaged(name, Random(f"{name} {seed}"))  # noqa: S311
        try:
            read += survives(tmp_path / "rank0", name, data)
        except Exception as error:
            kept = tmp_path / f"crash_{seed}"
            kept.write_bytes(data)
            raise AssertionError(f'Random("{name} {seed}"), kept as {kept}') from error
        seed += 1
    print(f"{name}: {seed - first} damaged files, {read} of them read")  # noqa: T201
