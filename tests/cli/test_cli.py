"""The program as a process: exit codes, output streams, atomic output files."""

import gzip
import json
import os
import pty
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sample_results import ordinary
from wording import check_wording

from traceanalyzer import files
from traceanalyzer.cli import main, output
from traceanalyzer.cli.answering import report
from traceanalyzer.cli.main import status
from traceanalyzer.errors import OutputError
from traceanalyzer.trace import Meta, Trace, issue_rows

ROOT = Path(__file__).parents[2]
RANKS = ROOT / "fixtures" / "nccl_8ranks"
EVENTS = [
    {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 50},
    {"ph": "X", "name": "\x1b[31mred", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 60, "dur": 5},
]


def _trace(folder: Path, rank: int = 0, *, cut: bool = False) -> Path:
    text = json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": EVENTS})
    path = folder / f"rank{rank}.json"
    path.write_text(text[:-20] if cut else text)
    return path


# --- as a process ----------------------------------------------------------------------------


def test_result_goes_to_stdout(run_program, tmp_path):
    done = run_program("info", _trace(tmp_path))
    assert done.returncode == 0
    assert "1 file (rank 0 of 2)" in done.stdout
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_bad_input_prints_one_line_and_exits_1(run_program, tmp_path):
    path = tmp_path / "noise.bin"
    path.write_bytes(os.urandom(100))
    done = run_program("info", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"traceanalyzer: {path}: ")
    assert done.stderr.count("\n") == 1


def test_control_characters_of_a_path_are_escaped(run_program, tmp_path):
    done = run_program("info", tmp_path / "\x1b]0;owned\x07")
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
    assert "\\x1b" in done.stderr


def test_wrong_usage_exits_2(run_program):
    done = run_program("info")
    assert (done.returncode, done.stdout) == (2, "")
    check_wording(done.stderr)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "env",
    [
        {"LANG": "C", "LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "40"},
    ],
    ids=["C", "ascii", "narrow"],
)
def test_locale_and_terminal_settings(run_program, tmp_path, env):
    path = tmp_path / "größe.json"
    path.write_bytes(_trace(tmp_path).read_bytes())
    done = run_program("info", path, env=env)
    assert done.returncode == 0, done.stderr
    assert "aten" not in done.stderr
    assert "cpu_op" in done.stdout


def test_closed_reader_is_not_an_error(tmp_path):
    paths = [str(_trace(tmp_path, rank)) for rank in range(2)]
    command = f"'{sys.executable}' -m traceanalyzer info {' '.join(paths)} --to json | head -c 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.stdout == b"{"
    assert done.stderr == b""


def test_closed_pipe_prints_nothing(tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "traceanalyzer", "info", str(_trace(tmp_path))],
        stdout=write,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_full_disk_prints_one_line(tmp_path):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "traceanalyzer", "info", str(_trace(tmp_path))],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"traceanalyzer: no space left on device\n")


def test_image_is_not_written_to_a_terminal(tmp_path):
    code, screen = _in_terminal("comm-outliers", _trace(tmp_path), "--to", "png")
    assert code == 2
    check_wording(screen)
    assert "PNG" not in screen


def test_terminal_output_escapes_control_characters(tmp_path):
    path = tmp_path / "\x1b[2Jrank0.json"
    path.write_bytes(_trace(tmp_path).read_bytes())
    code, screen = _in_terminal("info", path, "--to", "csv")
    assert code == 0
    assert "\x1b" not in screen
    assert "\\x1b[2Jrank0.json" in screen


def test_short_run_prints_no_progress(tmp_path):
    code, screen = _in_terminal("info", _trace(tmp_path))
    assert code == 0
    assert "B/s" not in screen


def _in_terminal(*arguments: object) -> tuple[int, str]:
    """Return exit status and screen of a command that runs in a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "traceanalyzer", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(theirs)
    screen = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:  # Linux, after the last writer has exited
            break
        if not block:
            break
        screen += block
    os.close(ours)
    return process.wait(), screen.decode()


def test_terminated_program_removes_partial_output(tmp_path):
    code = (
        "import sys, time\n"
        "from traceanalyzer import files\n"
        "from traceanalyzer.cli import main\n"
        "def slow(*_):\n"
        "    with files.opened(sys.argv[1]) as file:\n"
        "        file.write(b'half')\n"
        "        print('writing', flush=True)\n"
        "        time.sleep(30)\n"
        "main.status = slow\n"
        "main.run()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


def test_help_is_fast(run_program):
    """Measured as processor time, which concurrent tests do not change."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run_program("comm-outliers", "--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert 0 < min(times) < 0.3


# --- within this process ---------------------------------------------------------------------


def test_output_format_by_suffix(tmp_path):
    path, trace = tmp_path / "out.json", str(_trace(tmp_path))
    assert status(["info", trace, "-o", str(path)]) == 0
    assert json.loads(path.read_text())["files"][0]["rank"] == 0
    assert status(["info", trace, "-o", str(path), "--force", "--to", "csv"]) == 0
    assert path.read_text().startswith("path,format,")


@pytest.mark.parametrize("command", ["info", "timeline", "report", "flamegraph"])
def test_unknown_suffixes_are_errors_that_name_the_known_ones(tmp_path, capfd, command):
    path = tmp_path / "out.xyz"
    assert status([command, str(_trace(tmp_path)), "-o", str(path)]) != 0
    assert ".html" in capfd.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("command", ["kernels", "flamegraph"])
def test_window_after_the_recording_is_an_error(capfd, tmp_path, command):
    trace = str(ROOT / "fixtures" / "nccl_8ranks" / "rank0.json.gz")
    assert status([command, trace, "--since", "100s", "-o", str(tmp_path / "out.json")]) != 0
    assert "--since 100 s" in capfd.readouterr().err


def test_output_has_default_permissions(tmp_path):
    path, mask = tmp_path / "out.txt", os.umask(0o022)
    os.umask(mask)
    assert status(["info", str(_trace(tmp_path)), "-o", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_standard_input_is_no_trace(capfd):
    assert status(["diagnose", "-"]) == 1
    check_wording(capfd.readouterr().err)


@pytest.mark.parametrize("to", ["table", "md", "csv", "json"])
def test_no_control_character_is_written_to_a_pipe(tmp_path, capfd, to):
    path = tmp_path / "trace.json"
    row = {"ph": "X", "name": "a\x1b[31mb\x9b2J\x07", "cat": "cpu_op", "pid": 1, "tid": 1}
    path.write_text(json.dumps({"traceEvents": [{**row, "ts": 1, "dur": 5}]}))
    assert status(["query", str(path), "select name from events", "--to", to]) == 0
    text = capfd.readouterr().out
    assert not {*text} & {"\x1b", "\x9b", "\x07"}
    assert "1b" in text
    if to == "json":
        assert json.loads(text)["rows"] == [{"name": row["name"]}]


@pytest.mark.parametrize(("table", "first"), [(None, "family"), ("names", "kernel,name")])
def test_csv_has_the_chosen_table(capfd, table, first):
    chosen = ["--table", table] if table else []
    command = ["kernels", str(RANKS / "rank0.json.gz"), "--to", "csv", *chosen]
    assert status(command) == 0
    assert capfd.readouterr().out.startswith(f"{first},")
    assert status(["kernels", str(RANKS / "rank0.json.gz"), "--table", "names"]) == 2
    assert status(["kernels", str(RANKS / "rank0.json.gz"), "--to", "csv", "--table", "none"]) == 2


def test_existing_output_is_kept_without_force(tmp_path, capfd):
    path, trace = tmp_path / "out.txt", str(_trace(tmp_path))
    path.write_text("mine")
    assert status(["info", trace, "-o", str(path)]) == 1
    assert capfd.readouterr().err == f"traceanalyzer: {path}: exists; --force overwrites it\n"
    assert path.read_text() == "mine"
    assert status(["info", trace, "-o", str(path), "--force"]) == 0
    assert path.read_text().startswith("What")


@pytest.mark.parametrize(
    ("to", "text"), [("/nowhere/out.txt", "folder /nowhere does not exist"), (".", "is a folder")]
)
def test_impossible_output_path(tmp_path, capfd, to, text):
    assert status(["info", str(_trace(tmp_path)), "-o", to]) == 1
    assert text in capfd.readouterr().err


def test_source_is_not_overwritten(tmp_path, capfd):
    trace = _trace(tmp_path)
    before = trace.read_bytes()
    assert status(["convert", str(trace), "-o", str(trace)]) == 1
    assert trace.read_bytes() == before
    assert "exists" in capfd.readouterr().err


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", ["kernels", "diagnose", "report", "merge", "query"])
def test_an_input_is_not_replaced_with_force(tmp_path, capfd, command):
    folder = tmp_path / "run"
    folder.mkdir()
    for rank in range(2):
        text = gzip.decompress((RANKS / f"rank{rank}.json.gz").read_bytes())
        (folder / f"rank{rank}.json").write_bytes(text)
    source, link = folder / "rank1.json", tmp_path / "link.json"
    link.symlink_to(source)
    before = source.read_bytes()
    sql = ["select 1"] * (command == "query")
    for target in (source, link):
        assert status([command, str(folder), *sql, "-o", str(target), "--force"]) == 1
        assert "is an input" in capfd.readouterr().err
        assert source.read_bytes() == before
    result = folder / "result.json"
    for _ in range(2):
        assert status(["kernels", str(folder), "-o", str(result), "--force"]) == 0
    capfd.readouterr()


@pytest.mark.parametrize(
    "option",
    [
        ("--top", "9" * 30),
        ("--comm-pattern", ""),
        ("--comm-pattern", "(" * 5000),
        ("--comm-pattern", "a{9999999999}"),
    ],
    ids=["rows", "empty", "deep", "long"],
)
def test_impossible_values_of_options_are_an_error(capfd, option):
    code = status(["kernels", str(RANKS / "rank0.json.gz"), *option])
    assert code in (1, 2)
    error = capfd.readouterr().err
    assert "internal" not in error
    assert "Traceback" not in error


def test_output_symlink_is_kept(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    output.write(b"new", str(link))
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_output_device_is_not_replaced():
    files.check("/dev/null", force=False)
    output.write(b"x", "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_failure_leaves_no_file(tmp_path):
    target = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), files.opened(str(target)) as file:
        file.write(b"half" * (1 // 0))
    assert list(tmp_path.iterdir()) == []


def test_write_error_names_the_file(tmp_path):
    target = tmp_path / "out"
    message = f"{target}: cannot be written: No space left"
    with pytest.raises(OutputError, match=message), files.opened(str(target)):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_dropped_events_are_reported_unless_quiet(tmp_path, capfd):
    trace, out = str(_trace(tmp_path, cut=True)), tmp_path / "out.parquet"
    assert status(["convert", trace, "-o", str(out)]) == 0
    captured = capfd.readouterr()
    check_wording(captured.err)
    assert captured.out == ""
    assert status(["convert", trace, "-o", str(out), "--force", "--quiet"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("severity", "first", "line"),
    [
        ("data_loss", "byte 7", "a.json: odd at byte 7 (1,234 dropped)\n"),
        ("error", None, "a.json: odd (1,234 dropped)\n"),
        ("notice", "\x1b[31m", "a.json: odd: \\x1b[31m (1,234)\n"),
        ("info", "byte 7", ""),
    ],
    ids=lambda value: value if value in ("data_loss", "error", "notice", "info") else "",
)
def test_issue_message(capfd, severity, first, line):
    issues = issue_rows([(severity, "odd", 1234, first)], None)
    report(Trace((Meta("a.json", "chrome-trace"),), issues=issues), quiet=False)
    assert capfd.readouterr().err == line


def test_truncated_compressed_file_is_reported_once(capfd):
    codes = ("truncated", "damaged-file", "bad-event")
    issues = issue_rows([("data_loss", code, 1, None) for code in codes], None)
    report(Trace((Meta("a.json.gz", "chrome-trace"),), issues=issues), quiet=False)
    line = capfd.readouterr().err
    assert [code for code in codes if code in line] == ["damaged-file", "bad-event"]
    assert line.count("dropped") == 1  # the event, not the file


def test_convert_round_trip(tmp_path, capfd):
    trace, columnar, back = str(_trace(tmp_path)), tmp_path / "a.parquet", tmp_path / "b.json.gz"
    assert status(["convert", trace, "-o", str(columnar)]) == 0
    assert status(["convert", str(columnar), "-o", str(back)]) == 0
    capfd.readouterr()
    tables = []
    for path in (trace, columnar, back):
        assert status(["info", str(path), "--to", "json"]) == 0
        tables.append(json.loads(capfd.readouterr().out)["kinds"])
    assert tables[0] == tables[1] == tables[2]


def test_convert_a_folder(tmp_path, capfd):
    ranks, out = tmp_path / "ranks", tmp_path / "out"
    (ranks / "a").mkdir(parents=True)
    _trace(ranks)
    _trace(ranks / "a")
    assert status(["convert", str(ranks), "-o", str(out)]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["a_rank0.parquet", "rank0.parquet"]
    assert status(["convert", str(ranks), "-o", str(out)]) == 1
    assert "--force" in capfd.readouterr().err


def test_convert_files_with_equal_stems(tmp_path):
    _trace(tmp_path)
    (tmp_path / "rank0.pt.trace.json").write_bytes((tmp_path / "rank0.json").read_bytes())
    assert status(["convert", str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["rank0.json.parquet", "rank0.pt.trace.json.parquet"]


@pytest.fixture
def calls(monkeypatch):
    """Record the calls of the analysis, which returns a sample result."""
    calls = []

    def comm_outliers(paths, **options):
        calls.append((list(paths), options))
        return ordinary()

    monkeypatch.setattr(
        "traceanalyzer.analyzers.comm_outliers.compute.comm_outliers", comm_outliers
    )
    return calls


def test_comm_outliers_passes_its_options(tmp_path, capfd, calls):
    trace = str(_trace(tmp_path))
    options = ["--baseline", "other", "--factor", "5", "--comm-pattern", "a", "--pattern", "b"]
    options += ["--memory", "m.pickle"]
    assert status(["comm-outliers", trace, *options, "--until", "2s", "--rank", "3"]) == 0
    assert callable(calls[0][1].pop("on_trace"))
    assert calls == [
        (
            [trace],
            {
                "baseline": "other",
                "memory": ("m.pickle",),
                "by": None,
                "factor": 5.0,
                "comm_patterns": ("a", "b"),
                "format": None,
                "rank": 3,
                "assume_rank": None,
                "since_ns": None,
                "until_ns": 2_000_000_000,
                "workers": "auto",
                "progress": None,
            },
        )
    ]
    assert capfd.readouterr().out.startswith(ordinary().title)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_comm_outliers_writes_plot_and_table(tmp_path, capfd, calls, suffix, magic):
    trace, plot = str(_trace(tmp_path)), tmp_path / f"plot.{suffix}"
    assert status(["comm-outliers", trace, "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(magic)
    assert capfd.readouterr().out.startswith(ordinary().title)
    assert status(["comm-outliers", trace, "--plot", str(plot)]) == 1
    assert "exists" in capfd.readouterr().err
    assert len(calls) == 1


def test_png_is_written_to_a_pipe(tmp_path, capfdbinary, calls):
    assert status(["comm-outliers", str(_trace(tmp_path)), "--to", "png"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "TRACE", "--since", "soon"],
        ["info", "TRACE", "--until", "0.3"],
        ["gpu-idle", "TRACE", "--min-gap", "10"],
        ["info", "TRACE", "--since", "2s", "--until", "1s"],
        ["info", "TRACE", "--top", "few"],
        ["info", "TRACE", "--top", "0"],
        ["info", "TRACE", "-o", "OUT/a.parquet"],
        ["comm-outliers", "TRACE", "-o", "OUT/a.svg", "--plot", "OUT/a.svg"],
        ["info", "TRACE", "--input-format", "nope"],
        ["info", "TRACE", "--format", "json"],
        ["query", "trace.json"],
        ["convert", "TRACE", "TRACE2", "--rank", "1", "-o", "OUT"],
        ["info", "TRACE", "--to", "svg"],
        ["comm-outliers", "TRACE", "--factor", "nan"],
        ["comm-outliers", "TRACE", "--factor", "0.5"],
        ["comm-outliers", "TRACE", "--plot", "a.txt"],
        ["convert", "TRACE", "-o", "OUT/a.xyz"],
        ["convert", "TRACE", "TRACE2", "-o", "OUT/a.parquet"],
        ["nope"],
    ],
    ids=" ".join,
)
def test_invalid_values_exit_2(tmp_path, capfd, arguments):
    names = {"TRACE": _trace(tmp_path), "TRACE2": _trace(tmp_path, 1)}
    command = [str(names.get(part, part)).replace("OUT", str(tmp_path)) for part in arguments]
    assert status(command) == 2
    captured = capfd.readouterr()
    check_wording(captured.err)
    assert captured.out == ""


def test_since_and_until_reach_the_parser(tmp_path, capfd):
    assert status(["info", str(_trace(tmp_path)), "--since", "55us", "--to", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["contents"][0]["events"] == 1


def test_rank_of_a_file(tmp_path, capfd):
    path = str(_trace(tmp_path))
    assert status(["info", path, "--rank", "7", "--to", "json"]) == 2
    check_wording(capfd.readouterr().err)
    assert status(["info", path, "--rank", "0", "--to", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["files"][0]["rank"] == 0


def test_top(tmp_path, capfd):
    paths = [str(_trace(tmp_path, rank)) for rank in range(3)]
    assert status(["info", *paths, "--top", "2"]) == 0
    assert "(2 of 3 rows; --top all shows the rest)" in capfd.readouterr().out
    assert status(["info", *paths, "--to", "csv", "--top", "2"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyboardInterrupt(), 130, ""),
        (EOFError("marshal data too short"), 1, "internal error: EOFError: marshal data too"),
        (MemoryError(), 1, "out of memory"),
        (PermissionError(13, "Permission denied", "a.json"), 1, "a.json: permission denied"),
        (RuntimeError("odd\nthing"), 1, "internal error: RuntimeError: odd\\nthing; please report"),
    ],
)
def test_any_error_prints_one_line(monkeypatch, capfd, error, code, text):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr(main.cli, "invoke", fail)
    assert status(["info", "x"]) == code
    captured = capfd.readouterr().err.strip()
    assert text in captured
    assert "Traceback" not in captured
    assert captured.count("\n") == 0


def test_bars_fill_no_terminal_of_any_width(monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "20000")
    assert status(["diagnose", str(ROOT / "fixtures/nccl_8ranks/rank5.json.gz"), "-q"]) == 0
    assert max(map(len, capfd.readouterr().out.splitlines())) <= 1000


def test_debug_variable_prints_a_traceback(monkeypatch, capfd):
    monkeypatch.setenv("TRACEANALYZER_DEBUG", "1")
    assert status(["info", "/no/such"]) == 1
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "current", "former"),
    [
        (["comm-outliers", "RANK"], ["--comm-pattern", "mm"], ["--pattern", "mm"]),
        (["info", "TRACE"], ["--input-format", "chrome-trace"], ["--format", "chrome-trace"]),
        (["flamegraph", "TRACE", "-o", "-"], ["--inverted"], ["--reverse"]),
    ],
    ids=["--pattern", "--format", "--reverse"],
)
def test_former_option_is_a_hidden_alias(tmp_path, capfd, command, current, former):
    files = {"TRACE": _trace(tmp_path), "RANK": ROOT / "fixtures/nccl_8ranks/rank5.json.gz"}
    command = [str(files.get(part, part)) for part in command]
    outputs = []
    for options in (current, former):
        assert status([*command, *options]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1] != ""
    assert status([command[0], "--help"]) == 0
    text = capfd.readouterr().out
    assert f" {current[0]} " in text
    assert f" {former[0]} " not in text


def test_former_command_is_a_hidden_alias(capfd):
    texts = []
    for name in ("cuda-api", "api"):
        assert status([name, "--help"]) == 0
        texts.append(capfd.readouterr().out.partition("\n")[2])
    assert texts[0] == texts[1] != ""
    assert status(["--help"]) == 0
    assert {"cuda-api", "api"}.intersection(capfd.readouterr().out.split()) == {"cuda-api"}


def test_help_breaks_no_name_at_a_hyphen(capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("what-if", "diff", "demo"):
        assert status([name, "--help"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith("-")] == []


def test_rank_selects_files(tmp_path, capfd):
    paths = [str(_trace(tmp_path, rank)) for rank in range(2)]
    assert status(["info", *paths, "--rank", "1", "--to", "json"]) == 0
    assert [file["rank"] for file in json.loads(capfd.readouterr().out)["files"]] == [1]
