"""Registry entry of the analysis ``jitter``."""

from traceanalyzer.analyzers.registry import Entry

JITTER = Entry(
    "jitter",
    "Which kernels vary.",
    examples=("run/", "run/ --min-runs 3"),
    module="traceanalyzer_example.jitter",
    section="Jitter",
    plot="the ratios",
    one_file=True,
)
