"""Nsight Systems databases, written by ``nsys export --type sqlite``.

Input: a database file, possibly compressed, opened read-only. Output: a trace. ``parser``
recognises the file, ``reader`` builds the trace: it opens the file (:mod:`..sqlite`) as an export
(``tables``), determines ranks and devices (``identity``), and reads device work
(``device``), host calls (``host``) and NVTX ranges (``nvtx``). Only ``registry`` may import
``parser``.
"""
