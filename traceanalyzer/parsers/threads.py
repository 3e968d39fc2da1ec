"""How many threads a parser works with."""

from __future__ import annotations

import os

#: More do not read one file any faster.
_MOST = 8


def threads() -> int:
    """As many as this process may use cores: a cluster's job is often given a few of them."""
    known = hasattr(os, "sched_getaffinity")
    return min(len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1, _MOST)
