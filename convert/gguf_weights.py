"""How a GGUF file stores the weights of a model: under which names, in which shapes, with which rows first.

Weights are meant by their Hugging Face names. What llama.cpp's converter changes: it gives every tensor its
own name (the gguf package has that table, and the converter uses it); rows of q and k in the architectures
that rotate neighbours; and kernels of convolutions lose their middle axis (LFM2Model.modify_tensors in
conversion/lfm2.py). It also adds 1 to Gemma's norms, which is a matter of Model.norm_offset.
"""

from __future__ import annotations

from typing import TypeVar

import gguf
import numpy as np
import numpy.typing as npt

from convert.errors import ConvertError
from convert.gguf_file import GgufFile
from convert.graphs import Array
from convert.model import Model, Shape
from convert.quantized import Quantized

Kind = TypeVar("Kind", bound=np.generic)

# Their converters are of the class LlamaModel with undo_permute, and llama.cpp rotates them by
# LLAMA_ROPE_TYPE_NORM: conversion/llama.py and granite.py, llama_model_rope_type in src/llama-model.cpp.
_NEIGHBOURS_ROTATE = frozenset({"llama", "granite"})


class GgufWeights:
    """Says and reads what a file holds for each weight of a model. architecture: as the file names it."""

    def __init__(self, architecture: str, model: Model) -> None:
        numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        self._names = gguf.get_tensor_name_map(numbers[architecture], len(model.layers))
        self._permuted = architecture in _NEIGHBOURS_ROTATE
        self._model = model
        self._shapes = model.shapes()

    def tensor(self, name: str) -> str:
        """Return the name of a weight's tensor. Raises ConvertError."""
        found = self._names.get_name(name, try_suffixes=(".weight",))
        if found is None:
            raise ConvertError(
                f"The installed gguf package has no name for the weight {name}. Update it: "
                "pip install -U gguf"
            )
        return str(found)

    def stored_shape(self, name: str) -> Shape:
        """Return the shape that the file has for a weight, outermost axis first."""
        shape = self._shapes[name]
        return (shape[0], shape[2]) if len(shape) == 3 else shape

    def permuted_heads(self, name: str) -> int | None:
        """Return how many heads the rows of a weight are of that half_split_rows has to put in order again.

        None: the rows are in order.
        """
        if self._permuted and name.endswith(".self_attn.q_proj.weight"):
            return self._model.num_heads
        if self._permuted and name.endswith(".self_attn.k_proj.weight"):
            return self._model.num_kv_heads
        return None

    def read(self, file: GgufFile, name: str) -> Array:
        """Return a weight as a checkpoint has it, float32. Raises ConvertError, OSError."""
        weight = file.read(self.tensor(name))
        heads = self.permuted_heads(name)
        if heads is not None:
            weight = half_split_rows(weight, heads)
        return weight.reshape(self._shapes[name])

    def read_quantized(self, file: GgufFile, name: str) -> Quantized | None:
        """Return a matrix in the blocks of the file, rows as in a checkpoint; None where it has none.

        Raises ConvertError, OSError.
        """
        matrix = file.read_quantized(self.tensor(name))
        heads = self.permuted_heads(name)
        if matrix is None or heads is None:
            return matrix
        rows = np.arange(matrix.shape[0])[:, None]
        return matrix[half_split_rows(rows, heads)[:, 0]]


def half_split_rows(weight: npt.NDArray[Kind], num_heads: int) -> npt.NDArray[Kind]:
    """Reorder the rows of a q or k projection (heads * head_dim, D) from GGUF's order to Hugging Face's.

    D: values, or whatever else stands for a row. llama.cpp rotates neighbours, 2 i with 2 i + 1, in the
    architecture llama, so its converter moves the rows i and i + head_dim / 2 of each head next to each other
    (LlamaModel.permute in conversion/llama.py). This is the inverse, after which dimension i rotates with
    i + head_dim / 2: the RoPE style "half".
    """
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)
