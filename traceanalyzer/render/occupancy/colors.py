"""Which colour a box has: that of its category, or of its label where there are no categories.

Nine hues in three tones, even in brightness (OKLCH: L .80, .755, .71; on dark .56, .515, .47).
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

# fmt: off
_LIGHT = (
    "#89c3ff", "#7bb5f0", "#6da6e1", "#f0ae77", "#e19f69", "#d2915b", "#8bd19a", "#7dc28c",
    "#6fb47e", "#cdadf4", "#bf9ee5", "#b191d6", "#d3bd6c", "#c4af5d", "#b6a14f", "#faa2a2",
    "#eb9494", "#db8686", "#5ed3d3", "#4ec4c4", "#3cb6b6", "#efa2cd", "#df94bf", "#d086b0",
    "#aeca7e", "#a0bb70", "#92ad62",
)
_DARK = (
    "#4978a7", "#3c6b99", "#305e8b", "#9b673b", "#8d5a2d", "#7f4d20", "#4b8358", "#3e764b",
    "#31693f", "#81679f", "#745a91", "#674d83", "#857430", "#786721", "#6b5a10", "#a35e5e",
    "#945152", "#864445", "#198585", "#007777", "#006a6a", "#9a5e81", "#8c5173", "#7e4566",
    "#687e40", "#5c7033", "#4f6326",
)
# fmt: on
#: Numbers of the fills of what has no category, and of what has no box.
UNKNOWN, REST = len(_LIGHT), len(_LIGHT) + 1

#: The fills by number, on paper and on a dark screen.
LIGHT = (*_LIGHT, "#b4bcc6", "#dde1e6")
DARK = (*_DARK, "#66707c", "#3a4149")

_TONES = 3
_NOT_KNOWN = {"", "unknown", "none"}
_HUES = len(_LIGHT) // _TONES
# A start of the hash for which the usual categories differ: activations, gradients, inputs etc.
_SEED = 519_183


def of_categories(names: Iterable[str]) -> dict[str, int]:
    """The first fill of each category: by its name, so that drawings agree; the next if taken."""
    hues: dict[str, int] = {}
    for name in sorted(set(names) - _NOT_KNOWN):
        hue = crc32(name.encode(), _SEED) % _HUES
        while hue in hues.values() and len(hues) < _HUES:
            hue = (hue + 1) % _HUES
        hues[name] = hue
    return {name: hue * _TONES for name, hue in hues.items()}


def of_box(label: str | None, category: str | None, categories: dict[str, int], place: int) -> int:
    """The fill of a box; neighbours (by ``place``) of one category differ a little in tone."""
    if categories:
        known = category in categories
        return categories[category or ""] + place % _TONES if known else UNKNOWN
    return UNKNOWN if label is None else crc32(label.encode()) % len(_LIGHT)
