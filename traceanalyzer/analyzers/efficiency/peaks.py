"""Peak FLOP/s and memory bandwidth of GPUs (``peaks.toml``), by their names in recordings.

All figures are dense: data sheets of NVIDIA print tensor figures with sparsity, twice as much. Each
figure agrees within 1.5 % with units x clock x FLOPs per clock and unit, except for rounded ones of
GB200. Sources by letter:

* T: ``torch/_inductor/analysis/device_info.py`` of PyTorch 2.13 (not its L4, and not its sparse
  figures of H100).
* L: ``lightning/fabric/utilities/throughput.py`` of PyTorch Lightning, which names a data sheet for
  each entry.
* G: glennklockwood.com/garden/processors and NVIDIA's Blackwell architecture brief.
* R: rooflinenotes.dev/accelerators. S: data sheets that sellers publish.
* D: data sheet of the vendor, as computed from units and clocks.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from traceanalyzer.errors import OptionError
from traceanalyzer.files import packaged

#: Precisions with a peak of their own. ``fp32`` and ``fp64`` are without and with tensor cores:
#: libraries use tensor cores for ``fp64`` where the GPU has them; for ``fp32`` that is ``tf32``.
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4")

#: Precisions of tensor cores (matrix cores of AMD).
TENSOR = ("tf32", "fp16", "bf16", "fp8", "fp4", "int8")


@dataclass(frozen=True)
class Peaks:
    """Peaks of one GPU.

    Attributes:
        tflops: 10^12 FLOP/s by precision; precisions without a known peak are missing.
        gbps: memory bandwidth in 10^9 bytes per second, or None.
        units: number of multiprocessors (compute units), or None.
        origin: ``table``, ``given``, ``table and given``, or empty if nothing is known.
    """

    tflops: dict[str, float]
    gbps: float | None = None
    units: int | None = None
    origin: str = ""


_TABLE = packaged("analyzers/efficiency/peaks.toml")
_PARTS = re.compile(r"[ -]")
_VENDOR = re.compile(r"^(?:NVIDIA |AMD |Tesla )*")
#: GPUs whose tensor cores do not support bf16.
_WITHOUT_BF16 = re.compile(r"V100|T4")


def peaks_of(name: str | None) -> Peaks:
    """Return the peaks of a GPU by its whole name; empty if it is unknown or ambiguous.

    ``H100`` alone is ambiguous: the SXM, PCIe and NVL variants differ. A slice of a GPU (MIG) has
    another name than the GPU.
    """
    short = _VENDOR.sub("", (name or "").strip())
    for pattern, about in _TABLE.items():
        if re.fullmatch(pattern, short):
            known = {name: about[name] for name in PRECISIONS if name in about}
            if not _WITHOUT_BF16.match(short):
                known["bf16"] = known["fp16"]
            return Peaks(known, float(about["gbps"]), about["units"], "table")
    return Peaks({})


def similar(name: str | None) -> list[tuple[str, Peaks]]:
    """Return the names and peaks of other variants of an unknown GPU: V100-SXM2 of V100-DGXS.

    Empty for a known GPU and for a slice of a GPU (MIG).
    """
    short = _VENDOR.sub("", (name or "").strip())
    model = next((part for part in _PARTS.split(short) if any(map(str.isdigit, part))), None)
    if model is None or "MIG" in short or peaks_of(name).tflops:
        return []
    # names that the patterns match: V100-SXM2 of V100-SXM[23]
    names = [re.sub(r"\(\?:.*\)\?$", "", pattern).replace("[23]", "2") for pattern in _TABLE]
    return [(one, peaks_of(one)) for one in names if model in _PARTS.split(one)]


def with_given(peaks: Peaks, given: Iterable[str], gbps: float | None) -> Peaks:
    """Return the peaks with those given on the command line: ``bf16=989.4``, in TFLOP/s.

    Raises:
        OptionError: a peak is not ``PRECISION=TFLOPS``.
    """
    known = dict(peaks.tflops)
    for text in given:
        precision, _, value = text.partition("=")
        known[parse_precision(precision, text)] = _positive(value, text)
    if not given and gbps is None:
        return peaks
    origin = "table and given" if peaks.origin else "given"
    return replace(peaks, tflops=known, gbps=gbps or peaks.gbps, origin=origin)


def parse_precision(precision: str, text: str) -> str:
    """Return a precision in lower case.

    Raises:
        OptionError: it is not one of :data:`PRECISIONS`.
    """
    name = precision.strip().lower()
    if name not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise OptionError(
            f"invalid peak={text!r}; write PRECISION=TFLOPS, PRECISION one of {known}"
        )
    return name


def _positive(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise OptionError(f"invalid peak={text!r}; write PRECISION=TFLOPS, such as bf16=989.4")
    return number
