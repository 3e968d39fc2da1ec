"""``traceanalyzer flamegraph``: output files, formats and errors."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from conftest import ROOT
from wording import check_wording

from traceanalyzer.cli.analyses import default_name
from traceanalyzer.cli.main import status

RANKS = ROOT / "fixtures" / "ddp_gloo_4ranks"
STACKS = """\
<module> (train.py:9);fit (train.py:5);forward (torch/nn/modules/conv.py:7) 6
<module> (train.py:9);fit (train.py:6) 1
<module> (train.py:9);load <script>&"';x (data.py:3) 3
"""


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "profiles"
    folder.mkdir()
    path = folder / "run.raw.txt"
    path.write_text(STACKS)
    return path


def test_svg_is_written_to_the_current_folder(run_cli, raw, tmp_path):
    done = run_cli("flamegraph", raw, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    check_wording(done.stderr)
    assert max(map(len, done.stderr.splitlines())) <= 100
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["run.raw.svg"]
    ET.fromstring((tmp_path / "run.raw.svg").read_text())  # noqa: S314 - trusted


def test_existing_file_is_kept_without_force(run_cli, raw, tmp_path):
    (tmp_path / "run.raw.svg").write_text("precious")
    refused = run_cli("flamegraph", raw, cwd=tmp_path)
    assert refused.returncode == 1
    check_wording(refused.stderr)
    assert (tmp_path / "run.raw.svg").read_text() == "precious"
    assert run_cli("flamegraph", raw, "--force", "-q", cwd=tmp_path).stderr == ""
    assert (tmp_path / "run.raw.svg").read_text() != "precious"


@pytest.mark.parametrize(
    ("arguments", "written", "begins"),
    [
        (["-o", "x.html"], "x.html", "<!doctype html>"),
        (["--to", "html"], "run.raw.html", "<!doctype html>"),
        (["-o", "x.json"], "x.json", "{"),
        (["-o", "-"], None, "<"),
        (["--to", "csv"], None, "name,place,package,is_own_code,"),
        (["--to", "table"], None, "Where does the time go?"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, list) else None,
)
def test_output_formats(raw, capfdbinary, tmp_path, arguments, written, begins):
    assert status(["flamegraph", str(raw), "-q", *arguments]) == 0
    out = capfdbinary.readouterr().out.decode()
    files = [path.name for path in tmp_path.iterdir() if path.is_file()]
    assert files == ([written] if written else [])
    text = (tmp_path / written).read_text() if written else out
    assert text.lower().startswith(begins.lower())
    assert bool(out) != bool(written)


def test_function_table(run_cli, raw, golden):
    golden("flamegraph/table.txt", run_cli("flamegraph", raw, "--to", "table", "--top", "3").stdout)


def test_json_contains_all_numbers(raw, capfd):
    assert status(["flamegraph", str(raw), "--to", "json"]) == 0
    values = json.loads(capfd.readouterr().out)
    assert (values["total"], values["unit"], values["base_total"]) == (10, "samples", None)
    assert [row["name"] for row in values["by_total"]][:2] == ["<module>", "fit"]


def test_ranks_are_summed_or_separate(raw, capfd):
    more = ["--to", "json", "-q"]
    assert status(["flamegraph", str(RANKS), *more]) == 0
    total = json.loads(capfd.readouterr().out)["total"]
    one = []
    for rank in range(4):
        assert status(["flamegraph", str(RANKS), "--rank", str(rank), *more]) == 0
        one.append(json.loads(capfd.readouterr().out)["total"])
    assert total == sum(one) > max(one) > 0
    assert status(["flamegraph", str(RANKS), "--by", "rank", "-o", "ranks.svg"]) == 0
    titles = re.findall(r"rank \d", Path("ranks.svg").read_text())
    assert set(titles) == {f"rank {rank}" for rank in range(4)}


def test_options_are_passed_to_the_analysis(raw, capfd):
    base = raw.with_name("base.txt")
    base.write_text("<module> (train.py:9) 4\n")
    for *arguments, code in [
        ("--diff", str(base), 0),
        ("--focus", "fit", 0),
        ("--library-name", "torch", 0),
        ("--min-frac", "0.5", 0),
        ("--weight", "count", 0),
        ("--thread", "9", 2),
        ("--since", "1s", 1),
        ("--kind", "kernel", 1),
    ]:
        assert status(["flamegraph", str(raw), "-o", "x.svg", "--force", *arguments]) == code
        check_wording(capfd.readouterr().err)
    status(["flamegraph", str(raw), "-o", "x.svg", "--force", "--inverted", "--title", "A & <b>"])
    text = Path("x.svg").read_text()
    assert "A &amp; &lt;b" in text
    assert "<script>&" not in text


@pytest.mark.parametrize(
    ("content", "code"), [(b"", 1), (b"\x00\x01\xff" * 99, 1), (b'{"a": 1}', 1), (b"no count\n", 1)]
)
def test_bad_input_prints_one_line(raw, capfd, content, code):
    raw.write_bytes(content)
    assert status(["flamegraph", str(raw)]) == code
    captured = capfd.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"traceanalyzer: {re.escape(str(raw))}: [^\n]*\n", captured.err)
    assert not Path("run.raw.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["-o", "x.png"], 2), (["--to", "png"], 2), (["--min-frac", "2"], 2), (["--top", "x"], 2)],
)
def test_invalid_options_are_refused(raw, capfd, arguments, code):
    assert status(["flamegraph", str(raw), *arguments]) == code
    assert not list(Path().glob("x.*"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/run.raw.txt", "run.raw.svg"),
        ("rank0.json.gz", "rank0.svg"),
        ("profiles/", "profiles.svg"),
        ("/", "flamegraph.svg"),
        (".txt", ".txt.svg"),
    ],
)
def test_default_output_name(path, name):
    assert default_name(path, "svg") == name
