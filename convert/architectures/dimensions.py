"""What the configs of all architectures have in common: dimensions, windows, tied tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backends.hybrid.meta import Attention, Rope
from convert.errors import ConvertError
from convert.hf_config import Config
from convert.hf_rope import LAYER_TYPES
from convert.model import CONV, MOST_LAYERS


@dataclass(frozen=True)
class Dimensions:
    """Sizes, named as in the config; num_layers is num_hidden_layers."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int


def dimensions(config: Config, *, head_dim: int | None = None, num_kv_heads: int | None = None) -> Dimensions:
    """Read the sizes; head_dim and num_kv_heads are the architecture's defaults, where it has them.

    Raises ConvertError.
    """
    hidden_size, num_heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = (
        config.size("num_key_value_heads") if "num_key_value_heads" in config else num_kv_heads or num_heads
    )
    size = config.size("head_dim") if "head_dim" in config else head_dim or hidden_size // num_heads
    if num_heads % kv_heads:
        raise ConvertError(
            f"{config.path}: num_attention_heads {num_heads} is no multiple of num_key_value_heads "
            f"{kv_heads}. Fetch the publisher's file."
        )
    if size % 2:
        raise ConvertError(
            f"{config.path}: heads have {size} dimensions, an odd number, which cannot rotate in pairs."
        )
    num_layers = config.size("num_hidden_layers")
    if num_layers > MOST_LAYERS:
        raise ConvertError(
            f"{config.path}: num_hidden_layers is {num_layers}, and no more than {MOST_LAYERS} can be. "
            "Fetch the publisher's file."
        )
    return Dimensions(
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        head_dim=size,
        vocab_size=config.size("vocab_size"),
        context_length=config.size("max_position_embeddings"),
    )


def lm_head(config: Config, *, tied: bool) -> str | None:
    """Return the name of the output table, None if it is the embedding, as it is by default if tied."""
    found = config.find("tie_word_embeddings", bool)
    return None if (tied if found is None else found) else "lm_head.weight"


def layer_types(config: Config, dims: Dimensions, default: list[str], *, conv: bool = False) -> list[str]:
    """Return the type of each layer under our names. default: the config's names where it lists none."""
    names = config.strings("layer_types") or default
    known = dict(LAYER_TYPES) | ({CONV: CONV} if conv else {})
    if len(names) != dims.num_layers:
        raise ConvertError(
            f"{config.path}: layer_types names {len(names)} layers where num_hidden_layers is "
            f"{dims.num_layers}."
        )
    if unknown := sorted(set(names) - known.keys()):
        raise ConvertError(
            f"{config.path}: layer_types has {', '.join(map(repr, unknown))}, which this architecture is not "
            f"known to have ({', '.join(known)}). Use another model, or a .rkllm file of this one."
        )
    return [known[name] for name in names]


def attentions(
    types: list[str],
    found: Mapping[str, Rope],
    scale: float,
    window: int | None,
    config: Config,
    *,
    gated: bool = False,
) -> dict[str, Attention]:
    """Return the attention of each type that the layers have. Raises ConvertError without a window."""
    kinds = [kind for kind in ("full", "sliding") if kind in types]
    if "sliding" in kinds and not window:
        raise ConvertError(
            f"{config.path} has sliding layers, but no sliding_window. Fetch the publisher's file."
        )
    return {
        kind: Attention(
            window=window if kind == "sliding" else None,
            scale=scale,
            rope=found[kind],
            gate="head" if gated else None,
        )
        for kind in kinds
    }
