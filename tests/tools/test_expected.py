"""Was a fix worth it: predicted against measured gain, findings that are gone, left and new."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT, once

import traceanalyzer as ta
from traceanalyzer.errors import MalformedInput, OptionError
from traceanalyzer.render import render

#: The other way around, the upgrade is a fix: its data loader is slow.
SLOW, FIXED = (str(ROOT / f"fixtures/upgrade/{name}.json.gz") for name in ("after", "before"))


def diagnosis() -> ta.Diagnosis:
    result: ta.Diagnosis = once(ta.diagnose, SLOW)
    return result


def test_the_predicted_gain_is_compared_with_the_measured_one() -> None:
    result = ta.check_fix(SLOW, FIXED, "data-loading")
    assert result.expected is not None
    assert result.measure is not None
    assert result.expected.gain_frac == diagnosis().findings[0].gain_frac
    assert result.measure.change_frac == pytest.approx(-0.275, abs=0.005)
    # what is left of data loading is not a part of the gain
    assert result.expected.gain_frac == pytest.approx(0.39, abs=0.01)
    rows = {row["finding"]: row for row in result.expected.findings.to_dicts()}
    assert rows["data-loading"]["state"] == "remains"
    assert rows["data-loading"]["after_ns"] < rows["data-loading"]["before_ns"] / 2
    assert "70.0 %" in result.verdict.split(" of the predicted gain")[0]


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
    assert states["data-loading"] == "new"


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
