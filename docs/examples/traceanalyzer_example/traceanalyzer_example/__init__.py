"""A format and an analysis that live outside of traceanalyzer."""
