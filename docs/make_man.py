"""Write ``docs/traceanalyzer.1``, the manual page of all commands (``make docs``)."""

from __future__ import annotations

from pathlib import Path

import click

from traceanalyzer import __version__
from traceanalyzer.analyzers.registry import GROUPS, commands
from traceanalyzer.cli.commands import all_commands

COMMANDS = all_commands()
PAGE = Path(__file__).with_name("traceanalyzer.1")

HEAD = f"""\
.TH TRACEANALYZER 1 "" "traceanalyzer {__version__}"
.SH NAME
traceanalyzer \\- find out why training is slow, from traces of GPU profilers
.SH SYNOPSIS
.B traceanalyzer
[\\-\\-no\\-pager] COMMAND [OPTIONS] PATH...
.br
.B traceanalyzer
PATH...
.SH DESCRIPTION
Reads traces of torch.profiler, Nsight Systems, rocprofiler, py-spy and CUDA memory snapshots,
and names the causes of lost time with their place. Without a command, the files are diagnosed.
"""

TAIL = """\
.SH EXIT STATUS
0: success. 1: unusable input or output. 2: wrong command line. 3: \\-\\-fail\\-on or a
budget applies.
.SH ENVIRONMENT
TRACEANALYZER_PAGER, PAGER, NO_COLOR, FORCE_COLOR
.SH FILES
traceanalyzer.toml, or [tool.traceanalyzer] in pyproject.toml: defaults of
\\-\\-library\\-name, \\-\\-color, \\-\\-workers and \\-\\-top.
"""


_CONTEXT = click.Context(click.Command(""))


def escaped(text: str) -> str:
    """Return text in one line for troff."""
    plain = " ".join(text.replace("\b", "").split())
    plain = plain.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def option(one: click.Option) -> str:
    """Return an option with its value and effect."""
    names = ", ".join(map(escaped, [*one.opts, *one.secondary_opts]))
    value = "" if one.is_flag else f" {escaped(one.make_metavar(_CONTEXT))}"
    return f".TP\n.B {names}{value}\n{escaped(one.help or '')}"


def section(name: str, command: click.Command) -> str:
    """Return a command with its options."""
    visible = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    usage = " ".join(["traceanalyzer", name, *command.collect_usage_pieces(_CONTEXT)])
    parts = [f".SS {escaped(name)}", escaped(usage), ".PP"]
    parts.append(escaped((command.help or "").split("\n\n")[0]))
    return "\n".join([*parts, *map(option, visible)])


def page() -> str:
    """Return the manual page."""
    groups = {name: entry.group for name, entry in commands().items()}
    texts = [HEAD]
    for group in GROUPS:
        names = [name for name in COMMANDS if groups.get(name) == group]
        texts += [f".SH {group.upper()}", *(section(name, COMMANDS[name]) for name in names)]
    return "\n".join([*texts, TAIL])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
