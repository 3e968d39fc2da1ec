"""``python -m traceanalyzer``."""

from traceanalyzer.cli.start import run

if __name__ == "__main__":
    run()
