"""What-if without the findings of ``diagnose``, which take most of its time, and a job for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import traceanalyzer as ta
from traceanalyzer.analyzers.what_if import Options
from traceanalyzer.analyzers.what_if.compute import WHAT_IF, WhatIf
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Trace


def usual_changes(inputs: Any) -> WhatIf:
    """Return the replays of the usual changes."""
    return run(WHAT_IF, inputs, Options())


@cache
def job_st(shared: Path) -> list[Trace]:
    """Return the ranks of job ST (OSDI'25), a pipeline with a slow stage, read once.

    Arguments have the events that streams wait for.
    """
    files, _ = ta.find_inputs([shared / "data" / "whatif" / "kineto"])
    return [ta.read(file, columns=("args",)) for file in files]
