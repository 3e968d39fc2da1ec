"""Nsight Systems databases, as ``nsys export --type sqlite`` writes them.

In goes a database file (or a compressed one), read-only; out comes a trace. ``parser`` recognises
the file, ``reader`` makes the trace: it opens the file (``pages``, ``database``) as an export
(``tables``), finds out whose it is (``identity``), and reads what devices did (``device``), what
threads of the host did (``host``) and what programs marked (``nvtx``). Only ``registry`` may import
``parser``.
"""
