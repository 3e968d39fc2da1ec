"""Commands and Python examples of the pages and of ``--help``: each runs, or has a reason not to.

``console`` blocks, which show their output, and the Python of README.md and docs/python.md are in
test_docs.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import shlex
import shutil
from collections import defaultdict
from itertools import pairwise, product
from pathlib import Path

import click
import module_traces
import pytest
from perfetto_files import as_pytorch_writes
from test_docs import PAGES, page_id

import traceanalyzer as ta
from traceanalyzer.cli.commands import all_commands
from traceanalyzer.cli.main import status

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
COMMANDS = all_commands()

#: Inputs of examples, and the files that they stand for; ``job`` and ``isolated`` have two ranks.
INPUTS = {
    **dict.fromkeys(("PATH", "after", "parquet", "run", "torch_traces", "trace"), "job"),
    **dict.fromkeys(("OTHER", "after2", "baseline", "before", "isolated", "main"), "isolated"),
    **dict.fromkeys(("FILE", "IN", "in", "rank0.json.gz", "trace.json.gz"), "job/rank0.json.gz"),
    **dict.fromkeys(("AFTER", "branch"), "fixtures/upgrade/after.json.gz"),
    "BEFORE": "fixtures/upgrade/before.json.gz",
    "composer_traces": "fixtures/composer",
    "profile": "fixtures/xla",
    **dict.fromkeys(("after.pickle", "before.pickle"), "fixtures/memory/training.pickle"),
    "oom_rank0.pickle": "fixtures/memory/oom.pickle",
    "snapshot.pickle": "fixtures/memory/leak.pickle",
    **dict.fromkeys(
        ("profile.raw.txt", "profile.txt", "stacks.txt"), "fixtures/py_spy/subprocesses.raw.txt"
    ),
    **dict.fromkeys(("dumps", "DUMPS"), "fixtures/flight_recorder/missing"),
    "stacks": "fixtures/flight_recorder/missing/py_spy_rank_2.txt",
    **dict.fromkeys(("run.sqlite", "training.sqlite"), "fixtures/nsys/training.sqlite"),
}
#: Inputs of commands that do not read every trace; ``memory --oom`` is a key of its own.
INPUTS_OF = {
    "cuda-api": dict.fromkeys(("PATH", "run", "trace"), "fixtures/nsys/training.sqlite"),
    "diff": {
        **dict.fromkeys(("main", "v1", "v2"), "fixtures/upgrade/before.json.gz"),
        **dict.fromkeys(("v3", "v4"), "fixtures/upgrade/after.json.gz"),
    },
    "efficiency": dict.fromkeys(("PATH", "run", "trace"), "fixtures/transformer"),
    "hang": {"PATH": "fixtures/flight_recorder/missing"},
    "modules": dict.fromkeys(("PATH", "run", "trace"), "modules"),
    "host-metrics": dict.fromkeys(("PATH", "run", "trace"), "fixtures/composer"),
    "memory": dict.fromkeys(("FILE", "OTHER", "PATH"), "fixtures/memory/leak.pickle"),
    "memory --oom": dict.fromkeys(("PATH", "snapshot.pickle"), "fixtures/memory/oom.pickle"),
    "printed": dict.fromkeys(("PATH", "job.log"), "fixtures/printed_text/job.log"),
    "py-spy-report": {"PATH": "fixtures/py_spy/subprocesses.raw.txt"},
    "requests": {
        **dict.fromkeys(("PATH", "spans.json"), "fixtures/requests/spans.json"),
        "bench.json": "fixtures/requests/vllm.json",
        **dict.fromkeys(("run", "trace"), "fixtures/requests"),
    },
    "roofline": {
        **dict.fromkeys(("PATH", "run", "trace", "rank0.json.gz"), "fixtures/transformer"),
        **dict.fromkeys(("ncu.csv", "raw.csv", "report.csv"), "fixtures/ncu/wide.csv"),
        "details.csv": "fixtures/ncu/details.csv",
    },
}
#: Placeholders that are no files.
VALUES = {
    "COMMAND": "kernels",
    "N": "1",
    "NAME": "torch",
    "OUT": "out.parquet",
    "PATTERN": "cpu",
    "PCT": "5",
    "REGEX": ".",
    "SELECT ...": "select count(*) from events",
    "out": "out.parquet",
    "select ...": "select count(*) from events",
}
#: The fixtures are shorter than 1 s.
TIMES = {
    "1s": "20ms",
    "1.5s": "60ms",
    "2s": "90ms",
    "10s": "20ms",
    "20s": "90ms",
    "250ms": "250us",
}
#: Options whose value is a file to write, or a time.
OUTPUTS = ("-o", "--plot")
TIMED = ("--since", "--until", "--step-every")

#: Commands that are parsed only, by their first words.
NOT_RUN = {
    "baseline": "each needs the one before: tests/tools/test_baselines.py",
    "diagnose /scratch/run": "needs a running cluster: tests/run/test_cluster.py",
    "jitter": "a command of the example package: tests/analyzers/test_example_plugin.py",
    "mcp": "serves until its client ends: tests/tools/test_mcp_protocol.py",
    "diff before/ after/ --expected": "needs a saved diagnosis: tests/tools/test_expected.py",
    "gate": "needs a file of budgets: tests/test_ci.py",
    "view": "runs until Ctrl-C: tests/tools/test_view.py",
}
#: Python examples of this package that are compiled only, by page and first line.
PYTHON_NOT_RUN = {
    (
        "docs/extending.md",
        '"""Parser of ``gputimes``: kernels timed by our launcher, one per line.',
    ): ("part of the example package: tests/analyzers/test_example_plugin.py"),
    ("docs/extending.md", '"""Which kernels vary most in duration?"""'): (
        "part of the example package: tests/analyzers/test_example_plugin.py"
    ),
    ("docs/extending.md", '"""Registry entry of the analysis ``jitter``."""'): (
        "part of the example package: tests/analyzers/test_example_plugin.py"
    ),
    ("docs/ci.md", "import traceanalyzer as ta"): "needs a baseline: tests/tools/test_baselines.py",
    (
        "docs/many-ranks.md",
        "import traceanalyzer",
    ): "submits jobs to SLURM: tests/run/test_cluster.py",
}


# --- commands --------------------------------------------------------------------------------


def commands_of(text: str) -> list[str]:
    """Return the arguments of all commands of a page, except in ``console`` blocks."""
    text = re.sub(r"\s*\\\n\s*", " ", text)
    text = re.sub(r"^```(?:console|python)\n.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    fence = re.compile(r"^ *```\w*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
    lines = [line for block in fence.findall(text) for line in block.splitlines()]
    text = fence.sub("", text)
    lines += re.findall(r"^ {4}(.*)$", text, re.MULTILINE)
    lines += [" ".join(span.split()) for span in re.findall(r"`(traceanalyzer\s[^`]*)`", text)]
    called = (re.search(r"(?:^|[\s/])traceanalyzer\s+(?!#)(\S.*)", line) for line in lines)
    return [re.split(r"\s(?:#|\|\|?)\s", match[1])[0].strip() for match in called if match]


def variants(line: str) -> list[list[str]]:
    """Return the commands that a synopsis describes, with all options: one for each of ``a|b``."""
    if re.search(r"(^|\s)\[", line):
        line = re.sub(r"[\[\]]", "", line)
    parts = [re.sub(r"^([A-Z]+\d*)\.\.\.$", r"\1", word) for word in shlex.split(line)]
    return [list(one) for one in product(*(word.split("|") for word in parts))]


def on_fixtures(parts: list[str]) -> tuple[str, ...]:
    """Return a command with fixtures for its inputs and values for its placeholders."""
    known = INPUTS | INPUTS_OF.get(parts[0], {})
    if "--oom" in parts:
        known |= INPUTS_OF["memory --oom"]
    command = parts[:1] if parts[0] in COMMANDS else []
    result = [*command]
    for option, path in pairwise(parts if command else ["", *parts]):
        word = path.removeprefix("/scratch/")
        name, _, rest = word.removeprefix("./").partition("/")
        if option in TIMED and word in TIMES:
            result.append(TIMES[word])
        elif option == "-o":
            result.append("".join(("out", *Path(VALUES.get(word, word)).suffixes)))
        elif option == "--memory":
            result.append("fixtures/memory/two_devices.pickle")
        elif option != "--plot" and name in known:
            result.append("/".join(filter(None, (known[name], rest))))
        else:
            result.append(VALUES.get(word, word))
    return tuple(result)


def _all_lines() -> dict[str, str]:
    """Return every command with the place where it is shown.

    The reference has synopses only, generated from the parser.
    """
    pages = [page for page in PAGES if not page.name.startswith("commands")]
    texts = {page.name: page.read_text() for page in pages}
    texts |= {f"{name} --help": f"```\n{one.epilog}\n```" for name, one in COMMANDS.items()}
    return {line: place for place, text in texts.items() for line in commands_of(text)}


def _reason(line: str) -> str | None:
    """Return why a command is not run."""
    return next((NOT_RUN[key] for key in NOT_RUN if f"{line} ".startswith(f"{key} ")), None)


LINES = _all_lines()
#: Names of commands in running text, without arguments.
MENTIONS = {line for line in LINES if line in COMMANDS and line != "demo"}
PARSED = sorted(line for line in LINES.keys() - MENTIONS if _reason(line))
#: Commands on fixtures, with the places that show them: many differ in names of files only.
CASES: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
for _line in sorted(LINES.keys() - MENTIONS - {*PARSED}):
    for _parts in variants(_line):
        CASES[on_fixtures(_parts)].add(f"{LINES[_line]}: {_line}")


def _is_part(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether all words of a command are in another one, in the same order."""
    left = iter(other)
    return one[0] == other[0] and len(one) < len(other) and all(word in left for word in one)


#: What a longer example does, too.
PARTS = sorted(one for one in CASES if any(_is_part(one, other) for other in CASES))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder of the commands, with their inputs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fixtures").symlink_to(FIXTURES)
    (tmp_path / "modules").mkdir()
    module_traces.write(tmp_path / "modules" / "rank0.json", module_traces.one_step(0, 0))
    for name, fixture in {"job": "nccl_8ranks", "isolated": "nccl_8ranks_isolated"}.items():
        _write_job(tmp_path / name, fixture)
    return tmp_path


def _write_job(folder: Path, fixture: str) -> None:
    folder.mkdir()
    for rank in (0, 5):
        file = f"rank{rank}.json.gz"
        (folder / file).symlink_to(FIXTURES / fixture / file)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with summaries and a baseline of ``job``, which take seconds to write."""
    folder = tmp_path_factory.mktemp("prepared")
    _write_job(folder / "job", "nccl_8ranks")
    ta.summarize(folder / "job", folder / "sums")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ta.save_baseline("main", "job")
    return folder


def _write_run(folder: Path, gpus: int) -> None:
    """Write a trace that says it is of so many GPUs."""
    text = gzip.decompress((FIXTURES / "nccl_8ranks" / "rank0.json.gz").read_bytes()).decode()
    changed, count = re.subn(r'"world_size": ?8', f'"world_size":{gpus}', text)
    assert count == 1
    folder.mkdir()
    (folder / "rank0.json").write_text(changed)


@pytest.mark.sample(15)
@pytest.mark.parametrize("parts", sorted(CASES.keys() - PARTS), ids=" ".join)
def test_command_runs(
    parts: tuple[str, ...], folder: Path, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if any(word.startswith("baseline:") for word in parts):
        shutil.copytree(prepared / ".traceanalyzer", folder / ".traceanalyzer")
    for word in parts[1:]:
        if match := re.fullmatch(r"(?:run|RUN)(\d+)/?", word):
            _write_run(folder / word, int(match[1]))
        elif word.strip("/") == "sums" and parts[0] != "summarize":
            shutil.copytree(prepared / "sums", folder / "sums")
        elif word == "rank0.pftrace":
            text = gzip.decompress((folder / "job" / "rank0.json.gz").read_bytes())
            events = [e for e in json.loads(text)["traceEvents"] if isinstance(e.get("pid"), int)]
            (folder / word).write_bytes(as_pytorch_writes(events))
    expected = {0, 3} if any(word.startswith("--fail-on") for word in parts) else {0}
    assert status(parts) in expected, (CASES[parts], capsys.readouterr().err)
    outputs = [word for option, word in pairwise(parts) if option in OUTPUTS]
    assert [name for name in outputs if not (folder / name).exists()] == []


@pytest.mark.parametrize("line", [line for line in PARSED if not line.startswith("jitter")])
def test_command_that_is_not_run_is_parsed(line: str, folder: Path) -> None:
    assert folder.exists()
    parts = on_fixtures(variants(line)[0])
    with click.Context(COMMANDS[parts[0]]):
        COMMANDS[parts[0]].make_context(parts[0], list(parts[1:]))


@pytest.mark.parametrize("parts", PARTS, ids=" ".join)
def test_part_of_a_command_that_runs_is_parsed(parts: tuple[str, ...]) -> None:
    with click.Context(COMMANDS[parts[0]]):
        COMMANDS[parts[0]].make_context(parts[0], list(parts[1:]))


def test_reasons_are_of_existing_commands() -> None:
    unused = [key for key in NOT_RUN if not any(f"{x} ".startswith(f"{key} ") for x in LINES)]
    assert unused == []
    files = re.findall(r"tests/[\w/]+\.py", " ".join((*NOT_RUN.values(), *PYTHON_NOT_RUN.values())))
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_commands_are_found_wherever_a_page_shows_them() -> None:
    page = """
text `traceanalyzer a
  x` and `~/bin`
    traceanalyzer b \\
      y | jq
    srun -n 4 traceanalyzer c  # why
```bash
cd z && bin/traceanalyzer d
pip install ./traceanalyzer  # not a command
```
```console
$ traceanalyzer e
```
"""
    assert sorted(commands_of(page)) == ["a x", "b y", "c", "d"]
    synopsis = variants("a PATH... [-o x.svg] [--by b|c] RUN4... --name 'd[e] ...'")
    parts = ["a", "PATH", "-o", "x.svg", "--by", "{}", "RUN4", "--name"]
    assert synopsis == [[word.format(by) for word in parts] + ["de ..."] for by in "bc"]


# --- Python ----------------------------------------------------------------------------------


def _python() -> dict[tuple[str, str], str]:
    """Return the Python examples that use this package, by page and first line."""
    blocks = {}
    for page in PAGES:
        if page_id(page) in ("README.md", "docs/python.md"):
            continue
        for block in re.findall(r"^```python\n((?s:.*?))^```$", page.read_text(), re.MULTILINE):
            if re.search(r"\btraceanalyzer\b|\bta\.", block):
                first = block.splitlines()[0].partition("  #")[0]
                blocks[page_id(page), first] = block
    return blocks


PYTHON = _python()


@pytest.mark.sample(3)
@pytest.mark.parametrize("place", sorted(PYTHON.keys() - PYTHON_NOT_RUN.keys()), ids=": ".join)
def test_python_example_runs(place: tuple[str, str], folder: Path) -> None:
    for name in ("before", "after"):
        (folder / name).mkdir()
        (folder / name / "rank0.json.gz").symlink_to(FIXTURES / "upgrade" / f"{name}.json.gz")
    (folder / "run").symlink_to(FIXTURES / "transformer")
    for gpus in (4, 8, 16):
        _write_run(folder / f"run{gpus}", gpus)
    names: dict[str, object] = {}
    text = PYTHON[place].replace("shard=(3, 64)", "shard=(0, 1)")  # the run has one file
    for statement in ast.parse(text).body:
        exec(compile(ast.Module([statement], []), place[0], "exec"), names)  # noqa: S102
    assert any(isinstance(value, ta.Result) for value in names.values())


def test_python_examples_that_do_not_run_exist() -> None:
    assert PYTHON_NOT_RUN.keys() <= PYTHON.keys()
