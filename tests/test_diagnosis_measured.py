"""What every rule measures on every fixture, also where it is too little for a finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from conftest import ROOT

from traceanalyzer.analyzers.diagnosis import RULES
from traceanalyzer.api.examination import examine
from traceanalyzer.result import Result

INPUTS = {
    "composer": ["composer"],
    "ddp_gloo": ["ddp_gloo_4ranks"],
    "nccl": ["nccl_8ranks"],
    "nccl_rank": ["nccl_8ranks/rank5.json.gz"],
    "isolated": ["nccl_8ranks_isolated"],
    "nsys": ["nsys/training.sqlite"],
    "upgrade": ["upgrade/before.json.gz"],
    "memory": [
        "memory/training.pickle", "memory/leak.pickle", "memory/two_devices.pickle",
        "memory/ring.pickle",
    ],
    "oom": ["memory/oom.pickle", "memory/oom_expandable.pickle", "memory/fragmented_oom.pickle"],
    "py_spy": ["py_spy/default.raw.txt", "py_spy/subprocesses.raw.txt"],
}  # fmt: skip


def told(answers: dict[str, Result]) -> Iterator[str]:
    """Everything that rules measure, a rule after the other."""
    for rule in RULES:
        if rule.analysis not in answers:
            continue
        measured = list(rule.judge(answers[rule.analysis], answers))
        yield f"## {rule.id}: {len(measured)}"
        for one in measured:
            for field in fields(one):
                value = getattr(one, field.name)
                shown = f"{value:.6g}" if isinstance(value, float) else value
                yield f"{field.name}: {shown}"
            yield ""


@pytest.mark.parametrize("name", INPUTS)
def test_what_every_rule_measures(name: str, golden: Any) -> None:
    paths = [str(ROOT / "fixtures" / path) for path in INPUTS[name]]
    text = "\n".join(told(dict(examine(paths).answers)))
    golden(f"diagnose/measured_{name}.txt", text.replace(f"{ROOT}/", "") + "\n")
