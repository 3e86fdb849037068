"""Files of every kind to RGB pixels that were known before they were saved; and bad files."""

from __future__ import annotations

import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from backends.vision.decode import BadImage, decode
from tests.vision.pictures import BLUE, GREEN, RED, WHITE, Bytes, quadrants, saved

LIMIT = 1_000_000


def pixels(data: bytes) -> Bytes:
    image = decode(data, LIMIT)
    assert image.mode == "RGB"
    return np.asarray(image)


def corners(data: bytes) -> list[tuple[int, ...]]:
    array = pixels(data).astype(int)
    return [tuple(array[y, x]) for y in (2, -3) for x in (2, -3)]


def near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return all(abs(a - b) <= 12 for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("PNG", {}),
        ("PNG", {"interlace": 1}),
        ("WEBP", {"lossless": True}),
        ("GIF", {}),
        ("JPEG", {"quality": 95, "subsampling": 0}),
        ("JPEG", {"quality": 95, "progressive": True}),
        ("WEBP", {"quality": 95}),
    ],
)
def test_formats(format: str, options: dict[str, object]) -> None:
    found = corners(saved(quadrants(64, 48), format, **options))
    assert all(map(near, found, (RED, GREEN, BLUE, WHITE)))


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, (RED, GREEN, BLUE, WHITE)),
        (2, (GREEN, RED, WHITE, BLUE)),
        (3, (WHITE, BLUE, GREEN, RED)),
        (6, (BLUE, RED, WHITE, GREEN)),
        (8, (GREEN, WHITE, RED, BLUE)),
    ],
)
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_a_camera_s_orientation(format: str, orientation: int, expected: tuple[tuple[int, ...], ...]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = corners(saved(quadrants(64, 48), format, quality=95, exif=exif))
    assert all(map(near, found, expected)), found


def test_damaged_exif_is_no_reason_to_refuse_a_picture() -> None:
    for exif in (
        b"Exif\0\0garbage",
        b"Exif\0\0MM\0*\xff\xff\xff\xff",
        b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 40,
    ):
        assert corners(saved(quadrants(64, 48), "PNG", exif=exif))[0] == RED


def test_transparency_is_shown_on_white() -> None:
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0, 0] = (10, 20, 30, 255)
    rgba[0, 1] = (0, 0, 0, 128)
    expected = [[(10, 20, 30), (127, 127, 127)], [WHITE, WHITE]]
    assert pixels(saved(rgba)).tolist() == [list(map(list, row)) for row in expected]
    la = np.asarray([[[0, 0], [50, 255]]], np.uint8)
    assert pixels(saved(Image.fromarray(la))).tolist() == [[[255] * 3, [50] * 3]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([1, 2, 3, 4, 5, 6])
    palette.putpixel((1, 0), 1)
    for format in ("PNG", "GIF"):
        assert pixels(saved(palette, format, transparency=0)).tolist() == [[[255] * 3, [4, 5, 6]]]
    keyed = Image.fromarray(np.asarray([[[9, 9, 9], [8, 7, 6]]], np.uint8))
    assert pixels(saved(keyed, transparency=(9, 9, 9))).tolist() == [[[255] * 3, [8, 7, 6]]]


def test_grey_palette_and_16_bit() -> None:
    assert pixels(saved(Image.new("L", (2, 2), 77))).tolist() == [[[77] * 3] * 2] * 2
    assert pixels(saved(Image.new("1", (1, 1), 1))).tolist() == [[[255] * 3]]
    assert pixels(saved(Image.new("L", (1, 1), 77), "JPEG"))[0, 0].tolist() == [77] * 3
    deep = np.asarray([[0x0000, 0x1234], [0x8000, 0xFFFF]], np.uint16)
    assert pixels(saved(Image.fromarray(deep))).tolist() == [[[0] * 3, [0x12] * 3], [[0x80] * 3, [255] * 3]]


def test_16_bit_colour() -> None:
    row = b"\0" + struct.pack(">3H3H", 0x1234, 0x8000, 0xFFFF, 0, 0x00FF, 0xABCD)
    assert pixels(_png(2, 1, 16, 2, row)).tolist() == [[[0x12, 0x80, 0xFF], [0, 0, 0xAB]]]


def test_cmyk() -> None:
    cmyk = saved(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert near(tuple(pixels(cmyk)[8, 8].astype(int)), (255, 0, 0))


def test_only_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in (RED, GREEN, BLUE)]
    for format in ("GIF", "PNG", "WEBP"):
        data = saved(frames[0], format, save_all=True, append_images=frames[1:], lossless=True)
        assert near(tuple(pixels(data)[0, 0].astype(int)), RED), format


def test_what_follows_an_image_is_nothing_to_us() -> None:
    assert corners(saved(quadrants(64, 48)) + b"PK\x03\x04 <script>")[3] == WHITE


def test_sizes_over_the_limit_are_not_decoded() -> None:
    for format in ("PNG", "JPEG", "GIF", "WEBP"):
        with pytest.raises(BadImage, match="1001 x 1000 pixels"):
            decode(saved(np.zeros((1000, 1001, 3), np.uint8), format), LIMIT)
    for width, height in ((50_000, 50_000), (2**31 - 1, 1), (2**31 - 1, 2**31 - 1)):
        with pytest.raises(BadImage):  # whatever the header says: nothing of that size is made
            decode(_png(width, height, 8, 2, b""), LIMIT)


def test_a_first_frame_larger_than_a_gif_s_header_says() -> None:
    data = bytearray(saved(np.zeros((1200, 1000, 3), np.uint8), "GIF"))
    data[6:10] = struct.pack("<HH", 1, 1)
    with pytest.raises(BadImage):
        decode(bytes(data), LIMIT)


def test_a_bomb_in_a_text_of_a_png() -> None:
    bomb = b"Comment\0\0" + zlib.compress(bytes(300_000_000), 9)
    with pytest.raises(BadImage):
        decode(_png(1, 1, 8, 2, bytes(4), (b"zTXt", bomb)), LIMIT)


def test_a_bomb_in_the_data_of_a_png_is_not_blown_up() -> None:
    bomb = zlib.compress(bytes(300_000_000), 9)
    assert decode(_png(1, 1, 8, 2, b"", data=bomb), LIMIT).size == (1, 1)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_truncated_files(format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), np.uint8)
    data = saved(noise, format)
    for end in range(0, len(data) - 2000, len(data) // 40):
        with pytest.raises(BadImage):
            decode(data[:end], LIMIT)


@pytest.mark.parametrize(
    "data",
    [b"", b"GIF89a", b"<svg/>", saved(quadrants(8, 8), "BMP"), saved(quadrants(8, 8), "TIFF"), b"%PDF-1.7"],
)
def test_other_formats_are_not_even_tried(data: bytes) -> None:
    with pytest.raises(BadImage, match=r"is not a PNG, JPEG, WebP or GIF image|damaged"):
        decode(data, LIMIT)


def test_any_damage_gives_pixels_or_a_reason() -> None:
    rng = random.Random(7)
    noise = np.random.default_rng(1).integers(0, 255, (24, 40, 3), np.uint8)
    files = [
        saved(noise),
        saved(noise, "JPEG"),
        saved(noise, "JPEG", progressive=True),
        saved(noise, "WEBP"),
        saved(noise, "WEBP", lossless=True),
        saved(noise, "GIF"),
    ]
    refused = 0
    for data in files:
        for _ in range(150):
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 3, 20])):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            if rng.random() < 0.2:
                del changed[rng.randrange(len(changed)) :]
            try:
                image = decode(bytes(changed), LIMIT)
            except BadImage:
                refused += 1
            else:
                assert image.mode == "RGB" and image.width * image.height <= LIMIT
    assert 0 < refused < 900


def _png(
    width: int,
    height: int,
    depth: int,
    color: int,
    rows: bytes,
    *chunks: tuple[bytes, bytes],
    data: bytes | None = None,
) -> bytes:
    """Return a PNG file put together by hand."""
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    body = zlib.compress(rows) if data is None else data
    out = io.BytesIO(b"\x89PNG\r\n\x1a\n")
    out.seek(8)
    for kind, content in ((b"IHDR", head), *chunks, (b"IDAT", body), (b"IEND", b"")):
        out.write(struct.pack(">I", len(content)) + kind + content)
        out.write(struct.pack(">I", zlib.crc32(kind + content)))
    return out.getvalue()
