"""``traceanalyzer mcp``."""

from __future__ import annotations

import click

from traceanalyzer.errors import MissingExtra


@click.command()
@click.option(
    "--root",
    "roots",
    multiple=True,
    required=True,
    metavar="FOLDER",
    help="Folder whose files may be read. Repeatable.",
)
def mcp(roots: tuple[str, ...]) -> None:
    """Serve the analyses as tools for language models, over stdio (Model Context Protocol).

    A client starts this command and calls its tools: diagnose, query, and every analysis. They read
    files below the roots only, and write nothing. Needs the extra mcp.
    """
    try:
        import mcp as _sdk  # noqa: F401 - whether it is installed
    except ImportError:
        raise MissingExtra("traceanalyzer mcp", "mcp") from None
    from traceanalyzer.tools.mcp.protocol import serve
    from traceanalyzer.tools.mcp.tools import Roots

    serve(Roots(roots).folders)
