"""The one-way imports between the rooms, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "traceanalyzer"
FILES = sorted(PACKAGE.rglob("*.py"))

BASE = {"errors", "limits", "units", "vocabulary"}
#: What each room may import besides itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "units": {"errors"},
    "vocabulary": set(),
    "limits": set(),
    "sqlite_tools": set(),
    "schema": BASE,
    "files": {"errors"},
    "questions": set(),
    "trace": {"questions", "schema", *BASE},
    "result": {"schema", *BASE},
    "frames": set(),
    "parsers": {"frames", "trace", "schema", "sqlite_tools", *BASE},
    "exporters": {"frames", "trace", "schema", "sqlite_tools", *BASE},
    "analyzers": {"frames", "trace", "result", *BASE},
    "render": {"result", "sqlite_tools", "units", "errors"},
    "api": {"parsers", "analyzers", "exporters", "trace", "result", "schema", "files", *BASE},
    "cli": {"api", "files", "render", "parsers", "exporters", "result", "units", "errors"},
    "__main__": {"cli"},
    "__init__": {"api", "analyzers", "trace", "result", "errors"},
}
#: Modules that say in a string what they import: a result draws itself in a notebook, a trace is
#: asked; the package, its functions and the exporters load on demand.
BY_STRING = {
    *("result/base.py", "questions.py"),
    *("__init__.py", "api/__init__.py", "exporters/__init__.py"),
}
#: Rooms that a type checker, and nobody else, is shown.
FOR_TYPES = {"questions": {"api"}}
#: Libraries that only these may load.
ONLY = {
    "matplotlib": {"render/plot.py"},
    "pandas": {"render/pandas.py"},
    "sqlite_utils": {"sqlite_tools.py"},
    "tabulate": {"render/table.py"},
    "tqdm": {"cli/progress.py"},
    "click": {f"cli/{path.name}" for path in (PACKAGE / "cli").glob("*.py")},
}


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _imports(path: Path, *, for_types: bool = True) -> set[str]:
    """Full names imported anywhere in a file, those of ``if TYPE_CHECKING`` only ``for_types``."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in guarded and not for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def _room(module: str) -> str | None:
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "traceanalyzer" else None


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_rooms_import_one_way(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    typed, loaded = (
        {_room(module) for module in _imports(path, for_types=of)} - {None, own, ""}
        for of in (True, False)
    )
    further = (typed - FOR_TYPES.get(own, set())) | loaded
    assert further <= ALLOWED[own], f"{_name(path)} may not import {further - ALLOWED[own]}"


def test_the_table_has_no_circle():
    left = dict(ALLOWED)
    while left:
        free = {room for room, needs in left.items() if not needs & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {room: needs for room, needs in left.items() if room not in free}


def test_every_room_is_in_the_table():
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert rooms == ALLOWED.keys()


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_libraries_are_loaded_in_one_place(path):
    for module in _imports(path, for_types=False):
        library = module.partition(".")[0]
        assert _name(path) in ONLY.get(library, {_name(path)}), f"{_name(path)} loads {library}"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_by_string_are_few_and_known(path):
    calls = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and "import_module" in ast.dump(node.func)
    ]
    assert not calls or _name(path) in BY_STRING


def test_the_walk_sees_a_forbidden_import(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def f():\n    from traceanalyzer.trace import Trace\n")
    assert {_room(module) for module in _imports(path)} == {"trace"}


@pytest.mark.parametrize(
    "argument",
    [
        "--help",
        "gpu-idle",
        "steps",
        "overlap",
        "comm-outliers",
        "operators",
        "kernels",
        "annotations",
        "launches",
        "api",
        "transfers",
        "host-metrics",
        "diff",
        "flamegraph",
        "info",
        "convert",
    ],
)
def test_help_loads_nothing_heavy(argument):
    code = (
        "import sys; from traceanalyzer.cli.main import status\n"
        f"status([*{[argument]}, '--help'])\n"
        "heavy = {'polars', 'numpy', 'matplotlib', 'pyarrow', 'tqdm', 'msgspec', 'orjson'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: traceanalyzer" in done.stdout


@pytest.mark.parametrize("loaded_before", [False, True])
def test_sqlite_utils_is_loaded_without_pandas_and_for_us_alone(tmp_path, loaded_before):
    (tmp_path / "pandas.py").write_text("class Timestamp: pass\n", encoding="utf-8")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"{'import sqlite_utils' if loaded_before else ''}\n"
        "before = 'pandas' in sys.modules\n"
        "from traceanalyzer.sqlite_tools import sqlite_utils as ours\n"
        "assert ('pandas' in sys.modules) == before\n"
        "assert ours.Database(memory=True).table_names() == []\n"
        "import sqlite_utils\n"
        "assert sqlite_utils.db.pd is sys.modules['pandas']\n"
        f"assert (sqlite_utils is ours) == {loaded_before}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
