"""Summaries: the same answers as the files, from many processes, from damaged and hostile files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import traceanalyzer as ta
from traceanalyzer import __version__, schema
from traceanalyzer.analyzers import registry
from traceanalyzer.cli.main import status
from traceanalyzer.errors import (
    MalformedInput,
    MissingData,
    OptionError,
    OutputError,
    UnknownFormat,
)
from traceanalyzer.render import render
from traceanalyzer.run import parts as summaries, workers
from traceanalyzer.run.baselines import PARTS_SCHEMA
from traceanalyzer.run.parts import Header, Summary, Writer
from traceanalyzer.tools import summarize as summarizing

FIXTURES = Path(__file__).parents[2] / "fixtures"
#: Half of the ranks of a job, with the straggler: to summarize one takes a second.
NUMBERS = (0, 2, 5, 7)
RANKS = [FIXTURES / "nccl_8ranks" / f"rank{rank}.json.gz" for rank in NUMBERS]
#: A recording that takes less.
SMALL = FIXTURES / "composer" / "ep0-ba5-rank0.json.gz"
FUNCTIONS = [e.name for e in registry.public() if e.name not in ("memory_diff", "diff")]
HEADER = Header(PARTS_SCHEMA, __version__, "a.json", None, 1, 1, 0, 1)


@pytest.fixture(scope="module")
def sums(tmp_path_factory) -> Path:
    """Summaries of 4 ranks, written in two shards."""
    folder = tmp_path_factory.mktemp("sums")
    first = ta.summarize(RANKS, folder, shard=(1, 2), analyses=[("kernels", {"by": "operator"})])
    assert (len(first.written), first.missing, first.contexts) == (2, 2, ())
    second = ta.summarize(RANKS, folder, shard=(0, 2), analyses=[("kernels", {"by": "operator"})])
    assert (len(second.written), second.missing, len(second.contexts)) == (2, 0, 1)
    return folder


def rank_file(rank: int) -> Path:
    return RANKS[NUMBERS.index(rank)]


def of_rank(folder: Path, rank: int) -> Path:
    return next(path for path in folder.glob(f"rank{rank}.*") if "context" not in path.name)


def answer(function, inputs, **options) -> str:
    try:
        return render(function(inputs, **options), "json", top=None).decode()
    except (MissingData, MalformedInput) as error:
        return f"{type(error).__name__}: {error}"


def assert_same(source: Path, folder: Path, names=FUNCTIONS) -> None:
    """Compare these analyses alone, and the report, which has all."""
    for name in names:
        function = getattr(ta, name)
        assert answer(function, folder) == answer(function, source), name
    named = {"named": [str(source)]}
    assert answer(ta.report, folder, **named) == answer(ta.report, source, **named)


@pytest.mark.matrix
def test_same_answers_of_all_analyses(sums, thorough):
    """Of some alone, unless thorough: the report has all."""
    assert_same(RANKS, sums, [*FUNCTIONS, "diagnose"] if thorough else FUNCTIONS[::10])


@pytest.mark.matrix
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("rocpd/training.rpd", ("overlap", "kernels", "info")),
        ("nsys/training.sqlite", ("gpu_idle", "comm_outliers", "timeline", "diagnose")),
        ("transformer/rank0.json.gz", ("operators", "comm_outliers", "flamegraph")),
        ("py_spy/threads_idle.raw.txt", ("flamegraph", "py_spy_report", "info")),
    ],
)
def test_same_answers_of_other_formats(name, functions, tmp_path):
    """Every analysis in the report, some of them alone."""
    ta.summarize(FIXTURES / name, tmp_path)
    assert_same(FIXTURES / name, tmp_path, functions)


@pytest.mark.matrix
def test_same_answers_of_a_snapshot(tmp_path):
    path = sorted((FIXTURES / "memory").glob("*.pickle"))[0]
    ta.summarize(path, tmp_path)
    assert_same(path, tmp_path, ["memory", "memory_oom", "memory_growth"])


@pytest.mark.matrix
def test_same_answers_of_options_that_measure_does_not_use(sums):
    for name, options in (
        ("gpu_idle", {"by": "step"}),
        ("comm_outliers", {"factor": 3.0}),
        ("overlap", {"by": "step"}),
        ("operators", {"sort_by": "calls"}),
        ("kernels", {"by": "operator"}),  # measured too, as requested
    ):
        function = getattr(ta, name)
        assert answer(function, sums, **options) == answer(function, RANKS, **options), name


@pytest.mark.matrix
def test_same_rank_and_same_comparison(sums, thorough):
    for rank in (5, 2) if thorough else (5,):
        assert answer(ta.gpu_idle, sums, rank=rank) == answer(ta.gpu_idle, RANKS, rank=rank)
        assert answer(ta.diagnose, sums, rank=rank) == answer(ta.diagnose, RANKS, rank=rank)
    assert answer(ta.diff, sums, after=sums) == answer(ta.diff, RANKS, after=RANKS)


def test_other_options_are_refused_with_the_call_to_make(sums):
    with pytest.raises(MissingData, match="gpu-idle --min-gap 5ns"):
        ta.gpu_idle(sums, min_gap_ns=5)
    for options in ({"since_ns": 1}, {"until_ns": 10**9}, {"assume_rank": 1}):
        with pytest.raises(OptionError, match="--"):
            ta.gpu_idle(of_rank(sums, 0), **options)
    for function in (ta.read, ta.merge, ta.query):
        arguments = {ta.read: (), ta.merge: (sums / "x.json",), ta.query: ("select 1",)}[function]
        with pytest.raises((ta.InputError, OptionError), match="summar"):
            function(of_rank(sums, 0), *arguments)


@pytest.mark.matrix
def test_options_that_measure_does_not_use_are_not_read_by_it(monkeypatch):
    """What is not marked as measured is never read while a part is measured."""
    trace = ta.read(rank_file(5))
    for entry in registry.public():
        options = entry.options_class()()
        free = {
            one
            for one, item in type(options).__dataclass_fields__.items()
            if item.metadata["option"].measured is False
        }
        read: set[str] = set()

        def spy(self, name, read=read):
            read.add(name)
            return object.__getattribute__(self, name)

        spied = type("Spied", (type(options),), {"__getattribute__": spy})
        analyzer = entry.analyzer()
        watched = object.__new__(spied)
        watched.__dict__.update(options.__dict__)
        read.clear()
        analyzer.needed(watched)
        try:
            part = analyzer.part(trace, watched)
        except MissingData:
            continue
        if analyzer.more:
            analyzer.more([part], watched)
        assert not read & free, entry.name


@pytest.mark.matrix
def test_missing_context_of_other_waits_has_a_note(sums):
    result = ta.comm_outliers(sums, min_wait_ns=1)
    assert len(result.delayed.windows) > len(ta.comm_outliers(sums).delayed.windows)
    assert any("not known" in note for note in result.input_notes)


@pytest.mark.matrix
def test_unchanged_inputs_are_kept(sums, tmp_path):
    folder = tmp_path / "sums"
    shutil.copytree(sums, folder)
    again = ta.summarize(RANKS, folder)
    assert (len(again.written), len(again.kept)) == (0, 4)
    assert ta.summarize(RANKS, folder, shard=(3, 4), force=True).written


@pytest.mark.matrix
def test_a_lost_process_is_named(sums, tmp_path):
    folder = tmp_path / "sums"
    shutil.copytree(sums, folder)
    of_rank(folder, 7).unlink()
    result = ta.gpu_idle(folder)
    assert sorted(set(result.to_polars("units")["rank"])) == [0, 2, 5]
    assert [note for note in result.input_notes if "1 of 4" in note and "inputs 3" in note]
    assert len(ta.summarize(RANKS, folder).written) == 1  # only what is missing
    assert answer(ta.gpu_idle, folder) == answer(ta.gpu_idle, sums)


@pytest.mark.matrix
def test_unreadable_inputs_are_in_the_answer(tmp_path, thorough):
    run = tmp_path / "run"
    run.mkdir()
    for path in (rank_file(rank) for rank in (0, 2, 7)):
        shutil.copy(path, run)
    (run / "rank2.json.gz").write_bytes(b"{}")
    data = (run / "rank7.json.gz").read_bytes()
    (run / "rank7.json.gz").write_bytes(data[: len(data) // 2])
    files = sorted(str(path) for path in run.iterdir())
    done = ta.summarize(files, tmp_path / "sums", workers=2)
    assert [Path(one.path).name for one in done.skipped] == ["rank2.json.gz"]
    for name in ("comm_outliers", "gpu_idle", "kernels")[: None if thorough else 1]:
        function = getattr(ta, name)
        assert answer(function, tmp_path / "sums") == answer(function, files), name
    with pytest.raises(ta.InputError):
        ta.summarize(run / "rank2.json.gz", tmp_path / "none")


def test_a_file_that_ended_its_worker_is_named_in_the_answer(monkeypatch, tmp_path):
    def each(function, tasks, number):
        yield workers.Ended("was killed (SIGKILL)")
        yield function(tasks[1])

    monkeypatch.setattr(workers, "each", each)
    files = [rank_file(0), SMALL]
    done = ta.summarize(files, tmp_path, workers=2)
    assert [one.path for one in done.skipped] == [str(rank_file(0))]
    notes = ta.operators(tmp_path).input_notes
    assert any(str(rank_file(0)) in note and "was killed" in note for note in notes)


def test_printed_text_is_not_summarized(tmp_path):
    log = FIXTURES / "printed_text" / "rank1.log"
    with pytest.raises(MalformedInput, match=log.name):
        ta.summarize(log, tmp_path)
    with pytest.raises(MalformedInput, match=log.name):
        ta.steps(tmp_path)


@pytest.mark.matrix
def test_many_processes_write_one_folder(tmp_path):
    """Like srun: 4 processes at once, each with its number in the environment."""
    command = [sys.executable, "-m", "traceanalyzer", "summarize", *map(str, RANKS), "-o", tmp_path]
    started = [
        subprocess.Popen(
            [*command, "--workers", "1"],
            env={**os.environ, "SLURM_PROCID": str(i), "SLURM_NTASKS": "4"},
            stderr=subprocess.DEVNULL,
        )
        for i in range(4)
    ]
    assert [one.wait(timeout=120) for one in started] == [0] * 4
    assert len([p for p in tmp_path.iterdir() if "context" not in p.name]) == 4
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert answer(ta.comm_outliers, tmp_path) == answer(ta.comm_outliers, RANKS)


def test_shards_and_folders_are_checked(tmp_path):
    for number, shards in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(OptionError):
            ta.summarize(RANKS, tmp_path, shard=(number, shards))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        ta.summarize(rank_file(0), tmp_path / "file")
    with pytest.raises(OptionError):
        ta.summarize(ta.read(rank_file(0)), tmp_path)


@pytest.mark.matrix
def test_full_disk_is_one_line(monkeypatch, tmp_path, capsys):
    real = Path.open

    def full(self, mode="r", *args, **kwargs):
        if ".part" in self.name and "x" in mode:
            raise OSError(28, "No space left on device")
        return real(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    arguments = ["summarize", str(SMALL), "-o", str(tmp_path), "-q"]
    assert status(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left" in line
    assert not list(tmp_path.iterdir())


# --- damaged and hostile files -----------------------------------------------------------------


def test_a_damaged_summary_is_named_and_the_rest_answered(sums, tmp_path):
    whole = of_rank(sums, 2).read_bytes()
    expected = sorted({*NUMBERS} - {2})
    for number, damaged in enumerate((whole[:-200], whole[:5000], bytes_swapped(whole, 3000))):
        folder = tmp_path / str(number)
        shutil.copytree(sums, folder)
        of_rank(folder, 2).write_bytes(damaged)
        result = ta.gpu_idle(folder)
        assert sorted(result.to_polars("units")["rank"]) == expected
        assert any(of_rank(sums, 2).name in note for note in result.input_notes)


def test_errors_about_summaries_name_summarize(sums, tmp_path):
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(of_rank(sums, 0).read_bytes()[:3000])
    with pytest.raises(MalformedInput, match="traceanalyzer summarize"):
        ta.diagnose(cut)
    other = tmp_path / "other.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(other)
    with pytest.raises(UnknownFormat, match="not a summary"):
        ta.read(other, format="summary")
    with pytest.raises(OptionError, match="summaries"):
        ta.info(sums, quick=True)


def bytes_swapped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(255 - byte for byte in data[at : at + 40]) + data[at + 40 :]


def rewritten(path: Path, header=None, change=None) -> None:
    """Write a summary again with another header, or other rows."""
    table, metadata = pq.read_table(path), pq.read_metadata(path).metadata
    about = json.loads(metadata[schema.SUMMARY.encode()]) | (header or {})
    if change:
        table = change(table)
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({schema.SUMMARY: json.dumps(about)})


@pytest.mark.parametrize("header", [{"schema": 0}, {"schema": 99}])
def test_other_versions_are_refused(sums, tmp_path, header):
    path = Path(shutil.copy(of_rank(sums, 0), tmp_path))
    rewritten(path, header)
    with pytest.raises(MalformedInput, match="traceanalyzer summarize"):
        ta.gpu_idle(path)


def test_other_versions_of_the_same_schema_are_read(sums, tmp_path):
    path = Path(shutil.copy(of_rank(sums, 0), tmp_path))
    before = ta.gpu_idle(path)
    rewritten(path, {"program": "9.9.9"})
    assert ta.gpu_idle(path).to_dict() == before.to_dict()


@pytest.mark.parametrize(
    "header",
    [
        {"index": -1},
        {"index": 7.5},
        {"total": "many"},
        {"total": 0},
        {"path": ["/etc/passwd"]},
        {"path": ""},
        {"schema": [1]},
        {"schema": None},
        {"bytes": None},
    ],
)
def test_headers_of_wrong_types_are_refused(sums, tmp_path, header):
    path = Path(shutil.copy(of_rank(sums, 0), tmp_path))
    rewritten(path, header)
    with pytest.raises(MalformedInput):
        ta.gpu_idle(path)


def with_values(section: str, change):
    """Return a change of the values of one section: of the packed bytes, or of what is packed."""

    def changed(table: pa.Table) -> pa.Table:
        packed = table["packed"].to_pylist()
        row = table["section"].to_pylist().index(section)
        now = change(msgspec.msgpack.decode(packed[row], type=list | dict, strict=False))
        packed[row] = now if isinstance(now, bytes) else msgspec.msgpack.encode(now)
        place = table.schema.get_field_index("packed")
        field = table.schema.field("packed")
        return table.set_column(place, field, pa.array(packed, field.type))

    return changed


@pytest.mark.parametrize(
    "packed",
    [
        *(b"", b"\xc0", b"\x80", b"\x90", b"\x92\x01\x02", b"\x92\x91\x01\x90", b"\xcb"),
        *(b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"),
        msgspec.msgpack.encode([[[None, [99999, [["a", 0]]]]], []]),
    ],
)
def test_values_of_wrong_types_are_refused(sums, tmp_path, packed):
    path = Path(shutil.copy(of_rank(sums, 0), tmp_path))
    rewritten(path, change=with_values("gpu-idle/gpu_idle", lambda _: packed))
    with pytest.raises(MalformedInput):
        ta.gpu_idle(path)
    assert ta.kernels(path).busy_ns == ta.kernels(rank_file(0)).busy_ns


def replaced(tree, change):
    """Return the values with each value and key changed, from the inside out."""
    if isinstance(tree, list):
        tree = [replaced(one, change) for one in tree]
    elif isinstance(tree, dict):
        tree = {replaced(key, change): replaced(one, change) for key, one in tree.items()}
    return change(tree)


def test_crafted_tables_are_one_error(sums, tmp_path):
    path = Path(shutil.copy(of_rank(sums, 0), tmp_path))
    renamed = lambda tree: replaced(tree, lambda one: "s" if one == "start" else one)  # noqa: E731
    rewritten(path, change=with_values("gpu-idle/gpu_idle", renamed))
    with pytest.raises(MalformedInput, match="summaries"):
        ta.gpu_idle(path)


def swapped(first: str, second: str):
    """Return a change of values: two columns of a table are swapped."""

    def change(one):
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[1], list)):
            return one
        columns = [pair for pair in one[1] if isinstance(pair, list) and len(pair) == 2]
        numbers = {pair[0]: pair[1] for pair in columns if isinstance(pair[0], str)}
        if not {first, second} <= {*numbers}:
            return one
        now = numbers | {first: numbers[second], second: numbers[first]}
        return [one[0], [[name, now[name]] for name in numbers]]

    return lambda tree: replaced(tree, change)


def self_called(tree):
    """Return the values of a flame graph in which callers are their own callers."""

    def change(one):
        is_part = isinstance(one, dict) and "forest" in one  # of the arrays of parents and frames
        return one | {"forest": [one["forest"][1]] * 2} if is_part else one

    return replaced(tree, change)


CRAFTED = [
    # a caller that is its own caller: without a check, no loop over the levels ends
    ("flamegraph", "flamegraph/flamegraph", "py_spy/default.raw.txt",
     self_called),
    ("info", "info/info", "nccl_8ranks/rank0.json.gz",
     lambda tree: replaced(tree, lambda one: 1e300 if one == 489 else one)),
    ("gpu_idle", "gpu-idle/issues", "nccl_8ranks/rank0.json.gz", lambda _: [[[], [0, []]]]),
    ("gpu_idle", "gpu-idle/issues", "nccl_8ranks/rank0.json.gz", swapped("severity", "code")),
    ("diagnose", "diagnose/memory_growth", "memory/training.pickle", swapped("path", "device")),
    ("report", "report/memory_growth", "memory/training.pickle", swapped("path", "device")),
]  # fmt: skip


@pytest.fixture(scope="module")
def summary_of(tmp_path_factory):
    """Return a function that summarizes a fixture once."""

    @cache
    def path_of(source: str) -> Path:
        (path,) = ta.summarize(FIXTURES / source, tmp_path_factory.mktemp("one")).written
        return Path(path)

    return path_of


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "section", "source", "change"), CRAFTED)
def test_crafted_parts_are_one_error(name, section, source, change, summary_of, tmp_path):
    path = Path(shutil.copy(summary_of(source), tmp_path))
    rewritten(path, change=with_values(section, change))
    with pytest.raises(MalformedInput, match="traceanalyzer summarize"):
        getattr(ta, name)(path)


def test_paths_in_a_summary_are_never_opened(sums, tmp_path, monkeypatch):
    """A summary that claims to be of another file does not make the program read that file."""
    folder = tmp_path / "sums"
    shutil.copytree(sums, folder)
    secret = tmp_path / "secret.json"
    secret.write_text('{"traceEvents": []}')
    for path in folder.iterdir():
        if "context" in path.name:
            path.unlink()
            continue
        name = str(rank_file(5))
        for section in ("comm-outliers", "comm-outliers/comm_outliers"):
            moved = lambda one, name=name: str(secret) if one == name else one  # noqa: E731
            rewritten(path, change=with_values(section, partial(replaced, change=moved)))
    opened: list[str] = []
    monkeypatch.setattr("traceanalyzer.run.loop.read_needed", lambda path, *_: opened.append(path))
    result = ta.comm_outliers(folder)
    assert opened == []
    assert any("secret.json" in note for note in result.input_notes)


@pytest.mark.matrix
def test_names_of_inputs_do_not_leave_the_folder(tmp_path):
    odd = tmp_path / "..%2f..\n$(x) 'rank0'.json.gz"
    shutil.copy(SMALL, odd)
    done = ta.summarize(odd, tmp_path / "sums")
    (path,) = map(Path, done.written)
    assert path.parent == tmp_path / "sums"
    assert not {*path.name} - {*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"}
    assert answer(ta.host_metrics, path) == answer(ta.host_metrics, odd)


@pytest.mark.matrix
def test_huge_counts_are_refused_before_reading(tmp_path, sums):
    path = Path(shutil.copy(of_rank(sums, 0), tmp_path))
    rows = 1 << 20
    table = pa.table([["a"] * rows, [b""] * rows], summaries._STORED)
    rewritten(path, change=lambda _: table)
    assert path.stat().st_size < 100_000
    with pytest.raises(MalformedInput, match="too many"):
        ta.gpu_idle(path)
    shutil.copy(of_rank(sums, 2), path)
    rewritten(path, header={"total": 1 << 60})
    assert ta.gpu_idle(path).input_notes  # says what is missing, without listing it all


# --- values ------------------------------------------------------------------------------------

_DTYPES = [
    *(pl.Int8, pl.Int32, pl.Int64, pl.UInt8, pl.UInt32, pl.UInt64, pl.Boolean, pl.Float64),
    *(pl.Float32, pl.String, pl.Categorical, pl.Null, pl.List(pl.Int64), pl.List(pl.String)),
]


def _column(dtype, length: int):
    if dtype == pl.Null:
        return st.just([None] * length)
    if isinstance(dtype, pl.List):
        values = st.lists(_value(dtype.inner), max_size=3)
    else:
        values = _value(dtype)
    return st.lists(st.none() | values, min_size=length, max_size=length)


def _value(dtype):
    if dtype == pl.Boolean:
        return st.booleans()
    if dtype in (pl.String, pl.Categorical):
        return st.text(st.characters(codec="utf-8"), max_size=4)
    if dtype in (pl.Float64, pl.Float32):
        return st.floats(width=32 if dtype == pl.Float32 else 64)
    limits = {pl.Int8: (-128, 127), pl.UInt8: (0, 255), pl.UInt32: (0, 2**32 - 1)}
    low, high = limits.get(dtype, (0 if dtype == pl.UInt64 else -(2**31), 2**31 - 1))
    if dtype == pl.UInt64:
        high = 2**64 - 1
    return st.integers(low, high)


@st.composite
def frames(draw) -> pl.DataFrame:
    length = draw(st.integers(0, 4))
    dtypes = draw(st.lists(st.sampled_from(_DTYPES), max_size=4))
    columns = {
        f"c{i}": pl.Series(draw(_column(dtype, length)), dtype=dtype)
        for i, dtype in enumerate(dtypes)
    }
    return pl.DataFrame(columns) if columns else pl.DataFrame(height=length)


@given(st.lists(frames(), max_size=3))
def test_tables_survive(tmp_path_factory, given_frames):
    path = str(tmp_path_factory.mktemp("one") / "a.parquet")
    writer = Writer()
    writer.add("tables", given_frames)
    writer.write(path, HEADER)
    for one, before in zip(
        Summary(path).read("tables", list[pl.DataFrame]), given_frames, strict=True
    ):
        assert one.schema == before.schema
        assert one.height == before.height
        assert one.equals(before)


SCALARS = tuple[int, float | None, str, dict[str, int], frozenset[int], tuple[bool, ...]]
_INTS = st.integers(-(2**63), 2**64 - 1)


@given(
    st.tuples(
        _INTS,
        st.none() | st.floats(allow_nan=False),
        st.text(st.characters(codec="utf-8")),
        st.dictionaries(st.text(st.characters(codec="utf-8")), _INTS),
        st.frozensets(_INTS),
        st.lists(st.booleans()).map(tuple),
    )
)
def test_scalars_survive(tmp_path_factory, value):
    path = str(tmp_path_factory.mktemp("one") / "a.parquet")
    writer = Writer()
    writer.add("values", value)
    writer.write(path, HEADER)
    again = Summary(path).read("values", SCALARS)
    assert again == value
    assert list(map(type, again)) == list(map(type, value))


def test_kept_only_with_all_analyses(sums, tmp_path):
    path = of_rank(sums, 0)
    task = summarizing._Task(str(rank_file(0)), 0, [*map(str, RANKS)], str(path))
    assert task.is_done()
    more = {"by": "operator", "comm_patterns": ("x",)}
    options = registry.ENTRIES["kernels"].options_class()(**more)
    assert not summarizing.replace(task, analyses=(("kernels", options),)).is_done()
