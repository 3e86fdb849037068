"""Sizes read from headers, against Pillow, which wrote or reads the files; and files that lie."""

from __future__ import annotations

import io
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from server.images.header import MOST_SCANS, MOST_SEGMENTS, Header, UnreadableImage, read_header
from tests.vision.pictures import quadrants, saved

SIZES = [(1, 1), (1, 10_000), (10_000, 1), (7, 300), (640, 480)]
FILES = {
    "PNG": saved(quadrants(30, 20)),
    "JPEG": saved(quadrants(30, 20), "JPEG"),
    "progressive": saved(quadrants(30, 20), "JPEG", progressive=True),
    "lossy": saved(quadrants(30, 20), "WEBP"),
    "lossless": saved(quadrants(30, 20), "WEBP", lossless=True),
    "extended": saved(quadrants(30, 20), "WEBP", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0"),
    "GIF": saved(quadrants(30, 20), "GIF"),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": b"Exif\0\0" + bytes(60_000)}),
        ("WebP", {}),
        ("WebP", {"lossless": True}),
        ("WebP", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}),
        ("GIF", {}),
    ],
)
def test_the_size_of_every_format(format: str, options: dict[str, object], size: tuple[int, int]) -> None:
    data = saved(np.zeros((size[1], size[0], 3), np.uint8), format.upper(), **options)
    assert read_header(data) == Header(format, *size)  # type: ignore[arg-type]  # one of the four


def test_kinds_of_webp_are_all_there() -> None:
    assert [FILES[name][12:16] for name in ("lossy", "lossless", "extended")] == [b"VP8 ", b"VP8L", b"VP8X"]


@pytest.mark.parametrize("name", FILES)
def test_a_beginning_is_enough_or_refused(name: str) -> None:
    data = FILES[name]
    for end in range(len(data)):
        try:
            header = read_header(data[:end])
        except UnreadableImage:
            continue
        assert (header.width, header.height) == (30, 20)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>",
        b"BM" + bytes(60),
        b"II*\0" + bytes(60),
        b"\0\0\0\x20ftypavif" + bytes(60),
        b"PK\x03\x04" + FILES["PNG"],
        b"\x89PNG\r\n\x1a\n\0\0\0\rIDAT" + bytes(60),
        b"GIF89a\0\0\x05\0",
        b"\xff\xd8\xff\xe0\0\0" * 50,  # a segment of no length: others go round in circles
        b"\xff\xd8\xff\xe0\0\1" * 50,
        b"\xff\xd8" + b"\xff" * 1000,
        b"\xff\xd8\xff\xd9",
        b"RIFF\0\0\0\0WEBPVP8Z" + bytes(60),
    ],
)
def test_what_is_no_image_of_ours(data: bytes) -> None:
    with pytest.raises(UnreadableImage):
        read_header(data)


@pytest.mark.parametrize("filler", [b"\xff\xe0\0\2", b"\xff\xd0", b"\xff"])
def test_a_jpeg_of_endless_segments(filler: bytes) -> None:
    image = FILES["JPEG"]
    assert read_header(image[:2] + filler * 100 + image[2:]).width == 30
    with pytest.raises(UnreadableImage):
        read_header(image[:2] + filler * MOST_SEGMENTS + image[2:])


def test_a_jpeg_of_endless_scans() -> None:
    image = FILES["progressive"]
    scan = image.index(b"\xff\xda")
    end = image.index(b"\xff\xd9")
    assert read_header(image[:scan] + image[scan:end] * 3 + image[end:]).width == 30
    with pytest.raises(UnreadableImage, match="scans"):
        read_header(image[:scan] + image[scan:end] * MOST_SCANS + image[end:])


@pytest.mark.parametrize("segment", [b"\xff\xfe\0\x04\xff\xd9", b"\xff\xe1\0\x06\xff\xd9\xff\xd9", b"\0\1"])
def test_what_stands_before_the_scans_does_not_hide_them(segment: bytes) -> None:
    image = FILES["progressive"]
    frame = image.index(b"\xff\xc2")
    after = frame + 2 + int.from_bytes(image[frame + 2 : frame + 4], "big")
    scan, end = image.index(b"\xff\xda"), image.index(b"\xff\xd9")
    last = image[image.rindex(b"\xff\xda") : end]
    assert read_header(image[:after] + segment + image[after:]).width == 30
    with pytest.raises(UnreadableImage, match="scans"):
        read_header(image[:after] + segment + image[after:scan] + last * 210 + image[end:])


def test_scans_in_comments_are_none() -> None:
    image = FILES["progressive"]
    scan = image.index(b"\xff\xda")
    comment = b"\xff\xfe\0\xca" + b"\xff\xda" * 100
    assert read_header(image[:scan] + comment + image[scan:]).width == 30


def test_a_png_that_says_it_is_enormous() -> None:
    data = FILES["PNG"]
    header = read_header(data[:16] + struct.pack(">II", 2**31 - 1, 2**31 - 1) + data[24:])
    assert header.width * header.height > 10**18


@given(st.binary(max_size=200))
def test_any_bytes_are_an_image_or_refused(data: bytes) -> None:
    for begin in (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF    WEBPVP8"):
        try:
            header = read_header(begin + data)
        except UnreadableImage:
            continue
        assert min(header.width, header.height) >= 1


def test_where_pillow_reads_a_size_it_is_the_same_one() -> None:
    """Files with single bytes changed: an agreement beyond those would need a decoder."""
    rng = random.Random(1)
    agreed = 0
    for name, data in FILES.items():
        for _ in range(300):
            changed = bytearray(data)
            changed[rng.randrange(len(data))] = rng.randrange(256)
            try:
                header = read_header(bytes(changed))
                with Image.open(io.BytesIO(changed), formats=("PNG", "JPEG", "WEBP", "GIF")) as image:
                    size = image.size
            except Exception:  # what either refuses, nobody decodes
                continue
            agreed += 1
            if name != "GIF":  # of which Pillow shows more than the header says, if the first frame is larger
                assert (header.width, header.height) == size, (name, bytes(changed))
    assert agreed > 1000
