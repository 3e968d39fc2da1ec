"""Where the program starts: before anything is loaded, Ctrl-C and SIGTERM end it quietly."""

from __future__ import annotations

import os
import signal
from types import FrameType

from traceanalyzer.cli.interruption import STATUS


def run() -> None:
    """The console script."""
    # loading takes a moment, in which Python would answer Ctrl-C with a traceback
    for number in STATUS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    from traceanalyzer.cli import main

    main.run()


def _leave(number: int, _frame: FrameType | None) -> None:
    os._exit(STATUS[number])
