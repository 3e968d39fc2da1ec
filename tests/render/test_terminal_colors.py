"""Colours of the terminal are legible on light and on dark backgrounds."""

from __future__ import annotations

import pytest

from traceanalyzer.render.palette import OWN_CODE, SEVERITY, STATE_SEQUENCES, STATES

#: White, black, the dark grey of editors, and the light background of Solarized.
BACKGROUNDS = [(255, 255, 255), (0, 0, 0), (0x1E, 0x1E, 0x1E), (0xFD, 0xF6, 0xE3)]
CODES = [OWN_CODE, *SEVERITY.values(), *STATE_SEQUENCES.values()]


def rgb(code: str) -> tuple[int, ...]:
    """Return the colour of ``38;5;N``, which no theme of a terminal changes."""
    kind, table, number = map(int, code.removeprefix("1;").split(";"))
    assert (kind, table) == (38, 5)
    if number >= 232:
        return (8 + 10 * (number - 232),) * 3
    assert number >= 16
    steps = (0, 95, 135, 175, 215, 255)
    cube = number - 16
    return tuple(steps[place] for place in (cube // 36, cube // 6 % 6, cube % 6))


def luminance(color: tuple[int, ...]) -> float:
    parts = [value / 255 for value in color]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("code", sorted({*CODES}))
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_contrast_is_at_least_three(code: str, background: tuple[int, ...]) -> None:
    low, high = sorted((luminance(rgb(code)), luminance(background)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_each_state_has_a_color() -> None:
    assert set(STATE_SEQUENCES) == set(STATES)
    assert len({*STATE_SEQUENCES.values()}) == len(STATES)
