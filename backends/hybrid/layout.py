"""Whether a meta2.json fits together, and what of it this engine cannot run yet.

Pure: looks at the description only, at no file. All problems are returned, not the first one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from backends.hybrid.meta import Attention, Meta, Rope, Segment, Tensor
from backends.hybrid.rope import SUPPORTED_SCALING

CONV = "conv"
_SUPPORTED_ROLES = {"hidden", "attn", "q", "k", "v", "logits"}


def attention_layers(meta: Meta) -> list[int]:
    """Return the indices of the layers with attention, in order: one KV cache and one segment border each."""
    return [index for index, layer in enumerate(meta.layers) if layer.type != CONV]


def contradictions(meta: Meta) -> list[str]:
    """Return what cannot be right in the description, whatever runs it."""
    return [*_dimensions(meta), *_layers(meta), *_chain(meta)]


def unsupported(meta: Meta) -> list[str]:
    """Return what the description asks for and this engine does not do yet."""
    found: list[str] = []
    if any(layer.type == CONV for layer in meta.layers):
        found.append("layers of type conv")
    for name, attention in meta.attention.items():
        if attention.gate:
            found.append(f"attention.{name}.gate: {attention.gate}")
        scaling = attention.rope.scaling if attention.rope else None
        if scaling and scaling.type not in SUPPORTED_SCALING:
            found.append(f"attention.{name}.rope.scaling: {scaling.type}")
    for index, segment in enumerate(meta.segments):
        roles = {tensor.role for tensor in (*segment.inputs, *segment.outputs)} - _SUPPORTED_ROLES
        found += [f"segments[{index}]: a tensor of role {role}" for role in sorted(roles)]
    return found


def _dimensions(meta: Meta) -> Iterator[str]:
    names = ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "context_length")
    for name in names:
        if getattr(meta, name) < 1:
            yield f"{name} is {getattr(meta, name)}, but must be at least 1"
    if meta.num_kv_heads > 0 and meta.num_heads % meta.num_kv_heads:
        yield f"num_heads {meta.num_heads} is no multiple of num_kv_heads {meta.num_kv_heads}"
    if not meta.norm_eps > 0:
        yield f"norm_eps is {meta.norm_eps}, but must be above 0"
    for name in ("residual_scale", "logits_scale"):
        if not (math.isfinite(getattr(meta, name)) and getattr(meta, name) > 0):
            yield f"{name} is {getattr(meta, name)}, but must be a number above 0"
    if meta.lengths != sorted(set(meta.lengths)) or not meta.lengths or meta.lengths[0] != 1:
        yield f"lengths is {meta.lengths}, but must rise from 1"
    for token_id in meta.eos_token_ids:
        if not 0 <= token_id < meta.vocab_size:
            yield f"eos_token_ids holds {token_id}, which is outside the vocabulary of {meta.vocab_size}"


def _layers(meta: Meta) -> Iterator[str]:
    if not attention_layers(meta):
        yield "layers names no layer with attention"
    for index, layer in enumerate(meta.layers):
        if layer.type != CONV and layer.type not in meta.attention:
            yield f"layers[{index}].type is {layer.type!r}, which attention does not describe"
    for name, attention in meta.attention.items():
        yield from _attention(f"attention.{name}", attention, meta)


def _attention(path: str, attention: Attention, meta: Meta) -> Iterator[str]:
    if attention.window is not None and attention.window < 1:
        yield f"{path}.window is {attention.window}, but must be at least 1 or null"
    for name, value in (("scale", attention.scale), ("softcap", attention.softcap)):
        if value is not None and not (math.isfinite(value) and value > 0):
            yield f"{path}.{name} is {value}, but must be a number above 0"
    if attention.rope:
        yield from _rope(f"{path}.rope", attention.rope, meta.head_dim)


def _rope(path: str, rope: Rope, head_dim: int) -> Iterator[str]:
    if not 0 < rope.rotary_dim <= head_dim or rope.rotary_dim % 2:
        yield f"{path}.rotary_dim is {rope.rotary_dim}, but must be even and at most head_dim {head_dim}"
    if not rope.theta > 0:
        yield f"{path}.theta is {rope.theta}, but must be above 0"
    needed = {
        "linear": ["factor"],
        "llama3": ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
    }
    if rope.scaling:
        for name in needed.get(rope.scaling.type, []):
            if name not in rope.scaling.parameters:
                yield f"{path}.scaling.parameters.{name} is missing"


def _chain(meta: Meta) -> Iterator[str]:
    """Check that segment k ends attention layer k - 1 and begins layer k, with tensors of the right size."""
    layers = attention_layers(meta)
    if len(meta.segments) != len(layers) + 1:
        yield f"there are {len(meta.segments)} segments, but {len(layers)} attention layers need one more"
        return
    for index, segment in enumerate(meta.segments):
        begins = layers[index] if index < len(layers) else None
        ends = layers[index - 1] if index else None
        yield from _segment(f"segments[{index}]", segment, meta, ends, begins)


def _segment(path: str, segment: Segment, meta: Meta, ends: int | None, begins: int | None) -> Iterator[str]:
    """Check one segment: which layer's attention it takes in, and which layer's q, k and v it gives out."""
    inputs: list[tuple[str, int | None]] = [("hidden", None)]
    outputs: list[tuple[str, int | None]] = []
    if ends is not None:
        inputs.append(("attn", ends))
    if begins is None:
        outputs.append(("logits", None))
    else:
        outputs += [("q", begins), ("k", begins), ("v", begins)]
        if ends is not None:
            outputs.append(("hidden", None))
    yield from _tensors(f"{path}.inputs", segment.inputs, inputs, meta)
    yield from _tensors(f"{path}.outputs", segment.outputs, outputs, meta)
    if not segment.builds:
        yield f"{path}.builds is empty"
    for index, build in enumerate(segment.builds):
        if len({build.data_file is None, build.data_sha256 is None, build.data_size_bytes is None}) > 1:
            yield f"{path}.builds[{index}] has some of data_file, data_sha256, data_size_bytes and not all"


def _tensors(
    path: str, tensors: Sequence[Tensor], needed: Sequence[tuple[str, int | None]], meta: Meta
) -> Iterator[str]:
    there = [(tensor.role, tensor.layer) for tensor in tensors]
    for role, layer in needed:
        if (role, layer) not in there:
            yield f"{path} lacks {role}" + ("" if layer is None else f" of layer {layer}")
    for role, layer in dict.fromkeys(pair for pair in there if there.count(pair) > 1):
        yield f"{path} has {role}" + ("" if layer is None else f" of layer {layer}") + " more than once"
    sizes = {
        "hidden": meta.hidden_size,
        "attn": meta.num_heads * meta.head_dim,
        "q": meta.num_heads * meta.head_dim,
        "k": meta.num_kv_heads * meta.head_dim,
        "v": meta.num_kv_heads * meta.head_dim,
        "logits": meta.vocab_size,
    }
    for tensor in tensors:
        size = sizes.get(tensor.role)
        if size is not None and tensor.shape != ["T", size]:
            yield f"{path}: {tensor.name} has shape {tensor.shape}, but {tensor.role} needs ['T', {size}]"
