"""hang: the rank that the others wait for, on real dumps, simulated ones and random runs."""

from __future__ import annotations

import pickle
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.hang import Options, compute, texts
from traceanalyzer.analyzers.hang.matching import parse_ranks
from traceanalyzer.analyzers.hang.result import Hang
from traceanalyzer.analyzers.hang.texts import ADVICE, joined_places
from traceanalyzer.errors import InputError, MissingData, OptionError

FIXTURES = Path(__file__).parents[2] / "fixtures"
FOLDER = FIXTURES / "flight_recorder"
SCRIPT = runpy.run_path(str(FIXTURES / "make_flight_recorder.py"))
Run, WORLD = SCRIPT["Run"], SCRIPT["WORLD"]

#: What happened in the recorded runs: the cause and the culprits.
RECORDED = {
    "torch213_gloo_ok": ("none", []),
    "torch213_gloo_missing": ("missing rank", [2]),
    "torch213_gloo_type": ("type mismatch", [1]),
    "torch213_gloo_late": ("none", []),
    "torch213_gloo_two_groups": ("deadlock", [2, 3]),
    "torch213_gloo_p2p": ("none", []),
    "torch213_gloo_ring4": ("none", []),
    "nccl_like_ok": ("none", []),
    "nccl_like_missing": ("missing rank", [2]),
    "nccl_like_missing_no_dump": ("no dump", [2]),
    "nccl_like_type": ("type mismatch", [1]),
    "nccl_like_size": ("size mismatch", [3]),
    "nccl_like_dtype": ("dtype mismatch", [3]),
    "nccl_like_two_groups": ("deadlock", [2, 3]),
    "nccl_like_p2p": ("partly completed", [2]),
    "nccl_like_ring4": ("none", []),
}


def answer(result: Hang) -> tuple[str, list[int]]:
    """Cause and culprits."""
    return result.cause, list(result.culprits)


def of(dumps: dict[int, Any]) -> Hang:
    """The result of dumps in memory, by way of the tables of their traces."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        for rank, dump in dumps.items():
            Path(folder, f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        return ta.hang(folder)


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", RECORDED)
def test_recorded_runs(shared: Path, case: str) -> None:
    result = ta.hang(shared / "data/flight_recorder" / case)
    assert answer(result) == RECORDED[case]
    assert result.verdict


def test_every_recorded_run_is_tested(shared: Path) -> None:
    folders = {path.name for path in (shared / "data/flight_recorder").iterdir() if path.is_dir()}
    assert folders == set(RECORDED)


def test_json_of_recorded_runs(shared: Path) -> None:
    folder = shared / "data/flight_recorder"
    expected = {"missing": ("missing rank", [2]), "type": ("type mismatch", [1])}
    for case, verdict in expected.items():
        paths = sorted((folder / f"torch213_gloo_{case}").glob("*.json"))
        assert answer(ta.hang(paths)) == verdict


def test_rank_that_arrived_last(shared: Path) -> None:
    result = ta.hang(shared / "data/flight_recorder/torch213_gloo_late")
    latest = result.matched.instances.filter(pl.col("seq") == 11).row(0, named=True)
    assert latest["last_rank"] == 2
    assert 0.4e9 < latest["last_ns"] - latest["median_ns"] < 0.6e9
    assert "Rank 2" in result.verdict


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", SCRIPT["VERDICTS"])
def test_simulated_runs(case: str) -> None:
    result = ta.hang(FOLDER / case)
    assert answer(result) == SCRIPT["VERDICTS"][case]
    assert result.table()
    assert all(chart.frame.height for chart in result.charts)


def test_fixtures_equal_the_output_of_the_script() -> None:
    for case, files in SCRIPT["CASES"].items():
        written = {path.name: path.read_bytes() for path in (FOLDER / case).iterdir()}
        assert written == files()


@pytest.mark.parametrize(
    ("last", "other", "now", "parts"),
    [
        ("a (t.py:1)", "b (t.py:9)", None, ("between a (t.py:1) and b (t.py:9)", "rank 2")),
        ("a (t.py:1)", "a (t.py:1)", None, ("what follows a (t.py:1)",)),
        ("a (t.py:1)", "b (t.py:9)", "load (d.py:5)", ("load (d.py:5)", "b (t.py:9)")),
        (None, "b (t.py:9)", None, ()),
    ],
)
def test_lines_between_the_last_collective_and_the_missing_one(
    last: str | None, other: str | None, now: str | None, parts: tuple[str, ...]
) -> None:
    text = texts.between(2, last, other, now)
    assert all(part in text for part in parts)
    assert bool(text) == bool(parts)


def test_advice_names_the_lines() -> None:
    result = ta.hang(FOLDER / "missing")
    assert "step (train.py:52)" in result.advice  # where the others wait


def test_sentence_of_a_missing_rank() -> None:
    result = ta.hang(FOLDER / "missing")
    assert result.verdict.startswith(
        "Rank 2 never entered all_reduce #7 (11.44 MiB float32) of group default_pg [0-3]; "
        "ranks 0, 1, 3 have waited 600 s; rank 2 last completed broadcast #6 at step "
        "(train.py:41), now at load_batch (data.py:17)."
    )
    assert result.scalars["culprit_ranks"] == [2]
    assert result.scalars["waiting_ranks"] == [0, 1, 3]
    ranks = {row["rank"]: row for row in result.to_polars("ranks").to_dicts()}
    assert ranks[2]["now"] == "load_batch (data.py:17)"
    assert ranks[0]["waited_ns"] == 600 * 10**9
    assert ranks[0]["place"] == "step (train.py:52)"


def test_chain_ends_at_the_rank_without_a_dump() -> None:
    result = ta.hang(FOLDER / "chain")
    assert [one.waiting for one in result.stuck.chain] == [(0, 1), (2,)]
    assert result.missing_dumps == (3,)
    assert result.to_polars("ranks")["rank"].to_list() == [3, 0, 1, 2]


def test_the_first_call_that_a_rank_missed_is_the_cause() -> None:
    """Most ranks wait in a later one, for rank 3 and for rank 2, which waits for rank 3."""
    run = Run(groups={"0": WORLD, "tp": (2, 3)})
    run.steps()
    run.call(2, group="tp", state="started", line=30)
    for rank in (0, 1):
        run.call(rank, state="started", line=60)
    result = of(run.dumps())
    assert answer(result) == ("missing rank", [3])
    (cause,) = result.stuck.causes
    assert (cause.waiting, cause.missing) == ((2,), (3,))
    assert [one.waiting for one in result.stuck.chain] == [(0, 1), (2,)]


def test_rings_are_aligned_by_sequence_number() -> None:
    result = ta.hang(FOLDER / "ring_buffers")
    instances = {row["seq"]: row for row in result.matched.instances.to_dicts()}
    # rank 2 has the last two collectives, rank 3 misses the last
    assert instances[12]["verdict"] == "completed"
    assert (instances[12]["n_entered"], instances[12]["n_missing"]) == (4, 0)
    assert (instances[11]["n_entered"], instances[11]["n_missing"]) == (3, 0)
    assert (instances[13]["verdict"], instances[13]["n_missing"]) == ("missing rank", 1)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"0": 12}, "missing rank"),  # no status: the rank called nothing of the group
        ({"0": 12, "1": -1}, "missing rank"),
        ({"0": 12, "1": 1}, "no record"),  # of a group whose entries are lost, perhaps of this one
        ({}, "no record"),  # PyTorch before 2.4
    ],
)
@pytest.mark.parametrize("others", [(2, 3), (0, 2, 3)])
def test_a_rank_without_records_of_a_group_in_a_wrapped_buffer(
    status: dict[str, int], cause: str, others: tuple[int, ...]
) -> None:
    run = Run(groups={"0": WORLD, "tp": tuple(sorted((1, *others)))})
    run.steps(6)
    for rank in others:
        run.call(rank, group="tp", state="started")
    dumps = {rank: run.dump(rank, newest=5) for rank in WORLD}
    of_group = {key: {"last_enqueued_collective": last} for key, last in status.items()}
    dumps[1]["pg_status"] = of_group
    result = of(dumps)
    assert answer(result) == (cause, [1])
    assert result.waiting == others
    row = result.to_polars("operations").row(0, named=True)
    assert (row["missing"], row["no_record"]) == (
        ("1", None) if cause == "missing rank" else (None, "1")
    )


def test_a_rank_without_records_waits_in_another_group() -> None:
    run = Run(groups={"0": WORLD, "tp": (0, 1)})
    run.steps(6)
    run.call(0, group="tp", state="started")
    for rank in (1, 2, 3):
        run.call(rank, state="started")
    result = of({rank: run.dump(rank, newest=5) for rank in WORLD})
    assert answer(result) == ("deadlock", [0, 1])


def test_the_rank_that_left_out_a_call_differs_in_a_deadlock() -> None:
    run = Run(groups={"0": WORLD, "ep": (1, 2, 3)})
    run.steps(6)
    run.all("all_to_all", "ep")
    for rank in (0, 3):  # rank 3 has no tokens, and goes on to the gradients
        run.call(rank, state="started")
    for rank in (1, 2):
        run.call(rank, "all_to_all", group="ep", state="started")
    assert answer(of(run.dumps())) == ("deadlock", [3])


@pytest.mark.parametrize("done", [0, 3])
def test_a_deadlock_counts_earlier_transfers(done: int) -> None:
    run = Run(ranks=(0, 1), groups={"0": (0, 1)})
    run.steps(2)
    for _ in range(done):
        run.call(0, "send 0->1", p2p=True)
        run.call(1, "recv 1<-0", p2p=True)
    run.call(0, state="started")  # with fewer micro-batches than rank 1
    run.call(1, "recv 1<-0", p2p=True, state="started")
    result = of(run.dumps())
    assert result.cause == "deadlock"
    assert (f"made {done} sends to rank 1" in result.verdict) == (done > 0)
    check_wording(result.verdict)


@pytest.mark.parametrize(("state", "is_deadlock"), [("scheduled", True), ("started", False)])
def test_receives_behind_sends_are_a_deadlock(state: str, is_deadlock: bool) -> None:
    run = Run(ranks=(0, 1), groups={"0": (0, 1)})
    for rank in (0, 1):
        other = 1 - rank
        run.call(rank, f"send {rank}->{other}", p2p=True, state="started")
        run.call(rank, f"recv {rank}<-{other}", p2p=True, state=state)
    result = of(run.dumps())
    assert result.stuck.is_deadlock == is_deadlock
    assert ("batch_isend_irecv" in result.advice) == is_deadlock


@pytest.mark.parametrize("line", [40, 61])
def test_two_calls_of_other_sizes_are_not_two_shapes_of_one(line: int) -> None:
    run = Run()
    run.steps()
    for rank in WORLD:
        run.call(rank, "all_gather", size=64 if rank else 8, state="started")
        frame = {"name": "save", "filename": "/home/u/train.py", "line": 61 if rank else line}
        run.entries[rank][-1]["frames"] = [frame]
    result = of(run.dumps())
    assert answer(result) == ("size mismatch", [0])
    assert ("'if rank == 0'" in result.advice) == (line == 40)


@pytest.mark.parametrize(
    ("lines", "others", "cause"),
    [
        ((50, 60, 61), (60, 61), "extra call"),
        ((50, 51, 60), (60,), "extra call"),
        ((60, 61), (50, 60, 61), "left out call"),
        ((50, 60), (62,), "missing rank"),  # no more calls than the others: another branch
        ((62, 60, 61), (60, 63), "missing rank"),
    ],
)
def test_calls_of_some_ranks_only(
    lines: tuple[int, ...], others: tuple[int, ...], cause: str
) -> None:
    run = Run()
    run.steps()
    entered = min(len(lines), len(others))
    for rank in WORLD:
        for number, line in enumerate(others if rank else lines):
            run.call(rank, line=line, state="completed" if number < entered else "started")
    result = of(run.dumps())
    assert result.cause == cause
    if cause != "missing rank":
        assert result.culprits == (0,)
        assert result.stuck.causes[0].seq == 7
        assert "(train.py:50)" in result.advice


def test_a_recorded_rank_that_never_entered(shared: Path) -> None:
    result = ta.hang(shared / "data/causes/other/hang_wrapped_first_missed")
    assert answer(result) == ("missing rank", [1])


def test_majority_is_right_whichever_file_is_first() -> None:
    result = ta.hang(FOLDER / "size_mismatch")
    rows = result.to_polars("differences").select("value", "ranks", "is_minority").rows()
    assert rows == [("[1024]", "1-3", False), ("[512]", "0", True)]


def test_ties_blame_nobody() -> None:
    result = ta.hang(FOLDER / "type_tie")
    assert result.culprits == ()
    assert not result.to_polars("differences")["is_minority"].any()
    lines = ["step (train.py:60, 61)", "step (train.py:62, 63)"]
    assert result.to_polars("differences")["place"].to_list() == lines
    assert all(line in result.verdict for line in lines)


def test_charts_have_lanes_of_the_group_only() -> None:
    result = ta.hang(FOLDER / "two_groups")
    lanes = {tuple(chart.frame["rank"].unique().sort()) for chart in result.charts}
    assert lanes == {(0, 1, 2, 3), (1, 2)}
    assert len({chart.name for chart in result.charts}) == len(result.charts)


def test_lines_of_a_call() -> None:
    assert joined_places([]) is None
    assert joined_places(["f (a.py:3)", "f (a.py:3)"]) == "f (a.py:3)"
    assert joined_places([f"f (a.py:{line})" for line in range(7, 12)]) == "f (a.py:7-11)"
    assert joined_places(["f (a.py:3)", "g (a.py:9)"]) == "f (a.py:3), g (a.py:9)"


def test_only_ranks_with_collectives_completed() -> None:
    files = sorted((FOLDER / "malformed").iterdir())
    whole = [path for path in files if not path.name.startswith("truncated")]
    result = ta.hang([FOLDER / "complete" / "nccl_trace_rank_0", *whole])
    assert answer(result) == ("none", [])
    check_wording(result.verdict)


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", [-1, 2**70, "x", None])
def test_collectives_without_numbers_prove_nothing(number: object) -> None:
    dumps = {rank: pickle.loads((FOLDER / "missing" / f"nccl_trace_rank_{rank}").read_bytes())  # noqa: S301 - our own
             for rank in range(4)}  # fmt: skip
    for dump in dumps.values():
        for entry in dump["entries"]:
            entry["collective_seq_id"] = number
    result = of(dumps)
    assert answer(result) == ("unknown", [])
    assert "No hang" not in result.verdict


def test_gloo_does_not_record_transfers(shared: Path) -> None:
    folder = shared / "data/flight_recorder"
    for name in ("torch213_gloo_p2p", "nccl_like_ok"):
        check_wording(ta.hang(folder / name).verdict)


def test_tables_have_the_same_causes_and_dtypes() -> None:
    result = ta.hang(FOLDER / "two_groups")
    rows = result.to_polars("collectives").filter(pl.col("verdict") != "completed")
    assert rows["verdict"].unique().to_list() == ["deadlock"]
    assert result.to_polars("operations")["cause"].unique().to_list() == ["deadlock"]
    assert rows["dtype"].unique().to_list() == ["float32"]


# --- definitions -------------------------------------------------------------------------------


def test_a_shape_is_not_a_difference_if_the_number_of_elements_is_equal() -> None:
    run = Run()
    for rank in range(4):
        run.call(rank, state="started")
    run.entries[1][0]["input_sizes"] = run.entries[1][0]["output_sizes"] = [[32, 32]]
    assert of(run.dumps()).cause == "not completed"


def test_uneven_gathers_and_all_to_all_are_allowed() -> None:
    run = Run()
    for op in ("all_to_all", "scatter", "gather"):
        for rank in range(4):
            run.call(rank, op, size=100 + rank)
    run.all("all_gather")
    for rank in range(4):  # uneven inputs, the same outputs
        run.entries[rank][-1]["input_sizes"] = [[rank + 1]]
    assert of(run.dumps()).cause == "none"


@pytest.mark.parametrize(
    ("op", "name", "value", "cause"),
    [
        ("all_reduce", "output_sizes", [[3]], "size mismatch"),
        ("reduce_scatter", "output_sizes", [[3]], "size mismatch"),
        ("all_reduce", "output_dtypes", ["Half"], "dtype mismatch"),
        ("all_to_all", "output_sizes", [[3]], "none"),
    ],
)
def test_outputs_that_differ_between_ranks(op: str, name: str, value: object, cause: str) -> None:
    run = Run()
    run.all(op)
    for rank in WORLD:
        entry = run.entries[rank][-1]
        entry |= {"output_sizes": [[8]], "output_dtypes": entry.get("input_dtypes", ["Float"])}
    run.entries[2][-1][name] = value
    result = of(run.dumps())
    assert answer(result) == (cause, [2] * (cause != "none"))
    assert ("[3]" in result.verdict, "float16" in result.verdict) == (
        cause == "size mismatch", cause == "dtype mismatch",
    )  # fmt: skip


def test_sequence_numbers_near_the_limit() -> None:
    run = Run()
    run.steps()
    run.call(1, "all_gather", size=8, state="started")
    for entries in run.entries.values():
        for entry in entries:
            entry["collective_seq_id"] += (1 << 63) - 8  # of 7
    assert answer(of(run.dumps()))[0] == "missing rank"


def test_a_mismatch_that_completed_is_reported() -> None:
    run = Run()
    for rank in range(4):
        run.call(rank, "all_reduce" if rank else "broadcast")
    run.steps()
    assert answer(of(run.dumps())) == ("type mismatch", [0])


def test_coalesced_collectives_are_compared_part_by_part() -> None:
    run = Run()
    run.steps()
    for rank in range(4):
        run.call(rank, "all_gather", size=64, state="scheduled")
        run.call(
            rank, "all_gather", size=128 if rank != 3 else 256, state="scheduled", same_seq=True
        )
        run.call(rank, "coalesced", state="started", same_seq=True)
    result = of(run.dumps())
    assert answer(result) == ("size mismatch", [3])
    last = result.matched.instances.filter(pl.col("seq") == 7)
    assert last["n_started"].to_list() == [4, 4, 4]


@pytest.mark.parametrize("op", ["_broadcast_oop", "_reduce_oop"])
def test_parts_of_uneven_collectives_have_equal_sizes(op: str) -> None:
    run = Run()
    for rank in range(4):
        run.call(rank, op, size=64)
        run.call(rank, op, size=25 if rank == 2 else 16, same_seq=True)
    assert answer(of(run.dumps())) == ("size mismatch", [2])


def test_later_work_of_a_stuck_rank_is_no_cause() -> None:
    run = Run(groups={"0": (0, 1, 2, 3), "tp": (0, 1), "dp": (2, 3)})
    run.steps()
    for rank in (0, 1, 2):
        run.call(rank, state="started")
    run.all("all_gather", "tp", state="scheduled")
    assert answer(of(run.dumps())) == ("missing rank", [3])


def test_a_deadlock_is_found_with_another_cause() -> None:
    run = Run(groups={"0": (0, 1, 2, 3), "a": (0, 1), "b": (0, 1), "c": (2, 3)})
    run.steps()
    run.call(0, group="a", state="started")
    run.call(1, group="b", state="started")
    run.call(2, group="c", state="started")
    result = of(run.dumps())
    assert result.cause == "deadlock"
    assert {one.cause for one in result.stuck.causes} == {"missing rank"}
    assert "rank 3" in result.verdict.lower()


def test_transfers_of_other_pairs_do_not_match() -> None:
    run = Run(ranks=(0, 1, 2), groups={"0": (0, 1, 2)})
    run.call(0, "recv 0<-1", p2p=True, state="started")
    run.call(1, "send 1->2", p2p=True, state="started")
    run.call(2, "recv 2<-1", p2p=True, state="started")
    result = of(run.dumps())
    pairs = {(one.op, one.waiting, one.cause) for one in result.stuck.stuck}
    assert ("recv", (0,), "missing rank") in pairs
    assert ("send", (1,), "not completed") in pairs
    assert ("recv", (2,), "not completed") in pairs


def test_a_receive_may_wait_for_a_send_that_completed() -> None:
    run = Run(ranks=(0, 1), groups={"0": (0, 1)})
    run.call(1, "send 1->0", p2p=True)
    run.call(0, "recv 0<-1", p2p=True, state="started")
    assert of(run.dumps()).cause == "not completed"


def test_transfer_sizes_are_compared() -> None:
    run = Run(ranks=(0, 1), groups={"0": (0, 1)})
    run.call(1, "send 1->0", p2p=True, state="started", size=8)
    run.call(0, "recv 0<-1", p2p=True, state="started", size=16)
    assert of(run.dumps()).cause == "size mismatch"


def test_ranks_of_transfers_are_places_in_the_group() -> None:
    run = Run(groups={"0": (0, 1, 2, 3), "pp": (1, 3)})
    run.call(1, "send 0->1", "pp", p2p=True, state="started")
    run.call(3, "recv 1<-0", "pp", p2p=True, state="started")
    result = of(run.dumps())
    assert {one.cause for one in result.stuck.stuck} == {"not completed"}


def test_groups_of_one_name_with_other_ranks_are_different() -> None:
    runs = [Run(ranks=ranks, groups={"mesh": ranks}) for ranks in ((0, 1), (2, 3))]
    for run in runs:
        run.all(group="mesh")
    runs[0].call(0, group="mesh", state="started")
    result = of(runs[0].dumps() | runs[1].dumps())
    assert answer(result) == ("missing rank", [1])
    assert sorted(map(len, result.groups.table["ranks"].to_list())) == [2, 2]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("[0, 1, 3]", (0, 1, 3)), ("0-3,8", (0, 1, 2, 3, 8)), ("[]", ()), ("0-99999999", ())],
)
def test_lists_of_ranks(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(text) == ranks


# --- inputs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stack", "place", "builds"),
    [
        ([("read", "/home/ada/work/io.py")], "read (io.py:5)", False),
        (
            [
                ("wait", "torch/utils/file_baton.py"),
                ("build", "flashinfer/jit/core.py"),
                ("spawn_main", "multiprocessing/spawn.py"),
                ("<module>", "<string>"),
            ],
            "build (flashinfer/jit/core.py:5)",
            True,
        ),
        (
            [
                ("all_reduce", "/usr/lib/python3/dist-packages/torch/distributed/c10d.py"),
                ("reduce", "/usr/lib/python3/dist-packages/vllm/distributed/state.py"),
                ("forward", "/usr/lib/python3/dist-packages/vllm/models/qwen.py"),
                ("<module>", "<string>"),
            ],
            "forward (vllm/models/qwen.py:5)",
            False,
        ),
    ],
)
def test_py_spy_is_joined_by_the_thread(
    stack: list[tuple[str, str]], place: str, builds: bool, tmp_path: Path
) -> None:
    run = Run()
    run.steps()
    for rank in (0, 1, 3):
        run.call(rank, state="started")
    for rank, dump in run.dumps().items():
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    thread = {"pid": 9, "thread_id": 140_000_000_000_002, "thread_name": "MainThread"}
    frames = [{"name": name, "filename": file, "line": 5} for name, file in stack]
    import json

    # the name has no rank: thread ids are those of the dump
    folder = tmp_path / "stacks"
    folder.mkdir()
    (folder / "s.json").write_text(json.dumps([thread | {"active": True, "frames": frames}]))
    result = ta.hang(tmp_path)
    assert result.threads["rank"].to_list() == [2]
    assert place in result.verdict
    assert ("file_baton" in result.advice) == builds


@pytest.mark.parametrize(
    ("calls", "answered"),
    [
        (("barrier", None), ("outside collectives", (1,), (0,))),
        (("barrier", "all_reduce"), ("unknown", (), (0, 1))),
        ((None, None), ("unknown", (), ())),
    ],
)
def test_stacks_without_dumps_name_the_ranks_outside_collectives(
    calls: tuple[str | None, ...], answered: tuple[Any, ...], tmp_path: Path
) -> None:
    for rank, call in enumerate(calls):
        inner = f"    {call} (torch/distributed/distributed_c10d.py:{rank})\n" if call else ""
        (tmp_path / f"rank{rank}.txt").write_text(
            f"Process {rank + 7}: python a.py\nPython v3.11.7 (/usr/bin/python3)\n\n"
            f'Thread {rank + 7} (idle): "MainThread"\n{inner}    step (a.py:{rank + 1})\n'
            'Thread 99 (idle): "Other"\n    run (b.py:3)\n'
        )
    result = ta.hang(tmp_path)
    assert (result.cause, result.culprits, result.waiting) == answered
    assert result.to_polars("threads")["place"].to_list() == ["step (a.py:1)", "step (a.py:2)"]
    assert ta.hang(tmp_path, rank=1).to_polars("threads")["rank"].to_list() == [1]


@pytest.mark.parametrize(
    ("names", "texts", "key"),
    [
        (["dump"], ["Process 42: a\n{}f (a.py:3)"], "one process"),
        (["rank0"], ["{}f (a.py:3)"], "only stacks"),
        (["dump"], ["{}all_reduce (torch/distributed/distributed_c10d.py:9)\n    f (a.py:3)"],
         "only stacks"),
        (["rank0", "rank1"], ["{}f (a.py:3)", "{}f (a.py:3)"], "only stacks"),
        (["a", "b"], ["Process 42: a\n{}f (a.py:3)", "Process 42: a\n{}f (a.py:3)"], "same line"),
        (["a", "b"], ["Process 42: a\n{}f (a.py:3)", "Process 42: a\n{}g (a.py:4)"], "other lines"),
        (["a", "b"], ["Process 42: a\n{}f (a.py:3)", "Process 43: a\n{}g (a.py:4)"], "only stacks"),
    ],
)  # fmt: skip
def test_advice_for_stacks_alone_is_that_of_a_job_or_of_one_process(
    tmp_path: Path, names: list[str], texts: list[str], key: str
) -> None:
    for name, text in zip(names, texts, strict=True):
        thread = 'Thread 7 (idle): "MainThread"\n    '
        (tmp_path / f"{name}.txt").write_text(text.format(thread) + "\n")
    assert ta.hang(tmp_path).advice == ADVICE[key]


def test_the_line_that_shows_why_an_engine_waits_is_named(tmp_path: Path) -> None:
    frames = (
        "poll (zmq/sugar/poll.py:106)",
        "dequeue (vllm/distributed/device_communicators/shm_broadcast.py:794)",
        "get_response (vllm/v1/executor/multiproc_executor.py:387)",
        "run (vllm/v1/engine/core.py:9)",
    )
    path = tmp_path / "dump.txt"
    path.write_text("\n".join(['Thread 7 (idle): "MainThread"', *(f"    {f}" for f in frames), ""]))
    place = ta.hang(path).to_polars("threads")["place"].to_list()
    assert place == ["get_response (vllm/v1/executor/multiproc_executor.py:387)"]


def test_of_several_dumps_of_a_rank_the_newest_counts(tmp_path: Path) -> None:
    run = Run()
    run.steps()
    for rank, dump in run.dumps().items():
        (tmp_path / f"rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    old = run.dump(1) | {"entries": run.entries[1][:2]}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "rank_1").write_bytes(pickle.dumps(old, protocol=2))
    result = ta.hang(tmp_path)
    assert result.cause == "none"
    assert [Path(path).parent.name for path in result.repeated["path"]] == ["old"]


def test_dumps_of_several_jobs_are_an_error(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/flight_recorder"
    with pytest.raises(InputError, match="several jobs") as error:
        ta.hang([folder / "nccl_like_ok", folder / "nccl_like_ring4", folder / "torch213_gloo_ok"])
    assert str(folder / "torch213_gloo_ok") in str(error.value)
    # the ranks of the default group differ, in one folder
    for name, ranks in (("a", (0, 1)), ("b", (0, 1, 2))):
        run = Run(ranks=ranks, groups={"0": ranks})
        run.steps()
        for rank, dump in run.dumps().items():
            (tmp_path / f"{name}_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    with pytest.raises(InputError, match="a_rank_0"):
        ta.hang(tmp_path)


def test_a_later_dump_in_one_folder_counts(tmp_path: Path) -> None:
    run = Run()
    run.steps(4)
    for rank in run.ranks:
        for name, kept in (("old", slice(0, 2)), ("new", slice(4, 8))):
            dump = run.dump(rank) | {"entries": run.entries[rank][kept]}
            (tmp_path / f"{name}_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    result = ta.hang(tmp_path)
    assert result.dumps["path"].str.contains("new").all()


def test_dumps_of_one_job_may_be_in_several_folders(tmp_path: Path) -> None:
    for name, case in (("node0", "complete"), ("copy", "complete")):
        (tmp_path / name).mkdir()
        for path in (FOLDER / case).iterdir():
            (tmp_path / name / path.name).write_bytes(path.read_bytes())
    assert ta.hang(tmp_path).repeated.height == 4


def test_a_rank_without_any_entry_is_the_culprit() -> None:
    run = Run()
    for rank in (0, 1, 3):
        run.call(rank, state="started")
    assert answer(of(run.dumps())) == ("missing rank", [2])


def test_unknown_rank_and_other_files(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes((FOLDER / "complete" / "nccl_trace_rank_0").read_bytes())
    with pytest.raises(MissingData, match="assume-rank"):
        ta.hang(path)
    assert ta.hang(path, assume_rank=3).dumps["rank"].to_list() == [3]
    with pytest.raises(MissingData, match="traceanalyzer diagnose"):
        ta.hang(FIXTURES / "nccl_8ranks" / "rank0.json.gz")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "command", [ta.kernels, ta.comm_outliers, ta.steps, ta.memory, ta.diagnose, ta.report]
)
def test_other_commands_name_hang(command: Callable[..., Any]) -> None:
    with pytest.raises(MissingData, match="traceanalyzer hang"):
        command(FOLDER / "complete")


def test_damaged_files_among_good_ones_are_skipped(tmp_path: Path) -> None:
    for rank in range(3):
        name = f"nccl_trace_rank_{rank}"
        (tmp_path / name).write_bytes((FOLDER / "complete" / name).read_bytes())
    hostile = FOLDER / "malformed" / "hostile_rank_0"
    (tmp_path / "hostile_rank_3").write_bytes(hostile.read_bytes())
    result = ta.hang(tmp_path)
    assert result.missing_dumps == (3,)
    assert any("hostile_rank_3" in note for note in result.notes)
    with pytest.raises(InputError):
        ta.hang(hostile)


def test_traces_in_memory_and_converted_files(tmp_path: Path) -> None:
    paths = sorted((FOLDER / "chain").glob("*"))
    traces = [ta.read(path) for path in paths]
    expected = ("no dump", [3])
    assert answer(ta.hang(traces)) == expected
    assert answer(ta.hang(ta.concat(traces))) == expected
    assert answer(traces[0].hang()) == ("no dump", [1, 2])
    for path in paths:
        ta.convert(path, tmp_path / f"{path.name}.parquet")
    assert answer(ta.hang(tmp_path)) == expected


def test_a_rank_with_a_truncated_dump_is_a_suspect_only(tmp_path: Path) -> None:
    for path in sorted((FOLDER / "network").glob("*")):
        data = path.read_bytes()
        end = len(data) * 9 // 10 if path.name.endswith("2") else len(data)
        (tmp_path / path.name).write_bytes(data[:end])
    result = ta.hang(tmp_path)
    assert answer(result) == ("no dump", [2])
    check_wording(result.verdict)


@pytest.mark.parametrize("name", ["type", "size", "dtype"])
def test_a_mismatch_keeps_its_advice_if_a_dump_is_missing(
    name: str, shared: Path, tmp_path: Path
) -> None:
    folder = next(shared.rglob(f"nccl_like_{name}"))
    whole = ta.hang(folder)
    for path in sorted(folder.glob("*"))[1:]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    result = ta.hang(tmp_path)
    assert (result.cause, result.culprits) == (whole.cause, whole.culprits)
    assert result.advice == whole.advice


def test_truncated_dumps_without_pending_records_are_no_proof(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/flight_recorder/nccl_like_missing"
    for path in folder.iterdir():
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data if path.name == "rank_2" else data[:3000])
    result = ta.hang(tmp_path)
    assert (result.cause, result.culprits) == ("unknown", ())
    ranks = next(table for table in result.tables if table.name == "ranks").frame
    status = dict(ranks.select("rank", "status").iter_rows())
    assert status == dict.fromkeys((0, 1, 3), "truncated dump") | {2: "nothing pending"}
    alone = ta.hang(tmp_path / "rank_1")
    assert (alone.cause, "truncated" in alone.verdict) == ("unknown", True)


@pytest.mark.matrix
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("case", "rank", "lengths"),
    [
        ("missing", 2, 30), ("missing", 0, 8), ("ok", 1, 8), ("type", 1, 8), ("type", 2, 8),
        ("two_groups", 2, 8), ("p2p", 2, 8), ("dtype", 3, 8),
    ],
)  # fmt: skip
def test_a_truncated_dump_blames_nobody_else(
    shared: Path, tmp_path: Path, case: str, rank: int, lengths: int, thorough: bool
) -> None:
    lengths = lengths if thorough else lengths // 4
    folder = shared / f"data/flight_recorder/nccl_like_{case}"
    cause, culprits = RECORDED[folder.name]
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = (folder / f"rank_{rank}").read_bytes()
    for end in range(600, len(data), (len(data) - 600) // lengths):
        (tmp_path / f"rank_{rank}").write_bytes(data[:end])
        result = ta.hang(tmp_path)
        assert result.cause in (cause, "no dump", "unknown"), end
        assert {*result.culprits} <= {*culprits, rank}, end
        assert not any({*one.incomplete} & {*one.completed} for one in result.stuck.stuck)
        assert all(len(one.calls) != 1 for one in result.stuck.stuck)


@pytest.mark.sample(4)
@pytest.mark.parametrize("end", [2500, 2800, 3000, 3200])
def test_the_half_read_entry_of_the_missing_rank_does_not_count(
    shared: Path, tmp_path: Path, end: int
) -> None:
    for path in (shared / "data/flight_recorder/nccl_like_missing").iterdir():
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data[:end] if path.name == "rank_2" else data)
    result = ta.hang(tmp_path)
    assert answer(result) == ("no dump", [2])
    assert result.waiting == (0, 1, 3)


def test_a_transfer_with_a_truncated_dump_is_not_blamed(tmp_path: Path) -> None:
    run = Run(ranks=(0, 1), groups={"0": (0, 1)})
    run.steps()
    run.call(0, "recv 0<-1", p2p=True, state="started")
    files = {rank: pickle.dumps(dump, protocol=2) for rank, dump in run.dumps().items()}
    (tmp_path / "rank_0").write_bytes(files[0])
    (tmp_path / "rank_1").write_bytes(files[1][: len(files[1]) * 2 // 3])
    assert answer(ta.hang(tmp_path)) == ("no dump", [1])


def test_rank_selects_rows_only() -> None:
    result = ta.hang(FOLDER / "chain", rank=2)
    assert answer(result) == SCRIPT["VERDICTS"]["chain"]
    assert result.to_polars("ranks")["rank"].to_list() == [2]
    with pytest.raises(OptionError):
        ta.hang(FOLDER / "chain", rank=9)


# --- random runs -------------------------------------------------------------------------------


@st.composite
def stopped_runs(draw: st.DrawFn) -> tuple[Any, int]:
    """A run of several groups in which one rank stops; what needs it waits."""
    size = draw(st.integers(2, 6))
    ranks = tuple(range(size))
    groups = {"0": ranks}
    for name in draw(st.lists(st.sampled_from("abc"), unique=True, max_size=3)):
        members = draw(st.sets(st.sampled_from(ranks), min_size=2))
        groups[name] = tuple(sorted(members))
    run = Run(ranks=ranks, groups=groups)
    culprit = draw(st.sampled_from(ranks))
    calls = draw(
        st.lists(
            st.tuples(st.sampled_from(sorted(groups)), st.sampled_from(["all_reduce", "barrier"])),
            max_size=12,
        )
    )
    stop = draw(st.integers(0, len(calls)))
    calls.append(("0", "all_reduce"))  # all ranks wait for the culprit in the end
    blocked: set[int] = set()
    for number, (group, op) in enumerate(calls):
        members = groups[group]
        entering = [r for r in members if r not in blocked and (number < stop or r != culprit)]
        completes = len(entering) == len(members)
        for rank in entering:
            run.call(rank, op, group, state="completed" if completes else "started")
        blocked |= set() if completes else set(entering)
    return run, culprit


@settings(max_examples=30)
@given(stopped_runs(), st.integers(1, 30))
def test_the_rank_that_stopped_is_named(run: tuple[Any, int], newest: int) -> None:
    job, culprit = run
    result = _combined({rank: job.dump(rank) for rank in job.ranks})
    assert answer(result) == ("missing rank", [culprit])
    # ring buffers that still hold the stuck collectives give the same answer
    rings = {rank: job.dump(rank, newest + rank) for rank in job.ranks}
    assert _combined(rings).cause in ("missing rank", "no record", "not completed", "none")


@settings(max_examples=20)
@given(stopped_runs())
def test_the_rank_without_a_dump_is_the_suspect(run: tuple[Any, int]) -> None:
    job, culprit = run
    dumps = {rank: job.dump(rank) for rank in job.ranks if rank != culprit}
    assert answer(_combined(dumps)) == ("no dump", [culprit])


def _combined(dumps: dict[int, Any]) -> Hang:
    parts = [compute.measure(trace, Options()) for trace in _traces(dumps)]
    return compute.combine(parts, Options())


def _traces(dumps: dict[int, Any]) -> Sequence[ta.Trace]:
    """Traces of dumps, without files."""
    from traceanalyzer.parsers.flight_recorder import reader
    from traceanalyzer.parsers.tables import as_table
    from traceanalyzer.vocabulary import FLIGHT_RECORDER

    traces = []
    for rank, dump in dumps.items():
        rows = [reader._Fields(entry) for entry in dump["entries"]]
        numbers, stacks = reader._Numbers(), reader._Stacks()
        of_rank = pl.lit(rank, pl.Int32)
        records = reader._records(rows, stacks, numbers).with_columns(rank=of_rank)
        groups = reader._groups(reader._Fields(dump), rows, numbers).with_columns(rank=of_rank)
        meta = ta.Meta(path=f"rank_{rank}", format=FLIGHT_RECORDER, rank=rank, backend="nccl")
        traces.append(
            ta.Trace(
                (meta,),
                stacks=stacks.table(),
                process_groups=as_table(groups, "process_groups"),
                collective_records=as_table(records, "collective_records"),
            )
        )
    return traces


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 7),
        st.sampled_from(
            ["state", "retired", "collective_seq_id", "process_group", "profiling_name", "is_p2p",
             "input_sizes", "record_id", "time_created_ns", "timeout_ms", "frames", "p2p_seq_id"]
        ),
        st.sampled_from([None, 0, -1, 5, "x", [], [["a"]], [[3]], True, "nccl:send 0->9", 1e300]),
    ),
    max_size=8,
)  # fmt: skip


@pytest.mark.matrix
@settings(max_examples=40)
@given(CHANGES, st.sampled_from(["missing", "coalesced", "groups"]))
def test_wrong_values_give_a_result(changes: Any, case: str) -> None:
    job = Run(groups={"0": (0, 1, 2, 3), "tp": (0, 2)})
    job.steps(2)
    if case == "coalesced":
        job.call(0, "send 0->1", "tp", state=None, p2p=True)
        job.call(0, "coalesced", "tp", state="started", p2p=True, same_seq=True)
    job.all("all_gather", "tp", state="started" if case == "groups" else "completed")
    for rank in (0, 1, 2):
        job.call(rank, state="started")
    for rank, number, key, value in changes:
        entries = job.entries[rank]
        entries[number % len(entries)][key] = value
    result = _combined(job.dumps())
    assert result.verdict
    assert result.cause in (*ADVICE, "none")
    assert result.table(top=None)
    assert result.charts is not None


def test_the_order_of_the_files_does_not_matter() -> None:
    paths = sorted((FOLDER / "two_groups").glob("*"))
    assert ta.hang(paths).to_dict() == ta.hang(paths[::-1]).to_dict()


@pytest.mark.matrix
def test_a_thousand_ranks_are_combined() -> None:
    ranks = tuple(range(1024))
    run = Run(ranks=(0, 1), groups={"0": (0, 1)})
    run.steps(100)
    part = compute.measure(_traces({0: run.dump(0)})[0], Options())
    world = str(list(ranks))
    parts = [
        compute.Part(
            *(
                frame.with_columns(rank=pl.lit(rank, pl.Int32), path=pl.lit(f"rank_{rank}"))
                for frame in (
                    part.dumps,
                    part.records.head(part.records.height - (rank == 77)),
                    part.groups.with_columns(ranks=pl.lit(world)),
                    part.threads,
                )
            )
        )
        for rank in ranks
    ]
    started = pl.when(pl.col("order") == 199).then(pl.lit("started")).otherwise("state")
    parts = [
        compute.Part(
            one.dumps, one.records.with_columns(state=started.cast(one.records["state"].dtype)),
            one.groups, one.threads,
        )
        for one in parts
    ]  # fmt: skip
    result = compute.combine(parts, Options())
    assert answer(result) == ("missing rank", [77])
    assert len(result.waiting) == 1023
    assert result.charts[0].frame["rank"].n_unique() <= 32


@pytest.mark.parametrize("state", ["started", "completed"])
def test_one_dump_of_many_asks_for_the_others(state: str) -> None:
    run = Run(ranks=range(4), groups={"0": range(4)})
    run.steps()
    run.all(state=state)
    dumps = run.dumps()
    alone, without_one = of({0: dumps[0]}), of({rank: dumps[rank] for rank in (0, 1, 2)})
    assert (alone.missing_dumps, without_one.missing_dumps) == ((1, 2, 3), (3,))
    assert alone.cause == without_one.cause == ("no dump" if state == "started" else "none")
    assert "pass the" in alone.verdict
    assert "pass the" not in without_one.verdict


def test_a_size_mismatch_names_the_shapes_that_differ() -> None:
    """Outputs of all_gather differ on one rank; its input is that of another rank."""
    run = Run(ranks=range(3), groups={"0": range(3)})
    run.steps()
    run.all("all_gather", state="started")
    dumps = run.dumps()
    for rank, (size, gathered) in enumerate(((512, 2048), (1024, 2048), (512, 4096))):
        dumps[rank]["entries"][-1] |= {"input_sizes": [[size]], "output_sizes": [[gathered]]}
    first = of(dumps).stuck.causes[0]
    assert (first.cause, first.differing) == ("size mismatch", (2,))
    assert [(text.split()[0], ranks) for text, ranks in first.calls] == [
        ("[2048]", (0, 1)),
        ("[4096]", (2,)),
    ]
