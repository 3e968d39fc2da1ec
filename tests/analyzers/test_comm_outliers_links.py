"""What a link can carry, small collectives, outliers that are explained, and kernel names."""

from __future__ import annotations

import pytest
from comm_traces import ALL_REDUCE, MS, US, device, step, trace
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.trace import Device, Trace
from traceanalyzer.vocabulary import COMMUNICATION_TERMS, collective_of_kernel

H100 = "NVIDIA H100 80GB HBM3"
MIB = 2**20


def ranks(
    gbps: float, gpu: str | None, hosts: tuple[str | None, ...], size: int = 64 * MIB
) -> list[Trace]:
    """Each rank reduces ten messages at this bus bandwidth; the last arrival is 1 ms late."""
    n = len(hosts)
    took = round(size * 2 * (n - 1) / n / gbps)
    about = {
        "dtype": "float", "elements_in": size // 4, "elements_out": size // 4, "group": "0",
        "group_size": n, "group_ranks": str(list(range(n))),
    }  # fmt: skip
    return [
        trace(
            [
                device(ALL_REDUCE, i * 900 * MS + late, took + MS - late, seq=i, **about)
                for i in range(10)
            ],
            rank,
            world_size=n,
            host=host,
            devices=tuple(Device(i, gpu) for i in range(8)) if gpu else (),
        )
        for rank, host in enumerate(hosts)
        for late in [MS if rank == 0 else 0]
    ]


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("gpu", "hosts", "link", "peak"),
    [
        (H100, ("a", "a"), "NVLink 4", 450),
        (H100, (None, None), "NVLink 4", 450),
        (H100, ("a", "b"), "network", 25),
        (H100, (None,) * 16, "network", 200),
        (H100, ("a", "a", "b", "b"), "network", 50),
        ("NVIDIA A100-SXM4-80GB", ("a", "a"), "NVLink 3", 300),
        ("NVIDIA H100 PCIe", ("a", "a"), "PCIe 5", 64),
        ("NVIDIA H100 NVL", ("a", "a"), None, None),
        ("Tesla T4", ("a", "a"), "PCIe 3", 16),
        ("AMD Instinct MI300X", ("a", "a"), "Infinity Fabric", 64),
        ("AMD Instinct MI300X", ("a",) * 8, "Infinity Fabric", 448),
        ("Tesla V100-SXM2-32GB", ("a",) * 4, "NVLink 2", 75),
        (None, ("a", "a"), None, None),
    ],
)
def test_bandwidth_is_compared_with_link_peak(gpu, hosts, link, peak) -> None:
    (row,) = ta.comm_outliers(ranks(2.0, gpu, hosts)).groups.iter_rows(named=True)
    assert (row["link"], row["link_gbps"]) == (link, peak)
    # wait time is not part of it: 2 GB/s were simulated
    assert row["transfer_busbw_gbps"] == pytest.approx(2.0, rel=1e-4)
    assert row["link_frac"] == (peak and pytest.approx(2.0 / peak, rel=1e-4))


ALL_TO_ALL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def exchange(received: tuple[int, ...], gbps: float) -> list[Trace]:
    """Each rank sends 64 MiB; the one that receives most needs the time at this bandwidth."""
    n, sent = len(received), 16 * MIB
    took = round(max(*received, sent) * 4 * (n - 1) / n / gbps)
    about = {
        "collective": "all_to_all", "dtype": "float", "elements_in": sent, "group": "0",
        "group_size": n, "group_ranks": str(list(range(n))), "splits_in": f"[{sent}]",
    }  # fmt: skip
    return [
        trace(
            [
                device(ALL_TO_ALL, i * 900 * MS, took, seq=i, elements_out=out, **about)
                for i in range(10)
            ],
            rank,
            world_size=n,
            devices=tuple(Device(i, H100) for i in range(8)),
        )
        for rank, out in enumerate(received)
    ]


@pytest.mark.parametrize("most", [16, 40])
def test_unequal_sizes_take_as_long_as_the_largest_one(most: int) -> None:
    traces = exchange((most * MIB, *[(64 - most) * MIB // 3] * 3), 150.0)
    (row,) = ta.comm_outliers(traces).groups.iter_rows(named=True)
    assert row["transfer_busbw_gbps"] == pytest.approx(150.0, rel=1e-4)
    assert row["link_frac"] == pytest.approx(150.0 / 450, rel=1e-4)
    assert "slow-link" not in {one.id for one in ta.diagnose(traces).findings}


def test_bandwidth_of_unequal_sizes_needs_all_ranks() -> None:
    traces = exchange((40 * MIB, 8 * MIB, 8 * MIB, 8 * MIB), 150.0)
    (row,) = ta.comm_outliers(traces[1:]).groups.iter_rows(named=True)
    assert (row["busbw_gbps"], row["link_frac"]) == (None, None)


@pytest.mark.matrix
def test_slow_link_is_reported_with_cost() -> None:
    traces = ranks(2.0, H100, ("a", "a"))
    check_wording(ta.comm_outliers(traces).verdict)
    finding = {one.id: one for one in ta.diagnose(traces).findings}["slow-link"]
    took = 10 * 64 * MIB / 2.0  # ns: the bus factor of two ranks is 1
    assert finding.cost_ns == pytest.approx(took * (1 - 2.0 / (450 * 0.25)), rel=1e-3)
    check_wording(finding.title)


@pytest.mark.parametrize(
    ("gbps", "size", "gpu"),
    [(300.0, 64 * MIB, H100), (20.0, 8 * MIB, H100), (40.5, 96 * MIB, "AMD Instinct MI300X")],
)
def test_fast_or_small_messages_are_not_a_slow_link(gbps: float, size: int, gpu: str) -> None:
    result = ta.comm_outliers(ranks(gbps, gpu, ("a", "a"), size))
    assert result.slow_links.is_empty()


@pytest.mark.parametrize(("hosts", "slow"), [(("a", "a"), 1), (("a", "b"), 0)])
def test_long_transfers_of_smaller_messages_within_a_node(
    hosts: tuple[str, str], slow: int
) -> None:
    """8 MiB take 2 ms; between nodes many things may."""
    assert ta.comm_outliers(ranks(4.0, H100, hosts, 8 * MIB)).slow_links.height == slow


@pytest.mark.matrix
def test_many_small_collectives_need_larger_buckets() -> None:
    """404 all-reduces a step of 11 us: the advice is larger buckets, nowhere smaller ones."""
    about = {"dtype": "float", "elements_in": 1000, "group": "0", "group_size": 2}
    rows = [device(ALL_REDUCE, i * 20 * US, 11 * US, seq=i, **about) for i in range(3 * 404)] + [
        step(i, i * 8080 * US, 8080 * US) for i in range(3)
    ]
    traces = [trace(rows, rank, world_size=2) for rank in (0, 1)]
    check_wording(ta.comm_outliers(traces).verdict)
    exposed = {one.id: one for one in ta.diagnose(traces).findings}["exposed-communication"]
    text = " ".join((exposed.advice, *exposed.evidence))
    assert "larger buckets" in text
    assert "smaller buckets" not in text


def test_the_verdict_counts_the_outliers_of_the_table() -> None:
    """An outlier that is wait time for a rank below the threshold is an outlier still."""
    about = {"dtype": "float", "elements_in": 1000, "group": "0", "group_size": 2}
    traces = [
        trace(
            [
                device(
                    ALL_REDUCE, i * MS + start * (i == 9), 11 * US + more * (i == 9), seq=i, **about
                )
                for i in range(20)
            ],
            rank,
        )
        for rank, start, more in ((0, 0, 300 * US), (1, 300 * US, 0))
    ]  # fmt: skip
    result = ta.comm_outliers(traces)
    assert result.totals.n_outliers == 1 == result.outliers().height
    assert "no outliers" not in result.verdict
    check_wording(result.verdict)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "all_reduce"),
        ("void c10d::multimem_all_gather_kernel<16>(char*)", "all_gather"),
        ("void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>", "all_reduce"),
        ("void two_shot_reduce_scatter_kernel<float>", "reduce_scatter"),
        ("void (anonymous namespace)::oneShotAllReduceKernel<half, 8>", "all_reduce"),
        ("c10d::symmetric_memory::barrier_kernel(unsigned int**)", None),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<>",
         "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<>(half const*)", "all_reduce"),
        ("void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
        ("mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>", "all_to_all"),
    ],
)  # fmt: skip
def test_kernels_of_every_library_are_communication(name: str, collective: str | None) -> None:
    assert collective_of_kernel(name) == collective
    assert any(word in name.lower() for word in COMMUNICATION_TERMS)
    rows = [device(name, 0, 5), device("void gemm<128>(float*)", 5, 5)]
    assert ta.overlap(trace(rows)).devices["communication_ns"].to_list() == [5]


@pytest.mark.parametrize(
    "name", ["void lamb_stage1<float>", "splitKreduce_kernel", "void reduce_kernel<512, 1>"]
)
def test_other_kernels_are_not(name: str) -> None:
    assert ta.overlap(trace([device(name, 0, 5)])).devices["communication_ns"].to_list() == [0]


def test_huge_group_size_is_not_expanded() -> None:
    """A file may claim a group of two thousand million ranks."""
    about = {"dtype": "float", "elements_in": 1 << 20, "group": "0", "group_size": 2**31 - 1}
    rows = [device(ALL_REDUCE, i * 20 * US, 11 * US, seq=i, **about) for i in range(3)]
    assert ta.comm_outliers([trace(rows, 0)]).groups.height == 1
