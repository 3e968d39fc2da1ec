"""One-way imports between the parts of the package, from the source."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from package_sources import FILES, PACKAGE, source_of

from traceanalyzer.analyzers import registry
from traceanalyzer.cli.commands import all_commands

#: Modules at the root that every room uses, and the tables of the house.
LOWEST = {"errors", "units", "vocabulary", "machine", "files"}
TABLES = {"schema", "trace", "drawings", "result"}
BASE = {"lowest", "tables"}
#: What each room may import besides itself, lowest first: no arrow points up.
ALLOWED: dict[str, set[str]] = {
    "lowest": set(),
    "tables": {"lowest"},
    "registry": BASE,
    "frames": set(),
    "parsers": {*BASE, "frames"},
    "exporters": {*BASE, "frames"},
    "render": BASE,
    "common": {*BASE, "registry", "frames"},
    "run": {*BASE, "registry", "parsers", "common"},
    # "run" for the public functions only
    "analyzers": {*BASE, "registry", "frames", "common", "run"},
    "findings": {*BASE, "registry", "frames", "common", "run", "analyzers"},
    "tools": {*BASE, "registry", "parsers", "exporters", "render", "common", "run", "analyzers",
              "findings"},
    "cli": {*BASE, "registry", "exporters", "render", "run", "analyzers", "findings", "tools"},
    "__init__": {"registry"},
    "__main__": {"cli"},
}  # fmt: skip
#: The one arrow that points up: a trace has the functions of the registry as methods.
METHODS = ("trace.py", "registry")
#: Modules that say in a string what they import: a result draws itself in a notebook, a trace is
#: asked; the package, its functions, the exporters and the readers of formats load on demand.
BY_STRING = {
    *("result.py", "analyzers/methods.py", "parsers/contract.py"),
    *("__init__.py", "exporters/__init__.py", "analyzers/registry.py"),
    "cli/commands.py",
}
#: Libraries that only these may load.
ONLY = {
    "matplotlib": {"render/plot.py"},
    "pandas": {"render/data.py"},
    "sqlite_utils": {"exporters/sqlite.py", "render/data.py"},
    "tabulate": {"render/table.py"},
    "rich": {"cli/answering.py"},
    "mcp": {"cli/files.py", "tools/mcp/protocol.py"},
    "jsonschema": {"tools/mcp/tools.py"},
    "click": {f"cli/{path.name}" for path in (PACKAGE / "cli").glob("*.py")},
}


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


#: Modules of the registry, which are in the folder of the analyzers.
REGISTRY = {"base", "registry", "methods"}
#: Reads the ends of files instead of measuring a trace.
READS = "analyzers/info/quick.py"


def _room(parts: tuple[str, ...]) -> str:
    """The room of a module by its path in the package; ``package`` for the package itself."""
    match parts:
        case ():
            return "package"
        case ("analyzers", "common", *_):
            return "common"
        case ("analyzers", *names):
            if not names or names[0] in REGISTRY:
                return "registry"
            return "analyzers"
        case ("reading",):
            return "run"  # its import path for other packages
        case (name, *_):
            return "lowest" if name in LOWEST else "tables" if name in TABLES else name


MODULES = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in FILES}
COMPILED = {path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("_*.c")}


def _room_of_import(name: str) -> str | None:
    """The room of an imported name; None for other packages."""
    package, *rest = name.split(".")
    if package != "traceanalyzer":
        return None
    parts = tuple(rest)
    if parts in COMPILED:
        return _room(parts)
    while parts and parts not in MODULES and (*parts, "__init__") not in MODULES:
        parts = parts[:-1]
    return _room(parts)


def _room_of_file(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts == ("__init__",):
        return "__init__"
    return _room(parts[:-1] if parts[-1] == "__init__" else parts)


def _allowed(path: Path) -> set[str]:
    """What a file may import: modules of analyses without a public function do not run anything."""
    room = _room_of_file(path)
    allowed = ALLOWED[room]
    if room == "analyzers":
        functions = set(registry.NAMES.values())
        module = ".".join(("traceanalyzer", *path.relative_to(PACKAGE).with_suffix("").parts))
        allowed = allowed if module in functions else allowed - {"run"}
    return {
        *allowed,
        *([METHODS[1]] if _name(path) == METHODS[0] else []),
        *(["parsers"] if _name(path) == READS else []),
    }


def test_layers_import_one_way():
    wrong = [
        f"{_name(path)} may not import {', '.join(sorted(further))}"
        for path in FILES
        if (
            further := {_room_of_import(module) for module in source_of(path).imports}
            - {None, "package", _room_of_file(path)}
            - _allowed(path)
        )
    ]
    assert not wrong, "\n".join(wrong)


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
        for module in source_of(path).at_run_time
    }
    assert {
        (name, library) for name, library in loaded if name not in ONLY.get(library, {name})
    } == (set())


def test_imports_by_string():
    names = {_name(path) for path in FILES if "import_module(" in path.read_text(encoding="utf-8")}
    assert names - set(BY_STRING) == set()


def test_forbidden_import_is_detected(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def f():\n    from traceanalyzer.trace import Trace\n")
    assert {_room_of_import(module) for module in source_of(path).imports} == {"tables"}


def test_help_imports_nothing_heavy():
    """The first command of one process after which a library is loaded is named."""
    in_one_file = {entry.command for entry in registry.ENTRIES.values() if entry.one_file}
    commands = ["--help", *(name for name in all_commands() if name not in in_one_file)]
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


@pytest.mark.sample(2)
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
