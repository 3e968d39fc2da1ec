"""The report: one page, each file read once, no network access."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.cli.main import status
from traceanalyzer.errors import MissingData
from traceanalyzer.render import render
from traceanalyzer.result import Report
from traceanalyzer.run import pieces as opened

FIXTURES = ROOT / "fixtures"


class Page(HTMLParser):
    """Ids, links, tags and external resources of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.ids += [values["id"]] if values.get("id") else []
        href = values.get("href") or ""
        self.links += [href] if tag == "a" else []
        self.fetched += [one for one in (values.get("src"), values.get("data")) if one]
        self.fetched += [href] if tag == "link" and not href.startswith("data:,") else []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write output of a job: ranks, samples, snapshots, and a truncated file."""
    folder = tmp_path_factory.mktemp("job 7 <b>")
    for name in ("rank0", "rank5", "rank6"):
        shutil.copy(FIXTURES / "nccl_8ranks" / f"{name}.json.gz", folder)
    shutil.copy(FIXTURES / "memory" / "oom.pickle", folder)
    shutil.copy(FIXTURES / "py_spy" / "threads_idle.raw.txt", folder)
    whole = (FIXTURES / "nccl_8ranks" / "rank4.json.gz").read_bytes()
    (folder / "rank4.json.gz").write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.fixture(scope="module")
def report(run: Path) -> ta.Report:
    return ta.report(run)


@pytest.fixture(scope="module")
def text(report: ta.Report) -> str:
    return render(report, "html").decode()


@pytest.mark.matrix
def test_sections_of_the_report(report: ta.Report) -> None:
    keys = [section.key for section in report.sections]
    assert {"steps", "gpu_idle", "comm_outliers", "operators", "kernels", "flamegraph"} <= {*keys}
    assert {"memory", "memory_oom", "py_spy_report"} <= {*keys}
    assert keys[-1] == "info"
    rules = {one.id for root in report.diagnosis for one in (root, *root.effects)}
    assert {"data-loading", "out-of-memory", "dropped-events"} <= rules
    assert report.overview.frame.height == 6
    names = report.overview.frame["on"].to_list()
    assert sorted(names) == [
        "oom.pickle",
        *(f"rank {n}" for n in (0, 4, 5, 6)),
        "threads_idle.raw.txt",
    ]
    assert all(
        f"rank {row['rank']}" == row["on"]
        for row in report.overview.frame.rows(named=True)
        if row["rank"] is not None
    )


@pytest.mark.matrix
def test_sections_match_the_commands(report: ta.Report, run: Path) -> None:
    of = {section.key: section.result for section in report.sections}
    assert report.timeline is not None
    axis: Any = report.timeline.result  # with clocks corrected by collectives
    idle = ta.gpu_idle(run).on_axis(axis.places, one_clock=axis.one_clock)
    assert of["gpu_idle"].to_dict() == idle.to_dict() | {"notes": list(of["gpu_idle"].notes)}
    assert of["kernels"].scalars == ta.kernels(run).scalars
    assert of["comm_outliers"].verdict == ta.comm_outliers(run).verdict
    assert of["memory"].verdict == ta.memory(run / "oom.pickle").verdict


@pytest.mark.matrix
def test_each_file_is_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []
    whole = opened.read_ranks

    def counted(path: str, **how: Any) -> list[Any]:
        if how.get("kinds") is None:  # except activity of stragglers, which is read again
            paths.append(path)
        return whole(path, **how)

    monkeypatch.setattr(opened, "read_ranks", counted)
    ta.report(run)
    assert sorted(paths) == sorted(set(paths))
    assert len(paths) == 6


def test_findings_come_first_and_link_to_sections(text: str) -> None:
    page = Page(text)
    inner = [link[1:] for link in page.links if link.startswith("#")]
    assert len(inner) > 20
    assert set(inner) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert text.index('id="findings"') < text.index('id="overview"') < text.index('id="steps"')
    assert text.index('<span class="grade">critical') < text.index('<span class="grade">info')


def test_page_has_no_external_resources(text: str) -> None:
    page = Page(text)
    assert page.fetched == []
    assert not {"iframe", "object", "embed", "img", "base", "form"} & page.tags
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'")
    assert "unsafe-inline" not in policy[1].partition("script-src")[2]
    assert len(re.findall(r"<script>", text)) == policy[1].count("'sha256-")
    assert "<b>" not in text  # the folder's name
    assert len(text) < 10_000_000


def test_every_section_shows_its_command(report: ta.Report, text: str, run_cli: Any) -> None:
    import shlex
    from html import unescape

    commands = {unescape(one) for one in re.findall(r"<li><code>(traceanalyzer .*?)</code>", text)}
    assert {section.command for section in report.sections} <= commands
    command = next(one.command for one in report.sections if one.key == "gpu_idle")
    done = run_cli(*shlex.split(command)[1:], "-q")
    assert done.returncode == 0
    assert done.stdout.startswith("Why is the GPU idle?")


def test_report_as_json(report: ta.Report) -> None:
    answer = json.loads(render(report, "json"))
    assert answer["findings"][0]["severity"] == "critical"
    assert answer["gpu_idle"]["idle_ns"] > 0
    assert {row["rank"] for row in answer["overview"]} == {None, 0, 4, 5, 6}


def test_facts_of_the_report(report: ta.Report) -> None:
    of = {fact.name: fact.value for fact in report.facts}
    budget = report.diagnosis_result.budget
    by_part = dict(budget.group_by("part").agg(pl.col("time_frac").sum()).iter_rows())
    assert of["ranks"] == 4
    assert of["idle_frac"] == pytest.approx(by_part["idle"])
    assert of["exposed_frac"] == pytest.approx(by_part["exposed communication"])
    assert 0 < of["wait_frac"] < of["exposed_frac"]
    assert 0 < of["dataloading_frac"] < of["idle_frac"]
    assert of["peak_bytes"] > 0


def test_shares_in_the_facts_have_one_basis(report: ta.Report) -> None:
    """Step time, or the recorded time: each share names it."""
    labels = [fact.label for fact in report.facts if fact.name.endswith("_frac")]
    assert len(labels) == 4
    assert len({label[label.index(" (of ") :] for label in labels}) == 1


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name",
    [
        "composer", "ddp_gloo_4ranks", "nsys/training.sqlite", "memory/two_devices.pickle",
        "memory/torch113_segments_only.pickle", "py_spy/native.raw.txt",
        "py_spy/subprocesses.speedscope.json", "nsys/tables.sqlite",
    ],
)  # fmt: skip
def test_links_of_pages_resolve(name: str) -> None:
    page = render(ta.report(FIXTURES / name), "html").decode()
    assert {link[1:] for link in Page(page).links} <= set(Page(page).ids)


@pytest.mark.matrix
def test_report_of_a_trace_in_memory() -> None:
    trace = ta.read(FIXTURES / "nccl_8ranks" / "rank5.json.gz")
    assert isinstance(trace.report(), Report)
    assert "rank5.json.gz" in trace.report().title


# --- the command -----------------------------------------------------------------------------


@pytest.mark.matrix
def test_command_writes_a_page(run_cli: Any, tmp_path: Path) -> None:
    given = (FIXTURES / "memory/leak.pickle", "-o", "x.html")
    done = run_cli("report", *given, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    check_wording(done.stderr)
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    again = run_cli("report", *given, cwd=tmp_path)
    assert again.returncode == 1
    assert "--force" in again.stderr
    assert run_cli("report", *given, "--force", "-q", cwd=tmp_path).stderr == ""


@pytest.mark.matrix
def test_command_writes_json_and_standard_output(run_cli: Any, tmp_path: Path) -> None:
    snapshot = FIXTURES / "memory/leak.pickle"
    assert run_cli("report", snapshot, "-o", "x.json", "-q", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "x.json").read_text())["warning_count"] == 1
    done = run_cli("report", snapshot, "-o", "-", "-q", cwd=tmp_path)
    assert done.stdout.startswith("<!doctype html>")


def test_unreadable_input_is_one_line(run_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of ours")
    done = run_cli("report", tmp_path, "-o", tmp_path / "x.html")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "x.html").exists()


def test_unknown_output_format_is_a_usage_error(run_cli: Any, tmp_path: Path) -> None:
    done = run_cli("report", FIXTURES / "nccl_8ranks", "-o", tmp_path / "x.png")
    assert done.returncode == 2
    check_wording(done.stderr)


@pytest.mark.parametrize("command", [ta.diagnose, ta.report])
def test_a_file_without_events_is_an_error(command: Any) -> None:
    with pytest.raises(MissingData):
        command(FIXTURES / "malformed/empty_array.json")


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "path",
    ["chrome/kineto/mi300_rank0of8_rccl.json.gz", "chrome/kineto/v100_absolute_ns_ts.json.gz"],
)
def test_findings_are_those_of_diagnose(path: str, shared: Path) -> None:
    report, diagnosis = ta.report(shared / "data" / path), ta.diagnose(shared / "data" / path)
    assert [one.to_dict() for one in report.diagnosis] == [
        one.to_dict() for one in diagnosis.findings
    ]


@pytest.mark.matrix
def test_deviating_ranks_come_first() -> None:
    of = ta.report(ROOT / "fixtures" / "nccl_8ranks")
    assert of.overview.frame["rank"].to_list() == [5, 0, 1, 2, 3, 4, 6, 7]
    assert "any device work" in of.overview.columns.values()
    on_host = ta.report(ROOT / "fixtures" / "ddp_gloo_4ranks").overview
    assert "any device work" not in on_host.columns.values()


def test_many_ranks_are_collapsed(report: ta.Report) -> None:
    frame = pl.concat([report.overview.frame] * 3)
    many = replace(report, overview=replace(report.overview, frame=frame))
    page = render(many, "html").decode()
    assert "8 of 18 rows" in page
    assert "All 18 rows" in page


def test_each_finding_has_its_number(report: ta.Report, text: str) -> None:
    numbers = re.findall(r'<span class="at"[^>]*>(\d+)</span>', text)
    assert [*map(int, numbers)] == [*range(1, len(report.diagnosis) + 1)]


@pytest.mark.matrix
def test_each_command_of_the_page_runs(
    report: ta.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [report.command, *(section.command for section in report.sections)]
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "traceanalyzer"
        assert status([*arguments, "-q"]) == 0, command


@pytest.mark.parametrize(
    ("name", "key"),
    [("memory/fragmented_oom.pickle", "memory"), ("py_spy/subprocesses.raw.txt", "flamegraph")],
)
def test_a_page_without_ranks_names_files_and_opens_a_drawing(name: str, key: str) -> None:
    report = ta.report(FIXTURES / name)
    page = render(report, "html").decode()
    assert report.overview.title == "Inputs"
    assert re.findall(r'<details class="fold" open>\s*<summary><h2 id="(\w+)-h">', page) == [key]
