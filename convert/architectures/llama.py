"""Llama, and what is a Llama with other factors: Granite."""

from __future__ import annotations

from backends.hybrid.meta import Attention
from convert.architectures.dimensions import dimensions, lm_head
from convert.hf_config import Config
from convert.hf_rope import ropes
from convert.llama import llama_layer
from convert.model import Model


def llama(config: Config) -> Model:
    """Read a config of the model type llama: MiniCPM5 and Nanbeige4.1 are of it too. Raises ConvertError."""
    config.only("rope_interleaved", False)
    config.ignore("is_llama_config")
    return _plain(config, "llama")


def granite(config: Config) -> Model:
    """Read a config of the model type granite, the dense ones. Raises ConvertError.

    Its multipliers: of the embedding, of scores instead of head_dim^-1/2, and of what is added to the stream;
    logits are divided.
    """
    return _plain(
        config,
        "granite",
        attention_scale=config.positive("attention_multiplier", 1.0),
        embedding_scale=config.positive("embedding_multiplier", 1.0),
        residual_multiplier=config.positive("residual_multiplier", 1.0),
        logits_scale=1.0 / config.positive("logits_scaling", 1.0),
    )


def _plain(
    config: Config,
    architecture: str,
    *,
    attention_scale: float | None = None,
    embedding_scale: float = 1.0,
    residual_multiplier: float = 1.0,
    logits_scale: float = 1.0,
) -> Model:
    config.only("hidden_act", "silu")
    config.only("attention_bias", False)
    config.only("mlp_bias", False)
    dims = dimensions(config)
    rope = ropes(config, dims.head_dim, dims.context_length, {"full": 10_000.0})["full"]
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
        attention={"full": Attention(window=None, scale=attention_scale or dims.head_dim**-0.5, rope=rope)},
        layers=[llama_layer(layer) for layer in range(dims.num_layers)],
        embedding="model.embed_tokens.weight",
        final_norm="model.norm.weight",
        lm_head=lm_head(config, tied=False),
        embedding_scale=embedding_scale,
        residual_multiplier=residual_multiplier,
        logits_scale=logits_scale,
    )
