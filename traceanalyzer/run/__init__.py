"""From inputs to results: open files, measure them in pieces, combine the parts."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceanalyzer.run.loop import run

__all__ = ["PARTS_SCHEMA", "run"]

#: Number of the layout of stored parts (summaries, baselines). Raised when a type or a table of a
#: part changes, or the meaning of its numbers: ``tests/run/test_stored_parts.py``.
PARTS_SCHEMA = 6


def __getattr__(name: str) -> Any:
    """Import ``run``, which other packages import from here, on first use."""
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from traceanalyzer.run.loop import run

    return run
