"""``diagnose --junit``: a test per check, in the structure that CI systems read."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from conftest import once

import traceanalyzer as ta
from traceanalyzer.cli.main import status
from traceanalyzer.findings.result import Diagnosis

RUN = Path(__file__).parents[2] / "fixtures/nccl_8ranks"
SEVERITIES = ("info", "warning", "critical")
#: Children of each element and required attributes, as Jenkins and GitLab read them.
STRUCTURE = {
    "testsuites": ({"testsuite"}, {"tests", "failures", "errors", "skipped"}),
    "testsuite": ({"testcase"}, {"name", "tests", "failures", "errors", "skipped"}),
    "testcase": ({"failure", "skipped", "system-out"}, {"name", "classname", "time"}),
    "failure": (set(), {"message"}),
    "skipped": (set(), {"message"}),
    "system-out": (set(), set()),
}


@pytest.fixture(scope="module")
def result() -> Diagnosis:
    return once(ta.diagnose, RUN)


def written(
    tmp_path: Path, *options: str, known: Diagnosis | None = None
) -> tuple[int, ET.Element]:
    """Run the command, whose answer may be known."""
    path = tmp_path / "checks.xml"
    with pytest.MonkeyPatch.context() as patch:
        if known:
            patch.setattr("traceanalyzer.cli.job.answer", lambda *_, **__: known)
        code = status(["diagnose", str(RUN), "-q", "--force", "--junit", str(path), *options])
    root = ET.parse(path).getroot()  # noqa: S314 - our own file
    for element in root.iter():
        children, attributes = STRUCTURE[element.tag]
        assert {child.tag for child in element} <= children
        assert attributes <= {*element.attrib}
    return code, root


@pytest.mark.sample(2)
@pytest.mark.parametrize("fail_on", [None, *SEVERITIES])
def test_a_test_per_check(fail_on: str | None, tmp_path: Path, result: Diagnosis) -> None:
    options = ["--fail-on", fail_on] if fail_on else []
    code, root = written(tmp_path, *options, known=result if fail_on else None)
    failing = SEVERITIES[SEVERITIES.index(fail_on or "info") :]
    fails = {one.id for one in result.findings if one.severity in failing}
    effects = {one.id for finding in result.findings for one in finding.effects} - fails
    assert fails
    assert effects, "an effect does not fail"
    (suite,) = root
    cases = {case.get("name"): case for case in suite}
    assert list(cases) == result.rules["rule"].to_list()
    assert len(cases) == len(suite)
    assert {name for name, case in cases.items() if case.find("failure") is not None} == fails
    skipped = result.rules.filter(status="skipped")["rule"].to_list()
    assert [name for name, case in cases.items() if case.find("skipped") is not None] == skipped
    for element in (root, suite):
        counts = [element.get(name) for name in ("tests", "failures", "errors", "skipped")]
        assert counts == [str(n) for n in (len(cases), len(fails), 0, len(skipped))]
    assert code == (3 if fail_on else 0)
    for finding in result.findings:
        text = "".join(cases[finding.id].itertext())
        assert f"{finding.severity}: {finding.title}" in text
        for effect in finding.effects:
            assert effect.title in text
            assert f"Effect of {finding.id}: " in "".join(cases[effect.id].itertext())
    # findings below the gate are the output of a passed test
    below = {one.id for one in result.findings} - fails | effects
    outputs = {name for name, case in cases.items() if case.find("system-out") is not None}
    assert below <= outputs
    assert not outputs & fails


def test_files_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    same = str(tmp_path / "one.md")
    assert status(["diagnose", str(RUN), "-o", same, "--junit", same]) == 2
    assert status(["diff", str(RUN), str(RUN), "-o", same, "--junit", same]) == 2
    (tmp_path / "kept.xml").write_text("kept")
    assert status(["diagnose", str(RUN), "--junit", str(tmp_path / "kept.xml")]) == 1
    assert (tmp_path / "kept.xml").read_text() == "kept"
