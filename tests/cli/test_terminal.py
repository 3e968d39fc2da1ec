"""What a user sees in a real terminal: widths, colours."""

import re
from functools import cache
from pathlib import Path

import pytest
from processes import in_terminal

from traceanalyzer.cli.output import is_colored

FIXTURES = Path(__file__).parents[2] / "fixtures"
RUN = FIXTURES / "nccl_8ranks" / "rank5.json.gz"
CRITICAL = FIXTURES / "memory" / "oom.pickle"
STACKS = FIXTURES / "py_spy" / "subprocesses.raw.txt"
SGR = re.compile(r"\x1b\[[0-9;]*m")
WIDTHS = (80, 120, 200)
COMMANDS = (
    *("comm-outliers", "gpu-idle", "kernels", "launches", "operators", "overlap", "steps"),
    "transfers",
)


@cache
def _screen(*arguments, columns=100, **environment):
    code, screen = in_terminal(
        *arguments, "--quiet", columns=columns, **{"NO_COLOR": None, **environment}
    )
    assert code == 0
    return screen.decode().replace("\r\n", "\n")


@pytest.mark.matrix
@pytest.mark.parametrize("columns", WIDTHS)
def test_no_line_wraps_in_a_terminal(columns):
    lines = _screen("gpu-idle", RUN, columns=columns, TERM="xterm").split("\n")
    assert max(map(len, lines)) <= columns


@pytest.mark.sample(15, "command", "columns")
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_wraps(run_cli, command, columns):
    done = run_cli(command, RUN, "--quiet", env={"COLUMNS": str(columns)})
    assert done.returncode == 0
    lengths = [*map(len, done.stdout.split("\n"))]
    assert columns // 2 < max(lengths) <= columns


def test_hidden_columns_are_named_and_can_be_chosen():
    arguments = ("gpu-idle", RUN)
    narrow, wide = (_screen(*arguments, columns=width, TERM="xterm") for width in (80, 200))
    assert "kernel after" not in narrow.split("Longest gaps")[1].split("\n")[1:4]
    assert "hidden at this width" in narrow
    assert "hidden at this width" not in wide
    chosen = _screen(*arguments, "--columns", "gap,kernel after", columns=80, TERM="xterm")
    assert "kernel after\n" in chosen
    assert "hidden" not in chosen.split("Longest gaps")[1]


def test_copies_are_recognisable_at_every_width():
    for columns in WIDTHS:
        screen = _screen("gpu-idle", RUN, columns=columns, TERM="xterm")
        assert "Memcpy Ht..." not in screen


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("environment", "options", "colored"),
    [
        ({"TERM": "xterm"}, (), True),
        ({"TERM": "dumb"}, (), False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, (), False),
        ({"TERM": "xterm", "NO_COLOR": ""}, (), True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, ("--color", "always"), True),
        ({"TERM": "xterm"}, ("--color", "never"), False),
    ],
)
def test_severity_is_coloured(environment, options, colored):
    screen = _screen("diagnose", CRITICAL, *options, **environment)
    assert ("\x1b[1;38;5;196mCRITICAL\x1b[0m" in screen) is colored
    assert "critical" in SGR.sub("", screen)


def test_own_code_is_coloured():
    screen = _screen("flamegraph", STACKS, "--to", "table", TERM="xterm", columns=120)
    rows = [line for line in screen.split("\n") if " yes" in SGR.sub("", line)]
    assert rows
    assert all("\x1b[" in row for row in rows)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("environment", "options", "colored"),
    [
        ({}, (), False),
        ({"FORCE_COLOR": "1"}, (), True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, (), False),
        ({}, ("--color", "always"), True),
        ({"FORCE_COLOR": "1"}, ("--to", "md"), False),
    ],
)
def test_colour_in_a_pipe(run_cli, environment, options, colored):
    done = run_cli("diagnose", CRITICAL, *options, env={"NO_COLOR": "", **environment})
    assert ("\x1b[" in done.stdout) is colored


def test_colour_in_a_file_only_if_chosen(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not is_colored("a.txt", None)
    assert is_colored("a.txt", choice=True)


def test_names_in_a_file_cannot_colour(tmp_path):
    path = tmp_path / "rank\x1b[31m0.json.gz"
    path.write_bytes(RUN.read_bytes())
    screen = _screen("info", path, "--color", "always", TERM="xterm")
    assert "\x1b[31m" not in screen
    assert "\\x1b[31m" in screen
