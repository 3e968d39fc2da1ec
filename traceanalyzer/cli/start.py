"""Where the program starts, and what Ctrl-C and SIGTERM do from then on."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


#: The exit status after each signal, as shells have it: 128 and its number.
STATUS: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}
_SOON_SECONDS = 0.01


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


def as_exceptions() -> None:
    """From now on SIGINT raises KeyboardInterrupt, and SIGTERM SystemExit; once, the first of them.

    Those after it are ignored: they would end the clearing up that the first one started. A signal
    that whoever started us ignores (``nohup``, a job in the background) is ignored further.
    """
    for number in STATUS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _raise)
    sys.unraisablehook = _again


def ignored() -> None:
    """From now on both are ignored: the work is done, or is being given up."""
    for number in STATUS:
        signal.signal(number, signal.SIG_IGN)


def _raise(number: int, _frame: FrameType | None) -> None:
    ignored()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(STATUS[number])


def _again(lost: UnraisableHookArgs) -> None:
    """Where Python cannot raise (a destructor, a callback) it would print and go on: soon again."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        number = signal.SIGINT
    elif issubclass(lost.exc_type, SystemExit):
        number = signal.SIGTERM
    else:
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, lambda _, frame: _raise(number, frame))
    signal.setitimer(signal.ITIMER_REAL, _SOON_SECONDS)
