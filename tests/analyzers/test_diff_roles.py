"""Kernels of two runs paired by role, whatever their names."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from conftest import ROOT

import traceanalyzer as ta
from traceanalyzer.analyzers.diff.result import Diff
from traceanalyzer.errors import OptionError

UPGRADE = ROOT / "fixtures/upgrade/before.json.gz"
KINETO = ROOT.parent / "shared/data/chrome/kineto"
GEMM, ATTENTION = "sm90_xmma_gemm_bf16_128x128", "flash_fwd_kernel<Traits<64>>"
ADD = "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
MUL = "vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"
NORM = "void vectorized_layer_norm_kernel<float, float>"


class Call(NamedTuple):
    """An operator call with the kernels it launches, or a kernel without an operator."""

    operator: str | None
    kernels: tuple[tuple[str, float], ...]
    shapes: tuple[tuple[int, ...], ...] = ()


def call(operator: str | None, *kernels: str, us: float = 10, shape: int = 64) -> Call:
    return Call(operator, tuple((name, us) for name in kernels), ((shape, shape),))


LAYER = [
    call("aten::native_layer_norm", NORM, us=5),
    call("aten::mm", GEMM, us=30),
    call("aten::mm", GEMM, us=30),
    call("aten::mm", GEMM, us=30),
    call("aten::_flash_attention_forward", ATTENTION, us=40),
    call("aten::mm", GEMM, us=50, shape=128),
    call("aten::add", ADD),
    call("aten::mul", MUL),
]


def record(path: Path, layer: Sequence[Call], layers: int = 6, steps: int = 5) -> Path:
    """Write a trace of steps of equal layers; without operators, the layer is one graph replay."""
    events: list[dict[str, Any]] = []
    at, number = 0.0, 0
    for step in range(steps):
        begin, device = at, at + 100
        for one in list(layer) * layers:
            number += 1
            if one.operator is not None:
                events.append(
                    {"ph": "X", "cat": "cpu_op", "name": one.operator, "pid": 1, "tid": 1,
                     "ts": at, "dur": 4, "args": {"External id": number,
                                                  "Input Dims": [list(s) for s in one.shapes]}}
                )  # fmt: skip
            for place, (kernel, us) in enumerate(one.kernels):
                correlation = 10 * number + place
                call_of = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1,
                           "tid": 1, "ts": at + 1 + place, "dur": 0.5}  # fmt: skip
                events.append({**call_of, "args": {"correlation": correlation}})
                events.append(
                    {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": device,
                     "dur": us, "args": {"device": 0, "stream": 7, "correlation": correlation}}
                )  # fmt: skip
                device += us + 1
            at += 5
        end = max(at, device) + 10
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}",
                       "pid": 1, "tid": 1, "ts": begin, "dur": end - begin - 1})  # fmt: skip
        at = end
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def renamed(source: Path, path: Path, change: Callable[[list[str]], list[str]]) -> Path:
    """Write a trace with other names of its kernels, one for each."""
    trace = json.loads(gzip.decompress(source.read_bytes()))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    names = sorted({event["name"] for event in kernels})
    other = dict(zip(names, change(names), strict=True))
    for event in kernels:
        event["name"] = other[event["name"]]
    path.write_text(json.dumps(trace))
    return path


def shuffled(names: list[str]) -> list[str]:
    """Names of other kernels; no kernel that computes has the name of a collective."""
    computing = [name for name in names if not name.startswith("nccl")]
    other = iter(random.Random(1).sample(computing, len(computing)))  # noqa: S311
    return [name if name.startswith("nccl") else next(other) for name in names]


def numbered(names: list[str]) -> list[str]:
    return [f"kernel_{number}" for number in range(len(names))]


def roles(before: Path, after: Path) -> tuple[Diff, list[dict[str, Any]]]:
    result = ta.diff(str(before), str(after))
    assert result.roles is not None
    return result, result.roles.to_dicts()


SOURCES = [UPGRADE, ROOT / "fixtures/transformer/rank0.json.gz"]
REAL = ["h100_qwen_inference", "mi300_rank0of8_rccl", "nccl_a100_rank0of2"]


@pytest.mark.parametrize(
    "source",
    [*SOURCES, *(pytest.param(KINETO / f"{name}.json.gz", marks=pytest.mark.matrix)
                 for name in REAL)],
    ids=lambda path: path.stem,
)  # fmt: skip
@pytest.mark.parametrize("change", [shuffled, numbered])
def test_a_run_with_other_names_of_kernels_pairs_with_itself(
    source: Path, change: Callable[[list[str]], list[str]], tmp_path: Path
) -> None:
    result, rows = roles(source, renamed(source, tmp_path / "after.json", change))
    assert result.paired_frac == 1
    assert {row["change_ns"] for row in rows} == {0}
    assert {row["state"] for row in rows} == {"no change"}
    assert result.outcome == "no change"


@pytest.mark.parametrize("place", range(len(LAYER)))
def test_the_slower_role_is_first(place: int, tmp_path: Path) -> None:
    slow = list(LAYER)
    kernels = tuple((f"other_{name}", us * 1.2) for name, us in slow[place].kernels)
    slow[place] = slow[place]._replace(kernels=kernels)
    before = record(tmp_path / "a.json", LAYER)
    result, (first, *others) = roles(before, record(tmp_path / "b.json", slow))
    assert (first["operator"], first["state"]) == (LAYER[place].operator, "slower")
    assert first["change_frac"] == pytest.approx(0.2, abs=0.01)
    assert first["pairing"] == "other kernel"
    assert {row["state"] for row in others} == {"no change"}
    assert result.paired_frac == 1
    assert result.measure is not None
    if first["change_ns"] > result.measure.before / 100:
        assert f"per step: {first['role']} from" in result.verdict
        assert " of the change" in result.verdict


def test_one_position_of_a_layer_has_a_row(tmp_path: Path) -> None:
    slow = [*LAYER[:2], LAYER[2]._replace(kernels=((GEMM, 36),)), *LAYER[3:]]
    files = [record(tmp_path / f"{n}.json", layer) for n, layer in enumerate((LAYER, slow))]
    result, (first, *_) = roles(files[0], files[1])
    assert first["position"] == "2 of 3"
    assert "aten::mm 64x64 (position 2 of 3) from 180 us to 216 us" in result.verdict
    assert "100.0 % of the change" in result.verdict
    assert (first["before_n"], first["change_ns"]) == (6, 6 * 6_000)


@pytest.mark.parametrize("layer", [0, 2, 5])
def test_one_of_equal_layers_has_a_row(layer: int, tmp_path: Path) -> None:
    slow = LAYER * 6
    at = layer * len(LAYER) + 4
    slow[at] = slow[at]._replace(kernels=((ATTENTION, 60),))
    files = [
        record(tmp_path / f"{n}.json", of_step, layers=1)
        for n, of_step in enumerate((LAYER * 6, slow))
    ]
    _, (first, second, *_) = roles(files[0], files[1])
    assert first["position"] == f"{layer + 1} of 6"
    assert (first["before_n"], first["change_ns"]) == (1, 20_000)
    assert second["change_ns"] == 0


def test_another_backend_without_operators_pairs_by_order(tmp_path: Path) -> None:
    """As graph replays or nsys: no operators, other kernels, and one more of them."""
    layer = [one._replace(operator=None) for one in LAYER]
    other = [*layer]
    other[4] = call(None, "fmhaSm100Kernel_QkvE4m3", us=48)
    other[5:6] = [call(None, "nvjet_hsh_128x256", us=20), call(None, "quantize_fp8_kernel", us=3)]
    files = [record(tmp_path / f"{n}.json", one) for n, one in enumerate((layer, other))]
    _, rows = roles(files[0], files[1])
    paired = {row["after_kernel"]: row["before_kernel"] for row in rows if row["pairing"]}
    assert paired["fmhaSm100Kernel_QkvE4m3"] == "flash_fwd_kernel<Traits<64>>"
    assert paired["nvjet_hsh_128x256"] == GEMM
    assert [row["after_kernel"] for row in rows if row["state"] == "new"] == ["quantize_fp8_kernel"]
    assert [row["kernel"] for row in rows if row["state"] == "gone"] == []


def test_families_as_roles_show_the_kernels_first(tmp_path: Path) -> None:
    layer = [one._replace(operator=None) for one in LAYER]
    graph = record(tmp_path / "graph.json", layer)
    eager = record(tmp_path / "eager.json", LAYER)
    for path, first in ((graph, "kernel"), (eager, "role")):
        result = ta.diff(path, path)
        (roles,) = [one for one in result.tables if one.name == "roles"]
        assert next(iter(roles.columns)) == first
        assert roles.hiding_order[0] != first


def test_eager_kernels_are_fused(tmp_path: Path) -> None:
    fused = "triton_poi_fused_add_mul_0"
    compiled = [*LAYER[:6], call(None, fused, us=12)]
    files = [record(tmp_path / f"{n}.json", one) for n, one in enumerate((LAYER, compiled))]
    _, rows = roles(files[0], files[1])
    (row,) = [row for row in rows if row["pairing"] == "fused"]
    assert row["kernel"] == fused
    assert (row["before_n"], row["after_n"]) == (12, 6)
    assert (row["before_ns"], row["after_ns"]) == (12 * 10_000, 6 * 12_000)
    assert {row["pairing"] for row in rows} == {"fused", "same kernel"}
    _, back = roles(files[1], files[0])
    (split,) = [one for one in back if one["pairing"] == "fused"]
    assert split["in_place_of"] == fused
    assert split["after_kernel"] == row["before_kernel"]


def test_without_operators_in_one_run_kernels_pair_by_name(tmp_path: Path) -> None:
    plain = [one._replace(operator=None) for one in LAYER]
    files = [record(tmp_path / f"{n}.json", one) for n, one in enumerate((LAYER, plain))]
    for one, other in (files, files[::-1]):
        result, rows = roles(one, other)
        assert {row["state"] for row in rows} == {"no change"}
        assert len(rows) == len({name for layer in LAYER for name, _ in layer.kernels})
        assert result.paired_frac == 1


@pytest.mark.parametrize("flash", ["aten::_scaled_dot_product_flash_attention", "FlashAttnFunc"])
def test_another_operator_for_attention_is_named(flash: str, tmp_path: Path) -> None:
    math = "aten::_scaled_dot_product_attention_math"
    before = [*LAYER[:4], call(flash, ATTENTION, us=40), *LAYER[5:]]
    after = [*LAYER[:4], *[call(math, "bmm_kernel", us=20, shape=32)] * 4, *LAYER[5:]]
    files = [record(tmp_path / f"{n}.json", one) for n, one in enumerate((before, after))]
    for one, other, new, gone in ((*files, math, flash), (*files[::-1], flash, math)):
        assert f"{new} in place of {gone}" in ta.diff(one, other).verdict
    assert "in place of" not in ta.diff(files[0], files[0]).verdict


def test_a_fused_kernel_has_no_other_partner(tmp_path: Path) -> None:
    """Eager kernels of other operations are gone, not paired with what stands in their place."""
    eager = [*LAYER, call("aten::tanh", "void tanh_kernel<float>")]
    compiled = [*LAYER[:6], call(None, "triton_poi_fused_gelu_1", us=12)]
    files = [record(tmp_path / f"{n}.json", one) for n, one in enumerate((eager, compiled))]
    _, rows = roles(files[0], files[1])
    alone = {row["operator"] or row["kernel"]: row["state"] for row in rows if not row["pairing"]}
    assert alone == {
        "aten::add": "gone", "aten::mul": "gone", "aten::tanh": "gone",
        "triton_poi_fused_gelu_1": "new",
    }  # fmt: skip


def test_another_gpu_runs_one_operator_with_other_kernels(tmp_path: Path) -> None:
    """As on AMD: other libraries, and an operator that launches two kernels instead of one."""
    amd = {
        GEMM: ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64", "Cijk_PostGSU"), ATTENTION: ("attn_fwd",),
        NORM: ("cuComputeRowwise_layer_norm", ), ADD: ("elementwise_add_hip",), MUL: (MUL,),
    }  # fmt: skip
    other = [
        one._replace(kernels=tuple((name, 7) for name in amd[one.kernels[0][0]])) for one in LAYER
    ]
    files = [record(tmp_path / f"{n}.json", one) for n, one in enumerate((LAYER, other))]
    text = files[1].read_text()
    files[1].write_text(text.replace("cudaLaunchKernel", "hipExtModuleLaunchKernel"))
    result, rows = roles(files[0], files[1])
    assert result.paired_frac == 1
    assert result.on_host is not None
    calls = result.on_host.filter(kind="cuda_runtime").select("name", "before_n", "after_n")
    assert calls.rows() == [("cuda/hipLaunchKernel", 6 * 8, 6 * 12)]
    assert {row["operator"] for row in rows} == {one.operator for one in LAYER}
    assert {row["before_n"] == row["after_n"] for row in rows} == {True}
    (product,) = [row for row in rows if row["shapes"] == "[[128, 128]]"]
    assert product["after_kernel"] == "Cijk_Ailk_Bljk_BBS_BH_MT64x64x64 and Cijk_PostGSU"
    assert product["in_place_of"] == GEMM


def test_other_input_shapes_are_no_regression(tmp_path: Path) -> None:
    larger = [
        one._replace(
            kernels=tuple((name, us * 1.5) for name, us in one.kernels),
            shapes=tuple((3 * rows // 2, columns) for rows, columns in one.shapes),
        )
        for one in LAYER
    ]
    result = ta.diff(record(tmp_path / "a.json", LAYER), record(tmp_path / "b.json", larger))
    (reservation,) = (text for text in result.reservations if "shapes" in text)
    assert "aten::mm has 128x128 before, 192x128 after" in reservation
    assert "100.0 %" in reservation
    assert "Regression" not in result.verdict
    same = ta.diff(record(tmp_path / "a.json", LAYER), record(tmp_path / "c.json", LAYER))
    assert same.reservations == ()
    unknown = [one._replace(shapes=()) for one in larger]
    assert ta.diff(tmp_path / "a.json", record(tmp_path / "d.json", unknown)).reservations == ()


@pytest.mark.parametrize("name", ["_flash_attention_forward", "_flash_attention_backward"])
def test_a_longer_kv_cache_is_another_input(name: str, tmp_path: Path) -> None:
    """Not another layout of the same one, by another operator."""
    query, files = (8, 16, 128, 64), []
    gradient = [query] * name.endswith("backward")
    for other, keys, us in (
        (name, 128, 40), (name, 1024, 140), (name.replace("flash", "cudnn"), 1024, 140)
    ):  # fmt: skip
        shapes = (*gradient, query, (8, 16, keys, 64), (8, 16, keys, 64))
        layer = [*LAYER[:4], Call(f"aten::{other}", ((ATTENTION, us),), shapes), *LAYER[5:]]
        files.append(record(tmp_path / f"{len(files)}.json", layer))
    result, _ = roles(*files[:2])
    (reservation,) = result.reservations
    assert "8x16x128x64 before, 8x16x128x64, 8x16x1024x64 after" in reservation
    assert result.paired_frac == 1
    assert ta.diff(files[1], files[2]).reservations == ()


def test_sizes_of_thousands_of_digits_are_no_sizes(tmp_path: Path) -> None:
    path = record(tmp_path / "a.json", [Call("aten::mm", ((GEMM, 30),), ((7, 4), (4, 4)))])
    path.write_text(path.read_text().replace("[7, 4]", f"[{'9' * 5_000}, 4]"))
    assert ta.diff(path, path).paired_frac == 1


@pytest.mark.parametrize("reshaped", [1, 3, 0])
def test_other_shapes_or_types_are_no_slower_gpu(reshaped: int, tmp_path: Path) -> None:
    """Some operators get larger inputs, or all kernels compute in another type."""
    changed = [
        one._replace(
            kernels=tuple((name if reshaped else f"f64_{name}", us * 1.5)
                          for name, us in one.kernels),
            shapes=tuple((3 * rows // 2, columns) for rows, columns in one.shapes)
            if 0 < at <= reshaped else one.shapes,
        )
        for at, one in enumerate(LAYER)
    ]  # fmt: skip
    result = ta.diff(record(tmp_path / "a.json", LAYER), record(tmp_path / "b.json", changed))
    assert "the GPU is" not in result.verdict
    assert result.verdict.startswith("Regression")
    assert [text[:17] for text in result.reservations] == ["Some input shapes"] * (reshaped > 0)


@pytest.mark.parametrize(
    ("factor", "one", "named"),
    [(1.09, 1.09, "the GPU is slower"), (0.9, 0.9, "the GPU is faster"), (1.01, 2.0, None)],
)
def test_kernels_that_all_change_are_the_gpu(
    factor: float, one: float, named: str | None, tmp_path: Path
) -> None:
    factors = [one if at == 4 else factor for at in range(len(LAYER))]
    changed = [
        each._replace(kernels=tuple((name, us * by) for name, us in each.kernels))
        for each, by in zip(LAYER, factors, strict=True)
    ]
    result = ta.diff(record(tmp_path / "a.json", LAYER), record(tmp_path / "b.json", changed))
    assert ("the GPU is" in result.verdict) == (named is not None)
    assert named is None or named in result.verdict
    assert ("Largest kernel changes" in result.verdict) == (named is None)


def test_an_operator_that_is_gone_was_not_fused_into_a_kernel_of_both_runs(tmp_path: Path) -> None:
    norm = call("aten::norm", "triton_red_fused_add_mean_mul_0", us=9)
    product, other = call("aten::mm", GEMM, us=30), call("aten::mm", GEMM, us=50, shape=128)
    before, after = [norm, product, call("aten::add", ADD), other], [norm, product, norm, other]
    _, rows = roles(record(tmp_path / "a.json", before), record(tmp_path / "b.json", after))
    assert {row["pairing"] for row in rows} <= {"same kernel", None}
    assert [row["state"] for row in rows if row["operator"] == "aten::add"] == ["gone"]


SIZES = ((512, 64), (64, 256)), ((512, 128), (128, 256)), ((256, 64), (64, 512))


@pytest.mark.parametrize(
    ("operator", "shapes"),
    [
        ("aten::_scaled_mm", lambda a, b: (a, b, (a[0], 1), (1, b[1]))),
        ("aten::addmm", lambda a, b: ((b[1],), a, b)),
        ("aten::addmm", lambda a, b: ((a[0], b[1]), a, b)),
        ("aten::linear", lambda a, b: ((4, a[0] // 4, a[1]), b[::-1], (b[1],))),
        ("_C::cutlass_scaled_mm", lambda a, b: ((a[0], b[1]), a, b, (1,), (1,))),
    ],
)
def test_products_pair_by_their_sizes(operator: str, shapes: Any, tmp_path: Path) -> None:
    """In any order, precision and layout, not with a product that is as long."""
    before = [Call("aten::mm", ((GEMM, 30 - 5 * n),), of) for n, of in enumerate(SIZES)]
    after = [Call(operator, (("nvjet_qq", 25 - 5 * n),), shapes(*of)) for n, of in enumerate(SIZES)]
    files = [
        record(tmp_path / "a.json", before),
        record(tmp_path / "b.json", after[1:] + after[:1]),
    ]
    result, rows = roles(*files)
    assert result.paired_frac == 1
    assert sorted((row["before_ns"], row["after_ns"]) for row in rows) == [
        (6_000 * us, 6_000 * (us - 5)) for us in (20, 25, 30)
    ]
    assert not [text for text in result.reservations if "shapes" in text]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("aten::_scaled_dot_product_cudnn_attention", "aten::_flash_attention_forward"),
        ("aten::cudnn_convolution", "aten::miopen_convolution"),
    ],
)
def test_variants_of_an_operator_are_one_role(before: str, after: str, tmp_path: Path) -> None:
    heads, tokens = (2, 8, 32, 16), (2, 32, 8, 16)
    each = [
        [Call(name, ((f"{name}_kernel", us),), (heads if us == 40 else shapes,)), *LAYER[5:]]
        for name, us, shapes in (
            (before, 40, heads),
            (after, 30, tokens if "att" in after else heads),
        )
    ]
    result, (first, *_) = roles(record(tmp_path / "a.json", each[0]),
                                record(tmp_path / "b.json", each[1]))  # fmt: skip
    assert result.paired_frac == 1
    assert (first["before_ns"], first["after_ns"]) == (6 * 40_000, 6 * 30_000)
    assert {before, after} == {*first["operator"].split(" and ")}


def test_collectives_pair_by_their_kind(tmp_path: Path) -> None:
    """Whatever the number of elements: sharding has other collectives."""
    product, sizes = call("aten::mm", GEMM, us=30), ((1000,),)
    collectives = {
        name: Call("record_param_comms", ((f"ncclDevKernel_{name}_Sum_f32_RING_LL", us),), sizes)
        for name, us in (("AllReduce", 20), ("ReduceScatter", 10), ("AllGather", 10))
    }
    reduced, scattered, gathered = collectives.values()
    files = [record(tmp_path / "a.json", [product, reduced]),
             record(tmp_path / "b.json", [gathered, product, scattered])]  # fmt: skip
    for paths, states in ((files, ("gone", "new", "new")), (files[::-1], ("new", "gone", "gone"))):
        _, rows = roles(*paths)
        named = {row["operator"]: row["state"] for row in rows if row["family"] == "communication"}
        assert named == dict(
            zip(("all_reduce", "all_gather", "reduce_scatter"), states, strict=True)
        )


@pytest.mark.parametrize("unmarked", [0, 4])
def test_bytes_per_step_are_those_of_collectives_in_steps(unmarked: int, tmp_path: Path) -> None:
    """Not those before the first step that was marked."""
    product, files = call("aten::mm", GEMM, us=30), []
    for name in ("AllReduce", "AllGather"):
        layer = [product, Call(None, ((f"ncclDevKernel_{name}", 20),))]
        path = record(tmp_path / f"{name}.json", layer, layers=1, steps=10)
        events = json.loads(path.read_text())["traceEvents"]
        size = {"Collective name": name.lower(), "In msg nelems": 1_000, "Out msg nelems": 1_000,
                "dtype": "Float", "Group size": 2}  # fmt: skip
        for event in events:
            event["args"] = event.get("args", {}) | (size if "nccl" in event["name"] else {})
        steps = [f"ProfilerStep#{step}" for step in range(unmarked)]
        kept = [event for event in events if event["name"] not in steps]
        path.write_text(json.dumps({"traceEvents": kept}))
        files.append(path)
    result = ta.diff(*files)
    assert result.collectives is not None
    counts = result.collectives.select(pl.col("^(before|after)(_step)?_n$").sum()).row(0)
    assert counts == (10, 10, 10 - unmarked, 10 - unmarked)
    assert result.verdict.count("(3.906 KiB per step)") == 2


@pytest.mark.parametrize("fused", ["aten::_fused_adamw_", "aten::_foreach_mul_"])
def test_an_optimizer_with_other_operators_is_one_role(fused: str, tmp_path: Path) -> None:
    steps = [
        [call("aten::lerp_", "void lerp_kernel<float>"), call("aten::mul_", MUL),
         call("aten::addcdiv_", "void addcdiv_kernel<float>")],
        [call(fused, "multi_tensor_apply_kernel<Adam>", us=12)],
    ]  # fmt: skip
    paths = [optimized(record(tmp_path / f"{n}.json", [*LAYER, *one]))
             for n, one in enumerate(steps)]  # fmt: skip
    _, (first, *others) = roles(*paths)
    assert (first["role"], first["before_n"], first["after_n"]) == ("optimizer", 18, 6)
    assert (first["before_ns"], first["after_ns"]) == (18 * 10_000, 6 * 12_000)
    assert {row["state"] for row in others} == {"no change"}
    _, same = roles(paths[0], paths[0])
    assert {"aten::lerp_", "aten::addcdiv_"} <= {row["operator"] for row in same}


@pytest.mark.parametrize(("times", "named"), [(1, "in place of"), (3, "1 kernel (")])
def test_kernels_of_an_optimizer_are_counted(times: int, named: str, tmp_path: Path) -> None:
    before = call("aten::_fused_adamw_", "multi_tensor_apply_kernel<Adam>", us=100)
    after = [call("apex::adam_", "adam_kernel<float>", us=250 / times)] * times
    paths = [optimized(record(tmp_path / f"{n}.json", [*LAYER, *one], layers=1))
             for n, one in enumerate(([before], after))]  # fmt: skip
    result, (first, *_) = roles(*paths)
    assert (first["before_n"], first["after_n"]) == (1, times)
    assert named in result.verdict
    assert "fused into" not in result.verdict


def optimized(path: Path) -> Path:
    """Add ranges of an optimizer around the calls after each layer."""
    trace = json.loads(path.read_text())
    calls = [one for one in trace["traceEvents"] if one["cat"] == "cpu_op"]
    updates = re.compile(r"_$")
    trace["traceEvents"] += [
        {
            **one,
            "cat": "user_annotation",
            "name": "Optimizer.step#AdamW.step",
            "args": {},
            "ts": one["ts"] - 0.1,
            "dur": one["dur"] + 0.5,
        }
        for one in calls
        if updates.search(one["name"])
    ]
    path.write_text(json.dumps(trace))
    return path


def test_other_programs_do_not_pair(tmp_path: Path) -> None:
    conv = [call("aten::conv2d", "cudnn_fprop_kernel"), call("aten::relu_", "relu_kernel"),
            call("aten::max_pool2d", "max_pool_kernel")]  # fmt: skip
    files = [record(tmp_path / f"{n}.json", one) for n, one in enumerate((LAYER, conv))]
    result, rows = roles(files[0], files[1])
    assert result.paired_frac == 0
    assert {row["state"] for row in rows} == {"new", "gone"}


def test_times_of_roles_are_those_of_kernels(tmp_path: Path) -> None:
    files = [record(tmp_path / f"{n}.json", one) for n, one in enumerate((LAYER, LAYER[1:]))]
    result, _ = roles(files[0], files[1])
    assert result.kernels is not None
    assert result.roles is not None
    sums = [frame.select(pl.col("before_ns", "after_ns").sum()).row(0)
            for frame in (result.roles, result.kernels)]  # fmt: skip
    assert sums[0] == pytest.approx(sums[1], abs=20)
    assert [row["operator"] for row in result.roles.to_dicts() if row["state"] == "gone"] == [
        "aten::native_layer_norm"
    ]


@pytest.mark.parametrize("operators", [True, False])
def test_the_first_run_in_which_a_role_jumped(operators: bool, tmp_path: Path) -> None:
    layer = LAYER if operators else [one._replace(operator=None) for one in LAYER]
    slow = [*layer[:4], layer[4]._replace(kernels=(("fmhaSm100Kernel", 80),)), *layer[5:]]
    new = [*slow, call("aten::tanh", "void tanh_kernel<float>")]
    runs = enumerate((layer, layer, slow, new))
    files = [str(record(tmp_path / f"{n}.json", one)) for n, one in runs]
    result = ta.diff_series(files)
    first, second, *others = result.roles.to_dicts()
    assert (first["jump"], first["kernel"]) == (3, "fmhaSm100Kernel")
    assert [first[f"run_{n}_ns"] for n in range(1, 5)] == [240_000, 240_000, 480_000, 480_000]
    assert (second["jump"], second["run_3_ns"], second["run_4_ns"]) == (4, None, 60_000)
    assert {row["jump"] for row in others} == {None}
    assert result.runs["outcome"].to_list() == [None, "no change", "regression", "regression"]
    assert result.verdict.startswith("Run 3 ")


def test_a_role_that_jumped_in_equal_steps(tmp_path: Path) -> None:
    """No run is slower; the verdict still has the first run in which a role changed."""
    slow = [*LAYER[:4], LAYER[4]._replace(kernels=((LAYER[4].kernels[0][0], 42),)), *LAYER[5:]]
    files = [str(record(tmp_path / f"{n}.json", one)) for n, one in enumerate((LAYER, LAYER, slow))]
    result = ta.diff_series(files)
    assert result.runs["outcome"].to_list() == [None, "no change", "no change"]
    first = result.roles.row(0, named=True)
    assert first["jump"] == 3
    assert f"run 3: {first['role']}" in result.verdict
    assert "run 3" not in ta.diff_series(files[:2]).verdict


def test_a_series_needs_two_runs() -> None:
    with pytest.raises(OptionError):
        ta.diff_series([str(UPGRADE)])
