"""Whether a meta2.json fits together, and what of it this engine cannot run yet.

Pure: looks at the description only, at no file. All problems are returned, not the first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backends.hybrid.meta import Meta, Segment
from backends.hybrid.ranges import out_of_range
from backends.hybrid.rope import SUPPORTED_SCALING
from backends.hybrid.tensors import KNOWN_ROLES, departures_from, needed_tensors

CONV = "conv"


def attention_layers(meta: Meta) -> list[int]:
    """Return the indices of the layers with attention, in order: one KV cache and one segment border each."""
    return [index for index, layer in enumerate(meta.layers) if layer.type != CONV]


def conv_reaches(meta: Meta) -> dict[int, int]:
    """Return for each conv layer how many inputs before a token's own it needs."""
    states = (tensor for segment in meta.segments for tensor in segment.inputs if tensor.role == "conv_state")
    return {state.layer: int(state.shape[0]) for state in states if state.layer is not None}


def contradictions(meta: Meta) -> list[str]:
    """Return what cannot be right in the description, whatever runs it."""
    return [*out_of_range(meta), *_layers(meta), *_chain(meta)]


def unsupported(meta: Meta) -> list[str]:
    """Return what the description asks for and this engine does not do yet."""
    found: list[str] = []
    for name, attention in meta.attention.items():
        scaling = attention.rope.scaling if attention.rope else None
        if scaling and scaling.type not in SUPPORTED_SCALING:
            found.append(f"attention.{name}.rope.scaling: {scaling.type}")
    for index, segment in enumerate(meta.segments):
        roles = {tensor.role for tensor in (*segment.inputs, *segment.outputs)} - KNOWN_ROLES
        found += [f"segments[{index}]: a tensor of role {role}" for role in sorted(roles)]
    return found


def _layers(meta: Meta) -> Iterator[str]:
    if meta.num_kv_heads > 0 and meta.num_heads % meta.num_kv_heads:
        yield f"num_heads {meta.num_heads} is no multiple of num_kv_heads {meta.num_kv_heads}"
    if not attention_layers(meta):
        yield "layers names no layer with attention"
    for index, layer in enumerate(meta.layers):
        if layer.type != CONV and layer.type not in meta.attention:
            yield f"layers[{index}].type is {layer.type!r}, which attention does not describe"


def _chain(meta: Meta) -> Iterator[str]:
    """Check that segment k ends attention layer k - 1 and begins layer k, with tensors of the right size."""
    layers = attention_layers(meta)
    if len(meta.segments) != len(layers) + 1:
        yield f"there are {len(meta.segments)} segments, but {len(layers)} attention layers need one more"
        return
    for index, segment in enumerate(meta.segments):
        begins = layers[index] if index < len(layers) else None
        ends = layers[index - 1] if index else None
        convs = range(0 if ends is None else ends + 1, len(meta.layers) if begins is None else begins)
        yield from _segment(f"segments[{index}]", segment, meta, ends, begins, convs)


def _segment(
    path: str, segment: Segment, meta: Meta, ends: int | None, begins: int | None, convs: Sequence[int]
) -> Iterator[str]:
    """Check one segment: which layer's attention it takes in, the conv layers after that, what it begins."""
    inputs, outputs = needed_tensors(meta, ends, convs, begins)
    yield from departures_from(inputs, segment.inputs, f"{path}.inputs")
    yield from departures_from(outputs, segment.outputs, f"{path}.outputs")
    names = [tensor.name for tensor in (*segment.inputs, *segment.outputs)]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield f"{path} has two tensors of the name {name!r}"
    if not segment.builds:
        yield f"{path}.builds is empty"
    kinds = [(build.executor, build.variant) for build in segment.builds]
    for executor, variant in dict.fromkeys(kind for kind in kinds if kinds.count(kind) > 1):
        yield f"{path}.builds has more than one for {executor} of variant {variant!r}"
    for index, build in enumerate(segment.builds):
        if len({build.data_file is None, build.data_sha256 is None, build.data_size_bytes is None}) > 1:
            yield f"{path}.builds[{index}] has some of data_file, data_sha256, data_size_bytes and not all"
