"""What is known of the program and its GPUs, so that advice fits them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.info.compute import Info
from traceanalyzer.result import Result

#: GPUs older than Ampere: neither bfloat16 nor TF32 on tensor cores.
_BEFORE_AMPERE = re.compile(
    r"\b(?:[KMPV]\d{1,3}[a-z]?|T4|TITAN|GTX|RTX (?:20|[3-8]000\b(?! Ada))|Quadro)", re.IGNORECASE
)
_AMD = re.compile(r"\bMI\d{2,3}|Radeon|Instinct", re.IGNORECASE)


@dataclass(frozen=True)
class Program:
    """What is known of the program and its GPUs.

    Attributes:
        pytorch: PyTorch operators or kernels were recorded, or nothing that would tell.
        gpus: names of the GPUs, as the files have them.
    """

    pytorch: bool = True
    gpus: str = ""

    @property
    def faster_precision(self) -> str:
        """How single-precision matrix products reach the tensor cores of these GPUs."""
        if not self.pytorch:
            half = "float16" if _BEFORE_AMPERE.search(self.gpus) else "bfloat16 or TF32"
            return f"The products in {half}, which tensor cores compute,"
        if _BEFORE_AMPERE.search(self.gpus):
            return "Mixed precision with float16 (torch.autocast with a gradient scaler)"
        if _AMD.search(self.gpus):
            return "Mixed precision (torch.autocast, bfloat16)"
        return (
            "Mixed precision (torch.autocast, bfloat16), or from Ampere on TF32 "
            '(torch.set_float32_matmul_precision("high")),'
        )

    @property
    def library(self) -> str:
        """The library of GPU collectives."""
        return "RCCL" if _AMD.search(self.gpus) else "NCCL"

    @property
    def slow_link(self) -> str:
        """What to look at where collectives use little of their link."""
        link = "a missing NVLink bridge"
        name = "NVLink"
        if _AMD.search(self.gpus):
            link, name = "a missing xGMI (Infinity Fabric) link", "xGMI"
        return (
            f"See which transport {self.library} chose (NCCL_DEBUG=INFO): P2P disabled, {link}, "
            f"shared memory or sockets instead of {name} or InfiniBand."
        )

    def slow_network(self, *, on_host: bool) -> str:
        """What to look at where collectives took long on all ranks."""
        if on_host:
            return (
                "The network was slow or shared, or the processors were busy: compare the nodes "
                "and the time of day, and see which interface is used (GLOO_SOCKET_IFNAME)."
            )
        name = "Infinity Fabric" if _AMD.search(self.gpus) else "NVLink"
        return (
            f"The network or {name} was slow or shared: compare the nodes and the time of day, "
            f"look at {self.library}'s log (NCCL_DEBUG=INFO) for the transport and at other jobs "
            "on the fabric."
        )


def program(results: Mapping[str, Result]) -> Program:
    """What the results tell of the program and its GPUs."""
    idle, info = results.get("gpu_idle"), results.get("info")
    named = info.files["devices"].drop_nulls().unique().sort() if isinstance(info, Info) else ()
    return Program(idle.pytorch if isinstance(idle, GpuIdle) else True, ", ".join(named))
