"""Framework and GPUs of the program, for advice that fits them."""

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
    """Framework and GPUs of a program.

    Attributes:
        pytorch: whether PyTorch was recorded, or the framework is unknown.
        gpus: names of the GPUs.
    """

    pytorch: bool = True
    gpus: str = ""

    @property
    def faster_precision(self) -> str:
        """Phrase for a precision that uses the tensor cores of these GPUs."""
        if not self.pytorch:
            half = "float16" if _BEFORE_AMPERE.search(self.gpus) else "bfloat16 or TF32"
            return f"{half[0].upper()}{half[1:]} on tensor cores"
        if _BEFORE_AMPERE.search(self.gpus):
            return "Mixed precision with float16 (torch.autocast with a gradient scaler)"
        if _AMD.search(self.gpus):
            return "Mixed precision (torch.autocast, bfloat16)"
        return (
            "Mixed precision (torch.autocast, bfloat16) or, on Ampere and later, TF32 "
            '(torch.set_float32_matmul_precision("high"))'
        )

    @property
    def library(self) -> str:
        """Name of the library for GPU collectives."""
        return "RCCL" if _AMD.search(self.gpus) else "NCCL"

    @property
    def slow_link(self) -> str:
        """Advice for collectives that use little of their link."""
        link = "a missing NVLink bridge"
        name = "NVLink"
        if _AMD.search(self.gpus):
            link, name = "a missing xGMI (Infinity Fabric) link", "xGMI"
        return (
            f"Check which transport {self.library} uses (NCCL_DEBUG=INFO): P2P disabled, {link}, "
            f"shared memory or sockets instead of {name} or InfiniBand."
        )

    def slow_network(self, *, on_host: bool) -> str:
        """Return advice for collectives that are slow on all ranks."""
        if on_host:
            return (
                "The network is slow or shared, or the CPUs are busy: compare nodes and time of "
                "day, and check which interface is used (GLOO_SOCKET_IFNAME)."
            )
        name = "Infinity Fabric" if _AMD.search(self.gpus) else "NVLink"
        return (
            f"The network or {name} is slow or shared: compare nodes and time of day, and "
            f"check the transport in the {self.library} log (NCCL_DEBUG=INFO) and other jobs on "
            "the fabric."
        )


def program(results: Mapping[str, Result]) -> Program:
    """Return framework and GPUs from the results."""
    idle, info = results.get("gpu_idle"), results.get("info")
    named = info.files["devices"].drop_nulls().unique().sort() if isinstance(info, Info) else ()
    return Program(idle.pytorch if isinstance(idle, GpuIdle) else True, ", ".join(named))
