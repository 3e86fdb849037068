"""Gemma 3, text only: sandwich norms stored less 1, scaled embedding, tanh-GELU, sliding and full layers."""

from __future__ import annotations

import dataclasses
import math

from convert.architectures.dimensions import attentions, dimensions, layer_types, lm_head
from convert.hf_config import Config
from convert.hf_rope import ropes
from convert.llama import llama_layer
from convert.model import LayerParts, Model


def gemma3(config: Config) -> Model:
    """Read a config of the model type gemma3_text. Raises ConvertError."""
    config.only("hidden_activation", "gelu_pytorch_tanh")
    config.only("hidden_act", "gelu_pytorch_tanh")
    config.only("attention_bias", False)
    config.only("use_bidirectional_attention", False)
    config.only("attn_logit_softcapping")  # published models have none, and transformers 5.24 passes it over
    dims = dimensions(config, head_dim=256, num_kv_heads=4)
    pattern = config.find("sliding_window_pattern", int) or config.find("_sliding_window_pattern", int) or 6
    config.ignore("_sliding_window_pattern")
    default = [
        "sliding_attention" if (index + 1) % pattern else "full_attention" for index in range(dims.num_layers)
    ]
    types = layer_types(config, dims, default)
    found = ropes(
        config,
        dims.head_dim,
        dims.context_length,
        {"full": 1_000_000.0, "sliding": 10_000.0},
        scaled=("full",),
        local_theta="rope_local_base_freq",
    )
    scalar = config.positive("query_pre_attn_scalar", 256.0)
    window = config.find("sliding_window", int) or 4096
    return Model(
        architecture="gemma3",
        hidden_size=dims.hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_heads=dims.num_heads,
        num_kv_heads=dims.num_kv_heads,
        head_dim=dims.head_dim,
        vocab_size=dims.vocab_size,
        context_length=dims.context_length,
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        attention=attentions(types, found, scalar**-0.5, window, config),
        layers=[_layer(index, kind) for index, kind in enumerate(types)],
        embedding="model.embed_tokens.weight",
        final_norm="model.norm.weight",
        lm_head=lm_head(config, tied=True),
        ffn="gelu_tanh",
        norm_offset=1.0,
        embedding_scale=math.sqrt(dims.hidden_size),
        logits_softcap=config.find("final_logit_softcapping", float),
    )


def _layer(index: int, kind: str) -> LayerParts:
    prefix = f"model.layers.{index}"
    norms = (f"{prefix}.self_attn.{part}_norm.weight" for part in "qk")
    return dataclasses.replace(
        llama_layer(index, type=kind, q_norm=next(norms), k_norm=next(norms)),
        post_norm=f"{prefix}.post_attention_layernorm.weight",
        ffn_norm=f"{prefix}.pre_feedforward_layernorm.weight",
        post_ffn_norm=f"{prefix}.post_feedforward_layernorm.weight",
    )
