"""``traceanalyzer memory``."""

from __future__ import annotations

from typing import Any

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting
from traceanalyzer.errors import OptionError
from traceanalyzer.units import parse_bytes


@click.command("memory", short_help="What fills the GPU's memory, why it ran out, what leaks.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--oom", is_flag=True, help="Why memory ran out, for each out-of-memory error.")
@click.option("--growth", is_flag=True, help="What grows from step to step.")
@click.option("--diff", metavar="OTHER", help="What changed at the peak since another run.")
@click.option(
    "--library-name",
    multiple=True,
    metavar="NAME",
    help="Name allocations by the innermost frame of this package, instead of your own code; may "
    "be repeated.",
)
@click.option("--capacity", metavar="SIZE", help="With --oom: memory of the device, such as 80GiB.")
@click.option(
    "--step-name",
    metavar="REGEX",
    help="With --growth: annotations whose names match are the steps. Default: ProfilerStep#, "
    "'step 3' and the like.",
)
@click.option(
    "--step-every",
    metavar="TIME",
    help="With --growth: a step is such a time (250ms), or so many events, instead.",
)
@plotting("what fills the memory over time")
@reading
@writing
def memory(
    paths: tuple[str, ...],
    oom: bool,
    growth: bool,
    diff: str | None,
    capacity: str | None,
    step_name: str | None,
    step_every: str | None,
    plot: Plot,
    reading: Reading,
    writing: Writing,
    **common: Any,
) -> None:
    """How much memory of each GPU is in use, when most, and which code allocated it?

    PATH is a memory snapshot (torch.cuda.memory._dump_snapshot), a trace with [memory] instants
    (profile_memory=True), an nsys export with allocations, several of them, or a folder.
    """
    from traceanalyzer import api

    asked = [
        name
        for name, value in (("--oom", oom), ("--growth", growth), ("--diff", diff))
        if value not in (False, None)
    ]
    if len(asked) > 1:
        raise OptionError(f"{' and '.join(asked)} are questions of their own: ask one at a time")
    _only("--capacity", capacity, oom, "--oom")
    _only("--step-name", step_name, growth, "--growth")
    _only("--step-every", step_every, growth, "--growth")
    size = None if capacity is None else parse_bytes(capacity)
    if oom:
        answer(api.memory_oom, paths, reading, writing, plot, capacity_bytes=size, **common)
    elif growth:
        steps = {"step_name": step_name, "step_every": step_every}
        answer(api.memory_growth, paths, reading, writing, plot, **steps, **common)
    elif diff is not None:
        answer(api.memory_diff, paths, reading, writing, plot, other=diff, **common)
    else:
        answer(api.memory, paths, reading, writing, plot, **common)


def _only(name: str, value: str | None, asked: bool, of: str) -> None:
    if value is not None and not asked:
        raise OptionError(f"{name} is for {of}")
