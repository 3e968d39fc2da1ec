"""Everything that can be told of a run, as one report."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import PurePath
from typing import Unpack

from traceanalyzer.analyzers.diagnosis import with_thresholds
from traceanalyzer.analyzers.memory import MemoryErrors
from traceanalyzer.analyzers.summary import facts, overview
from traceanalyzer.api.diagnosis import judged
from traceanalyzer.api.examination import Examination, examine
from traceanalyzer.api.gathering import Reading
from traceanalyzer.api.questions import QUESTIONS
from traceanalyzer.api.reading import Inputs, several
from traceanalyzer.result import Report, Section
from traceanalyzer.trace import Trace

_NAMED = 3


def report(
    inputs: Inputs,
    *,
    thresholds: str | Sequence[str] = (),
    named: Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Report:
    """Findings first, then every analysis that the files allow, each file read once.

    Args:
        inputs: traces, files and folders of any format, of one run.
        thresholds: other thresholds of findings, such as ``late-rank=5%``.
        named: what to call the inputs in the title and in commands, such as the folder they were
            found in; by default as they are given.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: a threshold makes no sense, or no input is of the rank that is asked for.
    """
    rules = with_thresholds(several(thresholds))
    examined = examine(inputs, **reading)
    paths = list(named) or _paths(inputs)
    return Report(
        about=_about(paths),
        told=judged(examined, rules),
        facts=facts(examined.answers),
        overview=overview(examined.answers),
        sections=_sections(examined, paths),
        command=_command("report", paths),
    )


def _sections(examined: Examination, paths: Sequence[str]) -> tuple[Section, ...]:
    found = []
    for question in QUESTIONS:
        result = examined.answers.get(question.name)
        if result is None or (isinstance(result, MemoryErrors) and result.errors.is_empty()):
            continue
        command = _command(question.command, paths)
        found.append(Section(question.name, question.short, command, result))
    return tuple(found)


def _paths(inputs: Inputs) -> list[str]:
    given = [inputs] if isinstance(inputs, Trace | str | os.PathLike) else list(inputs)
    return [one.meta.path if isinstance(one, Trace) else os.fspath(one) for one in given]


def _about(paths: Sequence[str]) -> str:
    names = [PurePath(path).name or path for path in paths[:_NAMED]]
    more = len(paths) - _NAMED
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _command(command: str, paths: Sequence[str]) -> str:
    return f"traceanalyzer {command} {shlex.join(paths)}"
