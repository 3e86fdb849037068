"""Qwen3: a Llama with norms of q and k; and Kanana-2, which has sliding layers with a RoPE of their own."""

from __future__ import annotations

from collections.abc import Sequence

from convert.architectures.dimensions import attentions, dimensions, layer_types, lm_head
from convert.hf_config import Config
from convert.hf_rope import ropes
from convert.llama import llama_layer
from convert.model import Model


def qwen3(config: Config) -> Model:
    """Read a config of the model type qwen3. Raises ConvertError.

    A scaling that is given once for all belongs to sliding layers too, as in transformers.
    """
    return _qwen3(config, "qwen3", ("full", "sliding"))


def kanana2(config: Config) -> Model:
    """Read a config of the model type kanana2, whose scaling belongs to full layers. Raises ConvertError."""
    config.ignore("auto_map")  # names the classes that transformers is to load for it
    return _qwen3(config, "kanana2", ("full",))


def _qwen3(config: Config, architecture: str, scaled: Sequence[str]) -> Model:
    config.only("hidden_act", "silu")
    config.only("attention_bias", False)
    dims = dimensions(config, head_dim=128)
    listed = "layer_types" in config
    slides = config.find("use_sliding_window", bool)
    window = config.find("sliding_window", int)
    if not listed and not slides:
        window = None
    first_sliding = config.find("max_window_layers", int)
    default = [
        "sliding_attention"
        if window and index >= (28 if first_sliding is None else first_sliding)
        else "full_attention"
        for index in range(dims.num_layers)
    ]
    types = layer_types(config, dims, default)
    if listed and slides is False and architecture == "qwen3":
        config.only("layer_types", ["full_attention"] * dims.num_layers)
    found = ropes(config, dims.head_dim, dims.context_length, dict.fromkeys(types, 10_000.0), scaled=scaled)
    prefix = "model.layers.{}.self_attn.{}_norm.weight"
    return Model(
        architecture=architecture,
        hidden_size=dims.hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_heads=dims.num_heads,
        num_kv_heads=dims.num_kv_heads,
        head_dim=dims.head_dim,
        vocab_size=dims.vocab_size,
        context_length=dims.context_length,
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        attention=attentions(types, found, dims.head_dim**-0.5, window, config),
        layers=[
            llama_layer(index, type=kind, q_norm=prefix.format(index, "q"), k_norm=prefix.format(index, "k"))
            for index, kind in enumerate(types)
        ],
        embedding="model.embed_tokens.weight",
        final_norm="model.norm.weight",
        lm_head=lm_head(config, tied=False),
    )
