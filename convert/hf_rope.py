"""The rotary embedding that a config.json describes, for each type of attention layer.

Two forms are in use: one object for each type of layer under rope_parameters, or one for all, under
rope_parameters, or under rope_scaling with rope_theta beside it. Source of the parameters and their defaults:
transformers, modeling_rope_utils.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from backends.hybrid.meta import Rope, RopeScaling
from convert.errors import ConvertError
from convert.hf_config import Config

LAYER_TYPES: Mapping[str, str] = {"full_attention": "full", "sliding_attention": "sliding"}
_NESTED = "rope_parameters"
_LEGACY = "rope_scaling"


def ropes(
    config: Config,
    head_dim: int,
    max_positions: int,
    thetas: Mapping[str, float],
    *,
    scaled: Sequence[str] = ("full", "sliding"),
    local_theta: str | None = None,
) -> dict[str, Rope]:
    """Return the embedding of each type of layer in `thetas`, which gives the default theta of each.

    scaled: the types that a scaling given once for all belongs to. local_theta: the key with theta of sliding
    layers (Gemma). Raises ConvertError for any type or parameter that is not understood.
    """
    nested = config.part(_NESTED)
    legacy = config.part(_LEGACY)
    config.only("partial_rotary_factor", 1.0, 1)

    def theta_of(kind: str, default: float) -> float:
        return config.positive(local_theta if local_theta and kind == "sliding" else "rope_theta", default)

    if nested is not None and any(key in LAYER_TYPES for key in nested.keys):
        found = {}
        for key, kind in LAYER_TYPES.items():
            part = nested.part(key)
            if kind in thetas:
                found[kind] = _rope(part, head_dim, max_positions, theta_of(kind, thetas[kind]))
        nested.finish(frozenset())
        if legacy is not None:
            raise ConvertError(
                f"{config.path} has both {_NESTED} and {_LEGACY}: it is not clear which counts."
            )
        return found
    if nested is not None and legacy is not None:
        raise ConvertError(f"{config.path} has both {_NESTED} and {_LEGACY}: it is not clear which counts.")
    found = {}
    for kind, default in thetas.items():
        part = (nested or legacy) if kind in scaled else None
        if part is None and nested is not None:  # a theta that stands with the scaling is everybody's
            default = nested.positive("rope_theta", default)
        found[kind] = _rope(part, head_dim, max_positions, theta_of(kind, default))
    return found


def _rope(part: Config | None, head_dim: int, max_positions: int, theta: float) -> Rope:
    """Return the embedding that one object describes. theta: where the object has none."""
    scaling: RopeScaling | None = None
    if part is not None:
        theta = part.positive("rope_theta", theta)
        kind = part.find("rope_type", str) or part.find("type", str) or "default"
        part.ignore("type")
        if kind != "proportional":
            part.only("partial_rotary_factor", 1.0, 1)
        scaling = _scaling(part, kind, max_positions)
        part.finish(frozenset())
    return Rope(theta=theta, rotary_dim=head_dim, style="half", scaling=scaling)


def _scaling(part: Config, kind: str, max_positions: int) -> RopeScaling | None:
    if kind in ("default", "dynamic"):
        # "dynamic" changes nothing up to max_position_embeddings, which is the context that is offered.
        if kind == "dynamic":
            part.get("factor", float)
        return None
    if kind in ("linear", "ntk"):
        return _of(kind, {"factor": part.get("factor", float)})
    if kind == "proportional":
        share, factor = part.find("partial_rotary_factor", float), part.find("factor", float)
        return _of(kind, {"partial_rotary_factor": _or(share, 1.0), "factor": _or(factor, 1.0)})
    if kind == "llama3":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        return _of(kind, {name: part.get(name, float) for name in names} | _original(part, max_positions))
    if kind == "yarn":
        return _of(kind, _yarn(part, max_positions))
    raise ConvertError(
        f"{part.path}: the rope type {kind!r} is not supported, and ignoring it would give wrong answers. "
        "Use another model, or a .rkllm file of this one."
    )


def _of(kind: str, parameters: dict[str, float]) -> RopeScaling:
    # Whoever calls has compared the kind with a name that RopeScaling has.
    return RopeScaling(type=kind, parameters=parameters)  # type: ignore[arg-type]  # a str to mypy


def _original(part: Config, max_positions: int) -> dict[str, float]:
    original = part.find("original_max_position_embeddings", float)
    return {"original_max_position_embeddings": _or(original, float(max_positions))}


def _yarn(part: Config, max_positions: int) -> dict[str, float]:
    """Return YaRN's parameters with the attention factor worked out, as transformers does it."""
    original = _original(part, max_positions)
    (length,) = original.values()
    factor = _or(part.find("factor", float), max_positions / length)
    attention = part.find("attention_factor", float)
    mscale, mscale_all = part.find("mscale", float), part.find("mscale_all_dim", float)
    if attention is None:
        if mscale and mscale_all:
            attention = _magnitude(factor, mscale) / _magnitude(factor, mscale_all)
        else:
            attention = _magnitude(factor, 1.0)
    truncate = part.find("truncate", bool)
    return original | {
        "factor": factor,
        "attention_factor": attention,
        "beta_fast": part.find("beta_fast", float) or 32.0,
        "beta_slow": part.find("beta_slow", float) or 1.0,
        "truncate": float(truncate is not False),
    }


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
