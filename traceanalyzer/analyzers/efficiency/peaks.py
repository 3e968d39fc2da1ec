"""Peak FLOP/s and memory bandwidth of GPUs, by the device name that profilers record.

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


#: Suffixes of the same GPU: its module, or a virtual function of it.
_OAM = "(?: (?:OAM|VF))?"

#: Pattern of the whole device name without the vendor; units, GB/s, TFLOP/s of fp64, fp32, tf32,
#: fp16 and bf16 (V100 and T4: fp16 only), fp8, fp4 (None: not supported); source.
_TABLE: tuple[tuple[str, int, float, tuple[float | None, ...], str], ...] = (
    (r"V100-SXM[23](?:-\d+GB)?", 80, 900, (7.8, 15.7, None, 125, None, None), "L"),
    (r"V100-PCIE(?:-\d+GB)?", 80, 900, (7.0, 14.0, None, 112, None, None), "L"),
    (r"V100S-PCIE(?:-\d+GB)?", 80, 1134, (8.2, 16.4, None, 130, None, None), "L"),
    (r"T4", 40, 320, (0.25, 8.1, None, 65, None, None), "L"),
    (r"A100-SXM4-40GB", 108, 1555, (19.5, 19.5, 156, 312, None, None), "L, T"),
    (r"A100-SXM4-80GB", 108, 2039, (19.5, 19.5, 156, 312, None, None), "L, T"),
    (r"A100-PCIE-40GB", 108, 1555, (19.5, 19.5, 156, 312, None, None), "L"),
    (r"A100 80GB PCIe", 108, 1935, (19.5, 19.5, 156, 312, None, None), "L"),
    (r"A30", 56, 933, (10.3, 10.3, 82, 165, None, None), "D"),
    (r"A10", 72, 600, (0.49, 31.2, 62.5, 125, None, None), "D, S"),
    (r"A10G", 80, 600, (None, 35, 35, 70, None, None), "L"),
    (r"A40", 84, 696, (0.58, 37.4, 74.8, 149.7, None, None), "L, S"),
    (r"L4", 58, 300, (0.49, 30.3, 60, 121, 242, None), "L"),
    (r"L40", 142, 864, (1.41, 90.5, 90.5, 181.05, 362, None), "L, S"),
    (r"L40S", 142, 864, (1.41, 91.6, 183, 362.05, 733, None), "S"),
    (r"GeForce RTX 4090", 128, 1008, (1.29, 82.6, 82.6, 165.2, 330.3, None), "L"),
    (r"H100 PCIe", 114, 2039, (51.2, 51.2, 378, 756, 1513, None), "L, T"),
    (r"H100 80GB HBM3", 132, 3350, (67, 67, 494.5, 989.5, 1979, None), "L, T"),
    (r"H100 NVL", 132, 3938, (60, 60, 417.5, 835.5, 1670.5, None), "L"),
    (r"GH200 480GB", 132, 4023, (67, 67, 494.5, 989.5, 1979, None), "D"),
    (r"H200", 132, 4800, (67, 67, 494.5, 989.5, 1979, None), "L"),
    (r"H200 NVL", 132, 4800, (60, 60, 417.5, 835.5, 1670.5, None), "D"),
    (r"B200", 148, 8000, (37, 75, 1125, 2250, 4500, 9000), "G, S"),
    (r"GB200", 152, 8000, (40, 80, 1250, 2500, 5000, 10000), "G, S"),
    (r"Instinct MI210", 104, 1638, (45.3, 22.6, None, 181, None, None), "T"),
    # a device is one of the two dies of MI250 and MI250X
    (r"Instinct MI250", 104, 1638, (45.3, 22.6, None, 181, None, None), "D"),
    (r"Instinct MI250X", 110, 1638, (47.9, 23.9, None, 191.5, None, None), "D"),
    (r"Instinct MI300A", 228, 5300, (122.6, 122.6, 490.3, 980.6, 1961.2, None), "T"),
    (rf"Instinct MI300X{_OAM}", 304, 5300, (163.4, 163.4, 653.7, 1307.4, 2614.9, None), "T"),
    (rf"Instinct MI325X{_OAM}", 304, 6000, (163.4, 163.4, 653.7, 1307.4, 2614.9, None), "R"),
    (rf"Instinct MI350X{_OAM}", 256, 8000, (72.1, 144.2, None, 2309.6, 4614, 9230), "T"),
    (rf"Instinct MI355X{_OAM}", 256, 8000, (78.6, 157.3, None, 2516.6, 5033, 10066), "R"),
)  # fmt: skip

_COLUMNS = ("fp64", "fp32", "tf32", "fp16", "fp8", "fp4")
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
    for pattern, units, gbps, figures, _ in _TABLE:
        if re.fullmatch(pattern, short):
            pairs = zip(_COLUMNS, figures, strict=True)
            known = {precision: value for precision, value in pairs if value is not None}
            if not _WITHOUT_BF16.match(short):
                known["bf16"] = known["fp16"]
            return Peaks(known, float(gbps), units, "table")
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
    names = [re.sub(r"\(\?:.*\)\?$", "", pattern).replace("[23]", "2") for pattern, *_ in _TABLE]
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
