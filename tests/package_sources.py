"""Imports and calls of the modules of the package; each is parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "traceanalyzer"
FILES = sorted(PACKAGE.rglob("*.py"))


class Source(NamedTuple):
    """What a file imports and calls anywhere, in functions too.

    Attributes:
        imports: full names.
        at_run_time: those outside of ``if TYPE_CHECKING``.
        calls: the called expressions as text.
    """

    imports: frozenset[str]
    at_run_time: frozenset[str]
    calls: frozenset[str]


@cache
def source_of(path: Path) -> Source:
    """Return imports and calls of a file."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    guarded = {
        inner
        for node in nodes
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    imports = [(node, name) for node in nodes for name in _imported(node, path)]
    return Source(
        frozenset(name for _, name in imports),
        frozenset(name for node, name in imports if node not in guarded),
        frozenset(ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)),
    )


def _imported(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}:{node.lineno}: a relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
