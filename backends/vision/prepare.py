"""An RGB image to what an encoder takes, as the entry's `vision:` says. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from backends.spec import VisionOptions

GREY = 128  # the vendor pads with 127.5, which it rounds


def prepare(image: Image.Image, options: VisionOptions) -> npt.NDArray[Any]:
    """Return pixels for the encoder: (1, H, W, 3) or (1, 3, H, W), uint8 or float32, C-contiguous.

    square_pad is what the vendor's demo does: the image in the middle of a grey square, this at the encoder's
    size. The image is scaled before it is put there: the square of one of 1 x 60,000 pixels has 3.6 billion.
    """
    size = options.size
    if options.resize == "stretch":
        canvas = image.resize(size, Image.Resampling.BILINEAR)
    else:
        width, height = fitted(image.size, size)
        canvas = Image.new("RGB", size, (GREY, GREY, GREY))
        canvas.paste(
            image.resize((width, height), Image.Resampling.BILINEAR),
            ((size[0] - width) // 2, (size[1] - height) // 2),
        )
    pixels: npt.NDArray[Any] = np.asarray(canvas)[np.newaxis]
    if options.dtype == "float32":
        pixels = pixels.astype(np.float32)
        if options.mean is not None:
            pixels -= np.asarray(options.mean, np.float32)
        if options.std is not None:
            pixels /= np.asarray(options.std, np.float32)
    if options.layout == "nchw":
        pixels = pixels.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(pixels)


def fitted(image: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Return width and height of an image, at least 1, when its surrounding square is scaled to `size`."""
    side = max(image)
    return max(1, round(size[0] * image[0] / side)), max(1, round(size[1] * image[1] / side))
