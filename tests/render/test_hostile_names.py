"""Every command in every output format on files whose names are attacks.

Commands and formats are taken from the program, so that new ones are tested automatically.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import sqlite3
import xml.etree.ElementTree as ET
from contextlib import closing
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import click
import polars as pl
import pytest
from browser import cleared, complaints
from hostile_traces import INPUTS, POISON
from processes import in_terminal
from test_markdown import assert_inert

import traceanalyzer as ta
from traceanalyzer.cli import analyses, answering, job
from traceanalyzer.cli.commands import all_commands
from traceanalyzer.cli.main import status
from traceanalyzer.exporters import SUFFIXES

ALL = all_commands()

#: The others write files for other programs, serve them, or compare several runs.
FOR_OTHERS = {"baseline", "convert", "demo", "mcp", "merge", "scaling", "summarize", "view"}
#: Modules with commands that analyze, see ``_analyzed``.
ANALYZING = (analyses, answering, job)
_analyze = answering.analyze
ANSWERING = sorted(set(ALL) - FOR_OTHERS - {"gate"})  # gate: tests/tools/test_budgets.py

#: Whose answers are numbers of ranks and devices.
NAMELESS = ("overlap", "steps", "what-if")
_OF_STACKS = ("flamegraph", "py-spy-report")
#: Whose pages have each kind of drawing, opened in every run of the tests.
PAGES_OPENED = ("comm-outliers", "diff", "flamegraph", "memory", "report", "timeline")

#: What a terminal obeys, what turns the direction of text, what cannot be seen.
COMMANDS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
ELEMENTS = {
    *("html", "head", "meta", "link", "title", "style", "script", "body", "main", "header", "nav"),
    *("section", "article", "aside", "footer", "h1", "h2", "h3", "h4", "p", "div", "span", "table"),
    *("caption", "thead", "tbody", "tr", "th", "td", "ul", "ol", "li", "dl", "dt", "dd", "figure"),
    *("figcaption", "details", "summary", "pre", "code", "a", "b", "strong", "em", "small", "br"),
    *("button", "input", "label", "select", "option", "noscript", "canvas", "hr", "abbr", "time"),
}
DRAWN = {
    *("svg", "g", "path", "defs", "use", "text", "tspan", "rect", "circle", "line", "polyline"),
    *("clippath", "image", "metadata", "title", "desc", "pattern", "style", "script", "polygon"),
    *(
        "rdf",
        "work",
        "type",
        "format",
        "rdf:rdf",
        "cc:work",
        "dc:type",
        "dc:format",
        "lineargradient",
    ),
    *("stop", "foreignobject"),
}
LINKS = ("href", "src", "xlink:href", "action", "formaction", "data", "poster", "srcset")


@cache
def _inputs() -> dict[str, Path]:
    folder = Path(mkdtemp(prefix="hostile-"))
    return {name: make(folder) for name, make in INPUTS.items()}


def _run(command: str, given: str, form: str, out: Path, *more: str) -> int:
    """The exit status of a command on a hostile input, its answer in a file."""
    parameters = ALL[command].params
    arguments = [one for one in parameters if isinstance(one, click.Argument)]
    needed = [one for one in arguments if one.required or command == "py-spy-report"]
    paths = [str(_inputs()[given])] * len(needed)
    if command == "query":
        paths = [paths[0], "select * from events"]
    chosen = ["--to", form] if any("--to" in one.opts for one in parameters) else []
    quiet = ["--force", "-o", str(out)]
    with pytest.MonkeyPatch.context() as patch:
        for module in ANALYZING:
            patch.setattr(module, "analyze", partial(_analyzed, command, given))
        return status([command, *paths, *chosen, *quiet, *more])


_results: dict[tuple[str, str], Any] = {}


def _analyzed(command: str, given: str, *args: Any, **options: Any) -> Any:
    """The result of an input, analyzed the first time only: all its forms are of one result."""
    if (command, given) not in _results:
        _results[command, given] = _analyze(*args, **options)
    return _results[command, given]


def _forms(command: str) -> tuple[str, ...]:
    to = next((one.type for one in ALL[command].params if "--to" in one.opts), None)
    return tuple(to.choices) if isinstance(to, click.Choice) else ("html",)


# --- what makes a form inert -----------------------------------------------------------------


def _plain_text(data: bytes) -> None:
    assert not COMMANDS.search(data.decode())


def _markdown(data: bytes) -> None:
    _plain_text(data)
    assert_inert(data.decode())


def _csv(data: bytes) -> None:
    rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    assert rows
    assert {len(row) for row in rows} == {len(rows[0])}
    for cell in (cell for row in rows for cell in row):
        assert re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", cell) or not re.match(r"[=+\-@\t\r\n]", cell)


def _json(data: bytes) -> None:
    json.loads(data, parse_constant=pytest.fail)


def _sqlite(data: bytes) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(data)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    assert names
    assert not any("alert" in name or "cmd" in name for name in names)


def _png(data: bytes) -> None:
    assert data.startswith(b"\x89PNG")
    assert b"alert" not in data
    assert b"owned" not in data


class _Page(HTMLParser):
    """Holds every element to the lists above, and collects scripts and policies."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.policies: list[str] = []
        self.inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS | DRAWN, tag
        given = dict(attrs)
        for name, value in attrs:
            assert re.fullmatch(r"[a-zA-Z][\w:.-]*", name), name
            assert not name.startswith("on"), name
            assert name != "srcdoc"
            if name in LINKS:
                assert re.match(r"#|data:(image/png;|,)", value or ""), value
            if name == "style":
                assert not re.search(r"url\((?!#)|expression|@import|javascript", value or "")
        if tag == "script":
            self.inside = True
            self.scripts.append((given, ""))
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(given["content"] or "")

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.inside:
            given, text = self.scripts[-1]
            self.scripts[-1] = (given, text + data)

    def handle_comment(self, data: str) -> None:
        pytest.fail(f"a comment: {data[:80]}")


def _html(data: bytes) -> None:
    text = data.decode()
    assert not COMMANDS.search(text.replace("\r", ""))
    page = _Page(text)
    (policy,) = page.policies
    assert policy.startswith("default-src 'none'")
    for given, script in page.scripts:
        if given.get("type") == "application/json":
            assert "<" not in script
            json.loads(script)
        else:
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert not given
            assert f"'sha256-{digest}'" in policy
            assert "alert(1)" not in script


def _svg(data: bytes) -> None:
    text = data.decode()
    assert not COMMANDS.search(text)
    for element in ET.fromstring(text).iter():  # noqa: S314 - our own
        assert isinstance(element.tag, str)
        tag = element.tag.rpartition("}")[2].lower()
        assert tag in DRAWN, tag
        for name, value in element.attrib.items():
            bare = name.rpartition("}")[2].lower()
            assert not bare.startswith("on"), name
            if bare in LINKS:
                assert re.match(r"#|data:image/png;", value), value
        if tag == "script":
            assert "alert(1)" not in (element.text or "")


PICTURES = ("svg", "png")
#: Charts, timelines, occupancies and flame graphs; the others are drawn as SVG only.
DRAWN_AS_PNG = ("comm-outliers", "timeline", "memory", "flamegraph")
INERT = {
    "table": _plain_text,
    "md": _markdown,
    "csv": _csv,
    "json": _json,
    "sqlite": _sqlite,
    "html": _html,
    "svg": _svg,
    "png": _png,
}


# --- every command in every form -------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", ANSWERING)
def test_names_are_inert_in_every_format(command, tmp_path, capfd, thorough):
    """The first usable hostile file is rendered in all formats, the others in two.

    Each command starts with another file. Unless thorough, it ends with the first that has names,
    and besides table and page has a third of the forms.
    """
    answers: dict[str, list[bytes]] = {}
    first = 0 if thorough else ANSWERING.index(command) % len(INPUTS)
    forms = [
        form for number, form in enumerate(_forms(command))
        if thorough or form in ("table", "html") or (number + first) % 3 == 0
    ]  # fmt: skip
    for given in [*INPUTS][first:] + [*INPUTS][:first]:
        if not thorough and any(b"alert(1)" in answer for answer in answers.get("html", ())):
            break
        for form in forms:
            if answers.get(form) and form not in ("table", "html"):
                continue  # of the same tables
            if form == "png" and command not in DRAWN_AS_PNG:
                continue
            out = tmp_path / f"{given}.{form}"
            code = _run(command, given, form, out)
            messages = capfd.readouterr()
            assert "internal error" not in messages.err
            assert not COMMANDS.search(messages.err + messages.out)
            if code == 0:
                INERT[form](out.read_bytes())
                answers.setdefault(form, []).append(out.read_bytes())
            elif form not in PICTURES:
                break  # what the file does not hold is in no form of it
    # every form but pictures, which not all have, and names did arrive
    assert set(forms) - set(answers) <= set(PICTURES)
    if command not in NAMELESS:
        assert any(b"alert(1)" in answer for answer in answers["html"])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("command", "given", "form"),
    [
        ("operators", "kineto", "table"),
        ("operators", "kineto", "csv"),
        ("operators", "kineto", "html"),
        ("py-spy-report", "stacks", "table"),
        ("py-spy-report", "stacks", "json"),
        ("py-spy-report", "stacks", "md"),
    ],
)
def test_terminal_output_has_no_control_characters(command, given, form):
    code, screen = in_terminal(command, _inputs()[given], "--to", form, "-q", columns=1000)
    assert code == 0
    text = screen.decode()
    assert "alert(1)" in text
    assert not COMMANDS.search(text.replace("\r\n", "\n"))


@pytest.mark.matrix
def test_errors_in_a_terminal_have_no_control_characters():
    for arguments in (["gpu-idle", _inputs()["stacks"]], ["info", "\x1b[2J\u202e"], ["\x1b[2J"]):
        code, screen = in_terminal(*arguments)
        assert code in (1, 2)
        assert not COMMANDS.search(screen.decode().replace("\r\n", "\n"))


@pytest.mark.sample(4, "suffix", "given")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("given", ["kineto", "nsys", "stacks", "memory"])
def test_converted_files_contain_inert_names(given, suffix, tmp_path, capfd):
    source = _inputs()[given]
    source = next(source.iterdir()) if source.is_dir() else source
    out = tmp_path / f"out{suffix}"
    code = status(["convert", str(source), "-o", str(out)])
    messages = capfd.readouterr().err
    assert not COMMANDS.search(messages)
    if code:  # some forms have no place for some things
        assert re.search("no sampled stacks|events have no time", messages)
        assert "internal error" not in messages
        assert not out.exists()
        return
    if suffix in (".sqlite", ".db"):
        _sqlite(out.read_bytes())
        return
    if suffix == ".json":
        json.loads(out.read_bytes())
    if suffix != ".speedscope.json":  # which takes the sampled stacks only
        assert _names(out) >= _names(source) - {None}


def _names(path: Path) -> set[str | None]:
    trace = ta.read(path)
    names = set(trace.events["name"].cast(pl.String).unique())
    return names | set(trace.stacks["name"].cast(pl.String).unique())


# --- in a browser ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(chromium_window: Any) -> Any:
    return cleared(chromium_window)


def test_pages_run_no_script_of_a_name(browser, tmp_path, capfd, thorough):
    """A page is opened: no dialog, no script and no image but ours, nothing to complain of."""
    for command in ANSWERING if thorough else PAGES_OPENED:
        suited = dict.fromkeys(("efficiency", "modules", "roofline"), ("shapes",))
        suited |= {"hang": ("dumps",), "printed": ("printed",)}
        given = suited.get(command, ("kineto", "memory"))
        given = ("stacks", "memory", "kineto") if command in _OF_STACKS else given
        out = tmp_path / f"{command}.html"
        assert 0 in (_run(command, one, "html", out, "-q") for one in given)
        browser.get(out.as_uri())
        _assert_untouched(browser, _Page(out.read_text()))
    capfd.readouterr()


def test_images_run_no_script_of_a_name(browser, tmp_path, capfd):
    out = tmp_path / "flame.svg"
    assert _run("flamegraph", "stacks", "svg", out) == 0
    capfd.readouterr()
    browser.get(out.as_uri())
    assert browser.execute_script("return document.querySelectorAll('script').length") == 1
    assert "alert(1)" in browser.execute_script("return document.documentElement.textContent")
    assert complaints(browser) == []


def _assert_untouched(browser: Any, page: _Page) -> None:
    # a dialog would make this fail, and stay open
    assert browser.execute_script("return document.scripts.length") == len(page.scripts)
    assert browser.execute_script("return document.images.length") == 0
    assert (
        browser.execute_script("return document.querySelectorAll('[onload],[onerror]').length") == 0
    )
    assert "owned" not in browser.title
    assert complaints(browser) == []


def test_inputs_contain_the_attacks():
    for needle in ("\x1b", "\x9b", "\u202e", "</script>", "]]>", "onerror", "\r\n\t", "|"):
        assert needle in POISON
    assert all(path.exists() for path in _inputs().values())
