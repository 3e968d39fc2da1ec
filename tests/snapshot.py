"""Digests of the output of every command on every file.

``make snapshot`` compares with ``tests/golden/snapshot.txt``, a line a case: the command line, the
exit code, and a digest of standard output, standard error and the files that were written. The net
holds a change of structure to "no output changes"; it does not say which output is right, which is
what the tests are for. It calls the program and the public functions only, so that whatever lies
below may move.

    python tests/snapshot.py                      compare the listed cases, exit 1 if any differs
    python tests/snapshot.py --all                all cases (hours), not one in 48
    python tests/snapshot.py --only 'kernels '    only cases whose id contains this; repeatable
    python tests/snapshot.py --show CASE          what a case prints, listed or not
    python tests/snapshot.py --save FOLDER        outputs as files too, to compare with diff -r
    python tests/snapshot.py --tree ../other      run the package of another checkout
    python tests/snapshot.py --write              accept; with --only, of these cases

A case's id is its command line (``kernels fixtures/nccl_8ranks --to json``), with ``< FILE`` for
standard input, or a Python expression after ``python:``. Cases run in a folder of their own, in
which ``fixtures`` and ``shared`` are links, so that no path tells where the checkout is.

Digests hold for the versions of the libraries they were made with (pictures, Parquet, help texts).
"""

# ruff: noqa: E501, T201 - lists of command lines; prints its results

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("TRACEANALYZER_SHARED", ROOT.parent / "shared")).resolve()
LIST = ROOT / "tests" / "golden" / "snapshot.txt"
LIMIT_SECONDS = 240
#: One case in so many is recorded, chosen by a hash of its command line; all of them take hours.
ONE_IN = 48
#: A file in the folder of every case that must not be overwritten.
TAKEN = "taken.json"

# one thread and one seed: sums of floats and orders of equal rows must not depend on the machine
ENVIRONMENT = {
    "COLUMNS": "100",
    "LC_ALL": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONWARNINGS": "ignore",
    "TZ": "UTC",
}

# ---------------------------------------------------------------------------------------- inputs

#: Files that are not traces: sources, licences, results of other programs.
_NO_TRACE = re.compile(
    r"LICENSE|\.(md|py|sql)$|\.expected\.|key_averages\.json|profiler_list|peer_.*\.jsonl$"
)
#: Two damaged files that take a minute each to read.
_SLOW = "shared/data/chrome/conformance/slow"
#: Unsupported formats: two commands are enough.
_FOREIGN = re.compile(r"^shared/data/(ncu|deepspeed|gpu|flight_recorder|rocpd|key_averages)/")
_MALFORMED = re.compile(r"malformed|conformance")
#: Larger folders take a minute, and their files are all cases already.
_FOLDER_BYTES = 1_500_000

PLAIN = (
    "annotations", "comm-outliers", "cuda-api", "diagnose", "efficiency", "gpu-idle", "host-metrics",
    "info", "kernels", "launches", "memory", "modules", "operators", "overlap", "printed",
    "py-spy-report", "requests", "roofline", "scaling", "steps", "transfers",
)  # fmt: skip
COMMANDS = (*PLAIN, "convert", "diff", "flamegraph", "report")


def files() -> list[str]:
    """Return every file that may be a trace, by its name in the folder of a case."""
    paths = []
    for top in ("fixtures", "shared/data"):
        folder = _real(top)
        names = [f"{top}/{path.relative_to(folder)}" for path in folder.rglob("*")]
        paths += [name for name in names if _real(name).is_file() and "__pycache__" not in name]
    kept = [name for name in paths if not _NO_TRACE.search(name) and not name.startswith(_SLOW)]
    return sorted(kept)


def folders(names: Sequence[str]) -> list[str]:
    """Folders with at least two of these files in or below them, if they are not too large."""
    sizes: dict[str, list[int]] = {}
    for name in names:
        if not _FOREIGN.match(name):
            for folder in Path(name).parents:
                sizes.setdefault(str(folder), []).append(_real(name).stat().st_size)
    below = ("fixtures/", "shared/data/")
    return sorted(
        folder
        for folder, each in sizes.items()
        if folder.startswith(below)
        and len(each) > 1
        and sum(each) <= _FOLDER_BYTES
        and not _SLOW.startswith(folder)
    )


def _real(name: str) -> Path:
    """Return the path of a file from its name in cases."""
    return ROOT / name if name.startswith("fixtures") else SHARED / name.removeprefix("shared/")


# ----------------------------------------------------------------------------------------- cases


def groups() -> dict[str, list[str]]:
    """The cases of each input, which run one after another, and those of options."""
    names = files()
    cases = {name: list(_of_input(name, folder=False)) for name in names}
    cases |= {name: list(_of_input(name, folder=True)) for name in folders(names)}
    cases |= {f"options {command}": lines for command, lines in _of_options().items()}
    cases["options"] = [*_help(), *_errors()]
    cases |= {f"python {place}": [case] for place, case in enumerate(_python())}
    return {name: list(dict.fromkeys(lines)) for name, lines in cases.items()}


def _of_input(name: str, *, folder: bool) -> Iterator[str]:
    path = shlex.quote(name)
    if _FOREIGN.match(name):
        yield from (f"{command} {path} --to {to}" for command in ("info", "diagnose") for to in _TO)
        return
    for to in _TO:
        yield from (f"{command} {path} --to {to}" for command in PLAIN)
        yield f"flamegraph {path} --to {to} -o -"
        yield f"diff fixtures/upgrade/before.json.gz {path} --to {to}"
    yield f"report {path} -o report.json"
    yield f"convert {path} -o {'converted' if folder else 'converted.parquet'}"
    if name.startswith("fixtures") and not _MALFORMED.search(name):
        yield f"report {path} -o -"
        yield f"flamegraph {path}"
    if "/memory" in name:
        yield from (f"memory {path} {more} --to {to}" for more in _MEMORY for to in _TO)


_TO = ("table", "json")
_MEMORY = ("--oom", "--growth", "--diff fixtures/memory/training.pickle")

_R8 = "fixtures/nccl_8ranks"
_R2 = "fixtures/nccl_8ranks/rank0.json.gz fixtures/nccl_8ranks/rank1.json.gz"
_ISOLATED = "fixtures/nccl_8ranks_isolated"
_R5 = "fixtures/nccl_8ranks/rank5.json.gz"
_GLOO = "fixtures/ddp_gloo_4ranks"
_GLOO3 = "fixtures/ddp_gloo_4ranks/rank3.json.gz"
_NSYS = "fixtures/nsys/training.sqlite"
_XLA = "fixtures/xla/gpu2.trace.json.gz"
_COMPOSER = "fixtures/composer"
_BEFORE = "fixtures/upgrade/before.json.gz"
_AFTER = "fixtures/upgrade/after.json.gz"
_REQUESTS = "fixtures/requests"
_SPY = "fixtures/py_spy/subprocesses_threads.raw.txt"
_MODULES = "shared/data/chrome/kineto/mi300_rank0of8_rccl.json.gz"
_SPEEDSCOPE = "fixtures/py_spy/subprocesses.speedscope.json"
_MEM = "fixtures/memory"
_EIGHT = "fixtures/nccl_8ranks/rank{}.json.gz"
_RANKS = " ".join(_EIGHT.format(rank) for rank in (5, 0, 3))

#: Inputs of each command; the first one is also used for every output format.
_SUITED = {
    "annotations": (_R2, _NSYS, _GLOO),
    "cuda-api": (_R2, _NSYS),
    "comm-outliers": (_R2, _GLOO, _NSYS),
    "diagnose": (_R2, _SPY, _MEM, f"{_R5} {_MEM}/leak.pickle {_SPY}"),
    "efficiency": ("fixtures/transformer",),
    "requests": (_REQUESTS,),
    "roofline": ("fixtures/ncu/hopper_raw.csv", "fixtures/ncu/details.csv", "fixtures/transformer"),
    "gpu-idle": (_R2, _NSYS, _GLOO, _BEFORE),
    "host-metrics": (_COMPOSER,),
    "info": (_R2, _NSYS, _MEM, _SPY),
    "kernels": (_R2, _NSYS, _XLA, _BEFORE),
    "launches": (_R2, _NSYS),
    "memory": (f"{_MEM}/training.pickle", f"{_MEM}/leak.pickle", _NSYS),
    "modules": (_MODULES,),
    "operators": (_R2, _GLOO3, _COMPOSER),
    "overlap": (_R2, _NSYS, _XLA),
    "printed": ("fixtures/printed_text/job.log", "fixtures/printed_text/profiler_list.dat"),
    "py-spy-report": (_SPY, _SPEEDSCOPE, "fixtures/py_spy/native.raw.txt"),
    "scaling": (_R2, "fixtures/transformer fixtures/nccl_8ranks"),
    "steps": (_R2, _GLOO, _COMPOSER, _NSYS),
    "transfers": (_R2, _NSYS),
}

#: Options of each command, used with each of its inputs.
_OPTIONS = {
    "annotations": ("--name step", "--name '#1' --name opt", "--name '('", "--name none", "--by rank"),
    "cuda-api": (),
    "comm-outliers": (
        f"--baseline {_ISOLATED}", f"--baseline {_EIGHT.format(5)}", "--memory fixtures/memory/leak.pickle",
        f"--memory {_MEM} --baseline {_GLOO}", "--factor 1.1", "--factor 0", "--factor 10",
        "--comm-pattern gemm", "--comm-pattern elementwise --comm-pattern Memcpy", "--comm-pattern '['",
        "--baseline missing", "--baseline fixtures/memory/leak.pickle",
    ),
    "diagnose": (
        "--threshold straggler=1%", "--threshold straggler:critical=30% --threshold straggler=0.5",
        "--threshold none=1", "--threshold straggler=x", "--threshold straggler", "--fail-on info",
        "--fail-on warning", "--fail-on critical", "--threshold straggler=99% --top all",
    ),
    "efficiency": (
        "--peak bf16=100 --bandwidth 1000", "--peak x", "--precision fp8", "--params 1e9 --tokens 1e5",
        "--params 1e9", "--step-name none",
    ),
    "requests": (),
    "roofline": (
        "--by launch", "--peak fp32=60 --bandwidth 3000 --bandwidth L2=9000", "--bandwidth x",
        "--peak x",
    ),
    "gpu-idle": (
        "--min-gap 1us", "--min-gap 1ms", "--min-gap x", "--dataloader backward", "--dataloader '('",
        "--comm-pattern gemm", "--by device", "--by process", "--by step", "--library-name torch",
        "--library-name torch --library-name numpy", "--step-name ProfilerStep",
        "--step-name none", "--by step --step-name forward",
    ),
    "host-metrics": ("--counter memory", "--counter cpu --counter disk", "--counter none", "--counter '('"),
    "info": (),
    "kernels": (
        "--by device", "--by stream", "--by rank", "--by operator", "--by annotation",
        "--comm-pattern gemm", "--comm-pattern '('", "--by operator --top all --to json",
    ),
    "launches": ("--step-name ProfilerStep", "--step-name none", "--step-name '('"),
    "memory": (
        "--oom", "--growth", f"--diff {_MEM}/leak.pickle", "--diff missing", "--library-name torch",
        "--library-name torch --library-name numpy --oom", "--oom --capacity 80GiB",
        "--oom --capacity 1KiB", "--capacity 80GiB", "--oom --capacity x", "--growth --step-every 1ms",
        "--growth --step-every 20", "--growth --step-every x", "--growth --step-name step",
        "--growth --step-name none", "--growth --oom", "--step-every 5",
        "--growth --library-name torch --to json", f"--diff {_MEM}/ring.pickle --library-name torch",
    ),
    "modules": ("--depth 1", "--depth 0", "--pattern step", "--pattern '('"),
    "operators": (
        *(f"--sort-by {column}" for column in (
            "self_host", "total_host", "mean_host", "self_device", "total_device", "mean_device",
            "calls", "self_host_memory", "total_host_memory", "self_device_memory",
            "total_device_memory", "none",
        )),
        "--group-by-input-shape", "--group-by-stack 3", "--group-by-stack 1 --group-by-input-shape",
        "--group-by-stack -1",
    ),
    "overlap": ("--by device", "--by step", "--by stream", "--comm-pattern gemm", "--comm-pattern '('"),
    "printed": ("--peak bf16=312", "--peak bf16", "--peak x=1"),
    "py-spy-report": (
        "--library-name torch", "--library-name torch --library-name multiprocessing",
        "--library-name threading --match substring", "--match component", "--aggregate-leaf-paths",
        "--num-rows 2", "--num-rows all", "--num-rows 3 --top 5", "--group-by function",
        "--group-by line", "--group-by file", "--group-by module", "--group-by library",
        "--by process", "--by thread", "--by rank", "--by file", "--seconds", "--seconds --rate 50",
        "--rate 0", "--drop-module", "--exclude-idle-process", f"--file {_SPEEDSCOPE}",
        "--group-by function --by thread --seconds", "--aggregate-leaf-paths --by process --drop-module",
    ),
    "scaling": ("--weak", "--step-name none"),
    "steps": ("--step-name ProfilerStep", "--step-name forward", "--step-name none", "--step-name '('"),
    "transfers": (),
}  # fmt: skip

#: Options of all commands that read, used with the first input.
_READING = (
    "--since 20ms", "--until 60ms", "--since 20ms --until 90ms", "--since 1h", "--since 90ms --until 20ms",
    "--since x", "--until -1s", "--rank 0", "--rank 1", "--rank 1 --since 20ms", "--rank 99", "--rank -1",
    "--rank x", "-q", "--input-format chrome-trace", "--input-format nsys-sqlite", "--input-format collapsed", "--input-format none",
)  # fmt: skip
#: Inputs of several ranks, and of one rank that is or is not recorded.
_OF_RANKS = (
    _R8, _RANKS, _R5, _GLOO, _NSYS, _SPY, "shared/data/nsys/cloverleaf_4xa100.sqlite.gz",
    "shared/data/nsys/mfu_2gpu_after.sqlite.gz", "shared/data/chrome/kineto/no_rank.json.gz",
)  # fmt: skip
_WRITING = (
    "--to md", "--to csv", "--to html", "--to svg", "--to png", "--to sqlite", "--to none",
    "--top 3", "--top all", "--top 0", "--top x", "--top 2 --to md", "--top 2 --to json",
    "--top 2 --to html", "-o out.json", "-o out.md", "-o out.csv", "-o out.html", "-o out.sqlite",
    "-o out.svg", "-o out.txt", "-o out.none", "-o -", "-o none/out.json", f"-o {TAKEN}",
    f"-o {TAKEN} --force", "-o out.json --to md", "-q -o out.md",
)  # fmt: skip
_PLOTTING = (
    "--plot plot.svg", "--plot plot.png", "--plot plot.txt", f"--plot {TAKEN}",
    "--plot plot.svg -o out.json", "--plot none/plot.svg",
)  # fmt: skip


def _of_options() -> dict[str, list[str]]:
    cases = {command: list(_plain_options(command)) for command in PLAIN}
    for command in PLAIN:
        paths = [path for path in _OF_RANKS if path.startswith("fixtures") or SHARED.is_dir()]
        cases[f"{command} ranks"] = [
            f"{command} {path} --rank {rank} --to json" for path in paths for rank in (0, 1, 3)
        ]
    cases["diff"] = list(_diff_options())
    cases["flamegraph"] = list(_flamegraph_options())
    cases["report"] = list(_report_options())
    cases["convert"] = list(_convert_options())
    return cases


def _plain_options(command: str) -> Iterator[str]:
    suited = _SUITED[command]
    for path in suited:
        yield from (f"{command} {path} --top all --to {to}" for to in _TO)
        yield from (f"{command} {path} {options}" for options in _OPTIONS[command])
        yield f"{command} {path} --plot plot.svg"
        yield f"{command} {path} --to html"
    first = suited[0]
    yield from (f"{command} {first} {options}" for options in (*_READING, *_WRITING))
    if command not in ("diagnose", "info", "py-spy-report"):
        yield from (f"{command} {first} {options}" for options in _PLOTTING)
    yield f"{command} {_RANKS}"
    yield f"{command} {_R5} {_R5}"
    yield f"{command} {_R5} missing.json"
    yield f"{command} {_R5} fixtures/malformed/empty_file.json {_MEM}/leak.pickle {_SPY}"
    yield f"{command} {_R5} {_NSYS} {_XLA} --to json"
    yield f"{command} {_R5} fixtures/malformed_stacks --to json"
    if command == "py-spy-report":
        yield f"{command} - < {_SPY}"
        yield f"{command} < {_SPY}"
        yield f"{command} - --to json < {_SPEEDSCOPE}"
        yield f"{command} {_SPY} {_SPEEDSCOPE} --by file"


def _diff_options() -> Iterator[str]:
    pairs = (
        f"{_BEFORE} {_AFTER}", f"{_AFTER} {_BEFORE}", f"{_EIGHT.format(0)} {_R5}", f"{_ISOLATED} {_GLOO}",
        f"{_MEM}/training.pickle {_MEM}/leak.pickle", f"{_NSYS} {_XLA}", f"{_R8} {_R8}",
        f"{_SPY} fixtures/py_spy/threads_idle.raw.txt", f"{_BEFORE} {_SPY}", f"{_BEFORE} missing",
        f"missing {_AFTER}", f"{_BEFORE}", "fixtures/malformed/null.json fixtures/malformed/null.json",
    )  # fmt: skip
    for pair in pairs:
        yield from (f"diff {pair} --to {to}" for to in _TO)
    options = (
        "--fail-on-regression 0", "--fail-on-regression 5", "--fail-on-regression 1000",
        "--min-change 0", "--min-change 50", "--min-change -1", "--fail-on-regression 1 --min-change 3",
        "--step-name ProfilerStep", "--step-name none", "--step-name '('", "--comm-pattern gemm",
        "--comm-pattern '('", "--top all --to table", "--top all --to json",
    )  # fmt: skip
    for pair in (pairs[0], pairs[1], pairs[3]):
        yield from (f"diff {pair} {more}" for more in (*options, "--plot plot.svg", "--to html"))
    yield from (f"diff {pairs[0]} {more}" for more in (*_READING, *_WRITING, *_PLOTTING))


def _flamegraph_options() -> Iterator[str]:
    options = (
        "", "--kind python_function", "--kind cpu_op --kind kernel", "--kind none", "--thread 1",
        "--thread Main", "--thread none", "--weight time", "--weight count", "--weight bytes",
        "--by process", "--by thread", "--by rank", "--by file", "--inverted", "--focus train",
        "--focus none", "--focus '('", "--min-frac 0.05", "--min-frac 2", "--min-frac 0",
        "--library-name torch", "--library-name torch --library-name numpy", "--title 'A <b> title'",
        "--inverted --focus train --by thread",
    )  # fmt: skip
    pairs = (
        (_SPY, _SPEEDSCOPE),
        (_R5, _EIGHT.format(0)),
        (f"{_MEM}/training.pickle", f"{_MEM}/leak.pickle"),
    )
    for path, base in pairs:
        yield from (
            f"flamegraph {path} {more} --to {to} -o -" for more in options for to in ("svg", "json")
        )
        for to in ("svg", "html", "json", "table"):
            yield f"flamegraph {path} --diff {base} --to {to} -o -"
            yield f"flamegraph {path} --diff {base} --inverted --by thread --to {to} -o -"
    yield f"flamegraph {_SPY} --diff missing -o -"
    yield f"flamegraph {_SPY} --diff {_R5} -o -"
    yield f"flamegraph {_R8} --by rank --to json -o -"
    yield f"flamegraph {_RANKS} --by file --to json -o -"
    yield f"flamegraph {_SPY} -o out.png"
    yield f"flamegraph {_SPY} -o out.html"
    yield f"flamegraph {_SPY} -o out.svg -q"
    yield f"flamegraph {_SPY}"
    yield from (f"flamegraph {_SPY} {more}" for more in (*_READING, *_WRITING))
    for path in (_R8, _R5, _NSYS):
        yield from (f"flamegraph {path} --rank {rank} --to json -o -" for rank in (0, 1, 5))


def _report_options() -> Iterator[str]:
    job = f"{_R2} {_MEM}/leak.pickle {_SPY}"
    for path in (job, _R2, _MEM, _NSYS, _SPY, _COMPOSER, _GLOO, _RANKS):
        yield from (f"report {path} -o {out}" for out in ("-", "out.html", "out.json"))
    options = (
        "--top 3", "--top all", "--top x", "--threshold straggler=1%", "--threshold none=1", "-q",
        f"-o {TAKEN}", f"-o {TAKEN} --force", "-o none/out.html", "-o out.txt", "--top 2 -o out.json",
    )  # fmt: skip
    yield from (f"report {_R2} {more}" for more in (*options, *_READING))


def _convert_options() -> Iterator[str]:
    outs = (
        "out.parquet", "out.json", "out.json.gz", "out.sqlite", "out.db", "out.speedscope.json",
        "out.txt", "out", f"{TAKEN} --force", TAKEN, "none/out.parquet",
    )  # fmt: skip
    for path in (_R5, _GLOO3, _NSYS, _XLA, _SPY, _SPEEDSCOPE, f"{_MEM}/training.pickle",
                 f"{_COMPOSER}/ep0-ba5-rank0.json.gz", "fixtures/malformed/lone_surrogate.json",
                 "fixtures/malformed/cut_mid_event.json"):  # fmt: skip
        yield from (f"convert {path} -o {out}" for out in outs)
    for path in (_R8, _RANKS, _MEM, "fixtures/py_spy", "fixtures/malformed"):
        yield from (
            f"convert {path} -o {out}" for out in ("out", "out.parquet", "out.json", "out.sqlite")
        )
        yield f"convert {path} -o out --rank 3"
    yield from (f"convert {_R5} -o out.parquet {more}" for more in _READING)
    yield from (f"convert {_NSYS} -o out.json --rank {rank}" for rank in (0, 1))
    yield f"convert {_R5}"


def _help() -> Iterator[str]:
    yield from ("--help", "-h", "--version", "''", "none", "--none")
    for command in COMMANDS:
        yield from (f"{command} --help", f"{command} -h")


def _errors() -> Iterator[str]:
    for command in COMMANDS:
        out = " -o out.parquet" if command == "convert" else ""
        paths = (
            "", "missing.json", "missing", "''", ".", "shared" if SHARED.is_dir() else ".",
            "fixtures/README.md", "/dev/null", "fixtures/malformed/empty_file.json", "--none",
            f"{_R5} --since", f"{_R5} --none 1",
        )  # fmt: skip
        yield from (f"{command} {path}{out}".strip() for path in paths if path != "shared")


# ------------------------------------------------------------------------------ the Python cases

_FUNCTIONS = {
    "annotations": (_ISOLATED, ("by='rank'", "names=['step']", "names='#1'", "names=['(']", "by='none'")),
    "comm_outliers": (_ISOLATED, (f"baseline={_GLOO!r}", f"memory={_MEM!r}", "factor=1.5", "z=1.0",
                            "comm_patterns=['gemm']", "min_wait_ns=1000", "factor=-1", "comm_patterns=['(']")),
    "cuda_api": (_ISOLATED, ()),
    "diagnose": (_ISOLATED, ("thresholds=['straggler=1%']", "thresholds=['none=1']")),
    "flamegraph": (_SPY, (f"base={_SPEEDSCOPE!r}", "threads=['Main']", "by='thread'", "weight='count'",
                          "inverted=True", "focus='train'", "min_frac=0.1", "library_names=['torch']",
                          "title='T'", "kinds=['sample']", "weight='none'", "by='none'")),
    "gpu_idle": (_ISOLATED, ("min_gap_ns=1000", "dataloader=['x']", "comm_patterns=['gemm']", "by='process'",
                       "by='step'", "library_names=['torch']", "step_name='forward'", "by='none'")),
    "host_metrics": (_COMPOSER, ("counters=['cpu']", "counters=['none']", "counters=['(']")),
    "info": (_ISOLATED, ("skipped=[('a', 'why')]",)),
    "kernels": (_ISOLATED, ("by='device'", "by='stream'", "by='rank'", "by='operator'", "by='annotation'",
                      "by='none'", "comm_patterns=['gemm']")),
    "launches": (_ISOLATED, ("step_name='ProfilerStep'", "step_name='('")),
    "memory": (f"{_MEM}/training.pickle", ("library_name='torch'", "library_name=['torch', 'numpy']")),
    "memory_diff": (f"{_MEM}/training.pickle', '{_MEM}/leak.pickle", ("library_name='torch'",)),
    "memory_growth": (f"{_MEM}/leak.pickle", ("step_name='step'", "step_every='1ms'", "step_every=20",
                                              "step_every='x'", "library_name='torch'")),
    "memory_oom": (f"{_MEM}/oom.pickle", ("capacity_bytes=1 << 36", "capacity_bytes=1",
                                          "library_name='torch'")),
    "modules": (_MODULES, ("depth=1", "patterns='step'", "patterns='('")),
    "operators": (_ISOLATED, ("sort_by='calls'", "group_by_input_shape=True", "group_by_stack=2",
                        "sort_by='none'")),
    "overlap": (_ISOLATED, ("by='step'", "by='stream'", "comm_patterns=['gemm']", "by='none'")),
    "py_spy_report": (_SPY, ("library_names=['torch']", "match='substring', library_names=['thread']",
                             "aggregate_leaf_paths=True", "group_by='function'", "by='thread'",
                             "drop_module=True", "exclude_idle_process=True", "rate=50.0", "rate=0",
                             "match='none'", "group_by='none'")),
    "report": (_ISOLATED, ("thresholds=['straggler=1%']",)),
    "requests": (_REQUESTS, ()),
    "steps": (_ISOLATED, ("step_name='forward'", "step_name='('")),
    "transfers": (_ISOLATED, ()),
}  # fmt: skip
_DIFF_PYTHON = ("", ", min_change=0.5", ", step_name='ProfilerStep'", ", comm_patterns=['gemm']",
                ", min_change=-1", ", since_ns=20_000_000", ", rank=0")  # fmt: skip
_METHODS = (
    "annotations", "comm_outliers", "cuda_api", "diagnose", "flamegraph", "gpu_idle", "host_metrics",
    "info", "kernels", "launches", "memory", "memory_growth", "memory_oom", "operators", "overlap",
    "py_spy_report", "report", "steps", "transfers",
)  # fmt: skip
_TOGETHER = f"ta.concat([ta.read('{_EIGHT}'.format(n)) for n in (0, 3, 5)])"


def _python() -> Iterator[str]:
    for function, (path, options) in _FUNCTIONS.items():
        call = f"python: ta.{function}('{path}'"
        yield f"{call})"
        yield from (f"{call}, {more})" for more in options)
        reading = ("rank=1", "rank=99", "since_ns=20_000_000, until_ns=90_000_000", "format='none'")
        yield from (f"{call}, {more})" for more in reading)
        yield f"python: sorted(ta.{function}('{path}').scalars)"
        yield f"python: ta.{function}('{path}').plot()"
        yield f"python: ta.{function}('{path}')._repr_html_()"
    yield from (f"python: ta.diff({_BEFORE!r}, {_AFTER!r}{more})" for more in _DIFF_PYTHON)
    yield f"python: ta.read({_BEFORE!r}).diff(ta.read({_AFTER!r}))"
    for method in _METHODS:
        for path in (_R5, _GLOO3, _NSYS, _SPY, f"{_MEM}/leak.pickle"):
            yield f"python: ta.read({path!r}).{method}()"
        yield f"python: {_TOGETHER}.{method}()"
        yield f"python: ta.{method}({_TOGETHER}, rank=3)"
        yield f"python: ta.{method}([ta.read('{_EIGHT}'.format(n)) for n in (0, 3, 5)])"
        yield f"python: (ta.convert({_TOGETHER}, 'job.parquet'), ta.{method}('job.parquet'))[1]"
        yield f"python: (ta.convert({_TOGETHER}, 'job.parquet'), ta.{method}('job.parquet', rank=3))[1]"
        yield f"python: ta.{method}('missing')"
        yield f"python: ta.{method}([])"
    for name in files():
        if name.startswith("fixtures"):
            yield f"python: ta.read({name!r})"
    yield from (f"python: ta.read({_R5!r}, {more})" for more in (
        "kinds=['kernel']", "kinds='none'", "rank=1", "since_ns=20_000_000", "until_ns=20_000_000",
    ))  # fmt: skip
    yield from (f"python: ta.read({_NSYS!r}, {more})" for more in ("rank=0", "kinds=['kernel']"))
    yield f"python: {_TOGETHER}"
    yield f"python: {_TOGETHER}.with_rank(1)"
    yield f"python: {_TOGETHER}.between(20_000_000, 90_000_000)"
    yield f"python: ta.find_inputs([{_R8!r}, 'fixtures/malformed_stacks', 'fixtures'])"
    yield "python: ta.find_inputs(['missing'])"
    for out in ("a.parquet", "a.json", "a.sqlite", "a.none"):
        yield f"python: ta.convert({_R5!r}, {out!r})"
    yield "python: [(name, getattr(ta, name).__doc__) for name in ta.__all__]"
    signatures = "str(__import__('inspect').signature(getattr(ta, name)))"
    yield f"python: [(name, {signatures}) for name in ta.__all__ if name[0].islower()]"


# --------------------------------------------------------------------------- in a worker: one case


@dataclass(frozen=True)
class Outcome:
    """The result of a case."""

    case: str
    code: str
    out: bytes
    err: bytes
    written: dict[str, bytes]
    seconds: float

    @property
    def digest(self) -> str:
        """Return 16 digits of a hash of everything."""
        out, written = _stable(self.out), {name: _stable(d) for name, d in self.written.items()}
        whole = hashlib.sha256(b"%d %b%d %b" % (len(out), out, len(self.err), self.err))
        for name, data in written.items():
            whole.update(b"%b %d %b" % (name.encode(), len(data), data))
        return whole.hexdigest()[:16]

    @property
    def line(self) -> str:
        """Return the line for the list."""
        return f"{self.case}  {self.code}  {self.digest}"


def _stable(data: bytes) -> bytes:
    """Without what differs from run to run: the sixth decimal of coordinates in matplotlib's SVG.

    Its layout is solved numerically; names of clip paths and markers are hashes of such numbers.
    """
    if b"<clipPath id=" not in data:
        return data
    named = re.sub(rb"\b[pmC][0-9a-f_]{10,}", b"id", data)
    return re.sub(rb"-?\d+\.\d{3,}", lambda match: b"%.2f" % float(match[0]), named)


class TooLong(BaseException):
    """A case exceeded its time limit; the program does not catch this."""


def outcomes(cases: Sequence[str], tree: str) -> list[Outcome]:
    """Run cases one after another in this process."""
    if tree not in sys.path:
        sys.path.insert(0, tree)
    signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory() as scratch:
        return [_outcome(case, Path(scratch)) for case in cases]


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TooLong


def _outcome(case: str, scratch: Path) -> Outcome:
    folder = _prepared(scratch / "case")
    stdin, real = os.dup(0), (os.dup(1), os.dup(2))
    start = time.perf_counter()
    command, _, source = case.partition(" < ")
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stream = os.open(source or os.devnull, os.O_RDONLY)
        streams = sys.stdin, sys.stdout, sys.stderr
        # descriptors, as libraries in C and Rust also print
        for old, new in ((stream, 0), (out.fileno(), 1), (err.fileno(), 2)):
            os.dup2(old, new)
        sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")
        signal.alarm(LIMIT_SECONDS)
        try:
            code = str(_done(command))
        except TooLong:
            code = "timeout"
        finally:
            signal.alarm(0)
            for one in (sys.stdout, sys.stderr):
                one.flush()
            sys.stdin, sys.stdout, sys.stderr = streams
            for old, new in ((stdin, 0), (real[0], 1), (real[1], 2)):
                os.dup2(old, new)
                os.close(old)
            os.close(stream)
        out.seek(0)
        err.seek(0)
        texts = out.read(), err.read()
    taken = time.perf_counter() - start
    return Outcome(case, code, *texts, _written(folder), taken)


def _stream(number: int, mode: str) -> Any:
    return open(number, mode, encoding="utf-8", errors="surrogateescape", closefd=False)


def _prepared(folder: Path) -> Path:
    """Return an empty work folder with links to the inputs and one existing file."""
    if folder.exists():
        os.chdir(folder.parent)
        shutil.rmtree(folder)
    folder.mkdir()
    (folder / "fixtures").symlink_to(ROOT / "fixtures")
    if SHARED.is_dir():
        (folder / "shared").symlink_to(SHARED)
    (folder / TAKEN).write_text("taken")
    os.chdir(folder)
    return folder


def _written(folder: Path) -> dict[str, bytes]:
    """Return the files in the folder of a case."""
    paths = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if not p.is_symlink()}
    read = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    if read.get(TAKEN) == b"taken":
        del read[TAKEN]
    return read


def _done(command: str) -> object:
    if command.startswith("python: "):
        return _evaluated(command.removeprefix("python: "))
    from traceanalyzer.cli.main import status

    return status(shlex.split(command))


def _evaluated(expression: str) -> int:
    """Print the value of an expression of the public API, or its error."""
    import polars as pl

    import traceanalyzer as ta

    try:
        value = eval(expression, {"ta": ta, "pl": pl})  # noqa: S307 - written above
        print("\n".join(_described(value)))
    except Exception as error:  # noqa: BLE001 - all errors are recorded
        print(f"{type(error).__name__}: {error}")
        return 1
    return 0


def _described(value: Any) -> Iterator[str]:
    if hasattr(value, "to_dict") and hasattr(value, "verdict"):
        yield from (type(value).__name__, repr(value.to_dict()), str(value))
    elif hasattr(value, "sources"):
        yield repr(value.sources)
        for name, frame in value.tables.items():
            yield f"{name} {frame.schema} {frame.to_dicts()}"
    elif type(value).__module__.startswith("numpy"):  # axes, whose repr contains an address
        yield repr([type(one).__name__ + one.get_title() for one in value.flat])
    elif isinstance(value, str):
        yield value
    else:
        yield repr(value)


# ------------------------------------------------------------------------------------- comparison


def run(wanted: dict[str, list[str]], jobs: int, tree: str) -> Iterator[Outcome]:
    """Run the cases in processes, largest inputs first."""
    os.environ.update(ENVIRONMENT, PYTHONPATH=tree)
    os.environ.pop("TRACEANALYZER_DEBUG", None)
    order = sorted(wanted, key=lambda name: -_weight(name))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        started = [pool.submit(outcomes, wanted[name], tree) for name in order]
        for count, one in enumerate(as_completed(started), 1):
            yield from one.result()
            if count % 50 == 0:
                print(f"{count} of {len(started)} inputs", file=sys.stderr)


def _weight(name: str) -> float:
    """Estimate the run time of the cases of an input."""
    if name.startswith(("options", "python")):
        return 1e9 if name.startswith("options") else 1e5
    path = _real(name)
    if path.is_dir():
        return 1e7 * sum(1 for _ in path.rglob("*"))
    return path.stat().st_size


def listed() -> dict[str, str]:
    """Return the recorded line of each case."""
    lines = LIST.read_text().splitlines() if LIST.exists() else []
    return {line.rsplit("  ", 2)[0]: line for line in lines}


def _show(case: str, tree: str) -> int:
    for one in run({"python": [case]}, 1, tree):
        text = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8")
        text.write(f"{one.line}\n--- standard error\n{one.err.decode(errors='replace')}")
        text.write(f"--- standard output\n{one.out.decode(errors='replace')}\n")
        for name, data in one.written.items():
            text.write(f"--- {name}: {len(data):,} bytes\n{data.decode(errors='replace')}\n")
        text.flush()
    return 0


def _save(one: Outcome, folder: Path) -> None:
    name = re.sub(r"[^\w.=-]+", "_", one.case)[:150]
    place = folder / f"{name}.{hashlib.sha256(one.case.encode()).hexdigest()[:6]}"
    place.mkdir(parents=True, exist_ok=True)
    for part, data in (("stdout", one.out), ("stderr", one.err), ("exit", one.code.encode())):
        (place / part).write_bytes(data)
    for written, data in one.written.items():
        (place / written.replace("/", "_")).write_bytes(data)


def main() -> int:
    """Compare with the recorded digests, or do what the options select."""
    parser = argparse.ArgumentParser(description="Compare all outputs with the recorded digests.")
    parser.add_argument("--all", action="store_true", help=f"all cases, not one in {ONE_IN}")
    parser.add_argument("--only", action="append", metavar="TEXT", help="cases that contain this")
    parser.add_argument("--show", metavar="CASE", help="print what this case prints")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep all outputs")
    parser.add_argument("--tree", default=str(ROOT), help="the checkout whose package is run")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="accept what is printed now")
    parser.add_argument("--times", action="store_true", help="print the slowest cases")
    options = parser.parse_args()
    tree = str(Path(options.tree).resolve())
    if options.show:
        return _show(options.show, tree)
    if not SHARED.is_dir():
        print(f"skipped: cases with shared/ (no such folder: {SHARED})")
    recorded = listed()
    wanted = {
        name: [case for case in cases if _is_wanted(case, options.only, every=options.all)]
        for name, cases in groups().items()
    }
    start = time.perf_counter()
    results = []
    for one in run({name: cases for name, cases in wanted.items() if cases}, options.jobs, tree):
        results.append((one.case, one.line, one.seconds))
        if options.save:
            _save(one, options.save)
        if one.code == "timeout":
            print(f"timeout: {one.case}")
    if options.times:
        for case, _, seconds in sorted(results, key=lambda each: -each[2])[:40]:
            print(f"{seconds:8.2f} s  {case}")
    lines = {case: line for case, line, _ in results}
    print(f"\n{len(lines):,} cases in {time.perf_counter() - start:,.0f} s")
    if options.write:
        kept = recorded if options.only or options.all or not SHARED.is_dir() else {}
        LIST.write_text("".join(f"{line}\n" for _, line in sorted((kept | lines).items())))
        return 0
    return _compared(lines, recorded, partial=bool(options.only or options.all))


def _is_wanted(case: str, only: list[str] | None, *, every: bool) -> bool:
    if only:
        return any(text in case for text in only)
    return every or hashlib.sha256(case.encode()).digest()[0] % ONE_IN == 0


def _compared(lines: dict[str, str], recorded: dict[str, str], *, partial: bool) -> int:
    changed = sorted(case for case in lines if case in recorded and lines[case] != recorded[case])
    new = sorted(case for case in lines if case not in recorded)
    gone = [] if partial else sorted(case for case in recorded if case not in lines)
    if not SHARED.is_dir():
        gone = [case for case in gone if "shared/" not in case]
    for label, cases in (("differs", changed), ("new", new), ("gone", gone)):
        for case in cases:
            print(f"{label}: {case}")
    print(f"{len(changed)} differ, {len(new)} new, {len(gone)} gone")
    return 1 if changed or new or gone else 0


if __name__ == "__main__":
    sys.exit(main())
