"""The documentation says what is so: derived pages, links, and the names of things."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from pathlib import Path

import click
import pytest
from conftest import run_cli
from test_imports import ALLOWED, BASE

import traceanalyzer
from traceanalyzer.cli.commands import all_commands
from traceanalyzer.cli.main import cli
from traceanalyzer.parsers.chrome_trace import reader

COMMANDS = all_commands()

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("fixtures/*.md"),
        *ROOT.glob("notebooks/*.md"),
    ]
)
README = (ROOT / "README.md").read_text()
CHROME = (ROOT / "docs" / "chrome-trace.md").read_text()

#: Commands shown with what they print: ``$ traceanalyzer ...``; a last line ``...`` means more.
SHOWN = re.compile(r"^```console\n\$ (traceanalyzer .*)\n((?s:.*?))^```$", re.MULTILINE)
SHOWING = [page for page in PAGES if SHOWN.search(page.read_text())]


#: Options of the programs that write traces: clang, py-spy, docker.
OTHERS = {
    *("-ftime-trace", "--pid", "--nolineno", "-t", "-n", "-f", "--subprocesses", "--native"),
    *("--idle", "--threads", "--full-filenames", "--nonblocking", "--duration"),
    *("--seed", "--seeds", "--only", "--findings", "--write", "--keep"),  # of make accuracy
}


def _python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n((?s:.*?))^```$", page.read_text(), re.MULTILINE)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "script",
    ["make_schema.py", "make_commands.py", "make_python.py", "make_rules.py", "make_glossary.py"],
)
def test_derived_pages_are_current(script: str) -> None:
    made = runpy.run_path(str(ROOT / "docs" / script))
    assert made["PAGE"].read_text() == made["page"](), "run: make docs"
    assert f"docs/{script}" in (ROOT / "Makefile").read_text()


def test_what_type_checkers_read_is_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "make_stubs.py"))
    for name, text in (("__init__", made["names"]()), ("questions", made["methods"]())):
        assert (ROOT / "traceanalyzer" / f"{name}.pyi").read_text() == text, "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    files = [link.partition("#")[0] for link in links if "://" not in link]
    assert [file for file in files if not (page.parent / file).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = set(re.findall(r"(?:`|^ {4})make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert used <= targets


def test_architecture_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "traceanalyzer"
    rooms = [f"`{path.parent.name}/`" for path in package.glob("*/__init__.py")]
    rooms += [f"`{path.name}`" for path in package.glob("*.py") if not path.name.startswith("__")]
    assert [room for room in rooms if room not in page] == []


def test_every_malformed_fixture_is_described() -> None:
    described = set(
        re.findall(r"`(\w+\.json(?:\.gz)?)`", (ROOT / "docs/chrome-trace.md").read_text())
    )
    assert described == {path.name for path in (ROOT / "fixtures" / "malformed").iterdir()}


def test_every_fixture_folder_is_described() -> None:
    page = (ROOT / "fixtures" / "README.md").read_text()
    paths = [path for path in (ROOT / "fixtures").glob("[a-z]*") if path.is_dir()]
    assert [path.name for path in paths if f"`{path.name}/`" not in page] == []


# --- commands --------------------------------------------------------------------------------


def test_there_is_output_to_hold() -> None:
    assert len(SHOWN.findall(README)) >= 3
    assert len(SHOWING) >= 10


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_shown_command_is_in_a_block_that_is_run(page: Path) -> None:
    text = page.read_text()
    assert text.count("\n$ ") == len(SHOWN.findall(text))


def _real(command: str, shown: str, folder: Path) -> str:
    """What the command prints now; as many lines as are shown where the block ends in ``...``."""
    done = run_cli(*shlex.split(command)[1:], cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    if not shown.endswith("...\n"):
        return done.stdout
    lines = done.stdout.splitlines(keepends=True)
    return "".join([*lines[: shown.count("\n") - 1], "...\n"])


@pytest.mark.parametrize("page", SHOWING, ids=page_id)
def test_shown_output_is_real(page: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    text = page.read_text()
    for command, shown in SHOWN.findall(text):
        real = _real(command, shown, tmp_path)
        text = text.replace(f"$ {command}\n{shown}```", f"$ {command}\n{real}```")
    if request.config.getoption("--bless"):
        page.write_text(text)
    else:
        assert text == page.read_text(), "if the new output is right: make bless, read the diff"


def _command_lines(page: Path) -> list[str]:
    """Everything on a page that calls traceanalyzer: in blocks and in code spans."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^(?:\$ | {4})(traceanalyzer .*)$", text, re.MULTILINE)
    return blocks + re.findall(r"`(traceanalyzer [^`]*)`", text)


def _options(command: click.Command) -> set[str]:
    return {"--help", "-h"} | {name for option in command.params for name in option.opts}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in _command_lines(page):
        words = line.partition("|")[0].split()[1:]
        if words[0].startswith("-") or words[0] == "COMMAND":
            known = _options(cli)
        else:
            if words[0] == "jitter":  # that of the example, which its own test runs
                continue
            assert words[0] in COMMANDS, line
            known = _options(COMMANDS[words[0]])
        used = {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)}
        assert used <= known, line


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_alone_exist(page: Path) -> None:
    known = set[str]().union(*map(_options, COMMANDS.values()))
    used = re.findall(r"`(--?[a-z][a-z-]*)(?: [^`]*)?`", page.read_text())
    assert set(used) - known <= OTHERS, "an option that nothing here has"


def test_every_command_is_in_the_readme_and_every_option_on_its_page() -> None:
    assert [name for name in COMMANDS if f"`traceanalyzer {name} " not in README] == []
    for name, command in COMMANDS.items():
        page = ROOT / "docs" / f"{name}.md"
        text = README + (page.read_text() if page.exists() else "")
        options = {option for option in _options(command) if option.startswith("--")}
        missing = {option for option in options if f"`{option}" not in text}
        assert missing <= {"--help", "--output"}, f"{name}: -o stands for --output"


def test_every_command_has_a_definition_and_a_page() -> None:
    page = (ROOT / "docs" / "definitions.md").read_text()
    rows = re.findall(r"^\| \[`([a-z-]+)`\]\(([a-z-]+)\.md\) \|", page, re.MULTILINE)
    assert [name for name in COMMANDS if (name, name) not in rows] == []


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_examples_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    blocks = _python_blocks(ROOT / page)
    first = next(n for n, block in enumerate(blocks) if block.startswith("import traceanalyzer"))
    names: dict[str, object] = {}
    for block in blocks[first:]:  # those above record, with PyTorch
        for statement in ast.parse(block).body:
            exec(compile(ast.Module([statement], []), page, "exec"), names)  # noqa: S102
    results = [value for value in names.values() if isinstance(value, traceanalyzer.Result)]
    assert isinstance(results[-1], traceanalyzer.CommOutliers)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_python_in_blocks_compiles(page: Path) -> None:
    for block in _python_blocks(page):
        compile(block, page.name, "exec")


def test_picture_is_small_and_regenerated() -> None:
    picture = "docs/images/comm_outliers.png"
    assert f"({picture})" in README
    assert picture in (ROOT / "Makefile").read_text()
    assert 10_000 < (ROOT / picture).stat().st_size < 150_000


#: What is compared on docs/comparison.md: a peer, the command beside it, the input of both.
BESIDE = (
    ("HTA", "comm-outliers", "gen200.json"),
    ("pandas", "kernels", "nsys6000000.sqlite"),
    ("itwinai", "py-spy-report", "stacks300.txt"),
    ("flamegraph.pl", "flamegraph", "stacks300.txt"),
    ("trace_plot", "memory page", "snapshot1000000.pickle"),
)


def _speeds() -> str:
    """The table of the comparison, from what `make bench` wrote."""
    page = (ROOT / "docs" / "performance.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    found = {(row[0], row[1]): (row[2], row[6]) for row in cells if len(row) == 8}
    lines = ["| input | peer | s | MB | ours | s | MB |", "|---|---|--:|--:|---|--:|--:|"]
    for peer, ours, name in BESIDE:
        theirs, mine = found[peer, f"`{name}`"], found[ours, f"`{name}`"]
        lines.append(
            f"| `{name}` | {peer} | {theirs[0]} | {theirs[1]} | `{ours}` | {mine[0]} | {mine[1]} |"
        )
    return "\n".join(["<!-- begin: speed -->", "", *lines, "", "<!-- end: speed -->"])


def test_compared_speeds_are_those_measured(request: pytest.FixtureRequest) -> None:
    path = ROOT / "docs" / "comparison.md"
    text = path.read_text()
    marked = re.compile(r"<!-- begin: speed -->.*<!-- end: speed -->", re.DOTALL)
    if request.config.getoption("--bless"):
        path.write_text(marked.sub(_speeds(), text))
    else:
        assert marked.findall(text) == [_speeds()], "measured again: make bless"


# --- what the code says ----------------------------------------------------------------------


def _table(page: str, title: str) -> list[list[str]]:
    """Rows of the table below a title, without its head."""
    below = page.split(f"## {title}\n", 1)[1].split("\n#", 1)[0]
    rows = [line for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


#: Rooms of the import test that are parts of a folder.
ROOMS = {
    "`analyzers/base.py`, `analyzers/registry.py`": ["registry"],
    "`analyzers/*/__init__.py`": ["functions"],
}


def test_import_table_is_that_of_the_test() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    described = {}
    for room, _, _, imports in _table(page, "Modules")[: page.count("\n| `")]:
        allowed = set(re.findall(r"`(\w+)`", imports)) | (BASE if "base" in imports else set())
        for name in ROOMS.get(room) or re.findall(r"`(\w+)(?:\.py|/)`", room):
            described[name] = allowed
    assert described == {k: v - {""} for k, v in ALLOWED.items() if not k.startswith("__")}


@pytest.mark.parametrize(
    ("title", "folder"),
    [
        ("The chrome parser", "parsers/chrome_trace"),
        ("Communication outliers", "analyzers/comm_outliers"),
    ],
)
def test_architecture_names_every_module(title: str, folder: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    part = page.split(f"### {title}\n")[1].split("\n#")[0]
    modules = {path.stem for path in (ROOT / "traceanalyzer" / folder).glob("*.py")} - {"__init__"}
    assert [name for name in sorted(modules) if f"`{name}`" not in part] == []


def test_every_finding_is_described_with_its_severity() -> None:
    source = "".join(
        path.read_text() for path in (ROOT / "traceanalyzer/parsers/chrome_trace").glob("*.py")
    )
    calls = r'(?:lose|note|count|faults\.add)\(\s*f?"([a-z0-9-]+)'
    others = r'counts\["([a-z0-9-]+)"\]|code = "([a-z-]+)" if .* else "([a-z-]+)"'
    found = set(re.findall(calls, source)) | {c for m in re.findall(others, source) for c in m if c}
    described = {row[0].strip("`").removesuffix("…"): row[1] for row in _table(CHROME, "Issues")}
    assert described == {code: reader._severity(code) for code in found}


def _malformed() -> list[tuple[str, str]]:
    rows = re.findall(r"^\| (`\w+\.json.*?) \|.*\|([^|]*)\|$", CHROME, re.MULTILINE)
    return [(name, said) for names, said in rows for name in re.findall(r"`([\w.]+)`", names)]


@pytest.mark.parametrize(("name", "said"), _malformed(), ids=[name for name, _ in _malformed()])
def test_malformed_fixtures_are_found_as_described(name: str, said: str) -> None:
    path = ROOT / "fixtures" / "malformed" / name
    if said.strip() == "refused":
        with pytest.raises(traceanalyzer.InputError):
            traceanalyzer.read(path)
    else:
        codes = traceanalyzer.read(path).issues["code"].to_list()
        assert codes == re.findall(r"`([^`]+)`", said)
