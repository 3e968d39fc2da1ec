"""Shell completion, set up as in docs/install.md."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest
from processes import ROOT, environment

from traceanalyzer.cli.commands import all_commands

COMMANDS = all_commands()

PROGRAM = Path(sys.executable).with_name("traceanalyzer")
PAGE = (ROOT / "docs/install.md").read_text()
SHELLS = ("bash", "zsh", "fish")


def _completed(shell: str, line: list[str]) -> list[str]:
    """Return the answer to a shell that completes the last part of a line."""
    variables = {"COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}
    if shell == "fish":
        variables["COMP_CWORD"] = line[-1]
    env = environment(_TRACEANALYZER_COMPLETE=f"{shell}_complete", **variables)
    done = subprocess.run([PROGRAM], env=env, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.sample(3)
@pytest.mark.parametrize("shell", SHELLS)
def test_line_of_the_page_prints_a_completion_script(shell):
    assert f"{shell}_source" in PAGE
    env = environment(_TRACEANALYZER_COMPLETE=f"{shell}_source")
    done = subprocess.run([PROGRAM], env=env, check=True, capture_output=True, text=True)
    assert "complet" in done.stdout
    assert done.stderr == ""


@pytest.mark.sample(3)
@pytest.mark.parametrize("shell", SHELLS)
def test_commands_and_choices(shell):
    commands = " ".join(_completed(shell, ["traceanalyzer", "comm"]))
    assert "comm-outliers" in commands
    assert "kernels" not in commands
    forms = " ".join(_completed(shell, ["traceanalyzer", "info", "--to", "s"]))
    assert "sqlite" in forms
    assert "table" not in forms


def test_rules():
    for option in ("--explain", "--threshold"):
        rules = _completed("bash", ["traceanalyzer", "diagnose", option, "st"])
        assert rules == ["plain,straggler"]


def test_in_bash():
    """Source the script as in docs/install.md, then complete as the Tab key does."""
    line = next(one.strip() for one in PAGE.splitlines() if "COMPLETE=bash_source" in one)
    line = line.partition("#")[0]
    script = (
        f"{line}\n"
        'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()\n'
        '  _traceanalyzer_completion traceanalyzer 2>/dev/null; echo "${COMPREPLY[@]}"; }\n'
        "ask traceanalyzer gpu\nask traceanalyzer info --to s\nask traceanalyzer info --input\n"
    )
    env = environment(PATH=f"{PROGRAM.parent}:/usr/bin:/bin")
    done = subprocess.run(["bash", "-c", script], env=env, check=True, capture_output=True)
    assert done.stdout.decode().split("\n")[:3] == ["gpu-idle", "sqlite svg", "--input-format"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_files_are_completed_as_files(name):
    command = COMMANDS[name]
    context = click.Context(command)
    for parameter in command.params:
        files = [item.type for item in parameter.shell_complete(context, "")] == ["file"]
        takes_files = isinstance(parameter, click.Argument) or (
            str(parameter.metavar).split()[0] in ("FILE", "FOLDER", "PATH", "OUT", "OTHER", "BASE")
        )
        assert files == takes_files, parameter.name


def test_shell_completes_files():
    assert _completed("bash", ["traceanalyzer", "info", "fix"]) == ["file,fix"]
    assert _completed("bash", ["traceanalyzer", "info", "-o", "out"]) == ["file,out"]


def test_completion_is_fast():
    """Measured as processor time, which concurrent tests do not change."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _completed("bash", ["traceanalyzer", "inf"])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert 0 < min(times) < 0.3
