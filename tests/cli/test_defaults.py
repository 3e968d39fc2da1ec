"""Defaults of options from a file, and the pager."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT
from processes import in_terminal

RANK = ROOT / "fixtures" / "nccl_8ranks" / "rank0.json.gz"
STACKS = ROOT / "fixtures" / "py_spy"


@pytest.mark.parametrize(
    ("name", "head"), [("traceanalyzer.toml", ""), ("pyproject.toml", "[tool.traceanalyzer]")]
)
def test_the_nearest_file_gives_defaults(run_cli, tmp_path: Path, name: str, head: str) -> None:
    (tmp_path / name).write_text(f"{head}\ntop = 1\n")
    (tmp_path / "project" / "run").mkdir(parents=True)
    (tmp_path / "project" / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    run = run_cli("kernels", RANK, cwd=tmp_path / "project" / "run")
    assert run.returncode == 0
    assert "--top all shows the rest" in run.stdout
    rows = run_cli("kernels", RANK, "--top", "all", cwd=tmp_path / "project" / "run")
    assert "--top all shows the rest" not in rows.stdout, "the command line wins"


def test_own_code_and_colour(run_cli, tmp_path: Path) -> None:
    (tmp_path / "traceanalyzer.toml").write_text('library-name = ["torch"]\ncolor = "always"\n')
    given = run_cli("gpu-idle", RANK, "--library-name", "torch", "--color", "always", cwd=ROOT)
    assert run_cli("gpu-idle", RANK, cwd=tmp_path).stdout == given.stdout


@pytest.mark.parametrize("text", ["colour = 'never'", "top = [1]", "top =", "workers = 1.5"])
def test_a_wrong_file_is_named(run_cli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "traceanalyzer.toml"
    path.write_text(text)
    run = run_cli("kernels", RANK, cwd=tmp_path)
    assert run.returncode == 2
    assert str(path) in run.stderr.splitlines()[-1]


def test_files_that_cannot_be_read_are_no_defaults(run_cli, tmp_path: Path) -> None:
    (tmp_path / "traceanalyzer.toml").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.traceanalyzer\ntop = 1\n")
    run = run_cli("kernels", RANK, cwd=tmp_path)
    assert run.returncode == 0
    assert "--top all shows the rest" not in run.stdout


@pytest.mark.parametrize(
    ("lines", "pager", "arguments", "paged"),
    [
        (10, "sed s/^/>/", (), True),
        (10, "sed s/^/>/", ("--no-pager",), False),
        (200, "sed s/^/>/", (), False),
        (0, "sed s/^/>/", (), False),
        (10, "no-such-pager", (), False),
        (10, "", (), False),
    ],
)
def test_long_output_is_paged(
    lines: int, pager: str, arguments: tuple[str, ...], paged: bool
) -> None:
    command = (*arguments, "info", RANK, "--color", "never", "-q")  # no progress when it is slow
    status, screen = in_terminal(
        *command, columns=100, lines=lines, TRACEANALYZER_PAGER=pager, TERM="xterm"
    )
    assert status == 0
    assert b"rank0.json.gz" in screen
    assert all(line.startswith(b">") for line in screen.splitlines()) == paged
