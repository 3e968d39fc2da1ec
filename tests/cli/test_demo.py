"""``traceanalyzer demo``: the bundled recording and its report."""

import runpy
from zipfile import ZipFile

import pytest
from conftest import ROOT

from traceanalyzer.cli.main import status

SCRIPT = runpy.run_path(str(ROOT / "fixtures/make_demo.py"))


def test_recording_is_small_and_equals_the_fixtures():
    with ZipFile(SCRIPT["ARCHIVE"]) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    assert content == {name: path.read_bytes() for name, path in SCRIPT["MEMBERS"].items()}
    assert len(content) == 9
    assert SCRIPT["ARCHIVE"].stat().st_size < 300_000


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_recording_and_report_are_written(here, capsys):
    assert status(["demo", "new/folder"]) == 0
    output = capsys.readouterr()
    page = here / "new/folder/report.html"
    assert "Rank 5" in page.read_text()
    assert sorted(path.name for path in (here / "new/folder/run").iterdir()) == sorted(
        SCRIPT["MEMBERS"]
    )
    assert output.err == ""
    commands = [line.split()[1:] for line in output.out.splitlines() if line.startswith("  ")]
    assert len(commands) == 3
    for command in commands:
        assert status(command) == 0


@pytest.mark.matrix
def test_existing_files_are_kept(here, capsys):
    (here / "traceanalyzer-demo").mkdir()
    page = here / "traceanalyzer-demo/report.html"
    page.write_text("mine")
    assert status(["demo"]) == 1
    assert "--force" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert [*(here / "traceanalyzer-demo").rglob("*.gz")] == []
    assert status(["demo", "--force"]) == 0
    assert page.read_text() != "mine"


def test_folder_that_is_a_file(here, capsys):
    (here / "file").write_text("")
    assert status(["demo", "file"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
