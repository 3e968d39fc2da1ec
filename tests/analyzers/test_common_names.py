"""Functions of the names of events."""

import re

import polars as pl
import pytest

from traceanalyzer.analyzers.common import names
from traceanalyzer.errors import OptionError
from traceanalyzer.vocabulary import steps_pattern


def test_few_and_many_rows_are_mapped_alike() -> None:
    few = pl.Series("name", ["b", None, "a", "b"], dtype=pl.Categorical)
    many = pl.concat([few] * 1000)
    short = names.mapped(few, len, pl.Int64)
    assert short.to_list() == [1, None, 1, 1]
    assert short.dtype == pl.Int64
    assert names.mapped(many, len, pl.Int64).equals(pl.concat([short] * 1000))


def test_a_function_that_returns_nothing_gives_null() -> None:
    assert names.mapped(pl.Series(["a", "b"]), {"a": "x"}.get).to_list() == ["x", None]


NAMES = [
    "ProfilerStep#12", "train_step 3", "iter: 4", "aten::mm", "nn.Module: Linear_0",
    "enumerate(DataLoader)#_Iter.__next__", "kernel\\<4>", "kernel<4>", "é" * 3, "",
    "cudaMemcpyAsync", "cudaMemcpy", "ncclDevKernel_AllReduce(1)",
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [steps_pattern(), names.LAYERS, names.BACKWARD, r"^cudaMemcpy(?!.*Async)", r"kernel\<4\>",
     r"^(?:.*#|(?!.*#)).*_*(?:next|step)", r"[(?!)p](?!s)|é",
     r"(\w)\1", r"\d+.*\d+|[a-z]+:+", r"^$", r"(?i)ALLREDUCE\b"],
)  # fmt: skip
def test_few_and_many_names_match_alike(pattern: str) -> None:
    test = re.compile(pattern)
    right = [name for name in NAMES if test.search(name)]
    assert names.matching(NAMES, [pattern]) == right
    others = [f"{name} {i}" for i in range(2_000) for name in NAMES]
    assert names.matching(NAMES + others, [pattern])[: len(right)] == right
    assert len(names.matching(others, [pattern])) == sum(map(bool, map(test.search, others)))


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*a){12}$"])
def test_nested_repetitions_take_no_time(pattern: str) -> None:
    assert names.matching(["a" * 60 + "b"], [pattern]) == []


def test_the_time_of_lookaround_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_LIMIT_S", 0.05)
    with pytest.raises(OptionError, match="takes more than"):
        names.matching(["a" * 60 + "b"], ["(?=x|a)(a+)+$"])


@pytest.mark.parametrize("texts", [[], ["a"], ["a"] * 2_000])
@pytest.mark.parametrize("pattern", ["(", "", "a**"])
def test_a_wrong_pattern_is_an_error(pattern: str, texts: list[str]) -> None:
    with pytest.raises(OptionError):
        names.matching(texts, [pattern])
