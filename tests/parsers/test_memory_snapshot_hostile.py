"""Untrusted snapshots: damaged, truncated or malicious."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from snapshots import Snapshot

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import InputError, TraceAnalyzerError
from traceanalyzer.render import html

FOLDER = Path(__file__).parents[2] / "fixtures" / "memory"
FILES = sorted(FOLDER.glob("*.pickle"))
QUESTIONS = (
    ta.memory,
    ta.memory_oom,
    ta.flamegraph,
    lambda trace: ta.memory_growth(trace, step_every="30"),
)
MEGABYTE = 1 << 20


def asked(path: Path, questions: Sequence[Callable[..., Any]] = QUESTIONS) -> bool:
    """Whether a file can be read; whatever it is, nothing but errors of our own come of it."""
    try:
        trace = ta.read(path, format="memory-snapshot")
    except InputError:
        return False
    assert schema.check(trace.tables) == []
    for question in questions:
        with contextlib.suppress(TraceAnalyzerError):
            assert question(trace).table()
    return True


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, taken out, or put in from elsewhere."""
    result = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        at, how = chance.randrange(len(result)), chance.random()
        if how < 0.4:
            result[at] = chance.randrange(256)
        elif how < 0.6:
            result[at] = chance.choice(b".()]}eaush\x94\x8c\x8aKMJNG\x88\x89\x85\x86\x87")
        elif how < 0.8:
            del result[at : at + chance.randrange(1, 9)]
        else:
            source = chance.randrange(len(result))
            result[at:at] = result[source : source + chance.randrange(1, 60)]
    return bytes(result)


def damage(seed: int, rounds: int, folder: Path) -> int:
    """How many of so many damaged files could be read."""
    chance = random.Random(seed)  # noqa: S311 - damage, not secrets
    path = folder / "x.pickle"
    read = 0
    for _ in range(rounds):
        path.write_bytes(mutated(chance.choice(FILES).read_bytes(), chance))
        read += asked(path)
    return read


@pytest.mark.matrix
def test_damage_gives_an_input_error_or_a_result(tmp_path: Path, thorough: bool) -> None:
    rounds = 50 if thorough else 15
    assert 0 < damage(11, rounds, tmp_path) < rounds


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(2))
def test_much_damage(seed: int, tmp_path: Path) -> None:
    assert 0 < damage(seed, 400, tmp_path) < 400


@pytest.mark.parametrize("device", [1 << 40, -(1 << 70), "one", None])
def test_segment_without_device_belongs_to_the_first(device: object, tmp_path: Path) -> None:
    path = Snapshot().hold(1 << 30, 1 << 20, device=device).write(tmp_path / "x.pickle")
    result = ta.read(path)
    assert schema.check(result.tables) == []
    assert result.segments["device"].to_list() == [0]


@pytest.mark.matrix
def test_truncated_anywhere(tmp_path: Path, thorough: bool) -> None:
    data = (FOLDER / "fragmented_oom.pickle").read_bytes()
    path = tmp_path / "x.pickle"
    result = []
    for end in range(97, len(data), 211 if thorough else 10 * 211):
        path.write_bytes(data[:end])
        result.append(asked(path, [ta.memory]))
    # too short to be recognised
    first = result.index(True)
    assert all(result[first:])
    assert first < len(result) / 2


# --- harm ------------------------------------------------------------------------------------

MEMO_BOMB = b"\x80\x02}r" + (1 << 28).to_bytes(4, "little") + b"segments."
NESTED = b"\x80\x04" + b"]" * (20 * MEGABYTE)
NOTHINGS = b"\x80\x04(" + b"N" * (20 * MEGABYTE)
AMPLIFIED = b"\x80\x04]\x94K\x01a" + b"h\x00" * (10 * MEGABYTE)
HUGE_TEXT = b"\x80\x04X\xff\xff\xff\xffsegments"
HUGE_INTEGER = b"\x80\x04\x8a\xff" + b"\xff" * 255
LAUGHS = b"\x80\x02" + b"".join(
    b"]q" + bytes((n,)) + b"(" + (b"h" + bytes((max(n, 1) - 1,))) * 10 + b"e" for n in range(20)
)
BOMBS = {
    "memo index": MEMO_BOMB,
    "nested lists": NESTED,
    "nothing, twenty million times": NOTHINGS,
    "one list, ten million times": AMPLIFIED,
    "a text of 4 GB": HUGE_TEXT,
    "an integer of 255 bytes": HUGE_INTEGER,
    "billion laughs": LAUGHS,
}


#: A process that asks for ``memory`` of each file; its peak of resident memory is that of all.
SCRIPT = """
import json, resource, sys
from contextlib import redirect_stderr
from io import StringIO
from traceanalyzer.cli.main import status
from traceanalyzer.parsers.memory_snapshot import machine
if sys.argv[1] == "plain":
    machine._machine = None
answers = []
for path in sys.argv[2:]:
    with redirect_stderr(StringIO()) as error:
        options = ["--input-format", "memory-snapshot", "-o", "/dev/null", "--force"]
        code = status(["memory", *options, path])
    answers.append((code, error.getvalue()))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
json.dump((answers, peak), sys.stdout)
"""


def run(paths: Sequence[Path], machine: str) -> tuple[list[tuple[int, str]], int]:
    """Exit status and standard error of ``memory`` on each file, and peak resident bytes."""
    command = [sys.executable, "-c", SCRIPT, machine, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    answers, peak = json.loads(done.stdout)
    return answers, peak


@pytest.mark.sample(2)
@pytest.mark.parametrize("machine", ["compiled", "plain"])
def test_pickle_bomb_has_limited_cost(machine: str, tmp_path: Path) -> None:
    usual = run([FOLDER / "training.pickle"], machine)[1]
    paths = [tmp_path / f"{number}.pickle" for number in range(len(BOMBS))]
    for path, bomb in zip(paths, BOMBS.values(), strict=True):
        path.write_bytes(bomb)
    answers, peak = run(paths, machine)
    for path, (code, message) in zip(paths, answers, strict=True):
        assert code == 1
        assert "Traceback" not in message
        assert message.startswith(f"traceanalyzer: {path}: ")
        assert message.count("\n") == 1
    assert peak < usual + 2 * max(map(len, BOMBS.values())) + 100 * MEGABYTE


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.target),))


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("machine", ["compiled", "plain"])
def test_no_code_runs(machine: str, tmp_path: Path) -> None:
    paths, targets = [], []
    for protocol in (2, 3, 4, 5):
        target, path = tmp_path / f"made{protocol}", tmp_path / f"{protocol}.pickle"
        whole = {"segments": [], "device_traces": [[]], "allocator_settings": Evil(target)}
        path.write_bytes(pickle.dumps(whole, protocol=protocol))
        paths.append(path)
        targets.append(target)
    for code, message in run(paths, machine)[0]:
        assert code == 1
        assert "opcode" in message
        assert "at byte" in message
    assert not any(target.exists() for target in targets)
    for path, target in zip(paths, targets, strict=True):
        pickle.loads(path.read_bytes())  # noqa: S301 - it would have run
        assert target.exists()


def test_text_of_a_file_is_escaped_in_output(tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>\x1b[31m"
    frames = [{"name": name, "filename": f"/w/{name}.py", "line": 3}]
    block = {"address": 0, "size": 512, "requested_size": 512, "state": "active_allocated",
             "frames": frames}  # fmt: skip
    segment = {"device": 0, "address": 0, "total_size": 512, "stream": 0, "segment_type": name,
               "blocks": [block]}  # fmt: skip
    event = {"action": "alloc", "addr": 0, "size": 512, "stream": 0, "time_us": 1, "frames": frames}
    path = tmp_path / "x.pickle"
    whole = {"segments": [segment], "device_traces": [[event, {**event, "action": name}]]}
    path.write_bytes(pickle.dumps(whole))
    result = ta.memory(path)
    assert "\x1b" not in result.table()
    page = html.page(result, top=None)
    assert name.split("\x1b")[0] not in page
    assert "<img" not in page
    # every closing script tag must be ours
    assert page.count("</script>") == page.count("<script")
