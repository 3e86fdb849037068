"""The metadata of a GGUF file as the config.json of the checkpoint it was made from, for each architecture.

So that one function (convert/architectures) says what a model of an architecture is, whatever it came in.
Keys and defaults are those of llama.cpp: conversion/ writes them, src/llama-model.cpp and src/models/ read
them. A key that is not asked for here is refused by Metadata.finish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from convert.errors import ConvertError
from convert.gguf_keys import Keys, Values, dividing, eps_of, kv_heads_of, rope_of, sizes_of, theta_of
from convert.gguf_metadata import ARCHITECTURE, Metadata
from convert.graphs import Array

_LAYERS_OF_27B = 62  # of Gemma 3's sizes, by which llama.cpp tells the one with another scale of scores


def hf_config(metadata: Metadata, *, tied: bool, rope_factors: Array | None) -> Values:
    """Return the config with the model_type that convert/architectures knows.

    tied: the file has no output table of its own. rope_factors: what the tensor rope_freqs.weight holds, by
    which the frequencies are divided. Raises ConvertError for what is missing, impossible or not supported.
    """
    architecture = metadata.get(ARCHITECTURE, str)
    reader = READERS.get(architecture)
    if reader is None:
        raise ConvertError(
            f"The model's architecture is {architecture!r}; supported are: {', '.join(READERS)}."
            " Use a model of one of those, or a .rkllm file of this one."
        )
    keys = Keys(metadata, architecture)
    sizes = sizes_of(keys)
    rope = rope_of(keys, sizes["head_dim"], rope_factors)
    config = sizes | {"tie_word_embeddings": tied, "rope_parameters": rope} | reader(keys, sizes, rope)
    for key, value in _NEUTRAL.items():
        if key not in _READ_BY.get(architecture, ()):
            keys.only(key, value)
    return config


def _llama(keys: Keys, sizes: Values, rope: Values) -> Values:
    return {
        "model_type": "llama",
        "rms_norm_eps": eps_of(keys),
        "num_key_value_heads": kv_heads_of(keys, sizes),
    }


def _qwen3(keys: Keys, sizes: Values, rope: Values) -> Values:
    return _llama(keys, sizes, rope) | {"model_type": "qwen3"}


def _granite(keys: Keys, sizes: Values, rope: Values) -> Values:
    """Multipliers as in src/models/granite.cpp, where 0 stands for a factor that is not applied.

    Granite 4's models without Mamba layers come from the converter of those with (GraniteHybridModel in
    conversion/granite.py), which also writes the sizes of layers and experts that they do not have. Their
    feed-forward part is the shared expert.
    """
    for key in ("conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank"):
        keys.metadata.ignore(f"{keys.prefix}ssm.{key}")
    keys.only("expert_shared_feed_forward_length", 0, sizes["intermediate_size"])
    logits_scaling = keys.number("logit_scale")
    if not logits_scaling:
        raise ConvertError(
            f"The metadata key {keys.prefix}logit_scale is {logits_scaling}, but logits are divided by it. "
            "Fetch a file made by a current llama.cpp converter."
        )
    return _llama(keys, sizes, rope) | {
        "model_type": "granite",
        "attention_multiplier": keys.number("attention.scale") or sizes["head_dim"] ** -0.5,
        "embedding_multiplier": keys.number("embedding_scale") or 1.0,
        "residual_multiplier": keys.number("residual_scale") or 1.0,
        "logits_scaling": logits_scaling,
    }


def _gemma3(keys: Keys, sizes: Values, rope: Values) -> Values:
    """Windows, their period and their theta as in src/models/gemma3.cpp, which scales full layers only.

    Neither the scale of scores nor that of the embedding is in the file: the first is made of the size of a
    head, in the 27B of hidden size over heads, which is what its config says (168); the second is the root of
    the hidden size.
    """
    layers, heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    window = keys.find("attention.sliding_window", int) or 0
    period = keys.find("attention.sliding_window_pattern", int)
    if window < 0 or (period is not None and period < 1):
        raise ConvertError(
            f"{keys.prefix}attention.sliding_window is {window} and sliding_window_pattern {period}: no "
            "layers can be made of that. Use another model, or a .rkllm file of this one."
        )
    period = (period or 6) if window else 1
    local = theta_of(keys, "rope.freq_base_swa")
    return {
        "model_type": "gemma3_text",
        "rms_norm_eps": eps_of(keys),
        "num_key_value_heads": kv_heads_of(keys, sizes),
        "query_pre_attn_scalar": sizes["hidden_size"] // heads
        if layers == _LAYERS_OF_27B
        else sizes["head_dim"],
        "layer_types": [
            "sliding_attention" if (index + 1) % period else "full_attention" for index in range(layers)
        ],
        "sliding_window": window or None,
        "rope_parameters": {
            "full_attention": rope,
            "sliding_attention": {"rope_theta": local, "rope_type": "default"},
        },
        "final_logit_softcapping": keys.number("final_logit_softcapping") or None,
    }


def _lfm2(keys: Keys, sizes: Values, rope: Values) -> Values:
    """A layer without key and value heads is a convolution: conversion/lfm2.py, src/models/lfm2.cpp."""
    layers, heads = sizes["num_hidden_layers"], sizes["num_attention_heads"]
    key = f"{keys.prefix}attention.head_count_kv"
    counts = (
        keys.metadata.array(key, int) if keys.metadata.is_array(key) else [kv_heads_of(keys, sizes)] * layers
    )
    kinds = {count for count in counts if count}
    if len(counts) != layers or len(kinds) != 1:
        raise ConvertError(
            f"The metadata key {key} is {counts} for {layers} layers: each must have none, or as many as all "
            "others. Use another model, or a .rkllm file of this one."
        )
    return {
        "model_type": "lfm2",
        "norm_eps": eps_of(keys),
        "num_key_value_heads": dividing(keys, heads, kinds.pop()),
        "layer_types": ["full_attention" if count else "conv" for count in counts],
        "conv_L_cache": keys.positive("shortconv.l_cache"),
        "block_auto_adjust_ff_dim": False,  # the file has the size as it is adjusted
    }


READERS: Mapping[str, Callable[[Keys, Values, Values], Values]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "lfm2": _lfm2,
    "gemma3": _gemma3,
    "granite": _granite,
}
# Would change the computation, except with the value that changes nothing; _READ_BY: where another is read.
_NEUTRAL: Values = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "attention.sliding_window": 0,
    "attn_logit_softcapping": 0.0,
    "embedding_scale": 1.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "pooling_type": 0,
    "residual_scale": 1.0,
    "rope.scaling.finetuned": True,  # a Granite with False does not rotate; elsewhere it tells nothing
    "use_parallel_residual": False,
}
_READ_BY: Mapping[str, tuple[str, ...]] = {
    "gemma3": ("attention.sliding_window", "final_logit_softcapping"),
    "granite": ("attention.scale", "embedding_scale", "logit_scale", "residual_scale"),
}
