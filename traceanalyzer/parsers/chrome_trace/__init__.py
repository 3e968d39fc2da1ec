"""Chrome Trace Event JSON, the format of Kineto, Composer, JAX, viztracer and browsers.

In: decompressed bytes. Out: the schema's tables. A file passes through the modules in this order:
``parser`` (the format) -> ``reader`` (the steps, what the file says about itself) -> ``text``
(bytes by offset) -> ``container`` (where the event arrays lie) -> ``arrays`` (cuts them into
pieces, reads these in threads) -> ``piece`` (one piece: ``_scan.c``, or ``decode`` and ``extract``,
``slices``; ``recover`` for damaged text) -> ``columns`` (of a piece, of the file) -> ``assemble``
(tables; ``points`` makes slices of begin and end events, and flows). ``samples``, ``producers`` and
``xla`` are loaded for the few files that need them.
"""
