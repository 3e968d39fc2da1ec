"""Small faults in the text of JSON: found by token, mended without moving an event's bounds."""

from __future__ import annotations

import re

# every alternative takes its whole token at once, so that no text is looked at twice
_token = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"'
    rb"|-?(?:\d[\d.]*+(?:[eE][+-]?\d*+)?(?:\#\w*+)?|(?:NaN|Infinity|nan|inf)\b)"
    rb"|,(?=\s*+[}\]])",
    re.DOTALL,
)
_number = re.compile(rb"-?(?:0|[1-9]\d{0,299})(?:\.\d{1,300})?(?:[eE][+-]?\d{1,2})?")
_odd_in_string = re.compile(
    rb"[\x00-\x1f]|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\(?![\"\\/bfnrt]|u[0-9a-fA-F]{4})"
    rb"|\\[\"\\/bfnrtu]",
    re.DOTALL,
)
_low_half = re.compile(rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_high_half = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


def mended(text: bytes) -> tuple[bytes, dict[str, int]]:
    """The text with all small faults mended, and how many of each there were.

    Bytes that are not UTF-8 and lone surrogates become U+FFFD, raw control characters in strings
    are escaped, backslashes that escape nothing are doubled, commas before a closing bracket go,
    NaN, Infinity and numbers that JSON or a double cannot hold become null.
    """
    counts: dict[str, int] = {}
    try:
        text.decode()
    except UnicodeDecodeError:
        replaced = text.decode("utf-8", "replace")
        counts["bad-utf8"] = replaced.count("\ufffd") - text.count(b"\xef\xbf\xbd")
        text = replaced.encode()

    def mend(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if token[0] == 0x22:
            return _mended_string(token, counts)
        if token == b",":
            counts["trailing-comma"] = counts.get("trailing-comma", 0) + 1
            return b""
        return token if _number.fullmatch(token) else b"null"

    return _token.sub(mend, text), counts


def outlined(text: bytes) -> bytes:
    """The text at the same length, with every token a lenient reader takes in its place.

    Only good for finding where values end.
    """

    def outline(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if token[0] == 0x22:
            return token.replace(b"\\", b"_") if b"\\" in token else token
        if token == b",":
            return b" "
        return token if _number.fullmatch(token) else b"0".ljust(len(token))

    return _token.sub(outline, text)


def _mended_string(token: bytes, counts: dict[str, int]) -> bytes:
    if _odd_in_string.search(token) is None:
        return token
    paired = -1  # where the second half of a surrogate pair stands

    def count(code: str, instead: bytes) -> bytes:
        counts[code] = counts.get(code, 0) + 1
        return instead

    def mend(match: re.Match[bytes]) -> bytes:
        nonlocal paired
        odd = match.group()
        if odd[0] != 0x5C:
            return count("raw-control-character", b"\\u%04x" % odd[0])
        if odd == b"\\":
            return count("bad-escape", b"\\\\")
        if len(odd) == 2 or match.start() == paired:
            return odd
        if _high_half.match(odd) and _low_half.match(token, match.end()):
            paired = match.end()
            return odd
        return count("lone-surrogate", b"\\ufffd")

    return _odd_in_string.sub(mend, token)
