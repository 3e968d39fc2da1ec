"""A format and an analysis that live outside of traceanalyzer."""

from traceanalyzer_example.jitter import Jitter, jitter

__all__ = ["Jitter", "jitter"]
