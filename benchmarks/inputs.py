"""The traces that are measured, made once in ``.bench/inputs``.

The generators are kept beside the project, with the other third-party data; without them only
what needs no input is measured.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("TRACEANALYZER_SHARED", ROOT.parent / "shared"))
FOLDER = ROOT / ".bench" / "inputs"
#: Real recordings, for the inflaters.
REAL = ("v100_rank1of2_2020_allreduce", "mi300_rank0of8_rccl", "nccl_a100_rank0of2")

_REPLICATED = "nccl_a100_rank0of2"
_EXPORT = "mfu_2gpu_before"
_EVENT_END = b"\n  },\n"
_KEPT_KERNELS = 400
#: Of a generated trace: bytes to each kernel, and the share left without kernels and arrows.
_BYTES_PER_KERNEL = 2000
_WITHOUT_KERNELS = 0.57
_BLOCK = 1 << 24


def missing() -> str | None:
    """Why no trace can be made, or None."""
    tools = [_tool("gen"), _tool("replicate")]
    lost = [str(tool) for tool in tools if not tool.is_file()]
    return f"no {lost[0]}; set TRACEANALYZER_SHARED to the folder of shared data" if lost else None


def _tool(verb: str) -> Path:
    return SHARED / "tools" / f"{verb}_kineto_trace.py"


def _recording(name: str) -> Path:
    return SHARED / "data" / "chrome" / "kineto" / f"{name}.json.gz"


def generated(megabytes: int) -> Path:
    """A synthetic trace in the layout of PyTorch 2, one event in six a kernel."""
    return _created(f"gen{megabytes}.json", lambda target: _generate(target, megabytes))


def replicated(megabytes: int) -> Path:
    """A real recording of one of two ranks, its events repeated with new times and ids."""
    source = str(_recording(_REPLICATED))
    return _created(
        f"rep{megabytes}.json",
        lambda target: _run(_tool("replicate"), source, str(target), str(megabytes)),
    )


def few_kernels(megabytes: int) -> Path:
    """A synthetic trace with a few hundred kernels: what ``comm-outliers`` wants of it is small."""
    return _created(f"few{megabytes}.json", lambda target: _thin(target, megabytes))


def deep_stacks(megabytes: int) -> Path:
    """Real stacks of py-spy, repeated with other line numbers."""
    folder = SHARED / "data" / "pyspy"
    sources = [folder / f"{name}.raw.txt" for name in ("default", "flameshow_third_party")]
    return _created(
        f"stacks{megabytes}.txt",
        lambda target: _stacks(target, "deep", *map(str, sources), "--megabytes", str(megabytes)),
    )


def shallow_stacks(count: int) -> Path:
    """Distinct stacks of three frames."""
    return _created(
        f"shallow{count}.txt", lambda target: _stacks(target, "shallow", "--stacks", str(count))
    )


def nsys_export(kernels: int) -> Path:
    """A real export of two GPUs, its rows repeated with new times and ids."""
    return _created(f"nsys{kernels}.sqlite", lambda target: _export(target, kernels))


def many_ranks(ranks: int, straggler: int) -> Path:
    """A folder with one small synthetic trace of each rank of a job."""
    script = ROOT / "fixtures" / "make_nccl_ranks.py"
    numbers = ["--ranks", str(ranks), "--straggler", str(straggler)]
    return _created(f"ranks{ranks}", lambda target: _run(script, *numbers, str(target)))


def ranks_of(trace: Path, ranks: int) -> Path:
    """A folder with copies of a generated trace, which name other ranks."""
    return _created(f"{trace.stem}x{ranks}", lambda target: _copies(target, trace, ranks))


def snapshot(events: int) -> Path:
    """A synthetic memory snapshot of one device."""
    script = SHARED / "tools" / "gen_memory_snapshot.py"
    return _created(
        f"snapshot{events}.pickle",
        lambda target: _run(script, str(target), "--events", str(events)),
    )


def gzipped(path: Path) -> Path:
    """The same trace compressed."""
    return _created(f"{path.name}.gz", lambda target: _compress(path, target))


def recordings() -> list[Path]:
    """Real recordings as they were published."""
    return [path for name in REAL if (path := _recording(name)).is_file()]


def _created(name: str, make: Callable[[Path], None]) -> Path:
    path = FOLDER / name
    if not path.exists():
        print(f"making {path}", file=sys.stderr)
        FOLDER.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{name}.part")
        make(unfinished)
        unfinished.rename(path)
    return path


def _run(script: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, script, *arguments], check=True, capture_output=True)


def _stacks(target: Path, shape: str, *arguments: str) -> None:
    _run(ROOT / "benchmarks" / "make_stacks.py", shape, *arguments, "-o", str(target))


def _generate(target: Path, megabytes: float) -> None:
    _run(_tool("gen"), str(target), str(megabytes))


def _export(target: Path, kernels: int) -> None:
    source = target.with_suffix(".source")
    packed = SHARED / "data" / "nsys" / f"{_EXPORT}.sqlite.gz"
    source.write_bytes(gzip.decompress(packed.read_bytes()))
    _run(SHARED / "tools" / "gen_nsys_sqlite.py", str(target), str(kernels), str(source))
    source.unlink()


def _copies(target: Path, trace: Path, ranks: int) -> None:
    target.mkdir()
    for rank in range(ranks):
        with trace.open("rb") as source, (target / f"rank{rank}.json").open("wb") as copied:
            head = source.read(1 << 12)
            named = f'"rank": {rank}, "world_size": {ranks}'.encode()
            copied.write(head.replace(b'"rank": 0, "world_size": 8', named))
            shutil.copyfileobj(source, copied, _BLOCK)


def _thin(target: Path, megabytes: int) -> None:
    """Generate more than is wanted, then leave out all but a few kernels and their arrows."""
    whole = target.with_suffix(".whole")
    _generate(whole, megabytes / _WITHOUT_KERNELS)
    every = max(whole.stat().st_size // _BYTES_PER_KERNEL // _KEPT_KERNELS, 1)
    kernels = 0
    with whole.open("rb") as source, target.open("wb") as thinned:
        for event in _events(source):
            if b'"cat": "kernel"' in event:
                kernels += 1
            belongs = b'"cat": "kernel"' in event or b'"cat": "ac2g"' in event
            if kernels % every == 0 or not belongs:
                thinned.write(event)
    whole.unlink()


def _events(source: IO[bytes]) -> Iterator[bytes]:
    """Pieces of a generated trace that end with an event; the first and last hold more."""
    rest = b""
    while block := source.read(_BLOCK):
        *events, rest = (rest + block).split(_EVENT_END)
        for event in events:
            yield event + _EVENT_END
    yield rest


def _compress(path: Path, target: Path) -> None:
    with path.open("rb") as source, gzip.open(target, "wb", compresslevel=6) as compressed:
        shutil.copyfileobj(source, compressed, _BLOCK)
