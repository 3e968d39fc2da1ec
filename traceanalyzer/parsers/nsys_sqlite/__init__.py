"""Nsight Systems databases, as ``nsys export --type sqlite`` writes them.

In goes a database file (or a compressed one), read-only; out comes a trace. ``database`` opens it
and reads columns of tables with threads; ``layout`` says which tables and columns there are;
``query`` is one question to it, ``export`` turns ids into names, ``identity`` tells processes,
ranks and devices; ``device``, ``host``, ``nvtx``, ``payloads``, ``mpi``, ``sampling`` and
``counters`` each read their tables; ``findings`` says what is missing;
``assemble`` puts the rows in order. Only ``registry`` may import ``parser``.
"""
