"""Leaf paths against a plain loop over the lines, and effects of the options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.py_spy_report.result import LeafPaths
from traceanalyzer.cli.main import status
from traceanalyzer.errors import MissingData, OptionError, UnknownFormat

Frame = tuple[str, str, int]
Stack = list[Frame]

NAMES = ("<module>", "fit", "forward", "__init__", "wait")
PATHS = ("train.py", "itwinai/trainer.py", "torch/nn/conv.py", "torchvision/ops.py",
         "threading.py", "<frozen importlib._bootstrap>")  # fmt: skip
FRAMES = st.tuples(st.sampled_from(NAMES), st.sampled_from(PATHS), st.integers(1, 3))
STACKS = st.lists(st.tuples(st.lists(FRAMES, max_size=6), st.integers(1, 9)), min_size=1)


def text_of(stacks: Sequence[tuple[Stack, int]]) -> str:
    lines = (
        ";".join(f"{name} ({path}:{line})" for name, path, line in stack) + f" {count}"
        for stack, count in stacks
    )
    return "\n".join(lines) + "\n"


@pytest.fixture
def report(tmp_path: Path):
    """Return the report on stacks in py-spy's format."""

    def recorded(stacks: Sequence[tuple[Stack, int]], **asked: object) -> LeafPaths:
        path = tmp_path / "raw.txt"
        path.write_text(text_of(stacks))
        return ta.py_spy_report(path, **asked)

    return recorded


def reference(
    stacks: Sequence[tuple[Stack, int]], library: str, *, aggregate: bool
) -> list[tuple[object, ...]]:
    """Implement itwinai's algorithm from its definition."""
    rows: list[tuple[tuple[object, ...], int]] = []
    for stack, count in stacks:
        visible = [
            (name, "built-in", -1) if "frozen importlib" in path else (name, path, line)
            for name, path, line in stack
            if "<module>" not in name
        ]
        if not visible:
            continue
        nobody = ("Not Found",) * 3
        owner = next((f for f in reversed(visible) if library in f[1]), nobody)
        rows.append(((*visible[-1], *owner), count))
    if aggregate:
        sums: dict[tuple[object, ...], int] = {}
        for key, count in rows:
            sums[key] = sums.get(key, 0) + count
        rows = list(sums.items())
    total = sum(count for _, count in rows)
    rows.sort(key=lambda row: -row[1])
    return [(*key, f"{100 * count / total:.2f}% ({count})") for key, count in rows]


@pytest.mark.matrix
@given(stacks=STACKS, library=st.sampled_from(["torch", "itwinai", "built", "py"]),
       aggregate=st.booleans())  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_report_agrees_with_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory,
    stacks: list[tuple[Stack, int]],
    library: str,
    aggregate: bool,
) -> None:
    path = tmp_path_factory.mktemp("stacks") / "raw.txt"
    path.write_text(text_of(stacks))
    result = ta.py_spy_report(
        path,
        library_names=library,
        match="substring",
        drop_module=True,
        aggregate_leaf_paths=aggregate,
    )
    table = result.tables[0]
    printed = table.frame.select(list(table.columns))
    outcome = [
        tuple("Not Found" if cell is None else cell for cell in row) for row in printed.rows()
    ]
    assert outcome == reference(stacks, library, aggregate=aggregate)


@given(stacks=STACKS, drop_module=st.booleans())
@settings(max_examples=50, deadline=None)
def test_sums_agree_with_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, stacks: list[tuple[Stack, int]], drop_module: bool
) -> None:
    path = tmp_path_factory.mktemp("stacks") / "raw.txt"
    path.write_text(text_of(stacks))
    result = ta.py_spy_report(path, group_by="file", drop_module=drop_module)
    assert result.groups is not None
    expected: dict[str, list[int]] = {}
    for stack, count in stacks:
        files = [
            "built-in" if "frozen" in file else file
            for name, file, _ in stack
            if not (drop_module and name == "<module>")
        ]
        if not files and drop_module:
            continue
        files = files or ["(no Python frame)"]
        expected.setdefault(files[-1], [0, 0])[0] += count
        for file in set(files):
            expected.setdefault(file, [0, 0])[1] += count
    rows = result.groups.to_dicts()
    assert {row["key"]: [row["self"], row["total"]] for row in rows} == expected
    assert result.total_samples == sum(self_weight for self_weight, _ in expected.values())


OWN_CODE = ("fit", "train.py", 3)
CONV = ("forward", "torch/nn/conv.py", 8)
OPS = ("nms", "torchvision/ops.py", 5)
WAIT = ("wait", "threading.py", 9)
FORK = ("BaseProcess._bootstrap", "multiprocessing/process.py", 314)
LOOP = ("_worker_loop", "torch/utils/data/_utils/worker.py", 300)


def test_own_code_is_tagged_by_default(report) -> None:
    result = report([([OWN_CODE, CONV], 3), ([WAIT], 1)])
    assert result.paths["library_function_name"].to_list() == ["fit", None]
    assert result.tagged_samples == 3
    check_wording(result.verdict)
    check_wording(result.notes[0])


def test_waits_without_own_code_are_idle_threads(report) -> None:
    result = report([([OWN_CODE], 3), ([CONV, WAIT], 2), ([OPS, WAIT], 2)])
    assert result.paths["name"].to_list() == ["fit", "wait", "wait"]
    check_wording(result.verdict)


def test_library_matches_a_whole_component(report) -> None:
    stacks = [([OWN_CODE, OPS], 3)]
    assert report(stacks, library_names="torch").tagged_samples == 0
    assert report(stacks, library_names="torch", match="substring").tagged_samples == 3


def test_the_first_listed_library_wins_over_an_inner_one(report) -> None:
    stacks = [([OPS, CONV], 3), ([CONV], 2)]
    result = report(stacks, library_names=["torchvision", "torch"])
    assert result.paths["library"].to_list() == ["torchvision", "torch"]
    assert result.paths["library_function_name"].to_list() == ["nms", "forward"]


def test_module_code_is_kept_by_default(report) -> None:
    stacks = [([("<module>", "train.py", 1)], 3), ([OWN_CODE], 1), ([], 2)]
    result = report(stacks)
    assert result.paths["name"].to_list() == ["<module>", "(no Python frame)", "fit"]
    assert result.total_samples == 6
    dropped = report(stacks, drop_module=True)
    assert dropped.paths["name"].to_list() == ["fit"]
    assert (dropped.total_samples, dropped.left_out_samples, dropped.idle_samples) == (1, 5, 2)
    check_wording(*dropped.notes[1:])
    assert report(stacks, exclude_idle_process=True).total_samples == 4


def test_rate_converts_samples_to_seconds(report) -> None:
    result = report([([OWN_CODE], 150)], rate=50.0)
    assert (result.unit, result.total_samples) == ("ns", 3_000_000_000)
    assert result.paths["proportion"].to_list() == ["100.00% (3 s)"]
    with pytest.raises(OptionError, match="rate must be"):
        report([([OWN_CODE], 150)], rate=0.0)


@pytest.mark.matrix
def test_runaway_recursion_is_merged_quickly(report) -> None:
    result = report([([OWN_CODE] * 20_000, 1)], group_by="function", library_names="torch")
    assert result.groups is not None
    assert result.groups["total"].to_list() == [1, 1]
    assert result.groups["key"].to_list() == ["(deeper than 10,000 frames)", "fit"]


def test_forked_workers_start_at_their_entry(report) -> None:
    stacks = [([OWN_CODE, FORK, LOOP, WAIT], 3), ([OWN_CODE], 1)]
    result = report(stacks, group_by="function")
    assert result.groups is not None
    assert dict(result.groups.select("key", "total").iter_rows())["fit"] == 1
    assert result.tagged_samples == 1
    assert result.processes["role"].to_list() == ["DataLoader worker"]


@pytest.mark.parametrize(
    ("stack", "role"),
    [
        ([OWN_CODE], "main process"),
        ([OWN_CODE, FORK, WAIT], "child process"),
        ([OWN_CODE, FORK, LOOP, WAIT], "DataLoader worker"),
        ([OWN_CODE, ("_worker_loop", "train.py", 7)], "main process"),
        ([OWN_CODE, ("get_worker_info", LOOP[1], 7)], "main process"),
    ],
)
def test_process_roles_follow_from_entry_frames(report, stack, role) -> None:
    assert report([(stack, 3)]).processes["role"].to_list() == [role]


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("process", [("7 python train.py", 9), ("8 python load.py", 2), ("(no process)", 1)]),
        ("thread", [("71 MainThread", 5), ("72 pin", 4), ("81 MainThread", 2), ("(no thread)", 1)]),
    ],
)
def test_processes_and_threads_are_grouped(tmp_path: Path, by, expected) -> None:
    path = tmp_path / "raw.txt"
    path.write_text(
        'process 7:"python train.py";thread (71): MainThread;f (a.py:1) 5\n'
        'process 7:"python train.py";thread (72): pin;f (a.py:1) 4\n'
        'process 8:"python load.py";thread (81): MainThread;f (a.py:1) 2\n'
        "f (a.py:1) 1\n"
    )
    result = ta.py_spy_report(path, aggregate_leaf_paths=True, by=by)
    assert result.paths.select("group", "samples").rows() == expected


def test_files_are_added_or_grouped(tmp_path: Path) -> None:
    for rank in (0, 10, 2):
        (tmp_path / f"profile_rank{rank}.txt").write_text(text_of([([OWN_CODE], rank + 1)]))
    result = ta.py_spy_report(tmp_path, aggregate_leaf_paths=True)
    assert result.paths["samples"].to_list() == [15]
    apart = ta.py_spy_report(tmp_path, aggregate_leaf_paths=True, by="rank")
    assert apart.paths.select("group", "samples").rows() == [("10", 11), ("2", 3), ("0", 1)]
    assert ta.py_spy_report(tmp_path, rank=2).total_samples == 3
    with pytest.raises(OptionError, match="rank 7"):
        ta.py_spy_report(tmp_path, rank=7)


def test_files_with_different_units_are_named(tmp_path: Path) -> None:
    raw = tmp_path / "a.txt"
    raw.write_text(text_of([([OWN_CODE], 4)]))
    ta.convert(raw, tmp_path / "b.speedscope.json")
    text = (tmp_path / "b.speedscope.json").read_text()
    (tmp_path / "b.speedscope.json").write_text(text.replace('"none"', '"seconds"'))
    result = ta.py_spy_report(tmp_path)
    assert (result.unit, result.total_samples) == ("samples", 4)
    assert "b.speedscope.json: its stacks are weighted in ns" in result.notes[-1]
    assert ta.flamegraph(tmp_path).total == 4


def test_process_table_only_with_known_processes(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(text_of([([OWN_CODE], 4)]))
    assert [table.name for table in ta.py_spy_report(tmp_path).tables] == ["lines"]


def test_invalid_options_are_refused(report) -> None:
    with pytest.raises(OptionError, match="library name"):
        report([([OWN_CODE], 1)], match="substring")
    with pytest.raises(OptionError, match="empty"):
        report([([OWN_CODE], 1)], library_names="")


# --- the command -----------------------------------------------------------------------------


def test_command_without_path_uses_the_folder(tmp_path, monkeypatch, capfd) -> None:
    folder = tmp_path / "py-spy-outputs"
    folder.mkdir()
    (folder / "a.txt").write_text(text_of([([OWN_CODE, ("f", "itwinai/loggers.py", 7)], 4)]))
    (folder / "notes.bin").write_bytes(b"\x00\x01\xff" * 99)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)
    assert status(["py-spy-report", "--library-name", "itwinai", "--aggregate-leaf-paths"]) == 0
    captured = capfd.readouterr()
    assert "itwinai/loggers.py | 7" in " ".join(captured.out.split())
    assert "100.00% (4)" in captured.out
    check_wording(captured.err)


def test_command_without_input_is_one_error_line(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)
    assert status(["py-spy-report"]) == 2
    captured = capfd.readouterr().err
    assert captured.count("\n") == 1
    check_wording(captured)


@pytest.mark.matrix
def test_a_pipe_is_read(run_program) -> None:
    done = run_program("py-spy-report", "--to", "json", input=text_of([([OWN_CODE], 4)]).encode())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total_samples"] == 4


@pytest.mark.matrix
def test_empty_pipe_is_an_error(run_program, tmp_path) -> None:
    done = run_program("py-spy-report", input=b"", cwd=tmp_path)
    assert done.returncode == 2
    check_wording(done.stderr)
    (tmp_path / "py-spy-output").mkdir()
    (tmp_path / "py-spy-output" / "a.txt").write_text(text_of([([OWN_CODE], 4)]))
    done = run_program("py-spy-report", "--to", "json", input=b"", cwd=tmp_path)
    assert json.loads(done.stdout)["total_samples"] == 4


def test_small_fractions_count(tmp_path) -> None:
    path = tmp_path / "raw.txt"
    path.write_text("a;b 0.0004\na;c 0.0003\n")
    result = ta.py_spy_report(path)
    assert result.paths["samples"].to_list() == [0.0004, 0.0003]
    assert result.total_samples == pytest.approx(0.0007)


def test_library_frame_without_a_line_matches(tmp_path) -> None:
    path = tmp_path / "raw.txt"
    path.write_text("main (train.py);wait (threading.py) 3\n")
    result = ta.py_spy_report(path, aggregate_leaf_paths=True)
    assert "Not Found" not in result.table()
    assert "library_function_line" in result.table()


@pytest.mark.parametrize(
    ("group_by", "keys"),
    [
        ("module", ["torch.nn.conv", "torch.nn", "libc.so"]),
        ("file", ["torch/nn/conv.py", "torch/nn/__init__.py", "libc.so"]),
        ("function", ["forward", "init", "read"]),
    ],
)
def test_sums_are_grouped_by_key(report, group_by: str, keys: list[str]) -> None:
    stacks = [
        ([CONV], 3),
        ([("init", "torch/nn/__init__.py", 1)], 2),
        ([("read", "libc.so", 1)], 1),
    ]
    groups = report(stacks, group_by=group_by).groups
    assert groups["key"].to_list() == keys
    assert groups["self"].to_list() == [3, 2, 1]


def test_frozen_modules_are_built_in(tmp_path) -> None:
    path = tmp_path / "raw.txt"
    path.write_text("load (<frozen importlib._bootstrap>:7) 3\nread 1\n")
    result = ta.py_spy_report(path).paths.select("name", "path", "line").rows()
    assert result == [("load", "built-in", -1), ("read", None, None)]


def test_num_rows(tmp_path, capfd) -> None:
    path = tmp_path / "raw.txt"
    path.write_text(text_of([([("f", "train.py", n)], 1) for n in range(30)]))
    for rows, count in (("3", 3), ("all", 30)):
        assert status(["py-spy-report", str(path), "--num-rows", rows]) == 0
        assert capfd.readouterr().out.count("\n f (train.py:") == count
    assert status(["py-spy-report", "--file", str(path)]) == 0
    assert capfd.readouterr().out.count("\n f (train.py:") == 10


@pytest.mark.parametrize(
    "content",
    [b"\x7fELF\x02\x01\x01" + bytes(64), b'{"traceEvents": []}', b"", b"no count at the end\n"],
    ids=["binary", "json", "empty", "no-valid-line"],
)
def test_bad_input_is_one_line_and_exit_1(tmp_path, capfd, content) -> None:
    path = tmp_path / "raw.txt"
    path.write_bytes(content)
    assert status(["py-spy-report", str(path)]) == 1
    captured = capfd.readouterr()
    assert captured.err.startswith(f"traceanalyzer: {path}: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_folder_without_profiles_is_one_line(tmp_path, capfd) -> None:
    (tmp_path / "trace.json").write_text('{"traceEvents": [{"ph":"X","name":"a","ts":1,"dur":2}]}')
    assert status(["py-spy-report", str(tmp_path)]) == 1
    check_wording(capfd.readouterr().err)


def test_unreadable_file_among_several_is_named(tmp_path) -> None:
    (tmp_path / "a.txt").write_text(text_of([([OWN_CODE], 4)]))
    (tmp_path / "b.json").write_text('{"traceEvents": [{"ph":"X","name":"a","ts":1,"dur":2}]}')
    result = ta.py_spy_report(tmp_path)
    assert result.total_samples == 4
    assert result.notes[-1].startswith(f"Skipped: {tmp_path / 'b.json'}: no sample events")
    with pytest.raises(MissingData):
        ta.py_spy_report(tmp_path / "b.json")
    empty = tmp_path / "c.txt"
    empty.touch()
    with pytest.raises(UnknownFormat):
        ta.py_spy_report(empty)


@pytest.mark.parametrize(
    ("line", "has_own_code"),
    [("main;func_a 3", False), ("main (a.py:1);f (a.py:2) 3", True),
     ("main (torch/a.py:1);f (torch/a.py:2) 3", False)],
)  # fmt: skip
def test_own_code_is_unknown_without_files(tmp_path: Path, line: str, has_own_code: bool) -> None:
    path = tmp_path / "raw.txt"
    path.write_text(f"{line}\n{line}\n")
    samples, flame = ta.py_spy_report(path), ta.flamegraph(path)
    assert (samples.tagged_samples > 0) == has_own_code
    check_wording(samples.verdict, flame.verdict)


def test_samples_with_an_impossible_count_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "raw.txt"
    path.write_text(f"main (a.py:1) 10\nmain (a.py:2) {9 * 10**18}\n")
    assert ta.py_spy_report(path).total_samples == 10


def test_equal_shares_are_in_order_of_names(tmp_path: Path) -> None:
    """As in ``flamegraph``: both name the same function first."""
    path = tmp_path / "stacks.txt"
    path.write_text("main;write 5\nmain;copy 5\n")
    functions = ta.py_spy_report(path).tables[0].frame
    assert functions["name"].to_list() == ["copy", "write"]
    assert ta.flamegraph(path).functions["name"].to_list()[:2] == ["copy", "write"]
