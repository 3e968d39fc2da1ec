"""Baselines: saved, resolved and removed by name, by several processes, damaged and hostile."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest
from conftest import ROOT
from saving_tasks import EACH, save

import traceanalyzer as ta
from traceanalyzer.cli.main import status
from traceanalyzer.errors import InputError, MalformedInput, OptionError, OutputError
from traceanalyzer.render import render
from traceanalyzer.run import baselines
from traceanalyzer.run.baselines import PARTS_SCHEMA

BEFORE, AFTER = ROOT / "fixtures/upgrade/before.json.gz", ROOT / "fixtures/upgrade/after.json.gz"
RANKS = ROOT / "fixtures/nccl_8ranks_isolated"
HOSTILE = (
    "", ".", "..", "../x", "a/b", "/x", "a\\b", ".hidden", "-f", "a..b", "a\n", "a b", "a\0b",
    "x" * 65, "é", "~", "$HOME", "baseline:x",
)  # fmt: skip


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(baselines.VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture(scope="session")
def sums(tmp_path_factory) -> Path:
    """Summaries of the run before, which are saved faster than traces."""
    folder = tmp_path_factory.mktemp("sums")
    ta.summarize(BEFORE, folder)
    return folder


@pytest.fixture(scope="session")
def of_ranks(tmp_path_factory) -> Path:
    """Summaries of two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    ta.summarize(RANKS, folder)
    return folder


def visible(store: Path) -> list[str]:
    return sorted(str(p.relative_to(store)) for p in store.rglob("*") if p.is_dir())


@pytest.mark.matrix
def test_a_baseline_is_accepted_in_place_of_the_run(store):
    ta.save_baseline("main", BEFORE)
    for function, options in ((ta.steps, {}), (ta.diff, {"after": AFTER})):
        direct = function(BEFORE, **options)
        named = function("baseline:main", **options)
        assert render(named, "json", top=None) == render(direct, "json", top=None)
    assert visible(store) == ["main", "main/run-1"]


def test_comm_outliers_accepts_a_baseline(of_ranks, capsys):
    ta.save_baseline("isolated", of_ranks)
    paths = [str(ROOT / f"fixtures/nccl_8ranks/rank{rank}.json.gz") for rank in (0, 5)]
    run = ["comm-outliers", *paths, "--to", "json", "-q", "--baseline"]
    assert status([*run, "baseline:isolated"]) == 0
    named = json.loads(capsys.readouterr().out)
    assert status([*run, str(RANKS)]) == 0
    assert named == json.loads(capsys.readouterr().out)


def test_facts_describe_the_run():
    ranks = ta.save_baseline("ranks", RANKS).runs.row(0, named=True)
    assert (ranks["inputs"], ranks["ranks"], ranks["world_size"], ranks["steps"]) == (2, 2, 8, 6)
    assert ranks["gpus"] == "NVIDIA H100 80GB HBM3"
    assert ranks["step_ns"] == ta.steps(RANKS).scalars["median_ns"]


def test_runs_without_steps_can_be_saved():
    dumps = ROOT / "fixtures/flight_recorder"
    path = next(p for p in sorted(dumps.rglob("*")) if p.is_file())
    row = ta.save_baseline("dump", path).runs.row(0, named=True)
    assert (row["inputs"], row["steps"], row["problem"]) == (1, None, None)


@pytest.mark.matrix
def test_summaries_of_a_run_can_be_saved(sums, store):
    ta.save_baseline("main", sums)
    copied = {p.name: p.read_bytes() for p in (store / "main/run-1").glob("*.parquet")}
    assert copied == {p.name: p.read_bytes() for p in sums.iterdir()}


def test_a_path_stays_a_path(sums, tmp_path, monkeypatch):
    ta.save_baseline("main", sums)
    monkeypatch.chdir(tmp_path)
    shutil.copy(AFTER, "baseline:main")
    assert ta.find_inputs("baseline:main")[0] == ["baseline:main"]
    assert ta.find_inputs("./baseline:main")[0] == ["./baseline:main"]


def test_the_default_store_is_in_the_current_folder(sums, tmp_path, monkeypatch):
    monkeypatch.delenv(baselines.VARIABLE)
    monkeypatch.chdir(tmp_path)
    ta.save_baseline("main", sums)
    (folder,) = Path(".traceanalyzer/baselines").iterdir()
    assert folder.name == "main"
    text = (folder / "run-1/baseline.json").read_text()
    assert str(tmp_path) not in text  # nothing of this machine is committed
    assert os.uname().nodename not in text


# --- exists, add, force, rm ----------------------------------------------------------------------


def test_an_existing_baseline_is_kept_unless_forced(sums, store):
    ta.save_baseline("main", sums)
    old = (store / "main/run-1/baseline.json").stat().st_ino
    with pytest.raises(OutputError):
        ta.save_baseline("main", sums)
    assert (store / "main/run-1/baseline.json").stat().st_ino == old
    assert ta.save_baseline("main", sums, add=True).runs["run"].to_list() == ["run-1", "run-2"]
    assert ta.save_baseline("main", sums, force=True).runs["run"].to_list() == ["run-3"]
    assert visible(store) == ["main", "main/run-3"]


def test_rm_removes_all_runs_of_one_baseline(sums, store):
    for name in ("main", "main-2"):
        ta.save_baseline(name, sums)
    ta.save_baseline("main", sums, add=True)
    assert status(["baseline", "rm", "main"]) == 0
    assert visible(store) == ["main-2", "main-2/run-1"]
    assert status(["baseline", "rm", "main"]) == 1


def test_a_failed_save_leaves_nothing(store, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with pytest.raises(InputError):
        ta.save_baseline("main", bad)
    assert visible(store) == []


def test_folders_of_ended_processes_are_removed(sums, store):
    gone = store / f".main.{os.uname().nodename[:64]}.99999999.part"
    other = store / ".main.another-host.99999999.part"
    for folder in (gone, other):
        folder.mkdir(parents=True)
    ta.save_baseline("main", sums)
    assert sorted(p.name for p in store.iterdir()) == [other.name, "main"]


def test_the_median_run_represents_a_baseline(sums, store):
    for _ in range(3):
        ta.save_baseline("main", sums, add=True)
    for number, time in ((1, 30.0), (2, 10.0), (3, 20.0)):
        facts = store / f"main/run-{number}/baseline.json"
        facts.write_text(json.dumps(json.loads(facts.read_text()) | {"step_ns": time}))
    assert baselines.resolved("baseline:main").endswith("run-3")
    assert [Path(p).name for p in baselines.run_paths("baseline:main")] == [
        "run-1", "run-2", "run-3"
    ]  # fmt: skip


# --- several processes ---------------------------------------------------------------------------


def together(*writers: tuple[str, str]) -> list[int]:
    """Save runs in several processes at once; return how many each one saved, sorted."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(len(writers)), context.SimpleQueue()
    each = [context.Process(target=save, args=(barrier, *one, answers)) for one in writers]
    for process in each:
        process.start()
    for process in each:
        process.join(60)
        assert process.exitcode == 0
    return sorted(answers.get()[0] for _ in each)


def complete(store: Path, name: str) -> int:
    """Return the number of runs of a baseline; all of them are complete, and nothing else is."""
    assert all(len(list(folder.iterdir())) == 2 for folder in (store / name).iterdir())
    assert [one.name for one in store.iterdir() if one.name.startswith(".")] == []
    return len(baselines.usable_runs(name))


def test_two_writers_that_add_lose_nothing(store):
    assert together(("main", "add"), ("main", "add"), ("other", "add")) == [EACH] * 3
    assert (complete(store, "main"), complete(store, "other")) == (2 * EACH, EACH)


def test_of_two_new_baselines_of_one_name_one_is_saved(store):
    assert together(("main", "new"), ("main", "new")) == [0, 1]
    assert complete(store, "main") == 1


def test_replacements_keep_at_least_one_run(store):
    with baselines.new_run("main") as run:
        baselines.write_facts(run, baselines.Facts(PARTS_SCHEMA, ta.__version__, "", 1, 1))
    assert together(("main", "force"), ("main", "force")) == [EACH, EACH]
    assert 1 <= complete(store, "main") <= 2
    assert not (store / "main/run-1").exists()


# --- damaged and hostile -------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name, sums, store):
    for act in (lambda: ta.save_baseline(name, sums), lambda: baselines.remove(name)):
        with pytest.raises(OptionError):
            act()
    with pytest.raises(OptionError):
        baselines.resolved(f"baseline:{name}")
    assert not store.exists()


def facts_of(store: Path) -> Path:
    return store / "main/run-1/baseline.json"


def of_another_schema(text: str) -> str:
    return text.replace(f'"schema": {PARTS_SCHEMA}', '"schema": 999')


DAMAGES = {
    "empty": lambda text: "",
    "truncated": lambda text: text[:40],
    "list": lambda text: "[]",
    "no version": lambda text: text.replace('"schema"', '"other"'),
    "schema": of_another_schema,
    "missing": lambda text: text.replace('"ranks"', '"other"'),
    "type": lambda text: text.replace('"inputs": 1', '"inputs": "1"'),
    "boolean": lambda text: text.replace('"inputs": 1', '"inputs": true'),
    "negative": lambda text: text.replace('"inputs": 1', '"inputs": -1'),
    "not a number": lambda text: text.replace('"step_ns": 5', '"step_ns": NaN, "x": 5'),
    "deep": lambda text: "[" * 100_000,
    "huge": lambda text: text + " " * (1 << 20),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_facts_are_one_error(damage, sums, store, capsys):
    ta.save_baseline("main", sums)
    text = facts_of(store).read_text()
    changed = DAMAGES[damage](text)
    assert changed != text
    facts_of(store).write_text(changed)
    with pytest.raises(MalformedInput):
        baselines.resolved("baseline:main")
    assert status(["diff", "baseline:main", str(AFTER), "-q"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "baseline:main" in error
    # it is listed, and can be replaced
    assert ta.list_baselines().runs["problem"].is_not_null().to_list() == [True]
    assert ta.save_baseline("main", sums, force=True).runs["problem"].to_list() == [None]


def test_a_baseline_of_another_version_with_the_same_schema_is_read(sums, store):
    ta.save_baseline("main", sums)
    expected = ta.steps("baseline:main").to_dict()
    facts = facts_of(store).read_text().replace(ta.__version__, "9.9.9")
    facts_of(store).write_text(facts)
    assert ta.steps("baseline:main").to_dict() == expected
    assert ta.list_baselines().runs["problem"].to_list() == [None]


def test_facts_of_another_schema_name_both_versions(sums, store, capsys):
    ta.save_baseline("main", sums)
    text = facts_of(store).read_text().replace(ta.__version__, "9.9.9")
    facts_of(store).write_text(of_another_schema(text))
    assert status(["steps", "baseline:main"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "9.9.9" in error
    assert ta.__version__ in error
    assert "baseline save" in error


def test_a_damaged_summary_is_one_error(sums, store, capsys):
    ta.save_baseline("main", sums)
    (summary,) = (store / "main/run-1").glob("*.parquet")
    summary.write_bytes(summary.read_bytes()[:1000])
    assert status(["diff", "baseline:main", str(AFTER), "-q"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_hostile_facts_are_escaped(sums, store, capsys):
    ta.save_baseline("main", sums)
    known = json.loads(facts_of(store).read_text())
    known |= {"gpus": ["<script>x</script>\x1b[31m|`"], "saved": "\x1b]0;t\x07"}
    facts_of(store).write_text(json.dumps(known))
    for form in ("html", "md"):
        assert status(["baseline", "show", "main", "--to", form]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "<script>x" not in out.replace("`` <script>x</script>", "")  # as code in Markdown


def test_missing_files_are_named(of_ranks, store, capsys):
    ta.save_baseline("main", of_ranks)
    run = store / "main" / "run-1"
    lost = next(path for path in run.iterdir() if path.name.startswith("rank1"))
    assert ta.list_baselines().runs["problem"].to_list() == [None]
    lost.unlink()
    for listed in (ta.list_baselines(), ta.list_baselines("main")):
        (problem,) = listed.runs["problem"]
        assert lost.name in problem
    assert ta.steps("baseline:main").ranks.height == 1  # the others are still used
    shutil.rmtree(run)
    assert status(["baseline", "show", "main"]) == 1
    assert "all of its runs" in capsys.readouterr().err


def test_unknown_baselines_name_the_known_ones(sums, capsys):
    ta.save_baseline("main", sums)
    assert status(["diff", "baseline:man", str(AFTER)]) == 1
    assert "main" in capsys.readouterr().err
    assert status(["baseline", "show", "man"]) == 1


def test_other_folders_of_the_store_are_ignored(sums, store):
    ta.save_baseline("main", sums)
    (store / "empty").mkdir()
    (store / "README").write_text("x")
    (store / "main/notes").mkdir()
    assert ta.list_baselines().runs["name"].to_list() == ["main"]
    with pytest.raises(InputError):
        baselines.resolved("baseline:empty")


def test_an_unusable_store_is_one_error(store, sums, capsys):
    store.write_text("a file")
    assert status(["baseline", "list"]) == 1
    assert status(["baseline", "save", "main", str(sums)]) == 1
    assert capsys.readouterr().err.count("\n") >= 2
