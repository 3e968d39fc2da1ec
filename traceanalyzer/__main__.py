"""``python -m traceanalyzer``."""

from traceanalyzer.cli import run

if __name__ == "__main__":
    run()
