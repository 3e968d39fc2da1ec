"""Methods of a trace are the functions of the analyzers."""

from __future__ import annotations

import inspect
import io
from contextlib import redirect_stdout
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.methods import AnalysisMethods
from traceanalyzer.schema import ON_REQUEST

FIXTURES = ROOT / "fixtures"
KINETO = FIXTURES / "nccl_8ranks" / "rank5.json.gz"
GLOO = FIXTURES / "ddp_gloo_4ranks" / "rank3.json.gz"
SNAPSHOT = FIXTURES / "memory" / "training.pickle"
SAMPLES = FIXTURES / "py_spy" / "subprocesses.speedscope.json"


def _questions() -> list[str]:
    """Public functions that answer a question about inputs."""
    functions = {name: getattr(ta, name) for name in ta.__all__}
    return [
        name
        for name, one in functions.items()
        if inspect.isfunction(one)
        and next(iter(inspect.signature(one).parameters.values())).name == "inputs"
        and name != "check_budgets"  # of a whole run
    ]


QUESTIONS = _questions()


def test_functions_are_methods() -> None:
    assert {"kernels", "memory", "gpu_idle", "info"} <= set(QUESTIONS)
    assert [name for name in vars(AnalysisMethods) if not name.startswith("_")] == QUESTIONS


@pytest.mark.parametrize("name", QUESTIONS)
def test_method_is_the_function(name: str) -> None:
    function, method = getattr(ta, name), getattr(ta.read(KINETO), name)
    assert getattr(ta.Trace, name) is function is method.__func__
    first, *others = inspect.signature(function).parameters.values()
    assert list(inspect.signature(method).parameters.values()) == others
    assert first.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    given = {one.kind for one in others if one.default is not inspect.Parameter.empty}
    assert given <= {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", QUESTIONS)
def test_help_describes_keywords(name: str) -> None:
    output = io.StringIO()
    with redirect_stdout(output):
        help(getattr(ta.Trace, name))
    text = output.getvalue()
    parameters = list(inspect.signature(getattr(ta, name)).parameters.values())
    keywords = [one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD]
    assert [one for one in keywords if f"        {one}: " not in text] == []
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    assert "**reading: see :class:`~traceanalyzer.analyzers.base.Reading`." in text
    assert "Raises:" in text


def test_completion_of_a_trace() -> None:
    offered = {name for name in dir(ta.read(SNAPSHOT)) if not name.startswith("_")}
    assert {*QUESTIONS, *schema.TABLES, "meta", "between"} <= offered
    assert not set(QUESTIONS) & set(schema.TABLES), "a question hides a table"


def test_method_returns_the_result_of_the_function() -> None:
    trace = ta.read(KINETO)
    kernels = trace.kernels(by="stream", comm_patterns="gemm")
    assert isinstance(kernels, ta.Kernels)
    assert kernels.to_dict() == ta.kernels(trace, by="stream", comm_patterns="gemm").to_dict()
    assert kernels.to_dict() != trace.kernels().to_dict()


def test_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        ta.read(KINETO).kernels(nonsense=1)


def _input(name: str) -> Path:
    if name.startswith("memory"):
        return SNAPSHOT
    if name in ("flamegraph", "py_spy_report"):
        return SAMPLES
    special = {
        "efficiency": FIXTURES / "transformer" / "rank0.json.gz",
        "roofline": FIXTURES / "transformer" / "rank0.json.gz",
        "host_metrics": FIXTURES / "composer" / "ep0-ba5-rank1.json.gz",
    }
    return special.get(name, KINETO)


#: Questions on files that have no timeline.
TIMELESS = ("hang", "printed", "requests")


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in QUESTIONS if name not in TIMELESS])
def test_window_of_a_trace_in_memory(name: str) -> None:
    path, ask = _input(name), getattr(ta, name)
    if name == "modules":  # the file has ranges, and no modules
        ask = partial(ask, patterns=".")
    second = {"memory_diff": path, "query": "select count(*) from events"}
    more = (second[name],) if name in second else ()
    trace = ta.read(path, columns=ON_REQUEST)
    start, end = (trace.events["ts"].min(), trace.events["ts"].max())
    assert isinstance(start, int)
    assert isinstance(end, int)
    sixth = (end - start) // 6
    of_trace, of_file = (
        ask(one, *more, since_ns=sixth, until_ns=5 * sixth).to_dict() for one in (trace, path)
    )
    assert of_trace == of_file
    assert of_trace != ask(trace, *more).to_dict()


def test_shapes_that_were_not_read() -> None:
    with raises_wording(ta.MissingData):
        ta.read(GLOO).operators(group_by_input_shape=True)
    trace = ta.read(GLOO, columns=["input_dims"])
    assert trace.operators(group_by_input_shape=True).operators["input_dims"].n_unique() > 10


def test_functions_of_analyzers_are_public() -> None:
    functions = {entry.name: entry.code for entry in registry.public()}
    assert functions.items() <= ta._HOME.items()


@pytest.mark.parametrize("name", [entry.name for entry in registry.public()])
def test_keywords_are_the_options(name: str) -> None:
    entry = registry.ENTRIES[name]
    parameters = inspect.signature(entry.function()).parameters
    options = {
        k: p for k, p in parameters.items() if k not in ("inputs", "runs", "after", "reading")
    }
    known = {one.name: one for one in fields(entry.options_class()) if one.name != "window"}
    assert options.keys() == known.keys()
    for key, option in known.items():
        if options[key].default is not inspect.Parameter.empty:
            assert options[key].default == option.default, key
