"""Texts of diagnose fit the program: GPUs, backend, truncated files."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import comm_traces
import pytest
from comm_traces import MS, US, device, host, step, trace
from conftest import ROOT
from diagnosing import diagnosis
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.common.gpu_api import Api, in_hip
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.findings.program import Program, program as program_of
from traceanalyzer.findings.result import DIFFERENT_JOBS, _need, _skipped
from traceanalyzer.findings.rule import IDLE_RULES

FIXTURES = ROOT / "fixtures"


def texts(result: ta.Diagnosis) -> str:
    every = [one for root in result.diagnosis for one in (root, *root.effects)]
    lines = [(one.title, *one.evidence, one.advice) for one in every]
    return "\n".join(text for line in lines for text in line)


def test_advice_fits_the_vendor() -> None:
    amd, nvidia = Program(gpus="AMD Instinct MI300X"), Program(gpus="NVIDIA H100 80GB HBM3")
    for program, names, others in (
        (amd, ("RCCL", "xGMI", "Infinity Fabric"), "NVLink|NCCL(?!_)(?<!RCCL)"),
        (nvidia, ("NCCL", "NVLink"), "RCCL|xGMI|Infinity"),
    ):
        text = f"{program.slow_link} {program.slow_network(on_host=False)} {program.library}"
        assert program.clocks.startswith("amd-smi" if program is amd else "nvidia-smi")
        assert all(name in text for name in names)
        assert not re.search(others, text)
        check_wording(text)


@pytest.mark.matrix
def test_amd_recording_gets_advice_for_its_link(shared: Path) -> None:
    text = texts(diagnosis(shared / "data/chrome/kineto/mi300_rank0of8_rccl.json.gz"))
    assert "xGMI" in text
    assert "NVLink" not in text


def test_step_time_is_that_of_the_device(shared: Path) -> None:
    """The GPU lags two steps behind the host, whose marks are 15.95 ms long."""
    about = diagnosis(shared / "data/chrome/kineto/mi300_rank0of8_rccl.json.gz").about
    assert about.endswith("median step 18.98 ms")
    assert "on the GPU" not in diagnosis(FIXTURES / "nccl_8ranks").about


@pytest.mark.matrix
def test_peak_memory_is_named_with_other_files() -> None:
    both = diagnosis(FIXTURES / "nccl_8ranks", FIXTURES / "memory/training.pickle")
    assert "peak memory" in both.about


@pytest.mark.matrix
def test_job_without_gpus_has_no_gpu_terms() -> None:
    result = diagnosis(FIXTURES / "ddp_gloo_4ranks")
    text = texts(result)
    for word in ("exposed", "NVLink", "NCCL"):
        assert word not in text
    assert not result.budget["part"].str.contains("exposed").any()
    check_wording(Program().slow_network(on_host=True))


def test_advice_for_one_host_is_not_about_the_network() -> None:
    for on_host in (True, False):
        one, several = (
            Program(one_host=one_host).slow_network(on_host=on_host) for one_host in (True, False)
        )
        assert not re.search("nodes|fabric|interface", one)
        assert re.search("nodes", several)
        check_wording(one)


@pytest.mark.parametrize("hosts", [("a", "a"), ("a", "b"), ("a", None)])
def test_host_names_show_whether_a_job_ran_on_one_host(hosts: tuple[str | None, ...]) -> None:
    traces = [
        comm_traces.trace(
            [comm_traces.host("cpu_op", "aten::mm", 0, 100)], rank, host=name, world_size=2
        )
        for rank, name in enumerate(hosts)
    ]
    assert program_of({"info": ta.info(traces)}).one_host == (hosts == ("a", "a"))
    assert not program_of({"info": ta.info(traces[:1])}).one_host


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name", ["nccl_8ranks", "ddp_gloo_4ranks", "composer", "upgrade/after.json.gz", "memory"]
)
def test_titles_do_not_repeat_the_name_of_the_check(name: str) -> None:
    result = diagnosis(FIXTURES / name)
    every = [one for root in result.diagnosis for one in (root, *root.effects)]
    assert every
    for one in every:
        assert not one.title.lower().startswith(f"{one.id.replace('-', ' ')}:")


def test_skipped_checks_are_one_note_with_what_to_record() -> None:
    result = diagnosis(FIXTURES / "memory/leak.pickle")
    (note,) = [note for note in result.notes if "skipped" in note]
    whole, *counts = (int(number) for number in re.findall(r"(?:^|\()(\d+)\b", note))
    assert whole == sum(counts) == result.rules.filter(status="skipped").height
    check_wording(*result.notes)


@pytest.mark.parametrize("name", ["nccl_8ranks/rank0.json.gz", "memory/leak.pickle", "py_spy"])
def test_every_skipped_check_says_what_it_needs(name: str) -> None:
    """Reasons without a short form are repeated as they are."""
    result = diagnosis(FIXTURES / name)
    (note,) = [note for note in result.notes if "skipped" in note]
    assert "recorded" not in note.replace("Not recorded: ", "")
    assert "Other reasons" not in note


@pytest.mark.matrix
@pytest.mark.parametrize("share", [0.6, 0.9])
def test_verdict_starts_with_truncated_file(share: float, tmp_path: Path) -> None:
    whole = gzip.decompress((FIXTURES / "nccl_8ranks/rank0.json.gz").read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: int(len(whole) * share)])
    result = ta.diagnose(cut)
    assert result.verdict.startswith(f"{cut} is truncated")
    assert not re.search(r"host is in ProfilerStep", texts(result))


def test_idle_time_in_collectives_is_divided_between_findings() -> None:
    """What ``gpu-idle`` counts is more than the part of this finding."""
    result = diagnosis(FIXTURES / "ddp_gloo_4ranks")
    (one,) = (one for one in result.findings if one.id == "waiting-for-ranks")
    (text,) = (text for text in one.evidence if "gpu-idle" in text)
    total, counted = (float(ms) for ms in re.findall(r"([\d.]+) ms", text))
    assert total < counted
    check_wording(text, one.advice)


def test_skipped_checks_are_listed_by_the_kind_of_reason() -> None:
    """A reason that is a sentence does not follow 'for lack of'."""
    reasons = [
        DIFFERENT_JOBS,
        "no matrix product or convolution was recorded",
        "no out-of-memory error in the readable part of the file. Write the file again",
        "no kernel events were recorded; record with torch.profiler (the file is truncated: ...)",
        "no kernel events were recorded; record with rocprofv3 --runtime-trace, or runTracer.sh",
        "the peaks of the GPU are unknown: give --peak",
    ]
    needs = [_need(why) for why in reasons]
    kinds = [kind.split()[:2] for kind, *_ in needs]
    assert kinds == [["Other", "reasons"], ["Not", "recorded"], *[["Not", "in"]] * 2,
                     ["Not", "recorded"], ["Other", "reasons"]]  # fmt: skip
    assert needs[3][2] == ""
    assert "rocprofv3" in needs[4][2]
    check_wording(*_skipped(reasons), *_skipped(reasons[:1]))


def test_what_was_recorded_is_not_named_as_missing() -> None:
    """A trace with kernels or steps may lack only copies, or steps of a memory history."""
    _, copies, how = _need("no copies or memsets were recorded; record with torch.profiler ...")
    assert (copies, how) == ("copies or memsets", "")
    _, steps, _ = _need("no steps detected (no step annotations, ... or repeated allocations). ...")
    assert steps != _need("no steps were recorded: profiler.step()")[1]
    _, _, how = _need("only allocations of CPU memory were recorded, ... profile_memory=True")
    assert how == ""


@pytest.mark.matrix
def test_advice_about_dropped_events_depends_on_what_was_dropped(shared: Path) -> None:
    result = diagnosis(shared / "data/rocpd/matmul_result_large.rpd")
    dropped = next(one for one in result.findings if one.id == "dropped-events")
    assert "wrong-type" in dropped.title
    assert "Stop the profiler" not in dropped.advice
    check_wording(dropped.advice)


def test_truncated_file_without_gpu_work_is_not_to_be_recorded_again(
    shared: Path, tmp_path: Path
) -> None:
    whole = (shared / "data/chrome/kineto/nccl_a100_rank0of2.json.gz").read_bytes()
    (tmp_path / "cut.json.gz").write_bytes(whole[:100_000])
    [note] = [one for one in ta.diagnose(tmp_path / "cut.json.gz").notes if "skipped" in one]
    assert "ProfilerActivity" not in note
    result = ta.diagnose(tmp_path / "cut.json.gz")
    assert not {one.id for one in result.findings} & {*IDLE_RULES.values()}
    check_wording(note)


@pytest.mark.parametrize(("name", "copied"), [("cut.json", False), ("cut.json.gz", True)])
def test_advice_about_a_truncated_file(
    name: str, copied: bool, shared: Path, tmp_path: Path
) -> None:
    """A compressed file may be an incomplete copy: its place is in it, not in its text."""
    path, cut = shared / "data/chrome/kineto_ddp_cpu/ddp4/rank0.json.gz", tmp_path / name
    whole = path.read_bytes() if copied else gzip.decompress(path.read_bytes())
    cut.write_bytes(whole[: len(whole) // 2])
    (one,) = (one for one in ta.diagnose(cut).findings if one.id == "dropped-events")
    assert one.advice.startswith("Copy") == copied
    place = int(re.findall(r"byte (\d+)", one.evidence[0])[0])
    assert place <= cut.stat().st_size


def advice_of(path: Path) -> dict[str, str]:
    """The advice of all findings, by rule."""
    return {one.id: one.advice for one in diagnosis(path).findings}


@pytest.mark.matrix
def test_advice_for_amd_names_hip(shared: Path) -> None:
    result = diagnosis(shared / "data/rocpd/bt2_test.db")
    advice = {one.id: one.advice for one in result.findings}
    assert "hipMemcpyAsync" in advice["exposed-copies"]
    assert "rocprofv3" in advice["unknown-idleness"]
    assert "larger grid" in advice["one-kernel"]
    assert "roctx" not in advice["unknown-idleness"]
    assert "Agent" not in result.about
    text = in_hip("cudaMallocHost, cudaMemcpyAsync, CUDA graphs, torch.cuda.graph")
    assert text == "hipHostMalloc, hipMemcpyAsync, HIP graphs, torch.cuda.graph"


def test_findings_about_amd_name_hip(shared: Path) -> None:
    result = diagnosis(shared / "data/chrome/kineto/mi250_rocm62.json.gz")
    found = {one.id: one for one in result.findings}
    assert "HIP loads" in found["module-loading"].title
    texts = [text for one in found.values() for text in (one.title, one.advice, *one.evidence)]
    assert not re.search("CUDA|cuda[A-Z]", " ".join(texts))


@pytest.mark.matrix
@pytest.mark.parametrize(
    "name",
    [
        "chrome/kineto/b200_rank0of8_eager.json.gz",
        "rocpd/mytrace.rpd.gz",
        "chrome/kineto/h100_qwen_inference.json.gz",
    ],
)
def test_inference_gets_no_advice_on_optimizers(shared: Path, name: str) -> None:
    assert "optimizer" not in " ".join(advice_of(shared / "data" / name).values())


def test_training_gets_advice_on_optimizers() -> None:
    program = Api(hip=False, pytorch=True, trains=True)
    assert "fused optimizers" in causes.advice(causes.LAUNCH, program, code="")
    assert ta.gpu_idle(FIXTURES / "nccl_8ranks/rank0.json.gz").program.trains


@pytest.mark.matrix
def test_one_slow_launch_is_module_loading(shared: Path) -> None:
    """One launch of 6.5 of 8.1 ms loads code; the last step is empty."""
    result = diagnosis(shared / "data/chrome/kineto/mi250_rocm62.json.gz")
    [loading] = [one for one in result.findings if one.id == "module-loading"]
    [launching] = [one for one in result.findings if one.id == "launch-bound"]
    assert loading.severity == "warning"
    assert loading.cost_ns == pytest.approx(6_543_000, rel=0.001)
    assert launching.cost_ns == pytest.approx(1_988_000, rel=0.001)
    advice = loading.advice
    assert "1 step of 9.288 ms" in result.about
    check_wording(advice)


@pytest.mark.matrix
def test_budget_of_one_rank_does_not_separate_wait_time(shared: Path) -> None:
    one = diagnosis(shared / "data/chrome/kineto/nccl_a100_rank0of2.json.gz").budget
    assert one.filter(part="exposed communication")["name"].to_list() == [
        "communication, wait included"
    ]
    several = diagnosis(FIXTURES / "nccl_8ranks").budget
    names = several.filter(part="exposed communication")["name"].to_list()
    assert names == ["wait time for other ranks", "transfer"]


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("hole", [range(20, 30), range(20, 22), range(0)])
def test_idle_time_is_not_judged_in_recordings_with_a_hole(hole: range, *, timed: bool) -> None:
    """Kernels of which the launch calls were recorded are missing; few of them do not matter.

    So are kernels without a duration.
    """
    events = [step(0, 0, 60 * MS)]
    for n in range(60):
        launch = host("cuda_runtime", "cudaLaunchKernel", n * MS, 10 * US, correlation=n)
        kernel = device("gemm", n * MS + 20 * US, MS // 2, correlation=n)
        untimed = [] if timed else [{**kernel, "dur": None}]
        events += [launch, *untimed] if n in hole else [launch, kernel]
    result = ta.diagnose(trace(events))
    found = any(one.id in IDLE_RULES.values() for one in result.findings)
    assert found == (len(hole) < 10)
    unknown = "kernels are missing within the recording"
    assert (unknown in result.rules["why"].to_list()) == (not found)
    assert ("idle" in result.budget["part"].to_list()) == (result.timeline is not None) == found
    assert found or not any(one.id == "uneven-steps" for one in result.findings)


def test_a_trace_of_calls_names_the_commands_for_it() -> None:
    """As viztracer records them: no operators, no steps, no GPU work."""
    calls = [host("other", "train (train.py:9)", n * MS, MS // 2) for n in range(9)]
    assert "flamegraph" in ta.diagnose(trace(calls)).verdict
    calls = [host("cpu_op", "aten::mm", n * MS, MS // 2) for n in range(9)]
    assert "flamegraph" not in ta.diagnose(trace(calls)).verdict
