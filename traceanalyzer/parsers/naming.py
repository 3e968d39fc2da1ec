"""What a file's name says about its place in a job."""

from __future__ import annotations

import re
from pathlib import PurePath

_RANK = re.compile(r"(?i)(?:^|[^a-z])(?:global_?)?(?:rank|worker)[-_.\[ ]?(\d{1,7})(?!\d)")


def rank_from_name(path: str) -> int | None:
    """The rank a file's name (or, if that says nothing, its folder's) gives; else None.

    ``rank3.json``, ``trace_rank-3.json.gz``, ``worker3_step_12.json``, ``rank[3].json``.
    """
    parts = PurePath(path).parts[-2:]
    for part in reversed(parts):
        found = _RANK.findall(part)
        if found:
            return int(found[-1])
    return None
