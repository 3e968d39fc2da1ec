"""Lines of own code by time, the call below each, and what is apart, in all stack formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import traceanalyzer as ta
from traceanalyzer.analyzers.common.own_lines import IDLE, IMPORTS, RUNS, RUNS_OTHER
from traceanalyzer.analyzers.common.waits import wait_of
from traceanalyzer.cli.main import status

MAIN = "<module> (train.py:40);main (train.py:30);"
STEP = MAIN + "Trainer.step (trainer.py:9);"
ADAM = "profile.<locals>.wrapper (torch/optim/optimizer.py:5);Adam.step (torch/optim/adam.py:7)"
LAYER = (
    "_wrapped_call_impl (torch/nn/modules/module.py:1);_call_impl (torch/nn/modules/module.py:2)"
)
BOOT = "_bootstrap (threading.py:1014);run (threading.py:994);"
STACKS = {
    STEP + ADAM: 30,
    STEP + ADAM + ";_foreach (torch/optim/adam.py:90)": 20,
    STEP + "zero_grad (torch/optim/optimizer.py:80)": 10,
    MAIN + "augment (data.py:5)": 25,
    MAIN + LAYER + ";Linear.forward (torch/nn/modules/linear.py:3)": 5,
    "<module> (train.py:40);_find_and_load (<frozen importlib._bootstrap>:7);"
    "<module> (torch/__init__.py:1)": 40,
    MAIN + "Thread.join (threading.py:1095)": 15,
    BOOT + "Queue.get (queue.py:171);Condition.wait (threading.py:327)": 70,
    "": 5,
    "spin (torch/x.py:1)": 10,
}
LINES = [  # of 100 samples that run code
    ("Trainer.step (trainer.py:9)", "Adam.step (torch/optim/adam.py)", 60, 0.6),
    ("augment (data.py:5)", None, 25, 0.25),
    ("main (train.py:30)", "Linear.forward (torch/nn/modules/linear.py)", 5, 0.05),
]
APART = {IDLE: 75, RUNS: 90, IMPORTS: 40, "waits for another thread": 15, RUNS_OTHER: 10}


def raw(folder: Path, stacks: dict[str, float]) -> Path:
    path = folder / "raw.txt"
    path.write_text("".join(f"{stack} {weight}\n" for stack, weight in stacks.items()))
    return path


def parts(stack: str) -> list[tuple[str, str, int]]:
    frames = []
    for frame in filter(None, stack.split(";")):
        name, _, place = frame.rstrip(")").partition(" (")
        file, _, line = place.rpartition(":")
        frames.append((name, file, int(line)))
    return frames


def speedscope(folder: Path, stacks: dict[str, float]) -> Path:
    known: dict[tuple[str, str, int], int] = {}
    samples = [[known.setdefault(frame, len(known)) for frame in parts(s)] for s in stacks]
    frames = [{"name": name, "file": file, "line": line} for name, file, line in known]
    profile = {"type": "sampled", "name": "x", "unit": "seconds", "startValue": 0,
               "endValue": 9, "samples": samples, "weights": list(stacks.values())}  # fmt: skip
    path = folder / "x.speedscope.json"
    path.write_text(json.dumps({"shared": {"frames": frames}, "profiles": [profile]}))
    return path


def austin(folder: Path, stacks: dict[str, float]) -> Path:
    lines = ["# austin: 3.6.0", "# mode: wall", "# interval: 100"]
    for stack, weight in stacks.items():
        frames = "".join(f";{file}:{name}:{line}" for name, file, line in parts(stack))
        lines.append(f"P1;T0:1{frames} {weight}")
    path = folder / "austin.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("write", [raw, speedscope, austin])
def test_lines_of_own_code_are_summed_with_their_calls(tmp_path: Path, write) -> None:
    result = ta.py_spy_report(write(tmp_path, STACKS))
    scale = result.total_samples / sum(STACKS.values())
    lines = result.lines.select("place", "calls", "samples", "samples_frac").rows()
    assert [(p, c, n / scale, share) for p, c, n, share in lines] == [
        (p, c, n, pytest.approx(share)) for p, c, n, share in LINES
    ]
    found = dict(result.activities.select("activity", "samples").iter_rows())
    assert {what: n / scale for what, n in found.items()} == APART
    assert result.activities["samples_frac"].sum() == pytest.approx(1)


def test_flame_graph_answers_like_the_report(tmp_path: Path) -> None:
    path = raw(tmp_path, STACKS)
    report, flame = ta.py_spy_report(path), ta.flamegraph(path)
    columns = ["place", "calls", "samples", "samples_frac"]
    assert flame.lines.select(columns).equals(report.lines.select(columns))
    assert flame.activities.equals(report.activities)
    assert flame.verdict == report.verdict


def test_table_is_of_the_users_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = raw(tmp_path, STACKS)
    assert status(["py-spy-report", str(path)]) == 0
    printed = capfd.readouterr().out
    for text in ("Not Found", "-1", "library_function_name", "built-in", "_call_impl"):
        assert text not in printed
    table = ta.py_spy_report(path).tables[0]
    assert [*table.columns.values()] == ["your code", "calls", "samples", "share"]
    named = ta.py_spy_report(path, library_names="torch").tables[0]
    assert [*named.columns][-2:] == ["library_function_line", "proportion"]


def test_sentence_has_five_numbers_and_three_sentences_at_most(tmp_path: Path) -> None:
    verdict = ta.py_spy_report(raw(tmp_path, STACKS)).verdict
    assert verdict.count(" %") <= 5
    assert verdict.count(". ") <= 2
    assert "Trainer.step (trainer.py:9), most of it in Adam.step" in verdict
    assert "main (train.py:30), Thread.join" in verdict


def test_forked_children_do_not_count_for_the_parents_lines(tmp_path: Path) -> None:
    fork = "BaseProcess._bootstrap (multiprocessing/process.py:314);"
    stacks = {MAIN + fork + "decode (data.py:8)": 3, MAIN + fork + "f (torch/x.py:1)": 2}
    path = raw(tmp_path, stacks)
    for result in (ta.py_spy_report(path), ta.flamegraph(path)):
        assert result.lines["place"].to_list() == ["decode (data.py:8)"]


def test_groups_have_separate_lines(tmp_path: Path) -> None:
    path = raw(tmp_path, {f"thread ({n}): t;f (a.py:1);g (torch/x.py:{n})": n for n in (7, 8)})
    result = ta.py_spy_report(path, by="thread")
    assert result.lines.select("group", "samples").rows() == [("8 t", 8), ("7 t", 7)]
    assert result.verdict.startswith("100.0 %")


@pytest.mark.parametrize(
    ("frames", "named"),
    [
        ("a;b", "have no files"),
        ("main (/usr/bin/app);read (/usr/lib/libc.so.6)", "native code"),
        ("run (numpy/x.py:1);f (torch/y.py:2)", "--library-name torch"),
    ],
)
def test_unknown_own_code_says_how_to_name_it(tmp_path: Path, frames: str, named: str) -> None:
    path = raw(tmp_path, {frames: 3})
    for result in (ta.py_spy_report(path), ta.flamegraph(path)):
        assert named in result.verdict
        assert result.lines.is_empty()
    rows = ta.py_spy_report(path).tables[0]
    assert [*rows.columns.values()] == ["function", "samples", "share"]


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("__GI___poll", True), ("pthread_cond_timedwait@@GLIBC_2.3.2", True),
        ("__futex_abstimed_wait_common64", True), ("epoll_wait", True), ("__select", True),
        ("clock_nanosleep@GLIBC_2.17", True), ("memcpy", False), ("c10d::Work::wait", False),
    ],
)  # fmt: skip
def test_waits_in_the_c_library(tmp_path: Path, name: str, waits: bool) -> None:
    assert (wait_of(name, "/usr/lib/x86_64-linux-gnu/libc.so.6") is not None) == waits
    stack = f"f (a.py:1);{name} (libc.so.6)"
    below = f"f (a.py:1);Event.wait (threading.py:3);{name} (libc.so.6)"
    result = ta.py_spy_report(raw(tmp_path, {stack: 1, below: 2}))
    running = result.lines["samples"].sum()
    assert running == (0 if waits else 1)


def test_real_recordings_name_the_lines_of_the_training(shared: Path) -> None:
    for name in ("default", "threads_idle", "native"):
        result = ta.py_spy_report(shared / f"data/pyspy/{name}.raw.txt")
        assert result.lines["place"][0] == "Trainer.train_step (toytrain/trainer.py:9)"
        assert result.lines["calls"][0] == "Tensor.backward (torch/_tensor.py)"
        assert result.activities["samples"].sum() == result.total_samples
        assert result.running["samples"].sum() >= result.lines["samples"].sum()
