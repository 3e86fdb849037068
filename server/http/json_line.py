"""JSON that stays one line for every reader of lines."""

from __future__ import annotations

from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
_BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def json_line(value: Any) -> bytes:
    """Encode a value for the data line of an event.

    U+0085, U+2028 and U+2029 are written as escapes, which mean the same: JSON lets them stand as they are,
    and Python's splitlines, by which clients such as httpx find the end of a line, cuts there.
    """
    data = _encode(value)
    if data.isascii():
        return data
    for raw, escaped in _BREAKS:
        data = data.replace(raw, escaped)
    return data
