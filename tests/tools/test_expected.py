"""Was a fix worth it: predicted against measured gain, findings that are gone, left and new."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from comm_traces import GEMM, MS, US, device, host, step, trace
from conftest import ROOT, once

import traceanalyzer as ta
from traceanalyzer.errors import MalformedInput, OptionError, UnknownFormat
from traceanalyzer.render import render
from traceanalyzer.trace import Trace

#: The other way around, the upgrade is a fix: its data loader is slow.
SLOW, FIXED = (str(ROOT / f"fixtures/upgrade/{name}.json.gz") for name in ("after", "before"))


def diagnosis() -> ta.Diagnosis:
    result: ta.Diagnosis = once(ta.diagnose, SLOW)
    return result


def test_the_predicted_gain_is_compared_with_the_measured_one() -> None:
    result = ta.check_fix(SLOW, FIXED, "data-loading")
    assert result.expected is not None
    assert result.measure is not None
    gain_frac = diagnosis().findings[0].gain_frac
    assert result.expected.gain_frac == pytest.approx(gain_frac, rel=0.001)
    assert result.measure.change_frac == pytest.approx(-0.275, abs=0.005)
    # what is left of data loading is not a part of the gain
    assert result.expected.gain_frac == pytest.approx(0.39, abs=0.01)
    rows = {row["finding"]: row for row in result.expected.findings.to_dicts()}
    assert rows["data-loading"]["state"] == "remains"
    assert rows["data-loading"]["after_ns"] < rows["data-loading"]["before_ns"] / 2
    assert "70.0 %" in result.verdict.split(" of the predicted gain")[0]


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda bad, **how: ta.diff(bad, SLOW, **how), UnknownFormat),
        (lambda bad, **how: ta.diff_series([SLOW, FIXED, bad], **how), UnknownFormat),
        (lambda bad, **how: ta.diff_runs([SLOW, SLOW], [FIXED, bad], **how), UnknownFormat),
        (lambda bad, **how: ta.check_fix(SLOW, bad, "data-loading", **how), UnknownFormat),
        (lambda _, **how: ta.check_fix(SLOW, FIXED, "no-rule", **how), OptionError),
        (lambda _, **how: ta.what_if(SLOW, finding="no-rule", **how), OptionError),
    ],
)
def test_wrong_input_is_refused_before_anything_is_read(
    ask: Callable[..., object], error: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / "garbage.bin").write_bytes(bytes(range(256)) * 1_000)
    read: list[Trace] = []
    with pytest.raises(error):
        ask(tmp_path / "garbage.bin", on_trace=read.append)
    assert not read


def test_files_of_unknown_formats_among_others_are_still_skipped(tmp_path: Path) -> None:
    (tmp_path / "garbage.bin").write_bytes(bytes(range(256)) * 1_000)
    result = ta.diff([SLOW, str(tmp_path / "garbage.bin")], FIXED)
    assert result.measure is not None


def test_a_saved_diagnosis_predicts_the_same(tmp_path: Path) -> None:
    saved = tmp_path / "found.json"
    saved.write_bytes(render(diagnosis(), "json"))
    result = ta.check_fix(SLOW, FIXED, str(saved))
    assert result.expected is not None
    rows = result.expected.findings.filter(state="remains")
    assert result.expected.fixed == ("data-loading",)  # it remains with less than half of its cost
    assert (2 * rows["after_ns"] < rows["before_ns"]).to_list() == [True]
    assert {row["finding"] for row in result.expected.findings.to_dicts()} >= {
        one.id for one in diagnosis().findings
    }


def test_gains_of_findings_that_are_gone_add_up(tmp_path: Path) -> None:
    saved = tmp_path / "found.json"
    gains = {"a-rule": 0.2, "another-rule": 0.3, "without-gain": None}
    findings = [{"id": name, "gain_frac": gain} for name, gain in gains.items()]
    saved.write_text(json.dumps({"findings": findings}))
    result = ta.check_fix(SLOW, FIXED, str(saved))
    assert result.expected is not None
    assert result.expected.fixed == tuple(gains)
    assert result.expected.gain_frac == 0.5
    states = dict(result.expected.findings.select("finding", "state").iter_rows())
    assert [states[name] for name in gains] == ["gone"] * 3
    assert states["data-loading"] == "present"


def test_no_change_gains_nothing() -> None:
    result = ta.check_fix(SLOW, SLOW, "data-loading")
    assert result.expected is not None
    assert set(result.expected.findings["state"]) == {"remains"}
    assert "measured 0.0 % (within the noise" in result.verdict
    assert "of the predicted gain" not in result.verdict


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"findings": 1}', '{"findings": [{}]}', None])
def test_no_diagnosis_is_an_error(content: str | None, tmp_path: Path) -> None:
    saved = tmp_path / "found.json"
    if content is not None:
        saved.write_text(content)
    with pytest.raises(MalformedInput, match="not a saved diagnosis"):
        ta.check_fix(SLOW, FIXED, str(saved))


def test_a_finding_that_was_not_there_is_an_error() -> None:
    with pytest.raises(OptionError, match="findings: data-loading"):
        ta.check_fix(SLOW, FIXED, "straggler")


def loading(ms: list[int], kernel: int = 10) -> Trace:
    """Return one device whose steps load data for so many ms, then run a kernel."""
    events, at = [], 0
    for number, wait in enumerate(ms):
        begin, length = at + wait * MS + 100 * US, wait * MS + kernel * MS + 300 * US
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        ids = {"correlation": number + 1}
        events += [
            step(number, at, length),
            *([host("user_annotation", name, at, wait * MS + 50 * US)] if wait else []),
            host("cuda_runtime", "cudaLaunchKernel", begin, 10 * US, **ids),
            device(GEMM, begin + 10 * US, kernel * MS, **ids),
        ]
        at += length
    return trace(events)


@pytest.mark.parametrize("kernel", [10, 9])
def test_predicted_and_measured_gain_are_shares_of_the_same_steps(kernel: int) -> None:
    """Three of twelve steps wait for data; the median does not, the gain is of the later steps."""
    before = loading([0, 0, 60, 0, 0, 0, 60, 0, 0, 60, 0, 0])
    result = ta.check_fix(before, loading([0] * 12, kernel), "data-loading")
    assert result.expected is not None
    assert result.measure is not None
    assert result.measure.before == pytest.approx(10.3 * MS + 15 * MS)
    lost, later = 3 * 60 * MS / 11, 10.3 * MS + 3 * 60 * MS / 11
    assert result.expected.of == "mean step before (first step excluded)"
    assert result.expected.gain_frac == pytest.approx(lost / later, rel=0.01)
    gained = lost + (10 - kernel) * MS
    assert result.expected.measured_frac == pytest.approx(gained / later)
    assert "median did not change" not in result.verdict


def test_steps_that_are_alike_have_one_mean() -> None:
    result = ta.check_fix(loading([5] * 8), loading([1] * 8), "data-loading")
    assert result.expected is not None
    assert result.measure is not None
    assert result.expected.of == "mean step before"
    assert result.expected.measured_frac == pytest.approx(4 / 15.3)
    assert result.expected.measured_frac == -(result.measure.change_frac or 0)
    assert result.expected.gain_frac == pytest.approx(5 / 15.3, rel=0.02)


@pytest.mark.parametrize(("wait", "state"), [(1, "present"), (0, "new")])
def test_what_was_there_before_is_not_new(wait: int, state: str, tmp_path: Path) -> None:
    """A wait of 1 ms is below its limit in a step of 201 ms, and a finding in one of 10 ms."""
    saved = tmp_path / "found.json"
    saved.write_text(json.dumps({"findings": [{"id": "a-rule", "gain_frac": 0.9}]}))
    slow, fast = loading([wait] * 12, kernel=200), loading([1] * 12, kernel=9)
    assert not ta.diagnose(slow).findings
    result = ta.check_fix(slow, fast, str(saved))
    assert result.expected is not None
    (row,) = result.expected.findings.filter(finding="data-loading").to_dicts()
    assert row["state"] == state
    assert row["after_ns"] == pytest.approx(MS, rel=0.1)
    if wait:
        assert row["before_ns"] == pytest.approx(MS, rel=0.1)


def test_what_is_left_below_the_limit_is_not_gone() -> None:
    """The kernels take longer, so that the same wait is a smaller share of the step."""
    result = ta.check_fix(
        loading([1] * 12, kernel=9), loading([1] * 12, kernel=200), "data-loading"
    )
    assert result.expected is not None
    assert result.expected.findings["state"].to_list() == ["remains"]


def test_what_cannot_be_checked_is_not_gone(tmp_path: Path) -> None:
    """Ranks cannot be compared in a recording of one."""
    saved = tmp_path / "found.json"
    saved.write_text(json.dumps({"findings": [{"id": "straggler", "gain_frac": 0.2}]}))
    result = ta.check_fix(loading([5] * 8), loading([5] * 8), str(saved))
    assert result.expected is not None
    states = dict(result.expected.findings.select("finding", "state").iter_rows())
    assert states["straggler"] == "not checked"
