"""Entry point of the program: a signal ends it quietly, even while it is being imported."""

from traceanalyzer.cli import signals


def run() -> None:
    """Run the console script."""
    signals.exit_at_once()
    from traceanalyzer.cli import main

    main.run()
