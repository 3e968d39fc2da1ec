"""Documentation: generated pages, links, commands, options and names."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import click
import pytest
from conftest import run_cli, run_program

import traceanalyzer
from traceanalyzer.cli.commands import all_commands
from traceanalyzer.cli.main import cli
from traceanalyzer.parsers.chrome_trace import reader
from traceanalyzer.parsers.registry import formats

COMMANDS = all_commands()

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("fixtures/*.md"),
        *ROOT.glob("notebooks/*.md"),
    ]
)
README = (ROOT / "README.md").read_text()
CHROME = (ROOT / "docs" / "chrome-trace-damage.md").read_text()

#: Commands with their output: ``$ traceanalyzer ...``; a last line ``...`` stands for more output.
BLOCK = re.compile(r"^```console\n\$ (traceanalyzer .*)\n((?s:.*?))^```$", re.MULTILINE)
PAGES_WITH_OUTPUT = [page for page in PAGES if BLOCK.search(page.read_text())]
#: The first example of each command, which ``make test-all`` runs as a process of its own.
FIRST = {
    line.split()[1]: line
    for page in reversed(PAGES_WITH_OUTPUT)
    for line, _ in reversed(BLOCK.findall(page.read_text()))
}


#: Options of the programs that write traces: clang, py-spy, docker.
OTHERS = {
    *("-ftime-trace", "--pid", "--nolineno", "-t", "-n", "-f", "--subprocesses", "--native"),
    "--no-index",  # of pip
    *("--idle", "--threads", "--full-filenames", "--nonblocking", "--duration"),
    *("--seed", "--seeds", "--only", "--findings", "--write", "--keep"),  # of make accuracy
}


def _python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n((?s:.*?))^```$", page.read_text(), re.MULTILINE)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "script",
    [
        "make_schema.py",
        "make_commands.py",
        "make_man.py",
        "make_python.py",
        "make_rules.py",
        "make_glossary.py",
    ],
)
def test_generated_pages_are_current(script: str) -> None:
    names = runpy.run_path(str(ROOT / "docs" / script))
    pages = names["pages"]() if "pages" in names else {names["PAGE"]: names["page"]()}
    for path, text in pages.items():
        assert path.read_text() == text, "run: make docs"
    assert f"docs/{script}" in (ROOT / "Makefile").read_text()
    if len(pages) > 1:
        former = {*(ROOT / "docs").glob(f"{names['PAGE'].stem}-*.md")} - pages.keys()
        assert former == set(), "run: make docs"


PUBLIC = [
    name
    for name in traceanalyzer.__all__
    if not isinstance(thing := getattr(traceanalyzer, name), type)
    or not issubclass(thing, Exception)
]


@pytest.mark.parametrize(
    ("script", "entries"), [("make_commands.py", COMMANDS), ("make_python.py", PUBLIC)]
)
def test_reference_has_every_entry_once_on_the_page_of_its_group(
    script: str, entries: Iterable[str]
) -> None:
    names = runpy.run_path(str(ROOT / "docs" / script))
    pages = names["pages"]()
    stem = names["PAGE"].stem
    slugs = [group.lower().replace(" ", "-") for group in names["GROUPS"]]
    assert {path.name for path in pages} >= {f"{stem}-{slug}.md" for slug in slugs}
    titles = re.findall(r"^##+ `([\w-]+)`$", "".join(pages.values()), re.MULTILINE)
    assert sorted(titles) == sorted(entries)


def test_stubs_are_current() -> None:
    names = runpy.run_path(str(ROOT / "docs" / "make_stubs.py"))
    for name, text in (("__init__", names["names"]()), ("analyzers/methods", names["methods"]())):
        assert (ROOT / "traceanalyzer" / f"{name}.pyi").read_text() == text, "run: make docs"


#: Generated reference: a page for each group.
REFERENCE = re.compile(r"(commands|python)-[\w-]+\.md")


def test_pages_are_short() -> None:
    pages = [page for page in PAGES if page.parent.name == "docs"]
    written = [page for page in pages if not REFERENCE.fullmatch(page.name)]
    assert [page.name for page in written if page.stat().st_size > 20_000] == []


def test_links_have_targets() -> None:
    links = [
        (page, link.partition("#")[0])
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if "://" not in link
    ]
    missing = [(page_id(page), file) for page, file in links if not (page.parent / file).exists()]
    assert missing == []


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors of the titles of a page, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def test_links_to_titles_have_targets() -> None:
    links = [
        (page, (page.parent / file if file else page).resolve(), anchor)
        for page in PAGES
        for file, anchor in re.findall(r"\]\(([^)\s:]*)#([^)\s]+)\)", page.read_text())
    ]
    pages = [link for link in links if link[1].suffix == ".md"]
    missing = [(page_id(page), anchor) for page, at, anchor in pages if anchor not in _anchors(at)]
    assert missing == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = {
        (page_id(page), target)
        for page in PAGES
        for target in re.findall(r"(?:`|^ {4})make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert {(page, target) for page, target in used if target not in targets} == set()


def test_architecture_lists_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "traceanalyzer"
    rooms = [f"`{path.parent.name}/`" for path in package.glob("*/__init__.py")]
    rooms += [f"`{path.name}`" for path in package.glob("*.py") if not path.name.startswith("__")]
    assert [room for room in rooms if room not in page] == []
    assert len(page) <= 12_000


def test_architecture_names_existing_files() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*/?(?:\.py)?)`", page)
    paths = [name for name in named if "/" in name]
    places = (ROOT / "traceanalyzer", ROOT)
    assert [one for one in paths if not any((place / one).exists() for place in places)] == []


def test_malformed_fixtures_are_described() -> None:
    described = set(re.findall(r"`(\w+\.json(?:\.gz)?)`", CHROME))
    assert described == {path.name for path in (ROOT / "fixtures" / "malformed").iterdir()}


def test_fixture_folders_are_described() -> None:
    page = (ROOT / "fixtures" / "README.md").read_text()
    paths = [path for path in (ROOT / "fixtures").glob("[a-z]*") if path.is_dir()]
    assert [path.name for path in paths if f"`{path.name}/`" not in page] == []


# --- commands --------------------------------------------------------------------------------


def test_pages_contain_command_output() -> None:
    assert len(BLOCK.findall(README)) >= 3
    assert len(PAGES_WITH_OUTPUT) >= 10


def test_command_blocks_are_tested() -> None:
    texts = {page_id(page): page.read_text() for page in PAGES}
    wrong = [page for page, text in texts.items() if text.count("\n$ ") != len(BLOCK.findall(text))]
    assert wrong == []


def _current_output(command: str, output: str, folder: Path, *, apart: bool) -> str:
    """Return the current output; if the block ends in ``...``, as many lines as the block has."""
    run = run_program if apart and command in FIRST.values() else run_cli
    done = run(*shlex.split(command)[1:], cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    if not output.endswith("...\n"):
        return done.stdout
    lines = done.stdout.splitlines(keepends=True)
    return "".join([*lines[: output.count("\n") - 1], "...\n"])


@pytest.mark.sample(3)
@pytest.mark.parametrize("page", PAGES_WITH_OUTPUT, ids=page_id)
def test_command_output_is_current(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, thorough: bool
) -> None:
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    text = page.read_text()
    for command, output in BLOCK.findall(text):
        current = _current_output(command, output, tmp_path, apart=thorough)
        text = text.replace(f"$ {command}\n{output}```", f"$ {command}\n{current}```")
    if request.config.getoption("--bless"):
        page.write_text(text)
    else:
        assert text == page.read_text(), "if the new output is right: make bless, review the diff"


def _command_lines(page: Path) -> list[str]:
    """Return all traceanalyzer commands of a page, in blocks and in code spans."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"^(?:\$ | {4})(traceanalyzer .*)$", text, re.MULTILINE)
    return blocks + re.findall(r"`(traceanalyzer [^`]*)`", text)


def _options(command: click.Command) -> set[str]:
    parts = command.commands.values() if isinstance(command, click.Group) else ()
    names = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    return {"--help", "-h"} | names.union(*map(_options, parts))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in _command_lines(page):
        parts = shlex.split(line.partition("|")[0])[1:]
        if parts[0].startswith("-") or parts[0] == "COMMAND":
            known = _options(cli)
        elif parts[0] == "PATH..." or parts[0].endswith("/"):
            known = _options(COMMANDS["diagnose"])
        else:
            if parts[0] == "jitter":  # the example plugin, which has its own test
                continue
            assert parts[0] in COMMANDS, line
            known = _options(COMMANDS[parts[0]])
        used = {part for part in parts if re.fullmatch(r"--?[a-z][a-z-]*", part)}
        assert used <= known, line


def test_options_in_text_exist() -> None:
    known = set[str]().union(*map(_options, [cli, *COMMANDS.values()])) | OTHERS
    unknown = {}
    for page in PAGES:
        used = set(re.findall(r"`(--?[a-z][a-z-]*)(?: [^`]*)?`", page.read_text()))
        unknown[page_id(page)] = used - known
    assert {page: options for page, options in unknown.items() if options} == {}


def test_commands_and_options_are_documented() -> None:
    questions, shared = (
        (ROOT / "docs" / f"{name}.md").read_text() for name in ("questions", "options")
    )
    assert [name for name in COMMANDS if f"`traceanalyzer {name}" not in questions] == []
    for name, command in COMMANDS.items():
        page = ROOT / "docs" / f"{name}.md"
        text = shared + (page.read_text() if page.exists() else "")
        options = {option for option in _options(command) if option.startswith("--")}
        missing = {option for option in options if f"`{option}" not in text}
        assert missing <= {"--help", "--output"}, f"{name}: -o stands for --output"


def test_every_input_format_is_documented() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    row = next(line for line in page.splitlines() if "`--input-format" in line)
    listed = set(re.findall(r"`([a-z-]+)`", row.split("|")[3]))
    assert listed == {one.name for one in formats()} - {"nsys-rep"}  # only named in errors


def test_commands_have_definitions() -> None:
    page = (ROOT / "docs" / "definitions.md").read_text()
    rows = re.findall(r"^\| \[`([a-z-]+)`\]\(([a-z-]+)\.md\) \|", page, re.MULTILINE)
    numbers = [name for name in COMMANDS if name != "demo"]
    assert [name for name in numbers if (name, name) not in rows] == []


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_examples_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    blocks = _python_blocks(ROOT / page)
    first = next(n for n, block in enumerate(blocks) if block.startswith("import traceanalyzer"))
    names: dict[str, object] = {}
    for block in blocks[first:]:  # the first blocks record with PyTorch
        for statement in ast.parse(block).body:
            exec(compile(ast.Module([statement], []), page, "exec"), names)  # noqa: S102
    results = [value for value in names.values() if isinstance(value, traceanalyzer.Result)]
    assert isinstance(results[-1], traceanalyzer.CommOutliers)


def test_python_blocks_compile() -> None:
    for page in PAGES:
        for block in _python_blocks(page):
            compile(block, page.name, "exec")


@pytest.mark.parametrize(
    ("picture", "page", "script"),
    [
        ("report.png", "README.md", "docs/make_screenshot.py"),
        ("report.png", "docs/index.md", "docs/make_screenshot.py"),
        ("comm_outliers.png", "docs/comm-outliers.md", "Makefile"),
        *(
            (f"gallery_{name}", "docs/gallery.md", "docs/make_screenshot.py")
            for name in (
                *("diagnose.svg", "diff.svg"),
                *("timeline.png", "memory.png", "flamegraph.png"),
            )
        ),
    ],
)
def test_picture_is_small_and_written_by_a_script(picture: str, page: str, script: str) -> None:
    assert f"images/{picture})" in (ROOT / page).read_text()
    assert picture in (ROOT / script).read_text()
    assert script == "Makefile" or script in (ROOT / "Makefile").read_text()
    content = (ROOT / "docs" / "images" / picture).read_bytes()
    assert 10_000 < len(content) < 200_000
    assert b"@font-face" not in content  # loads nothing from elsewhere


def test_readme_is_short() -> None:
    assert len(README.encode()) <= 8_000
    first = README[: README.index("\n## ")]
    assert first.count("\n") <= 30
    places = [
        first.index(text)
        for text in ("images/report.png", "make demo", "make test", "pip install .")
    ]
    assert places == sorted(places)


#: Comparisons of docs/comparison.md: another tool, our command, and their input.
COMPARED = (
    ("HTA", "comm-outliers", "gen200.json"),
    ("pandas", "kernels", "nsys6000000.sqlite"),
    ("itwinai", "py-spy-report", "stacks300.txt"),
    ("flamegraph.pl", "flamegraph", "stacks300.txt"),
    ("trace_plot", "memory page", "snapshot1000000.pickle"),
)


def _speeds() -> str:
    """Return the table of the comparison, from the results of `make bench`."""
    page = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row] for row in rows]
    measured = {(row[0], row[1]): (row[2], row[6]) for row in cells if len(row) == 8}
    lines = ["| input | peer | s | MB | ours | s | MB |", "|---|---|--:|--:|---|--:|--:|"]
    for peer, ours, name in COMPARED:
        theirs, mine = measured[peer, f"`{name}`"], measured[ours, f"`{name}`"]
        lines.append(
            f"| `{name}` | {peer} | {theirs[0]} | {theirs[1]} | `{ours}` | {mine[0]} | {mine[1]} |"
        )
    return "\n".join(["<!-- begin: speed -->", "", *lines, "", "<!-- end: speed -->"])


def test_speeds_of_the_comparison_are_current(request: pytest.FixtureRequest) -> None:
    path = ROOT / "docs" / "comparison.md"
    text = path.read_text()
    marked = re.compile(r"<!-- begin: speed -->.*<!-- end: speed -->", re.DOTALL)
    if request.config.getoption("--bless"):
        path.write_text(marked.sub(_speeds(), text))
    else:
        assert marked.findall(text) == [_speeds()], "if speeds were measured again: make bless"


# --- documentation of the code ----------------------------------------------------------------


def _table(page: str, title: str) -> list[list[str]]:
    """Return the rows of the table below a title, without its header."""
    below = page.split(f"## {title}\n", 1)[1].split("\n#", 1)[0]
    rows = [line for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_issues_are_described_with_their_severity() -> None:
    source = "".join(
        path.read_text() for path in (ROOT / "traceanalyzer/parsers/chrome_trace").glob("*.py")
    )
    calls = r'(?:lose|note|count|faults\.add|"notice",)\(?\s*f?"([a-z0-9-]+)'
    others = r'counts\["([a-z0-9-]+)"\]|code = "([a-z-]+)" if .* else "([a-z-]+)"'
    codes = set(re.findall(calls, source)) | {c for m in re.findall(others, source) for c in m if c}
    described = {row[0].strip("`").removesuffix("…"): row[1] for row in _table(CHROME, "Issues")}
    assert described == {code: reader._severity(code) for code in codes}


def _malformed() -> list[tuple[str, str]]:
    rows = re.findall(r"^\| (`\w+\.json.*?) \|.*\|([^|]*)\|$", CHROME, re.MULTILINE)
    return [(name, issues) for names, issues in rows for name in re.findall(r"`([\w.]+)`", names)]


@pytest.mark.parametrize(("name", "issues"), _malformed(), ids=[name for name, _ in _malformed()])
def test_malformed_fixtures_have_the_described_issues(name: str, issues: str) -> None:
    path = ROOT / "fixtures" / "malformed" / name
    if issues.strip() == "refused":
        with pytest.raises(traceanalyzer.InputError):
            traceanalyzer.read(path)
    else:
        codes = traceanalyzer.read(path).issues["code"].to_list()
        assert codes == re.findall(r"`([^`]+)`", issues)
