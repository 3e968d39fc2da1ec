"""The list of commands, their examples, and files in place of a command."""

import re
import shlex

import click
import pytest

from traceanalyzer.analyzers.registry import GROUPS
from traceanalyzer.cli.commands import all_commands
from traceanalyzer.cli.main import status

COMMANDS = all_commands()


def test_help_lists_every_command_in_one_group(capsys):
    assert status(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"\n{group}:\n") for group in GROUPS]
    assert places == sorted(places)
    listed = re.findall(r"^  ([a-z-]+)  +\w", text[places[0] :], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_two_valid_examples(name, capsys):
    assert status([name, "--help"]) == 0
    start = f"traceanalyzer {name} "
    lines = capsys.readouterr().out.partition("Examples:")[2].strip().splitlines()
    lines = [line.strip() for line in lines]
    examples = [line.removeprefix(start) for line in lines if line.startswith(start)]
    assert len(set(examples)) == 2
    for example in examples:
        with click.Context(COMMANDS[name]):
            COMMANDS[name].make_context(name, shlex.split(example))


def test_files_in_place_of_a_command_are_diagnosed(capsys):
    path = "fixtures/nccl_8ranks/rank5.json.gz"
    assert status([path, "--to", "json"]) == 0
    direct = capsys.readouterr().out
    assert status(["diagnose", path, "--to", "json"]) == 0
    assert direct == capsys.readouterr().out


@pytest.mark.parametrize(("name", "hint"), [("kernel", "'kernels'"), ("zzz", None), ("", None)])
def test_unknown_command_is_a_usage_error(name, hint, capsys):
    assert status([name]) == 2
    error = capsys.readouterr().err
    assert ("Did you mean" in error) is (hint is not None)
    assert hint is None or hint in error


def test_a_command_wins_over_a_file_of_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels").mkdir()
    assert status(["kernels"]) == 2
    assert "Missing argument" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_unique(name):
    options = [one for one in COMMANDS[name].params if isinstance(one, click.Option)]
    flags = [flag for option in options for flag in option.opts]
    assert len(set(flags)) == len(flags)
    assert len({option.name for option in options}) == len(options)
