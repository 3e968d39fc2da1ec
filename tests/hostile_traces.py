"""Fixtures in which every name is an attack on the program that displays it."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[1] / "fixtures"

#: Characters with a meaning in a terminal, a page, an image, a table or a script.
POISON = (
    "\x1b]0;owned\x07\x1b[31m\x9b31m\x85\u202e\u2066\u200b\ufeff"
    "</title></text></svg></script></style>]]>--><script>alert(1)</script>"
    "<img src=x onerror=alert(1)>\"onload=alert(1) '<svg onload=alert(1)>&lt;&#60;"
    "![x](javascript:alert(1))|`*_@everyone #1\\u003c ${alert(1)} {{alert(1)}}\r\n\t$x^2$%s"
)
#: Start of a formula in a spreadsheet.
FRONTS = ("=cmd|", "+", "-", "@", "\t=", "\r=", "")

#: For file names and lines of stacks: without characters that these cannot contain.
FILE_POISON = "\x1b[31m\x9b\u202e<img src=x onerror=alert(1)>]]>\"'`|@x"


def kineto(folder: Path) -> Path:
    """Write two ranks: hostile suffixes of names in one, also prefixes in the other."""
    folder = folder / f"=ranks{FILE_POISON}"
    folder.mkdir(parents=True)
    fronts = cycle(FRONTS)
    for rank in range(2):
        source = FIXTURES / f"nccl_8ranks/rank{rank}.json.gz"
        document = json.loads(gzip.decompress(source.read_bytes()))

        def bad(text: str, *, first: bool = rank == 1) -> str:
            return (next(fronts) if first else "") + text + POISON

        for event in document["traceEvents"]:
            is_device = event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
            if event["ph"] == "M":
                _spoil(event["args"], bad)
            elif not str(event["name"]).startswith("ProfilerStep"):
                event["name"] = event["name"] + POISON if is_device else bad(event["name"])
                if rank == 1:
                    _spoil(event.get("args", {}), bad)
        document["traceEvents"] += [
            {"ph": "C", "name": bad("counter"), "pid": 1, "ts": 10.0 * at}
            | {"args": {bad("series"): at, "used": at}}
            for at in range(1, 5)
        ]
        for device in document["deviceProperties"]:
            device["name"] = bad(device["name"])
        for key in ("traceName", "host_name", "hostname"):
            document[key] = bad(str(document.get(key, "host")))
        (folder / f"rank{rank}{FILE_POISON}.json").write_text(json.dumps(document))
    return folder


def shapes(folder: Path) -> Path:
    """Write operators with shapes; names of ranges, modules, kernels and the GPU are hostile."""
    path = folder / f"=shapes{FILE_POISON}.json"
    document = json.loads(gzip.decompress((FIXTURES / "transformer/rank0.json.gz").read_bytes()))
    for event in document["traceEvents"]:
        if event.get("cat") in ("kernel", "user_annotation"):
            event["name"] += POISON
    document["traceEvents"] += [
        {**event, "cat": "python_function", "name": f"nn.Module: Block{POISON}_0"}
        for event in document["traceEvents"]
        if event.get("cat") == "user_annotation"
    ]
    for device in document["deviceProperties"]:
        device["name"] += POISON
    path.write_text(json.dumps(document))
    return path


def _spoil(values: dict[str, Any], bad: Callable[[str], str]) -> None:
    for key, value in values.items():
        if isinstance(value, str):
            values[key] = bad(value)


def nsys(folder: Path) -> Path:
    """Replace all names in the tables."""
    path = folder / f"=nsys{FILE_POISON}.sqlite"
    shutil.copy(FIXTURES / "nsys/training.sqlite", path)
    texts = {
        "StringIds": ("value",),
        "NVTX_EVENTS": ("text", "jsonText"),
        "PROCESSES": ("name",),
        "TARGET_INFO_GPU": ("name", "busLocation"),
        "TARGET_INFO_SYSTEM_ENV": ("value",),
        "DIAGNOSTIC_EVENT": ("text",),
        "NVTX_PAYLOAD_SCHEMAS": ("name",),
        "META_DATA_CAPTURE": ("value",),
    }
    with closing(sqlite3.connect(path)) as connection:
        for table, columns in texts.items():
            for column in columns:
                statement = f"UPDATE {table} SET {column} = {column} || ? WHERE {column} <> ''"
                connection.execute(statement, [POISON])
        # steps are recognised by name
        end = f"text = substr(text, 1, length(text) - {len(POISON)})"
        connection.execute(f"UPDATE NVTX_EVENTS SET {end} WHERE text LIKE 'step %'")
        others = "rowid % 3 = 1 AND text NOT LIKE 'step %'"
        connection.execute(f"UPDATE NVTX_EVENTS SET text = '=cmd|' || text WHERE {others}")
        connection.commit()
    return path


def stacks(folder: Path) -> Path:
    """Write processes, threads, functions, files."""
    path = folder / f"=stacks{FILE_POISON}.raw.txt"
    tail = "".join(c for c in POISON if c not in ";\r\n\x85\t\x07")
    frames = [f"{front.strip()}f{tail} ({front.strip()}/home/{tail}.py:7)" for front in FRONTS]
    lines = [
        f'process {4000 + at}:"{front.strip()}python {tail}";thread ({at}): {tail};'
        + ";".join(frames[: at + 1])
        + f" {10 + at}"
        for at, front in enumerate(FRONTS)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return path


def memory(folder: Path) -> Path:
    """Write frames, files, annotations, settings."""
    path = folder / f"=memory{FILE_POISON}.pickle"
    document = pickle.loads((FIXTURES / "memory/training.pickle").read_bytes())  # noqa: S301 - ours
    path.write_bytes(pickle.dumps(_spoiled(document, cycle(FRONTS))))
    return path


def dumps(folder: Path) -> Path:
    """Write the dumps of a rank that waits, and of one that does not come."""
    folder = folder / f"=dumps{FILE_POISON}"
    folder.mkdir(parents=True)
    for rank in (0, 1):
        source = FIXTURES / f"flight_recorder/chain/nccl_trace_rank_{rank}"
        dump = pickle.loads(source.read_bytes())  # noqa: S301 - ours
        (folder / source.name).write_bytes(pickle.dumps(_spoiled(dump, cycle(FRONTS))))
    return folder


_NAMES = ("desc", "name", "filename", "user_metadata", "compile_context",
          "profiling_name", "thread_name", "comm_lib_version")  # fmt: skip


def _spoiled(value: Any, fronts: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: next(fronts) + one + POISON
            if key in _NAMES and isinstance(one, str)
            else _spoiled(one, fronts)
            for key, one in value.items()
        }
    return [_spoiled(one, fronts) for one in value] if isinstance(value, list) else value


def printed(folder: Path) -> Path:
    """Write a job log: operators, messages, timers and modules are hostile."""
    path = folder / f"=printed{FILE_POISON}.log"
    plain = POISON.replace("\x1b[31m", "")  # colours are removed, columns have their place
    message = "".join(c for c in plain if c not in "\r\n\x85\t\x07")
    tail = "".join(c for c in message if c not in "|:;()")
    fronts = [front.strip() for front in FRONTS]
    text = (FIXTURES / "printed_text/job.log").read_text(encoding="utf-8")
    for name in (
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_...",
        "Optimizer.step#AdamW.step",
    ):
        text = text.replace(name, (fronts[0] + tail)[: len(name)])
    text = text.replace("optimizer states", "optimizer state" + fronts[0] + message[:120])
    for at, name in enumerate(("fwd:", "(head)"), 1):
        text = text.replace(name, name[:-1] + fronts[at] + tail[:70] + name[-1])
    path.write_text(text, encoding="utf-8", newline="")
    return path


def requests(folder: Path) -> Path:
    """Write spans of an inference server: services, models, engines and requests are hostile."""
    path = folder / f"=requests{FILE_POISON}.json"
    text = (FIXTURES / "requests/spans.json").read_text(encoding="utf-8")

    def bad(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: one + POISON if key == "stringValue" else bad(one)
                for key, one in value.items()
            }
        return [bad(one) for one in value] if isinstance(value, list) else value

    lines = [json.dumps(bad(json.loads(line))) for line in text.splitlines()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


INPUTS: dict[str, Callable[[Path], Path]] = {
    "kineto": kineto,
    "nsys": nsys,
    "stacks": stacks,
    "memory": memory,
    "dumps": dumps,
    "shapes": shapes,
    "printed": printed,
    "requests": requests,
}
