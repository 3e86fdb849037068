"""An image file from a client to upright RGB pixels. The one place that decodes what strangers send.

Only Pillow's decoders of four formats are let at the bytes, of a file only the first frame, and nothing is
decoded before its size is known to be allowed.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_PAPER = (255, 255, 255, 255)


class BadImage(ValueError):
    """The message goes on after the name of the request's field."""


def decode(data: bytes, max_pixels: int) -> Image.Image:
    """Return an image in mode RGB, turned as its EXIF orientation says. Raises BadImage.

    What is transparent is shown on white, as people see it; 16-bit grey keeps its upper 8 bits.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of size, which is checked here, and of odd metadata
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            if image.width * image.height > max_pixels:
                raise BadImage(
                    f"is an image of {image.width} x {image.height} pixels, more than the "
                    f"{max_pixels / 1e6:g} million this server takes (RKSERVE_MAX_IMAGE_MP); make it smaller"
                )
            image.load()
            return _rgb(_upright(image))
    except BadImage:
        raise
    except UnidentifiedImageError:
        raise BadImage("is not a PNG, JPEG, WebP or GIF image; send one of these") from None
    except Image.DecompressionBombError:
        raise BadImage("is an image of too many pixels; make it smaller") from None
    except MemoryError:
        raise BadImage("is an image that needs more memory than there is; make it smaller") from None
    except Exception as error:  # the decoders' errors on damaged files have no common base but this
        raise BadImage(
            f"is a damaged or incomplete image ({type(error).__name__}: {error}); send the whole file, or "
            "save it again"
        ) from error


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged metadata; the picture itself is whole
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # Pillow would cut off what is above 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, _PAPER), image).convert("RGB")
    return image.convert("RGB")
