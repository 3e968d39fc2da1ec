"""The program as a process with limits, without rights, with signals and terminals."""

from __future__ import annotations

import ctypes
import os
import pty
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = (sys.executable, "-m", "traceanalyzer")

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def environment(**changes: str | None) -> dict[str, str]:
    """Return the environment with changes; None removes a variable."""
    merged = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    return {name: value for name, value in merged.items() if value is not None}


def start(*arguments: object, **how: object) -> subprocess.Popen[bytes]:
    """Start the program, by default with piped output."""
    piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*PROGRAM, *(os.fsencode(one) if isinstance(one, Path) else one for one in arguments)]
    return subprocess.Popen(command, **{"env": environment(), **piped, **how})  # type: ignore[call-overload,no-any-return]


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    """Return exit status, standard output and standard error."""
    out, error = process.communicate(timeout=60)
    texts = [(one or b"").decode(errors="surrogateescape") for one in (out, error)]
    return process.returncode, texts[0], texts[1]


def without_rights() -> None:
    """Make file permissions effective for root, before a program starts."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for right in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            if libc.prctl(_PR_CAPBSET_DROP, right, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")


def with_files_of(size: int) -> Callable[[], None]:
    """Return a function that limits the size of written files, like a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def in_terminal(
    *arguments: object, columns: int = 80, lines: int = 24, **changes: str | None
) -> tuple[int, bytes]:
    """Return exit status and screen of the program in a terminal of this size."""
    ours, theirs = pty.openpty()
    pty_size = os.terminal_size((columns, lines))
    _resize(theirs, pty_size)
    env = environment(**{"COLUMNS": None, "LINES": None, **changes})
    process = start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    screen = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:  # Linux, after the last writer has exited
            break
        if not block:
            break
        screen += block
    os.close(ours)
    return process.wait(timeout=60), screen


def _resize(terminal: int, size: os.terminal_size) -> None:
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.lines, size.columns, 0, 0))
