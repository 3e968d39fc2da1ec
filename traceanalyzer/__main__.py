"""``python -m traceanalyzer``."""

from traceanalyzer.cli.main import run

if __name__ == "__main__":
    run()
