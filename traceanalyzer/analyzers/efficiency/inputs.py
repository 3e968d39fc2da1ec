"""The recorded inputs of one operator call, and the work that a formula derives from them."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

Shape = tuple[int, ...]

#: Precision and size in bytes of each element type, as PyTorch writes it.
TYPES: Mapping[str, tuple[str, float]] = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::Float8_e8m0fnu": ("fp8", 1),
    "c10::Float4_e2m1fn_x2": ("fp4", 1),  # two values per element
    "signed char": ("int8", 1),
    "unsigned char": ("int8", 1),
    "bool": ("bool", 1),
    "short int": ("int16", 2),
    "short": ("int16", 2),
    "int": ("int32", 4),
    "long int": ("int64", 8),
    "long": ("int64", 8),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}

#: Codes of element types in arguments (``c10::ScalarType``).
_SCALAR_TYPES = {
    0: "unsigned char", 1: "signed char", 2: "short int", 3: "int", 4: "long int", 5: "c10::Half",
    6: "float", 7: "double", 9: "c10::complex<float>", 10: "c10::complex<double>", 11: "bool",
    15: "c10::BFloat16", 23: "c10::Float8_e5m2", 24: "c10::Float8_e4m3fn",
}  # fmt: skip

#: Type of a list of tensors, whose element type is not recorded.
TENSOR_LIST = "TensorList"
_INT = {int}
#: More FLOPs or bytes than this in one call are an error in the file.
_MOST = 1 << 62


class Unknown(Exception):
    """The recorded inputs are not enough for the formula."""


class Work(NamedTuple):
    """What one call of an operator computes.

    Attributes:
        kind: ``gemm``, ``convolution``, ``attention``, or a kind that memory bandwidth limits.
        shape: the sizes that matter, as text.
        precision: element type of the computation, as in ``TYPES``.
        flops: floating-point operations; an addition and a multiplication are two.
        bytes: bytes that must be read and written at least, each input and output once.
        exact: False if ``flops`` and ``bytes`` are lower bounds.
        tiles: output elements of a matrix product as (batch, rows, columns), and ``inner``, the
            length of its sums; None for others.
    """

    kind: str
    shape: str
    precision: str
    flops: int
    bytes: int
    exact: bool = True
    tiles: tuple[int, int, int] | None = None
    inner: int = 0


@dataclass(slots=True)
class Inputs:
    """Inputs of one operator call, in the order of its arguments.

    Attributes:
        dims: ``Input Dims``: the shape of each tensor, empty for other arguments; a list of shapes
            for a list of tensors; None if it is neither.
        types: ``Input type``: precision and size of an element of each tensor, None for other
            arguments; ``TENSOR_LIST`` for a list of tensors.
        values: JSON text of ``Concrete Inputs``, a list: scalars and lists of scalars as text,
            empty for tensors.
        list_type: element type of tensor lists, from the name of the kernel, or None.
    """

    dims: Sequence[Shape | list[Shape] | None]
    types: Sequence[tuple[str, float] | str | None]
    values: str = ""
    list_type: str | None = None

    def shape(self, at: int) -> Shape:
        """Return the shape of a tensor."""
        try:
            value, kind = self.dims[at], self.types[at]
        except IndexError:
            raise Unknown from None
        if type(value) is not tuple or type(kind) is not tuple:
            raise Unknown
        return value

    def has(self, at: int) -> bool:
        """Return whether an argument is a tensor with a shape."""
        return at < len(self.dims) and type(self.dims[at]) is type(self._known(at)) is tuple

    def tensors(self) -> list[int]:
        """Return the positions of all tensors."""
        pairs = enumerate(zip(self.dims, self.types, strict=False))
        return [at for at, (shape, kind) in pairs if type(shape) is type(kind) is tuple]

    def precision(self, at: int) -> str:
        """Return the precision of a tensor: ``bf16``."""
        return self._type(at)[0]

    def width(self, at: int) -> float:
        """Return the bytes of one element of a tensor."""
        return self._type(at)[1]

    def bytes(self, at: int) -> float:
        """Return the size of a tensor in bytes."""
        return math.prod(self.shape(at)) * self.width(at)

    def _known(self, at: int) -> tuple[str, float] | str | None:
        return self.types[at] if at < len(self.types) else None

    def _type(self, at: int) -> tuple[str, float]:
        value = self.types[at] if at < len(self.types) else None
        if type(value) is not tuple:
            raise Unknown
        return value

    def elements_of_list(self, at: int) -> int:
        """Return the number of elements of a list of tensors."""
        value = self.dims[at] if at < len(self.dims) else None
        if self._known(at) != TENSOR_LIST or not isinstance(value, list):
            raise Unknown
        return sum(count(shape) for shape in value)

    def list_width(self) -> float:
        """Return the bytes of one element of the lists of tensors."""
        return self._list_kind()[1]

    def list_precision(self) -> str:
        """Return the precision of the lists of tensors."""
        return self._list_kind()[0]

    def _list_kind(self) -> tuple[str, float]:
        kind = TYPES.get(self.list_type or "")
        if kind is None:
            raise Unknown
        return kind

    def numbers(self, at: int) -> Shape:
        """Return a list of integers: ``[1, 1]``."""
        try:
            value = json.loads(self._text(at))
        except ValueError:
            raise Unknown from None
        if not _is_shape(value):
            raise Unknown
        return tuple(value)

    def number(self, at: int) -> int:
        """Return an integer."""
        text = self._text(at)
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise Unknown
        return int(text)

    def flag(self, at: int) -> bool:
        """Return a boolean."""
        text = self._text(at)
        if text not in ("True", "False"):
            raise Unknown
        return text == "True"

    def flags(self, at: int) -> list[bool]:
        """Return a list of booleans: ``[False, True, True]``."""
        flags = [text.strip() for text in self._text(at).strip("[]").split(",")]
        if any(flag not in ("True", "False") for flag in flags):
            raise Unknown
        return [flag == "True" for flag in flags]

    def scalar_type(self, at: int) -> str | None:
        """Return the element type that an argument names by its code, or None."""
        try:
            return _SCALAR_TYPES.get(self.number(at))
        except Unknown:
            return None

    def _text(self, at: int) -> str:
        values = _list(self.values)
        value = values[at] if at < len(values) else ""
        if not isinstance(value, str) or not value:
            raise Unknown
        return value


def count(shape: Shape | list[int]) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)


def text_of(shape: Shape | list[int]) -> str:
    """Return a shape as text: ``8x512x64``."""
    return "x".join(map(str, shape)) or "scalar"


def is_possible(work: Work) -> bool:
    """Return whether FLOPs and bytes fit 64-bit columns."""
    return 0 <= work.flops < _MOST and 0 <= work.bytes < _MOST


def parse(
    dims: str | None, types: str | None, values: str | None, list_type: str | None = None
) -> Inputs | None:
    """Return the inputs from their JSON texts; None if shapes or types were not recorded."""
    shapes, kinds = _shapes(dims or ""), _types(types or "")
    return Inputs(shapes, kinds, values or "", list_type) if shapes and kinds else None


@lru_cache(maxsize=65_536)
def _types(text: str) -> Sequence[tuple[str, float] | str | None]:
    """Return the element types of ``Input type``, as :attr:`Inputs.types`."""
    names = [value if isinstance(value, str) else "" for value in _list(text)]
    return [TENSOR_LIST if name == TENSOR_LIST else TYPES.get(name) for name in names]


@lru_cache(maxsize=65_536)
def _list(text: str) -> Sequence[Any]:
    """Return a JSON list; empty for any other text."""
    try:
        value = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return ()
    return value if isinstance(value, list) else ()


@lru_cache(maxsize=65_536)
def _shapes(text: str) -> Sequence[Shape | list[Shape] | None]:
    """Return the shapes of ``Input Dims``, as :attr:`Inputs.dims`."""
    return [_shape_or_list(value) for value in _list(text)]


def _shape_or_list(value: Any) -> Shape | list[Shape] | None:
    if _is_shape(value):
        return tuple(value)
    if isinstance(value, list) and all(_is_shape(shape) for shape in value):
        return [tuple(shape) for shape in value]
    return None


def _is_shape(value: Any) -> bool:
    return type(value) is list and (not value or ({*map(type, value)} <= _INT and min(value) >= 0))
