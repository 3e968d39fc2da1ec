def packets(data: bytes | memoryview, /) -> tuple[tuple[bytearray, ...], int]: ...
def texts(
    data: bytes | memoryview,
    rows: bytes,
    track_ids: bytes,
    track_args: bytes,
    states: tuple[bytes, ...],
    kinds: bytes,
    wanted: bytes,
    without_inputs: bytes,
    /,
) -> tuple[bytes, int]: ...
def flows(data: bytes | memoryview, rows: bytes, /) -> tuple[bytes, int]: ...
