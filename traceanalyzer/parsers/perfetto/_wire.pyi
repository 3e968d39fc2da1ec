from collections.abc import Mapping, Sequence

Texts = Mapping[int, bytes]

def packets(data: bytes | memoryview, /) -> tuple[bytearray, int]: ...
def texts(
    data: bytes | memoryview,
    rows: bytes,
    tracks: list[tuple[bytes, bytes]],
    states: Sequence[tuple[Texts, Texts, Texts, Texts]],
    kinds: Mapping[bytes, bytes],
    wanted: bytes,
    /,
) -> tuple[bytes, int]: ...
def flows(data: bytes | memoryview, rows: bytes, /) -> bytes: ...
