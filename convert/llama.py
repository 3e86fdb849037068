"""The layer of a Llama, which many architectures share: which weight plays which part in it."""

from __future__ import annotations

from convert.model import AttentionParts, LayerParts


def llama_layer(
    layer: int, *, type: str = "full", q_norm: str | None = None, k_norm: str | None = None
) -> LayerParts:
    """Return the parts of a layer. q_norm, k_norm: names of norms of each head, as Qwen3 has them."""
    prefix = f"model.layers.{layer}"
    q, k, v, o = (f"{prefix}.self_attn.{part}_proj.weight" for part in "qkvo")
    gate, up, down = (f"{prefix}.mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
    return LayerParts(
        operator=AttentionParts(type, q, k, v, o, q_norm=q_norm, k_norm=k_norm),
        norm=f"{prefix}.input_layernorm.weight",
        ffn_norm=f"{prefix}.post_attention_layernorm.weight",
        gate=gate,
        up=up,
        down=down,
    )
