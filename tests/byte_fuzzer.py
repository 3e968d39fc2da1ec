"""Coverage-guided fuzzing of the parsers with atheris (libFuzzer): ``make fuzz``.

Compiled code is not instrumented, so Chrome traces and snapshots are read without it;
``test_fuzz_formats`` tests it with damaged files, and other tests compare both implementations.
Any exception other than an error of the package ends the run; libFuzzer stores the input as
``crash-*`` in the given folder::

    python tests/byte_fuzzer.py FOLDER SECONDS
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["traceanalyzer.parsers"]):
    import traceanalyzer as ta
    from traceanalyzer import schema
    from traceanalyzer.parsers import registry
    from traceanalyzer.parsers.chrome_trace import arrays
    from traceanalyzer.parsers.memory_snapshot import machine

from corpus import FORMATS, members
from damage import CHROME, COLLAPSED, SNAPSHOTS, SPEEDSCOPE

#: First inputs, besides the corpus.
SEEDS = dict(zip(FORMATS, (CHROME, COLLAPSED, SNAPSHOTS, SPEEDSCOPE), strict=True))


def fuzz(folder: Path, seconds: int) -> None:
    """Fuzz for some seconds; the first byte of an input selects its format."""
    corpus, case = folder / "corpus", folder / "rank0"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(SEEDS):
        registry.by_name(name)
        for at, seed in enumerate([*SEEDS[name], *members(name)]):
            (corpus / f"{name}-{at}").write_bytes(bytes((number,)) + seed[:20_000])

    def one(data: bytes) -> None:
        if not data:
            return
        case.write_bytes(data[1:])
        try:
            trace = ta.read(case, format=list(SEEDS)[data[0] % len(SEEDS)])
        except ta.InputError:
            return
        assert schema.check(trace.tables) == []

    options = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], str(corpus), *options, "-timeout=30", "-verbosity=0"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    arrays._scan = None
    machine._machine = None
    fuzz(Path(sys.argv[1]), int(sys.argv[2]))
