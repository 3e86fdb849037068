"""A Llama-like model in float64, written from the formulas, for comparison with the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from backends.hybrid.meta import Meta
from tests.backends.hybrid.test_attention import naive
from tests.backends.hybrid.test_rope import rotated


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight)


def reference_logits(
    meta: Meta,
    weights: Mapping[str, np.ndarray],
    token_ids: Sequence[int] | np.ndarray,
    qk_norms: Mapping[str, np.ndarray] | None = None,
) -> np.ndarray:
    """Return the logits after each token, (T, V). qk_norms: weights by the file names meta gives."""
    w = {name: weight.astype(np.float64) for name, weight in weights.items()}
    x = w["model.embed_tokens.weight"][list(token_ids)] * meta.embedding.scale
    tokens = len(token_ids)
    for index, layer in enumerate(meta.layers):
        kind = meta.attention[layer.type]
        prefix = f"model.layers.{index}"
        normed = norm(x, w[f"{prefix}.input_layernorm.weight"], meta.norm_eps)
        q, k, v = (
            (normed @ w[f"{prefix}.self_attn.{part}_proj.weight"].T).reshape(tokens, -1, meta.head_dim)
            for part in "qkv"
        )
        if qk_norms and layer.q_norm and layer.k_norm:
            q = norm(q, qk_norms[layer.q_norm.file], meta.norm_eps)
            k = norm(k, qk_norms[layer.k_norm.file], meta.norm_eps)
        if kind.rope:
            q, k = rotated(q, 0, kind.rope), rotated(k, 0, kind.rope)
        mixed = naive(q, k.transpose(1, 0, 2), v.transpose(1, 0, 2), kind.scale, kind.window, kind.softcap)
        x = x + mixed.reshape(tokens, -1) @ w[f"{prefix}.self_attn.o_proj.weight"].T
        normed = norm(x, w[f"{prefix}.post_attention_layernorm.weight"], meta.norm_eps)
        gate = normed @ w[f"{prefix}.mlp.gate_proj.weight"].T
        up = normed @ w[f"{prefix}.mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{prefix}.mlp.down_proj.weight"].T
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    logits = norm(x, w["model.norm.weight"], meta.norm_eps) @ head.T * meta.logits_scale
    if meta.logits_softcap is not None:
        logits = meta.logits_softcap * np.tanh(logits / meta.logits_softcap)
    return logits
