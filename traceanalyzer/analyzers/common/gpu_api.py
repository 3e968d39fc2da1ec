"""GPU API and framework of a program, for advice that names their functions."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers.common.names import matching
from traceanalyzer.trace import Meta, Trace
from traceanalyzer.vocabulary import DATABASES, ONNXRUNTIME, ROCPD

#: Names of AMD's GPUs.
AMD = re.compile(r"\bMI\d{2,3}|Radeon|Instinct", re.IGNORECASE)
#: Names that only PyTorch's operators, kernels and annotations have.
OF_PYTORCH = (
    r"(?:^|[^A-Za-z])(?:aten|at|c10)::|torch|ProfilerStep#|DataLoader|Optimizer\.step#"
    r"|DistributedDataParallel"
)
#: Names that only XLA's ranges and kernels have.
_OF_XLA = r"^(?:TSL:)?XlaModule|^PjRt|^(?:loop|input)_(?:\w+_)?fusion|^wrapped_\w"
#: Frameworks of programs without PyTorch that have advice of their own.
XLA, CUPY = "xla", "cupy"
#: Names of HIP's functions and of rocBLAS's kernels.
_OF_HIP = (r"^hip[A-Z]", r"^Cijk_")
#: Names of optimizers, and of nodes of a backward pass.
_OF_TRAINING = (
    r"(?i)optimizer|(?:^|[^a-z])backward|autograd::engine::evaluate|multi_tensor_apply",
    r"(?:Backward|_backward)\d*(?:$|[^a-z])",
    r"(?:^|_)(?:bwd|bprop|wgrad|dgrad)(?:_|$)",
)
#: Names of CUDA that HIP calls otherwise; all others differ in the prefix only.
_OTHER_NAMES = {
    "cudaMallocHost": "hipHostMalloc",
    "CUDA_MODULE_LOADING=EAGER": "HIP_ENABLE_DEFERRED_LOADING=0",
    "CUDA_LAUNCH_BLOCKING=1": "HIP_LAUNCH_BLOCKING=1 or AMD_SERIALIZE_KERNEL",
    "CUDA graph": "HIP graph",
    "CUDA loads": "HIP loads",
    "ncu --kernel-name": "rocprof-compute profile -k",
    "--default-stream per-thread": "-fgpu-default-stream=per-thread",
    "nvcc -Xptxas -v": "hipcc -Rpass-analysis=kernel-resource-usage",
}
_CUDA_FUNCTION = re.compile(r"\bcuda(?=[A-Z])")


def uses_hip(meta: Meta, names: Iterable[str]) -> bool:
    """Return whether a program runs on AMD's GPUs.

    Args:
        meta: metadata of its trace.
        names: names of its events.
    """
    devices = ", ".join(device.name or "" for device in meta.devices)
    return meta.format == ROCPD or bool(AMD.search(devices) or matching(names, _OF_HIP))


def uses_pytorch(meta: Meta, names: Iterable[str]) -> bool:
    """Return whether PyTorch was recorded, or its profiler wrote the file."""
    # databases also record programs without PyTorch
    others = meta.is_xla or meta.version == ONNXRUNTIME or meta.format in DATABASES
    return not others or bool(matching(names, [OF_PYTORCH]))


def trains(names: Iterable[str]) -> bool:
    """Return whether an optimizer or a backward pass was recorded.

    Python functions do not count: those of modules have hooks for a backward pass without it.
    """
    return any(".py(" not in name for name in matching(names, _OF_TRAINING))


@dataclass(frozen=True)
class Api:
    """GPU API and framework of a program.

    Attributes:
        hip: whether it runs on AMD's GPUs.
        pytorch: whether PyTorch was recorded, or its profiler wrote the file.
        trains: whether an optimizer or a backward pass was recorded.
        uncached: whether PyTorch's caching allocator is known to be off.
        blocking: whether each launch call is known to wait for its own kernel.
        maps_memory: whether it maps memory, as PyTorch's allocator does with expandable segments.
        xla: whether XLA's kernels were recorded, or JAX's or TensorFlow's profiler wrote the file.
        cupy: whether kernels of CuPy were recorded.
        xpu: whether calls of Intel's runtime were recorded.
        null_stream: whether copies on other streams are known to wait for the null stream.
        replays: whether most device work is launched by graphs.
        slow_host: whether operators that launch nothing take much longer on the host than usual.
        late_copies: whether most copies have a stream of their own, but begin too late there.
    """

    hip: bool
    pytorch: bool
    trains: bool
    uncached: bool = False
    blocking: bool = False
    maps_memory: bool = False
    xla: bool = False
    cupy: bool = False
    xpu: bool = False
    null_stream: bool = False
    replays: bool = False
    slow_host: bool = False
    late_copies: bool = False

    @property
    def framework(self) -> str:
        """The framework of a program without PyTorch, if it is known: :data:`XLA`, :data:`CUPY`."""
        return "" if self.pytorch else XLA * self.xla or CUPY * self.cupy

    def named(self, advice: str) -> str:
        """Return advice with the names of this API."""
        if self.xpu:
            advice = advice.replace("CUDA graphs, ", "").replace(", CUDA graphs", "")
        return in_hip(advice) if self.hip else advice


def api_of(trace: Trace) -> Api:
    """Return GPU API and framework of the program of a trace."""
    meta, names = trace.meta, trace.names
    return Api(
        *(uses_hip(meta, names), uses_pytorch(meta, names), trains(names)),
        xla=meta.is_xla or bool(matching(names, [_OF_XLA])),
        cupy=bool(matching(names, ["^cupyx?_"])),
        xpu=bool(matching(names, ["^(?:ur|ze)[A-Z]"])),
    )


def joined_api(apis: Sequence[Api]) -> Api:
    """Return GPU API and framework of a program of several ranks."""
    return Api(*map(any, zip(*(vars(one).values() for one in apis), strict=True)))


def in_hip(text: str) -> str:
    """Return advice with HIP's names instead of CUDA's."""
    for name, other in _OTHER_NAMES.items():
        text = text.replace(name, other)
    return _CUDA_FUNCTION.sub("hip", text)
