"""Promises of docs/security.md on the whole package, and existence of their tests."""

from __future__ import annotations

import re
from pathlib import Path

from package_sources import FILES, PACKAGE, source_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))

#: Modules that talk to other machines, or start programs.
REACHING = {
    *("socket", "ssl", "http", "urllib", "ftplib", "smtplib", "asyncio", "socketserver"),
    *("requests", "httpx", "aiohttp", "urllib3", "webbrowser", "xmlrpc"),
}
STARTING = {"subprocess", "multiprocessing", "pty", "shelve", "marshal", "dill", "cloudpickle"}
#: Calls that run what they are given, whatever they are called on; re.compile runs nothing.
RUNNING = {"eval", "exec", "compile", "system", "popen", "Unpickler", "load_extension"}
_FULL = re.compile(r"pickle\.loads?|__import__|yaml\.\w*load")


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _running(path: Path) -> set[str]:
    return {
        name
        for name in source_of(path).calls - {"re.compile"}
        if name.rpartition(".")[2] in RUNNING or _FULL.fullmatch(name)
    }


def _roots(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in source_of(path).at_run_time}


def test_package_runs_no_input() -> None:
    running = {_name(path): _running(path) | (_roots(path) & STARTING) for path in FILES}
    nsys = {"parsers/nsys_sqlite/__init__.py": {"subprocess"}}
    workers = {"run/workers.py": {"subprocess", "pickle.load"}}  # pickles of the program itself
    pager = {"cli/output.py": {"subprocess"}}
    assert {name: files for name, files in running.items() if files} == nsys | workers | pager


def test_package_has_no_network_access() -> None:
    reaching = {_name(path): _roots(path) & REACHING for path in FILES}
    # view listens on 127.0.0.1 and opens its own address; tests/tools/test_view.py has the rest
    view = {"tools/view.py": {"http"}, "cli/merge.py": {"webbrowser"}}
    assert {name: files for name, files in reaching.items() if files} == view


def test_forbidden_calls_are_detected(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import socket, re\nre.compile('')\npickle.loads(b'')\nos.system('')\neval('')")
    assert _running(path) == {"pickle.loads", "os.system", "eval"}
    assert _roots(path) & REACHING == {"socket"}


def test_promises_name_existing_tests() -> None:
    assert len(TESTS) > 25
    missing = [
        f"{file}::{name}"
        for file, name in TESTS
        if not re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert missing == []
    rows = [row for row in PAGE.splitlines() if row.startswith("| ")]
    bare = [row for row in rows if "::" not in row and not row.endswith("| test |")]
    assert bare == []
