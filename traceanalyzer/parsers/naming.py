"""What a file's name says about its place in a job."""

from __future__ import annotations

import re
from pathlib import PurePath

_RANK = re.compile(r"(?i)(?:^|[^a-z])(?:global_?)?(?:rank|worker)[-_.\[ ]?(\d{1,7})(?!\d)")
_NODE = re.compile(r"(?i)(?:^|[^a-z])node(?:[-_.\[ ]?(?:id|rank))?[-_.\[ ]?(\d{1,7})(?!\d)")


def rank_from_name(path: str) -> int | None:
    """The rank a file's name (or, if that says nothing, its folder's) gives; else None.

    ``rank3.json``, ``trace_rank-3.json.gz``, ``worker3_step_12.json``, ``rank[3].json``.
    """
    return _last(_RANK, path)


def rank_or_node_from_name(path: str) -> int | None:
    """As :func:`rank_from_name`; the node's number where no rank is named.

    For recordings of a whole node, such as ``profile_node3.txt``.
    """
    rank = rank_from_name(path)
    return _last(_NODE, path) if rank is None else rank


def _last(pattern: re.Pattern[str], path: str) -> int | None:
    parts = PurePath(path).parts[-2:]
    for part in reversed(parts):
        found = pattern.findall(part)
        if found:
            return int(found[-1])
    return None
