"""Pages of results, roots, and the tools generated from options, without the protocol."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from traceanalyzer import schema
from traceanalyzer.analyzers import registry
from traceanalyzer.errors import OptionError, UnreadableFile
from traceanalyzer.result import SCHEMA_VERSION, Result, Table, View
from traceanalyzer.tools.mcp.answers import MOST_CHARACTERS, Answers, bounded
from traceanalyzer.tools.mcp.tools import Roots, tools

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Rows(Result):
    """A result with two tables."""

    long: pl.DataFrame
    short: pl.DataFrame

    def view(self) -> View:
        tables = tuple(Table(name, name, getattr(self, name), {}) for name in ("long", "short"))
        return View(title="t", verdict="v", tables=tables, scalars={"beyond": 1 << 70, "nan": 0.0})


@settings(max_examples=40)
@given(
    texts=st.lists(st.text(max_size=30), max_size=130),
    repeated=st.sampled_from([1, 50, 2_000]),
    short=st.integers(0, 60),
    limit=st.integers(1, 50),
)
def test_pages_are_bounded_and_complete(
    texts: list[str], repeated: int, short: int, limit: int
) -> None:
    long = pl.DataFrame({"at": range(len(texts)), "text": [text * repeated for text in texts]})
    result = Rows(long.with_columns(again="text"), pl.DataFrame({"at": range(short)}))
    places: dict[str, list[int]] = {"long": [], "short": []}
    offset: int | None = 0
    while offset is not None:
        page = bounded(result, offset=offset, limit=limit)
        assert len(json.dumps(page, ensure_ascii=False)) <= MOST_CHARACTERS
        assert page["page"]["rows"] == {"long": len(texts), "short": short}
        for name, rows in places.items():
            assert len(page[name]) <= limit
            rows += [row["at"] for row in page[name]]
        following = page["page"]["next_offset"]
        assert following is None or following > offset
        offset = following
    assert places == {"long": [*range(len(texts))], "short": [*range(short)]}


def test_skill_names_every_tool() -> None:
    text = (ROOT / "skills" / "traceanalyzer" / "SKILL.md").read_text()
    assert text.startswith("---\nname: traceanalyzer\ndescription: ")
    rows = "".join(line for line in text.splitlines() if line.startswith("| "))
    others = {"start", "end", "events", "collectives", "counters"}
    assert set(re.findall(r"`(\w+)`", rows)) - others == tools().keys()


def test_tables_of_query_are_described() -> None:
    description = tools()["query"].description
    assert all(name in description for name in schema.TABLES)
    assert all(column.name in description for column in schema.TABLES["events"])


def test_other_tables_are_counted_only() -> None:
    result = Rows(pl.DataFrame({"at": range(70)}), pl.DataFrame({"at": range(3)}))
    page = bounded(result, tables=["short"])
    assert (page["long"], len(page["short"])) == ([], 3)
    assert page["page"] == {"offset": 0, "rows": {"long": 70, "short": 3}, "next_offset": None}
    with pytest.raises(OptionError, match="no table 'x'; tables: long, short"):
        bounded(result, tables=["x"])


@pytest.mark.matrix
def test_numbers_alone_can_be_too_long() -> None:
    frame = pl.DataFrame({f"column{at}": [0] for at in range(10_000)})
    with pytest.raises(OptionError, match="too long"):
        bounded(Rows(frame, pl.DataFrame({"at": [1]})))


@pytest.mark.parametrize("entry", registry.public(), ids=lambda entry: entry.name)
def test_every_option_is_an_argument(entry: registry.Entry) -> None:
    tool = tools()[entry.name]
    options = {
        item.name
        for item in fields(entry.options_class())
        if item.metadata["option"].command_line or item.name == "before"
    }
    renamed = {"after"} if entry.name == "diff" else {"paths"}
    assert tool.options.keys() == options | renamed
    for name, argument in tool.options.items():
        assert argument["description"], name
        assert argument["type"]


def test_answers_have_the_version_of_their_keys() -> None:
    source = str(ROOT / "fixtures" / "upgrade" / "before.json.gz")
    answers = Answers(Roots([str(ROOT / "fixtures")]))
    for name in ("diagnose", "steps", "kernels", "info"):
        answer = answers.answer(name, {"paths": [source]})
        assert next(iter(answer)) == "schema_version"
        assert answer["schema_version"] == SCHEMA_VERSION


def test_next_page_is_not_computed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = ROOT / "fixtures" / "upgrade" / "before.json.gz"
    copied = tmp_path / "before.json.gz"
    copied.write_bytes(source.read_bytes())
    answers = Answers(Roots([str(tmp_path)]))
    reads: list[int] = []

    def ask(offset: int) -> None:
        def progress(done: int, _total: int) -> None:
            reads.append(done)

        arguments = {"paths": [copied.name], "offset": offset, "limit": 1}
        answers.answer("kernels", arguments, progress)

    ask(0)
    first = len(reads)
    assert first > 0
    ask(1)
    assert len(reads) == first
    copied.write_bytes((source.parent / "after.json.gz").read_bytes())  # another file is read
    ask(1)
    assert len(reads) > first


def test_roots_are_whole_folders(tmp_path: Path) -> None:
    for name in ("run", "run2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text("{}")
    roots = Roots([str(tmp_path / "run")])
    assert roots.resolve("a.json") == str(tmp_path / "run" / "a.json")
    with pytest.raises(OptionError, match="outside"):
        roots.resolve(str(tmp_path / "run2" / "a.json"))
    with pytest.raises(UnreadableFile, match="no such file"):
        roots.resolve("b.json")
    both = Roots([str(tmp_path / "run"), str(tmp_path / "run2")])
    assert both.resolve("../run2/a.json") == str(tmp_path / "run2" / "a.json")


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_paths_that_no_file_can_have_are_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="must not contain"):
        Roots([str(tmp_path)]).resolve(path)


def test_linked_root_is_its_target(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.json").write_text("{}")
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    roots = Roots([str(tmp_path / "latest")])
    assert roots.resolve("a.json") == str(tmp_path / "run" / "a.json")
    assert roots.resolve(str(tmp_path / "latest" / "a.json")) == str(tmp_path / "run" / "a.json")


def test_hidden_files_of_a_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / ".escape").symlink_to("/etc/passwd")
    assert [path for path, _, _ in Roots([str(tmp_path)]).files(".")] == [str(tmp_path / "a.json")]
