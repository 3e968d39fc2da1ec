"""The order of the keys of an object has no meaning in JSON: a sorted file is the same trace."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

from traceanalyzer import Trace, read, schema

FIXTURES = Path(__file__).parents[2] / "fixtures"

FILES = {
    "xla": FIXTURES / "xla/gpu2.trace.json.gz",
    "composer": FIXTURES / "composer/ep0-ba5-rank0.json.gz",
    "jax": FIXTURES / "jax_cpu/host.trace.json.gz",
    "kineto": FIXTURES / "ddp_gloo_4ranks/rank1.json.gz",
    "modules": FIXTURES / "transformer/rank0.json.gz",
}


def _reordered(value: Any, order: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _reordered(value[key], order) for key in order(value)}
    return [_reordered(one, order) for one in value] if isinstance(value, list) else value


def _tables(trace: Trace) -> dict[str, Any]:
    tables = {name: getattr(trace, name) for name in schema.TABLES}
    # the series of a reading have the order of their keys
    return tables | {"counters": trace.counters.sort("ts", "pid", "name", "series")}


@pytest.mark.parametrize(
    "name", ["xla", "composer", *(pytest.param(n, marks=pytest.mark.matrix) for n in FILES)]
)
@pytest.mark.parametrize("order", [sorted, lambda keys: list(reversed(keys))])
def test_order_of_keys_has_no_meaning(
    name: str, order: Callable[[Any], Any], tmp_path: Path
) -> None:
    document = json.loads(gzip.decompress(FILES[name].read_bytes()))
    traces = []
    for at, value in enumerate((document, _reordered(document, order))):
        path = tmp_path / f"{at}.json"
        path.write_text(json.dumps(value))
        traces.append(read(path))
    expected, tables = map(_tables, traces)
    assert any(table.height for table in tables.values())
    for table, frame in expected.items():
        assert_frame_equal(tables[table], frame)


def test_modules_are_read_although_the_settings_follow_the_events(tmp_path: Path) -> None:
    module = {
        "ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "pid": 1, "tid": 1,
        "ts": 1, "dur": 2, "args": {"Python module id": 0},
    }  # fmt: skip
    path = tmp_path / "sorted.json"
    path.write_text(json.dumps({"traceEvents": [module], "with_modules": 1}))
    args = read(path, args_with_modules=True).events["args"]
    assert args.to_list() == ['{"Python module id": 0}']
