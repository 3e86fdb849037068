"""Hybrid folders that have only a model's shape: dimensions, layers, segments, small weights, but no graphs.

For measuring the engine itself. Nothing is computed by an executor here, so nothing sensible is answered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from backends.hybrid.folder import HybridFolder
from backends.hybrid.meta import Embedding, File, Layer, License, Meta, Role, Segment, Tensor
from convert.architectures import ARCHITECTURES
from convert.hf_config import Config
from convert.model import AttentionParts, ConvParts, Cut, Model, cuts

CHUNK = 64

# Dimensions as published with the models; Kanana-2-1.3B's layers as in the published NPU folder: 33 segments.
LFM3_1_7B: dict[str, Any] = {
    "model_type": "lfm3",
    "hidden_size": 2048,
    "intermediate_size": 7680,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 65_536,
    "max_position_embeddings": 128_000,
    "sliding_window": 256,
    "conv_L_cache": 7,
}
KANANA2_1_3B: dict[str, Any] = {
    "model_type": "kanana2",
    "hidden_size": 1792,
    "intermediate_size": 4864,
    "num_hidden_layers": 32,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128_256,
    "max_position_embeddings": 163_840,
    "sliding_window": 1024,
    "layer_types": 8 * [*3 * ["sliding_attention"], "full_attention"],
    "rope_theta": 1e6,
    "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096},
}


def shape_folder(directory: Path, values: dict[str, Any]) -> HybridFolder:
    """Write the folder of a config's shape: an embedding table that takes no disk, and norms of q and k."""
    config = Config(values)
    model = ARCHITECTURES[values["model_type"]](config)
    config.finish()
    table = np.lib.format.open_memmap(
        directory / "embedding.npy", mode="w+", dtype=np.float32, shape=(model.vocab_size, model.hidden_size)
    )
    del table
    np.save(directory / "norm.npy", np.ones(model.head_dim, np.float32))
    meta = Meta(
        version=2,
        architecture=model.architecture,
        name=values["model_type"],
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        norm_eps=model.norm_eps,
        residual_scale=1.0,
        logits_scale=model.logits_scale,
        logits_softcap=model.logits_softcap,
        eos_token_ids=[],
        lengths=[1, CHUNK],
        attention=dict(model.attention),
        layers=[_layer(part.operator) for part in model.layers],
        embedding=Embedding(file=_file("embedding.npy"), dtype="float32"),
        tokenizer=_file("none"),
        chat_template=None,
        license=License(id="none", notice=""),
        source={},
        segments=[_segment(model, cut) for cut in cuts(model.layers)],
    )
    return HybridFolder(directory, meta, "none", ())


def _layer(part: AttentionParts | ConvParts) -> Layer:
    if isinstance(part, ConvParts):
        return Layer(type="conv")
    norm = _file("norm.npy")
    return Layer(
        type=part.type,
        q_norm=norm if part.q_norm is not None else None,
        k_norm=norm if part.k_norm is not None else None,
    )


def _segment(model: Model, cut: Cut) -> Segment:
    size, heads = model.hidden_size, model.num_heads * model.head_dim
    inputs = [_tensor("hidden", size)]
    outputs: list[Tensor] = []
    if cut.ends is not None:
        inputs.append(_tensor("attn", heads, cut.ends))
    for index in cut.convs:
        part = model.layers[index].operator
        assert isinstance(part, ConvParts)
        inputs.append(Tensor(name="state", role="conv_state", shape=[part.taps - 1, size], layer=index))
        outputs.append(_tensor("bx", size, index))
    if cut.begins is None:
        rows: Any = 1 if cut.convs else "T"
        outputs.append(Tensor(name="logits", role="logits", shape=[rows, model.vocab_size]))
        return Segment(inputs=inputs, outputs=outputs, builds=[])
    if cut.ends is not None or cut.convs:
        outputs.insert(0, _tensor("hidden", size))
    attention = model.layers[cut.begins].operator
    assert isinstance(attention, AttentionParts)
    keys = model.num_kv_heads * model.head_dim
    sizes: dict[Role, int] = {"q": heads, "k": keys, "v": keys}
    if attention.gate is not None:
        sizes["gate"] = heads if model.attention[attention.type].gate == "element" else model.num_heads
    outputs += [_tensor(role, width, cut.begins) for role, width in sizes.items()]
    return Segment(inputs=inputs, outputs=outputs, builds=[])


def _tensor(role: Role, size: int, layer: int | None = None) -> Tensor:
    return Tensor(name=role, role=role, shape=["T", size], layer=layer)


def _file(name: str) -> File:
    return File(file=name, sha256="", size_bytes=0)
