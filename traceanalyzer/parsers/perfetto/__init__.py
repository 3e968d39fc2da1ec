"""Perfetto's protobuf traces: PyTorch, rocprofv3, Perfetto's own SDK.

``wire`` reads the encoding, ``state`` the packets that describe others (texts, tracks, clocks),
``slices`` pairs begin and end, ``stages`` reads work that the GPU's driver recorded, and ``reader``
passes all of it, as events of Chrome's JSON, to the parser of that format.
"""
