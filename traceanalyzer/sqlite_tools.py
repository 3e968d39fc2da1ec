"""``sqlite_utils``, loaded without pandas.

It loads pandas where that is installed, to know the type of one sort of value that is never written
here: a quarter of a second of every command on a database. The copy loaded so is ours alone; a
program's own ``import sqlite_utils`` finds what it always finds.
"""

from __future__ import annotations

import sys
import threading

_OWN, _HEAVY = "sqlite_utils", "pandas"

# as usual where there is nothing to save, or another thread could notice
if not {_OWN, _HEAVY}.isdisjoint(sys.modules) or threading.active_count() > 1:
    import sqlite_utils
else:
    sys.modules[_HEAVY] = None  # type: ignore[assignment] # to an import, it is not there
    try:
        import sqlite_utils
    finally:
        del sys.modules[_HEAVY]
        for _name in [name for name in sys.modules if name.partition(".")[0] == _OWN]:
            del sys.modules[_name]

__all__ = ["sqlite_utils"]
