"""Ctrl-C and SIGTERM: a clean exit at any time."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


#: Exit status after each signal: 128 plus its number, as in shells.
STATUS: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}
_SOON_SECONDS = 0.01


def exit_at_once() -> None:
    """Exit at the first signal: during imports Python would answer Ctrl-C with a traceback."""
    _handle(_leave)


def _leave(number: int, _frame: FrameType | None) -> None:
    os._exit(STATUS[number])


def as_exceptions() -> None:
    """Turn the first SIGINT into KeyboardInterrupt, or the first SIGTERM into SystemExit.

    Later ones are ignored: they would interrupt the cleanup. A signal that the parent process
    ignores (``nohup``, a background job) stays ignored.
    """
    _handle(_raise)
    sys.unraisablehook = _again


def _handle(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in STATUS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore both signals: the work is finished or cancelled."""
    for number in STATUS:
        signal.signal(number, signal.SIG_IGN)


def _raise(number: int, _frame: FrameType | None) -> None:
    ignore()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(STATUS[number])


def _again(ignored: UnraisableHookArgs) -> None:
    """Raise again soon where Python cannot raise (a destructor, a callback) and would continue."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        number = signal.SIGINT
    elif issubclass(ignored.exc_type, SystemExit):
        number = signal.SIGTERM
    else:
        sys.__unraisablehook__(ignored)
        return
    signal.signal(signal.SIGALRM, lambda _, frame: _raise(number, frame))
    signal.setitimer(signal.ITIMER_REAL, _SOON_SECONDS)
