"""Several runs of each version: noise between runs, comparability, exit codes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from conftest import ROOT, once

import traceanalyzer as ta
from traceanalyzer.analyzers.diff import runs
from traceanalyzer.cli.main import status
from traceanalyzer.errors import OptionError
from traceanalyzer.run import baselines

BEFORE, AFTER = ROOT / "fixtures/upgrade/before.json.gz", ROOT / "fixtures/upgrade/after.json.gz"
RANKS = ROOT / "fixtures/nccl_8ranks"


def slowed(path, folder, factor: float):
    """Write a recording whose times are longer by a factor."""
    trace = ta.read(path)
    folder.mkdir()
    text = json.dumps(
        {
            "schemaVersion": 1,
            "traceEvents": [
                {"ph": "X", "cat": cat, "name": name, "ts": ts / 1000 * factor,
                 "dur": dur / 1000 * factor, "pid": 0, "tid": tid, "args": args}
                for cat, name, ts, dur, tid, args in _events(trace)
            ],
        }
    )  # fmt: skip
    (folder / "rank0.json").write_text(text)
    return str(folder)


def _events(trace):
    start = trace.events["ts"].min()
    rows = trace.events.select("kind", "name", "ts", "dur", "device", "stream", "correlation")
    for kind, name, ts, dur, device, stream, correlation in rows.rows():
        if kind in ("kernel", "user_annotation"):
            args = {} if device is None else {"device": device, "stream": stream}
            args |= {} if correlation is None else {"correlation": correlation}
            yield kind, name, ts - start, dur, stream or 1, args


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> dict[float, str]:
    """One program, slower by a factor: quick recordings."""
    folder = tmp_path_factory.mktemp("versions")
    return {f: slowed(BEFORE, folder / f"x{f}", f) for f in (1.0, 1.02, 1.04, 1.06, 1.3)}


def test_the_noise_is_that_between_runs(versions):
    before = [versions[f] for f in (1.0, 1.04, 1.02)]
    single = once(ta.diff, versions[1.02], versions[1.06])
    result = ta.diff_runs(before, [versions[1.06]])
    steps = [ta.steps(path).scalars["median_ns"] for path in before]
    assert result.measure.before == np.median(steps)
    assert result.measure.after == ta.steps(versions[1.06]).scalars["median_ns"]
    # documented: 3 standard errors of the difference; one run varies like those of the other side
    (error,) = runs.standard_errors(np.array([steps]))
    assert result.measure.noise == pytest.approx(3 * error * (1 + 3) ** 0.5)
    assert (single.outcome, result.outcome) == ("regression", "no change")
    assert dict(result.repeats.group_by("run").len().rows()) == {"before": 3, "after": 1}
    assert result.runs["path"].to_list() == [
        f"{versions[1.02]}/rank0.json", f"{versions[1.06]}/rank0.json"
    ]  # fmt: skip


@pytest.mark.matrix
def test_the_sides_can_be_exchanged(versions):
    sides = [versions[1.0], versions[1.04]], [versions[1.3]]
    there, back = ta.diff_runs(*sides), ta.diff_runs(*sides[::-1])
    assert (there.outcome, back.outcome) == ("regression", "improvement")
    assert there.measure.change == -back.measure.change
    assert there.measure.noise == pytest.approx(back.measure.noise)


@pytest.mark.matrix
def test_noise_within_steps_is_the_least(versions):
    result = ta.diff_runs([BEFORE, BEFORE], [AFTER, AFTER])
    assert result.measure.noise == once(ta.diff, BEFORE, AFTER).measure.noise


def test_a_side_without_runs_is_an_error(versions):
    with pytest.raises(OptionError):
        ta.diff_runs([], [versions[1.0]])


@pytest.mark.matrix
def test_baselines_of_several_runs(versions, tmp_path, monkeypatch):
    monkeypatch.setenv(baselines.VARIABLE, str(tmp_path))
    for factor in (1.0, 1.04, 1.02):
        ta.save_baseline("main", versions[factor], add=True)
    named = ta.diff("baseline:main", versions[1.06])
    direct = ta.diff_runs([versions[f] for f in (1.0, 1.04, 1.02)], [versions[1.06]])
    assert named.to_dict() == direct.to_dict()


@pytest.mark.matrix
def test_runs_of_the_command_line(versions, capsys):
    command = ["diff", versions[1.0], versions[1.06], "-q", "--to", "json"]
    more = ["--more-before", versions[1.04], "--more-before", versions[1.02]]
    gate = ["--fail-on-regression", "3%"]
    assert status([*command, *gate]) == 3
    capsys.readouterr()
    assert status([*command, *more, *gate]) == 0
    rows = json.loads(capsys.readouterr().out)["repeats"]
    assert [row["run"] for row in rows] == ["before"] * 3 + ["after"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("limit", "code"), [("5%", 3), ("5", 3), ("5 %", 3), ("99%", 0)])
def test_percentages(versions, limit, code):
    command = ["diff", versions[1.0], versions[1.3], "-q", "--fail-on-regression", limit]
    assert status(command) == code


@pytest.mark.parametrize("limit", ["-5%", "%", "5%%", "nan", "inf%", "five"])
def test_invalid_percentages(versions, limit):
    assert status(["diff", versions[1.0], versions[1.3], "--fail-on-regression", limit]) == 2


# --- comparability -------------------------------------------------------------------------------


def test_equal_runs_are_comparable(versions):
    result = ta.diff(versions[1.0], versions[1.04])
    assert (result.comparability, result.reservations) == ("comparable", ())


def test_reservations_are_named():
    result = once(ta.diff, BEFORE, AFTER)
    assert result.comparability == "with reservations"
    assert len(result.reservations) == 1
    assert "CUDA driver" in result.reservations[0]
    assert set(result.reservations) <= set(result.notes)
    known = result.to_dict()
    assert (known["comparability"], known["reservations"]) == (
        "with reservations", list(result.reservations)
    )  # fmt: skip


@pytest.mark.matrix
def test_other_message_sizes_are_a_reservation():
    def changed(trace, factor):
        sizes = pl.col("elements_in", "elements_out") * factor
        return replace(trace, collectives=trace.collectives.with_columns(sizes))

    trace = ta.read(RANKS / "rank0.json.gz")
    same = ta.diff([trace], [changed(trace, 1)])
    other = ta.diff([trace], [changed(trace, 2)])
    assert not [text for text in same.reservations if "message sizes" in text]
    assert [text for text in other.reservations if "message sizes" in text]


@pytest.mark.matrix
def test_other_programs_are_not_comparable():
    result = ta.diff(ROOT / "fixtures/memory/training.pickle", BEFORE)
    assert (result.comparability, result.measure) == ("not comparable", None)
    several = ta.diff_runs([ROOT / "fixtures/memory/training.pickle"] * 2, [BEFORE])
    assert several.comparability == "not comparable"
