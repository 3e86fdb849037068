"""Pictures whose pixels are known, as files and as parts of messages."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 448
PATCH = 32
GRID = SIDE // PATCH
TOKENS = GRID * GRID

RED, GREEN, BLUE, WHITE, GREY = (200, 10, 30), (0, 180, 60), (20, 40, 220), (255, 255, 255), (128, 128, 128)
Bytes = npt.NDArray[np.uint8]


def quadrants(width: int = SIDE, height: int = SIDE, first: tuple[int, int, int] = RED) -> Bytes:
    """Return (H, W, 3): four colours, so that turning or mirroring shows."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = first
    pixels[: height // 2, width // 2 :] = GREEN
    pixels[height // 2 :, : width // 2] = BLUE
    pixels[height // 2 :, width // 2 :] = WHITE
    return pixels


def saved(pixels: Bytes | Image.Image, format: str = "PNG", **options: Any) -> bytes:
    """Return an image file."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    """Return a file as a data URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def image_part(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    """Return a file as a part of a message."""
    return {"type": "image_url", "image_url": {"url": data_url(data, media_type)}}


def patch_means(pixels: Bytes) -> npt.NDArray[np.float32]:
    """Return (tokens, 3), worked out pixel by pixel: what the encoders of these tests give for a square."""
    means = [
        pixels[row : row + PATCH, column : column + PATCH].astype(np.float64).mean(axis=(0, 1))
        for row in range(0, SIDE, PATCH)
        for column in range(0, SIDE, PATCH)
    ]
    return np.asarray(means, np.float32)
