"""The parameters of a rotation of the type llama3, found again from the factors a GGUF file has instead.

Pure; knows no file.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from convert.errors import ConvertError
from convert.graphs import Array

TENSOR = "rope_freqs.weight"
_LOW, _HIGH = 1.0, 4.0  # low_freq_factor and high_freq_factor of all Llamas that have this type
_USUAL_LENGTH = 8192  # the context that they were trained with before it was extended
_TOLERANCE = 1e-5  # the converter computes the factors in float32


def llama3_parameters(factors: Array, head_dim: int, theta: float) -> dict[str, Any]:
    """Return the rope_parameters whose frequencies are those of theta divided by `factors`, (head_dim / 2,).

    The converter's formula (LlamaModel.generate_extra_tensors in conversion/llama.py): a factor is 1 where a
    wave is short, the whole factor where it is longer than the original context, and in between 1 / ((1 - s)
    / factor + s), where s = (original / wavelength - low) / (high - low). Any factor strictly between gives
    the original context. Raises ConvertError where the others do not fit to it: all were made in another way.
    """
    wavelengths = 2 * np.pi * theta ** (2 * np.arange(head_dim // 2) / head_dim)
    if factors.shape == wavelengths.shape and np.isfinite(factors).all() and factors.min() >= 1:
        whole = float(str(np.float32(factors[-1])))
        if whole == 1 and (factors == 1).all():
            return {"rope_type": "default"}
        for original in _lengths(factors.astype(np.float64), wavelengths, whole):
            if np.allclose(factors, _factors(wavelengths, whole, original), rtol=_TOLERANCE, atol=0):
                return {
                    "rope_type": "llama3",
                    "factor": whole,
                    "low_freq_factor": _LOW,
                    "high_freq_factor": _HIGH,
                    "original_max_position_embeddings": original,
                }
    raise ConvertError(
        f"The file holds rotary scaling factors ({TENSOR}) that are not those of a rotation of the type "
        "llama3, the only ones that are understood. Use another model, or a .rkllm file of this one."
    )


def _lengths(factors: np.ndarray, wavelengths: np.ndarray, whole: float) -> list[int]:
    """Return the original contexts that may be meant, most likely first."""
    between = (factors > 1) & (factors < whole * (1 - _TOLERANCE))
    shares = (1 / factors[between] - 1 / whole) / (1 - 1 / whole)
    found = wavelengths[between] * (_LOW + shares * (_HIGH - _LOW))
    return [*(round(float(length)) for length in found), _USUAL_LENGTH]


def _factors(wavelengths: np.ndarray, whole: float, original: int) -> np.ndarray:
    share = (original / wavelengths - _LOW) / (_HIGH - _LOW)
    return np.where(
        share > 1, 1.0, np.where(share < 0, whole, 1 / ((1 - share) / whole + np.clip(share, 0, 1)))
    )
