"""Failing outputs, unreadable inputs and unusual environments."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import (
    PROGRAM,
    ROOT,
    environment,
    finish,
    in_terminal,
    start,
    with_files_of,
    without_rights,
)
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer import files
from traceanalyzer.exporters import SUFFIXES
from traceanalyzer.run.find import NO_FORMAT

TRACE = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
STACKS = ROOT / "fixtures/py_spy/subprocesses.raw.txt"
SMALL = (
    b'{"traceEvents": ['
    b'{"ph": "X", "name": "mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 5}]}'
)

# every command that writes a file: text, bytes, a picture
WRITERS = [
    *(
        ["comm-outliers", TRACE, "--to", form, "-o", f"OUT/answer.{form}"]
        for form in ("json", "sqlite", "png")
    ),
    ["comm-outliers", TRACE, "--plot", "OUT/plot.svg"],
    ["flamegraph", STACKS, "-o", "OUT/flame.svg"],
    *(
        ["convert", STACKS if "speedscope" in suffix else TRACE, "-o", f"OUT/trace{suffix}"]
        for suffix in SUFFIXES
    ),
]


def _name(value: object) -> str:
    return Path(str(value[-1])).name if isinstance(value, list) else ""


def _into(folder: Path, command: list[object]) -> list[str]:
    return [str(part).replace("OUT", str(folder)) for part in command]


# --- writing ---------------------------------------------------------------------------------


def _start_on_a_full_disk(*arguments: object) -> subprocess.Popen[bytes]:
    """Start the program with a limit that the data file of coverage does not fit in either.

    Nor does bytecode: Python 3.11 keeps what was written of it, and no later import reads that.
    """
    env = environment(COVERAGE_PROCESS_CONFIG=None, PYTHONDONTWRITEBYTECODE="1")
    return start(*arguments, preexec_fn=with_files_of(500), env=env)


@pytest.mark.sample(12)
@pytest.mark.parametrize("command", WRITERS, ids=_name)
def test_full_disk_leaves_no_file(tmp_path, command):
    code, _, error = finish(_start_on_a_full_disk(*_into(tmp_path, command)))
    assert code == 1
    assert error.startswith(f"traceanalyzer: {tmp_path}/")
    check_wording(error)
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("command", "suffix", "text"),
    [
        (["info", TRACE], ".json", "cannot be written: No space left on device"),
        (["convert", TRACE], ".parquet", "cannot be written: No space left on device"),
        (["convert", TRACE], ".sqlite", "cannot write a database to a pipe"),
    ],
    ids=["answer", "parquet", "sqlite"],
)
def test_full_device_prints_one_line(tmp_path, command, suffix, text):
    full = tmp_path / f"full{suffix}"
    full.symlink_to("/dev/full")
    code, _, error = finish(start(*command, "-o", full))
    assert code == 1
    assert text in error
    assert error.count("\n") == 1
    assert full.is_symlink()


def test_existing_file_survives_a_full_disk(tmp_path):
    out = tmp_path / "trace.parquet"
    out.write_bytes(b"the one before")
    command = ["convert", TRACE, "-o", out, "--force"]
    assert finish(_start_on_a_full_disk(*command))[0] == 1
    assert out.read_bytes() == b"the one before"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.sample(2)
@pytest.mark.parametrize("suffix", [".parquet", ".sqlite"])
def test_killed_run_leaves_a_part_file_that_the_next_run_removes(tmp_path, suffix):
    out = tmp_path / f"trace{suffix}"
    # kills itself while it writes
    code = (
        "import os, signal, sys\n"
        "from traceanalyzer import files\n"
        "from traceanalyzer import cli\n"
        "from pathlib import Path\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "cli.run()\n"
    )
    command = [sys.executable, "-c", code, "convert", str(TRACE), "-o", str(out)]
    assert subprocess.run(command, env=environment(), check=False).returncode == -9
    left = [path.name for path in tmp_path.iterdir()]
    assert len(left) == 1
    assert left[0].startswith(f".trace{suffix}.{os.uname().nodename}.")
    assert left[0].endswith(".part")
    assert "no trace in this folder" in finish(start("info", tmp_path))[2]
    assert finish(start("convert", TRACE, "-o", out))[0] == 0
    assert list(tmp_path.iterdir()) == [out]


def test_only_abandoned_part_files_are_removed(tmp_path):
    host, this_pid = os.uname().nodename, os.getpid()
    kept = [
        f".out.{host}.1.part",  # that process runs
        f".out.{host}.{this_pid}x.part",
        f".out.elsewhere.{2**22 + 1}.part",
        f".other.{host}.{2**22 + 1}.part",
        f".out.{host}.{2**22 + 1}.partly",
    ]
    stale = [f".out.{host}.{2**22 + 1}.part", f".out.{host}.{this_pid}.part"]
    for name in (*kept, *stale):
        (tmp_path / name).write_text("")
    os.utime(tmp_path / stale[1], (1, 1))
    with files.opened(str(tmp_path / "out")) as file:
        file.write(b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "out"])


def test_longest_file_names(tmp_path):
    for name in ("x" * 255, "\u00e9" * 127, "\U0001f600" * 63):
        with files.opened(str(tmp_path / name)) as file:
            file.write(b"whole")
        assert (tmp_path / name).read_bytes() == b"whole"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", [["info", TRACE, "-o", "x"], ["convert", TRACE, "-o", "x.db"]])
def test_read_only_folder(tmp_path, command):
    tmp_path.chmod(0o555)
    code, _, error = finish(start(*command, cwd=tmp_path, preexec_fn=without_rights))
    assert (code, error) == (
        1,
        f"traceanalyzer: {command[-1]}: cannot be written: Permission denied\n",
    )
    assert finish(start("info", TRACE, cwd=tmp_path, preexec_fn=without_rights))[::2] == (0, "")


# --- reading ---------------------------------------------------------------------------------


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with one good trace and every other kind of entry."""
    folder = tmp_path / "odd"
    (folder / "locked").mkdir(parents=True)
    (folder / "rank0.json").write_bytes(SMALL)
    (folder / "notes.txt").write_text("some words\n")
    for rank in (1, 2):
        (folder / f"rank{rank}.json").write_bytes(b"")
    (folder / "denied.json").write_bytes(SMALL)
    (folder / "denied.json").chmod(0)
    (folder / "locked").chmod(0)
    os.mkfifo(folder / "fifo.json")
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "itself").symlink_to(".")
    (folder / "dangling.json").symlink_to("nowhere")
    (folder / os.fsdecode(b"\xff.json")).write_bytes(SMALL)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket.json"))
    return folder


REASONS = {
    "dangling.json": "no such file",
    "denied.json": "permission denied",
    "fifo.json": "is not a regular file",
    "locked": "permission denied",
    "loop.json": "too many levels of symbolic links",
    "rank1.json": "empty",
    "rank2.json": "empty",
    "socket.json": "is not a regular file",
    "\\udcff.json": "its name is not UTF-8",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", ["operators", "flamegraph", "convert"])
def test_unreadable_files_of_a_folder_are_reported(odd, tmp_path, command):
    out = tmp_path / "out.svg"
    if command == "convert":
        out = tmp_path / "out"
        out.mkdir()
    process = start(command, odd, "-o", out, preexec_fn=without_rights)
    code, _, error = finish(process)
    assert code == 0
    reported = dict(
        line.split(": ", 1) for line in error.splitlines() if line.endswith("; skipped")
    )
    assert reported == {f"{odd}/{name}": f"{why}; skipped" for name, why in REASONS.items()}
    quiet = finish(start("operators", odd, "-q", preexec_fn=without_rights))
    assert quiet[::2] == (0, "")


def test_info_lists_skipped_files(odd):
    code, out, _ = finish(start("info", odd, "--to", "json", preexec_fn=without_rights))
    assert code == 0
    skipped = {Path(row["path"]).name: row["reason"] for row in json.loads(out)["skipped"]}
    assert skipped == {**REASONS, "notes.txt": "unknown file format"}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fifo.json", "is not a regular file; pass a file"),
        ("socket.json", "is not a regular file; pass a file"),
        ("/dev/zero", "is not a regular file; pass a file"),
        ("loop.json", "too many levels of symbolic links"),
        ("dangling.json", "no such file or folder"),
        ("denied.json", "permission denied"),
        ("locked", "permission denied"),
        ("locked/rank0.json", "permission denied"),
        (
            "rank1.json",
            "an empty file; record it again, and stop the profiler before the program ends",
        ),
        ("rank0.json/inside", "not a directory"),
        (os.fsdecode(b"\xff.json"), "its name is not UTF-8; rename it"),
    ],
)
def test_unreadable_file_is_an_error(odd, run_cli, name, text):
    """Permissions are those of a process of its own, which has no rights of root."""
    if text == "permission denied":
        code, out, error = finish(start("info", odd / name, preexec_fn=without_rights))
    else:
        done = run_cli("info", odd / name)
        code, out, error = done.returncode, done.stdout, done.stderr
    assert (code, out) == (1, "")
    assert error.endswith(f": {text}\n")
    assert error.count("\n") == 1


def test_one_unreadable_name_does_not_refuse_the_others(odd, run_cli, tmp_path):
    (tmp_path / "rank0.json").write_bytes(SMALL)
    done = run_cli("info", tmp_path / "rank0.json", odd / os.fsdecode(b"\xff.json"))
    assert done.returncode == 0
    assert "its name is not UTF-8" in done.stdout


def test_misspelt_names_have_a_suggestion(run_cli, tmp_path):
    (tmp_path / "workers0.json.gz").write_bytes(b"")
    for command in ([], ["kernels"]):
        done = run_cli(*command, tmp_path / "workers0")
        assert done.stderr.endswith(f"did you mean {tmp_path}/workers0.json.gz?\n")
        assert "did you mean" not in run_cli(*command, tmp_path / "x").stderr
    (tmp_path / "rank0.json").write_bytes(SMALL)
    for option, value, near in (
        ("--columns", "evnts", "events"),
        ("--to", "markdown", ""),
        ("--columns", "events", ""),
    ):
        done = run_cli("info", tmp_path / "rank0.json", option, value)
        assert done.returncode == (2 if near else 0)
        assert near in done.stderr


def test_empty_file_for_every_rank(run_cli, tmp_path):
    for rank in range(12):
        (tmp_path / f"rank{rank}.json").write_bytes(b"")
    done = run_cli("gpu-idle", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"traceanalyzer: {tmp_path}: ")
    assert "12 other files" in done.stderr
    shutil.copy(TRACE, tmp_path / "rank12.json.gz")
    error = run_cli("gpu-idle", tmp_path).stderr
    assert error.splitlines()[-2:] == [
        f"{tmp_path}/rank9.json: empty; skipped",
        "2 more skipped",
    ]


def test_file_removed_before_it_is_read(tmp_path):
    for rank in range(2):
        shutil.copy(ROOT / f"fixtures/nccl_8ranks/rank{rank}.json.gz", tmp_path)
    gone = tmp_path / "rank1.json.gz"
    code = (
        "import os, sys\n"
        "from traceanalyzer.run import find as finding\n"
        "from traceanalyzer import cli\n"
        "find = finding.collect_inputs\n"
        "def found(paths):\n"
        "    result = find(paths)\n"
        f"    if os.path.exists({str(gone)!r}): os.remove({str(gone)!r})\n"
        "    return result\n"
        "finding.collect_inputs = found\n"
        "cli.run()\n"
    )
    command = [sys.executable, "-c", code, "operators", str(tmp_path)]
    done = subprocess.run(command, env=environment(), check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert f"{gone}:nosuchfile" in "".join(done.stdout.split())


def test_ten_thousand_foreign_files_are_skipped(tmp_path, thorough):
    """Detection reads the beginning of each file only."""
    count = 10_000 if thorough else 1_000
    (tmp_path / "rank0.json").write_bytes(SMALL)
    for number in range(count):
        (tmp_path / f"log{number}.txt").write_bytes(b"a line of a log\n" * 4)
    inputs, skipped = ta.find_inputs([str(tmp_path)])
    assert inputs == [str(tmp_path / "rank0.json")]
    assert len(skipped) == count
    assert {why for _, why in skipped} == {NO_FORMAT}


# --- surroundings ----------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"HOME": None, "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None, "MPLCONFIGDIR": None},
        {"HOME": "/proc/nowhere", "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None}
        | {"MPLCONFIGDIR": None},
        {"MPLCONFIGDIR": "/proc/nowhere"},
    ],
    ids=["unset", "nowhere", "matplotlib"],
)
def test_without_a_home_folder(changes):
    code, drawn, error = finish(
        start("comm-outliers", TRACE, "--to", "svg", env=environment(**changes))
    )
    assert (code, error) == (0, "")
    assert drawn.startswith("<?xml")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "changes",
    [
        {"LANG": "C", "LC_ALL": None},
        {"LC_ALL": "POSIX"},
        {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["C", "POSIX", "ascii", "coerced not"],
)
def test_non_ascii_names_in_ascii_locales(tmp_path, changes):
    path = tmp_path / "trace.json"
    path.write_bytes(SMALL.replace(b"mm", "größe 内核".encode()))
    code, out, error = finish(start("operators", path, env=environment(**changes)))
    assert (code, error) == (0, "")
    assert "größe 内核" in out or "gr\\xf6\\xdfe \\u5185\\u6838" in out


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("columns", "changes", "width"),
    [
        (40, {"TERM": "dumb"}, 40),
        (80, {"COLUMNS": "20", "NO_COLOR": "1"}, 20),
        (0, {"TERM": None}, 100),
    ],
    ids=["dumb", "narrow", "no TERM"],
)
def test_terminal_output_is_plain_text(columns, changes, width):
    code, out = in_terminal("comm-outliers", TRACE, columns=columns, **changes)
    assert code == 0
    assert b"\x1b" not in out
    verdict = out.decode().replace("\r\n", "\n").split("\n\n")[1]
    assert width - 20 < max(map(len, verdict.splitlines())) <= width


def test_without_a_terminal():
    code, out, error = finish(
        start("info", TRACE, start_new_session=True, env=environment(COLUMNS=None, TERM=None))
    )
    assert (code, error) == (0, "")
    assert "\x1b" not in out


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("closed", "arguments", "code", "text"),
    [
        (">&-", ["info", TRACE], 1, "standard output is closed"),
        (">&-", ["--help"], 0, ""),
        ("2>&-", ["nope"], 2, ""),
        ("<&- 2>&-", ["info", TRACE], 0, "chrome-trace"),
    ],
)
def test_closed_streams(closed, arguments, code, text):
    done = subprocess.run(
        ["bash", "-c", f'"$@" {closed}', "bash", *PROGRAM, *map(str, arguments)],
        capture_output=True,
        env=environment(),
        check=False,
        text=True,
    )
    assert done.returncode == code
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert bool(text) == bool(done.stdout + done.stderr)


def test_output_file_with_all_streams_closed(tmp_path):
    out = tmp_path / "answer.json"
    command = ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", *PROGRAM, "info", str(TRACE)]
    subprocess.run([*command, "-o", str(out)], env=environment(), check=True)
    again = finish(start("info", TRACE, "--to", "json"))[1]
    assert out.read_text() == again


def test_report_checks_inputs_before_the_output(run_cli: Any, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("here")
    done = run_cli("report", "missing.json", cwd=tmp_path)
    assert done.returncode == 1
    assert "missing.json" in done.stderr
    assert "exists" not in done.stderr
    assert (tmp_path / "report.html").read_text() == "here"


@pytest.mark.parametrize("wrong", [{"MPLBACKEND": "nonsense"}, {"POLARS_MAX_THREADS": "0"}])
def test_wrong_settings_of_libraries_do_not_matter(tmp_path: Path, wrong: dict[str, str]) -> None:
    out = tmp_path / "kernels.svg"
    code, _, error = finish(start("kernels", TRACE, "-o", out, env=environment(**wrong)))
    assert (code, error) == (0, "")
    assert out.stat().st_size
