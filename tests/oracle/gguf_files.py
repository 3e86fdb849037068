"""Writes the small models of all architectures as GGUF files, with what llama.cpp's converter changes.

Made without a line of convert/: the two are to be wrong in different ways, if at all. That such a file means
what it should is shown by `check_gguf`, in which llama.cpp itself reads it. Needs numpy and gguf only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.oracle.architectures import Array, Model

# The models that a file can express: no windows in a Qwen3, no YaRN with mscale, no LFM3 and Kanana-2.
NAMES = (
    "gemma3",
    "gemma3_large",
    "granite",
    "granite_untied",
    "lfm2",
    "lfm2_untied",
    "llama",
    "llama_dynamic",
    "llama_tied",
    "qwen3",
    "qwen3_yarn",
)

_LLAMA = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA3 = _LLAMA | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_LFM2 = {
    "operator_norm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
}
_BLOCKS = {"gemma3_text": _GEMMA3, "lfm2": _LFM2}
_OUTSIDE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embedding_norm": "token_embd_norm",
    "lm_head": "output",
}


def write_gguf(path: Path, model: Model) -> None:
    """Write a model in float32."""
    config = model.config
    kind = config["model_type"]
    writer = gguf.GGUFWriter(path, {"gemma3_text": "gemma3"}.get(kind, kind))
    _add_sizes(writer, config)
    _add_rope(writer, config)
    _ADD[kind](writer, config)
    _add_tokens(writer, config["vocab_size"])
    for name, weight in model.weights().items():
        writer.add_tensor(_stored_name(kind, name), _stored(config, name, weight))
    factors = _llama3_factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokens(vocab_size: int) -> list[str]:
    """Return a vocabulary: three control tokens, letters of GPT-2's bytes, and what one merge makes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(code) for code in (*printable, *range(256, 256 + 256 - len(printable)))]
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters[: vocab_size - 4], "he"]


def permuted(weight: Array, heads: int) -> Array:
    """Put the rows i and i + head_dim / 2 of each head next to each other, as the converter does."""
    rows = np.arange(len(weight)).reshape(heads, 2, -1).transpose(0, 2, 1).reshape(-1)
    return weight[rows]


def _stored_name(kind: str, name: str) -> str:
    part = name.removesuffix(".weight")
    if part in _OUTSIDE:
        return f"{_OUTSIDE[part]}.weight"
    _, _, layer, part = part.split(".", 3)
    return f"blk.{layer}.{_BLOCKS.get(kind, _LLAMA)[part]}.weight"


def _stored(config: Mapping[str, Any], name: str, weight: Array) -> Array:
    kind = config["model_type"]
    if kind in ("llama", "granite"):
        if ".q_proj." in name:
            return permuted(weight, config["num_attention_heads"])
        if ".k_proj." in name:
            return permuted(weight, config["num_key_value_heads"])
    if kind == "gemma3_text" and name.endswith("norm.weight"):
        weight = weight + np.float32(1)
        if ".q_norm." in name:
            # Published models scale scores by the root of the size of a head, and a file has no key for
            # another scale; these models have one, which the norm of the queries can take over.
            weight = weight * np.float32(math.sqrt(config["head_dim"] / config["query_pre_attn_scalar"]))
    return weight[:, 0] if ".conv.conv." in name else weight


def _add_sizes(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_name("Little")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    writer.add_layer_norm_rms_eps(config["norm_eps" if config["model_type"] == "lfm2" else "rms_norm_eps"])
    if config["model_type"] != "lfm2":
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_feed_forward_length(config["intermediate_size"])


def _add_rope(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])


def _llama3_factors(config: Mapping[str, Any]) -> Array | None:
    rope = config["rope_parameters"]
    if rope.get("rope_type") != "llama3":
        return None
    length, low, high = (
        rope[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    factors = []
    for index in range(0, config["head_dim"], 2):
        turns = length / (2 * math.pi * rope["rope_theta"] ** (index / config["head_dim"]))
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - share) / rope["factor"] + share))
    return np.array(factors, np.float32)


def _add_llama(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_rope_dimension_count(_head_dim(config))


def _add_granite(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_rope_dimension_count(_head_dim(config))
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _head_dim(config: Mapping[str, Any]) -> int:
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size


def _add_qwen3(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    pass  # nothing of its own


def _add_gemma3(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_sliding_window(config["sliding_window"])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _add_lfm2(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    heads = config["num_key_value_heads"]
    writer.add_head_count_kv([0 if kind == "conv" else heads for kind in config["layer_types"]])
    size = config["intermediate_size"]
    if config["block_auto_adjust_ff_dim"]:
        step = config["block_multiple_of"]
        size = int(config["block_ffn_dim_multiplier"] * int(2 * size / 3))
        size = step * math.ceil(size / step)
    writer.add_feed_forward_length(size)


_ADD: Mapping[str, Callable[[gguf.GGUFWriter, Mapping[str, Any]], None]] = {
    "gemma3_text": _add_gemma3,
    "granite": _add_granite,
    "lfm2": _add_lfm2,
    "llama": _add_llama,
    "qwen3": _add_qwen3,
}


def _add_tokens(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    listed = tokens(vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(listed)
    writer.add_token_types([3] * 3 + [1] * (len(listed) - 3))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
