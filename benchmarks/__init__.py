"""Benchmarks of time and memory, also of other tools. ``make bench`` runs :mod:`benchmarks.run`.

In: traces written by the generators (``inputs``), other people's readers (``peers``). Out:
``results/NAME.json``, the tables of ``RESULTS.md`` and their summary in ``docs/performance.md``
(``report``, judged by ``bars``). ``NOTES.md`` has what was tried, with numbers.
``inflate`` and ``routes`` keep what was tried on the way; ``profile_read`` shows where time and
memory go. Nothing in the package imports from here.
"""
