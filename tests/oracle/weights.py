"""The demo model in transformers, with the weights that its GGUF holds, in fp32.

Made without a line of convert/: the two are to be wrong in different ways, if at all. Runs in the oracle's
environment only.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

Array = npt.NDArray[np.float32]

# Names of a block's tensors in the file, and in a Hugging Face checkpoint.
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # llama.cpp's token type of a control token


def load_model(path: Path) -> LlamaForCausalLM:
    """Return the model, on the CPU, in fp32 and in evaluation mode."""
    reader = gguf.GGUFReader(path)
    config = _config(reader)
    model = LlamaForCausalLM(config).eval()
    tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
    state = {
        "model.embed_tokens.weight": tensors.pop("token_embd.weight"),
        "model.norm.weight": tensors.pop("output_norm.weight"),
    }
    for layer in range(config.num_hidden_layers):
        for ours, theirs in BLOCK.items():
            value = tensors.pop(f"blk.{layer}.{ours}.weight")
            if ours == "attn_q":
                value = interleaved_to_half(value, config.num_attention_heads)
            elif ours == "attn_k":
                value = interleaved_to_half(value, config.num_key_value_heads)
            state[f"model.layers.{layer}.{theirs}.weight"] = value
    if tensors:
        raise ValueError(f"tensors of the file that have no place in the model: {sorted(tensors)}")
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=True)
    return model


def interleaved_to_half(weight: Array, heads: int) -> Array:
    """Reorder the rows of a q or k projection, (heads * head_dim, hidden), within each head.

    llama.cpp rotates neighbouring rows, 2 i with 2 i + 1, and its files are ordered for that; transformers
    rotates row i with row i + head_dim / 2.
    """
    head_dim = weight.shape[0] // heads
    within = np.concatenate([np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)])
    rows = (np.arange(heads)[:, None] * head_dim + within[None, :]).reshape(-1)
    return np.ascontiguousarray(weight[rows])


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of the file, with control tokens parsed in text.

    The pre-tokenizer is the one that llama.cpp calls "smollm": each digit by itself, then GPT-2's rule.
    """
    reader = gguf.GGUFReader(path)
    tokens = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    kinds = _field(reader, "tokenizer.ggml.token_type")
    if _field(reader, "tokenizer.ggml.pre") != "smollm":
        raise ValueError("the pre-tokenizer of the file is another one than this oracle was made for")
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    return tokenizer


def control_tokens(path: Path) -> list[str]:
    """Return the control tokens of the file, in the order of their ids."""
    reader = gguf.GGUFReader(path)
    kinds = _field(reader, "tokenizer.ggml.token_type")
    tokens = _field(reader, "tokenizer.ggml.tokens")
    return [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]


def _config(reader: gguf.GGUFReader) -> LlamaConfig:
    heads = _field(reader, "llama.attention.head_count")
    hidden = _field(reader, "llama.embedding_length")
    config = LlamaConfig(
        vocab_size=_field(reader, "llama.vocab_size"),
        hidden_size=hidden,
        intermediate_size=_field(reader, "llama.feed_forward_length"),
        num_hidden_layers=_field(reader, "llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=_field(reader, "llama.attention.head_count_kv"),
        head_dim=hidden // heads,
        max_position_embeddings=_field(reader, "llama.context_length"),
        rms_norm_eps=_field(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": _field(reader, "llama.rope.freq_base")},
        tie_word_embeddings=True,
        attn_implementation="eager",
        dtype="float32",
    )
    return config


def _field(reader: gguf.GGUFReader, name: str):  # type: ignore[no-untyped-def]  # the file's types are its own
    return reader.fields[name].contents()
