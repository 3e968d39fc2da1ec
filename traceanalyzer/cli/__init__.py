"""The command line: read, analyze, render, write; a command is a few lines.

Data goes to standard output or a file; progress and data loss go to standard error. Only
``main.run`` catches errors. Nothing heavy is imported before a command runs.
"""

from traceanalyzer.cli import signals


def run() -> None:
    """Run the console script: a signal ends it quietly, even while it is being imported."""
    signals.exit_at_once()
    from traceanalyzer.cli import main

    main.run()
