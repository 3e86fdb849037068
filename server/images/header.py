"""Format and size of an image as its file's header says. Pure, reads a few bytes, decodes nothing.

A header can lie: whoever decodes the image checks again. Own code, since the server process loads no image
library, and the small ones that only read headers can be led in circles by a hostile JPEG file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Format = Literal["PNG", "JPEG", "WebP", "GIF"]

_PNG = b"\x89PNG\r\n\x1a\n"
# Start-of-frame markers; C4, C8 and CC in their midst are something else.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
MOST_SCANS = 50  # of a progressive JPEG; real ones have about ten. Each costs a pass over the whole image
MOST_SEGMENTS = 4096  # before a JPEG's frame, fill bytes counted too, and after it: more take seconds
# What ends a scan: no stuffed byte, restart or fill byte. The same finds the next segment behind garbage.
_NEXT_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")


class UnreadableImage(ValueError):
    """No image of a format that is taken. The message goes on after "...content.0 "."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself; pixels."""

    format: Format
    width: int
    height: int


def read_header(data: bytes) -> Header:
    """Return what an image file says of itself. Raises UnreadableImage."""
    if data.startswith(_PNG):
        header = _png(data)
    elif data.startswith(b"\xff\xd8\xff"):
        header = _jpeg(data)
    elif data.startswith((b"GIF87a", b"GIF89a")):
        header = Header("GIF", _little(data, 6, 2), _little(data, 8, 2))
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        header = _webp(data)
    else:
        raise UnreadableImage("is not a PNG, JPEG, WebP or GIF image; send one of these")
    if header.width < 1 or header.height < 1:
        raise _damaged(header.format)
    return header


def _png(data: bytes) -> Header:
    if data[12:16] != b"IHDR" or len(data) < 24:
        raise _damaged("PNG")
    return Header("PNG", int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))


def _jpeg(data: bytes) -> Header:
    at = 2
    for _ in range(MOST_SEGMENTS):
        if at + 4 > len(data):
            break
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0x00, _START_OF_SCAN, _END_OF_IMAGE):
            break
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _JPEG_BARE:
            at += 2
        elif marker in _JPEG_FRAMES:
            if at + 9 > len(data):
                break
            _check_scans(data, at)
            height, width = (int.from_bytes(data[i : i + 2], "big") for i in (at + 5, at + 7))
            return Header("JPEG", width, height)
        else:
            length = int.from_bytes(data[at + 2 : at + 4], "big")
            if length < 2:
                break
            at += 2 + length
    raise _damaged("JPEG")


def _check_scans(data: bytes, start: int) -> None:
    """Refuse an image that would be decoded over and over.

    Segments are walked by their lengths as a decoder does: a comment may hold the bytes of any marker.
    """
    at, scans = start, 0
    for _ in range(MOST_SEGMENTS):
        found = _NEXT_MARKER.search(data, at)
        if found is None or data[found.end() - 1] == _END_OF_IMAGE:
            return
        if data[found.end() - 1] == _START_OF_SCAN:
            scans += 1
            if scans > MOST_SCANS:
                raise UnreadableImage(
                    f"is a JPEG image of more than {MOST_SCANS} scans; save it again with fewer"
                )
        length = int.from_bytes(data[found.end() : found.end() + 2], "big")
        if length < 2:  # where decoders give up, or the file is cut off
            return
        at = found.end() + length
    raise UnreadableImage(f"is a JPEG image of more than {MOST_SEGMENTS} segments; save it again")


def _webp(data: bytes) -> Header:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return Header("WebP", 1 + _little(data, 24, 3), 1 + _little(data, 27, 3))
    if kind == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        bits = _little(data, 21, 4)
        return Header("WebP", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind == b"VP8 " and len(data) >= 30 and data[23:26] == b"\x9d\x01\x2a":
        return Header("WebP", _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF)
    raise _damaged("WebP")


def _little(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _damaged(format: Format) -> UnreadableImage:
    return UnreadableImage(f"is a {format} image whose beginning is damaged or cut off; send the whole file")
