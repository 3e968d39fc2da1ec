class Machine:
    def __new__(
        cls, keys: tuple[bytes, ...], tables: tuple[tuple[int, tuple[int, ...]], ...], seed: int, /
    ) -> Machine: ...
    def feed(self, block: bytes | bytearray | memoryview, /) -> tuple[int, int, int] | None: ...
    def finish(self) -> tuple[int, int, int] | None: ...
    def take(
        self,
    ) -> tuple[
        list[bytes],
        list[bytes],
        list[bytes],
        tuple[bytes, bytes],
        tuple[bytes, bytes],
        tuple[bytes, bytes],
        tuple[tuple[int, tuple[bytes | None, ...]], ...],
        int,
        int,
        int,
        int,
        int,
    ]: ...
    @property
    def allocated_bytes(self) -> int: ...
