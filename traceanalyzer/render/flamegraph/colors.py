"""Which colour a box has: by its package, by whose code it is, or by how its weight changed.

Every fill has a counterpart for dark screens; the style sheet made by :func:`dark_rules` swaps
them by the attribute's value, so that a picture without styles still has its light colours.
"""

from __future__ import annotations

from zlib import crc32

PAPER, INK = "#ffffff", "#1f2328"

# Twelve hues in two tones, even in brightness (OKLCH: L .87 and .80, on dark .43 and .36), without
# the oranges, which are for the user's own code.
# fmt: off
_PACKAGES = {
    "#dfd6a1": "#595019", "#caddab": "#465726", "#b4e2bc": "#2f5b39", "#a3e4d2": "#115d4d",
    "#9de3e5": "#005c5f", "#a1dff5": "#0d596d", "#afdaff": "#295376", "#c2d3ff": "#404d79",
    "#d6ccff": "#524775", "#e8c6f3": "#61426a", "#f6c3e1": "#6c3e5b", "#fec2cd": "#723d49",
    "#c6bf93": "#463d00", "#b5c59b": "#344412", "#a3c9aa": "#1b4827", "#95cbbb": "#00493b",
    "#90cacc": "#00484b", "#93c7da": "#004559", "#9fc2e3": "#154062", "#aebde5": "#2e3a64",
    "#bfb7e1": "#403460", "#ceb2d7": "#4d2f56", "#daafc9": "#572c48", "#e1aeb8": "#5d2b37",
}
# From "only in the base" (blue) over "the same share" (grey) to "only here" (red).
_CHANGES = {
    "#59a3ff": "#005bb5", "#7bb2f7": "#1f5596", "#9bbfee": "#2d4e78", "#b9cce3": "#37465a",
    "#d7d7d7": "#3d3d3d", "#e2c1bd": "#593d3a", "#eaa9a3": "#733a36", "#ef9189": "#8c3432",
    "#f3766f": "#a5292b",
}
# fmt: on
OWN = "#fea247"
PLAIN = "#d7dade"
HATCHED = "hatch"

#: Light fill -> the fill on a dark screen.
FILLS = {**_PACKAGES, **_CHANGES, OWN: "#a04a08", PLAIN: "#4a5058"}

_BY_HASH = tuple(_PACKAGES)
# A start of the hash for which fourteen packages usual in training differ: torch, the standard
# library, numpy, libtorch_cpu.so, libc.so.6, transformers, triton and so on.
_SEED = 22_795
CHANGES = tuple(_CHANGES)


def of_group(group: str | None, *, own: bool) -> str:
    """The fill of a package's boxes: the same in every picture; own code and no package apart."""
    if own:
        return OWN
    return _BY_HASH[crc32(group.encode(), _SEED) % len(_BY_HASH)] if group else PLAIN


def of_change(total: float, base: float) -> str:
    """The fill for ``(total - base)`` divided by the larger of both, in nine steps."""
    largest = max(total, base)
    change = (total - base) / largest if largest > 0 else 0.0
    return CHANGES[round((change + 1) / 2 * (len(CHANGES) - 1))]


def dark_rules() -> str:
    """Style rules that give every fill its counterpart on a dark screen."""
    return "\n".join(
        f'  .flame [fill="{light}"] {{ fill: {dark}; }}' for light, dark in FILLS.items()
    )
