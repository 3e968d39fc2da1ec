"""Generated snapshots of all versions, compared with the numbers of their generator."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import traceanalyzer as ta

TRUE = re.compile(
    r"events (\d+) of (\d+) .*true peak (\d+) live end (\d+) reserved (\d+) oom (\w+)"
)
EVENTS = 1200

options = st.fixed_dictionaries(
    {
        "fmt": st.sampled_from(["2.0", "2.1", "2.5", "2.13"]),
        "seed": st.integers(0, 50),
        "layers": st.integers(4, 8),
        "flags": st.sets(st.sampled_from(["--oom", "--leak", "--expandable"])),
    }
)


@pytest.fixture(scope="module")
def generate(shared: Path, tmp_path_factory: pytest.TempPathFactory):
    tool = shared / "tools" / "gen_memory_snapshot.py"
    folder = tmp_path_factory.mktemp("generated")

    @cache
    def run(*arguments: str) -> tuple[Path, tuple[int, ...]]:
        out = folder / f"{len(list(folder.iterdir()))}.pickle"
        done = subprocess.run(
            [sys.executable, str(tool), str(out), *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        match = TRUE.search(done.stdout)
        assert match, done.stdout
        return out, tuple(int(number) for number in match.groups()[:5])

    return run


def arguments(given_: dict[str, object]) -> list[str]:
    flags = given_["flags"]
    assert isinstance(flags, set)
    named = {"--fmt": given_["fmt"], "--seed": given_["seed"], "--layers": given_["layers"]}
    return [
        "--events", str(EVENTS), "--depth", "5,12", *sorted(flags),
        *(str(part) for pair in named.items() for part in pair),
    ]  # fmt: skip


several = settings(
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@several
@given(given_=options)
def test_peak_and_end_match_generator(generate, given_) -> None:
    path, (n, _, peak, end, reserved) = generate(*arguments(given_))
    row = ta.memory(path).devices.row(0, named=True)
    assert (row["events"], row["peak_bytes"], row["end_bytes"]) == (n, peak, end)
    assert row["reserved_end_bytes"] == reserved
    assert (row["start_bytes"], row["before_n"]) == (0, 0)
    quality = ("reused_n", "double_free_n", "resized_n", "never_freed_n", "difference_bytes")
    assert [row[key] for key in quality] == [0] * 5


@pytest.mark.matrix
@several
@given(given_=options, most=st.integers(20, 1000))
def test_ring_matches_end_of_full_history(generate, given_, most) -> None:
    """Missing history is reconstructed: all positions of the ring match the full history."""
    whole, _ = generate(*arguments(given_))
    ring, (n, total, *_) = generate(*arguments(given_), "--max-entries", str(most))
    curves = [
        ta.memory(path).timeline.select("live_bytes", "reserved_bytes") for path in (whole, ring)
    ]
    assert (curves[0].height, curves[1].height) == (total + 1, n + 1)
    assert curves[1].equals(curves[0].tail(n + 1))


@pytest.mark.matrix
def test_versions_give_equal_lines(generate) -> None:
    first, *others = [
        ta.memory(generate("--events", "2000", "--fmt", fmt)[0]).lines.drop("path")
        for fmt in ("2.0", "2.1", "2.5", "2.13")
    ]
    assert all(lines.equals(first) for lines in others)
