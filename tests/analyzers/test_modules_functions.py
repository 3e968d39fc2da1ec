"""Device time of functions of own code, forward and backward."""

from __future__ import annotations

from pathlib import Path

from module_traces import STEPS, one_step, slice_, write

import traceanalyzer as ta

US = 1_000
STEP, BLOCK = "train.py(3): step", "model/block.py(12): forward"


def events(*, frames: bool) -> list[dict[str, object]]:
    rows = []
    for number in range(STEPS):
        at = 5_000 * number
        rows += one_step(at, number)
        spans = {
            STEP: (0, 500),
            BLOCK: (41, 58),
            "torch/nn/modules/linear.py(120): forward": (41, 57),
            "/usr/lib/python3.11/contextlib.py(1): inner": (12, 29),
        }
        for name, (start, end) in spans.items():
            if frames:
                rows.append(slice_("python_function", name, 1, at + start, at + end))
    return rows


def test_functions_have_the_backward_pass_of_their_operators(tmp_path: Path) -> None:
    result = ta.modules(write(tmp_path / "t.json", events(frames=True)))
    rows = {row[0]: row[1:] for row in result.functions.iter_rows()}
    each = {
        # the function with the second layer: forward, and its node of the backward pass
        BLOCK: (7 + 19, 7, 19, 0),
        # the first layer, the checkpointed one and the optimizer; both backward; once more
        STEP: (5 + 11 + 13 + 23 + 17 + 11, 5 + 11 + 13, 23 + 17, 11),
    }
    assert rows == {
        name: tuple(STEPS * US * value for value in values) for name, values in each.items()
    }
    assert [table.name for table in result.view().tables].count("functions") == 1


def test_without_functions_there_is_no_table(tmp_path: Path) -> None:
    result = ta.modules(write(tmp_path / "t.json", events(frames=False)))
    assert result.functions.is_empty()
    assert "functions" not in [table.name for table in result.view().tables]
