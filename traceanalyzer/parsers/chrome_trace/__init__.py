"""Chrome Trace Event JSON, the format of Kineto, Composer, JAX, viztracer and browsers.

In: decompressed bytes. Out: the schema's tables. The steps, a module each: ``text`` gives bytes by
offset, ``container`` finds the event arrays and cuts them into pieces, ``worker`` turns a piece
into a ``batch`` of columns (``search`` -> ``decode`` -> ``extract``; ``recover`` for damaged text),
``pool`` does so on several cores, ``assemble`` joins batches to tables (``pairing``, ``flows``).
Everything up to ``pool`` imports neither polars nor numpy: a worker stays small.
"""
