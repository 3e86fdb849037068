"""Random matrices in ggml's types, with the weights that the gguf package makes of them."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt

from convert.quantized import Quantized, from_ggml

KINDS = ("Q4_0", "Q4_1", "Q8_0")
_HEADER_BYTES = {"Q4_0": 2, "Q4_1": 4, "Q8_0": 2}  # scale, and minimum, as float16

Array = npt.NDArray[np.float32]


def random_matrix(kind: str, outputs: int, inputs: int, rng: np.random.Generator) -> tuple[Quantized, Array]:
    """Return a matrix as the product reads it and its weights, dequantized by the gguf package."""
    block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    header = _HEADER_BYTES[kind]
    data = rng.integers(0, 256, (outputs, inputs // 32, block_bytes), np.uint8)
    numbers = rng.uniform(-0.02, 0.02, (outputs, inputs // 32, header // 2)).astype(np.float16)
    data[..., :header] = numbers.view(np.uint8)
    weights = gguf.dequantize(data.reshape(outputs, -1), gguf.GGMLQuantizationType[kind])
    return from_ggml(kind, data.reshape(-1), (outputs, inputs)), np.asarray(weights, np.float32)
