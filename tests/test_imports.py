"""One-way imports between the parts of the package, from the source."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from traceanalyzer.cli.commands import all_commands

PACKAGE = Path(__file__).parents[1] / "traceanalyzer"
FILES = sorted(PACKAGE.rglob("*.py"))

BASE = {"errors", "limits", "units", "version", "vocabulary"}
#: What each room may import besides itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "units": {"errors"},
    "vocabulary": set(),
    "limits": set(),
    "version": set(),
    "schema": BASE,
    "files": {"errors"},
    # the lists of analyzers and what they are; nothing of them is loaded
    "registry": {"errors"},
    "questions": {"registry"},
    "trace": {"questions", "schema", *BASE},
    "drawings": set(),
    "result": {"drawings", "schema", *BASE},
    "frames": set(),
    "parsers": {"frames", "machine", "trace", "schema", *BASE},
    "exporters": {"frames", "trace", "schema", *BASE},
    "baselines": {"errors", "version"},
    "reading": {"baselines", "parsers", "schema", "trace", *BASE},
    "analyzers": {"frames", "trace", "drawings", "result", "registry", *BASE},
    "workers": {"parsers"},
    "machine": set(),
    "cluster": {"errors", "machine", "workers", ""},
    "summaries": {"errors", "files", "schema", "version"},
    "inputs": {"analyzers", "errors", "reading", "registry", "trace", "vocabulary"},
    "summarized": {"analyzers", "errors", "inputs", "limits", "reading", "registry", "schema",
                   "summaries", "trace"},
    "measuring": {"cluster", "errors", "inputs", "machine", "reading", "summarized", "trace",
                  "workers"},
    "ends": {"analyzers", "errors", "machine", "parsers", "reading", "registry", "trace", "units",
             "workers"},
    "run": {"inputs", "measuring", "reading", "summarized", "analyzers", "registry", "trace",
            "result", "errors", "units", "vocabulary"},
    "examining": {"analyzers", "errors", "inputs", "measuring", "reading", "registry", "result",
                  "run", "summarized", "trace"},
    "job": {"inputs", "parsers", "questions", "reading", "trace"},
    # the package of an analysis: its public function, which runs the analyzer
    "functions": {"analyzers", "baselines", "ends", "examining", "registry", "reading", "run",
                  "trace", "result"},
    "conversion": {"exporters", "files", "inputs", "reading", "registry", "schema", "trace"},
    "merging": {"analyzers", "errors", "examining", "exporters", "files", "inputs", "reading",
                "registry", "result", "trace", "units", "vocabulary"},
    "summarizing": {"analyzers", "errors", "examining", "inputs", "machine", "measuring", "parsers",
                    "reading", "registry", "run", "schema", "summaries", "summarized", "trace",
                    "units", "version", "workers"},
    "saving": {"analyzers", "baselines", "errors", "reading", "result", "run", "summarized",
               "summarizing", "trace", "units", "version"},
    "budgets": {"analyzers", "errors", "functions", "reading", "registry", "result", "units"},
    "querying": {"analyzers", "errors", "inputs", "reading", "registry", "result", "run", "schema",
                 "trace", "units", "vocabulary"},
    "serving": {"errors"},
    "mcp_server": {"errors", "querying", "registry", "render", "result", "schema", "units",
                   "version", ""},
    "render": {"drawings", "files", "result", "units", "errors"},
    "cli": {"analyzers", "baselines", "budgets", "cluster", "registry", "files", "mcp_server",
            "reading", "render", "exporters", "result", "serving", "units", "errors", "version",
            ""},
    "__main__": {"cli"},
    "__init__": {"budgets", "registry", "functions", "analyzers", "conversion", "job", "merging",
                 "querying", "saving", "summarizing", "reading", "trace", "result", "errors",
                 "version"},
}  # fmt: skip
#: Modules that say in a string what they import: a result draws itself in a notebook, a trace is
#: asked; the package, its functions and the exporters load on demand.
BY_STRING = {
    *("result.py", "questions.py"),
    *("__init__.py", "exporters/__init__.py", "analyzers/registry.py"),
    "cli/commands.py",
}
#: Imports for type checkers only.
FOR_TYPES = {
    "questions": {""},
    "analyzers": {"reading", "run"},
    "registry": {"trace", "result"},
}
#: Libraries that only these may load.
ONLY = {
    "matplotlib": {"render/plot.py"},
    "pandas": {"render/data.py"},
    "sqlite_utils": {"exporters/sqlite.py", "render/data.py"},
    "tabulate": {"render/table.py"},
    "rich": {"cli/progress.py"},
    "mcp": {"cli/mcp.py", "mcp_server/protocol.py"},
    "jsonschema": {"mcp_server/tools.py"},
    "click": {f"cli/{path.name}" for path in (PACKAGE / "cli").glob("*.py")},
}


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """The imports, calls and conditions in a file: the same for all tests of the file."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.If)
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return tuple(node for node in nodes if isinstance(node, kinds))


@cache
def _imports(path: Path, *, for_types: bool = True) -> frozenset[str]:
    """Full names imported anywhere in a file, those of ``if TYPE_CHECKING`` only ``for_types``."""
    names: set[str] = set()
    guarded = {
        inner
        for node in _nodes(path)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in _nodes(path):
        if node in guarded and not for_types:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(names)


#: The packages of analyses, which hold their public functions.
ANALYSES = {path.parent.name for path in PACKAGE.glob("analyzers/*/__init__.py")} - {"common"}


def _room(module: str) -> str | None:
    """The room of an imported name; that of the package itself is empty."""
    package, *rest = module.split(".")
    if package != "traceanalyzer":
        return None
    if rest[:1] == ["analyzers"]:
        if rest[1:2] in (["base"], ["registry"]):
            return "registry"
        if len(rest) == 3 and rest[1] in ANALYSES:
            path = PACKAGE / "analyzers" / rest[1] / f"{rest[2]}.py"
            return "analyzers" if path.exists() else "functions"
    return rest[0] if rest and (PACKAGE / rest[0]).with_suffix("").exists() else _top(rest)


def _top(rest: list[str]) -> str:
    return rest[0] if rest and (PACKAGE / f"{rest[0]}.py").exists() else ""


def _room_of_file(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    if parts in (("analyzers", "base.py"), ("analyzers", "registry.py")):
        return "registry"
    if parts[0] == "analyzers" and parts[-1] == "__init__.py" and parts[1] in ANALYSES:
        return "functions"
    return parts[0].removesuffix(".py")


def _allowed(path: Path) -> set[str]:
    """What a file may import; an analysis in one file is its compute and its function in one."""
    room = _room_of_file(path)
    in_one_file = room == "analyzers" and path.parent.name == "analyzers"
    return ALLOWED[room] | (ALLOWED["functions"] if in_one_file else set())


def _forbidden(path: Path) -> set[str]:
    """Rooms that a file imports and may not."""
    room = _room_of_file(path)
    typed, loaded = (
        {_room(module) for module in _imports(path, for_types=of)} - {None, room, ""}
        for of in (True, False)
    )
    return ((typed - FOR_TYPES.get(room, set())) | loaded) - _allowed(path)


def test_layers_import_one_way():
    forbidden = {_name(path): _forbidden(path) for path in FILES}
    assert {name: rooms for name, rooms in forbidden.items() if rooms} == {}


def test_table_has_no_cycle():
    left = dict(ALLOWED)
    while left:
        free = {room for room, needs in left.items() if not needs & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {room: needs for room, needs in left.items() if room not in free}


def test_table_is_complete():
    rooms = {_room_of_file(path) for path in FILES}
    assert rooms == ALLOWED.keys()


def test_libraries_are_imported_in_one_place():
    loaded = {
        (_name(path), module.partition(".")[0])
        for path in FILES
        for module in _imports(path, for_types=False)
    }
    assert {
        (name, library) for name, library in loaded if name not in ONLY.get(library, {name})
    } == (set())


def test_imports_by_string():
    names = {
        _name(path)
        for path in FILES
        for node in _nodes(path)
        if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func)
    }
    assert names - set(BY_STRING) == set()


def test_forbidden_import_is_detected(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def f():\n    from traceanalyzer.trace import Trace\n")
    assert {_room(module) for module in _imports(path)} == {"trace"}


def test_help_imports_nothing_heavy():
    """The first command of one process after which a library is loaded is named."""
    commands = ["--help", *all_commands()]
    code = (
        "import sys; from traceanalyzer.cli.main import status\n"
        "heavy = {'polars', 'numpy', 'matplotlib', 'pyarrow', 'rich', 'msgspec', 'orjson'}\n"
        f"for name in {commands!r}:\n"
        "    status([name, '--help'])\n"
        "    if loaded := heavy & set(sys.modules):\n"
        "        sys.exit(f'{name}: {sorted(loaded)}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: traceanalyzer") == len(commands)


def test_reading_a_database_does_not_import_the_writer():
    """Importing sqlite-utils takes a quarter of a second where pandas is installed."""
    export = PACKAGE.parent / "fixtures" / "nsys" / "training.sqlite"
    code = (
        "import sys; import traceanalyzer as ta\n"
        f"ta.kernels({str(export)!r})\n"
        "heavy = {'sqlite_utils', 'pandas'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [["diagnose"], ["report", "-o", "-"]])
def test_reading_traces_imports_no_drawing_and_no_database(command):
    traces = PACKAGE.parent / "fixtures" / "nccl_8ranks" / "rank5.json.gz"
    code = (
        "import sys; from traceanalyzer.cli.main import status\n"
        f"status([*{command!r}, {str(traces)!r}, '-q'])\n"
        "heavy = {'matplotlib', 'pandas', 'pyarrow', 'sqlite_utils', 'adbc_driver_manager'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 1000


def test_no_possessive_group() -> None:
    """``(...)*+`` and ``(?>...)`` match wrongly in Python 3.11.0 to 3.11.4."""
    possessive = re.compile(r"\)(?:[*+?]|\{[\d,]+\})\+|\(\?>")
    assert [path.name for path in FILES if possessive.search(path.read_text())] == []
