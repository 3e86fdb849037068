"""What the metadata of a GGUF file say alike in all architectures, as values of a config.json.

Defaults are those of load_hparams in llama.cpp's src/llama-model.cpp.
"""

from __future__ import annotations

from typing import Any

from convert.errors import ConvertError
from convert.gguf_metadata import Metadata, Scalar
from convert.gguf_rope_factors import llama3_parameters
from convert.graphs import Array
from convert.model import MOST_LAYERS

Values = dict[str, Any]  # of a config.json


class Keys:
    """The keys of one architecture, by what follows its name. See Metadata for what each method does."""

    def __init__(self, metadata: Metadata, architecture: str) -> None:
        self.metadata = metadata
        self.prefix = f"{architecture}."

    def find(self, key: str, kind: type[Scalar]) -> Scalar | None:
        return self.metadata.find(self.prefix + key, kind)

    def number(self, key: str) -> float | None:
        return self.metadata.number(self.prefix + key)

    def positive(self, key: str) -> int:
        return self.metadata.positive(self.prefix + key)

    def only(self, key: str, *allowed: Any) -> None:
        self.metadata.only(self.prefix + key, *allowed)


def sizes_of(keys: Keys) -> Values:
    """Return the sizes that all architectures state alike. Raises ConvertError, as all functions here do."""
    hidden_size, num_heads = keys.positive("embedding_length"), keys.positive("attention.head_count")
    head_dim = keys.find("attention.key_length", int) or hidden_size // num_heads
    for key in ("attention.value_length", "rope.dimension_count"):
        size = keys.find(key, int)
        if size is not None and size != head_dim:
            raise ConvertError(
                f"{keys.prefix}{key} is {size} where the heads have {head_dim} dimensions: values of another "
                "size than keys and rotation of a part of the head are not supported for this architecture."
            )
    num_layers = keys.positive("block_count")
    if num_layers > MOST_LAYERS:
        raise ConvertError(
            f"{keys.prefix}block_count is {num_layers}, and no more than {MOST_LAYERS} layers are possible: "
            "the file is damaged. Fetch it again."
        )
    vocab_size = len(keys.metadata.array("tokenizer.ggml.tokens", str))
    stated = keys.find("vocab_size", int)
    if stated not in (None, vocab_size):
        raise ConvertError(
            f"{keys.prefix}vocab_size is {stated}, but there are {vocab_size} tokens: the file is damaged. "
            "Fetch it again."
        )
    return {
        "hidden_size": hidden_size,
        "intermediate_size": keys.positive("feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "max_position_embeddings": keys.positive("context_length"),
    }


def rope_of(keys: Keys, head_dim: int, factors: Array | None) -> Values:
    """Return the rotation of full layers, as rope_parameters has it.

    A factor without a type is linear, and 0 is none: load_hparams in src/llama-model.cpp.
    """
    theta = theta_of(keys, "rope.freq_base")
    kind = keys.find("rope.scaling.type", str) or "linear"
    factor = keys.number("rope.scaling.factor") or keys.number("rope.scale_linear") or 1.0
    keys.only("rope.scale_linear", 0.0, factor)
    # What YaRN multiplies scores with follows from the factor, in llama.cpp as in transformers, unless one of
    # these says otherwise.
    keys.only("rope.scaling.attn_factor", 1.0)
    keys.only("rope.scaling.yarn_attn_factor")
    keys.only("rope.scaling.yarn_ext_factor", 1.0)
    keys.only("rope.scaling.yarn_log_multiplier", 0.0)
    if kind == "yarn" and factors is None:
        return {
            "rope_theta": theta,
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": keys.positive("rope.scaling.original_context_length"),
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast") or 32.0,
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow") or 1.0,
        }
    keys.only("rope.scaling.type", "none", "linear")
    if factors is not None or kind == "none":
        keys.only("rope.scaling.factor", 0.0, 1.0)
    if factors is not None:
        return {"rope_theta": theta} | llama3_parameters(factors, head_dim, theta)
    if factor == 1:
        return {"rope_theta": theta, "rope_type": "default"}
    return {"rope_theta": theta, "rope_type": "linear", "factor": factor}


def theta_of(keys: Keys, key: str) -> float:
    """Return the base of a rotation, the usual one where the file names none."""
    theta = keys.number(key)
    return 10_000.0 if theta is None else theta


def eps_of(keys: Keys) -> float:
    """Return the epsilon of RMS norms."""
    key = "attention.layer_norm_rms_epsilon"
    value = keys.number(key)
    return keys.metadata.get(keys.prefix + key, float) if value is None else value


def kv_heads_of(keys: Keys, sizes: Values) -> int:
    """Return how many key and value heads each layer has; an array is fine if they are as many in all."""
    heads: int = sizes["num_attention_heads"]
    key = f"{keys.prefix}attention.head_count_kv"
    if keys.metadata.is_array(key):
        counts = keys.metadata.array(key, int)
        if counts and counts == counts[:1] * sizes["num_hidden_layers"] and counts[0] > 0:
            return dividing(keys, heads, counts[0])
    return dividing(keys, heads, keys.find("attention.head_count_kv", int) or heads)


def dividing(keys: Keys, heads: int, kv_heads: int) -> int:
    """Return kv_heads, of which each serves as many of the query heads."""
    if kv_heads < 0 or heads % kv_heads:
        raise ConvertError(
            f"{keys.prefix}attention.head_count {heads} is no multiple of head_count_kv {kv_heads}: the file "
            "is damaged. Fetch it again."
        )
    return kv_heads
