"""GGUF -> hybrid folder: reads the file tensor by tensor, dequantizes to float32, writes ONNX segments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from backends.files import sha256_of
from backends.hybrid.meta import License
from convert.errors import ConvertError
from convert.folder import check_free_space, check_target, new_folder
from convert.gguf_file import GgufFile
from convert.gguf_metadata import Metadata, eos_token_ids, license_of, llama_config
from convert.gguf_tokenizer import build_tokenizer
from convert.graphs import Array
from convert.llama import LENGTHS, LlamaConfig, Progress, write_llama
from convert.quantized import TYPES as QUANTIZED_TYPES
from convert.quantized import Quantized
from convert.writer import QuantizedVariant

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_BESIDE_WEIGHTS = 64 * 1024 * 1024  # bytes: tokenizer, graphs, page borders


def convert_gguf(
    path: Path,
    out: Path,
    *,
    license: License | None = None,
    overwrite: bool = False,
    lengths: Sequence[int] = LENGTHS,
    progress: Progress = lambda done, what: None,
) -> Path:
    """Convert a GGUF file to the hybrid folder `out`, which appears only when it is whole, and return `out`.

    license: used instead of what the file says. overwrite: replace a hybrid folder of that name. lengths:
    tokens a call the folder is made for, 1 first. progress: called with the share done (0 to 1) and what is
    being done. Holds one segment's weights in memory at a time. Raises ConvertError.
    """
    check_target(out, overwrite=overwrite)
    try:
        opened = GgufFile(path)
    except OSError as error:
        raise ConvertError(
            f"{path} cannot be read: {error.strerror}. Check the path and its rights."
        ) from error
    with opened as file:
        metadata = Metadata(file.metadata)
        config = llama_config(metadata, tied_lm_head="output.weight" not in file.tensors)
        _check_tensors(file, config)
        progress(0.0, f"reading {path.name}")  # not before it is known that there is something to do
        tokenizer = build_tokenizer(metadata)
        eos = eos_token_ids(metadata)
        quantized = _quantized_variant(file, config)
        check_free_space(out, _folder_bytes(file, config, quantized) + _BESIDE_WEIGHTS)
        with new_folder(out, overwrite=overwrite) as folder:
            write_llama(
                folder,
                config,
                lambda name: _read(file, config, name),
                name=metadata.find("general.name", str) or path.stem,
                tokenizer=tokenizer,
                chat_template=metadata.find("tokenizer.chat_template", str),
                eos_token_ids=eos,
                license=license or license_of(metadata, path.name),
                source={"format": "gguf", "file": path.name, "sha256": sha256_of(path)},
                lengths=lengths,
                quantized=quantized,
                progress=progress,
            )
    return out


def gguf_name(name: str) -> str:
    """Return the GGUF name of a weight by its Hugging Face name."""
    part = name.removesuffix(".weight")
    if part.startswith("model.layers."):
        _, _, layer, part = part.split(".", 3)
        return f"blk.{layer}.{_NAMES[part]}.weight"
    return f"{_NAMES[part]}.weight"


Rows = TypeVar("Rows", bound=npt.NDArray[Any])


def half_split_rows(weight: Rows, num_heads: int) -> Rows:
    """Reorder the rows of a q or k projection (heads * head_dim, D) from GGUF's order to Hugging Face's.

    llama.cpp rotates neighbours, 2 i with 2 i + 1, in the architecture llama, so its converter moves the rows
    i and i + head_dim / 2 of each head next to each other (LlamaModel.permute in convert_hf_to_gguf.py). This
    is the inverse, after which dimension i rotates with i + head_dim / 2: the RoPE style "half".
    """
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])
    return cast(Rows, pairs.swapaxes(1, 2).reshape(weight.shape))


def _read(file: GgufFile, config: LlamaConfig, name: str) -> Array:
    weight = file.read(gguf_name(name))
    if name.endswith(".q_proj.weight"):
        return half_split_rows(weight, config.num_heads)
    if name.endswith(".k_proj.weight"):
        return half_split_rows(weight, config.num_kv_heads)
    return weight


def _read_quantized(file: GgufFile, config: LlamaConfig, name: str) -> Quantized | None:
    matrix = file.read_quantized(gguf_name(name))
    heads = {"q": config.num_heads, "k": config.num_kv_heads}
    part = name.removesuffix("_proj.weight")[-1]
    if matrix is None or not name.endswith("_proj.weight") or part not in heads:
        return matrix
    return matrix[half_split_rows(np.arange(matrix.shape[0])[:, None], heads[part])[:, 0]]


def _quantized_variant(file: GgufFile, config: LlamaConfig) -> QuantizedVariant | None:
    """Return the variant in the file's own few bits, if it has such matrices."""
    kinds = {file.tensors[gguf_name(name)].type_name for name in config.names}
    bits = min((QUANTIZED_TYPES[kind] for kind in kinds & QUANTIZED_TYPES.keys()), default=None)
    if bits is None:
        return None
    return QuantizedVariant(f"int{bits}", lambda name: _read_quantized(file, config, name))


def _folder_bytes(file: GgufFile, config: LlamaConfig, quantized: QuantizedVariant | None) -> int:
    """Return what the weights take: in float32, and in few bits about as much as in the file, and a half."""
    return config.size_bytes + (0 if quantized is None else file.path.stat().st_size * 3 // 2)


def _check_tensors(file: GgufFile, config: LlamaConfig) -> None:
    """Refuse a file with a tensor missing, left over or of a wrong shape, before anything is written."""
    expected = {gguf_name(name): config.shape(name) for name in config.names}
    missing = sorted(expected.keys() - file.tensors.keys())
    if missing:
        raise ConvertError(
            f"{file.path} lacks {len(missing)} tensor(s), the first is {missing[0]}: it is incomplete or one "
            "part of a split model. Fetch the whole model."
        )
    unknown = sorted(file.tensors.keys() - expected.keys())
    if unknown:
        reason = (
            "it holds rotary scaling factors, which are not supported"
            if unknown[0].startswith("rope_")
            else "the conversion does not know it, and leaving it out would give wrong answers"
        )
        raise ConvertError(
            f"{file.path} holds the tensor {unknown[0]}: {reason}. Use another model, or a .rkllm file "
            "of this one."
        )
    for name, shape in expected.items():
        if file.tensors[name].shape != shape:
            raise ConvertError(
                f"The tensor {name} has shape {file.tensors[name].shape}, the metadata make it {shape}: the "
                "file is damaged. Fetch it again and compare its sha256 with the publisher's."
            )
