"""A Llama forward pass in float64 numpy, written from the paper's formulas, and a runner of segment graphs.

The two share no code with convert: the forward pass knows weights only, the runner graphs only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime

from backends.hybrid.meta import META_FILE, Meta
from tests.llama import LlamaConfig

F64 = npt.NDArray[np.float64]
Style = Literal["half", "interleaved"]


def rotate(values: F64, positions: npt.NDArray[np.int64], theta: float, style: Style) -> F64:
    """RoPE by complex multiplication. values (T, H, D)."""
    half = values.shape[-1] // 2
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    turn = np.exp(1j * angles)[:, None, :]
    if style == "interleaved":
        turned = (values[..., 0::2] + 1j * values[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], axis=-1).reshape(values.shape)
    turned = (values[..., :half] + 1j * values[..., half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def attention(q: F64, k: F64, v: F64) -> F64:
    """Causal attention of all positions. q (T, H, D), k and v (T, KV, D); returns (T, H * D)."""
    tokens, heads, head_dim = q.shape
    out = np.zeros((tokens, heads, head_dim))
    for head in range(heads):
        keys = k[:, head * k.shape[1] // heads]
        values = v[:, head * v.shape[1] // heads]
        for token in range(tokens):
            scores = keys[: token + 1] @ q[token, head] / np.sqrt(head_dim)
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ values[: token + 1] / weights.sum()
    return out.reshape(tokens, -1)


def llama_logits(
    config: LlamaConfig, weights: Mapping[str, npt.NDArray[Any]], token_ids: Sequence[int], style: Style
) -> F64:
    """Logits (T, V) of all positions; weights by Hugging Face name, q and k rows in the order of `style`."""
    w = {name: weight.astype(np.float64) for name, weight in weights.items()}

    def norm(x: F64, name: str) -> F64:
        normed: F64 = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.norm_eps) * w[name]
        return normed

    positions = np.arange(len(token_ids))
    hidden = w["model.embed_tokens.weight"][list(token_ids)]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        x = norm(hidden, f"{prefix}.input_layernorm.weight")
        q, k, v = (
            (x @ w[f"{prefix}.self_attn.{part}_proj.weight"].T).reshape(len(x), -1, config.head_dim)
            for part in "qkv"
        )
        q = rotate(q, positions, config.rope_theta, style)
        k = rotate(k, positions, config.rope_theta, style)
        hidden = hidden + attention(q, k, v) @ w[f"{prefix}.self_attn.o_proj.weight"].T
        x = norm(hidden, f"{prefix}.post_attention_layernorm.weight")
        gate, up = (x @ w[f"{prefix}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ w[f"{prefix}.mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight"] if config.tied_lm_head else w["lm_head.weight"]
    return norm(hidden, "model.norm.weight") @ head.T


def read_meta(folder: Path) -> Meta:
    return msgspec.json.decode((folder / META_FILE).read_bytes(), type=Meta)


def folder_logits(folder: Path, token_ids: Sequence[int]) -> F64:
    """Logits (T, V) of a folder's graphs, by their names and roles, with the attention above between them."""
    meta = read_meta(folder)
    rope = meta.attention["full"].rope
    assert rope is not None
    assert meta.attention["full"].scale == meta.head_dim**-0.5
    positions = np.arange(len(token_ids))
    table = np.load(folder / meta.embedding.file.file, mmap_mode="r")
    state: dict[str, npt.NDArray[np.float32]] = {"hidden": table[list(token_ids)]}
    for segment in meta.segments:
        session = onnxruntime.InferenceSession(folder / segment.builds[0].file)
        values = session.run(None, {tensor.name: state[tensor.role] for tensor in segment.inputs})
        state |= {tensor.role: value for tensor, value in zip(segment.outputs, values, strict=True)}
        if "logits" in state:
            return state["logits"].astype(np.float64)
        q, k, v = (
            state[role].astype(np.float64).reshape(len(token_ids), -1, meta.head_dim) for role in "qkv"
        )
        q, k = (rotate(part, positions, rope.theta, rope.style) for part in (q, k))
        state["attn"] = attention(q, k, v).astype(np.float32)
    raise AssertionError("no segment gave logits")
