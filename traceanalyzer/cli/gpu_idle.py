"""``traceanalyzer gpu-idle``."""

from __future__ import annotations

import click

from traceanalyzer.cli.answering import answer
from traceanalyzer.cli.options import Reading, Writing, reading, writing
from traceanalyzer.cli.plotting import Plot, plotting
from traceanalyzer.units import parse_ns


@click.command("gpu-idle", short_help="Why the GPU waits: data loading, synchronisation, launches.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--min-gap",
    metavar="TIME",
    default="10us",
    show_default=True,
    callback=lambda _context, _option, text: parse_ns(text),
    help="Shorter gaps are the ordinary distance of kernels.",
)
@click.option(
    "--dataloader",
    metavar="REGEX",
    multiple=True,
    help="Host slices whose names match are data loading too. Repeatable.",
)
@click.option(
    "--pattern",
    "patterns",
    metavar="REGEX",
    multiple=True,
    help="Kernels whose names match are communication too. Repeatable.",
)
@click.option(
    "--by",
    type=click.Choice(["device", "process", "step"]),
    default="device",
    show_default=True,
    help="Judge devices, each process's part of them, or show steps first.",
)
@click.option(
    "--library-name",
    "library_names",
    metavar="NAME",
    multiple=True,
    help="Tell this library's innermost Python frame of each gap. Default: your own code's.",
)
@click.option("--step-name", metavar="REGEX", help="Slices whose names match are the steps.")
@plotting("idle time by cause, per step and over time,")
@reading
@writing
def gpu_idle(
    paths: tuple[str, ...],
    min_gap: int,
    reading: Reading,
    writing: Writing,
    plot: Plot,
    **options: object,
) -> None:
    """Why is the GPU idle, and what does waiting for the data loader cost?

    PATH is a trace of one rank, several of them, or a folder of all ranks' traces. Without GPU work
    in the file the training thread is judged in the same way.
    """
    from traceanalyzer import api

    answer(api.gpu_idle, paths, reading, writing, plot, min_gap_ns=min_gap, **options)
