"""Latency of the requests of an inference engine, and what they wait for.

``compute`` reads the requests of logs, and divides them by the steps of the engine in traces;
``result`` has the data, verdict, notes, tables and charts.
"""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show the latency of requests to an inference engine: queue, prefill, decode, preemption.

    PATH is a request log: the result of vllm bench serve --save-detailed or of
    sglang.bench_serving --output-details, spans of OpenTelemetry as JSON, several of them, or a
    folder. Traces of the engine next to spans divide the times by the phase of its steps.
    """
