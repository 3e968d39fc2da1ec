"""Tasks of other processes in ``test_baselines``: light imports, so that they start at once."""

from __future__ import annotations

from typing import Any

from traceanalyzer import __version__
from traceanalyzer.errors import OutputError
from traceanalyzer.run import baselines
from traceanalyzer.run.baselines import PARTS_SCHEMA

#: Runs that one process saves.
EACH = 20


def save(barrier: Any, name: str, kind: str, answers: Any) -> None:
    """Save runs when all processes are ready; put (saved, refused) into ``answers``."""
    barrier.wait(60)
    saved = 0
    for _ in range(EACH):
        try:
            with baselines.new_run(name, add=kind == "add", force=kind == "force") as run:
                (run / "sums.parquet").write_bytes(b"x" * 1000)
                facts = baselines.Facts(PARTS_SCHEMA, __version__, "now", 1, 1)
                baselines.write_facts(run, facts)
            saved += 1
        except OutputError:
            pass
    answers.put((saved, EACH - saved))
