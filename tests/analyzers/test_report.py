"""The report: one page for everything, each file read once, nothing fetched."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer import run as examination
from traceanalyzer.render import render
from traceanalyzer.result import Report

FIXTURES = ROOT / "fixtures"


class Page(HTMLParser):
    """Ids, links, headings and what a page would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = dict(attrs)
        self.tags.add(tag)
        self.ids += [held["id"]] if held.get("id") else []
        href = held.get("href") or ""
        self.links += [href] if tag == "a" else []
        self.fetched += [one for one in (held.get("src"), held.get("data")) if one]
        self.fetched += [href] if tag == "link" and not href.startswith("data:,") else []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job left: ranks, samples, snapshots, and a file that was cut off."""
    folder = tmp_path_factory.mktemp("job 7 <b>")
    for name in ("rank0", "rank5", "rank6"):
        shutil.copy(FIXTURES / "nccl_8ranks" / f"{name}.json.gz", folder)
    shutil.copy(FIXTURES / "memory" / "oom.pickle", folder)
    shutil.copy(FIXTURES / "py_spy" / "threads_idle.raw.txt", folder)
    whole = (FIXTURES / "nccl_8ranks" / "rank4.json.gz").read_bytes()
    (folder / "rank4.json.gz").write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.fixture(scope="module")
def told(run: Path) -> ta.Report:
    return ta.report(run)


@pytest.fixture(scope="module")
def text(told: ta.Report) -> str:
    return render(told, "html").decode()


def test_everything_is_answered(told: ta.Report) -> None:
    keys = [section.key for section in told.sections]
    assert {"steps", "gpu_idle", "comm_outliers", "operators", "kernels", "flamegraph"} <= {*keys}
    assert {"memory", "memory_oom", "py_spy_report"} <= {*keys}
    assert keys[-1] == "info"
    rules = {one.id for root in told.diagnosis for one in (root, *root.effects)}
    assert {"data-loading", "out-of-memory", "lost-events"} <= rules
    assert told.overview.frame.height == 6
    names = told.overview.frame["on"].to_list()
    assert sorted(names) == [
        "oom.pickle",
        *(f"rank {n}" for n in (0, 4, 5, 6)),
        "threads_idle.raw.txt",
    ]
    assert all(
        f"rank {row['rank']}" == row["on"]
        for row in told.overview.frame.rows(named=True)
        if row["rank"] is not None
    )


def test_answers_are_those_of_the_commands(told: ta.Report, run: Path) -> None:
    of = {section.key: section.result for section in told.sections}
    assert of["gpu_idle"].to_dict() == ta.gpu_idle(run).to_dict() | {
        "notes": list(of["gpu_idle"].notes)
    }
    assert of["kernels"].scalars == ta.kernels(run).scalars
    assert of["comm_outliers"].verdict == ta.comm_outliers(run).verdict
    assert of["memory"].verdict == ta.memory(run / "oom.pickle").verdict


def test_each_file_is_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    whole = examination.read

    def counted(path: str, **how: Any) -> ta.Trace:
        if "kinds" not in how:  # but for what late ranks did, read for that alone
            seen.append(path)
        return whole(path, **how)

    monkeypatch.setattr(examination, "read", counted)
    ta.report(run)
    assert sorted(seen) == sorted(set(seen))
    assert len(seen) == 6


def test_findings_come_first_and_lead_to_their_numbers(text: str) -> None:
    page = Page(text)
    inner = [link[1:] for link in page.links if link.startswith("#")]
    assert len(inner) > 20
    assert set(inner) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert text.index('id="findings"') < text.index('id="overview"') < text.index('id="steps"')
    assert text.index('<span class="grade">critical') < text.index('<span class="grade">info')


def test_nothing_is_fetched_and_nothing_else_runs(text: str) -> None:
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


def test_every_part_can_be_made_again(told: ta.Report, text: str, run_cli: Any) -> None:
    import shlex
    from html import unescape

    shown = {unescape(one) for one in re.findall(r"<li><code>(traceanalyzer .*?)</code>", text)}
    assert {section.command for section in told.sections} <= shown
    command = next(one.command for one in told.sections if one.key == "gpu_idle")
    done = run_cli(*shlex.split(command)[1:], "-q")
    assert done.returncode == 0
    assert done.stdout.startswith("Why is the GPU idle?")


def test_as_data(told: ta.Report) -> None:
    answer = json.loads(render(told, "json"))
    assert answer["findings"][0]["severity"] == "critical"
    assert answer["gpu_idle"]["idle_ns"] > 0
    assert {row["rank"] for row in answer["overview"]} == {None, 0, 4, 5, 6}


def test_numbers_in_brief(told: ta.Report) -> None:
    of = {fact.name: fact.value for fact in told.facts}
    idle = next(one.result for one in told.sections if one.key == "gpu_idle")
    assert of["ranks"] == 4
    assert of["idle_frac"] == idle.scalars["idle_frac"]
    assert of["peak_bytes"] > 0


@pytest.mark.parametrize(
    "name",
    [
        "composer", "ddp_gloo_4ranks", "nsys/training.sqlite", "memory/two_devices.pickle",
        "memory/torch113_segments_only.pickle", "py_spy/native.raw.txt",
        "malformed/empty_array.json", "py_spy/subprocesses.speedscope.json", "nsys/tables.sqlite",
    ],
)  # fmt: skip
def test_any_input_gives_a_page(name: str) -> None:
    page = render(ta.report(FIXTURES / name), "html").decode()
    assert {link[1:] for link in Page(page).links} <= set(Page(page).ids)


def test_a_trace_in_memory_gives_a_report_too() -> None:
    trace = ta.read(FIXTURES / "nccl_8ranks" / "rank5.json.gz")
    assert isinstance(trace.report(), Report)
    assert "rank5.json.gz" in trace.report().title


# --- the command -----------------------------------------------------------------------------


def test_the_command_writes_a_page_and_says_so(run_cli: Any, tmp_path: Path) -> None:
    given = (FIXTURES / "memory/leak.pickle", "-o", "x.html")
    done = run_cli("report", *given, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    check_wording(done.stderr)
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    again = run_cli("report", *given, cwd=tmp_path)
    assert again.returncode == 1
    assert "--force" in again.stderr
    assert run_cli("report", *given, "--force", "-q", cwd=tmp_path).stderr == ""


def test_the_command_writes_data_and_to_standard_output(run_cli: Any, tmp_path: Path) -> None:
    snapshot = FIXTURES / "memory/leak.pickle"
    assert run_cli("report", snapshot, "-o", "x.json", "-q", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "x.json").read_text())["warning_count"] == 1
    done = run_cli("report", snapshot, "-o", "-", "-q", cwd=tmp_path)
    assert done.stdout.startswith("<!doctype html>")


def test_what_cannot_be_read_is_one_line(run_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing of ours")
    done = run_cli("report", tmp_path, "-o", tmp_path / "x.html")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "x.html").exists()


def test_another_form_is_refused_before_work(run_cli: Any, tmp_path: Path) -> None:
    done = run_cli("report", FIXTURES / "nccl_8ranks", "-o", tmp_path / "x.png")
    assert done.returncode == 2
    check_wording(done.stderr)
