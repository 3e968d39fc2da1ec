"""Defaults of options from ``traceanalyzer.toml``, or ``[tool.traceanalyzer]`` of a project."""

from functools import cache
from pathlib import Path
from typing import Any

import click

#: Options that may have a default; the others belong to one call.
NAMES = ("library-name", "color", "workers", "top")
_FILES = {"traceanalyzer.toml": (), "pyproject.toml": ("tool", "traceanalyzer")}


def of(command: click.Command) -> dict[str, Any]:
    """Return the defaults of a command by the names of its parameters.

    Raises:
        click.UsageError: the file has another key or type.
    """
    try:
        folder = Path.cwd()
    except OSError:  # it was removed
        return {}
    given = {f"--{name}": value for name, value in _given(folder).items()}
    return {
        str(option.name): [*map(str, given[flag])] if option.multiple else str(given[flag][0])
        for option in command.params
        for flag in option.opts
        if flag in given and isinstance(option, click.Option)
    }


@cache
def _given(folder: Path) -> dict[str, list[str | int]]:
    """Return the values of the nearest file with defaults, in a folder or one above it."""
    for place in (folder, *folder.parents):
        for name, keys in _FILES.items():
            path = place / name
            if (table := _table(path, keys)) is not None:
                return {key: _values(path, key, value) for key, value in table.items()}
    return {}


def _table(path: Path, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the defaults in a file; None if it has none, or if it is not readable."""
    try:
        text = path.read_bytes()
    except OSError:
        return None
    import tomllib

    try:
        table: Any = tomllib.loads(text.decode())
    except ValueError as error:
        if keys:  # the file of another tool
            return None
        raise click.UsageError(f"{path}: {error}") from None
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else None


def _values(path: Path, key: str, value: object) -> list[str | int]:
    if key not in NAMES:
        known = ", ".join(NAMES)
        raise click.UsageError(f"{path}: {key!r} has no default here; known: {known}")
    given = value if isinstance(value, list) and key == "library-name" else [value]
    values = [one for one in given if isinstance(one, str | int)]
    if not values or len(values) < len(given):
        raise click.UsageError(f"{path}: {key} must be a text or a number")
    return values
