"""What ``make test`` leaves to ``make test-all``: cases outside a sample, and examples."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, mark_matrices, once, reduce_examples
from hypothesis import given, settings, strategies as st

FORMS, NAMES = ("table", "json", "html"), ("a", "b", "c", "d", "e", "f", "g")


def cases(*sample: Any) -> list[Any]:
    """Return items of a test with two parameters."""
    result = []
    for name, form in product(NAMES, FORMS):
        item = SimpleNamespace(nodeid=f"test_x.py::test[{name}-{form}]", added=[])
        item.callspec = SimpleNamespace(params={"name": name, "form": form})
        item.get_closest_marker = {"sample": SimpleNamespace(args=sample)}.get
        item.add_marker = item.added.append
        result.append(item)
    return result


def kept(items: list[Any]) -> list[tuple[str, str]]:
    mark_matrices(items)
    assert all(item.added in ([], ["matrix"]) for item in items)
    return [tuple(item.callspec.params.values()) for item in items if not item.added]


def test_every_nth_case_is_in_the_sample() -> None:
    assert kept(cases(4)) == list(product(NAMES, FORMS))[::4]
    assert kept(cases(1)) == list(product(NAMES, FORMS))


def test_every_value_of_a_named_parameter_is_in_the_sample() -> None:
    chosen = kept(cases(6, "name", "form"))
    assert {name for name, _ in chosen} == set(NAMES)
    assert {form for _, form in chosen} == set(FORMS)
    assert len(chosen) < 10
    assert set(list(product(NAMES, FORMS))[::6]) <= set(chosen)


def test_a_case_that_is_asked_for_alone_runs() -> None:
    assert len(kept(cases(6)[5:6])) == 1


def test_property_tests_run_a_sixth_of_their_examples() -> None:
    def counted(most: int) -> int:
        calls = []

        @settings(max_examples=most, database=None)
        @given(st.integers())
        def test(value: int) -> None:
            calls.append(value)

        reduce_examples({test})
        test()
        return len(calls)

    assert [counted(most) for most in (1, 5, 100)] == [1, 2, 17]


def test_the_whole_suite_is_run_by_a_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert "-m 'not fuzz and not matrix'" in options["addopts"]
    assert re.search(r'^WHOLE := -m "not fuzz" --hypothesis-profile=full$', makefile, re.MULTILINE)
    for target in ("test-all", "bless", "coverage"):
        (line,) = re.findall(rf"^{target}: .*\n\t(.*)$", makefile, re.MULTILINE)
        assert "$(WHOLE)" in line


@pytest.mark.parametrize("_", range(2))
def test_once_returns_the_same_result(_: int) -> None:
    assert once(list, "ab") is once(list, "ab")
