"""Colours with a fixed meaning, the same in every drawing: (on white, on black) by name.

Chosen from M. A. Petroff, "Accessible Color Sequences for Data Visualization" (2021), whose colours
differ in brightness too. Idle time is pale, so that busy time stands out.
"""

import re
from collections.abc import Mapping

COMPUTE = ("#3f90da", "#3f90da")
OVERLAPPED = ("#1b5a9c", "#2b6cb0")
TRANSFER = ("#ffa90e", "#ffa90e")
WAITING = ("#bd1f01", "#e5401f")
COPIES = ("#832db6", "#a15fd0")
DATA_LOADING = ("#e6b8a2", "#8a5a47")
LAUNCH = ("#d8cf9f", "#7d7448")
SYNCHRONISATION = ("#a8dfe3", "#3f8086")
HOST_CODE = ("#c3cbd3", "#59636e")
IDLE = ("#e6eaee", "#2d333b")

#: Colours of the states of a timeline.
STATES = {
    "compute": COMPUTE,
    "overlapped": OVERLAPPED,
    "transfer": TRANSFER,
    "waiting": WAITING,
    "copies": COPIES,
    "dataloading": DATA_LOADING,
    "launch": LAUNCH,
    "synchronisation": SYNCHRONISATION,
    "host": HOST_CODE,
    "idle": IDLE,
}

#: Red is worse, green (with blue, for the colour-blind) is better.
WORSE, BETTER = "#c4392f", "#1f9d83"

#: Colours of categories of charts on white, by name; other categories get any other colour.
MEANINGS = {
    "busy": COMPUTE[0],
    "compute": COMPUTE[0],
    "overlapped communication": OVERLAPPED[0],
    "communication": TRANSFER[0],
    "exposed communication": TRANSFER[0],
    "waiting for other ranks": WAITING[0],
    "copies": COPIES[0],
    "exposed copies": COPIES[0],
    "data loading": DATA_LOADING[0],
    "launch overhead": LAUNCH[0],
    "synchronisation": SYNCHRONISATION[0],
    "other host code": HOST_CODE[0],
    "idle": IDLE[0],
    "unknown": IDLE[0],
    # states of a timeline
    "compute + communication": OVERLAPPED[0],
    "communication (exposed)": TRANSFER[0],
    "waiting for another rank": WAITING[0],
    "copies (exposed)": COPIES[0],
    "idle: data loading": DATA_LOADING[0],
    "idle: launch overhead": LAUNCH[0],
    "idle: synchronisation": SYNCHRONISATION[0],
    "idle: host code and calls": HOST_CODE[0],
    "idle: other": IDLE[0],
    "outside of device work": "#94a4a2",
    "slower": WORSE,
    "faster": BETTER,
    "within noise": "#94a4a2",
    "no change": "#94a4a2",
    # states of collectives
    "completed": HOST_CODE[0],
    "ended": LAUNCH[0],
    "started": TRANSFER[0],
    "scheduled": SYNCHRONISATION[0],
    "different call": COPIES[0],
    "never entered": WAITING[0],
    "no dump": "#1f2328",
    "no record": "#1f2328",
}


def style() -> str:
    """Return rules that give elements of the class ``state-NAME`` their colour."""
    light, dark = (
        "".join(
            f".state-{name} {{ background: {inks[place]}; }}\n" for name, inks in STATES.items()
        )
        for place in (0, 1)
    )
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"


_RESET = "\x1b[0m"

# Colours of the table of 256, which are the same in every terminal, unlike the first 16. They have
# a contrast of at least 3 on white and black, and on the usual off-whites and dark greys.
#: Codes by severity: bold red, brown, teal.
SEVERITY: Mapping[str, str] = {"critical": "1;38;5;196", "warning": "38;5;130", "info": "38;5;30"}

#: Own code, as in flame graphs: bold orange.
OWN_CODE = "1;38;5;166"

#: States of a timeline, in the hues of the other drawings; host code and idle time are grey.
STATE_SEQUENCES: Mapping[str, str] = {
    "compute": "38;5;32",
    "overlapped": "38;5;27",
    "transfer": "38;5;136",
    "waiting": "38;5;196",
    "copies": "38;5;134",
    "dataloading": "38;5;131",
    "launch": "38;5;64",
    "synchronisation": "38;5;30",
    "host": "38;5;103",
    "idle": "38;5;243",
}

#: The sequences that :func:`colored` writes.
SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


def colored(text: str, code: str | None) -> str:
    """Return the text in a colour; unchanged without one."""
    return f"\x1b[{code}m{text}{_RESET}" if code and text else text
