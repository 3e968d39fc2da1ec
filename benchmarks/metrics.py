"""Size and structure of the package, with the limit of each figure.

``make metrics``; with ``--check`` a figure above its limit fails. Code lines are lines with a token
that is no comment and no docstring. Figures are counted in the source; what a command loads and how
long ``--help`` takes is measured in a process.
"""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import time
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "traceanalyzer"
#: The core of every analysis.
CORE = ("analyzers/base.py", "analyzers/registry.py", "run/loop.py")
#: Gives a trace its methods, so it imports for types what needs a trace: the one known cycle.
METHODS = "traceanalyzer.analyzers.methods"
#: Compiled modules, which import nothing.
COMPILED = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PACKAGE.rglob("_*.c")
}
#: Entries at the root that are no rooms: the package, and import paths for other packages.
NO_ROOMS = {"__init__", "__main__", "reading"}
TRACE = "fixtures/nccl_8ranks/rank0.json.gz"
LONGEST_FUNCTION = 60
HELP_RUNS = 7
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_DESCRIBED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Source:
    """A file of the package."""

    path: Path

    @property
    def name(self) -> str:
        """Its path in the package."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def module(self) -> str:
        """The name it is imported by."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax."""
        return ast.parse(self.path.read_text())

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its syntax."""
        return list(ast.walk(self.tree))

    @cached_property
    def code(self) -> set[int]:
        """Numbers of the lines that are code."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.path.read_text()).readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        return lines - set(self._docstrings())

    @cached_property
    def imports(self) -> int:
        """How many of them are imports, wherever they stand."""
        nodes = [n for n in self.nodes if isinstance(n, (ast.Import, ast.ImportFrom))]
        return len(self.code & {line for node in nodes for line in _lines(node)})

    def long_functions(self) -> Iterator[tuple[int, str]]:
        """Length and place of functions that are too long, from ``def`` to the last line."""
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = len(_lines(node))
                if length > LONGEST_FUNCTION:
                    yield length, f"{self.name}:{node.lineno} {node.name}"

    def needs(self, modules: set[str], *, inside: bool) -> set[str]:
        """Modules of the package it imports; those in functions or by string only ``inside``."""
        needed: set[str] = set()
        for node in self.nodes if inside else _outside(self.tree):
            if isinstance(node, ast.Import):
                needed |= {alias.name for alias in node.names} & modules
            elif isinstance(node, ast.ImportFrom) and node.module:
                base = node.module
                names = {f"{base}.{alias.name}" for alias in node.names} - COMPILED
                needed |= {name if name in modules else base for name in names} & modules
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
                needed |= {ast.unparse(argument).strip("'") for argument in node.args} & modules
        return needed - {self.module}

    def _docstrings(self) -> Iterator[int]:
        for node in self.nodes:
            if isinstance(node, _DESCRIBED) and ast.get_docstring(node, clean=False) is not None:
                yield from _lines(node.body[0])


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _outside(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes outside of functions; ``if TYPE_CHECKING`` is outside."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            yield from _outside(node)


def cycles(needs: dict[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, in groups (strongly connected, by Tarjan), largest first."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    groups: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        open_.append(module)
        for other in sorted(needs[module]):
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in open_:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            place = open_.index(module)
            group = open_[place:]
            del open_[place:]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in sorted(needs):
        if module not in number:
            visit(module)
    return sorted(groups, key=lambda group: (-len(group), group))


def sources() -> list[Source]:
    """Return the counted files."""
    return [Source(path) for path in sorted(PACKAGE.rglob("*.py"))]


def loaded() -> list[str]:
    """Modules of the package that one run of ``comm-outliers`` loads, without formats."""
    code = (
        "import sys; from traceanalyzer.cli.main import status\n"
        f"code = status(['comm-outliers', {TRACE!r}, '-o', '/dev/null', '--force'])\n"
        "names = [name for name in sys.modules if name.partition('.')[0] == 'traceanalyzer']\n"
        "print(code, *sorted(names))"
    )
    code_, *names = _python("-c", code).split()
    if code_ != "0":
        raise SystemExit(f"comm-outliers {TRACE} failed with {code_}")
    return names


def help_seconds() -> float:
    """The median time of ``traceanalyzer --help``, by the console script's entry."""
    start = "from traceanalyzer.cli import run; import sys; sys.argv[1:] = ['--help']; run()"
    times = []
    for _ in range(HELP_RUNS + 1):  # the first fills the caches
        begin = time.perf_counter()
        _python("-c", start)
        times.append(time.perf_counter() - begin)
    return sorted(times[1:])[HELP_RUNS // 2]


def _python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@dataclass(frozen=True)
class Figure:
    """One figure; ``--check`` fails if it is above its limit.

    Attributes:
        name: what is counted.
        value: the count.
        limit: the largest allowed value; None for a figure that is only printed.
        text: the value as printed, if it is not the number.
    """

    name: str
    value: float
    limit: float | None = None
    text: str = ""

    @property
    def is_exceeded(self) -> bool:
        """Whether the value is above the limit."""
        return self.limit is not None and self.value > self.limit

    def line(self) -> str:
        """Return the figure with its limit."""
        limit = "" if self.limit is None else f"at most {self.limit:,}"
        return f"{self.name:<44} {self.text or f'{self.value:,}':<34} {limit}".rstrip()


def figures(files: list[Source]) -> Iterator[Figure]:
    """Return each figure with its limit; docs/architecture.md gives the reasons."""
    code = sum(len(source.code) for source in files)
    imports = sum(source.imports for source in files)
    core = sum(len(source.code) for source in files if source.name in CORE)
    missing = [name for name in CORE if name not in {source.name for source in files}]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}")
    yield Figure("code lines", code, 74_052)
    yield Figure("files", len(files), 343)
    yield Figure("rooms", len(rooms()), 18)
    yield Figure("entries of the import contract", contract_entries(), 15)
    yield Figure("imports, percent of code lines", round(100 * imports / code, 1), 6.8)
    yield Figure("modules that comm-outliers loads", len(loaded()), 90)
    yield Figure(", ".join(name.rpartition("/")[2] for name in CORE), core, 900)
    for name, groups, limit in (
        ("import cycles", _cycles(files, but=METHODS), 0),
        ("import cycles, with the methods of Trace", _cycles(files), 1),
        ("import cycles, in functions too", _cycles(files, inside=True), None),
    ):
        modules = sum(len(group) for group in groups)
        yield Figure(name, len(groups), limit, f"{len(groups)} ({modules} modules)")
    long = sum(1 for source in files for _ in source.long_functions())
    yield Figure(f"functions above {LONGEST_FUNCTION} lines", long, 0)
    largest = max(files, key=lambda source: len(source.code))
    size = len(largest.code)
    yield Figure("code lines of the largest module", size, 610, f"{size} ({largest.name})")


def rooms() -> list[str]:
    """Return the folders and modules at the root of the package."""
    entries = [*PACKAGE.glob("*/__init__.py"), *PACKAGE.glob("*.py")]
    names = {path.parent.name if path.parent != PACKAGE else path.stem for path in entries}
    return sorted(names - NO_ROOMS)


def contract_entries() -> int:
    """Return the number of rooms in the import contract of ``tests/test_imports.py``."""
    tree = ast.parse((ROOT / "tests" / "test_imports.py").read_text())
    tables = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "ALLOWED"
    ]
    if len(tables) != 1 or not isinstance(tables[0], ast.Dict):
        raise SystemExit("tests/test_imports.py has no table ALLOWED")
    return len(tables[0].keys)


def _cycles(files: list[Source], *, inside: bool = False, but: str = "") -> list[list[str]]:
    modules = {source.module for source in files}
    needs = {source.module: source.needs(modules, inside=inside) for source in files}
    return cycles({module: set() if module == but else needs[module] for module in needs})


def main() -> int:
    """Print all figures; with ``--check``, return 1 if one is above its limit."""
    files = sources()
    counted = list(figures(files))
    print("\n".join(one.line() for one in counted))
    for group in _cycles(files, but=METHODS):
        print("\ncycle: " + ", ".join(name.removeprefix("traceanalyzer.") for name in group))
    for group in _cycles(files, but=METHODS, inside=True):
        names = ", ".join(name.removeprefix("traceanalyzer.") for name in group)
        print(f"\ncycle through functions: {names}")
    for length, place in sorted((f for s in files for f in s.long_functions()), reverse=True):
        print(f"\n{length} lines: {place}")
    if "--check" in sys.argv[1:]:
        exceeded = [one for one in counted if one.is_exceeded]
        for one in exceeded:
            print(f"above its limit: {one.line()}", file=sys.stderr)
        return 1 if exceeded else 0
    print(f"--help: {help_seconds():.3f} s")
    _print_folders(files)
    return 0


def _print_folders(files: list[Source]) -> None:
    print(f"\n{'folder':<34} {'code lines':>10} {'imports':>8} {'files':>6}")
    lines, imports, count = Counter[str](), Counter[str](), Counter[str]()
    for source in files:
        folder = "/".join(source.name.split("/")[:-1][:2]) or "."
        lines[folder] += len(source.code)
        imports[folder] += source.imports
        count[folder] += 1
    for folder, total in lines.most_common():
        print(
            f"{folder:<34} {total:>10,} {imports[folder] / max(total, 1):>8.0%} {count[folder]:>6}"
        )


if __name__ == "__main__":
    sys.exit(main())
