def scan(
    text: bytes,
    begin: int,
    categories: list[tuple[bytes, int]],
    other: int,
    absent: int,
    special: list[bytes],
    named: list[bytes],
    windows: bytes,
    flows: bool,
    every_kind: bool,
    /,
) -> tuple[int, int, int, list[bytes]] | None: ...
