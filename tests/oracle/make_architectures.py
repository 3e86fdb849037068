"""Makes the values of all architectures: `python -m tests.oracle.make_architectures`, in its environment.

transformers computes them in float32, each answer token from the whole sequence anew, without a cache. A seed
is searched with which no greedy token hangs on a small margin.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Lfm3Config,
    Lfm3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from tests.oracle import values
from tests.oracle.architectures import ANSWER_TOKENS, FILE, STEPS, random_weights

LEAST_MARGIN = 0.005
LEAST_DIFFERENT = 8  # tokens in an answer of ANSWER_TOKENS
SEEDS = 400


@dataclass(frozen=True)
class Case:
    """A model to make. json: changes of the saved config. prepare: changes of the model."""

    make: Callable[[Any], Any]
    config: Any
    dtype: str = "F32"
    norm_mean: float = 1.0
    gains: dict[str, float] = field(default_factory=dict)
    json: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Any], None] = lambda model: None


COMMON: dict[str, Any] = {
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
MATRICES = {r"(proj|w[123])\.weight": 2.0}
HEAD = {r"lm_head": 3.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 16.0,
}
PLAIN = {"rope_type": "default", "rope_theta": 5_000.0}


def llama(**changes: Any) -> LlamaConfig:
    """Odd sizes, three query heads to a key head."""
    sizes = {
        "vocab_size": 131,
        "hidden_size": 54,
        "intermediate_size": 77,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 10,
    }
    return LlamaConfig(**(COMMON | sizes | changes))


def qwen3(**changes: Any) -> Qwen3Config:
    """Heads whose sizes do not make up the hidden size."""
    sizes = {
        "vocab_size": 137,
        "hidden_size": 45,
        "intermediate_size": 70,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 14,
    }
    return Qwen3Config(**(COMMON | sizes | changes))


def gemma3(**changes: Any) -> Gemma3TextConfig:
    """Seven layers: the sixth is full."""
    sizes = {
        "vocab_size": 127,
        "hidden_size": 52,
        "intermediate_size": 75,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "query_pre_attn_scalar": 17,
        "sliding_window": 13,
    }
    return Gemma3TextConfig(**(COMMON | {"pad_token_id": 0} | sizes | changes))


def lfm3(**changes: Any) -> Lfm3Config:
    """The layers of LFM3: conv first and last, full and sliding ones between."""
    sizes = {
        "vocab_size": 139,
        "hidden_size": 50,
        "intermediate_size": 66,
        "num_hidden_layers": 10,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "sliding_window": 16,
    }
    return Lfm3Config(**(COMMON | sizes | changes))


def lfm2(**changes: Any) -> Lfm2Config:
    """Attention first; two conv layers last."""
    sizes = {
        "vocab_size": 133,
        "hidden_size": 48,
        "intermediate_size": 100,
        "block_multiple_of": 7,
        "block_ffn_dim_multiplier": 1.1,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "full_attn_idxs": [0, 3],
    }
    return Lfm2Config(**(COMMON | sizes | changes))


def granite(**changes: Any) -> GraniteConfig:
    """All four multipliers."""
    sizes = {
        "vocab_size": 131,
        "hidden_size": 56,
        "intermediate_size": 77,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "embedding_multiplier": 7.0,
        "logits_scaling": 0.13,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.11,
    }
    return GraniteConfig(**(COMMON | sizes | changes))


KANANA_TYPES = 2 * ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]


def rotate_by_type(model: Any) -> None:
    """Give each layer of a Qwen3 model the rotary embedding of its type."""
    tables = {}
    for kind, parameters in (("sliding_attention", PLAIN), ("full_attention", YARN)):
        config = copy.deepcopy(model.config)
        config.rope_parameters = dict(parameters)
        tables[kind] = Qwen3RotaryEmbedding(config)

    def hook(kind: str) -> Callable[..., Any]:
        def give(module: Any, arguments: Any, named: dict[str, Any]) -> Any:
            hidden = arguments[0] if arguments else named["hidden_states"]
            positions = torch.arange(hidden.shape[1])[None]
            return arguments, named | {"position_embeddings": tables[kind](hidden, positions)}

        return give

    for layer, kind in zip(model.model.layers, model.config.layer_types, strict=True):
        layer.register_forward_pre_hook(hook(kind), with_kwargs=True)


CASES: dict[str, Case] = {
    "llama": Case(
        LlamaForCausalLM,
        llama(
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 500_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 100,
            }
        ),
        gains=MATRICES | HEAD,
    ),
    "llama_tied": Case(
        LlamaForCausalLM,
        llama(
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
        ),
        dtype="F16",
        gains=MATRICES,
    ),
    "llama_dynamic": Case(
        LlamaForCausalLM,
        llama(
            num_key_value_heads=6, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
        ),
        gains=MATRICES | HEAD,
    ),
    "llama_yarn": Case(
        LlamaForCausalLM,
        llama(rope_parameters=YARN | {"mscale": 0.8, "mscale_all_dim": 0.4, "truncate": False}),
        gains=MATRICES | HEAD,
    ),
    "qwen3": Case(
        Qwen3ForCausalLM,
        qwen3(tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
        dtype="BF16",
        gains=MATRICES,
    ),
    "qwen3_sliding": Case(
        Qwen3ForCausalLM,
        qwen3(use_sliding_window=True, sliding_window=12, max_window_layers=1, rope_parameters=dict(YARN)),
        gains=MATRICES | HEAD,
    ),
    "qwen3_yarn": Case(
        Qwen3ForCausalLM,
        qwen3(num_key_value_heads=2, rope_parameters=dict(YARN)),
        gains=MATRICES | HEAD,
    ),
    "kanana2": Case(
        Qwen3ForCausalLM,
        qwen3(
            num_hidden_layers=8,
            num_key_value_heads=2,
            use_sliding_window=True,
            sliding_window=16,
            layer_types=KANANA_TYPES,
            rope_parameters=dict(PLAIN),
        ),
        gains=MATRICES | HEAD,
        json={
            "model_type": "kanana2",
            "rope_parameters": {"sliding_attention": PLAIN, "full_attention": YARN},
        },
        prepare=rotate_by_type,
    ),
    "lfm2": Case(Lfm2ForCausalLM, lfm2(), dtype="BF16", gains=MATRICES),
    "lfm2_untied": Case(
        Lfm2ForCausalLM,
        lfm2(
            tie_word_embeddings=False,
            block_auto_adjust_ff_dim=False,
            conv_L_cache=4,
            full_attn_idxs=[2, 5],
        ),
        gains=MATRICES | HEAD,
    ),
    "lfm3": Case(Lfm3ForCausalLM, lfm3(), dtype="BF16", gains=MATRICES),
    "lfm3_plain": Case(
        Lfm3ForCausalLM,
        lfm3(
            num_hidden_layers=6,
            tie_word_embeddings=False,
            use_sandwich_norm=False,
            use_attention_gate=False,
            conv_L_cache=3,
            layer_types=["full_attention", "conv", "conv", "sliding_attention", "conv", "conv"],
        ),
        gains=MATRICES | HEAD,
    ),
    "gemma3": Case(
        Gemma3ForCausalLM,
        gemma3(
            final_logit_softcapping=9.0,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        ),
        dtype="BF16",
        norm_mean=0.0,
        gains=MATRICES | {"embed_tokens": 0.2, "post_(attention|feedforward)": 40.0, r"norm\.weight": 3.0},
    ),
    "gemma3_large": Case(
        Gemma3ForCausalLM,
        gemma3(tie_word_embeddings=False),
        norm_mean=0.0,
        # A stream of tens of thousands, which float16 cannot hold.
        gains=MATRICES | HEAD | {"embed_tokens": 2000.0, "post_(attention|feedforward)": 50_000.0},
    ),
    "granite": Case(
        GraniteForCausalLM,
        granite(tie_word_embeddings=True),
        dtype="BF16",
        gains=MATRICES | {"embed_tokens": 0.04},
    ),
    "granite_untied": Case(GraniteForCausalLM, granite(embedding_multiplier=1.5), gains=MATRICES),
}


class TooClose(Exception):
    """A seed with which a token hangs on a small margin, or answers repeat themselves."""


def main() -> None:
    """Write the value file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=values.DIRECTORY)
    parser.add_argument("--only", nargs="*", help="these models, the others are taken from the file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = arguments.out / FILE
    document = json.loads(gzip.decompress(path.read_bytes())) if arguments.only else {}
    with torch.inference_mode():
        for name, case in CASES.items():
            if not arguments.only or name in arguments.only:
                document[name] = entry_of(case)
                print(name, document[name]["seed"], flush=True)
    packed = json.dumps({name: document[name] for name in CASES if name in document}, separators=(",", ":"))
    path.write_bytes(gzip.compress(packed.encode(), compresslevel=9, mtime=0))


def entry_of(case: Case) -> dict[str, Any]:
    """Return what the file holds of one model."""
    case.config._attn_implementation = "eager"
    model = case.make(case.config).eval()
    case.prepare(model)
    state = model.state_dict()
    tied = case.config.tie_word_embeddings
    shapes = {
        name: list(value.shape) for name, value in state.items() if not (tied and name == "lm_head.weight")
    }
    config = json.loads(model.config.to_json_string()) | case.json
    config.pop("_attn_implementation", None)
    for seed in range(SEEDS):
        weights = random_weights(shapes, seed, case.dtype, case.norm_mean, case.gains)
        missing = model.load_state_dict({name: torch.tensor(w) for name, w in weights.items()}, strict=False)
        assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}
        if tied:
            model.tie_weights()
        try:
            found = conversations(model, case.config.vocab_size, random.Random(seed))
        except TooClose:
            continue
        return {
            "config": config,
            "shapes": shapes,
            "seed": seed,
            "dtype": case.dtype,
            "norm_mean": case.norm_mean,
            "gains": case.gains,
            "conversations": found,
        }
    raise AssertionError(f"no seed of {SEEDS} gives clear answers")


def conversations(model: Any, vocab_size: int, rng: random.Random) -> dict[str, Any]:
    """Return a long prompt, its second turn, an edit within each, and something else."""

    def new(count: int) -> list[int]:
        return [rng.randrange(3, vocab_size) for _ in range(count)]

    found = {"first": answered(model, [1, *new(129)])}
    history = found["first"]["prompt"] + found["first"]["answer"]
    prompts = {
        "second_turn": history + new(30),
        "edit_in_answer": history[:145] + new(12),
        "edit_in_prompt": history[:60] + new(25),
        "short": new(5),
    }
    return found | {name: answered(model, prompt) for name, prompt in prompts.items()}


def answered(model: Any, prompt: list[int]) -> dict[str, Any]:
    """Return a greedy answer. Raises TooClose."""
    answer: list[int] = []
    logits = []
    for step in range(ANSWER_TOKENS):
        row = model(torch.tensor([prompt + answer]), use_cache=False).logits[0, -1]
        first, second = row.topk(2).values.tolist()
        if first - second < LEAST_MARGIN:
            raise TooClose
        if step in STEPS:
            logits.append([round(value, 5) for value in row.tolist()])
        answer.append(int(row.argmax()))
    if len(set(answer)) < LEAST_DIFFERENT:
        raise TooClose
    return {"prompt": prompt, "answer": answer, "logits": logits}


if __name__ == "__main__":
    main()
