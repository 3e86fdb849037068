"""Writes small GGUF files the way llama.cpp's converter does, and says what weights they hold.

Q4_1 and Q8_0 blocks are packed here by hand, from the format's definition, so that reading them is checked
against something other than the gguf package. Rows of q and k are moved as LlamaModel.permute does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from convert.graphs import Array
from tests.llama import LlamaConfig
from tests.tiny import tiny_config

BLOCK = 32
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def gguf_config(**changes: Any) -> LlamaConfig:
    """Dimensions whose rows are whole blocks of 32."""
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rotary_dim": 16,
        "num_layers": 2,
        "rope_theta": 100_000.0,
        "vocab_size": len(vocabulary()[0]),
    }
    return tiny_config(**{**sizes, **changes})


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types, merges: three control tokens, the letters of GPT-2's bytes, words, one extra."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = range(256, 256 + 256 - len(printable))
    letters = [chr(code) for code in (*printable, *others)]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d", "1 2", "Ġ Ġ"]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters]
    tokens += [merge.replace(" ", "") for merge in merges] + ["<think>"]
    return tokens, [3, 3, 3] + [1] * (len(tokens) - 4) + [4], merges


def metadata(config: LlamaConfig) -> dict[str, Any]:
    """The metadata of a file of these dimensions, with the keys the demo model has."""
    tokens, types, merges = vocabulary()
    return {
        "general.name": "Little",
        "general.license": "apache-2.0",
        "general.quantization_version": 2,
        "llama.block_count": config.num_layers,
        "llama.context_length": config.context_length,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_heads,
        "llama.attention.head_count_kv": config.num_kv_heads,
        "llama.rope.freq_base": config.rope_theta,
        "llama.attention.layer_norm_rms_epsilon": config.norm_eps,
        "llama.vocab_size": config.vocab_size,
        "llama.rope.dimension_count": config.head_dim,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def write_gguf(
    path: Path,
    config: LlamaConfig | None = None,
    *,
    seed: int = 0,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
    architecture: str = "llama",
) -> dict[str, Array]:
    """Write a file and return its weights by Hugging Face name, rows of q and k in Hugging Face's order.

    keys and tensors add to the file or replace what it would hold; None leaves a thing out.
    """
    config = config or gguf_config()
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**metadata(config), **(keys or {})}.items():
        _add_key(writer, key, value)
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    replaced = dict(tensors or {})
    for name in config.names:
        values, data, kind = _random_tensor(rng, name, config.shape(name))
        if name.endswith((".q_proj.weight", ".k_proj.weight")):
            heads = config.num_heads if ".q_" in name else config.num_kv_heads
            values = values[hugging_face_order(heads, config.head_dim)]
        weights[name] = values
        if stored_name(name) not in replaced:
            writer.add_tensor(stored_name(name), data, raw_dtype=kind)
    for name, tensor in replaced.items():
        if tensor is not None:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def hugging_face_order(heads: int, head_dim: int) -> list[int]:
    """Which row of the file is row i of the checkpoint: the file has i and i + head_dim / 2 side by side."""
    half = head_dim // 2
    rows = []
    for head in range(heads):
        rows += [head * head_dim + 2 * index for index in range(half)]
        rows += [head * head_dim + 2 * index + 1 for index in range(half)]
    return rows


def pack_q4_1(
    scales: npt.NDArray[np.float16], minimums: npt.NDArray[np.float16], quants: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """Blocks of 32: fp16 scale and minimum, 16 bytes with values 0..15 low, 16..31 high. quants (B, 32)."""
    packed = quants[:, :16] | (quants[:, 16:] << 4)
    parts = [scales[:, None].view(np.uint8), minimums[:, None].view(np.uint8), packed]
    return np.concatenate(parts, axis=1)


def pack_q8_0(scales: npt.NDArray[np.float16], quants: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Blocks of 32: fp16 scale, 32 signed bytes. quants (B, 32)."""
    return np.concatenate([scales[:, None].view(np.uint8), quants.view(np.uint8)], axis=1)


def _random_tensor(
    rng: np.random.Generator, name: str, shape: tuple[int, ...]
) -> tuple[Array, npt.NDArray[Any], gguf.GGMLQuantizationType]:
    """Values and how they are stored: norms F32, v F16, the table and lm_head Q8_0, all others Q4_1."""
    kinds = gguf.GGMLQuantizationType
    if len(shape) == 1:
        norm = (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
        return norm, norm, kinds.F32
    if ".v_proj" in name:
        half = (rng.standard_normal(shape) / 8).astype(np.float16)
        return half.astype(np.float32), half, kinds.F16
    blocks = shape[0] * shape[1] // BLOCK
    scales = (rng.uniform(0.5, 1.5, blocks) / 40).astype(np.float16)
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        signed = rng.integers(-127, 128, (blocks, BLOCK), np.int8)
        values = scales[:, None].astype(np.float32) * signed.astype(np.float32)
        return values.reshape(shape), pack_q8_0(scales, signed).reshape(shape[0], -1), kinds.Q8_0
    minimums = (-8 * scales).astype(np.float16)
    quants = rng.integers(0, 16, (blocks, BLOCK), np.uint8)
    values = scales[:, None].astype(np.float32) * quants + minimums[:, None].astype(np.float32)
    return values.reshape(shape), pack_q4_1(scales, minimums, quants).reshape(shape[0], -1), kinds.Q4_1


def stored_name(name: str) -> str:
    """Return the name a Llama's weight has in a file."""
    part = name.removesuffix(".weight")
    if part.startswith("model.layers."):
        layer, part = part.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{NAMES[part]}.weight"
    return f"{NAMES[part]}.weight"


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            pass
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
