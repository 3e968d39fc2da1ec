"""The command line: read, analyze, render, write; a command is a few lines.

Data goes to standard output or a file; progress and data loss go to standard error. Only
``main.run`` catches errors. Nothing heavy is imported before a command runs.
"""

import os

from traceanalyzer.cli import signals


def run() -> None:
    """Run the console script: a signal ends it quietly, even while it is being imported."""
    signals.exit_at_once()
    os.environ.pop("MPLBACKEND", None)  # a wrong name is an error, and drawings need none
    if not os.environ.get("POLARS_MAX_THREADS", "1").strip("0").isdecimal():
        del os.environ["POLARS_MAX_THREADS"]  # 0 or a text would end the program
    from traceanalyzer.cli import main

    main.run()
