"""Colours of a terminal: severities, and own code."""

from __future__ import annotations

import re
from collections.abc import Mapping

_RESET = "\x1b[0m"

#: Codes by severity: bold red, yellow, cyan.
SEVERITY: Mapping[str, str] = {"critical": "1;31", "warning": "33", "info": "36"}

#: Own code, as the orange of flame graphs: bold yellow.
OWN_CODE = "1;33"

#: States of a timeline, like those of ``palette``: blue, yellow, red, magenta; idle time is pale.
STATES: Mapping[str, str] = {
    "compute": "34",
    "overlapped": "34",
    "transfer": "33",
    "waiting": "31",
    "copies": "35",
    "dataloading": "36",
    "launch": "32",
    "synchronisation": "96",
    "host": "37",
    "idle": "90",
}

#: The sequences that :func:`colored` writes.
SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


def colored(text: str, code: str | None) -> str:
    """Return the text in a colour; unchanged without one."""
    return f"\x1b[{code}m{text}{_RESET}" if code and text else text
