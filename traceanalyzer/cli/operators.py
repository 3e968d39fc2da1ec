"""``traceanalyzer operators``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting

SORT_BY = (
    "self_host", "total_host", "mean_host", "self_device", "total_device", "mean_device", "calls",
    "self_host_memory", "total_host_memory", "self_device_memory", "total_device_memory",
)  # fmt: skip


@click.command("operators", short_help="What each operator costs, on the host and the device.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--sort-by",
    type=click.Choice(SORT_BY),
    metavar="COLUMN",
    help=f"One of {', '.join(SORT_BY)}. Default: self_device, without device work self_host.",
)
@click.option(
    "--group-by-input-shape", is_flag=True, help="Calls with other input shapes are other rows."
)
@click.option(
    "--group-by-stack",
    type=click.IntRange(min=0),
    metavar="N",
    default=0,
    help="Calls from other Python code are other rows: the N innermost frames count.",
)
@plotting("the heaviest operators")
@reading
@writing
def operators(
    paths: tuple[str, ...], reading: Reading, writing: Writing, plot: Plot, **options: object
) -> None:
    """Which operators take the time, as PyTorch's key_averages sums them up.

    PATH is a trace, several of them, or a folder; ranks are summed up.
    """
    from traceanalyzer import api

    answer(api.operators, paths, reading, writing, plot, **options)
