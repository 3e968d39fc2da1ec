"""``traceanalyzer memory``: one command, four analyses."""

from typing import Any

import click

from traceanalyzer.analyzers.memory.options import (
    DiffOptions,
    GrowthOptions,
    MemoryOptions,
    OomOptions,
    Options,
)
from traceanalyzer.analyzers.registry import ENTRIES
from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.commands import analyzer_options
from traceanalyzer.cli.options import plotting, reading, writing
from traceanalyzer.errors import OptionError

_ENTRY = ENTRIES["memory"]


@click.command("memory", short_help=_ENTRY.summary, help=MemoryOptions.__doc__)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--oom", is_flag=True, help="Explain each out-of-memory error.")
@click.option("--growth", is_flag=True, help="Show allocations that grow from step to step.")
@analyzer_options(DiffOptions, skip=("library_name", "min_bytes"))
@analyzer_options(Options)
@analyzer_options(OomOptions, skip=("library_name", "min_bytes"))
@analyzer_options(GrowthOptions, skip=("library_name", "min_bytes"))
@plotting(_ENTRY.plot or "")
@reading
@writing
def memory(
    paths: tuple[str, ...],
    oom: bool,
    growth: bool,
    other: str | None,
    capacity_bytes: int | None,
    step_name: str | None,
    step_every: str | None,
    **common: Any,
) -> None:
    """Run the analysis that the options select."""
    import traceanalyzer as ta

    analyses = {"--oom": oom, "--growth": growth, "--diff": other is not None}
    names = [name for name, selected in analyses.items() if selected]
    if len(names) > 1:
        raise OptionError(f"{' and '.join(names)} cannot be combined; choose one")
    values = {"--capacity": capacity_bytes, "--step-name": step_name, "--step-every": step_every}
    used = {"--oom": ("--capacity",), "--growth": ("--step-name", "--step-every"), "--diff": ()}
    for name, value in values.items():
        if names and value is not None and name not in used[names[0]]:
            raise OptionError(f"{name} has no effect with {names[0]}")
    if oom:
        answer(ta.memory_oom, paths, capacity_bytes=capacity_bytes, **common)
    elif growth:
        answer(ta.memory_growth, paths, step_name=step_name, step_every=step_every, **common)
    elif other is not None:
        answer(ta.memory_diff, paths, other=other, **common)
    else:
        answer(
            ta.memory,
            paths,
            capacity_bytes=capacity_bytes,
            step_name=step_name,
            step_every=step_every,
            **common,
        )
