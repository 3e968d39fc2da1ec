def numbers(
    pages: bytes | bytearray | memoryview,
    page_size: int,
    usable: int,
    columns: bytes,
    key: int,
    /,
) -> tuple[tuple[bytes, ...], int] | None: ...
def children(
    pages: bytes | bytearray | memoryview, page_size: int, usable: int, /
) -> bytes | None: ...
