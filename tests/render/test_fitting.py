from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import traceanalyzer as ta
from traceanalyzer.render.table import Column, fitted, render, shorten_all
from traceanalyzer.result import Result

NCCL = [f"ncclDevKernel_{kind}_RING_LL(ncclDevKernelArgsStorage<4096ul>, ncclWork*)"
        for kind in ("AllReduce_Sum_f32", "AllReduce_Sum_bf16", "AllGather")]  # fmt: skip
COPIES = {
    "Memcpy HtoD (Pinned -> Device)": "HtoD pinned",
    "Memcpy DtoH (Device -> Pageable)": "DtoH pageable",
    "Memcpy DtoD (Device -> Device)": "DtoD",
    "HtoD (Pinned -> Device)": "HtoD pinned",
}


@pytest.mark.parametrize("width", [14, 20, 24, 40])
def test_shared_parts_are_cut(width):
    short = shorten_all(NCCL, width)
    assert len(set(short)) == len(NCCL)
    assert max(map(len, short)) <= width


def test_names_with_groups_of_similar_ones_stay_different():
    """The first difference to all others is not the one to the most similar name."""
    begin = "void at::native::vectorized_elementwise_kernel<4, at::native::"
    names = [f"{begin}{one}" for one in (
        "CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, float)",
        "CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, half)",
        "CUDAFunctor_add<double>, std::array<char*, 3ul> >(int, half)",
        "FillFunctor<float>, std::array<char*, 3ul> >(int, half)",
    )]  # fmt: skip
    names += [name.replace("native", "native_") for name in names]
    for width in (14, 20, 30, 60):
        short = shorten_all(names, width)
        assert len({*short}) == len(names), width
        assert max(map(len, short)) <= width


def test_cut_keeps_what_distinguishes_names():
    assert all(
        kind in text
        for kind, text in zip(
            ("Sum_f32", "Sum_bf16", "AllGather"), shorten_all(NCCL, 24), strict=True
        )
    )


@pytest.mark.parametrize(("name", "short"), COPIES.items())
def test_copies_keep_direction_and_kind_of_memory(name, short):
    assert shorten_all([name, "x"], 20) == [short, "x"]
    assert shorten_all([name], 40) == [name]


def test_places_lose_folders_first():
    assert shorten_all(["Net.forward (a/b/model.py:7)"], 24) == ["Net.forward (model.py:7)"]
    apart = ["f (some/folder/a/model.py:7)", "f (some/folder/b/model.py:7)"]
    assert len({*shorten_all(apart, 24)}) == 2


def test_the_first_of_several_loses_its_share_before_its_name():
    assert shorten_all(["a name 3.9 ms (61.2 %), b 1 ms (9.1 %)"], 15) == ["a name 3.9 ms"]


def test_the_first_of_several_names_stays_complete():
    called = "_BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py)"
    columns = [
        Column("own", ["own"], ["Trainer.train_step (toytrain/trainer.py:10)"], numeric=False),
        Column("calls", ["calls"], [called], numeric=False),
        Column("n", ["samples"], ["518"], numeric=True),
    ]
    (line, calls, n), hidden = fitted(columns, 72, ["n"])
    assert (line.cells, n.cells, hidden) == (["Trainer.train_step (trainer.py:10)"], ["518"], [])
    assert sum(one.width + 3 for one in (line, calls, n)) <= 73


def test_single_name_loses_its_middle():
    assert shorten_all(["begin_" + "x" * 40 + "_end"], 15) == ["begin_...xx_end"]


def test_names_that_differ_in_order_only_differ():
    names = [f"f({'int, ' * 8}{end})" for end in ("a, b, b, a", "b, a, a, b")]
    assert len(set(shorten_all(names, 20))) == 2


@given(
    st.lists(st.text("ab_(<", max_size=60), max_size=6),
    st.integers(min_value=12, max_value=40),
)
def test_any_names_fit_and_stay_different(names, width):
    short = shorten_all(names, width)
    assert all(len(text) <= width for text in short)
    assert all(a == b for a, b in zip(names, short, strict=True) if len(a) <= width)
    assert [a == b for a in names for b in names] == [a == b for a in short for b in short]


FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.mark.parametrize(
    ("function", "paths", "title", "headings"),
    [
        (ta.py_spy_report, ["py_spy/subprocesses.raw.txt"], "What the samples do", {"samples"}),
        (ta.memory_oom, ["memory/fragmented_oom.pickle"], "Errors", {"cause"}),
        (ta.diff, ["upgrade/before.json.gz", "upgrade/after.json.gz"], "Time breakdown",
         {"change [%]", "verdict"}),
    ],
)  # fmt: skip
def test_columns_of_the_answer_are_not_hidden_in_80_columns(
    function: Callable[..., Result], paths: list[str], title: str, headings: set[str]
) -> None:
    lines = render(function(*(FIXTURES / path for path in paths)), width=80).split("\n")
    begin = next(at for at, line in enumerate(lines) if line.startswith(title))
    rule = next(at for at, line in enumerate(lines) if at > begin and line.startswith("---"))
    cells = zip(*(line.ljust(80).split("|") for line in lines[begin + 1 : rule]), strict=True)
    assert headings <= {" ".join(" ".join(column).split()) for column in cells}


def test_only_the_ends_of_a_very_long_name_are_looked_at():
    names = ["ab" * 50_000, "left" + "x" * 50_000 + "right"]
    assert shorten_all(names, 24) == shorten_all([f"{n[:1000]}...{n[-1000:]}" for n in names], 24)
    assert all(len(name) <= 24 for name in shorten_all(names, 24))
