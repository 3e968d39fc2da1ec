"""Public names of the package, and the cost of its import."""

import doctest
import pydoc
import subprocess
import sys
from typing import Any

import pytest
from conftest import ROOT

import traceanalyzer
from traceanalyzer.analyzers import registry

TRACE = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
#: Public names besides those of the registry, which ``__init__.pyi`` lists.
FIXED = [
    "Chart", "Device", "Finding", "InputError", "Job", "MalformedInput", "Meta", "MissingData",
    "MissingExtra", "OptionError", "OutputError", "Report", "Result", "Table", "Trace",
    "TraceAnalyzerError", "UnknownFormat", "UnreadableFile", "check_fix", "concat", "find_inputs",
    "read", "read_job",
]  # fmt: skip
NAMES = sorted([*FIXED, *registry.NAMES])


def test_public_names():
    assert traceanalyzer.__all__ == NAMES
    assert set(NAMES) < set(dir(traceanalyzer))


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_docstrings(name):
    assert getattr(traceanalyzer, name).__doc__


def test_example_in_the_package_help(monkeypatch):
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(traceanalyzer, optionflags=doctest.ELLIPSIS)
    assert (failed, tried) == (0, 8)


def test_package_help_lists_functions():
    text = pydoc.plain(pydoc.render_doc(traceanalyzer))
    for name in ("gpu_idle(inputs", "comm_outliers(inputs", "class Trace(", "class MissingData("):
        assert name in text


@pytest.mark.parametrize(
    ("name", "close"), [("kernel", "kernels"), ("Kernel", "Kernels"), ("Diagnosys", "Diagnosis")]
)
def test_suggested_name_is_of_the_same_case(name: str, close: str) -> None:
    with pytest.raises(AttributeError, match=f"did you mean {close}\\?"):
        getattr(traceanalyzer, name)


@pytest.mark.parametrize(
    ("inputs", "options"),
    [(3, {}), (None, {}), (TRACE, {"step_name": 3}), (TRACE, {"workers": "many"})],
)
def test_values_of_the_wrong_type_are_option_errors(inputs: Any, options: Any) -> None:
    with pytest.raises(traceanalyzer.OptionError):
        traceanalyzer.steps(inputs, **options)


def test_version_is_the_installed_one():
    assert traceanalyzer.__version__.count(".") == 2


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        traceanalyzer.nonsense  # noqa: B018


def test_import_loads_nothing_heavy():
    code = (
        "import sys, traceanalyzer\n"
        "sys.exit(', '.join({'polars', 'numpy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_since_is_relative_to_the_first_event():
    path = "fixtures/nccl_8ranks/rank0.json.gz"
    everything = traceanalyzer.read(ROOT / path, since_ns=60_000_000)
    kernels = traceanalyzer.read(ROOT / path, kinds=["kernel"], since_ns=60_000_000)
    wanted = everything.events.filter(everything.events["kind"] == "kernel")
    assert kernels.events.equals(wanted)
    assert 0 < kernels.events.height < 200


def test_text_in_place_of_a_list():
    assert traceanalyzer.read(TRACE, kinds="kernel").events.equals(
        traceanalyzer.read(TRACE, kinds=["kernel"]).events
    )


def test_window_beyond_the_trace():
    whole = traceanalyzer.read(TRACE)
    assert traceanalyzer.read(TRACE, windows=[(-(1 << 70), 1 << 70)]).events.equals(whole.events)
