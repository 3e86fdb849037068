"""Llamas for tests: dimensions with the weights' names and shapes, and their hybrid folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backends.hybrid.meta import Attention, License, Meta, Rope
from convert.llama import llama_layer
from convert.matrices import Weights
from convert.model import Model
from convert.writer import LENGTHS, Papers, Progress, write_folder


@dataclass(frozen=True)
class LlamaConfig:
    """Dimensions, named as in a Hugging Face config. rotary_dim: how many of head_dim rotate ("half")."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_theta: float
    rotary_dim: int
    tied_lm_head: bool

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight. Raises KeyError for a name a Llama model does not have."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm": (self.hidden_size,),
            "self_attn.q_proj": (queries, self.hidden_size),
            "self_attn.k_proj": (keys, self.hidden_size),
            "self_attn.v_proj": (keys, self.hidden_size),
            "self_attn.o_proj": (self.hidden_size, queries),
            "post_attention_layernorm": (self.hidden_size,),
            "mlp.gate_proj": (self.intermediate_size, self.hidden_size),
            "mlp.up_proj": (self.intermediate_size, self.hidden_size),
            "mlp.down_proj": (self.hidden_size, self.intermediate_size),
            "model.embed_tokens": (self.vocab_size, self.hidden_size),
            "model.norm": (self.hidden_size,),
            "lm_head": (self.vocab_size, self.hidden_size),
        }
        name = name.removesuffix(".weight")
        if name.startswith("model.layers."):
            name = name.split(".", 3)[3]
        return shapes[name]

    @property
    def names(self) -> list[str]:
        """The Hugging Face names of all weights."""
        names = ["model.embed_tokens.weight", "model.norm.weight"]
        names += [name for layer in range(self.num_layers) for name in layer_names(layer)]
        return names if self.tied_lm_head else [*names, "lm_head.weight"]

    @property
    def size_bytes(self) -> int:
        """Bytes of the float32 weights on disk."""
        return 4 * sum(math.prod(self.shape(name)) for name in self.names)


def layer_names(layer: int) -> list[str]:
    """Return the Hugging Face names of one layer's weights."""
    parts = ["input_layernorm", "post_attention_layernorm"]
    parts += [f"self_attn.{part}_proj" for part in "qkvo"]
    parts += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    return [f"model.layers.{layer}.{part}.weight" for part in parts]


def llama_model(config: LlamaConfig) -> Model:
    """Return the parts of a model of these dimensions."""
    rope = Rope(theta=config.rope_theta, rotary_dim=config.rotary_dim, style="half")
    return Model(
        architecture="llama",
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        norm_eps=config.norm_eps,
        attention={"full": Attention(window=None, scale=config.head_dim**-0.5, rope=rope)},
        layers=[llama_layer(layer) for layer in range(config.num_layers)],
        embedding="model.embed_tokens.weight",
        final_norm="model.norm.weight",
        lm_head=None if config.tied_lm_head else "lm_head.weight",
    )


def write_llama(
    directory: Path,
    config: LlamaConfig,
    weights: Weights,
    *,
    name: str,
    tokenizer: str,
    chat_template: str | None,
    eos_token_ids: Sequence[int],
    license: License,
    source: Mapping[str, str],
    lengths: Sequence[int] = LENGTHS,
    progress: Progress = lambda done, what: None,
) -> Meta:
    """Write a complete folder into `directory`, which exists and is empty, and return its description.

    weights: called once for each weight, by its Hugging Face name ("model.layers.0.mlp.up_proj.weight").
    tokenizer: the text of a tokenizer.json. Raises ConvertError for weights of a wrong shape or that are not
    finite, OSError.
    """
    papers = Papers(
        name=name,
        tokenizer=tokenizer,
        chat_template=chat_template,
        eos_token_ids=eos_token_ids,
        license=license,
        source=source,
        lengths=lengths,
        progress=progress,
    )
    return write_folder(directory, llama_model(config), weights, papers)
