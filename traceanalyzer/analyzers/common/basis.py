"""What costs are measured in: the mean per step and device, and the share of step time."""

from dataclasses import dataclass

from traceanalyzer.units import format_frac, format_ns


@dataclass(frozen=True)
class Basis:
    """The time of all devices in the steps that count, or all recorded time without steps.

    Attributes:
        whole_ns: time of all counted steps (without steps: of all spans), summed over devices.
        n: number of counted steps times devices (without steps: of devices).
        in_steps: whether steps are marked.
        on_host: whether no device work was recorded and the devices are the main threads.
    """

    whole_ns: int
    n: int
    in_steps: bool
    on_host: bool = False

    @property
    def of(self) -> str:
        """Name of the whole time."""
        return "step time" if self.in_steps else "the recorded time"

    @property
    def per(self) -> str:
        """Unit of :meth:`each_ns`; empty for one device without steps, or in one step."""
        device = "process" if self.on_host else "GPU"
        if self.n == 1:
            return ""
        return f"step and {device}" if self.in_steps else device

    def frac(self, total_ns: float) -> float:
        """Return a total time as a share of the whole time, at most all of it."""
        return min(total_ns / self.whole_ns, 1.0) if self.whole_ns else 0.0

    def each_ns(self, total_ns: float) -> int:
        """Return a total time as the mean per step and device (or per device).

        Kernels that run at the same time cannot take more than all of the time.
        """
        return round(min(total_ns, self.whole_ns) / max(self.n, 1))

    def text(self, total_ns: float) -> str:
        """Format a total time: ``1.45 ms per step and GPU``."""
        time = format_ns(self.each_ns(total_ns))
        return f"{time} per {self.per}" if self.per else time

    def share(self, total_ns: float) -> str:
        """Format a total time and its share: ``1.45 ms per step and GPU (12.1 % of step time)``."""
        return f"{self.text(total_ns)} ({format_frac(self.frac(total_ns))} of {self.of})"
