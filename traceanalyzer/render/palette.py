"""Colours with a fixed meaning, the same in every drawing, of ``palette.toml``."""

import re
from collections.abc import Mapping

from traceanalyzer.files import packaged

_COLORS = packaged("render/palette.toml")
#: Colours of the states of a timeline on white and on black.
STATES = {name: (ink["white"], ink["black"]) for name, ink in _COLORS["states"].items()}
#: Codes of the states of a timeline in a terminal.
STATE_SEQUENCES: Mapping[str, str] = {
    name: ink["terminal"] for name, ink in _COLORS["states"].items()
}
#: Colours of categories of charts on white, by name; other categories get any other colour.
MEANINGS: Mapping[str, str] = {
    name: ink["white"]
    for group in _COLORS.values()
    for ink in group.values()
    for name in ink["charts"]
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

#: The sequences that :func:`colored` writes.
SEQUENCE = re.compile(r"\x1b\[[0-9;]*m")


def colored(text: str, code: str | None) -> str:
    """Return the text in a colour; unchanged without one."""
    return f"\x1b[{code}m{text}{_RESET}" if code and text else text
