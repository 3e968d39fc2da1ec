"""Write the stubs of public names and methods for type checkers (``make docs``)."""

from __future__ import annotations

from pathlib import Path

import traceanalyzer
from traceanalyzer.analyzers import registry

PACKAGE = Path(traceanalyzer.__file__).parent
_HEAD = "# Written by `make docs` from the lists in __init__.py and analyzers/commands.toml.\n\n"


def names() -> str:
    """Return ``__init__.pyi``: the module of each public name."""
    homes = sorted((home, name) for name, home in traceanalyzer._HOME.items())
    lines = "".join(f"from {home} import {name} as {name}\n" for home, name in homes)
    return f"{_HEAD}{lines}\n__version__: str\n"


def methods() -> str:
    """Return ``methods.pyi``: the methods of a trace."""
    lines = "".join(f"    {name} = functions.{name}\n" for name in registry.METHODS)
    return (
        f"{_HEAD}from typing import Any\n\nimport traceanalyzer as functions\n\n"
        f"class AnalysisMethods:\n{lines}    def _repr_html_(self) -> str: ..."
        "\n    @property\n    def _inputs(self) -> Any: ...\n"
    )


def main() -> None:
    """Rewrite both files."""
    (PACKAGE / "__init__.pyi").write_text(names(), encoding="utf-8")
    (PACKAGE / "analyzers" / "methods.pyi").write_text(methods(), encoding="utf-8")


if __name__ == "__main__":
    main()
