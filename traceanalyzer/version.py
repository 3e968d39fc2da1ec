"""Version of the package, which ``pyproject.toml`` reads from here, and of stored parts."""

VERSION = "0.1.0"

#: Number of the layout of stored parts (summaries, baselines). Raised when a type or a table of a
#: part changes, or the meaning of its numbers: ``tests/test_stored_parts.py``.
PARTS_SCHEMA = 5
