"""The number of the schema of stored parts changes with their types and tables.

``tests/golden/stored_parts.json`` has the structure that ``PARTS_SCHEMA`` stands for: the fields of
every stored type, from its annotations, and the columns of every stored table, from fixtures.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer.analyzers import registry
from traceanalyzer.run import parts as summaries
from traceanalyzer.run.baselines import PARTS_SCHEMA
from traceanalyzer.run.parts import part_types
from traceanalyzer.run.summaries import CONTEXT, STORED, Issues
from traceanalyzer.tools import summarize as summarizing

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/stored_parts.json"
#: Inputs of all kinds of parts: GPUs, hosts, memory, dumps, reports, samples.
INPUTS = (
    "ddp_gloo_4ranks/rank0.json.gz",
    "nsys/training.sqlite",
    "transformer/rank0.json.gz",
    "composer/ep0-ba5-rank0.json.gz",
    "memory/training.pickle",
    "flight_recorder/missing/nccl_trace_rank_0",
    "ncu/hopper_raw.csv",
    "py_spy/default.raw.txt",
)
_TEXT = "raise PARTS_SCHEMA in traceanalyzer/run/baselines.py, then pytest --bless"


def text_of(kind: Any) -> str:
    """A type as text, the same in every version of Python."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is None:
        return getattr(kind, "__qualname__", None) or str(kind)
    name = getattr(origin, "__name__", str(origin)).replace("UnionType", "Union")
    items = sorted(map(text_of, args)) if name == "Union" else [text_of(one) for one in args]
    return f"{name}[{', '.join(items)}]"


def types_of(kind: Any) -> list[tuple[str, Any]]:
    """The stored fields of a dataclass or a named tuple, with their types."""
    hints = typing.get_type_hints(kind)
    names = [one.name for one in fields(kind) if one.init] if is_dataclass(kind) else kind._fields
    return [(name, hints[name]) for name in names]


def structure(kinds: Iterator[Any]) -> list[str]:
    """The fields of all classes that these types refer to, in the stored order.

    Where a class is defined does not matter.
    """
    waiting, known = list(kinds), dict[Any, str]()
    while waiting:
        kind = waiting.pop()
        waiting += [one for one in typing.get_args(kind) if not isinstance(one, str)]
        is_stored = isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))
        if is_stored and kind not in known:
            hints = types_of(kind)
            listed = ", ".join(f"{field}: {text_of(hint)}" for field, hint in hints)
            known[kind] = f"{kind.__qualname__}({listed})"
            waiting += [hint for _, hint in hints]
    return sorted(known.values())


def stored_types() -> Iterator[Any]:
    """The types of all sections of a summary."""
    yield from (STORED, Issues, CONTEXT, summaries.Header)
    for name in registry.ENTRIES:
        analyzer = registry.ENTRIES[name].analyzer()
        for measure in (analyzer.measure, *analyzer.measure_for.values()):
            yield from part_types(measure)


def tables_in(value: Any, place: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """The tables in a value, each with its class and field."""
    if isinstance(value, pl.DataFrame):
        yield place, value
    elif is_dataclass(value) and not isinstance(value, type):
        for field, _ in types_of(type(value)):
            yield from tables_in(getattr(value, field), f"{type(value).__qualname__}.{field}")
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tables_in(one, place)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from tables_in(one, place)


def columns(
    inputs: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, set[str]]]:
    """Types of the columns of all tables that the inputs store, by place and name."""
    found: dict[str, dict[str, set[str]]] = {}
    add = summaries.Writer.add

    def recorded(self: summaries.Writer, section: str, value: Any) -> None:
        for place, table in tables_in(value, section.rpartition("/")[2]):
            of_place = found.setdefault(place, {})
            for name, dtype in table.schema.items():
                plain = "Enum" if isinstance(dtype, pl.Enum) else str(dtype)
                of_place.setdefault(name, set()).add(plain)
        add(self, section, value)

    monkeypatch.setattr(summarizing.Writer, "add", recorded)
    for number, name in enumerate(inputs):
        ta.summarize(ROOT / "fixtures" / name, output=tmp_path / str(number))
    return found


def lines(found: dict[str, dict[str, set[str]]]) -> list[str]:
    texts = []
    for place, of_place in sorted(found.items()):
        listed = (f"{name}: {' or '.join(sorted(of_place[name]))}" for name in sorted(of_place))
        texts.append(f"{place}({', '.join(listed)})")
    return texts


@pytest.mark.matrix
def test_types_and_columns_of_one_file_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = json.loads(GOLDEN.read_text())
    assert recorded["schema"] == PARTS_SCHEMA, _TEXT
    assert structure(stored_types()) == recorded["types"], _TEXT
    known = {text.partition("(")[0]: text for text in recorded["tables"]}
    for place, of_place in columns(INPUTS[-1:], tmp_path, monkeypatch).items():
        for name, kinds in of_place.items():
            (text,) = re.findall(rf"[(,] ?{re.escape(name)}: ([^,]+)[,)]", known[place])
            assert kinds <= {*text.split(" or ")}, (place, name, _TEXT)


@pytest.mark.matrix
def test_schema_number_changes_with_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    now = {
        "types": structure(stored_types()),
        "tables": lines(columns(INPUTS, tmp_path, monkeypatch)),
    }
    assert len(now["types"]) > 40
    assert len(now["tables"]) > 40
    recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"schema": 0}
    if recorded == {"schema": PARTS_SCHEMA, **now}:
        return
    for part in ("types", "tables"):
        changed = {*recorded.get(part, ())} ^ {*now[part]}
        assert recorded["schema"] != PARTS_SCHEMA or not changed, f"{sorted(changed)}: {_TEXT}"
    assert request.config.getoption("--bless"), f"PARTS_SCHEMA has changed: {_TEXT}"
    GOLDEN.write_text(json.dumps({"schema": PARTS_SCHEMA, **now}, indent=1) + "\n")


def test_a_changed_field_changes_the_structure() -> None:
    """Otherwise the number would never have to be raised."""
    from dataclasses import make_dataclass

    def of(*fields: tuple[str, Any]) -> list[str]:
        return structure(iter([make_dataclass("Part", fields)]))

    first = of(("a", int), ("b", list[str]))
    assert first != of(("a", int))
    assert first != of(("a", int | None), ("b", list[str]))
    assert first != of(("b", list[str]), ("a", int))
    assert first == of(("a", int), ("b", list[str]))
