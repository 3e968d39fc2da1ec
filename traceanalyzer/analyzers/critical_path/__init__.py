"""The critical path: what the run waited for at each moment.

``compute`` replays the programs of all ranks (:mod:`~traceanalyzer.analyzers.replay`) and follows
the longest path back.
"""
