"""Results and findings do not depend on the order of the inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

import traceanalyzer as ta
from traceanalyzer.run.loop import examine

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("folder", ["ddp_gloo_4ranks", "nccl_8ranks_isolated"])
def test_tables_of_reversed_inputs_are_the_same(folder: str, thorough: bool) -> None:
    paths = sorted((FIXTURES / folder).glob("rank*"))[: None if thorough else 2]
    one, other = examine(paths), examine(paths[::-1])
    for name, result in one.results.items():
        first, second = result.view(), other.results[name].view()
        assert first.verdict == second.verdict
        tables = {table.name: table.frame for table in second.tables}
        for table in first.tables:
            assert table.frame.equals(tables[table.name]), f"{name}: {table.name}"
    if thorough:
        assert ta.diagnose(paths).view().verdict == ta.diagnose(paths[::-1]).view().verdict
