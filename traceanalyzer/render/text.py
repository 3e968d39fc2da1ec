"""Text from files made harmless and short; every renderer passes values through here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from traceanalyzer.units import format_bytes, format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.result import Finding

# C0 and C1 controls, DEL; soft hyphen and zero-width characters; line separators; marks,
# embeddings, overrides and isolates that turn the direction of text; the BOM; interlinear and tag
# characters. All of them can hide text, move the cursor or reorder what stands around them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
_ELLIPSIS = "..."
_LONG_WORD = re.compile(r"\S{121,}")


def visible(text: str) -> str:
    r"""Control, zero-width and direction characters spelled out: ESC becomes ``\x1b``."""
    return _UNSAFE.sub(_spelled, text)


def shorten(text: str, width: int) -> str:
    """At most ``width`` characters, the middle left out: ``ncclDevKernel_...bf16)``."""
    if len(text) <= width:
        return text
    kept = max(width - len(_ELLIPSIS), 2)
    tail = kept // 2
    return f"{text[: kept - tail]}{_ELLIPSIS}{text[-tail:]}"


def prose(text: str) -> str:
    """A sentence made harmless, with words of absurd length cut in the middle."""
    return _LONG_WORD.sub(lambda match: shorten(match[0], 80), visible(text))


def costs(finding: Finding) -> list[str]:
    """What a finding costs, as people read it: ``185.1 ms``, ``20.7 % of step time``."""
    found = [format_ns(finding.cost_ns), format_bytes(finding.cost_bytes)]
    if finding.cost_frac is not None:
        found.append(f"{format_frac(finding.cost_frac)} of {finding.of}")
    return [text for text in found if text]


def _spelled(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
