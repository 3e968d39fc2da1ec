"""What shells complete: names of files wherever a command takes one."""

from __future__ import annotations

import click

#: What options call a file in their help; arguments are files all of them.
_FILES = ("FILE", "PATH", "OTHER", "BASE", "OUT")


def completing(command: click.Command) -> click.Command:
    """The command, for which shells offer files where it takes files."""
    for parameter in command.params:
        if isinstance(parameter, click.Argument) or parameter.metavar in _FILES:
            # a name is passed on as it is given: what is wrong with it is said later
            parameter.type = click.Path(readable=False)
    return command
