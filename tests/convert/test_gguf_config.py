"""What the metadata of each architecture mean, and what of them is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convert.architectures import ARCHITECTURES
from convert.errors import ConvertError
from convert.gguf_config import hf_config
from convert.gguf_metadata import Metadata, eos_token_ids
from convert.gguf_rope_factors import llama3_parameters
from convert.graphs import Array
from convert.hf_config import Config
from convert.model import Model

TOKENS = ["<|endoftext|>", "<end_of_turn>", *"abcdef"]
SIZES = {
    "embedding_length": 64,
    "feed_forward_length": 96,
    "block_count": 8,
    "context_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "rope.freq_base": 1_000_000.0,
}
OWN: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {},
    "granite": {
        "logit_scale": 8.0,
        "attention.scale": 0.015625,
        "embedding_scale": 12.0,
        "residual_scale": 0.2199999988079071,  # 0.22 in float32
    },
    "gemma3": {"attention.sliding_window": 32},
    "lfm2": {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 0, 2, 0, 2, 0, 0, 2]},
}


def metadata(architecture: str, **changes: Any) -> Metadata:
    """Keys of the architecture, with `__` for a point; None leaves one out."""
    own = SIZES | OWN[architecture] | {key.replace("__", "."): value for key, value in changes.items()}
    values = {f"{architecture}.{key}": value for key, value in own.items() if value is not None}
    tokenizer = {"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.token_type": [3, 3, *[1] * 6]}
    return Metadata({"general.architecture": architecture} | tokenizer | values)


def model(architecture: str, *, factors: Array | None = None, **changes: Any) -> Model:
    found = metadata(architecture, **changes)
    values = hf_config(found, tied=True, rope_factors=factors)
    config = Config(values, "the metadata")
    made = ARCHITECTURES[values["model_type"]](config)
    config.finish()
    found.ignore("tokenizer.ggml.token_type")
    found.finish()
    return made


def rope(made: Model, kind: str = "full") -> Any:
    return made.attention[kind].rope


@pytest.mark.parametrize("architecture", OWN)
def test_sizes(architecture: str) -> None:
    made = model(architecture)
    assert (made.hidden_size, made.intermediate_size, made.vocab_size) == (64, 96, 8)
    assert (made.num_heads, made.num_kv_heads, made.head_dim) == (4, 2, 16)
    assert (made.context_length, made.norm_eps, len(made.layers)) == (512, 1e-6, 8)
    assert (rope(made).theta, rope(made).scaling) == (1_000_000.0, None)
    assert made.lm_head is None


def test_granite_s_multipliers() -> None:
    made = model("granite")
    assert (made.embedding_scale, made.residual_multiplier, made.logits_scale) == (12.0, 0.22, 1 / 8)
    assert made.attention["full"].scale == 0.015625
    without = model("granite", attention__scale=0.0, embedding_scale=None, residual_scale=0.0)
    assert (without.embedding_scale, without.residual_multiplier) == (1.0, 1.0)
    assert without.attention["full"].scale == 0.25


def test_granite_4_s_models_without_mamba_layers() -> None:
    """They have the keys of those with, as their converter is the same."""
    mamba: dict[str, Any] = {
        f"ssm__{key}": 4 for key in ("conv_kernel", "group_count", "inner_size", "state_size")
    }
    made = model(
        "granite",
        attention__head_count_kv=[2] * 8,
        expert_shared_feed_forward_length=96,
        expert_count=0,
        rope__scaling__finetuned=True,
        ssm__time_step_rank=4,
        **mamba,
    )
    assert (made.num_kv_heads, made.intermediate_size) == (2, 96)


def kinds(made: Model) -> list[str]:
    return [getattr(layer.operator, "type", "conv") for layer in made.layers]


def test_gemma_s_windows() -> None:
    made = model("gemma3", final_logit_softcapping=30.0)
    assert kinds(made) == ["sliding"] * 5 + ["full"] + ["sliding"] * 2
    assert (made.attention["sliding"].window, made.attention["full"].window) == (32, None)
    assert (rope(made, "sliding").theta, made.logits_softcap, made.embedding_scale) == (10_000.0, 30.0, 8.0)
    other = model("gemma3", attention__sliding_window_pattern=2, rope__freq_base_swa=5000.0)
    assert kinds(other) == ["sliding", "full"] * 4
    assert rope(other, "sliding").theta == 5000.0
    assert kinds(model("gemma3", attention__sliding_window=None)) == ["full"] * 8


def test_gemma_s_scaling_is_of_full_layers_only() -> None:
    made = model("gemma3", rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert rope(made).scaling.parameters == {"factor": 8.0}
    assert rope(made, "sliding").scaling is None


def test_scores_of_the_27b_have_a_scale_of_their_own() -> None:
    """query_pre_attn_scalar of its config is 168; of all others it is the size of a head."""
    sizes: dict[str, Any] = {
        "embedding_length": 5376,
        "attention__head_count": 32,
        "attention__head_count_kv": 16,
    }
    made = model("gemma3", block_count=62, attention__key_length=128, **sizes)
    assert made.attention["full"].scale == 168**-0.5
    assert model("gemma3").attention["full"].scale == 0.25


def test_layers_without_key_heads_are_convolutions() -> None:
    made = model("lfm2")
    assert kinds(made) == ["conv", "conv", "full", "conv", "full", "conv", "conv", "full"]
    assert {layer.operator.taps for layer in made.layers if hasattr(layer.operator, "taps")} == {3}
    assert kinds(model("lfm2", attention__head_count_kv=4)) == ["full"] * 8


def test_rotations() -> None:
    assert rope(model("qwen3", rope__freq_base=None)).theta == 10_000.0
    for key in ("rope__scaling__factor", "rope__scale_linear"):
        changes: dict[str, Any] = {key: 4.0}
        scaling = rope(model("llama", **changes)).scaling
        assert (scaling.type, scaling.parameters) == ("linear", {"factor": 4.0})
    assert rope(model("llama", rope__scaling__type="none")).scaling is None
    yarn: dict[str, Any] = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 128,
        "rope__scaling__yarn_beta_slow": 2.0,
    }
    scaling = rope(model("qwen3", **yarn)).scaling
    assert scaling.parameters == pytest.approx(
        {
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 0.1 * np.log(4) + 1,
            "beta_fast": 32.0,
            "beta_slow": 2.0,
            "truncate": 1.0,
        }
    )


def factors(head_dim: int, theta: float, factor: float, original: int) -> Array:
    """Worked out one by one in float32, as the converter does, from how often a wave fits the context."""
    found = []
    for index in range(head_dim // 2):
        frequency = np.float32(1) / np.float32(theta) ** (np.float32(2 * index) / np.float32(head_dim))
        turns = np.float32(original) * frequency / np.float32(2 * np.pi)
        if turns >= 4:
            found.append(np.float32(1))
        elif turns <= 1:
            found.append(np.float32(factor))
        else:
            share = (turns - np.float32(1)) / np.float32(3)
            found.append(np.float32(1) / (share + (np.float32(1) - share) / np.float32(factor)))
    return np.array(found, np.float32)


@pytest.mark.parametrize(
    ("head_dim", "theta", "factor", "original"),
    [
        (64, 500_000.0, 32.0, 8192),
        (128, 500_000.0, 8.0, 8192),
        (96, 10_000.0, 2.5, 3000),
        (8, 500_000.0, 8.0, 8192),
    ],
)
def test_factors_are_those_of_a_llama3(head_dim: int, theta: float, factor: float, original: int) -> None:
    given = factors(head_dim, theta, factor, original)
    found = llama3_parameters(given, head_dim, theta)
    assert (found["rope_type"], found["factor"]) == ("llama3", factor)
    assert (found["low_freq_factor"], found["high_freq_factor"]) == (1.0, 4.0)
    if head_dim > 8:  # else no factor lies between, and any length between two waves gives the same
        assert found["original_max_position_embeddings"] == original
    made = model("llama", factors=factors(16, 1_000_000.0, factor, original))
    assert rope(made).scaling.type == "llama3"


def test_factors_of_another_kind_are_refused() -> None:
    usual = factors(64, 500_000.0, 32.0, 8192)
    assert llama3_parameters(np.ones(32, np.float32), 64, 5e5) == {"rope_type": "default"}
    for wrong in (usual * 2, usual[::-1], usual[:-1], usual * np.float32("nan"), np.sqrt(usual)):
        with pytest.raises(ConvertError, match=r"rope_freqs\.weight"):
            llama3_parameters(wrong, 64, 500_000.0)
    with pytest.raises(ConvertError, match=r"rope\.scaling\.type"):
        model("llama", factors=factors(16, 1e6, 8.0, 8192), rope__scaling__type="yarn")


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("qwen3", "attention.sliding_window", 12),
        ("qwen3", "pooling_type", 3),
        ("qwen3", "attention.causal", False),
        ("qwen3", "rope.dimension_count", 8),
        ("qwen3", "rope.scaling.type", "longrope"),
        ("qwen3", "rope.scaling.yarn_ext_factor", 0.5),
        ("qwen3", "embedding_scale", 2.0),
        ("qwen3", "expert_count", 128),
        ("granite", "logit_scale", None),
        ("granite", "rope.scaling.finetuned", False),
        ("granite", "expert_count", 4),
        ("granite", "attention.sliding_window", 4),
        ("granite", "deepstack_mapping", [0, 1]),
        ("granite", "attention.head_count_kv", [2] * 7 + [1]),
        ("granite", "expert_shared_feed_forward_length", 64),
        ("granite", "ssm.dt_b_c_rms", True),
        ("llama", "attention.head_count_kv", []),
        ("llama", "ssm.conv_kernel", 4),
        ("gemma3", "attention.sliding_window_pattern", 0),
        ("gemma3", "attention.scale", 0.1),
        ("gemma3", "attn_logit_softcapping", 50.0),
        ("gemma3", "attention.causal", False),
        ("gemma3", "embedding_length_per_layer_input", 4),
        ("lfm2", "shortconv.l_cache", None),
        ("lfm2", "shortconv.l_cache", 0),
        ("lfm2", "attention.head_count_kv", [0, 0, 2, 0, 1, 0, 0, 2]),
        ("lfm2", "attention.head_count_kv", [0, 2]),
        ("lfm2", "attention.head_count_kv", [0] * 8),
        ("lfm2", "attention.head_count_kv", [0, 0, 3, 0, 3, 0, 0, 3]),
        ("lfm2", "attention.sliding_window", 8),
        ("lfm2", "leading_dense_block_count", 2),
        ("lfm2", "feed_forward_length", [96] * 8),
    ],
)
def test_what_is_not_understood_is_refused_by_name(architecture: str, key: str, value: Any) -> None:
    with pytest.raises(ConvertError) as caught:
        model(architecture, **{key.replace(".", "__"): value})
    assert key.rsplit(".", 1)[-1] in caught.value.message


ODD: list[Any] = [
    0,
    -1,
    3,
    2**31,
    2**63,
    1e30,
    -0.5,
    float("nan"),
    float("inf"),
    True,
    "x",
    "",
    [],
    [1],
    [0.5],
]


@pytest.mark.parametrize("architecture", OWN)
def test_any_value_gives_a_model_or_an_error_that_says_what_to_do(architecture: str) -> None:
    more = {
        **dict.fromkeys(("rope.scaling.factor", "rope.scale_linear", "rope.freq_base_swa"), 1.0),
        **dict.fromkeys(("rope.scaling.type", "attention.sliding_window_pattern", "vocab_size"), None),
        **dict.fromkeys(("rope.scaling.yarn_beta_fast", "final_logit_softcapping"), None),
    }
    for key in SIZES | OWN[architecture] | more:
        for value in ODD:
            try:
                model(architecture, **{key.replace(".", "__"): value})
            except ConvertError as error:
                assert error.message.endswith(".")


def test_a_turn_of_gemma_s_ends_though_the_file_does_not_say_so() -> None:
    values: dict[str, Any] = {
        "general.architecture": "gemma3",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, *[1] * 6],
        "tokenizer.ggml.eos_token_id": 0,
    }
    assert eos_token_ids(Metadata(values)) == [0, 1]
    assert eos_token_ids(Metadata(values | {"tokenizer.ggml.eot_token_id": 2})) == [0, 2]
    assert eos_token_ids(Metadata(values | {"tokenizer.ggml.token_type": [3, *[1] * 7]})) == [0]
