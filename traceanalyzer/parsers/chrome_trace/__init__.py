"""Chrome Trace Event JSON, the format of Kineto, Composer, JAX, viztracer and browsers.

Input: decompressed bytes. Output: the schema's tables. A file passes through the modules in this
order: ``parser`` (the format) -> ``reader`` (the steps, the file's metadata) -> ``text`` (bytes by
offset) -> ``container`` (locates the event arrays) -> ``arrays`` (splits them into pieces, reads
these in threads) -> ``piece`` (one piece: ``_scan.c``, or ``decode``, ``extract`` and ``slices``;
``recover`` for damaged text) -> ``columns`` (of a piece, of the file) -> ``assemble`` (tables;
``points`` pairs begin and end events, and builds flows). ``samples``, ``producers`` and ``xla`` are
imported only for files that need them.
"""
