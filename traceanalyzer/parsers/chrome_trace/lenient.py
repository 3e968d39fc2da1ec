"""Where a JSON value ends, in text that may be cut off or hold what strict JSON forbids."""

from __future__ import annotations

import json
from typing import NamedTuple

#: An error this near to the end of the text may be the cut's: the longest token that can be begun.
_NEAR = 12

# the values are of no interest; `len` keeps long numbers from being worked out
_scanner = json.JSONDecoder(strict=False, parse_int=len, parse_float=len, parse_constant=len)


class End(NamedTuple):
    """The end of a value.

    Attributes:
        at: offset behind the value, None when there is no value that ends.
        cut: the text ended inside the value; more of it may help.
        wrong: offset of what is no JSON, None when there is no such place.
    """

    at: int | None
    cut: bool = False
    wrong: int | None = None


def value_end(characters: str, at: int) -> End:
    """Where the value that begins at an offset ends.

    Control characters in strings, lone surrogates, NaN and Infinity are allowed. ``characters``
    are bytes decoded as Latin-1, so that offsets are the bytes' and any byte will do.
    """
    try:
        end = _scanner.raw_decode(characters, at)[1]
    except json.JSONDecodeError as error:
        # a token that was only begun has no bracket behind it
        is_near = len(characters) - error.pos <= _NEAR and "}" not in characters[error.pos :]
        is_cut = is_near or error.msg.startswith("Unterminated string")
        return End(None, is_cut, error.pos)
    except RecursionError:
        return End(None)
    return End(end)
